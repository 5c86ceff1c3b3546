//! The launcher: it makes processes for a confined thread, gives that thread nothing else, and leaves
//! nothing. Each monitor is a process of its own (this program, started again), whose thread is confined
//! as that of a machine is.

mod attack;
mod monitor;

use attack::attack;
use monitor::{GOOD, Monitor, ROLE, are_gone, children, report};
use std::collections::BTreeSet;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use tollgate_confine::{
    Confine, Part, Setup, ThreadKind, begin, confine_launcher, enter, on_own_thread,
};
use tollgate_native::{
    Death, Exit, Rights, Settings, SpaceProcess, SystemCall, UserState, launcher,
};
use tollgate_test_support::skip;

const CODE: u64 = 0x40_0000;
const PAGE: u64 = 4096;
/// 1: syscall; jmp 1b
const CALLS: [u8; 4] = [0x0f, 0x05, 0xeb, 0xfc];
/// jmp $
const LOOPS: [u8; 2] = [0xeb, 0xfe];

fn ram(code: &[u8]) -> OwnedFd {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let ram = rustix::fs::memfd_create("ram", flags).unwrap();
    rustix::io::write(&ram, code).unwrap();
    rustix::fs::ftruncate(&ram, PAGE).unwrap();
    ram
}

fn start(ram: &OwnedFd) -> std::io::Result<SpaceProcess> {
    let mut process = SpaceProcess::start(ram.as_fd(), Settings::default())?;
    process.map(CODE, PAGE, 0, Rights::ReadExecute);
    Ok(process)
}

fn at_code() -> UserState {
    UserState {
        rip: CODE,
        ..UserState::default()
    }
}

#[track_caller]
fn makes_calls(process: &mut SpaceProcess, count: usize) {
    let mut state = at_code();
    for _ in 0..count {
        state.rip = CODE;
        let exit = process.run(&mut state).unwrap();
        let is_call = matches!(exit, Exit::SystemCall(SystemCall::Syscall));
        assert!(is_call && state.rip == CODE, "{exit:?}");
    }
}

/// Runs `work` as the thread of a machine's processor that has a launcher with this socket.
fn as_monitor(code: &[u8], work: impl FnOnce(RawFd, OwnedFd)) {
    let socket = launcher::begin(confine_launcher).unwrap();
    let ram = ram(code);
    begin(Setup {
        confine: Confine::Strict,
        trees: Vec::new(),
        has_program: false,
        launcher: Some(socket),
        locks_memory: false,
        exit_code: 77,
    })
    .unwrap();
    // As in a machine, whose other thread has the limits of this one.
    enter(ThreadKind::Main);
    // SAFETY: nothing here depends on the thread.
    let result = unsafe { on_own_thread(ThreadKind::Vcpu, || work(socket, ram)) };
    result.unwrap().unwrap();
    println!("{GOOD}");
}

#[test]
#[ignore = "started by the others"]
fn plays_a_role() {
    match std::env::var(ROLE).as_deref() {
        Ok("run") => as_monitor(&CALLS, |_, ram| run_programs(&ram)),
        Ok("attack") => {
            // SAFETY: it takes nothing.
            let parent = unsafe { libc::getppid() }.cast_unsigned();
            as_monitor(&CALLS, |socket, ram| {
                // SAFETY: the launcher's socket stays open as long as this process.
                attack(
                    unsafe { BorrowedFd::borrow_raw(socket) },
                    &ram,
                    parent.into(),
                );
            });
        }
        Ok("hold") => as_monitor(&LOOPS, |_, ram| {
            let mut processes: Vec<_> = (0..3).map(|_| start(&ram).unwrap()).collect();
            let numbers: Vec<i32> = processes.iter().map(SpaceProcess::number).collect();
            // One of them runs when all ends.
            let kicker = processes[0].kicker();
            std::thread::scope(|scope| {
                let running = &mut processes[0];
                scope.spawn(move || running.run(&mut at_code()));
                report(&numbers);
                kicker.kick();
            });
        }),
        Ok("lose") => as_monitor(&CALLS, |_, ram| {
            let mut process = start(&ram).unwrap();
            makes_calls(&mut process, 1);
            report(&[process.number()]);
            let exit = process.run(&mut at_code()).unwrap();
            assert!(matches!(exit, Exit::Died(Death::Signal(9))), "{exit:?}");
            assert!(start(&ram).is_err());
            assert!(launcher::answers().is_err());
        }),
        _ => {}
    }
}

