//! The way into emitted code and out of it, and what it calls: the test of stores, the
//! repeated string instructions, and leaves. All that is written in assembly by hand.

pub mod device_leaf;
pub mod entry;
pub mod far_leaf;
pub mod interrupt_leaf;
pub mod interrupted_string;
pub mod leaf;
pub mod live_vectors;
pub mod miss;
pub mod store_test;
pub mod string;
pub mod vector_leaf;

use crate::abi::context::Gate;

/// The addresses that a context is made with.
pub fn addresses() -> Gate {
    Gate {
        exit: entry::exit_address(),
        miss: device_leaf::miss_address(),
        code_store: store_test::addresses(),
        long_code_store: store_test::long_addresses(),
        strings: interrupted_string::addresses(),
        leaves: leaf::addresses(),
    }
}
