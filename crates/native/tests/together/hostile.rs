//! Programs that attack the process that they run in: whatever they do, no system call takes effect
//! and no page of guest RAM becomes reachable that the monitor has not mapped.

use crate::support::{CODE, DATA, Guest, PAGE, PAGES};
use std::os::unix::fs::FileExt;
use std::time::Duration;
use tollgate_native::{Death, Exit, SystemCall, UserState};
use tollgate_test_support::Random;

/// All mappings and descriptors of a process, as the kernel lists them.
fn possessions(guest: &Guest) -> (Vec<String>, Vec<String>) {
    let folder = format!("/proc/{}", guest.process.number());
    let maps = std::fs::read_to_string(format!("{folder}/maps")).expect("the mappings");
    let maps = maps.lines().map(str::to_owned).collect();
    let descriptors = std::fs::read_dir(format!("{folder}/fd")).expect("the descriptors");
    let mut descriptors: Vec<String> = descriptors
        .map(|entry| {
            let path = entry.expect("an entry").path();
            let target = std::fs::read_link(&path).expect("a link");
            format!("{} {}", path.display(), target.display())
        })
        .collect();
    descriptors.sort();
    (maps, descriptors)
}

#[test]
fn a_process_holds_nothing_but_the_stub_and_guest_ram() {
    let Some(mut guest) = Guest::new(&[0x0f, 0x05]) else {
        return;
    };
    guest.run_to_call();
    let (maps, descriptors) = possessions(&guest);
    let reserved = guest.process.reserved();
    for line in &maps {
        let (start, rest) = line.split_once('-').expect("a range");
        let start = u64::from_str_radix(start, 16).expect("an address");
        let is_ours = reserved.contains(&start);
        let is_guests = start == CODE || start == DATA;
        // The page of the oldest system calls cannot be removed; its calls are refused.
        let is_vsyscall = rest.ends_with("[vsyscall]");
        assert!(is_ours || is_guests || is_vsyscall, "{line}");
        assert!(!rest.contains("rwx"), "{line}");
    }
    assert_eq!(descriptors.len(), 2, "{descriptors:?}");
    assert!(descriptors[0].contains("memfd:ram"), "{descriptors:?}");
    assert!(descriptors[1].contains("pipe:"), "{descriptors:?}");
}

#[test]
fn no_system_call_of_a_program_takes_effect() {
    let Some(mut guest) = Guest::new(&[0x0f, 0x05]) else {
        return;
    };
    guest.run_to_call();
    let before = possessions(&guest);
    let mut random = Random::new(1);
    let plain = 0..600;
    let of_32_bits = (0..600).map(|number| 1 << 30 | number);
    let odd = (0..300).map(|_| Random::new(random.next_u64()).next_u64());
    for number in plain.chain(of_32_bits).chain(odd.collect::<Vec<_>>()) {
        for _ in 0..3 {
            let mut random = Random::new(number ^ random.next_u64());
            for register in &mut guest.state.gpr {
                *register = match random.below(4) {
                    0 => random.next_u64() >> random.below(64),
                    1 => DATA + random.next_u64() % PAGE,
                    2 => random.next_u64() % 8,
                    _ => CODE,
                };
            }
            guest.state.gpr[0] = number;
            guest.state.gpr[4] = DATA;
            guest.state.rip = CODE;
            let before = guest.state.clone();
            let exit = guest.run();
            assert!(
                matches!(exit, Exit::SystemCall(SystemCall::Syscall)),
                "{number:#x}: {exit:?}"
            );
            guest.state.gpr[1] = before.gpr[1];
            guest.state.gpr[11] = before.gpr[11];
            assert_eq!(guest.state, before, "{number:#x}");
        }
    }
    assert_eq!(possessions(&guest), before);
}

