//! The fast path of far JMP, CALL and RET to a code segment of the same level that the monitor has
//! entered before.
//!
//! It serves 32-bit protected mode outside IA-32e mode, and 64-bit code. [`KnownCode`] is the memo.
//! The routine compares GDTR with the memo, and the descriptor, which it reads each time through
//! the supervisor's software TLB. The place of a CALL's frame is looked up for a store before
//! anything changes; a RET's frame was read by the code of the block.
//!
//! ```text
//! code of the block   mov r8d, offset; mov ecx, selector; mov r9, key
//!                     mov r11d, next EIP (CALL) or what is added to ESP (RET)
//!                     mov dword ptr [r15+exit_site], site; jmp [r15+..]
//! here                is there a memo? GDTR and descriptor unchanged? place of the frame
//!                     frame, ESP; CS; jmp to the target's block
//! ```
//!
//! See [`crate::gate::fast_path`] for what all fast paths share.

use crate::abi::context_displacements as at;
use crate::abi::descriptors::Expected;
use crate::abi::fast_paths::{DONE_IN_LEVEL, FastPath};
use crate::abi::link_layout::{
    ENTRY_BYTES, ENTRY_SLIDE, ENTRY_TARGET, INDEX_BITS_IN_PLACE, LINKS_BIAS,
};
use crate::abi::memos::SPREAD;
use crate::abi::memos::known_code::{
    KEY_CALLS, KEY_LONG, KEY_RETURNS, KEY_TRANSFER, KEY_USER, KEY_WIDE, KnownCode, KnownCodeTable,
};
use crate::abi::x87_pointers::X87_FRESH;
use std::arch::global_asm;
use std::mem::offset_of;
use tollgate_tlb::long_tlb::{LONG_ROOT_DISPLACEMENT, LONG_WRITE_DISPLACEMENT};
use tollgate_tlb::software_tlb::WRITE_TABLE_OFFSET;
use tollgate_x86::{Gpr, Segment, SegmentRegister};

const _: () = assert!(size_of::<KnownCode>() == 128 && size_of::<Segment>() == 16);
const _: () = assert!(size_of::<Expected>() == 24);

