//! The fast path of MOV and POP to DS, ES, FS and GS in 32-bit code of level 0, with selectors that
//! the monitor has loaded before ([`SegmentLoad`]).
//!
//! A load that changes the mode continues in translated code of the other mode.
//!
//! See [`crate::gate::fast_path`] for what all fast paths share.

use crate::abi::context::groups::Changed;
use crate::abi::context_displacements as at;
use crate::abi::fast_paths::{DONE_IN_LEVEL, FastPath};
use crate::abi::link_layout::ENTRY_TARGET;
use crate::abi::memos::CodeAfter;
use crate::abi::memos::segment_load::{KEY_POPS, KEY_REGISTER, SegmentLoad, SegmentLoadTable};
use crate::abi::x87_pointers::X87_FRESH;
use std::mem::offset_of;
use tollgate_x86::{Segment, SegmentRegister};

const _: () = assert!(size_of::<SegmentLoad>() == 1 << 6 && offset_of!(SegmentLoad, key) == 0);
const _: () = assert!(size_of::<Segment>() == 16);

fast_path_routines!(
    tollgate_segment..tollgate_segment_end,
    {
    // On entry R8 is the selector, R9 the key without the selector, RCX the EIP of the next
    // instruction, and R11 where to continue.
    "tollgate_begins",
    "mov [r15 + {exit_value}], rcx",
    // The monitor must still note the segments of the last x87 instruction.
    "test dword ptr [r15 + {x87_opcode}], {x87_fresh}",
    "jnz 9f",
    "or r9, r8",
    "tollgate_finds_memo r9, {shift}, 6, {loads}",
    "cmp qword ptr [rdx + {descriptor}], 0",
    "je 2f",
    "tollgate_compares rdx, {descriptor}, r14, 0, 0",
    "2:",
    "mov eax, r9d",
    "shr eax, {key_register}",
    "and eax, 7",
    "shl eax, 4",
    "mov r8, [rdx + {segment}]",
    "mov [r15 + rax + {segments}], r8",
    "mov r8, [rdx + {segment} + 8]",
    "mov [r15 + rax + {segments} + 8], r8",
    "inc qword ptr [r15 + {count}]",
    "test r9d, {pops}",
    "jz 3f",
    "add r12d, 4",
    "3:",
    "cmp qword ptr [rdx + {tag}], 0",
    "je 5f",
    // The mode changes: continues in the table of the new mode.
    "or dword ptr [r15 + {level_changed}], {mode_changed}",
    "mov rcx, [r15 + {exit_value}]",
    "tollgate_finds_code rdx, {then}, {done_in_level}",
    "mov r11, [r9 + {entry_target}]",
    "5:",
    "tollgate_continues r11",
    "9:",
    "tollgate_leaves",
    },
    count = const at::fast_path_count(FastPath::LoadSegment),
    x87_opcode = const at::X87_OPCODE,
    x87_fresh = const X87_FRESH,
    key_register = const KEY_REGISTER,
    shift = const SegmentLoadTable::SHIFT,
    loads = const at::SEGMENT_LOADS,
    descriptor = const offset_of!(SegmentLoad, descriptor),
    segment = const offset_of!(SegmentLoad, segment),
    then = const offset_of!(SegmentLoad, then),
    tag = const offset_of!(SegmentLoad, then) + offset_of!(CodeAfter, tag),
    segments = const at::segment_register(SegmentRegister::Es),
    pops = const 1 << KEY_POPS,
    level_changed = const at::LEVEL_CHANGED,
    mode_changed = const Changed::MODE.bits(),
    entry_target = const ENTRY_TARGET,
    done_in_level = const DONE_IN_LEVEL,
);

/// The address of the routine.
pub fn address() -> u64 {
    tollgate_segment as *const () as u64
}
