//! What each thread of a virtual machine's process may still ask of the host once it is set up.
//!
//! Every thread has a [kind](ThreadKind), and calls [`enter`] before its first work. From then on the
//! kernel holds it to
//!
//! - the system calls on its kind's list (`calls.rs`): any other ends the process, with a line that
//!   names the thread and the call (`trap.rs`);
//! - the files beneath the shared directories, if it serves them, and no others (`files.rs`);
//! - the privileges that it has, of which it keeps only those that its kind needs (`kernel.rs`).
//!
//! Nothing happens before [`begin`] was called, so tests of other crates run without all this.
//!
//! All threads share one address space. A thread that writes wherever it likes can make another one
//! work for it, so an attacker has in the end what all lists together allow; `docs/guide/confinement.md`
//! says what that is.

mod calls;
mod files;
mod filter;
mod kernel;
mod kind;
mod launcher;
mod own_thread;
mod policy;
mod report;
mod trap;

pub use files::{Tree, TreeAccess};
pub use kind::ThreadKind;
pub use launcher::confine_launcher;
pub use own_thread::{elsewhere, on_own_thread};
pub use policy::{Confine, Entry, Setup, begin, enter, entry_of_child, start_confined};
pub use report::{Part, Report, host_offers, report};