/// What a program that jumps into the stub would like to happen: arguments of mmap, mprotect,
/// execve, kill and others, with the call's number in RAX or without.
fn wishes(stub: u64) -> Vec<[u64; 16]> {
    let registers = |rax, rdi, rsi, rdx, r10, r8, r9| {
        let mut registers = [DATA + 512; 16];
        (registers[0], registers[7], registers[6]) = (rax, rdi, rsi);
        (registers[2], registers[10], registers[8], registers[9]) = (rdx, r10, r8, r9);
        // What the mapper reads its commands from, and how many it has left.
        (registers[12], registers[13], registers[14]) = (DATA, 1, 0);
        registers
    };
    vec![
        registers(9, 0x60_0000, PAGE, 7, 0x11, 0, 8 * PAGE),
        registers(10, stub, PAGE, 7, 0, 0, 0),
        registers(11, stub, 16 * PAGE, 0, 0, 0, 0),
        registers(59, DATA, 0, 0, 0, 0, 0),
        registers(62, 1, 9, 0, 0, 0, 0),
        registers(231, 0, 0, 0, 0, 0, 0),
        registers(202, DATA, 1, 100, 0, 0, 0),
        registers(15, 0, 0, 0, 0, 0, 0),
        registers(1, 1, DATA, 100, 0, 0, 0),
        registers(0, 0, DATA, 100, 0, 0, 0),
    ]
}

#[test]
fn jumping_to_any_byte_of_the_stub_gains_nothing() {
    // jmp r15
    let code = [0x41, 0xff, 0xe7];
    let Some(first) = Guest::new(&code) else {
        return;
    };
    let stub = first.process.reserved().start;
    let wishes = wishes(stub);
    let mut guest = Some(first);
    let mut deaths = 0;
    let expected_lines = {
        let guest = guest.as_mut().expect("alive");
        guest.process.flush().expect("mapped");
        possessions(guest)
    };
    for offset in 0x100..0x440 {
        let mut current = match guest.take() {
            Some(guest) => guest,
            None => Guest::new(&code).expect("the host's offer does not change"),
        };
        // The page that a wish would have the mapper's code map, in the form of its commands.
        let command: Vec<u8> = [9u64, 0x60_0000, PAGE, 7, 0x11, 0, 8 * PAGE, 0]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let written = current.ram.write_all_at(&command, PAGE);
        written.expect("a write");
        let kicker = current.process.kicker();
        let mut is_alive = true;
        for (number, wish) in wishes.iter().enumerate() {
            if !(offset as usize + number).is_multiple_of(3) {
                continue;
            }
            current.state = UserState {
                gpr: *wish,
                ..UserState::default()
            };
            current.state.gpr[15] = stub + offset;
            current.state.rip = CODE;
            let kicker = kicker.clone();
            let kicks = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(1));
                kicker.kick();
            });
            let exit = current.run();
            kicks.join().expect("the thread");
            if matches!(exit, Exit::Died(_)) {
                deaths += 1;
                is_alive = false;
                break;
            }
            assert!(!matches!(exit, Exit::MappingFailed(_)), "{exit:?}");
            // The kick that this run may not have seen. Nothing is mapped at this address.
            current.state = UserState {
                rip: 0x10,
                ..UserState::default()
            };
            let _ = current.run();
        }
        if is_alive {
            let (maps, descriptors) = possessions(&current);
            let (expected_maps, expected_descriptors) = &expected_lines;
            assert_eq!(
                maps.len(),
                expected_maps.len(),
                "offset {offset:#x}: {maps:#?}"
            );
            assert_eq!(descriptors.len(), expected_descriptors.len());
            for (map, expected) in maps.iter().zip(expected_maps) {
                let range = |line: &str| line.split(' ').take(3).collect::<Vec<_>>().join(" ");
                assert_eq!(range(map), range(expected), "offset {offset:#x}");
            }
            guest = Some(current);
        }
    }
    println!("{deaths} processes died");
}

#[test]
fn the_monitors_pages_cannot_be_written() {
    // mov [rbx], rax
    let Some(mut guest) = Guest::new(&[0x48, 0x89, 0x03]) else {
        return;
    };
    let stub = guest.process.reserved().start;
    for page in 0..3 {
        for offset in [0, 64, 128, 0x500, 0xf00] {
            let at = stub + page * PAGE + offset;
            guest.state.rip = CODE;
            guest.state.gpr[3] = at;
            let (address, error_code) = Guest::page_fault(guest.run());
            assert_eq!((address, error_code & !1), (at, 6));
        }
    }
}

