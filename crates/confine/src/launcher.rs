//! The process that starts others on behalf of a confined one, and what it may do.
//!
//! A program whose threads are confined can start no process. One that needs processes all the same
//! forks a server before, which calls [`confine_launcher`] first. What it starts has the same limits.

use std::io;

use crate::report::{Part, host_offers};
use crate::{files, filter, kernel};

/// Confines the calling process, which has one thread, to starting processes from files in memory, and
/// these to what such a process does until it has limits of its own. It has no privileges from then on
/// and reaches no file. What the host does not offer is left out.
///
/// # Errors
/// The kernel refuses what the host offers.
pub fn confine_launcher() -> io::Result<()> {
    kernel::no_core_file();
    kernel::no_new_privileges()?;
    kernel::keep_capabilities(0)?;
    if host_offers(Part::Files) && !files::reach_nothing().map_err(io::Error::other)? {
        return Err(io::Error::other("rules for files are not enforced"));
    }
    if host_offers(Part::SystemCalls) {
        let filter = filter::of_launcher().map_err(io::Error::other)?;
        kernel::install_filter(&filter)?;
    }
    Ok(())
}