global_asm!(
    ".macro tollgate_far_restores",
    "movzx eax, word ptr [r15 + {flags}]",
    "add al, 0x7f",
    "sahf",
    "mov rax, [r15 + {rax}]",
    "mov rdx, [r15 + {rdx}]",
    ".endm",
    // Yields the host address minus the linear address for data at R8 within one page, if the
    // software TLB at `tlb` contains the page. Changes RCX.
    ".macro tollgate_far_looks_up to, tlb, long, write",
    ".if \\long",
    "sarx rcx, r8, \\tlb",
    // An address that is not canonical lies outside the root table.
    "lea \\to, [rcx + 256]",
    "cmp \\to, 511",
    "ja 9f",
    "mov rcx, [\\tlb + rcx*8 + {long_root}]",
    "sarx \\to, r8, r15",
    "add \\to, \\to",
    ".if \\write",
    "mov \\to, [rcx + \\to*8 + {long_write}]",
    ".else",
    "mov \\to, [rcx + \\to*8]",
    ".endif",
    ".else",
    "mov ecx, r8d",
    "shr ecx, 12",
    "add ecx, ecx",
    ".if \\write",
    "mov \\to, [\\tlb + rcx*8 + {write}]",
    ".else",
    "mov \\to, [\\tlb + rcx*8]",
    ".endif",
    ".endif",
    "test \\to, \\to",
    "jz 9f",
    ".endm",
    // On entry RDX is the memo of the code segment, and R9 the key and the kind of transfer. The
    // target and the previous value of R11 are in the context.
    ".macro tollgate_far_transfers long",
    "mov r11, [rdx + {tlb}]",
    "mov r8, [rdx + {place}]",
    "tollgate_far_looks_up rax, r11, \\long, 0",
    "mov rax, [rax + r8]",
    "cmp rax, [rdx + {descriptor}]",
    "jne 9f",
    ".if \\long",
    "mov rax, [r15 + {exit_value}]",
    "mov rcx, rax",
    "shl rcx, 16",
    "sar rcx, 16",
    "cmp rcx, rax",
    "jne 9f",
    ".endif",
    "test r9d, 1 << {calls}",
    "jz 2f",
    ".if \\long",
    "lea r8, [r12 - 8]",
    "test r9d, 1 << {wide}",
    "jz 1f",
    "sub r8, 8",
    "1:",
    "mov eax, r8d",
    "and eax, 0xfff",
    "cmp eax, 0x1000 - 16",
    ".else",
    "lea r8d, [r12 - 8]",
    "mov eax, r8d",
    "and eax, 0xfff",
    "cmp eax, 0x1000 - 8",
    ".endif",
    "ja 9f",
    "tollgate_far_looks_up r11, r14, \\long, 1",
    "add r11, r8",
    // Nothing can fail from here on.
    "mov rax, [r15 + {work}]",
    "movzx ecx, word ptr [r15 + {cs} + 12]",
    ".if \\long",
    "mov r12, r8",
    "test r9d, 1 << {wide}",
    "jz 1f",
    "mov [r11], rax",
    "mov [r11 + 8], rcx",
    "jmp 3f",
    "1:",
    ".else",
    "mov r12d, r8d",
    ".endif",
    "mov [r11], eax",
    "mov [r11 + 4], ecx",
    "jmp 3f",
    "2:",
    "test r9d, 1 << {returns}",
    "jz 3f",
    ".if \\long",
    "add r12, [r15 + {work}]",
    ".else",
    "add r12d, [r15 + {work}]",
    ".endif",
    "3:",
    ".endm",
    ".weak tollgate_far_start, tollgate_far_end, tollgate_far",
    ".hidden tollgate_far_start, tollgate_far_end, tollgate_far",
    ".p2align 6",
    "tollgate_far_start:",
    // On entry R8 is the target's offset, RCX its selector, and R9 the key without the selector.
    // R11 is the next EIP of a CALL, or what a RET adds to ESP.
    "tollgate_far:",
    "mov [r15 + {rax}], rax",
    "mov [r15 + {rdx}], rdx",
    "mov [r15 + {exit_value}], r8",
    "mov [r15 + {work}], r11",
    "lahf",
    "seto al",
    "mov [r15 + {flags}], ax",
    "or r9, rcx",
    "mov r8, r9",
    "and r8, {not_transfer}",
    "mov rax, {spread}",
    "imul rax, r8",
    "shr rax, {shift}",
    "shl eax, 7",
    "lea rdx, [r15 + rax + {known_codes}]",
    "cmp [rdx + {key}], r8",
    "je 1f",
    "xor eax, 128",
    "lea rdx, [r15 + rax + {known_codes}]",
    "cmp [rdx + {key}], r8",
    "jne 9f",
    "1:",
    "mov rax, [r15 + {context_gdt_base}]",
    "cmp rax, [rdx + {gdt_base}]",
    "jne 9f",
    "movzx eax, word ptr [r15 + {context_gdt_limit}]",
    "cmp ax, [rdx + {gdt_limit}]",
    "jne 9f",
    "test r9d, 1 << {long}",
    "jz 4f",
    "tollgate_far_transfers 1",
    "jmp 5f",
    "4:",
    // The monitor must still note the segments of the last x87 instruction.
    "test dword ptr [r15 + {x87_opcode}], {x87_fresh}",
    "jnz 9f",
    "tollgate_far_transfers 0",
    "5:",
    "inc qword ptr [r15 + {count}]",
    "mov rax, [rdx + {code}]",
    "mov [r15 + {cs}], rax",
    "mov rax, [rdx + {code} + 8]",
    "mov [r15 + {cs} + 8], rax",
    "mov rax, [rdx + {expected}]",
    "mov [r15 + {code_descriptor}], rax",
    "mov rax, [rdx + {expected} + 8]",
    "mov [r15 + {code_descriptor} + 8], rax",
    "mov rax, [rdx + {expected} + 16]",
    "mov [r15 + {code_descriptor} + 16], rax",
    "mov eax, [rdx + {level_changed}]",
    "or [r15 + {context_level_changed}], rax",
    // Continues in the table of the target's mode.
    "mov rcx, [r15 + {exit_value}]",
    "mov rax, [rdx + {tag}]",
    "add rax, rcx",
    "mov r11d, r9d",
    look_up_target!("rdx + {table}", "6f"),
    "mov qword ptr [r15 + {done}], {done_in_level}",
    "9:",
    "tollgate_far_restores",
    "jmp tollgate_exit",
    "6:",
    "test r11d, 1 << {user}",
    "jz 7f",
    "mov r8, [r9 + {entry_slide}]",
    "mov [r15 + {code_slide}], r8",
    "7:",
    "mov r11, [r9 + {entry_target}]",
    "tollgate_far_restores",
    "jmp r11",
    "tollgate_far_end:",
    ".purgem tollgate_far_transfers",
    ".purgem tollgate_far_looks_up",
    ".purgem tollgate_far_restores",
    rax = const at::slot(Gpr::Rax as u8),
    rdx = const at::slot(Gpr::Rdx as u8),
    flags = const at::STRING_FLAGS,
    work = const at::WORK[0],
    count = const at::fast_path_count(FastPath::Far),
    long_root = const LONG_ROOT_DISPLACEMENT,
    long_write = const LONG_WRITE_DISPLACEMENT,
    write = const WRITE_TABLE_OFFSET,
    spread = const SPREAD,
    shift = const KnownCodeTable::SHIFT,
    not_transfer = const !(KEY_TRANSFER as i64),
    known_codes = const at::KNOWN_CODES,
    calls = const KEY_CALLS,
    returns = const KEY_RETURNS,
    wide = const KEY_WIDE,
    long = const KEY_LONG,
    user = const KEY_USER,
    key = const offset_of!(KnownCode, key),
    gdt_base = const offset_of!(KnownCode, gdt_base),
    gdt_limit = const offset_of!(KnownCode, gdt_limit),
    place = const offset_of!(KnownCode, place),
    descriptor = const offset_of!(KnownCode, descriptor),
    tlb = const offset_of!(KnownCode, tlb),
    table = const offset_of!(KnownCode, then.table),
    tag = const offset_of!(KnownCode, then.tag),
    level_changed = const offset_of!(KnownCode, changed),
    code = const offset_of!(KnownCode, code),
    expected = const offset_of!(KnownCode, expected),
    context_gdt_base = const at::GDT_BASE,
    context_gdt_limit = const at::GDT_LIMIT,
    context_level_changed = const at::LEVEL_CHANGED,
    code_descriptor = const at::CODE_DESCRIPTOR,
    cs = const at::segment_register(SegmentRegister::Cs),
    x87_opcode = const at::X87_OPCODE,
    x87_fresh = const X87_FRESH,
    exit_value = const at::EXIT_VALUE,
    code_slide = const at::CODE_SLIDE,
    done = const at::FAST_PATH_DONE,
    done_in_level = const DONE_IN_LEVEL,
    entry_bytes = const ENTRY_BYTES,
    index_bits_in_place = const INDEX_BITS_IN_PLACE,
    links_bias = const LINKS_BIAS,
    entry_slide = const ENTRY_SLIDE,
    entry_target = const ENTRY_TARGET,
);

unsafe extern "sysv64" {
    fn tollgate_far_start();
    fn tollgate_far();
    fn tollgate_far_end();
}

/// The address of the routine.
pub fn address() -> u64 {
    tollgate_far as *const () as u64
}

/// Whether the routine runs at this host address.
pub fn is_here(pc: u64) -> bool {
    let first = tollgate_far_start as *const () as u64;
    (first..tollgate_far_end as *const () as u64).contains(&pc)
}
