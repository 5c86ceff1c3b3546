//! Linux as a guest of experiments: Debian's kernels as `scripts/get-guests` fetches them, with a
//! shell that is told what to do by its serial port.
//!
//! The guest is booted once; knobs are turned on it between two command lines, so that all arms
//! run in turns on the same system. What a command line takes is told by the machine's books,
//! which are begun anew before it.

mod session;
mod system;

pub use session::{LinuxGuest, Ran};
pub use system::{AMD64, Extra, I686, Program, System, check_folder};
