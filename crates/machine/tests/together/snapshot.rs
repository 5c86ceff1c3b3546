//! Tests that a machine that was written to a file continues from there, in any number of machines,
//! and that files that are no whole snapshots are refused.

use crate::guests;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tollgate_machine::config::{MIB, VmConfig};
use tollgate_machine::snapshot::{MOST_BASES, SnapshotError, SnapshotFile};
use tollgate_machine::vm::{BuildError, Consoles, RunOutcome, Vm};
use tollgate_machine::vm_handle::{AfterSnapshot, SnapshotOrder, State, VmHandle};
use tollgate_test_support::{Random, Transcript};

/// The value that a guest writes to isa-debug-exit if all its facts hold.
const ALL_FACTS_HOLD: u8 = 0x10;
/// How long an operation may take on a slow, busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A folder that is removed at the end.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("tollgate-snapshot-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// A boot sector that begins with `code`.
    fn boot_sector(&self, code: &[u8]) -> PathBuf {
        let mut sector = [0; 512];
        sector[..code.len()].copy_from_slice(code);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        let path = self.path("boot.img");
        fs::write(&path, sector).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn config(kernel: PathBuf) -> VmConfig {
    VmConfig {
        memory_bytes: 32 * MIB,
        code_cache_bytes: 4 * MIB,
        verify_code: true,
        kernel,
        ..VmConfig::default()
    }
}

fn consoles(serial: &Transcript) -> Consoles {
    Consoles {
        serial: Box::new(serial.clone()),
        debug: Box::new(io::sink()),
    }
}

fn build(config: &VmConfig, serial: &Transcript, handle: &VmHandle) -> Vm {
    Vm::build(config, consoles(serial), handle).unwrap_or_else(|error| panic!("{error}"))
}

fn restore(path: &Path, serial: &Transcript, handle: &VmHandle) -> Result<Vm, BuildError> {
    let snapshot = SnapshotFile::open(path).map_err(BuildError::Snapshot)?;
    let config = snapshot.description().config.clone();
    Vm::restored(snapshot, &config, consoles(serial), handle)
}

/// Has a running machine write a snapshot. `None` if the machine ended before.
fn take_snapshot(
    handle: &VmHandle,
    path: &Path,
    then: AfterSnapshot,
) -> Option<Result<(), String>> {
    let path = path.to_owned();
    let base = None;
    let request = handle.request_snapshot(SnapshotOrder::Write { path, base, then });
    let end = std::time::Instant::now() + PATIENCE;
    loop {
        if let Some(result) = handle.snapshot_after(request) {
            return Some(result);
        }
        let is_over = handle.status().state == State::Stopped;
        assert!(std::time::Instant::now() < end, "no answer");
        if is_over {
            return None;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Runs a machine to its end on this thread, and says so to those who wait for it.
fn run(mut vm: Vm, handle: &VmHandle) -> RunOutcome {
    let outcome = vm.run();
    let mut status = handle.status();
    status.state = State::Stopped;
    handle.commands().publish(status);
    outcome
}

/// inc word [0x7e00]; jmp back
const COUNTER: [u8; 6] = [0xff, 0x06, 0x00, 0x7e, 0xeb, 0xfa];
/// Where [`COUNTER`] counts: its page is not the code's.
const COUNT_AT: u64 = 0x7e00;

fn count(vm: &Vm) -> u16 {
    vm.memory()
        .read_u32(tollgate_x86::PhysicalAddress(COUNT_AT)) as u16
}

/// Starts a machine that counts, and waits until it does.
fn counting(folder: &Folder) -> (VmHandle, thread::JoinHandle<RunOutcome>) {
    let config = config(folder.boot_sector(&COUNTER));
    let handle = VmHandle::new();
    let own = handle.clone();
    let thread = thread::spawn(move || run(build(&config, &Transcript::default(), &own), &own));
    let status = handle.wait_for_status(PATIENCE, |status| status.state == State::Running);
    assert_eq!(status.state, State::Running);
    (handle, thread)
}

#[test]
fn machines_continue_from_a_snapshot_and_the_first_one_goes_on() {
    let folder = Folder::new("count");
    let path = folder.path("vm.snap");
    let (handle, thread) = counting(&folder);
    thread::sleep(Duration::from_millis(20));
    take_snapshot(&handle, &path, AfterSnapshot::Resume)
        .unwrap()
        .unwrap();
    assert_eq!(handle.fresh_status(PATIENCE).state, State::Running);
    handle.quit();
    assert_eq!(thread.join().unwrap(), RunOutcome::Quit);
    SnapshotFile::open(&path).unwrap().check_memory().unwrap();
    let at_snapshot = {
        let vm = restore(&path, &Transcript::default(), &VmHandle::new()).unwrap();
        count(&vm)
    };
    for _ in 0..2 {
        let handle = VmHandle::new();
        let mut vm = restore(&path, &Transcript::default(), &handle).unwrap();
        assert_eq!(
            count(&vm),
            at_snapshot,
            "a restored machine changed the file"
        );
        run_until_it_counts(&mut vm, &handle, &mut Random::new(2));
    }
}

#[test]
fn a_restored_machine_can_be_written_again() {
    let folder = Folder::new("again");
    let (first, second) = (folder.path("first.snap"), folder.path("second.snap"));
    let (handle, thread) = counting(&folder);
    take_snapshot(&handle, &first, AfterSnapshot::Pause)
        .unwrap()
        .unwrap();
    assert_eq!(handle.fresh_status(PATIENCE).state, State::Paused);
    handle.quit();
    thread.join().unwrap();
    let mut vm = restore(&first, &Transcript::default(), &VmHandle::new()).unwrap();
    let before = count(&vm);
    vm.write_snapshot(&second).unwrap();
    // Nothing has run in between, so both hold the same memory.
    let opened = [&first, &second].map(|path| SnapshotFile::open(path).unwrap());
    let [one, two] = opened.each_ref().map(SnapshotFile::description);
    assert_eq!(one.memory, two.memory);
    assert_eq!(one.checksums, two.checksums);
    let vm = restore(&second, &Transcript::default(), &VmHandle::new()).unwrap();
    assert_eq!(count(&vm), before);
}

/// The contents of all RAM that is not zero, by address.
fn contents(vm: &Vm) -> Vec<(u64, Vec<u8>)> {
    let memory = vm.memory();
    let next = |address: u64| memory.next_piece(tollgate_x86::PhysicalAddress(address));
    let mut found = Vec::new();
    let mut at = next(0);
    while let Some(address) = at {
        let mut piece = Box::new([0; 64 << 10]);
        memory.read_piece(address, &mut piece).unwrap();
        if piece.iter().any(|byte| *byte != 0) {
            found.push((address.0, piece.to_vec()));
        }
        at = next(address.0 + (64 << 10));
    }
    found
}

/// Restores a machine and lets it run on.
fn restore_and_run(path: &Path, random: &mut Random) -> Vm {
    let handle = VmHandle::new();
    let mut vm = restore(path, &Transcript::default(), &handle).unwrap();
    run_until_it_counts(&mut vm, &handle, random);
    vm
}

/// Runs a machine that counts until it has done so. A busy host may not let it run at the first
/// attempt.
fn run_until_it_counts(vm: &mut Vm, handle: &VmHandle, random: &mut Random) {
    let (before, end) = (count(vm), std::time::Instant::now() + PATIENCE);
    while count(vm) == before {
        assert!(std::time::Instant::now() < end, "the machine stands still");
        assert_eq!(run_for_a_while(vm, handle, random), RunOutcome::Quit);
    }
}

#[test]
fn a_difference_holds_what_has_changed_and_needs_its_bases() {
    let folder = Folder::new("difference");
    let file = |number: usize| folder.path(&format!("{number}.snap"));
    let mut random = Random::new(3);
    let handle = VmHandle::new();
    let config = config(folder.boot_sector(&COUNTER));
    let mut vm = build(&config, &Transcript::default(), &handle);
    run_for_a_while(&mut vm, &handle, &mut random);
    vm.write_snapshot(&file(0)).unwrap();
    for number in 1..=MOST_BASES {
        let mut vm = restore_and_run(&file(number - 1), &mut random);
        vm.write_difference(&file(number), &file(number - 1))
            .unwrap();
        let written = SnapshotFile::open(&file(number)).unwrap();
        // Only the piece with the counter has changed.
        assert_eq!(written.description().checksums.len(), 1);
        assert_eq!(written.description().bases.len(), number);
        written.check_memory().unwrap();
        let mut again = restore(&file(number), &Transcript::default(), &VmHandle::new()).unwrap();
        assert_eq!(contents(&again), contents(&vm));
        // Without a base it is whole, and a machine that was never restored can have a base too.
        let whole = folder.path("whole.snap");
        again.write_snapshot(&whole).unwrap();
        assert!(
            SnapshotFile::open(&whole)
                .unwrap()
                .description()
                .bases
                .is_empty()
        );
        let vm = restore(&whole, &Transcript::default(), &VmHandle::new()).unwrap();
        assert_eq!(contents(&again), contents(&vm));
    }
    // A machine is put back to what all of the files together hold.
    let handle = VmHandle::new();
    let mut vm = restore(&file(MOST_BASES), &Transcript::default(), &handle).unwrap();
    let before = contents(&vm);
    run_for_a_while(&mut vm, &handle, &mut random);
    vm.put_back().unwrap();
    assert_eq!(contents(&vm), before);
    // The chain cannot become longer, and no file of it is replaced.
    let error = |result: Result<(), SnapshotError>| {
        let error = result.unwrap_err().to_string();
        assert_eq!(error.lines().count(), 1, "{error}");
        error
    };
    let long = vm.write_difference(&folder.path("long.snap"), &file(MOST_BASES));
    assert!(error(long).contains("write a whole snapshot"));
    let replaces = vm.write_difference(&file(1), &file(2));
    assert!(error(replaces).contains("would replace its own base"));
    // A missing base, and one that has become another snapshot, are named.
    let refused = || {
        let result = restore(&file(2), &Transcript::default(), &VmHandle::new());
        let error = result.err().unwrap().to_string();
        assert!(error.contains("1.snap', which "), "{error}");
        assert!(
            SnapshotFile::open(&file(2))
                .unwrap()
                .check_memory()
                .is_err()
        );
        error
    };
    let whole = fs::read(file(1)).unwrap();
    fs::remove_file(file(1)).unwrap();
    assert!(refused().contains("cannot be read"));
    fs::copy(file(0), file(1)).unwrap();
    assert!(refused().contains("is another file than when"));
    fs::create_dir(folder.path("folder")).unwrap();
    fs::remove_file(file(1)).unwrap();
    fs::rename(folder.path("folder"), file(1)).unwrap();
    assert!(refused().contains("is another file than when"));
    fs::remove_dir(file(1)).unwrap();
    fs::write(file(1), whole).unwrap();
    restore(&file(2), &Transcript::default(), &VmHandle::new()).unwrap();
}

#[test]
fn a_snapshot_of_another_machine_can_be_a_base() {
    let folder = Folder::new("other-base");
    let (first, second) = (folder.path("first.snap"), folder.path("second.snap"));
    let counter = config(folder.boot_sector(&COUNTER));
    let small = VmConfig {
        memory_bytes: 4 * MIB,
        pci: false,
        ..counter.clone()
    };
    let mut vm = build(&small, &Transcript::default(), &VmHandle::new());
    vm.write_snapshot(&first).unwrap();
    let mut random = Random::new(4);
    let handle = VmHandle::new();
    let mut vm = build(&counter, &Transcript::default(), &handle);
    run_for_a_while(&mut vm, &handle, &mut random);
    vm.write_difference(&second, &first).unwrap();
    SnapshotFile::open(&second).unwrap().check_memory().unwrap();
    let again = restore(&second, &Transcript::default(), &VmHandle::new()).unwrap();
    assert_eq!(contents(&again), contents(&vm));
}

/// The facts of a bare-metal guest hold if the guest is stopped at any moment, written to a file and
/// continued by another machine, several times.
#[test]
fn facts_hold_in_guests_that_were_restored_in_the_middle() {
    let folder = Folder::new("facts");
    let mut random = Random::new(std::process::id().into());
    let mut restored = 0;
    let mut names = guests::bare_metal_names();
    // These count ticks of the host's time, some of which passes without them.
    names.retain(|name| !["timers", "hpet"].contains(&&**name));
    for name in names {
        let path = folder.path("vm.snap");
        let serial = Transcript::default();
        let mut handle = VmHandle::new();
        let mut vm = build(&config(guests::bare_metal(&name)), &serial, &handle);
        let outcome = loop {
            let delay = Duration::from_micros(random.below(60_000) as u64);
            let (own, to) = (handle.clone(), path.clone());
            let clerk = thread::spawn(move || {
                thread::sleep(delay);
                let result = take_snapshot(&own, &to, AfterSnapshot::Pause);
                own.quit();
                result
            });
            let outcome = run(vm, &handle);
            match clerk.join().unwrap() {
                Some(result) => result.unwrap_or_else(|error| panic!("{name}: {error}")),
                None => break outcome,
            }
            assert_eq!(outcome, RunOutcome::Quit, "{name}");
            restored += 1;
            handle = VmHandle::new();
            vm = restore(&path, &serial, &handle).unwrap_or_else(|error| panic!("{error}"));
        };
        let facts = serial.text();
        let expected = RunOutcome::DebugExit(ALL_FACTS_HOLD);
        assert_eq!(outcome, expected, "{name}:\n{facts}");
        let stated = facts.lines().filter(|line| line.starts_with("ok ")).count();
        let last = facts.lines().last().unwrap_or_default();
        assert_eq!(last, format!("{stated} of {stated} facts hold"), "{name}");
    }
    assert!(restored > 20, "only {restored} guests were restored");
}

/// Runs a machine for a random time, or to its end if that comes first.
fn run_for_a_while(vm: &mut Vm, handle: &VmHandle, random: &mut Random) -> RunOutcome {
    let delay = Duration::from_micros(random.below(30_000) as u64);
    let own = handle.clone();
    let clerk = thread::spawn(move || {
        thread::sleep(delay);
        own.quit();
    });
    let outcome = vm.run();
    clerk.join().unwrap();
    outcome
}

/// The facts of a bare-metal guest hold in a restored machine that has run on, even to its end, and
/// was put back to its snapshot, several times.
#[test]
fn facts_hold_in_guests_that_were_put_back_to_the_middle() {
    let folder = Folder::new("put-back");
    let mut random = Random::new(std::process::id().into());
    let mut put_back = 0;
    let mut names = guests::bare_metal_names();
    names.retain(|name| !["timers", "hpet"].contains(&&**name));
    for name in names {
        let path = folder.path("vm.snap");
        let serial = Transcript::default();
        let handle = VmHandle::new();
        let mut vm = build(&config(guests::bare_metal(&name)), &serial, &handle);
        if run_for_a_while(&mut vm, &handle, &mut random) != RunOutcome::Quit {
            continue;
        }
        let why = vm.put_back().unwrap_err().to_string();
        assert!(why.contains("was not restored"), "{why}");
        vm.write_snapshot(&path).unwrap();
        drop(vm);
        let before = serial.text();
        let handle = VmHandle::new();
        let mut vm = restore(&path, &serial, &handle).unwrap();
        for _ in 0..3 {
            run_for_a_while(&mut vm, &handle, &mut random);
            vm.put_back()
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            put_back += 1;
        }
        let left_behind = serial.text().len();
        let outcome = loop {
            match vm.run() {
                // The guest had ended before it was asked to.
                RunOutcome::Quit => {}
                outcome => break outcome,
            }
        };
        let facts = format!("{before}{}", &serial.text()[left_behind..]);
        let expected = RunOutcome::DebugExit(ALL_FACTS_HOLD);
        assert_eq!(outcome, expected, "{name}:\n{facts}");
        let stated = facts.lines().filter(|line| line.starts_with("ok ")).count();
        let last = facts.lines().last().unwrap_or_default();
        assert_eq!(last, format!("{stated} of {stated} facts hold"), "{name}");
    }
    assert!(put_back > 20, "only {put_back} machines were put back");
}

#[test]
fn files_that_are_no_whole_snapshots_are_refused_in_one_line() {
    let folder = Folder::new("damaged");
    let path = folder.path("vm.snap");
    let (handle, thread) = counting(&folder);
    take_snapshot(&handle, &path, AfterSnapshot::Pause)
        .unwrap()
        .unwrap();
    handle.quit();
    thread.join().unwrap();
    let whole = fs::read(&path).unwrap();
    let damaged = folder.path("damaged.snap");
    let refused = |bytes: &[u8], why: &str| {
        fs::write(&damaged, bytes).unwrap();
        let error = SnapshotFile::open(&damaged).unwrap_err().to_string();
        assert!(error.contains(why) && error.lines().count() == 1, "{error}");
    };
    refused(&[], "too short");
    refused(&[0; 4096], "does not begin like one");
    for at in 0..48 {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x20;
        fs::write(&damaged, bytes).unwrap();
        let result = SnapshotFile::open(&damaged);
        // The header's last bytes are not used.
        assert_eq!(result.is_err(), at < 44, "byte {at}");
    }
    let mut other = whole.clone();
    other[whole.len() - 40] ^= 1;
    refused(&other, "its description is damaged");
    refused(&whole[..whole.len() - 1], "outside the file");
    let mut memory = whole.clone();
    memory[70_000] ^= 1;
    fs::write(&damaged, memory).unwrap();
    let error = SnapshotFile::open(&damaged).unwrap().check_memory();
    assert!(matches!(error, Err(SnapshotError::Damaged(_, why)) if why.contains("memory")));
    assert!(matches!(
        SnapshotFile::open(&folder.path("none.snap")),
        Err(SnapshotError::Read(..))
    ));
}

#[test]
fn a_snapshot_that_cannot_be_written_leaves_nothing_and_the_machine_goes_on() {
    let folder = Folder::new("unwritable");
    let (handle, thread) = counting(&folder);
    let path = folder.path("none/vm.snap");
    let result = take_snapshot(&handle, &path, AfterSnapshot::Pause).unwrap();
    let error = result.unwrap_err();
    assert!(error.contains("cannot write the snapshot"), "{error}");
    assert_eq!(handle.fresh_status(PATIENCE).state, State::Running);
    handle.quit();
    thread.join().unwrap();
    let left: Vec<_> = fs::read_dir(&folder.0).unwrap().flatten().collect();
    assert_eq!(left.len(), 1, "only the boot sector: {left:?}");
}

#[test]
fn a_machine_is_not_restored_on_a_disk_of_another_time() {
    let folder = Folder::new("disk");
    let disk = folder.path("disk.img");
    fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let config = VmConfig {
        drives: vec![tollgate_machine::config::DriveOptions::new(&disk)],
        ..config(folder.boot_sector(&COUNTER))
    };
    let path = folder.path("vm.snap");
    let mut vm = build(&config, &Transcript::default(), &VmHandle::new());
    vm.write_snapshot(&path).unwrap();
    drop(vm);
    drop(restore(&path, &Transcript::default(), &VmHandle::new()).unwrap());
    fs::write(&disk, vec![1; 1 << 20]).unwrap();
    let error = restore(&path, &Transcript::default(), &VmHandle::new());
    let error = error.err().unwrap().to_string();
    assert!(error.contains("was written since"), "{error}");
}

/// In a process of its own, where no other test opens files: what a process holds after many
/// machines were restored and dropped is what it held after the first few.
/// `TOLLGATE_RESTORES` sets how many.
#[test]
fn machines_that_are_restored_and_dropped_leave_nothing_behind() {
    const CHILD: &str = "TOLLGATE_RESTORES_CHILD";
    if std::env::var_os(CHILD).is_some() {
        return restore_many();
    }
    let name = "snapshot::machines_that_are_restored_and_dropped_leave_nothing_behind";
    let program = std::env::current_exe().unwrap();
    let mut command = std::process::Command::new(program);
    command.args(["--exact", name, "--nocapture"]);
    let output = command.env(CHILD, "1").output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}\n{errors}");
    assert!(text.contains("1 passed"), "{text}");
}

fn restore_many() {
    let count = std::env::var("TOLLGATE_RESTORES");
    let count: u32 = count.map_or(1000, |count| count.parse().unwrap());
    let folder = Folder::new("many");
    let path = folder.path("vm.snap");
    let disk = folder.path("disk.img");
    fs::write(&disk, vec![0; 1 << 20]).unwrap();
    let config = VmConfig {
        drives: vec![tollgate_machine::config::DriveOptions::new(&disk)],
        ..config(folder.boot_sector(&COUNTER))
    };
    let mut random = Random::new(7);
    let handle = VmHandle::new();
    let mut vm = build(&config, &Transcript::default(), &handle);
    run_for_a_while(&mut vm, &handle, &mut random);
    vm.write_snapshot(&path).unwrap();
    drop(vm);
    let held = || {
        let entries = |folder: &str| fs::read_dir(folder).unwrap().count();
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        [
            entries("/proc/self/fd"),
            entries("/proc/self/task"),
            maps.lines().count(),
        ]
    };
    let mut before = None;
    for round in 0..count {
        let handle = VmHandle::new();
        let mut vm = restore(&path, &Transcript::default(), &handle).unwrap();
        if round % 10 == 0 {
            run_for_a_while(&mut vm, &handle, &mut Random::new(round.into()));
        }
        drop(vm);
        if round == 99 {
            before = Some(held());
        }
    }
    let Some([files, threads, mappings]) = before else {
        return;
    };
    let after = held();
    assert_eq!([files, threads], after[..2], "files and threads");
    // The allocator may still hold a few blocks in other places.
    assert!(
        after[2] <= mappings + 20,
        "{} mappings, {mappings} before",
        after[2]
    );
}
