//! How programs leave native code, and in which state.

use crate::support::{CODE, DATA, Guest, PAGE};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::Duration;
use tollgate_native::{Exit, Instruction, Placement, Rights, Settings, SpaceProcess, SystemCall};

#[test]
fn a_system_call_leaves_at_its_instruction_with_all_registers() {
    // mov eax, 0x1234; syscall
    let code = [0xb8, 0x34, 0x12, 0, 0, 0x0f, 0x05];
    let Some(mut guest) = Guest::new(&code) else {
        return;
    };
    for (index, register) in guest.state.gpr.iter_mut().enumerate() {
        *register = 0x0111_1111_1111_1111 * index as u64;
    }
    guest.state.gpr[4] = DATA;
    let mut expected = guest.state.clone();
    guest.state.rflags = 0x202 | 1;
    assert!(matches!(guest.run(), Exit::SystemCall(SystemCall::Syscall)));
    expected.gpr[0] = 0x1234;
    // What SYSCALL does itself: the next instruction and the flags.
    expected.gpr[1] = CODE + 7;
    expected.rip = CODE + 5;
    expected.rflags = 0x203;
    let flags = std::mem::replace(&mut guest.state.gpr[11], expected.gpr[11]);
    assert_eq!(flags & 0x8d5, 1);
    assert_eq!(guest.state, expected);
}

#[test]
fn a_program_continues_with_what_the_monitor_wrote() {
    // 1: inc rbx; syscall; jmp 1b
    let code = [0x48, 0xff, 0xc3, 0x0f, 0x05, 0xeb, 0xf9];
    let Some(mut guest) = Guest::new(&code) else {
        return;
    };
    for turn in 0..1000 {
        guest.run_to_call();
        assert_eq!(guest.state.rip, CODE + 3);
        assert_eq!(guest.state.gpr[3], 3 * turn + 1);
        guest.state.gpr[3] += 2;
        guest.state.rip += 2;
    }
}

#[test]
fn a_loop_is_kicked() {
    // 1: inc rax; jmp 1b
    let code = [0x48, 0xff, 0xc0, 0xeb, 0xfb];
    let Some(mut guest) = Guest::new(&code) else {
        return;
    };
    let kicker = guest.process.kicker();
    for _ in 0..20 {
        let kicker = kicker.clone();
        let before = guest.state.gpr[0];
        let thread = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(2));
            kicker.kick();
        });
        assert!(matches!(guest.run(), Exit::Kicked));
        assert!(guest.state.gpr[0] >= before);
        assert!((CODE..CODE + 5).contains(&guest.state.rip));
        thread.join().expect("the thread");
    }
    // A kick before the run counts, too.
    kicker.kick();
    let before = guest.state.clone();
    assert!(matches!(guest.run(), Exit::Kicked));
    assert_eq!(guest.state, before);
}

#[test]
fn page_faults_say_address_and_access() {
    let cases: &[(&[u8], u64, u32)] = &[
        // mov rax, [rbx]: a read of a missing page
        (&[0x48, 0x8b, 0x03], 0x60_0008, 0x4),
        // mov [rbx], rax: a write there
        (&[0x48, 0x89, 0x03], 0x60_0008, 0x6),
        // mov [rbx], rax: a write to a page that is not writable
        (&[0x48, 0x89, 0x03], CODE + 8, 0x6),
        // jmp rbx: to a page that is not executable
        (&[0xff, 0xe3], DATA + 8, 0x14),
        // jmp rbx: to a missing page
        (&[0xff, 0xe3], 0x60_0008, 0x14),
        // mov rax, [rbx]: the kernel's half
        (&[0x48, 0x8b, 0x03], 0xffff_8000_0000_0000, 0x4),
    ];
    for (code, wanted, wanted_code) in cases {
        let Some(mut guest) = Guest::new(code) else {
            return;
        };
        guest.state.gpr[3] = *wanted;
        let (address, error_code) = Guest::page_fault(guest.run());
        assert_eq!(address, *wanted);
        assert_eq!(error_code & !1, *wanted_code, "{wanted:#x}");
        let is_fetch = wanted_code & 0x10 != 0;
        assert_eq!(guest.state.rip, if is_fetch { *wanted } else { CODE });
    }
}

