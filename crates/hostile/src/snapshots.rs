//! Hostile input for snapshots: files of machines with modifications anywhere, whose checksums are
//! right again.
//!
//! For any modification, the file is either refused with one line of text, or a machine continues
//! from it, ends when it is told to, and can be saved again.

use crate::confined::as_processor;
use crate::input::Input;
use serde_json::Value;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;
use tollgate_machine::config::{DriveOptions, MIB, OptionalDevice, VmConfig};
use tollgate_machine::snapshot::{SNAPSHOT_VERSION, SnapshotFile};
use tollgate_machine::vm::{Consoles, Vm};
use tollgate_machine::vm_handle::VmHandle;

/// Maximum number of modifications.
const MOST_EDITS: usize = 6;
/// How long a machine runs.
const RUN: Duration = Duration::from_millis(2);

/// Counts at 0x7e00, which is not in its own page: `inc word [0x7e00]; jmp back`.
const COUNTER: [u8; 6] = [0xff, 0x06, 0x00, 0x7e, 0xeb, 0xfa];
/// Parts of a description that an input does not reach: a file that a modified path names must not
/// be opened.
const KEPT: [&str; 13] = [
    "kernel",
    "firmware",
    "initrd",
    "path",
    "drives",
    "ide_drives",
    "scsi_drives",
    "floppies",
    "shares",
    "networks",
    "vsock",
    "ports",
    "fw_cfg_files",
];

/// A file that is removed at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-snapshots-{}-{number}", std::process::id());
        Self(std::env::temp_dir().join(name))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// A snapshot that is modified.
struct Sound {
    /// The file up to its description.
    before: Vec<u8>,
    description: Value,
}

/// The number of the snapshot in [`sound`] that has a base.
const DIFFERENCE: usize = 2;

/// The snapshots that are modified: of a machine with few devices, of one with many, and of one that
/// was restored, without what its base has.
fn sound() -> &'static [Sound; 3] {
    static SOUND: OnceLock<[Sound; 3]> = OnceLock::new();
    SOUND.get_or_init(|| {
        let kernel = Scratch::new();
        let mut sector = [0; 512];
        sector[..COUNTER.len()].copy_from_slice(&COUNTER);
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        fs::write(&kernel.0, sector).expect("a boot sector");
        let few = VmConfig {
            memory_bytes: 2 * MIB,
            code_cache_bytes: MIB,
            verify_code: true,
            kernel: kernel.0.clone(),
            ..VmConfig::default()
        };
        // The disk stays for all machines that are made later.
        let disk = std::mem::ManuallyDrop::new(Scratch::new());
        fs::write(&disk.0, vec![0; 1 << 20]).expect("a disk");
        let mut drive = DriveOptions::new(&disk.0);
        drive.readonly = true;
        let many = VmConfig {
            hpet: true,
            generation_id: true,
            drives: vec![drive],
            devices: OptionalDevice::ALL.into(),
            ..few.clone()
        };
        // This too: it is the base of the difference.
        let base = std::mem::ManuallyDrop::new(Scratch::new());
        let first = snapshot(&few, &base);
        let file = Scratch::new();
        [first, snapshot(&many, &file), difference(&base)]
    })
}

fn consoles() -> Consoles {
    Consoles {
        serial: Box::new(io::sink()),
        debug: Box::new(io::sink()),
    }
}

/// Runs a machine on this thread for [`RUN`], or until its guest ends it.
fn run_for_a_moment(vm: &mut Vm, handle: &VmHandle) {
    thread::scope(|scope| {
        scope.spawn(|| {
            thread::sleep(RUN);
            handle.quit();
        });
        as_processor(|| vm.run());
    });
}

/// Starts a machine, lets it run, and writes a snapshot to the file.
fn snapshot(config: &VmConfig, file: &Scratch) -> Sound {
    let handle = VmHandle::new();
    let mut vm = Vm::build(config, consoles(), &handle).expect("a machine");
    run_for_a_moment(&mut vm, &handle);
    vm.write_snapshot(&file.0).expect("a snapshot");
    parts(file)
}