fn run_programs(ram: &OwnedFd) {
    launcher::answers().unwrap();
    let mut several: Vec<_> = (0..20).map(|_| start(ram).unwrap()).collect();
    for process in &mut several {
        makes_calls(process, 100);
    }
    drop(several);
    // More than may exist at a time.
    for _ in 0..200 {
        makes_calls(&mut start(ram).unwrap(), 1);
    }
    run_prepared(ram);
    let mut process = start(ram).unwrap();
    process.kicker().kick();
    assert!(matches!(process.run(&mut at_code()).unwrap(), Exit::Kicked));
    process.unmap(CODE, PAGE);
    let exit = process.run(&mut at_code()).unwrap();
    assert!(
        matches!(exit, Exit::PageFault { address: CODE, .. }),
        "{exit:?}"
    );
    let before = process.processor_time();
    process.map(CODE, PAGE, 0, Rights::ReadExecute);
    makes_calls(&mut process, 1000);
    assert!(process.processor_time() > before);
}

/// Processes that are made ahead are used once, and only for the memory that they have.
fn run_prepared(ram: &OwnedFd) {
    let other = std::io::stdin();
    for prepared in [ram.as_fd(), ram.as_fd(), other.as_fd()] {
        tollgate_native::prepare(prepared, &Settings::default());
        tollgate_native::prepare(prepared, &Settings::default());
        let mut several: Vec<_> = (0..3).map(|_| start(ram).unwrap()).collect();
        let numbers: BTreeSet<i32> = several.iter().map(SpaceProcess::number).collect();
        assert_eq!(numbers.len(), 3);
        for process in &mut several {
            makes_calls(process, 10);
        }
    }
}

/// Whether this host can do all this.
fn is_possible() -> bool {
    let is_confinable = Part::ALL.into_iter().all(tollgate_confine::host_offers);
    match tollgate_native::probe() {
        Ok(_) if is_confinable => true,
        Ok(_) => {
            skip::impossible("this host lacks seccomp or Landlock");
            false
        }
        Err(refusal) => {
            skip::impossible(&refusal.to_string());
            false
        }
    }
}

#[test]
fn a_confined_thread_runs_programs_in_processes_that_the_launcher_makes() {
    if is_possible() {
        Monitor::start("run").ends_well();
    }
}

#[test]
fn arbitrary_messages_give_processes_for_programs_and_nothing_else() {
    if !is_possible() {
        return;
    }
    let mut monitor = Monitor::start("attack");
    let mut all = monitor.numbers();
    let launcher = monitor.launcher();
    let made = children(launcher);
    assert!(all.is_subset(&made) && made.len() <= 64, "{made:?}");
    for process in &made {
        let name = std::fs::read_to_string(format!("/proc/{process}/comm")).unwrap();
        assert_eq!(name.trim(), "guest-program");
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
        assert_eq!(descriptors.count(), 2);
    }
    all.extend(made);
    all.insert(launcher);
    monitor.go();
    monitor.ends_well();
    are_gone(&all);
}

#[test]
fn the_launcher_holds_nothing_and_may_do_nothing_else() {
    if !is_possible() {
        return;
    }
    let mut monitor = Monitor::start("hold");
    let numbers = monitor.numbers();
    let launcher = monitor.launcher();
    assert_eq!(children(launcher), numbers);
    for process in numbers.iter().chain([&launcher]) {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
        for line in [
            "CapEff:\t0000000000000000",
            "CapPrm:\t0000000000000000",
            "NoNewPrivs:\t1",
            "Seccomp:\t2",
        ] {
            assert!(status.contains(line), "{line}: {status}");
        }
    }
    let descriptors = std::fs::read_dir(format!("/proc/{launcher}/fd")).unwrap();
    let targets = descriptors
        .flatten()
        .map(|entry| std::fs::read_link(entry.path()).unwrap());
    let targets: Vec<String> = targets.map(|target| target.display().to_string()).collect();
    // Nothing three times, its socket, and a descriptor of each process.
    let count = |what: &str| {
        targets
            .iter()
            .filter(|target| target.contains(what))
            .count()
    };
    assert_eq!(count("/dev/null"), 3, "{targets:?}");
    assert_eq!(count("socket:"), 1, "{targets:?}");
    assert_eq!(count("pidfd"), 3, "{targets:?}");
    assert_eq!(targets.len(), 7, "{targets:?}");
    monitor.go();
    monitor.ends_well();
}

#[test]
fn nothing_is_left_of_a_monitor_that_is_killed_or_ends() {
    if !is_possible() {
        return;
    }
    for is_killed in [true, false] {
        let mut monitor = Monitor::start("hold");
        let mut all = monitor.numbers();
        assert_eq!(all.len(), 3);
        all.insert(monitor.launcher());
        match is_killed {
            true => drop(monitor),
            false => {
                monitor.go();
                monitor.ends_well();
            }
        }
        are_gone(&all);
    }
}

#[test]
fn without_its_launcher_a_monitor_is_told_that_its_programs_are_gone() {
    if !is_possible() {
        return;
    }
    let mut monitor = Monitor::start("lose");
    let numbers = monitor.numbers();
    let launcher = rustix::process::Pid::from_raw(monitor.launcher().cast_signed()).unwrap();
    rustix::process::kill_process(launcher, rustix::process::Signal::KILL).unwrap();
    are_gone(&numbers);
    monitor.go();
    monitor.ends_well();
}
