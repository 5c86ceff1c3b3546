//! Tests that sensitive instructions of 64-bit code run without the monitor.

use crate::support::long_mode::{Caught, STACK, caught, guest_code, run_with, vcpu};
use tollgate_engine::policy::virtual_interrupts::VirtualInterrupts;
use tollgate_exits::ExitKind;
use tollgate_monitor::VcpuStop;
use tollgate_platform::StopRequest;
use tollgate_x86::{Segment, Selector};

const KINDS: [ExitKind; 5] = [
    ExitKind::Cli,
    ExitKind::Sti,
    ExitKind::Pushf,
    ExitKind::Popf,
    ExitKind::Iret,
];

/// Executes all five instructions, 100 times each.
fn program() -> &'static [u8] {
    guest_code!(
        all_five,
        "mov ecx, 100",
        "2: cli",
        "pushfq",
        "sti",
        "popfq",
        "mov rbx, rsp",
        "mov eax, ss",
        "push rax",
        "push rbx",
        "pushfq",
        "mov eax, cs",
        "push rax",
        "lea rax, [rip + 3f]",
        "push rax",
        "iretq",
        "3: dec ecx",
        "jnz 2b",
        "out 0xf4, al",
    )
}

#[test]
fn no_instruction_leaves_while_nothing_waits() {
    for (arm, expected) in [
        (VirtualInterrupts::default(), [0, 0, 0, 0, 0]),
        (
            VirtualInterrupts {
                request: false,
                ..VirtualInterrupts::default()
            },
            [0, 100, 0, 0, 0],
        ),
        (
            VirtualInterrupts {
                flag: false,
                ..VirtualInterrupts::default()
            },
            [100, 100, 200, 100, 100],
        ),
    ] {
        let mut vcpu = vcpu(program(), |_, _| {});
        vcpu.change_settings(|settings| settings.virtual_interrupts = arm);
        let stop = vcpu.run();
        assert!(
            matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
            "{stop:?}\n{}",
            vcpu.dump()
        );
        let exits = KINDS.map(|kind| vcpu.exit_counts().get(kind));
        assert_eq!(exits, expected, "{arm:?}");
        assert_eq!(vcpu.state().gpr[4], STACK);
    }
}

#[test]
fn iretq_with_a_null_stack_segment_does_not_leave() {
    let ended = run_with(program(), |state, _| {
        let null = Segment::null_stack(Selector(0), 0);
        *state.segment_mut(tollgate_x86::SegmentRegister::Ss) = null;
    });
    assert_eq!(ended.exit_counts().get(ExitKind::Iret), 0);
    assert_eq!(ended.state().ss().selector, Selector(0));
}

#[test]
fn iretq_to_an_address_that_is_not_canonical_faults_before_it() {
    let code = guest_code!(
        not_canonical,
        "mov rbx, rsp",
        "mov eax, ss",
        "push rax",
        "push rbx",
        "pushfq",
        "mov eax, cs",
        "push rax",
        "mov rax, 0x800000000000",
        "push rax",
        "3: iretq",
    );
    let mut ended = run_with(code, |_, _| {});
    let at = code.len() as u64 - 2;
    let expected = Caught {
        vector: 13,
        error: Some(0),
        at,
        rsp: STACK - 40,
    };
    assert_eq!(caught(&mut ended), expected);
}

#[test]
fn an_interrupt_waits_for_popfq_and_iretq() {
    let popfq = guest_code!(
        lets_in_by_popfq,
        "sti",
        "nop",
        "pushfq",
        "cli",
        "mov al, 0x40",
        "out 0xf5, al",
        "popfq",
        "nop",
        "hlt",
    );
    let iretq = guest_code!(
        lets_in_by_iretq,
        "mov rbx, rsp",
        "mov eax, ss",
        "push rax",
        "push rbx",
        "push 0x202",
        "mov eax, cs",
        "push rax",
        "lea rax, [rip + 3f]",
        "push rax",
        "mov al, 0x40",
        "out 0xf5, al",
        "iretq",
        "3: hlt",
    );
    for (code, behind) in [(popfq, 2), (iretq, 1)] {
        for flag in [true, false] {
            let mut vcpu = vcpu(code, |_, _| {});
            vcpu.change_settings(|settings| {
                settings.virtual_interrupts = VirtualInterrupts {
                    flag,
                    ..VirtualInterrupts::default()
                }
            });
            vcpu.run();
            let caught = caught(&mut vcpu);
            let at = code.len() as u64 - behind;
            assert_eq!((caught.vector, caught.at), (0x40, at), "{flag}");
        }
    }
}

#[test]
fn a_return_within_the_kernel_that_loads_the_resume_flag_takes_no_exit() {
    let code = guest_code!(
        resume_flag_returns,
        "mov ebx, 20000",
        "mov r12d, 0x10046",
        "2:",
        "mov rcx, rsp",
        "push 0x10",
        "push rcx",
        // RF is set in every second round; CF changes, and IOPL stays.
        "xor r12d, 0x10001",
        "push r12",
        "push 8",
        "lea rax, [rip+3f]",
        "push rax",
        "iretq",
        "3:",
        "adc r8, 0",
        "pushfq",
        "pop rax",
        "or r9, rax",
        "dec ebx",
        "jnz 2b",
        "out 0xf4, al",
    );
    let mut vcpu = vcpu(code, |_, _| ());
    let stop = vcpu.run_kicked();
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}\n{}",
        vcpu.dump()
    );
    let gpr = vcpu.state().gpr;
    assert_eq!([gpr[3], gpr[8], gpr[4]], [0, 10_000, STACK]);
    // PUSHF never stores RF.
    assert_eq!(gpr[9] & 0x1_0000, 0);
    assert!(vcpu.exit_counts().get(ExitKind::Iret) < 10);
}
