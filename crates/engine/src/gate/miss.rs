//! Filling the software TLB for an access that misses, without leaving guest code.
//!
//! The stub of a miss stores the linear address and names its site, as for an exit, and jumps here.
//! The test of stores ([`crate::gate::store_check`]) jumps here too where it finds no entry. The
//! routine calls a function of the monitor, which walks the guest's page tables. If the function
//! has filled an entry, it returns where in the block the access is tried again. Otherwise the exit
//! that was named is taken. The guest's vector registers are put aside during the call if they are
//! loaded ([`crate::gate::live_vectors`]).
//!
//! ```text
//! block      lea r8d, [rbx+8]; ...; jrcxz miss
//! its stub   mov [r15+exit_value], r8; mov dword ptr [r15+exit_site], site; jmp [r15+..]
//! here       registers that a function may change are put aside; call the function; put them back
//!            jmp r8                  to the block's LEA, or to the exit path
//! ```
//!
//! The guest is before the site's instruction all the time, but not all of its registers are at
//! home. A signal that arrives before or in the function is treated like one that arrives in the
//! monitor: its handler only sets `pending`, which is tested after the call. If a signal arrives
//! after that test, its handler lets the routine run on into the block ([`is_here`]).

use crate::abi::context::{BIAS, gpr_displacement};
use crate::abi::context_displacements as at;
use std::arch::global_asm;
use tollgate_x86::Gpr;

global_asm!(
    ".weak tollgate_miss, tollgate_miss_called, tollgate_miss_end",
    ".hidden tollgate_miss, tollgate_miss_called, tollgate_miss_end",
    ".p2align 6",
    "tollgate_miss:",
    "mov [r15 + {rax}], rax",
    "lahf",
    "seto al",
    "mov [r15 + {flags}], ax",
    "mov [r15 + {rcx}], r10",
    "mov [r15 + {rdx}], rdx",
    "mov [r15 + {rsi}], rsi",
    "mov [r15 + {rdi}], rdi",
    "cmp qword ptr [r15 + {vectors_off}], 0",
    "jne 6f",
    "call tollgate_vectors_aside",
    "6:",
    // R11 is pushed twice, so that the stack stays aligned.
    "push r11",
    "push r11",
    "lea rdi, [r15 - {bias}]",
    "call [r15 + {function}]",
    "pop r11",
    "pop r11",
    "test rax, rax",
    "jz 6f",
    "cmp qword ptr [r15 + {vectors_were_live}], 0",
    "je 6f",
    "call tollgate_vectors_back",
    "6:",
    "mov r10, [r15 + {rcx}]",
    "mov rdx, [r15 + {rdx}]",
    "mov rsi, [r15 + {rsi}]",
    "mov rdi, [r15 + {rdi}]",
    "mov r8, rax",
    "tollgate_miss_called:",
    "test r8, r8",
    "jz 8f",
    "mov rax, [r15 + {pending}]",
    "cmp dword ptr [rax], 0",
    "jne 8f",
    "movzx eax, word ptr [r15 + {flags}]",
    "add al, 0x7f",
    "sahf",
    "mov rax, [r15 + {rax}]",
    "jmp r8",
    "8:",
    "movzx eax, word ptr [r15 + {flags}]",
    "add al, 0x7f",
    "sahf",
    "mov rax, [r15 + {rax}]",
    "jmp tollgate_exit",
    "tollgate_miss_end:",
    rax = const gpr_displacement(Gpr::Rax),
    rcx = const gpr_displacement(Gpr::Rcx),
    rdx = const gpr_displacement(Gpr::Rdx),
    rsi = const gpr_displacement(Gpr::Rsi),
    rdi = const gpr_displacement(Gpr::Rdi),
    flags = const at::STRING_FLAGS,
    vectors_off = const at::VECTORS_OFF,
    vectors_were_live = const at::VECTORS_WERE_LIVE,
    function = const at::MISS_FUNCTION,
    pending = const at::PENDING,
    bias = const BIAS,
);

unsafe extern "sysv64" {
    fn tollgate_miss();
    fn tollgate_miss_called();
    fn tollgate_miss_end();
}

/// The address of the routine.
pub fn address() -> u64 {
    tollgate_miss as *const () as u64
}

/// Whether the routine runs at this host address, after the call of the monitor's function.
pub fn is_here(pc: u64) -> bool {
    let first = tollgate_miss_called as *const () as u64;
    (first..tollgate_miss_end as *const () as u64).contains(&pc)
}
