//! Tests system calls in translated code: their results, what the monitor must still do, and that
//! no instruction is ever seen half done.

use crate::support::long_mode::*;
use std::thread;
use std::time::Duration;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::{CpuState, PhysicalAddress};

const RBX: usize = 3;
const RBP: usize = 5;
const RSI: usize = 6;
const RDI: usize = 7;

/// The value that Linux has in IA32_FMASK.
const ALL_FLAGS: u64 = 0x25_7fd5;
/// Offset of the kernel's entry from the beginning of the code.
const ENTRY: u64 = 64;

fn as_user_with_kernel(state: &mut CpuState, memory: &mut GuestMemory) {
    as_user(state);
    state.flags &= !0x3000;
    state.star = 0x001b_0008 << 32;
    state.lstar = KERNEL + CODE + ENTRY;
    state.sfmask = ALL_FLAGS;
    state.kernel_gs_base = KERNEL + DATA;
    memory.write_u64(PhysicalAddress(DATA), KERNEL + KERNEL_STACK);
}

fn system_calls(vcpu: &Computer<Bench>) -> u64 {
    vcpu.exit_counts().get(ExitKind::FastSystemCall)
}

#[test]
fn a_system_call_takes_no_exit_once_one_has_been_done() {
    let vcpu = run_prepared(
        guest_code!(
            many_calls,
            "mov ebx, 1000",
            "2:",
            "syscall",
            "dec ebx",
            "jnz 2b",
            "mov edi, 1",
            "syscall",
            "nop",
            ".balign 64",
            "swapgs",
            "add qword ptr gs:[8], 1",
            "swapgs",
            "test edi, edi",
            "jnz 3f",
            "sysretq",
            "3: out 0xf4, al",
        ),
        as_user_with_kernel,
    );
    // A block of the kernel is translated before the result of the first system call is known.
    assert!(system_calls(&vcpu) <= 6, "{}", system_calls(&vcpu));
    let mut vcpu = vcpu;
    assert_eq!(read_u64(&mut vcpu, DATA + 8), 1001);
    assert_eq!(vcpu.exit_counts().get(ExitKind::OtherInstruction), 0);
}

#[test]
fn system_calls_go_on_without_exits_in_a_kernel_that_reads_control_registers() {
    let mut vcpu = run_prepared(
        guest_code!(
            reading_calls,
            "mov ebx, 1000",
            "2:",
            "syscall",
            "dec ebx",
            "jnz 2b",
            "mov edi, 1",
            "syscall",
            "nop",
            ".balign 64",
            "mov r12, rcx",
            "mov r8, cr2",
            "mov rax, cr0",
            "mov r9, cr3",
            // IA32_KERNEL_GS_BASE, on which no system call depends.
            "mov ecx, 0xc0000102",
            "rdmsr",
            "wrmsr",
            "mov rcx, r12",
            "swapgs",
            "add qword ptr gs:[8], 1",
            "swapgs",
            "test edi, edi",
            "jnz 3f",
            "sysretq",
            "3: out 0xf4, al",
        ),
        |state, memory| {
            as_user_with_kernel(state, memory);
            state.cr2 = 0x1234_5678_9abc;
        },
    );
    assert_eq!(read_u64(&mut vcpu, DATA + 8), 1001);
    assert_eq!(vcpu.state().gpr[8], 0x1234_5678_9abc);
    assert_eq!(vcpu.state().gpr[9], vcpu.state().cr3);
    assert!(system_calls(&vcpu) <= 6, "{}", system_calls(&vcpu));
    assert_eq!(vcpu.exit_counts().get(ExitKind::ControlRegister), 0);
}

