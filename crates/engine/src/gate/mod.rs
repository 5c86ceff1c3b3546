//! The way into emitted code and out of it, and the store test that it calls: all that is
//! written in assembly by hand.

pub mod code_store;
pub mod entry;

use crate::abi::context::Gate;

/// The addresses that a context is made with.
pub fn addresses() -> Gate {
    Gate {
        exit: entry::exit_address(),
        code_store: code_store::addresses(),
        long_code_store: code_store::long_addresses(),
    }
}
