//! The fast path of CPUID, which has the answers that the monitor has given as memos
//! ([`CpuidAnswer`]).
//!
//! See [`crate::gate::fast_path`] for what all fast paths share.

use crate::abi::context_displacements as at;
use crate::abi::fast_paths::FastPath;
use crate::abi::memos::cpuid_answer::{
    ANSWERS_BY_BOTH, ANSWERS_BY_LEAF, CpuidAnswer, CpuidAnswers,
};
use std::mem::offset_of;

const _: () = assert!(size_of::<CpuidAnswer>() == 32);
const _: () = assert!(ANSWERS_BY_LEAF == 128 && ANSWERS_BY_BOTH == 256);
const _: () = assert!(offset_of!(CpuidAnswer, subleaf) == offset_of!(CpuidAnswer, leaf) + 4);

fast_path_routines!(
    tollgate_cpuid..tollgate_cpuid_end,
    {
    // On entry R11 is where to continue.
    "tollgate_begins",
    "mov rax, [r15 + {rax}]",
    "mov ecx, eax",
    "shr ecx, 25",
    "and ecx, 0x40",
    "mov r8d, eax",
    "and r8d, 0x3f",
    "or ecx, r8d",
    "shl ecx, 5",
    "lea r9, [r15 + rcx + {answers}]",
    "cmp [r9 + {leaf}], eax",
    "jne 2f",
    "cmp dword ptr [r9 + {is_known}], 0",
    "jne 3f",
    "2:",
    "mov ecx, r10d",
    "shl rcx, 32",
    "mov edx, eax",
    "or rdx, rcx",
    "mov r8, {spread}",
    "imul r8, rdx",
    "shr r8, 56",
    "shl r8d, 5",
    "lea r9, [r15 + r8 + {answers_by_both}]",
    "cmp [r9 + {leaf}], rdx",
    "je 4f",
    "xor r8d, 32",
    "lea r9, [r15 + r8 + {answers_by_both}]",
    "cmp [r9 + {leaf}], rdx",
    "jne 9f",
    "4:",
    "cmp dword ptr [r9 + {is_known}], 0",
    "je 9f",
    "3:",
    "inc qword ptr [r15 + {count}]",
    "tollgate_restores",
    "mov eax, [r9 + {registers}]",
    "mov ebx, [r9 + {registers} + 4]",
    "mov r10d, [r9 + {registers} + 8]",
    "mov edx, [r9 + {registers} + 12]",
    "jmp r11",
    "9:",
    "tollgate_leaves",
    },
    answers = const at::CPUID_ANSWERS,
    answers_by_both = const at::CPUID_ANSWERS + offset_of!(CpuidAnswers, by_both) as i32,
    leaf = const offset_of!(CpuidAnswer, leaf),
    is_known = const offset_of!(CpuidAnswer, is_known),
    registers = const offset_of!(CpuidAnswer, registers),
    count = const at::fast_path_count(FastPath::Cpuid),
);

/// The address of the routine.
pub fn address() -> u64 {
    tollgate_cpuid as *const () as u64
}