#[test]
fn exceptions_have_their_vectors() {
    let cases: &[(&[u8], u8, u32, u64)] = &[
        // xor ecx, ecx; div ecx
        (&[0x31, 0xc9, 0xf7, 0xf1], 0, 0, 2),
        // ud2
        (&[0x0f, 0x0b], 6, 0, 0),
        // int3, a trap
        (&[0xcc], 3, 0, 1),
        // hlt, cli, in al, dx: privileged
        (&[0xf4], 13, 0, 0),
        (&[0xfa], 13, 0, 0),
        (&[0xec], 13, 0, 0),
        // int 21h
        (&[0xcd, 0x21], 13, 0x21 * 8 + 2, 0),
        // mov rax, 1 << 63; mov rax, [rax]: not canonical
        (
            &[0x48, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x48, 0x8b, 0],
            13,
            0,
            10,
        ),
        // pushfq; or dword [rsp], 40000h; popfq; mov eax, [rsp - 63]: an alignment check
        (
            &[
                0x9c, 0x81, 0x0c, 0x24, 0, 0, 4, 0, 0x9d, 0x8b, 0x44, 0x24, 0xc1,
            ],
            17,
            0,
            9,
        ),
    ];
    for (code, wanted, wanted_code, length) in cases {
        let Some(mut guest) = Guest::new(code) else {
            return;
        };
        let Exit::Exception { vector, error_code } = guest.run() else {
            panic!("no exception {wanted}");
        };
        assert_eq!((vector, error_code), (*wanted, *wanted_code));
        assert_eq!(guest.state.rip, CODE + length, "vector {vector}");
    }
}

#[test]
fn a_single_step_that_the_program_asked_for_is_reported() {
    // pushfq; or dword [rsp], 100h; popfq; nop; nop
    let code = [0x9c, 0x81, 0x0c, 0x24, 0, 1, 0, 0, 0x9d, 0x90, 0x90];
    let Some(mut guest) = Guest::new(&code) else {
        return;
    };
    let exit = guest.run();
    assert!(
        matches!(exit, Exit::Exception { vector: 1, .. }),
        "{exit:?}"
    );
    assert_eq!(guest.state.rip, CODE + 10);
    assert_eq!(guest.state.rflags & 0x100, 0x100);
    // Such a state is refused: single steps are translated.
    assert!(guest.process.run(&mut guest.state).is_err());
}

#[test]
fn int_80h_leaves_at_its_instruction() {
    let Some(mut guest) = Guest::new(&[0xcd, 0x80]) else {
        return;
    };
    guest.state.gpr[0] = 20;
    guest.state.gpr[1] = 0x1_2345_6789;
    let before = guest.state.clone();
    match guest.run() {
        Exit::SystemCall(SystemCall::Interrupt80) => assert_eq!(guest.state, before),
        // A host whose kernel has no system calls of 32 bits.
        Exit::Exception {
            vector: 13,
            error_code: 0x402,
        } => assert_eq!(guest.state, before),
        exit => panic!("{exit:?}"),
    }
}

#[test]
fn the_old_fast_system_calls_are_a_page_fault() {
    // mov rbx, ffffffffff600400h; call rbx (time)
    let code = [0x48, 0xc7, 0xc3, 0, 4, 0x60, 0xff, 0xff, 0xd3];
    let Some(mut guest) = Guest::new(&code) else {
        return;
    };
    let stack = guest.state.gpr[4];
    let (address, error_code) = Guest::page_fault(guest.run());
    assert_eq!(address, 0xffff_ffff_ff60_0400);
    assert_eq!(error_code & !1, 0x14);
    assert_eq!(guest.state.rip, address);
    assert_eq!(guest.state.gpr[4], stack - 8);
}

