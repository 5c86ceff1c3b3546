//! How many descriptors the process may have, raised for networks.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the process's soft limit of descriptors to the hard one, because each connection takes
/// one.
pub(crate) fn raise_descriptor_limit() {
    let maximum = getrlimit(Resource::Nofile).maximum;
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    // If this fails, connections beyond the limit are refused.
    let _ = setrlimit(Resource::Nofile, raised);
}