#[test]
fn r11_has_the_flags_of_the_program_and_the_kernel_starts_with_none() {
    let mut vcpu = run_prepared(
        guest_code!(
            call_flags,
            "xor ebx, ebx",
            "2:",
            // The flags CF, ZF and SF, OF, DF in turn.
            "stc",
            "syscall",
            "cmp ebx, ebx",
            "syscall",
            "mov al, 0x7f",
            "add al, 1",
            "syscall",
            "std",
            "syscall",
            "cld",
            "inc ebx",
            "cmp ebx, 8",
            "jne 2b",
            "mov edi, 1",
            "syscall",
            ".balign 64",
            // Every round writes to the same places.
            "swapgs",
            "mov rsp, gs:[0]",
            "pushfq",
            "pop r8",
            "or r13, r8",
            "mov rsi, gs:[16]",
            "and esi, 3",
            "mov gs:[rsi*8+0x20], r11",
            "add qword ptr gs:[16], 1",
            "swapgs",
            "test edi, edi",
            "jnz 3f",
            "sysretq",
            "3: out 0xf4, al",
        ),
        as_user_with_kernel,
    );
    // Only the reserved bit is set.
    assert_eq!(vcpu.state().gpr[13], 2);
    let images = [0, 1, 2, 3].map(|index| read_u64(&mut vcpu, DATA + 0x20 + index * 8));
    // STC leaves the flags of CMP or, in the first round, of XOR; STD leaves those of ADD; and the
    // last call, after CMP, is the first of another turn.
    assert_eq!(images[0] & 0xcd5, 0x44);
    assert_eq!(images[1] & 0xcd5, 0x44);
    assert_eq!(images[2] & 0xcd5, 0x890);
    assert_eq!(images[3] & 0xcd5, 0xc90);
    assert!(system_calls(&vcpu) < 16);
}

#[test]
fn a_new_entry_is_used_at_once() {
    let vcpu = run_prepared(
        guest_code!(
            new_entry,
            "mov ebx, 4",
            "2:",
            "syscall",
            "dec ebx",
            "jnz 2b",
            "mov edi, 1",
            "syscall",
            ".balign 64",
            "inc r8",
            "test edi, edi",
            "jnz 3f",
            "sysretq",
            "3:",
            "mov r12, rcx",
            // LSTAR is changed to lead 128 bytes further.
            "mov ecx, 0xc0000082",
            "rdmsr",
            "add eax, 64",
            "wrmsr",
            "mov rcx, r12",
            "mov edi, 0",
            "sub rcx, 2",
            "sysretq",
            ".balign 64",
            "out 0xf4, al",
        ),
        as_user_with_kernel,
    );
    assert_eq!(vcpu.state().gpr[8], 5);
    assert_eq!(vcpu.state().rip, KERNEL + CODE + 2 * ENTRY + 2);
}

#[test]
fn reading_the_time_faults_once_the_kernel_has_forbidden_it() {
    let mut vcpu = run_prepared(
        guest_code!(
            forbid_time,
            "mov ebx, 4",
            "2:",
            "rdtsc",
            "syscall",
            "dec ebx",
            "jnz 2b",
            "mov edi, 1",
            "syscall",
            "rdtsc",
            ".balign 64",
            "test edi, edi",
            "jz 3f",
            // The program sets CR4.TSD.
            "mov rax, cr4",
            "or eax, 4",
            "mov cr4, rax",
            "3: sysretq",
        ),
        as_user_with_kernel,
    );
    let found = caught(&mut vcpu);
    assert_eq!((found.vector, found.error, found.at), (13, Some(0), 0x14));
    assert_eq!(vcpu.state().gpr[RBX], 0);
}

#[test]
fn a_return_beyond_the_canonical_addresses_faults_in_the_kernel_or_at_its_target() {
    let mut vcpu = run_prepared(
        guest_code!(
            bad_return,
            "mov ebx, 4",
            "2:",
            "syscall",
            "dec ebx",
            "jnz 2b",
            "mov edi, 1",
            "syscall",
            ".balign 64",
            "test edi, edi",
            "jz 3f",
            "bts rcx, 62",
            "3: sysretq",
        ),
        as_user_with_kernel,
    );
    let found = caught(&mut vcpu);
    assert_eq!((found.vector, found.error), (13, Some(0)));
}

#[test]
fn a_return_with_the_trap_flag_traps_at_its_target() {
    let mut vcpu = run_prepared(
        guest_code!(
            trapping_return,
            "mov ebx, 4",
            "2:",
            "syscall",
            "dec ebx",
            "jnz 2b",
            "mov edi, 1",
            "syscall",
            "inc r8",
            "inc r8",
            ".balign 64",
            "test edi, edi",
            "jz 3f",
            "bts r11, 8",
            "3: sysretq",
        ),
        as_user_with_kernel,
    );
    let found = caught(&mut vcpu);
    // The exception is where the program's SYSCALL leads.
    assert_eq!((found.vector, found.error, found.at), (1, None, 0x12));
    assert_eq!(vcpu.state().gpr[8], 0);
}