#[test]
fn segment_bases_are_loaded_and_read() {
    // mov rax, fs:[8]; mov rbx, gs:[8]; wrfsbase rcx; wrgsbase rdx; syscall
    let code = [
        0x64, 0x48, 0x8b, 0x04, 0x25, 8, 0, 0, 0, 0x65, 0x48, 0x8b, 0x1c, 0x25, 8, 0, 0, 0, 0xf3,
        0x48, 0x0f, 0xae, 0xd1, 0xf3, 0x48, 0x0f, 0xae, 0xda, 0x0f, 0x05,
    ];
    let Some(mut guest) = Guest::new(&code) else {
        return;
    };
    guest.ram.write_all_at(&[1; 8], PAGE + 8).expect("a write");
    guest
        .ram
        .write_all_at(&[2; 8], PAGE + 108)
        .expect("a write");
    guest.state.fs_base = DATA;
    guest.state.gs_base = DATA + 100;
    guest.state.gpr[1] = 0x7fff_1234_5678;
    guest.state.gpr[2] = 0xffff_8000_0000_1000;
    guest.run_to_call();
    assert_eq!(guest.state.gpr[0], 0x0101_0101_0101_0101);
    assert_eq!(guest.state.gpr[3], 0x0202_0202_0202_0202);
    assert_eq!(guest.state.fs_base, 0x7fff_1234_5678);
    assert_eq!(guest.state.gs_base, 0xffff_8000_0000_1000);
}

#[test]
fn each_way_of_waiting_and_each_place_gives_the_same() {
    // 1: inc rbx; syscall; jmp 1b
    let code = [0x48, 0xff, 0xc3, 0x0f, 0x05, 0xeb, 0xf9];
    for (spins, placement, place) in [
        (0, Placement::Free, 0x6000_0000_0000),
        (1000, Placement::Free, 0x1_0000_0000),
        (1000, Placement::WithCaller, 0x7000_0000_0000),
        (0, Placement::WithCaller, 0x2000_0000),
    ] {
        let settings = Settings {
            spins,
            placement,
            place,
            ..Settings::default()
        };
        let Some(mut guest) = Guest::with(&code, settings) else {
            return;
        };
        assert_eq!(guest.process.reserved().start, place);
        for turn in 1..500 {
            guest.process.map(0x60_0000, PAGE, PAGE, Rights::Read);
            guest.run_to_call();
            assert_eq!(guest.state.gpr[3], turn);
            guest.state.rip += 2;
        }
    }
}

#[test]
fn a_place_that_cannot_be_is_refused() {
    for place in [0, 0x1001, 0x7fff_ff00_0000, 0xffff_8000_0000_0000] {
        let settings = Settings {
            place,
            ..Settings::default()
        };
        let ram = crate::support::ram(&[]);
        let started = SpaceProcess::start(ram.as_fd(), settings);
        let error = started.err().expect("refused");
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[test]
fn instructions_that_should_fault_do_so_where_the_host_can() {
    // cpuid; rdtsc
    let code = [0x0f, 0xa2, 0x0f, 0x31, 0x0f, 0x05];
    let settings = Settings {
        cpuid: Instruction::Faults,
        time_stamp_counter: Instruction::Faults,
        ..Settings::default()
    };
    let Some(mut guest) = Guest::with(&code, settings) else {
        return;
    };
    let facts = guest.process.facts();
    for (fact, rip) in [(facts.cpuid, CODE), (facts.time_stamp_counter, CODE + 2)] {
        if fact == Instruction::Runs {
            continue;
        }
        let exit = guest.run();
        assert!(
            matches!(exit, Exit::Exception { vector: 13, .. }),
            "{exit:?}"
        );
        assert_eq!(guest.state.rip, rip);
        guest.state.rip += 2;
    }
    guest.run_to_call();
    assert_eq!(guest.state.rip, CODE + 4);
}
