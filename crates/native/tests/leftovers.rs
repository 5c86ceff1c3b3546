//! Many processes made and dropped leave nothing. This test is a program of its own because it
//! counts what the whole program has.

use std::os::fd::AsFd;
use tollgate_native::{Exit, Rights, Settings, SpaceProcess, UserState};

/// Descriptors, mappings and children of this program.
fn possessions() -> (usize, usize, usize) {
    let descriptors = std::fs::read_dir("/proc/self/fd").expect("descriptors");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    let children = std::fs::read_dir("/proc/self/task")
        .expect("tasks")
        .map(|task| task.expect("a task").path().join("children"))
        .map(|path| std::fs::read_to_string(path).unwrap_or_default())
        .map(|list| list.split_whitespace().count());
    (descriptors.count(), maps.lines().count(), children.sum())
}

#[test]
fn a_thousand_processes_leave_nothing() {
    if let Err(refusal) = tollgate_native::probe() {
        tollgate_test_support::skip::impossible(&refusal.to_string());
        return;
    }
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    let ram = rustix::fs::memfd_create("ram", flags).expect("a memfd");
    rustix::io::write(&ram, &[0x0f, 0x05]).expect("a write");
    rustix::fs::ftruncate(&ram, 4096).expect("room");
    let run = || {
        let mut process = SpaceProcess::start(ram.as_fd(), Settings::default()).expect("a process");
        process.map(0x40_0000, 4096, 0, Rights::ReadExecute);
        let mut state = UserState {
            rip: 0x40_0000,
            ..UserState::default()
        };
        let exit = process.run(&mut state).expect("a valid state");
        assert!(matches!(exit, Exit::SystemCall(_)), "{exit:?}");
        process
    };
    drop(run());
    let before = possessions();
    for _ in 0..980 {
        run();
    }
    let several: Vec<_> = (0..20).map(|_| run()).collect();
    drop(several);
    assert_eq!(possessions(), before);
}
