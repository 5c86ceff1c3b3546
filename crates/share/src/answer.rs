//! How a request to a share was carried out.

use rustix::io::Errno;

/// The result of a request: the reply's body was written, or an error.
pub(crate) type Answer = Result<(), Errno>;
