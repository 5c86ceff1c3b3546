//! Mappings of guest RAM: made, changed, removed, refused.

use crate::support::{CODE, DATA, Guest, PAGE, PAGES};
use std::os::unix::fs::FileExt;
use tollgate_native::{Cause, Command, Exit, Rights};

/// 1: mov rax, [rbx]; syscall; jmp 1b
const READ: [u8; 7] = [0x48, 0x8b, 0x03, 0x0f, 0x05, 0xeb, 0xf9];
/// 1: mov [rbx], rcx; syscall; jmp 1b
const WRITE: [u8; 7] = [0x48, 0x89, 0x0b, 0x0f, 0x05, 0xeb, 0xf9];
const AT: u64 = 0x7f12_3456_7000;

impl Guest {
    /// Runs the load or store again.
    fn again(&mut self) -> Exit {
        self.state.rip = CODE;
        self.run()
    }
}

#[test]
fn a_program_sees_each_page_that_is_mapped_in_turn() {
    let Some(mut guest) = Guest::new(&READ) else {
        return;
    };
    for page in 0..PAGES {
        let value = page + 100;
        guest
            .ram
            .write_all_at(&value.to_le_bytes(), page * PAGE + 8)
            .expect("a write");
    }
    guest.state.gpr[3] = AT + 8;
    for round in 0..3 {
        for page in 0..PAGES {
            guest.process.map(AT, PAGE, page * PAGE, Rights::Read);
            assert!(matches!(guest.again(), Exit::SystemCall(_)));
            assert_eq!(guest.state.gpr[0], page + 100, "round {round}");
        }
        guest.process.unmap(AT, PAGE);
        let exit = guest.again();
        assert!(matches!(exit, Exit::PageFault { .. }), "{exit:?}");
    }
}

#[test]
fn two_addresses_can_show_one_page() {
    let Some(mut guest) = Guest::new(&WRITE) else {
        return;
    };
    guest.process.map(AT, 4 * PAGE, 8 * PAGE, Rights::ReadWrite);
    guest.state.gpr[3] = AT + 2 * PAGE;
    guest.state.gpr[1] = 0x1234_5678;
    // SYSCALL changes RCX after the store.
    assert!(matches!(guest.again(), Exit::SystemCall(_)));
    let mut bytes = [0; 8];
    let read = guest.ram.read_exact_at(&mut bytes, 10 * PAGE);
    read.expect("a read");
    assert_eq!(u64::from_le_bytes(bytes), 0x1234_5678);
}

#[test]
fn rights_can_be_taken_and_given_back() {
    let Some(mut guest) = Guest::new(&WRITE) else {
        return;
    };
    guest.process.map(AT, 2 * PAGE, 8 * PAGE, Rights::ReadWrite);
    guest.state.gpr[3] = AT + 8;
    for _ in 0..100 {
        guest.process.protect(AT, PAGE, Rights::Read);
        let (address, error_code) = Guest::page_fault(guest.again());
        assert_eq!((address, error_code & !1), (AT + 8, 6));
        guest.process.protect(AT, PAGE, Rights::ReadWrite);
        assert!(matches!(guest.again(), Exit::SystemCall(_)));
    }
}

#[test]
fn what_cannot_be_mapped_is_reported_by_the_next_flush() {
    let Some(mut guest) = Guest::new(&READ) else {
        return;
    };
    let stub = guest.process.reserved().start;
    let cases = [
        (AT + 1, PAGE, 0),
        (AT, PAGE, PAGES * PAGE),
        (AT, 2 * PAGE, (PAGES - 1) * PAGE),
        (AT, !0xfff, 0),
        (stub, PAGE, 0),
        (0x7fff_ffff_f000, PAGE, 0),
    ];
    for (address, length, offset) in cases {
        guest.process.map(address, length, offset, Rights::Read);
        let error = guest.process.flush().expect_err("refused");
        assert!(
            matches!(error.cause, Cause::OutOfRange | Cause::Unaligned),
            "{error}"
        );
        assert!(error.command.is_some());
        guest.process.flush().expect("nothing is left");
    }
    // The host's kernel refuses this one: part of the range is not mapped.
    guest.process.map(AT, PAGE, 0, Rights::Read);
    guest.process.protect(AT + 4 * PAGE, PAGE, Rights::Read);
    guest.process.map(AT + 8 * PAGE, PAGE, 0, Rights::Read);
    let exit = guest.run();
    let Exit::MappingFailed(error) = exit else {
        panic!("{exit:?}");
    };
    assert!(matches!(error.cause, Cause::Host(_)), "{error}");
    let shown = format!("{error}");
    assert!(shown.contains("Protect"), "{shown}");
    // What was queued before is made, what came after is not.
    guest.state.gpr[3] = AT;
    assert!(matches!(guest.again(), Exit::SystemCall(_)));
    guest.state.gpr[3] = AT + 8 * PAGE;
    assert!(matches!(guest.again(), Exit::PageFault { .. }));
}

