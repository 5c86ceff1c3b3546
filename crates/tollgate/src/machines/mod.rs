//! The machines of this user: their names, and `tollgate ps`, `kill` and `logs`.
//!
//! ```text
//! run, exec --> admission: does the host's memory suffice for one more?
//!           --> entry: NAME.machine in the run-time folder, locked while the process lives
//! ps, kill, logs --> entries that are locked; those of dead processes are removed
//! ```
//!
//! The kernel drops the lock with the process, however that ends. So nothing has to be tidied up:
//! the next command that looks at the folder removes what dead machines have left.

mod admission;
pub mod cp;
pub mod detach;
mod entry;
pub mod kill;
pub mod logs;
mod name;
pub mod pool;
pub mod ps;

pub use entry::{Entry, Facts, find};
pub use name::Name;

use crate::failure::Failure;
use crate::flags::{Admission, PresenceArguments};

/// Admits one more machine to this host, and registers it. Without a run-time folder that is this
/// user's alone, a machine without a name is not registered.
///
/// # Errors
/// One line says that the host has too little memory, or that the name is taken.
pub fn register(flags: &PresenceArguments, facts: Facts) -> Result<Option<Entry>, Failure> {
    let admitted = match flags.admission {
        Admission::On => admission::admit(facts.memory_bytes)?,
        Admission::Off => None,
    };
    let entry = entry::register(flags, facts);
    // The next machine is admitted when this one can be seen.
    drop(admitted);
    entry
}
