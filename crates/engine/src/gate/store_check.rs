//! The test of stores to pages that hold translated code, without leaving guest code.
//!
//! Such a page has no entry in the table that emitted code uses for stores, so the store misses,
//! and its miss stub jumps here. The store continues as after a hit if the page has an entry in the
//! table for stores to pages with code, and the map of code says that none of the written lines
//! holds code. Otherwise the store is an ordinary miss ([`crate::gate::miss`]), or, if there may be
//! code, an exit.
//!
//! A line may hold code that the store does not touch. The monitor finds that out, lets one store
//! of one site pass, and gives the page a map of its bytes. The store that passes (`store_pass`) is
//! the next one of its site, even if no code is left in its line, since the store after it may be
//! to other code. Where a page has a map of bytes, a store to a line with code is tested by that
//! map.
//!
//! On entry R8 is the linear address, R9 the slot's number, R14 the software TLB, RCX where the
//! block continues, and the context names the site. No instruction here changes flags or a guest
//! register, and what is changed in the context means nothing before the store. So a signal handler
//! can leave from anywhere here to the start of the site's instruction; it recognises these
//! routines by [`is_here`].

use crate::abi::context::{NO_PASS, STORE_SIZES};
use crate::abi::context_displacements as at;
use std::arch::global_asm;
use tollgate_tlb::long_tlb::{LONG_CODE_WRITE_STEP, LONG_ROOT_DISPLACEMENT};
use tollgate_tlb::software_tlb::CODE_WRITE_TABLE_OFFSET;

global_asm!(
    // Sets RCX to a value other than zero if the line of the byte at host address R9 holds code.
    ".macro tollgate_test_line",
    "mov ecx, 6",
    "shrx r8, r9, rcx",
    "shrx r9, r9, r15",
    "mov rcx, [r15 + {code_lines}]",
    "mov rcx, [rcx + r9*8]",
    "shrx rcx, rcx, r8",
    "mov r8d, 63",
    "shlx rcx, rcx, r8",
    "mov r8, [r15 + {exit_value}]",
    ".endm",
    // Loads RCX with the word of the map of bytes for the line of the byte at R9. If the byte's
    // page has no map, jumps to the caller's label 7, "may be code".
    ".macro tollgate_load_bytes",
    "shrx rcx, r9, r15",
    "mov r8, [r15 + {code_bytes}]",
    "mov rcx, [r8 + rcx*8]",
    "jrcxz 7f",
    "mov r8d, 0xfc0",
    "pext r8, r9, r8",
    "mov rcx, [rcx + r8*8]",
    ".endm",
    ".macro tollgate_test_store size long",
    ".p2align 6",
    // On entry R8 is the linear address.
    "8:",
    "jmp tollgate_device_miss",
    ".if \\long",
    "tollgate_long_code_store_\\size:",
    ".else",
    "tollgate_code_store_\\size:",
    ".endif",
    "mov [r15 + {exit_value}], r8",
    "mov [r15 + {store_return}], rcx",
    ".if \\long",
    "sarx rcx, r8, r14",
    "mov rcx, [r14 + rcx*8 + {long_root}]",
    "lea rcx, [rcx + r9*8 + {long_step}]",
    "mov rcx, [rcx + {long_step}]",
    ".else",
    "mov rcx, [r14 + r9*8 + {table}]",
    ".endif",
    "jrcxz 8b",
    "mov [r15 + {store_delta}], rcx",
    "lea r9, [r8 + rcx]",
    "tollgate_test_line",
    "jrcxz 1f",
    "jmp 9f",
    "1:",
    ".if \\size > 1",
    "mov rcx, [r15 + {store_delta}]",
    "lea r9, [r8 + rcx + \\size - 1]",
    "tollgate_test_line",
    "jrcxz 2f",
    "jmp 9f",
    ".endif",
    // The pass is cleared whether it was needed or not, since it is for one store.
    "2:",
    "mov qword ptr [r15 + {store_pass}], {no_pass}",
    "mov rcx, [r15 + {store_delta}]",
    "jmp qword ptr [r15 + {store_return}]",
    "9:",
    "mov ecx, [r15 + {exit_site}]",
    "mov r9, [r15 + {store_pass}]",
    "lea rcx, [rcx + r9]",
    "jrcxz 2b",
    "mov r8, [r15 + {exit_value}]",
    "mov rcx, [r15 + {store_delta}]",
    "lea r9, [r8 + rcx]",
    "tollgate_load_bytes",
    // Selects the bytes of the store that lie in the line of its first byte.
    "shrx rcx, rcx, r9",
    "mov r8d, 64 - \\size",
    "shlx rcx, rcx, r8",
    ".if \\size > 1",
    "jrcxz 3f",
    "jmp tollgate_exit",
    "3:",
    // Selects the bytes that lie in the line of its last byte, which may be the same line.
    "lea r9, [r9 + \\size - 1]",
    "tollgate_load_bytes",
    "not r9",
    "shlx rcx, rcx, r9",
    "mov r8d, 64 - \\size",
    "shrx rcx, rcx, r8",
    ".endif",
    "jrcxz 6f",
    "7:",
    "jmp tollgate_exit",
    "6:",
    "mov r8, [r15 + {exit_value}]",
    "jmp 2b",
    ".endm",
    ".weak tollgate_code_store_1, tollgate_code_store_2, tollgate_code_store_4",
    ".weak tollgate_code_store_6, tollgate_code_store_8, tollgate_code_store_12, tollgate_code_store_16, tollgate_code_store_32, tollgate_code_store_64",
    ".weak tollgate_long_code_store_1, tollgate_long_code_store_2, tollgate_long_code_store_4",
    ".weak tollgate_long_code_store_6, tollgate_long_code_store_8, tollgate_long_code_store_12, tollgate_long_code_store_16, tollgate_long_code_store_32, tollgate_long_code_store_64",
    ".weak tollgate_code_store_start, tollgate_code_store_end",
    ".hidden tollgate_code_store_1, tollgate_code_store_2, tollgate_code_store_4",
    ".hidden tollgate_code_store_6, tollgate_code_store_8, tollgate_code_store_12, tollgate_code_store_16, tollgate_code_store_32, tollgate_code_store_64",
    ".hidden tollgate_long_code_store_1, tollgate_long_code_store_2, tollgate_long_code_store_4",
    ".hidden tollgate_long_code_store_6, tollgate_long_code_store_8, tollgate_long_code_store_12, tollgate_long_code_store_16, tollgate_long_code_store_32, tollgate_long_code_store_64",
    ".hidden tollgate_code_store_start, tollgate_code_store_end",
    "tollgate_code_store_start:",
    "tollgate_test_store 1 0",
    "tollgate_test_store 2 0",
    "tollgate_test_store 4 0",
    "tollgate_test_store 6 0",
    "tollgate_test_store 8 0",
    "tollgate_test_store 12 0",
    "tollgate_test_store 16 0",
    "tollgate_test_store 32 0",
    "tollgate_test_store 64 0",
    "tollgate_test_store 1 1",
    "tollgate_test_store 2 1",
    "tollgate_test_store 4 1",
    "tollgate_test_store 6 1",
    "tollgate_test_store 8 1",
    "tollgate_test_store 12 1",
    "tollgate_test_store 16 1",
    "tollgate_test_store 32 1",
    "tollgate_test_store 64 1",
    "tollgate_code_store_end:",
    ".purgem tollgate_test_line",
    ".purgem tollgate_load_bytes",
    ".purgem tollgate_test_store",
    table = const CODE_WRITE_TABLE_OFFSET,
    long_root = const LONG_ROOT_DISPLACEMENT,
    long_step = const LONG_CODE_WRITE_STEP,
    no_pass = const NO_PASS,
    code_lines = const at::CODE_LINES,
    code_bytes = const at::CODE_BYTES,
    exit_site = const at::EXIT_SITE,
    exit_value = const at::EXIT_VALUE,
    store_return = const at::STORE_RETURN,
    store_delta = const at::STORE_DELTA,
    store_pass = const at::STORE_PASS,
);