#[test]
fn more_changes_than_a_batch_holds_are_all_made() {
    let Some(mut guest) = Guest::new(&READ) else {
        return;
    };
    for page in 0..1000 {
        let offset = (page * 7 % PAGES) * PAGE;
        guest
            .process
            .map(AT + 2 * page * PAGE, PAGE, offset, Rights::Read);
    }
    guest.process.flush().expect("mapped");
    for page in 0..1000 {
        guest.state.gpr[3] = AT + 2 * page * PAGE;
        assert!(matches!(guest.again(), Exit::SystemCall(_)));
    }
}

#[test]
fn nothing_is_left_after_everything_is_unmapped() {
    let Some(mut guest) = Guest::new(&READ) else {
        return;
    };
    guest.process.map(AT, PAGE, 0, Rights::Read);
    guest.process.flush().expect("mapped");
    guest.process.unmap_all();
    guest.process.map(CODE, PAGE, 0, Rights::ReadExecute);
    for address in [AT, DATA] {
        guest.state.gpr[3] = address;
        let exit = guest.again();
        assert!(matches!(exit, Exit::PageFault { .. }), "{exit:?}");
    }
}

#[test]
fn mappings_change_between_kicks_of_a_running_program() {
    // 1: mov rax, [rbx]; jmp 1b
    let Some(mut guest) = Guest::new(&[0x48, 0x8b, 0x03, 0xeb, 0xfb]) else {
        return;
    };
    guest.state.gpr[3] = AT;
    let kicker = guest.process.kicker();
    let is_done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(std::sync::atomic::Ordering::Relaxed) {
                std::thread::sleep(std::time::Duration::from_micros(200));
                kicker.kick();
            }
        });
        for turn in 0..300 {
            guest
                .process
                .map(AT, PAGE, turn % PAGES * PAGE, Rights::Read);
            let exit = guest.run();
            assert!(matches!(exit, Exit::Kicked), "{exit:?}");
            guest.process.unmap(AT, PAGE);
            match guest.run() {
                Exit::Kicked => {}
                Exit::PageFault { address, .. } => assert_eq!(address, AT),
                exit => panic!("{exit:?}"),
            }
        }
        is_done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn too_many_mappings_are_reported_and_the_process_lives_on() {
    let Some(mut guest) = Guest::new(&READ) else {
        return;
    };
    let limit = std::fs::read_to_string("/proc/sys/vm/max_map_count").expect("the limit");
    let limit: u64 = limit.trim().parse().expect("a number");
    if limit > 200_000 {
        tollgate_test_support::skip::impossible("the host allows very many mappings");
        return;
    }
    guest.state.gpr[3] = DATA;
    let mut page = 0;
    let error = loop {
        // A run makes these on its way to the program.
        for _ in 0..40 {
            guest
                .process
                .map(AT + 2 * page * PAGE, PAGE, 0, Rights::Read);
            page += 1;
        }
        match guest.again() {
            Exit::SystemCall(_) => assert!(page < limit + 100),
            Exit::MappingFailed(error) => break error,
            exit => panic!("{exit:?}"),
        }
    };
    let Cause::Host(cause) = &error.cause else {
        panic!("{error}");
    };
    assert_eq!(cause.raw_os_error(), Some(libc::ENOMEM));
    let Some(Command::Map { address, .. }) = error.command else {
        panic!("{error}");
    };
    // What was mapped before the failure can be used, what comes after cannot.
    guest.state.gpr[3] = address - 2 * PAGE;
    assert!(matches!(guest.again(), Exit::SystemCall(_)));
    guest.state.gpr[3] = address;
    assert!(matches!(guest.again(), Exit::PageFault { .. }));
    guest.process.unmap_all();
    guest.process.map(CODE, PAGE, 0, Rights::ReadExecute);
    guest.process.map(AT, PAGE, 0, Rights::Read);
    guest.state.gpr[3] = AT;
    assert!(matches!(guest.again(), Exit::SystemCall(_)));
}
