//! The stub: all code of ours that a space process contains, in hand-written assembly.
//!
//! It is copied to the place that a process's [`Layout`](crate::layout::Layout) says, so it reaches
//! everything relative to its own address. It has three parts:
//!
//! - *start* makes the system calls of a list (`crate::image`), the last but one of which creates
//!   the mapper's task, and ends in the runner with a call that its filter refuses, which is the
//!   first signal;
//! - *handler*, of all signals of the runner, announces that the program has left, waits for the
//!   monitor, and returns through the frame that the monitor has written;
//! - *mapper* makes the system calls of each batch of commands. It keeps everything in registers and
//!   reads only pages that the process cannot write.
//!
//! The runner's filter allows three of the `syscall` instructions, each for one call; the labels
//! after them are exported for it.

use crate::layout::{ANNOUNCE, BYTES, CODE, COMMANDS, CONTROL, LIST, announce, control};
use std::arch::global_asm;

global_asm!(
    ".pushsection .rodata.tollgate_native_stub, \"a\"",
    ".weak tollgate_native_stub, tollgate_native_start, tollgate_native_handler, tollgate_native_woken",
    ".weak tollgate_native_waited, tollgate_native_returned, tollgate_native_stub_end",
    ".hidden tollgate_native_stub, tollgate_native_start, tollgate_native_handler, tollgate_native_woken",
    ".hidden tollgate_native_waited, tollgate_native_returned, tollgate_native_stub_end",
    ".p2align 6",
    "tollgate_native_stub:",
    ".Ltollgate_native_stub:",

    // Start. R12: the entry of the list.
    "tollgate_native_start:",
    "lea r12, [rip + .Ltollgate_native_stub - {code} + {list}]",
    "2:",
    "mov rax, [r12]",
    "test rax, rax",
    "js 5f",
    "mov rdi, [r12 + 8]",
    "mov rsi, [r12 + 16]",
    "mov rdx, [r12 + 24]",
    "mov r10, [r12 + 32]",
    "mov r8, [r12 + 40]",
    "mov r9, [r12 + 48]",
    "syscall",
    "mov rcx, [r12 + 56]",
    "test rcx, rcx",
    "jz 3f",
    "mov [rcx], rax",
    "jmp 4f",
    "3:",
    "cmp rax, -4096",
    "ja 8f",
    "4:",
    "add r12, 64",
    "jmp 2b",
    // An entry with number -1 is clone; with -2, the end.
    "5:",
    "cmp rax, -1",
    "jne 6f",
    "mov eax, 56",
    "mov rdi, [r12 + 8]",
    "xor esi, esi",
    "mov rdx, [r12 + 24]",
    "mov r10, [r12 + 32]",
    "xor r8d, r8d",
    "syscall",
    "cmp rax, -4096",
    "ja 8f",
    "test rax, rax",
    "jz 7f",
    "add r12, 64",
    "jmp 4b",
    // The mapper's task: the next entry is its filter, which the runner steps over.
    "7:",
    "mov rdi, [r12 + 72]",
    "mov rsi, [r12 + 80]",
    "mov rdx, [r12 + 88]",
    "mov eax, 317",
    "syscall",
    "test rax, rax",
    "jnz 8f",
    "jmp 20f",
    // The runner's end of the list: getpid, which the filter refuses.
    "6:",
    "mov eax, 39",
    "syscall",
    "ud2",
    // What failed is written to the pipe: error, number of the entry.
    "8:",
    "neg rax",
    "movzx eax, al",
    "lea r13, [rip + .Ltollgate_native_stub - {code} + {bytes}]",
    "lea rsi, [r13 + rax]",
    "mov edi, 1",
    "mov edx, 1",
    "mov eax, 1",
    "syscall",
    "lea rax, [rip + .Ltollgate_native_stub - {code} + {list}]",
    "sub r12, rax",
    "shr r12, 6",
    "movzx eax, r12b",
    "lea rsi, [r13 + rax]",
    "mov edi, 1",
    "mov edx, 1",
    "mov eax, 1",
    "syscall",
    "mov edi, 1",
    "mov eax, 231",
    "syscall",
    "ud2",

    // The handler. RBX: control page, R12: announce page, EBP: the turn that ends.
    ".p2align 6",
    "tollgate_native_handler:",
    "lea rbx, [rip + .Ltollgate_native_stub - {code} + {control_page}]",
    "lea r12, [rbx + {announce_page} - {control_page}]",
    "rdfsbase rax",
    "mov [r12 + {out_fs}], rax",
    "rdgsbase rax",
    "mov [r12 + {out_gs}], rax",
    "mov eax, ds",
    "mov [r12 + {out_selectors}], eax",
    "mov eax, es",
    "mov [r12 + {out_selectors} + 4], eax",
    "mov eax, fs",
    "mov [r12 + {out_selectors} + 8], eax",
    "mov eax, gs",
    "mov [r12 + {out_selectors} + 12], eax",
    "mov [r12 + {out_frame}], rsp",
    "mov ebp, [rbx + {go}]",
    "mov eax, ebp",
    // XCHG orders this before the next load: either the monitor sees the turn end, or this sees
    // that the monitor sleeps.
    "xchg [r12 + {done}], eax",
    "cmp dword ptr [rbx + {monitor_sleeps}], 0",
    "je 10f",
    "lea rdi, [r12 + {done}]",
    "mov esi, 1",
    "mov edx, 1",
    "mov eax, 202",
    "syscall",
    "tollgate_native_woken:",
    "10:",
    "mov ecx, [rbx + {spin}]",
    "11:",
    "cmp [rbx + {go}], ebp",
    "jne 14f",
    "sub ecx, 1",
    "jc 12f",
    "pause",
    "jmp 11b",
    "12:",
    "mov eax, 1",
    "xchg [r12 + {runner_sleeps}], eax",
    "13:",
    "cmp [rbx + {go}], ebp",
    "jne 15f",
    "lea rdi, [rbx + {go}]",
    "xor esi, esi",
    "mov edx, ebp",
    "xor r10d, r10d",
    "mov eax, 202",
    "syscall",
    "tollgate_native_waited:",
    "jmp 13b",
    "15:",
    "mov dword ptr [r12 + {runner_sleeps}], 0",
    "14:",
    "mov eax, [rbx + {in_selectors}]",
    "mov ds, eax",
    "mov eax, [rbx + {in_selectors} + 4]",
    "mov es, eax",
    // Loading FS or GS may change the base, so the bases come after.
    "mov eax, [rbx + {in_selectors} + 8]",
    "mov fs, eax",
    "mov eax, [rbx + {in_selectors} + 12]",
    "mov gs, eax",
    "mov rax, [rbx + {in_fs}]",
    "wrfsbase rax",
    "mov rax, [rbx + {in_gs}]",
    "wrgsbase rax",
    "mov rsp, [rbx + {frame_stack}]",
    // rt_sigreturn leaves NT and ID as they are.
    "push qword ptr [rbx + {in_flags}]",
    "popfq",
    "mov eax, 15",
    "syscall",
    "tollgate_native_returned:",
    "ud2",

    // The mapper. RBX: control page, EBP: the last batch, R12: the command, R13: how many are left,
    // R14: the command's number.
    ".p2align 6",
    "20:",
    "lea rbx, [rip + .Ltollgate_native_stub - {code} + {control_page}]",
    "xor ebp, ebp",
    "21:",
    "cmp [rbx + {batch}], ebp",
    "jne 22f",
    "lea rdi, [rbx + {batch}]",
    "xor esi, esi",
    "mov edx, ebp",
    "xor r10d, r10d",
    "mov eax, 202",
    "syscall",
    "jmp 21b",
    "22:",
    "mov ebp, [rbx + {batch}]",
    "lea r12, [rbx + {commands_page} - {control_page}]",
    "mov r13d, [rbx + {count}]",
    "xor r14d, r14d",
    "23:",
    "cmp r14, r13",
    "jae 24f",
    "mov rax, [r12]",
    "mov rdi, [r12 + 8]",
    "mov rsi, [r12 + 16]",
    "mov rdx, [r12 + 24]",
    "mov r10, [r12 + 32]",
    "mov r8, [r12 + 40]",
    "mov r9, [r12 + 48]",
    "syscall",
    "cmp rax, -4096",
    "ja 25f",
    "add r12, 64",
    "inc r14",
    "jmp 23b",
    // All done: the byte 0.
    "24:",
    "lea rsi, [rip + .Ltollgate_native_stub - {code} + {bytes}]",
    "mov edi, 1",
    "mov edx, 1",
    "mov eax, 1",
    "syscall",
    "jmp 21b",
    // One failed: the error and the command's number.
    "25:",
    "neg rax",
    "movzx eax, al",
    "lea r13, [rip + .Ltollgate_native_stub - {code} + {bytes}]",
    "lea rsi, [r13 + rax]",
    "mov edi, 1",
    "mov edx, 1",
    "mov eax, 1",
    "syscall",
    "lea rsi, [r13 + r14]",
    "mov edi, 1",
    "mov edx, 1",
    "mov eax, 1",
    "syscall",
    "jmp 21b",
    "tollgate_native_stub_end:",
    ".popsection",
    code = const CODE,
    list = const LIST,
    bytes = const BYTES,
    control_page = const CONTROL,
    commands_page = const COMMANDS,
    announce_page = const ANNOUNCE,
    go = const control::GO,
    batch = const control::BATCH,
    monitor_sleeps = const control::MONITOR_SLEEPS,
    spin = const control::SPIN,
    count = const control::COUNT,
    frame_stack = const control::FRAME_STACK,
    in_fs = const control::FS_BASE,
    in_gs = const control::GS_BASE,
    in_flags = const control::FLAGS,
    in_selectors = const control::SELECTORS,
    done = const announce::DONE,
    runner_sleeps = const announce::RUNNER_SLEEPS,
    out_fs = const announce::FS_BASE,
    out_gs = const announce::GS_BASE,
    out_frame = const announce::FRAME,
    out_selectors = const announce::SELECTORS,
);