/// Restores a machine, lets it run, and writes what differs from the snapshot.
fn difference(base: &Scratch) -> Sound {
    let snapshot = SnapshotFile::open(&base.0).expect("a snapshot");
    let config = snapshot.description().config.clone();
    let handle = VmHandle::new();
    let mut vm = Vm::restored(snapshot, &config, consoles(), &handle).expect("a machine");
    run_for_a_moment(&mut vm, &handle);
    let file = Scratch::new();
    vm.write_difference(&file.0, &base.0).expect("a difference");
    parts(&file)
}

/// Reads the parts of a snapshot.
fn parts(file: &Scratch) -> Sound {
    let bytes = fs::read(&file.0).expect("the snapshot");
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let (offset, length) = (word(24) as usize, word(32) as usize);
    Sound {
        description: serde_json::from_slice(&bytes[offset..offset + length]).expect("JSON"),
        before: bytes[..offset].to_vec(),
    }
}

/// The file with this description, whose checksums are right.
fn sealed(before: &[u8], description: &[u8]) -> Vec<u8> {
    let mut bytes = before.to_vec();
    bytes[16..20].copy_from_slice(&SNAPSHOT_VERSION.to_le_bytes());
    bytes[20..24].copy_from_slice(&crc32fast::hash(description).to_le_bytes());
    bytes[24..32].copy_from_slice(&(before.len() as u64).to_le_bytes());
    bytes[32..40].copy_from_slice(&(description.len() as u64).to_le_bytes());
    let sum = crc32fast::hash(&bytes[..40]);
    bytes[40..44].copy_from_slice(&sum.to_le_bytes());
    bytes.extend(description);
    bytes
}

/// Makes the modifications that the input describes, and continues from the file.
///
/// # Panics
///
/// Panics if a machine does not end, or cannot be saved.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = input.byte();
    let number = usize::from(kind & 3).min(DIFFERENCE);
    let sound = &sound()[number];
    let mut description = sound.description.clone();
    let bytes = if kind & 0x80 == 0 {
        for _ in 0..MOST_EDITS {
            if input.is_empty() {
                break;
            }
            edit(&mut description, &mut input);
        }
        sealed(
            &sound.before,
            &serde_json::to_vec(&description).expect("JSON"),
        )
    } else {
        let text = serde_json::to_vec(&description).expect("JSON");
        damaged(sealed(&sound.before, &text), &mut input)
    };
    continue_from(&bytes, number == DIFFERENCE);
}

/// The file with modifications that its checksums do not know.
fn damaged(mut bytes: Vec<u8>, input: &mut Input) -> Vec<u8> {
    let description = bytes.len() - 256;
    while !input.is_empty() {
        let base = if input.byte() & 1 == 0 {
            0
        } else {
            description
        };
        let at = base + usize::from(input.byte()) % 256;
        bytes[at] ^= input.byte();
    }
    let length = bytes.len();
    bytes.truncate(length - usize::from(input.byte()));
    bytes
}

/// Restores a machine from the file. With `is_base`, the file is then the base of another snapshot.
fn continue_from(bytes: &[u8], is_base: bool) {
    let file = Scratch::new();
    fs::write(&file.0, bytes).expect("a file");
    let refused = |error: &dyn std::fmt::Display| {
        let line = error.to_string();
        assert!(!line.is_empty() && !line.contains('\n'), "no line: {line}");
    };
    let snapshot = match SnapshotFile::open(&file.0) {
        Ok(snapshot) => snapshot,
        Err(error) => return refused(&error),
    };
    if let Err(error) = snapshot.check_memory() {
        refused(&error);
    }
    let config = snapshot.description().config.clone();
    let handle = VmHandle::new();
    match Vm::restored(snapshot, &config, consoles(), &handle) {
        Ok(mut vm) => {
            run_for_a_moment(&mut vm, &handle);
            vm.save().expect("a machine that can be saved");
            let other = Scratch::new();
            if is_base && let Err(error) = vm.write_difference(&other.0, &file.0) {
                refused(&error);
            }
        }
        Err(error) => refused(&error),
    }
}