#[test]
fn a_program_that_overwrites_the_shared_pages_runs_on_or_dies() {
    // 1: rep stosb; syscall; jmp 1b
    let code = [0xf3, 0xaa, 0x0f, 0x05, 0xeb, 0xfa];
    let Some(mut guest) = Guest::new(&code) else {
        return;
    };
    let reserved = guest.process.reserved();
    let start = reserved.start + 3 * PAGE;
    let mut random = Random::new(3);
    for turn in 0..2000 {
        let length = reserved.end - start;
        let from = random.next_u64() % length;
        guest.state.rip = CODE;
        guest.state.gpr[0] = random.next_u64();
        guest.state.gpr[7] = start + from;
        guest.state.gpr[1] = if turn % 5 == 0 {
            guest.state.gpr[7] = start;
            length
        } else {
            random.next_u64() % (length - from)
        };
        match guest.run() {
            Exit::SystemCall(SystemCall::Syscall) => assert_eq!(guest.state.rip, CODE + 2),
            Exit::Died(_) => guest = Guest::new(&code).expect("the host's offer does not change"),
            exit => panic!("{exit:?}"),
        }
    }
}

#[test]
fn a_program_that_blocks_the_kick_is_killed() {
    // A frame in the program's own memory, with all signals blocked and RIP at the loop:
    // mov rsp, rbx; mov eax, 15; jmp r15 (to the stub's SYSCALL); loop: jmp loop
    let code = [
        0x48, 0x89, 0xdc, 0xb8, 15, 0, 0, 0, 0x41, 0xff, 0xe7, 0xeb, 0xfe,
    ];
    let Some(mut guest) = Guest::new(&code) else {
        return;
    };
    // `struct ucontext` follows the stack pointer; see frame.rs.
    let write = |offset: u64, value: u64| {
        let bytes = value.to_le_bytes();
        let written = guest.ram.write_all_at(&bytes, PAGE + offset);
        written.expect("a write");
    };
    write(40 + 128, CODE + 11);
    write(40 + 120, DATA + PAGE);
    write(40 + 144, 0x33 | 0x2b << 48);
    write(40 + 256, u64::MAX);
    write(0, 4);
    guest.state.gpr[3] = DATA;
    let stub = guest.process.reserved().start;
    // The last SYSCALL of the handler: found by its bytes, mov eax, 15; syscall.
    let mut page = vec![0; PAGE as usize];
    let memory = std::fs::File::open(format!("/proc/{}/mem", guest.process.number()));
    let memory = memory.expect("the process's memory");
    memory.read_exact_at(&mut page, stub).expect("a read");
    let call = [0xb8, 15, 0, 0, 0, 0x0f, 0x05];
    let at = page.windows(7).position(|bytes| bytes == call);
    guest.state.gpr[15] = stub + at.expect("the instruction") as u64 + 5;
    let kicker = guest.process.kicker();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        kicker.kick();
    });
    let exit = guest.run();
    thread.join().expect("the thread");
    assert!(
        matches!(exit, Exit::Died(Death::Unresponsive)),
        "{exit:?} at {:#x}",
        guest.state.rip
    );
}

#[test]
fn a_process_that_is_killed_is_reported() {
    // 1: jmp 1b
    let Some(mut guest) = Guest::new(&[0xeb, 0xfe]) else {
        return;
    };
    let number = guest.process.number();
    let thread = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(20));
        let process = rustix::process::Pid::from_raw(number).expect("a number");
        let signal = rustix::process::Signal::KILL;
        rustix::process::kill_process(process, signal).expect("a signal");
    });
    let exit = guest.run();
    assert!(matches!(exit, Exit::Died(Death::Signal(9))), "{exit:?}");
    thread.join().expect("the thread");
    assert!(matches!(guest.run(), Exit::Died(Death::Signal(9))));
    guest
        .process
        .map(0x60_0000, PAGE, PAGES, tollgate_native::Rights::Read);
    assert!(guest.process.flush().is_err());
}