#[test]
fn a_return_that_lets_in_a_waiting_interrupt_is_followed_by_it() {
    let mut vcpu = run_prepared(
        guest_code!(
            call_waiting_interrupt,
            "mov ebx, 4",
            "2:",
            "syscall",
            "dec ebx",
            "jnz 2b",
            "mov edi, 1",
            "syscall",
            "inc r8",
            ".balign 64",
            "bts r11, 9",
            "test edi, edi",
            "jz 3f",
            "mov al, 0x40",
            "out 0xf5, al",
            "inc r9",
            "3: sysretq",
        ),
        as_user_with_kernel,
    );
    let found = caught(&mut vcpu);
    assert_eq!((found.vector, found.at), (0x40, 0x12));
    assert_eq!((vcpu.state().gpr[8], vcpu.state().gpr[9]), (0, 1));
}

/// Runs a program while another thread makes it leave guest code, at times that are spread over all
/// host instructions, but rarely enough that the program makes progress.
fn run_kicked(mut vcpu: Computer<Bench>) -> Computer<Bench> {
    let mut pause = 0;
    vcpu.run_beside(|kick| {
        kick.kick();
        pause = (pause + 37) % 1000;
        thread::sleep(Duration::from_nanos(50_000 + pause));
    });
    vcpu
}

#[test]
fn no_system_call_is_lost_or_done_twice_however_often_the_guest_is_interrupted() {
    let code = guest_code!(
        kicked,
        "mov ebx, 3000000",
        "2:",
        "stc",
        "syscall",
        "adc r8, 0",
        "dec ebx",
        "jnz 2b",
        "mov edi, 1",
        "syscall",
        ".balign 64",
        // The kernel must find its own GS and stack, and clear flags, each time.
        "jc 4f",
        "swapgs",
        "mov gs:[8], rsp",
        "mov rsp, gs:[0]",
        "push r11",
        "add qword ptr gs:[16], 1",
        "pop r11",
        "mov rsp, gs:[8]",
        "swapgs",
        "test edi, edi",
        "jnz 4f",
        "sysretq",
        "4: out 0xf4, al",
    );
    let mut vcpu = run_kicked(vcpu(code, as_user_with_kernel));
    assert_eq!(vcpu.state().gpr[RDI], 1, "{}", vcpu.dump());
    assert_eq!(vcpu.state().gpr[8], 3_000_000);
    assert_eq!(read_u64(&mut vcpu, DATA + 16), 3_000_001);
    assert_ne!(vcpu.exit_counts().get(ExitKind::Interrupted), 0);
    assert!(system_calls(&vcpu) < 1_000_000, "{}", system_calls(&vcpu));
}

/// A 32-bit program in ring 3 that enters the kernel by SYSENTER.
fn in_flat_segments(state: &mut CpuState, _: &mut GuestMemory) {
    *state = flat_state(CODE);
    state.gpr[4] = STACK;
    state.sysenter_cs = 0x10;
    state.sysenter_esp = KERNEL_STACK;
    state.sysenter_eip = CODE + 2 * ENTRY;
}

#[test]
fn sysenter_and_sysexit_take_no_exit_once_each_has_been_done() {
    let code = guest_code!(
        sysenter,
        ".code32",
        // Returns to ring 3: EDX is the target and ECX the stack.
        "mov edx, 0x10000 + 32",
        "mov ecx, 0x60000",
        "mov ebx, 1000000",
        "sysexit",
        ".balign 32",
        "mov edx, 0x10000 + 48",
        "mov ecx, esp",
        "stc",
        "sysenter",
        ".balign 16",
        "adc esi, 0",
        "dec ebx",
        "jnz 2f",
        "mov edi, 1",
        "2: jmp 3f",
        ".balign 64",
        "3: mov edx, 0x10000 + 48",
        "mov ecx, esp",
        "stc",
        "sysenter",
        ".balign 64",
        "mov ebp, esp",
        "cmp edi, 1",
        "je 4f",
        "add dword ptr [0x20000], 1",
        "stc",
        "sysexit",
        "4: out 0xf4, al",
        ".code64",
    );
    let mut vcpu = run_kicked(vcpu(code, in_flat_segments));
    assert_eq!(vcpu.state().gpr[RDI], 1, "{}", vcpu.dump());
    assert_eq!(vcpu.state().gpr[RSI], 1_000_000);
    assert_eq!(vcpu.state().gpr[RBP], KERNEL_STACK);
    assert_eq!(read_u64(&mut vcpu, DATA), 1_000_000);
    let quiet = run_prepared(code, in_flat_segments);
    assert!(system_calls(&quiet) < 10, "{}", system_calls(&quiet));
}