/// Makes one modification: usually of a number or a word in the machine's state.
fn edit(description: &mut Value, input: &mut Input) {
    let kind = input.byte();
    let part = match kind & 7 {
        0 => Some(description),
        2 => description.get_mut("bases"),
        3 => description.get_mut("memory"),
        _ => description.get_mut("state"),
    };
    let Some(part) = part else { return };
    let mut leaves = Vec::new();
    let mut groups = Vec::new();
    list(part, String::new(), &mut leaves, &mut groups);
    let chosen = match kind & 0x70 {
        0 => &groups,
        _ => &leaves,
    };
    if chosen.is_empty() {
        return;
    }
    let path = &chosen[usize::from(input.word()) % chosen.len()];
    let Some(value) = part.pointer_mut(path) else {
        return;
    };
    match value {
        Value::Object(fields) => {
            let name = fields
                .keys()
                .nth(usize::from(input.byte()) % fields.len().max(1));
            if let Some(name) = name.cloned() {
                fields.remove(&name);
            }
        }
        Value::Array(items) => match (input.byte() % 4, items.last().cloned()) {
            (0, _) => drop(items.pop()),
            (1, Some(last)) => items.push(last),
            (2, _) => items.clear(),
            _ => items.reverse(),
        },
        leaf => *leaf = other(leaf, input),
    }
}

/// Lists the paths of all values below this one: those that contain no others, and those that do.
fn list(value: &Value, path: String, leaves: &mut Vec<String>, groups: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                if !KEPT.contains(&name.as_str()) {
                    list(field, format!("{path}/{name}"), leaves, groups);
                }
            }
            groups.push(path);
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                list(item, format!("{path}/{index}"), leaves, groups);
            }
            groups.push(path);
        }
        _ => leaves.push(path),
    }
}

/// Another value in place of this one, usually of the same kind.
fn other(value: &Value, input: &mut Input) -> Value {
    let kind = input.byte();
    match value {
        Value::Bool(is_set) if kind < 0xf8 => Value::Bool(!is_set),
        Value::Number(number) if kind < 0xf8 => {
            let bit = input.byte() % 64;
            match kind % 8 {
                0 => 0.into(),
                1 => (u64::MAX >> [0, 32, 48, 56, 1, 33, 49, 57][usize::from(bit % 8)]).into(),
                2 => i64::MIN.into(),
                3 => (1_u64 << bit).into(),
                4 => number.as_u64().unwrap_or(0).wrapping_sub(1).into(),
                5 => number.as_u64().unwrap_or(0).wrapping_add(1).into(),
                6 => (number.as_u64().unwrap_or(0) ^ (1 << bit)).into(),
                _ => (input.qword() >> bit).into(),
            }
        }
        Value::Null => u64::from(input.byte()).into(),
        _ => match kind % 4 {
            0 => Value::Null,
            1 => Value::String("Real".into()),
            2 => u64::from(input.word()).into(),
            _ => Value::Array(Vec::new()),
        },
    }
}

/// Some modifications of each kind.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = vec![
        ("none".into(), Vec::new()),
        ("many-devices".into(), vec![1]),
        ("damaged".into(), vec![0x80, 0, 60, 1]),
        ("header".into(), vec![0x81, 0, 17, 1]),
    ];
    // Extreme numbers at places all over the machine's state.
    for place in 0..60_u16 {
        let [low, high] = (place * 523).to_le_bytes();
        for number in 0..8 {
            let edit = vec![(place & 1) as u8, 0x11, low, high, number, number * 8];
            seeds.push((format!("place-{place}-{number}"), edit));
        }
    }
    // Other bases, and other places in them.
    for place in 0..8 {
        for number in 0..8 {
            for part in [0x12, 0x13, 0x02] {
                let edit = vec![2, part, place, 0, number, number * 9];
                seeds.push((format!("base-{part:x}-{place}-{number}"), edit));
            }
        }
    }
    seeds
}
