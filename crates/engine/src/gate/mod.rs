//! The hand-written assembly: the way into emitted code and out of it, and the routines that
//! emitted code calls (misses, the test of stores, repeated string instructions, fast paths).

#[macro_use]
mod routines;

pub mod call_fast_path;
pub mod cpuid_fast_path;
pub mod device_fast_path;
pub mod entry;
pub mod far_fast_path;
pub mod fast_path;
pub mod interrupt_fast_path;
pub mod interrupted_string;
pub mod iret_fast_path;
pub mod live_vectors;
pub mod miss;
pub mod segment_fast_path;
pub mod store_check;
pub mod string;
pub mod vector_fast_path;

use crate::abi::context::Gate;

/// The addresses of the routines that a new context gets.
pub fn addresses() -> Gate {
    Gate {
        exit: entry::exit_address(),
        miss: device_fast_path::miss_address(),
        code_store: store_check::addresses(),
        long_code_store: store_check::long_addresses(),
        strings: interrupted_string::addresses(),
        fast_paths: fast_path::addresses(),
    }
}