unsafe extern "sysv64" {
    fn tollgate_code_store_1();
    fn tollgate_code_store_2();
    fn tollgate_code_store_4();
    fn tollgate_code_store_6();
    fn tollgate_code_store_8();
    fn tollgate_code_store_12();
    fn tollgate_code_store_16();
    fn tollgate_code_store_32();
    fn tollgate_code_store_64();
    fn tollgate_long_code_store_1();
    fn tollgate_long_code_store_2();
    fn tollgate_long_code_store_4();
    fn tollgate_long_code_store_6();
    fn tollgate_long_code_store_8();
    fn tollgate_long_code_store_12();
    fn tollgate_long_code_store_16();
    fn tollgate_long_code_store_32();
    fn tollgate_long_code_store_64();
    fn tollgate_code_store_start();
    fn tollgate_code_store_end();
}

/// The addresses of the routines for the sizes in [`STORE_SIZES`].
pub fn addresses() -> [u64; STORE_SIZES.len()] {
    [
        tollgate_code_store_1 as *const () as u64,
        tollgate_code_store_2 as *const () as u64,
        tollgate_code_store_4 as *const () as u64,
        tollgate_code_store_6 as *const () as u64,
        tollgate_code_store_8 as *const () as u64,
        tollgate_code_store_12 as *const () as u64,
        tollgate_code_store_16 as *const () as u64,
        tollgate_code_store_32 as *const () as u64,
        tollgate_code_store_64 as *const () as u64,
    ]
}

/// The addresses of the routines for the sizes in [`STORE_SIZES`], for modes whose memory is
/// reached through the long software TLB.
pub fn long_addresses() -> [u64; STORE_SIZES.len()] {
    [
        tollgate_long_code_store_1 as *const () as u64,
        tollgate_long_code_store_2 as *const () as u64,
        tollgate_long_code_store_4 as *const () as u64,
        tollgate_long_code_store_6 as *const () as u64,
        tollgate_long_code_store_8 as *const () as u64,
        tollgate_long_code_store_12 as *const () as u64,
        tollgate_long_code_store_16 as *const () as u64,
        tollgate_long_code_store_32 as *const () as u64,
        tollgate_long_code_store_64 as *const () as u64,
    ]
}

/// Whether a store is being tested at this host address; the guest is then exactly before the
/// instruction of the site that the context names.
pub fn is_here(pc: u64) -> bool {
    let first = tollgate_code_store_start as *const () as u64;
    (first..tollgate_code_store_end as *const () as u64).contains(&pc)
}
