//! Linux as a guest of experiments: Debian's kernels as `scripts/get-guests` fetches them, with a
//! shell that receives its commands through the serial port.
//!
//! The guest is booted once; knobs are set between two command lines, so that all arms run in turns
//! on the same system. The costs of a command line are in the machine's ledger, which is reset
//! before it.

mod session;
mod system;

pub use session::{LinuxGuest, Ran};
pub use system::{
    AMD64, Extra, I686, Program, RT_AMD64, System, check_folder, guests_folder, kernel_folder,
};
