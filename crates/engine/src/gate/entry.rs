//! The way into emitted code and back, in hand-written assembly.
//!
//! [`enter`] saves the host's callee-saved registers, tests `pending`, loads the guest's registers
//! and jumps. The guest's x87 and vector registers are loaded only when guest code has asked for
//! them, and saved on the way out only if they were loaded, so that exits of code that does not use
//! them stay cheap. Exit stubs jump to the exit path, which stores the registers and returns from
//! `enter`. If a signal arrives between the test and the jump, its handler continues at the abort
//! path ([`rewind`]), so that no request to leave is ever lost.

use crate::abi::context::{Context, gpr_displacement};
use crate::abi::context_displacements as at;
use std::arch::global_asm;
use tollgate_x86::registers::Gpr;

global_asm!(
    // Other codegen units refer to these symbols; other libraries do not. All symbols of this
    // folder are weak, since this crate's tests link them twice, the second time through the
    // monitor.
    ".weak tollgate_enter, tollgate_exit, tollgate_abort, tollgate_enter_test, tollgate_enter_end, tollgate_switch, tollgate_exit_end",
    ".hidden tollgate_enter, tollgate_exit, tollgate_abort, tollgate_enter_test, tollgate_enter_end, tollgate_switch, tollgate_exit_end",
    ".p2align 6",
    "tollgate_enter:",
    "push rbp",
    "push rbx",
    "push r12",
    "push r13",
    "push r14",
    "push r15",
    "sub rsp, 8",
    "mov r15, rdi",
    "mov [r15 + {host_rsp}], rsp",
    "mov [r15 + {target}], rsi",
    "mov r14, [r15 + {tlb}]",
    "mov r13, [r15 + {links}]",
    "cmp qword ptr [r15 + {load_vectors}], 0",
    "je 2f",
    "mov eax, [r15 + {vector_components}]",
    "xor edx, edx",
    "xrstor [r15 + {vector_area}]",
    // XRSTOR of a compacted area does not load MXCSR if SSE's registers are initial.
    "ldmxcsr [r15 + {mxcsr}]",
    "mov qword ptr [r15 + {load_vectors}], 0",
    "mov qword ptr [r15 + {vectors_off}], 0",
    "2:",
    "tollgate_enter_test:",
    "mov rax, [r15 + {pending}]",
    "cmp dword ptr [rax], 0",
    "jne tollgate_abort",
    "cmp qword ptr [r15 + {switch_in}], 0",
    "jne tollgate_switch",
    "movzx eax, word ptr [r15 + {arithmetic}]",
    "add al, 0x7f",
    "sahf",
    "mov r10, [r15 + {rcx}]",
    "mov rdx, [r15 + {rdx}]",
    "mov rbx, [r15 + {rbx}]",
    "mov r12, [r15 + {rsp}]",
    "mov rbp, [r15 + {rbp}]",
    "mov rsi, [r15 + {rsi}]",
    "mov rdi, [r15 + {rdi}]",
    "mov r11, [r15 + {window}]",
    "mov rax, [r15 + {rax}]",
    "jmp qword ptr [r15 + {target}]",
    // The handler of SIGSEGV loads the registers in the same way, in the frame that it returns
    // through.
    "tollgate_switch:",
    "cli",
    "tollgate_enter_end:",
    ".p2align 6",
    "tollgate_exit:",
    "mov [r15 + {rax}], rax",
    "lahf",
    "seto al",
    "mov [r15 + {arithmetic}], ax",
    "mov [r15 + {rcx}], r10",
    "mov [r15 + {rdx}], rdx",
    "mov [r15 + {rbx}], rbx",
    "mov [r15 + {rsp}], r12",
    "mov [r15 + {rbp}], rbp",
    "mov [r15 + {rsi}], rsi",
    "mov [r15 + {rdi}], rdi",
    "mov [r15 + {window}], r11",
    "tollgate_abort:",
    "cmp qword ptr [r15 + {vectors_off}], 0",
    "jne 3f",
    "mov eax, [r15 + {vector_components}]",
    "xor edx, edx",
    "cmp qword ptr [r15 + {compacts_vectors}], 0",
    "je 4f",
    "xsavec [r15 + {vector_area}]",
    // XSAVEC does not store MXCSR if SSE's registers are initial.
    "stmxcsr [r15 + {mxcsr}]",
    "jmp 5f",
    "4:",
    "xsave [r15 + {vector_area}]",
    "5:",
    // Sets the x87 and MXCSR control words that the C ABI requires for the monitor.
    "fninit",
    "ldmxcsr [rip + tollgate_default_mxcsr]",
    "mov qword ptr [r15 + {vectors_off}], 1",
    "mov qword ptr [r15 + {vectors_were_live}], 1",
    "3:",
    "mov rsp, [r15 + {host_rsp}]",
    "add rsp, 8",
    "pop r15",
    "pop r14",
    "pop r13",
    "pop r12",
    "pop rbx",
    "pop rbp",
    "ret",
    "tollgate_exit_end:",
    ".p2align 2",
    "tollgate_default_mxcsr: .long 0x1f80",
    host_rsp = const at::HOST_RSP,
    target = const at::TARGET,
    tlb = const at::TLB,
    links = const at::LINKS,
    pending = const at::PENDING,
    window = const at::WINDOW,
    switch_in = const at::SWITCH_IN,
    arithmetic = const at::ARITHMETIC,
    load_vectors = const at::LOAD_VECTORS,
    vectors_off = const at::VECTORS_OFF,
    vectors_were_live = const at::VECTORS_WERE_LIVE,
    vector_components = const at::VECTOR_COMPONENTS,
    compacts_vectors = const at::COMPACTS_VECTORS,
    vector_area = const at::VECTOR_AREA,
    mxcsr = const at::VECTOR_AREA + 24,
    rax = const gpr_displacement(Gpr::Rax),
    rcx = const gpr_displacement(Gpr::Rcx),
    rdx = const gpr_displacement(Gpr::Rdx),
    rbx = const gpr_displacement(Gpr::Rbx),
    rsp = const gpr_displacement(Gpr::Rsp),
    rbp = const gpr_displacement(Gpr::Rbp),
    rsi = const gpr_displacement(Gpr::Rsi),
    rdi = const gpr_displacement(Gpr::Rdi),
);

