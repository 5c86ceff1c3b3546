//! Tests that machines are independent of each other, in one process at the same time, and one
//! after the other.

use crate::guests;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

use tollgate_machine::config::{MIB, VmConfig};
use tollgate_machine::vm::{Consoles, RunOutcome, Vm};
use tollgate_machine::vm_handle::{State, VmHandle};
use tollgate_test_support::Transcript;

/// The value that a guest writes to isa-debug-exit if all its facts hold.
const ALL_FACTS_HOLD: u8 = 0x10;
/// How long an operation may take on a slow, busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn config(kernel: PathBuf) -> VmConfig {
    VmConfig {
        memory_bytes: 32 * MIB,
        code_cache_bytes: 4 * MIB,
        verify_code: true,
        kernel,
        ..VmConfig::default()
    }
}

fn build(config: &VmConfig, serial: &Transcript, handle: &VmHandle) -> Vm {
    let consoles = Consoles {
        serial: Box::new(serial.clone()),
        debug: Box::new(io::sink()),
    };
    Vm::build(config, consoles, handle).unwrap_or_else(|error| panic!("{error}"))
}

/// Runs a bare-metal guest to its end on this thread.
#[track_caller]
fn facts_hold(name: &str) {
    let serial = Transcript::default();
    let config = config(guests::bare_metal(name));
    let mut vm = build(&config, &serial, &VmHandle::new());
    let outcome = vm.run();
    let facts = serial.text();
    assert_eq!(
        outcome,
        RunOutcome::DebugExit(ALL_FACTS_HOLD),
        "{name}:\n{facts}"
    );
    let stated = facts.lines().filter(|line| line.starts_with("ok ")).count();
    let last = facts.lines().last().unwrap_or_default();
    assert_eq!(last, format!("{stated} of {stated} facts hold"), "{name}");
    assert!(vm.exit_counts().total() > 0);
}

/// A boot sector that begins with `code`, in a file that is removed at the end.
struct BootSector(PathBuf);

impl BootSector {
    fn new(name: &str, code: &[u8]) -> Self {
        let mut sector = [0; 512];
        sector[..code.len()].copy_from_slice(code);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        let name = format!("tollgate-machine-{}-{name}.img", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, sector).unwrap();
        Self(path)
    }
}

impl Drop for BootSector {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// jmp to itself
const LOOP: [u8; 2] = [0xeb, 0xfe];

/// Every guest runs together with another one, several times, so that exceptions, code writes and
/// timer interrupts of the two coincide in many ways.
#[test]
fn two_machines_run_at_the_same_time() {
    let mut names = guests::bare_metal_names();
    // This guest counts ticks, and needs a processor for itself to miss none.
    names.retain(|name| name != "timers");
    // The two threads go through the list from opposite ends.
    let backwards: Vec<_> = names.iter().rev().cloned().collect();
    let start = Arc::new(Barrier::new(2));
    let threads = [names, backwards].map(|names| {
        let start = Arc::clone(&start);
        thread::spawn(move || {
            start.wait();
            for name in &names {
                facts_hold(name);
            }
        })
    });
    for thread in threads {
        thread.join().unwrap();
    }
}

#[test]
fn machines_run_one_after_the_other_in_one_process_and_thread() {
    for _ in 0..3 {
        for name in ["hello", "paging", "selfmodify", "interrupts"] {
            facts_hold(name);
        }
    }
}

#[test]
fn a_machine_is_built_while_another_one_exists_and_survives_its_end() {
    let serial = Transcript::default();
    let mut first = build(
        &config(guests::bare_metal("hello")),
        &serial,
        &VmHandle::new(),
    );
    facts_hold("paging");
    assert_eq!(
        first.run(),
        RunOutcome::DebugExit(ALL_FACTS_HOLD),
        "{}",
        serial.text()
    );
}

#[test]
fn two_guests_of_one_thread_take_nothing_from_each_other() {
    let consoles = [Transcript::default(), Transcript::default()];
    let mut vms = ["segments", "vm86"]
        .map(guests::bare_metal)
        .into_iter()
        .zip(&consoles)
        .map(|(kernel, serial)| build(&config(kernel), serial, &VmHandle::new()))
        .collect::<Vec<_>>();
    for (vm, serial) in vms.iter_mut().zip(&consoles) {
        let outcome = vm.run();
        assert_eq!(
            outcome,
            RunOutcome::DebugExit(ALL_FACTS_HOLD),
            "{}",
            serial.text()
        );
    }
}

#[test]
fn pausing_and_quitting_one_machine_leaves_the_other_running() {
    let guest = BootSector::new("two", &LOOP);
    let handles = [VmHandle::new(), VmHandle::new()];
    let threads = handles.each_ref().map(|handle| {
        let (handle, config) = (handle.clone(), config(guest.0.clone()));
        thread::spawn(move || build(&config, &Transcript::default(), &handle).run())
    });
    let [first, second] = &handles;
    for handle in &handles {
        let status = handle.wait_for_status(PATIENCE, |status| status.state == State::Running);
        assert_eq!(status.state, State::Running);
    }
    for _ in 0..50 {
        first.pause();
        let status = first.wait_for_status(PATIENCE, |status| status.state == State::Paused);
        assert_eq!(status.state, State::Paused);
        assert_eq!(second.fresh_status(PATIENCE).state, State::Running);
        let paused_at = first.fresh_status(PATIENCE).guest_time_ns;
        assert_eq!(first.fresh_status(PATIENCE).guest_time_ns, paused_at);
        first.resume();
        let status = first.wait_for_status(PATIENCE, |status| status.state == State::Running);
        assert_eq!(status.state, State::Running);
    }
    first.quit();
    let [first_thread, second_thread] = threads;
    assert_eq!(first_thread.join().unwrap(), RunOutcome::Quit);
    assert_eq!(second.fresh_status(PATIENCE).state, State::Running);
    second.quit();
    assert_eq!(second_thread.join().unwrap(), RunOutcome::Quit);
}

#[test]
fn a_machine_that_was_told_to_quit_before_its_start_runs_nothing() {
    let guest = BootSector::new("early", &LOOP);
    let handle = VmHandle::new();
    handle.quit();
    let mut vm = build(&config(guest.0.clone()), &Transcript::default(), &handle);
    assert_eq!(vm.run(), RunOutcome::Quit);
}
