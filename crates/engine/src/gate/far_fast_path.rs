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
use crate::abi::fast_paths::{DONE_IN_LEVEL, FastPath};
use crate::abi::link_layout::{ENTRY_SLIDE, ENTRY_TARGET};
use crate::abi::memos::known_code::{
    KEY_CALLS, KEY_LONG, KEY_RETURNS, KEY_TRANSFER, KEY_USER, KEY_WIDE, KnownCode, KnownCodeTable,
};
use crate::abi::x87_pointers::X87_FRESH;
use std::mem::offset_of;
use tollgate_x86::{Segment, SegmentRegister, Watched};

const _: () = assert!(size_of::<KnownCode>() == 1 << 7 && size_of::<Segment>() == 16);
const _: () = assert!(size_of::<Watched>() == 24 && offset_of!(KnownCode, key) == 0);

fast_path_routines!(
    tollgate_far_start..tollgate_far_end,
    {
    // On entry RDX is the memo of the code segment, and R9 the key and the kind of transfer. The
    // target and the previous value of R11 are in the context.
    ".macro tollgate_far_transfers long",
    "mov r11, [rdx + {tlb}]",
    // In 64-bit code too, a comparison of all bits takes less time than one of the rights.
    "tollgate_compares rdx, {descriptor}, r11, \\long, 0",
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
    "tollgate_looks_up r11, r14, \\long, 1",
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
    ".weak tollgate_far",
    ".hidden tollgate_far",
    // On entry R8 is the target's offset, RCX its selector, and R9 the key without the selector.
    // R11 is the next EIP of a CALL, or what a RET adds to ESP.
    "tollgate_far:",
    "tollgate_begins",
    "mov [r15 + {exit_value}], r8",
    "mov [r15 + {work}], r11",
    "or r9, rcx",
    "mov r8, r9",
    "and r8, {not_transfer}",
    "tollgate_finds_memo r8, {shift}, 7, {known_codes}",
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
    "tollgate_copies rdx, {code}, {cs}",
    "tollgate_copies rdx, {known}, {code_descriptor}",
    "mov rax, [rdx + {known} + 16]",
    "mov [r15 + {code_descriptor} + 16], rax",
    "mov eax, [rdx + {level_changed}]",
    "or [r15 + {context_level_changed}], rax",
    // Continues in the table of the target's mode.
    "mov rcx, [r15 + {exit_value}]",
    "mov r11d, r9d",
    "tollgate_finds_code rdx, {then}, {done_in_level}",
    "test r11d, 1 << {user}",
    "jz 7f",
    "mov r8, [r9 + {entry_slide}]",
    "mov [r15 + {code_slide}], r8",
    "7:",
    "mov r11, [r9 + {entry_target}]",
    "tollgate_continues r11",
    "9:",
    "tollgate_leaves",
    ".purgem tollgate_far_transfers",
    },
    work = const at::WORK[0],
    count = const at::fast_path_count(FastPath::Far),
    shift = const KnownCodeTable::SHIFT,
    not_transfer = const !(KEY_TRANSFER as i64),
    known_codes = const at::KNOWN_CODES,
    calls = const KEY_CALLS,
    returns = const KEY_RETURNS,
    wide = const KEY_WIDE,
    long = const KEY_LONG,
    user = const KEY_USER,
    gdt_base = const offset_of!(KnownCode, gdt_base),
    gdt_limit = const offset_of!(KnownCode, gdt_limit),
    descriptor = const offset_of!(KnownCode, descriptor),
    known = const offset_of!(KnownCode, known),
    tlb = const offset_of!(KnownCode, tlb),
    then = const offset_of!(KnownCode, then),
    level_changed = const offset_of!(KnownCode, changed),
    code = const offset_of!(KnownCode, code),
    context_gdt_base = const at::GDT_BASE,
    context_gdt_limit = const at::GDT_LIMIT,
    context_level_changed = const at::LEVEL_CHANGED,
    code_descriptor = const at::CODE_DESCRIPTOR,
    cs = const at::segment_register(SegmentRegister::Cs),
    x87_opcode = const at::X87_OPCODE,
    x87_fresh = const X87_FRESH,
    code_slide = const at::CODE_SLIDE,
    done_in_level = const DONE_IN_LEVEL,
    entry_slide = const ENTRY_SLIDE,
    entry_target = const ENTRY_TARGET,
);

unsafe extern "sysv64" {
    fn tollgate_far();
}

/// The address of the routine.
pub fn address() -> u64 {
    tollgate_far as *const () as u64
}