unsafe extern "sysv64" {
    fn tollgate_enter(biased_context: *mut u8, target: *const u8);
    fn tollgate_exit();
    fn tollgate_abort();
    fn tollgate_enter_test();
    fn tollgate_enter_end();
    fn tollgate_switch();
    fn tollgate_exit_end();
}

/// The addresses of the way in and out; the range begins with the routine that [`enter`] calls. For
/// tests.
pub fn addresses() -> std::ops::Range<u64> {
    tollgate_enter as *const () as u64..tollgate_exit_end as *const () as u64
}

/// The address of the exit path.
pub fn exit_address() -> u64 {
    tollgate_exit as *const () as u64
}

/// The address of the privileged instruction by which a task switch enters guest code.
pub fn switch_address() -> u64 {
    tollgate_switch as *const () as u64
}

/// Where a thread must continue if a signal found it at `pc` on its way into guest code after the
/// last test of `pending`; `None` if `pc` is elsewhere.
pub fn rewind(pc: u64) -> Option<u64> {
    let first = tollgate_enter_test as *const () as u64;
    let end = tollgate_enter_end as *const () as u64;
    let abort = tollgate_abort as *const () as u64;
    (first..end).contains(&pc).then_some(abort)
}

/// Runs guest code at `target` until it exits; the context then contains the registers.
///
/// # Safety
/// `target` is a block's entry or a resume point in the code cache of the context's engine, the
/// context's tables are valid, and `cpu.vector` is an area that XRSTOR accepts (see
/// [`crate::abi::vector_registers::sanitize`]).
pub unsafe fn enter(context: *mut Context, target: *const u8) {
    // SAFETY: the caller guarantees this for the target; the assembly follows the sysv64
    // convention: vector registers may change, control words are restored.
    unsafe {
        tollgate_enter(
            context.cast::<u8>().add(crate::abi::context::BIAS as usize),
            target,
        )
    }
}