unsafe extern "C" {
    static tollgate_native_stub: u8;
    static tollgate_native_start: u8;
    static tollgate_native_handler: u8;
    static tollgate_native_woken: u8;
    static tollgate_native_waited: u8;
    static tollgate_native_returned: u8;
    static tollgate_native_stub_end: u8;
}

/// The stub's bytes, and offsets in its page.
pub struct Stub {
    /// The code, for offset [`CODE`] of the page.
    pub code: &'static [u8],
    /// Where the process starts.
    pub start: u64,
    /// Where signals go.
    pub handler: u64,
    /// After the SYSCALL that may wake the monitor.
    pub woken: u64,
    /// After the SYSCALL that may wait for the monitor.
    pub waited: u64,
    /// After the SYSCALL that may return from a signal.
    pub returned: u64,
}

/// The stub, as the assembler made it.
pub fn stub() -> Stub {
    let first = &raw const tollgate_native_stub;
    let offset = |label: *const u8| CODE + (label as u64 - first as u64);
    let length = offset(&raw const tollgate_native_stub_end) - CODE;
    Stub {
        // SAFETY: the labels enclose bytes that the assembly above has put into a constant section.
        code: unsafe { std::slice::from_raw_parts(first, length as usize) },
        start: offset(&raw const tollgate_native_start),
        handler: offset(&raw const tollgate_native_handler),
        woken: offset(&raw const tollgate_native_woken),
        waited: offset(&raw const tollgate_native_waited),
        returned: offset(&raw const tollgate_native_returned),
    }
}
