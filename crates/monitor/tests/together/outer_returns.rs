//! Tests IRETQ from a kernel to its programs in translated code: its results, what the monitor must
//! still do, and that no instruction is ever seen half done. All emitted code is verified.

use crate::support::long_mode::*;
use std::thread;
use std::time::Duration;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_test_support::Computer;
use tollgate_x86::{CpuState, PhysicalAddress, Segment, SegmentRegister, Selector};

const RAX: usize = 0;
const RBX: usize = 3;
const RSP: usize = 4;
const RSI: usize = 6;
const RDI: usize = 7;

/// Offset of the kernel's entry from the beginning of the code.
const ENTRY: u64 = 128;
/// Address of the descriptor of CODE_64_USER.
const USER_CODE: u64 = 0x8000 + (CODE_64_USER as u64 & !7);

/// Sets up a 64-bit program, whose data segments are null, and a kernel that is entered by SYSCALL.
fn as_program(state: &mut CpuState, memory: &mut GuestMemory) {
    as_user(state);
    state.flags &= !0x3000;
    for register in [
        SegmentRegister::Ds,
        SegmentRegister::Es,
        SegmentRegister::Fs,
        SegmentRegister::Gs,
    ] {
        *state.segment_mut(register) = Segment::null(Selector(0));
    }
    state.star = 0x001b_0008 << 32;
    state.lstar = KERNEL + CODE + ENTRY;
    state.sfmask = 0x25_7fd5;
    state.kernel_gs_base = KERNEL + DATA;
    memory.write_u64(PhysicalAddress(DATA), KERNEL + KERNEL_STACK);
}

fn returns(vcpu: &Computer<Bench>) -> u64 {
    vcpu.exit_counts().get(ExitKind::Iret)
}

/// Vector and error code of the exception that ended a run in the kernel, and RSP before it.
fn caught_in_kernel(vcpu: &mut Computer<Bench>) -> (u64, u64, u64) {
    let frame = vcpu.state().gpr[RSP].wrapping_sub(KERNEL);
    let [vector, error, rsp] = [0, 8, 40].map(|at| read_u64(vcpu, frame + at));
    (vector, error, rsp)
}

/// Executes 1,000 calls, each of which returns by IRETQ after the kernel has executed the given
/// code. CF is set in the program, and R8 counts how often it is found set.
macro_rules! calls {
    ($name:ident, $($kernel:literal),* $(,)?) => {
        guest_code!(
            $name,
            "mov ebx, 1000",
            "2:",
            "stc",
            "syscall",
            "adc r8, 0",
            "dec ebx",
            "jnz 2b",
            "mov eax, ds",
            "mov edi, 1",
            "syscall",
            ".balign 128",
            "swapgs",
            "mov gs:[8], rsp",
            "mov rsp, gs:[0]",
            "add qword ptr gs:[16], 1",
            "test edi, edi",
            "jnz 3f",
            "push 0x23",
            "push qword ptr gs:[8]",
            "push r11",
            "push 0x2b",
            "push rcx",
            $($kernel,)*
            "swapgs",
            "4:",
            "iretq",
            "3:",
            "mov rsi, gs:[8]",
            "out 0xf4, al",
        )
    };
}

fn check(mut vcpu: Computer<Bench>) -> Computer<Bench> {
    let gpr = vcpu.state().gpr;
    assert_eq!(
        [gpr[8], gpr[RBX], gpr[RDI]],
        [1000, 0, 1],
        "{}",
        vcpu.dump()
    );
    assert_eq!(gpr[RSI], STACK);
    assert_eq!(gpr[RSP], KERNEL + KERNEL_STACK);
    assert_eq!(read_u64(&mut vcpu, DATA + 16), 1001);
    vcpu
}

#[test]
fn a_return_to_ring_3_takes_no_exit_once_one_has_been_done() {
    let vcpu = check(run_with(calls!(many_outer_returns,), as_program));
    assert!(returns(&vcpu) <= 6, "{}", returns(&vcpu));
    assert_eq!(vcpu.state().gpr[RAX] & 0xffff, 0);
}

#[test]
fn the_resume_flag_of_a_fault_s_frame_needs_no_exit_either() {
    let code = calls!(outer_resume_flag, "bts qword ptr [rsp + 16], 16");
    let vcpu = check(run_with(code, as_program));
    assert!(returns(&vcpu) <= 6, "{}", returns(&vcpu));
}

