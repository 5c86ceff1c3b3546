//! The fast path of instructions that a function of the monitor executes
//! ([`FastPathCall`](crate::abi::fast_paths::FastPathCall)).
//!
//! See [`crate::gate::fast_path`] for what all fast paths share.

use crate::abi::context::gpr_displacement;
use crate::abi::context_displacements as at;
use crate::abi::fast_paths::DONE_CALL;
use tollgate_x86::Gpr;

fast_path_routines!(
    tollgate_call..tollgate_call_end,
    {
    ".weak tollgate_call_made",
    ".hidden tollgate_call_made",
    // On entry R8 is an address or a value, and R9 says what the function must do.
    "tollgate_begins",
    "mov rax, [r15 + {rax}]",
    "mov [r15 + {cpu_rax}], rax",
    "mov [r15 + {cpu_rcx}], r10",
    "mov [r15 + {cpu_rdx}], rdx",
    "mov [r15 + {cpu_rsi}], rsi",
    "mov [r15 + {cpu_rdi}], rdi",
    "mov [r15 + {cpu_rbx}], rbx",
    "mov [r15 + {cpu_rbp}], rbp",
    "mov [r15 + {cpu_rsp}], r12",
    "tollgate_vectors_go",
    "mov rsi, r9",
    "mov rdx, r8",
    "tollgate_calls {function}, r11",
    "cmp eax, 1",
    "jne 7f",
    "tollgate_vectors_return",
    "7:",
    "mov r10, [r15 + {cpu_rcx}]",
    "mov rdx, [r15 + {cpu_rdx}]",
    "mov rsi, [r15 + {cpu_rsi}]",
    "mov rdi, [r15 + {cpu_rdi}]",
    "mov rbx, [r15 + {cpu_rbx}]",
    "mov rbp, [r15 + {cpu_rbp}]",
    "mov r12, [r15 + {cpu_rsp}]",
    "mov r8, [r15 + {cpu_rax}]",
    "mov [r15 + {rax}], r8",
    // The function may have loaded another space.
    "mov r13, [r15 + {links}]",
    // From here on `is_here` recognises the routine.
    "tollgate_call_made:",
    "cmp eax, 1",
    "jne 8f",
    "mov rax, [r15 + {pending}]",
    "cmp dword ptr [rax], 0",
    "jne 7f",
    "tollgate_restores",
    "jmp r11",
    "7:",
    "mov qword ptr [r15 + {done}], {done_call}",
    "8:",
    "tollgate_restores",
    "jmp tollgate_exit",
    },
    cpu_rax = const gpr_displacement(Gpr::Rax),
    cpu_rcx = const gpr_displacement(Gpr::Rcx),
    cpu_rdx = const gpr_displacement(Gpr::Rdx),
    cpu_rsi = const gpr_displacement(Gpr::Rsi),
    cpu_rdi = const gpr_displacement(Gpr::Rdi),
    cpu_rbx = const gpr_displacement(Gpr::Rbx),
    cpu_rbp = const gpr_displacement(Gpr::Rbp),
    cpu_rsp = const gpr_displacement(Gpr::Rsp),
    function = const at::FAST_PATH_FUNCTION,
    links = const at::LINKS,
    pending = const at::PENDING,
    done_call = const DONE_CALL,
);

unsafe extern "sysv64" {
    fn tollgate_call_made();
}

/// The address of the routine.
pub fn address() -> u64 {
    tollgate_call as *const () as u64
}

/// Whether the routine runs at this host address and is not about to call the function.
pub fn is_after_call(pc: u64) -> bool {
    is_here(pc) && pc >= tollgate_call_made as *const () as u64
}
