//! The hand-written assembly: the way into emitted code and out of it, and the routines that
//! emitted code calls (misses, the test of stores, repeated string instructions, fast paths).

/// Assembly that looks up the target of an indirect branch as emitted code does
/// ([`first_choice`](crate::abi::link_layout::first_choice)).
///
/// On entry the target is in RCX, and its sum with the mode's part of the tag is in RAX; `$table`
/// is where the start of the mode's table is stored. After a hit it jumps to the label `$hit` with
/// the entry's address in R9; otherwise it falls through. It changes R8 and the flags.
macro_rules! look_up_target {
    ($table:literal, $hit:literal) => {
        concat!(
            "mov r9d, ecx\n",
            "and r9d, {index_bits_in_place}\n",
            "add r9, [",
            $table,
            "]\n",
            "lea r9, [r13 + r9*8 - {links_bias}]\n",
            "mov r8, [r9]\n",
            "add r8, rax\n",
            "jz ",
            $hit,
            "\n",
            "add r9, {entry_bytes}\n",
            "mov r8, [r9]\n",
            "add r8, rax\n",
            "jz ",
            $hit,
        )
    };
}

pub mod device_fast_path;
pub mod entry;
pub mod far_fast_path;
pub mod fast_path;
pub mod interrupt_fast_path;
pub mod interrupted_string;
pub mod live_vectors;
pub mod miss;
pub mod store_test;
pub mod string;
pub mod vector_fast_path;

use crate::abi::context::Gate;

/// The addresses of the routines that a new context gets.
pub fn addresses() -> Gate {
    Gate {
        exit: entry::exit_address(),
        miss: device_fast_path::miss_address(),
        code_store: store_test::addresses(),
        long_code_store: store_test::long_addresses(),
        strings: interrupted_string::addresses(),
        fast_paths: fast_path::addresses(),
    }
}