#[test]
fn flags_that_decide_about_translation_are_the_monitor_s() {
    // The flag ID.
    let code = calls!(outer_identification, "bts qword ptr [rsp + 16], 21");
    let vcpu = check(run_with(code, as_program));
    assert!(returns(&vcpu) >= 1000, "{}", returns(&vcpu));
}

#[test]
fn data_segments_of_the_kernel_are_taken_away() {
    let code = calls!(data_segments, "mov eax, 0x10", "mov ds, eax");
    let vcpu = check(run_with(code, as_program));
    assert!(returns(&vcpu) >= 1000, "{}", returns(&vcpu));
    assert_eq!(vcpu.state().gpr[RAX] & 0xffff, 0);
}

#[test]
fn a_descriptor_that_has_changed_is_looked_at_again() {
    // In the last round the descriptor of the program's code is no longer present.
    let mut vcpu = run_with(
        calls!(
            changed_descriptor,
            "cmp ebx, 1",
            "jne 5f",
            "mov r9, 0xffff888000008028",
            "btr qword ptr [r9], 47",
            "5:",
        ),
        as_program,
    );
    let (vector, error, _) = caught_in_kernel(&mut vcpu);
    assert_eq!((vector, error), (11, 0x28));
    assert_eq!(vcpu.state().gpr[8], 999);
    assert_eq!(read_u64(&mut vcpu, USER_CODE) >> 47 & 1, 0);
}

#[test]
fn a_target_that_is_not_canonical_faults_in_the_kernel() {
    let mut vcpu = run_with(
        calls!(
            odd_target,
            "cmp ebx, 1",
            "jne 5f",
            "mov r9, 0x800000000000",
            "mov [rsp], r9",
            "5:",
        ),
        as_program,
    );
    let found = caught_in_kernel(&mut vcpu);
    assert_eq!(found, (13, 0, KERNEL + KERNEL_STACK - 40));
    assert_eq!(vcpu.state().gpr[8], 999);
}

#[test]
fn another_table_of_descriptors_is_looked_at() {
    // In the last round GDTR points to a table that is too short for the program's segments.
    let mut vcpu = run_with(
        calls!(
            outer_other_table,
            "cmp ebx, 1",
            "jne 5f",
            "sub rsp, 16",
            "mov word ptr [rsp], 0x1f",
            "mov qword ptr [rsp + 2], 0x8000",
            "lgdt [rsp]",
            "add rsp, 16",
            "5:",
        ),
        as_program,
    );
    let (vector, error, _) = caught_in_kernel(&mut vcpu);
    assert_eq!((vector, error), (13, 0x28));
}

#[test]
fn no_return_is_lost_or_done_twice_however_often_the_guest_is_interrupted() {
    let code = guest_code!(
        outer_kicked,
        "mov ebx, 2000000",
        "2:",
        "stc",
        "syscall",
        "adc r8, 0",
        "dec ebx",
        "jnz 2b",
        "mov edi, 1",
        "syscall",
        ".balign 128",
        "swapgs",
        "mov gs:[8], rsp",
        "mov rsp, gs:[0]",
        "add qword ptr gs:[16], 1",
        "test edi, edi",
        "jnz 3f",
        "push 0x23",
        "push qword ptr gs:[8]",
        "push r11",
        "push 0x2b",
        "push rcx",
        "swapgs",
        "iretq",
        "3:",
        "mov rsi, gs:[8]",
        "out 0xf4, al",
    );
    let mut vcpu = vcpu(code, as_program);
    let mut pause = 0;
    vcpu.run_beside(|kick| {
        kick.kick();
        pause = (pause + 37) % 1000;
        thread::sleep(Duration::from_nanos(50_000 + pause));
    });
    let gpr = vcpu.state().gpr;
    assert_eq!(
        [gpr[RDI], gpr[8], gpr[RSI]],
        [1, 2_000_000, STACK],
        "{}",
        vcpu.dump()
    );
    assert_eq!(read_u64(&mut vcpu, DATA + 16), 2_000_001);
    assert_ne!(vcpu.exit_counts().get(ExitKind::Interrupted), 0);
    assert!(returns(&vcpu) < 1_000_000, "{}", returns(&vcpu));
}
