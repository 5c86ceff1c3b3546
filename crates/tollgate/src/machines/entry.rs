//! The entries of machines in the run-time folder, each of which its machine's process keeps locked.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::name::Name;
use crate::control::run_time;
use crate::failure::Failure;
use crate::flags::PresenceArguments;

/// The end of an entry's name, after the name of its machine.
const SUFFIX: &str = ".machine";

/// How often a locked entry is tried, and how long it is waited for in between.
const MOST_TRIES: u32 = 50;
const RETRY: Duration = Duration::from_millis(2);

/// What a machine is, for people and programs. Nothing in this changes while it runs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Facts {
    /// The name, which no other running machine of the user has.
    pub name: String,
    /// The process that runs it.
    pub pid: u32,
    /// When it was started, in seconds since 1970.
    pub started: u64,
    /// Bytes of its RAM.
    pub memory_bytes: u64,
    /// The guest's command, or its kernel or firmware.
    pub what: String,
    /// Its control socket.
    pub socket: Option<PathBuf>,
    /// The file with its output, if it runs in the background.
    pub log: Option<PathBuf>,
}

impl Facts {
    /// The facts of a machine of this process that runs something and has this much RAM.
    pub fn new(what: String, memory_bytes: u64, flags: &PresenceArguments) -> Self {
        let pid = std::process::id();
        let name = flags.name.clone().unwrap_or(Name::of_process(pid));
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        Self {
            name: name.to_string(),
            pid,
            started: now.map_or(0, |now| now.as_secs()),
            memory_bytes,
            what,
            socket: None,
            log: super::detach::log(),
        }
    }
}

/// The entry of this process's machine. Dropping it removes it.
pub struct Entry {
    path: PathBuf,
    file: File,
    log: Option<PathBuf>,
}

impl Drop for Entry {
    fn drop(&mut self) {
        // While the lock is held no other machine has this name.
        if is_at(&self.file, &self.path) {
            let _ = fs::remove_file(&self.path);
        }
        if let Some(log) = &self.log {
            let _ = fs::remove_file(log);
        }
    }
}

/// Registers the machine of this process under its name.
///
/// # Errors
/// One line says that a machine has the name already, or why there is no entry for one that was asked for.
pub fn register(flags: &PresenceArguments, mut facts: Facts) -> Result<Option<Entry>, Failure> {
    let name = flags.name.as_ref();
    let Some(folder) = run_time::made() else {
        return match name {
            None => Ok(None),
            Some(_) => Err(Failure::host(format!(
                "--name: '{}' is not a folder that only you can use",
                run_time::folder().display()
            ))),
        };
    };
    facts.socket = Some(run_time::socket_in(&folder));
    match write(&folder, &facts) {
        Ok(Some(entry)) => Ok(Some(entry)),
        Ok(None) => Err(Failure::usage(format!(
            "--name: a machine with the name '{}' is running; 'tollgate ps' lists all",
            facts.name
        ))),
        Err(error) if name.is_some() => Err(Failure::host(format!("--name: {error}"))),
        // The user has not asked for this entry.
        Err(_) => Ok(None),
    }
}

/// Writes the entry; `None` if a process holds one of this name.
fn write(folder: &Path, facts: &Facts) -> io::Result<Option<Entry>> {
    let path = folder.join(format!("{}{SUFFIX}", facts.name));
    let mut tries = 0;
    loop {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)?;
        match file.try_lock() {
            Ok(()) => {}
            // Another process may be looking whether the holder of an entry still lives.
            Err(TryLockError::WouldBlock) if tries < MOST_TRIES => {
                tries += 1;
                thread::sleep(RETRY);
                continue;
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        // Another process may have removed the entry of a dead process before it was locked here.
        if !is_at(&file, &path) {
            continue;
        }
        file.set_len(0)?;
        (&file).write_all(serde_json::to_string(facts)?.as_bytes())?;
        let log = facts.log.clone();
        return Ok(Some(Entry { path, file, log }));
    }
}

/// Whether an open file is the one at a path.
fn is_at(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(there)) = (file.metadata(), fs::symlink_metadata(path)) else {
        return false;
    };
    (open.dev(), open.ino()) == (there.dev(), there.ino())
}

/// The machines that run, in the order of their names. What dead ones have left is removed.
pub fn all() -> Vec<Facts> {
    let folder = run_time::folder();
    if !run_time::is_ours(&folder) {
        return Vec::new();
    }
    let entries = fs::read_dir(&folder).into_iter().flatten().flatten();
    let mut found: Vec<Facts> = entries
        .filter(|entry| {
            entry
                .file_name()
                .as_encoded_bytes()
                .ends_with(SUFFIX.as_bytes())
        })
        .filter_map(|entry| read(&folder, &entry.path()))
        .collect();
    found.sort_by(|one, other| one.name.cmp(&other.name));
    found
}

/// The machine with a name, or of a process with this number.
///
/// # Errors
/// One line says that there is none.
pub fn find(name: &str) -> Result<Facts, Failure> {
    let is_it = |facts: &Facts| facts.name == name || facts.pid.to_string() == name;
    all().into_iter().find(is_it).ok_or_else(|| {
        Failure::usage(format!(
            "no machine with the name '{name}' is running; 'tollgate ps' lists all"
        ))
    })
}

/// Whether a machine's process still holds its entry.
pub fn is_running(facts: &Facts) -> bool {
    all().iter().any(|other| other == facts)
}

/// The facts of a running machine; removes what a dead one has left.
fn read(folder: &Path, path: &Path) -> Option<Facts> {
    let mut file = File::open(path).ok()?;
    let mut text = String::new();
    file.read_to_string(&mut text).ok()?;
    let facts = serde_json::from_str::<Facts>(&text).ok();
    // Others who look take such a lock too, and are not taken for the holder.
    match file.try_lock_shared() {
        Err(TryLockError::WouldBlock) => facts,
        Err(TryLockError::Error(_)) => None,
        Ok(()) => {
            // With this lock no other machine takes the name in the meantime.
            if file.try_lock().is_ok() && is_at(&file, path) {
                if let Some(facts) = facts {
                    remove_leavings(folder, &facts);
                }
                let _ = fs::remove_file(path);
            }
            None
        }
    }
}

/// Removes the files of a dead machine in the run-time folder, and no others: the facts come from a
/// file.
fn remove_leavings(folder: &Path, facts: &Facts) {
    let _ = fs::remove_file(folder.join(format!("{}.sock", facts.pid)));
    if let Some(log) = facts
        .log
        .as_ref()
        .filter(|log| log.parent() == Some(folder))
    {
        let _ = fs::remove_file(log);
    }
}
