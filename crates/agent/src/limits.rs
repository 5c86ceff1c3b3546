//! Limits of what a guest uses, which its kernel enforces: the number of processes, and the bytes of
//! files that are kept in memory.
//!
//! They make a command fail in an orderly way. A command that acts as the guest's root can undo them, and
//! then reaches what holds it from outside: the size of the guest's memory, and its time.

use crate::protocol::{Limits, reached};
use crate::refusal::Refusal;
use crate::root::{UPPER, mount};
use crate::sys::{self, MS_NODEV, MS_NOEXEC, MS_NOSUID, MS_REMOUNT};
use std::fs::{self, File};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

/// Where the control groups are mounted for the time in which the command's group is made.
const GROUPS: &str = "/groups";
/// The name of the command's group.
const GROUP: &str = "command";
/// A file in memory, which tells whether the memory for files is full.
const PROBE: &str = "probe";
/// The bytes that are written to it: one page.
const PROBE_BYTES: usize = 4096;

/// The limits of this guest. Copies share everything.
#[derive(Clone, Default)]
pub struct Enforced {
    processes: Option<Arc<Group>>,
    probe: Option<Arc<File>>,
}

/// The control group of all commands.
struct Group {
    members: File,
    events: File,
}

impl Enforced {
    /// Enforces the limits. The agent's own threads are outside of them.
    ///
    /// # Errors
    /// One line says what the guest's kernel lacks.
    pub fn new(limits: Limits) -> Result<Self, Refusal> {
        let own = |error: io::Error| Refusal::own(format!("the limit on files: {error}"));
        let mut probe = None;
        if let Some(bytes) = limits.file_bytes {
            sys::mount_at("", UPPER, "", MS_REMOUNT, &format!("size={bytes}")).map_err(own)?;
            let path = Path::new(UPPER).join(PROBE);
            probe = Some(Arc::new(File::create(path).map_err(own)?));
        }
        let processes = limits.processes.map(Group::new).transpose()?;
        Ok(Self {
            processes: processes.map(Arc::new),
            probe,
        })
    }

    /// The way into the commands' control group, for a new process.
    pub fn members(&self) -> io::Result<Option<File>> {
        let group = self.processes.as_ref();
        group.map(|group| group.members.try_clone()).transpose()
    }

    /// How often a process could not be started.
    pub fn refused_processes(&self) -> u64 {
        let group = self.processes.as_ref();
        group.and_then(|group| group.refused()).unwrap_or(0)
    }

    /// The limits that were reached since that count was taken.
    pub fn reached_since(&self, refused_processes: u64) -> u8 {
        let mut bits = 0;
        if self.refused_processes() > refused_processes {
            bits |= reached::PROCESSES;
        }
        if let Some(probe) = &self.probe {
            let written = probe.write_all_at(&[0; PROBE_BYTES], 0);
            if written.is_err_and(|error| error.kind() == ErrorKind::StorageFull) {
                bits |= reached::FILES;
            }
            let _ = probe.set_len(0);
        }
        bits
    }
}

impl Group {
    fn new(most: u32) -> Result<Self, Refusal> {
        let lacks = |error: io::Error| {
            Refusal::own(format!(
                "the guest's kernel cannot limit processes ({error}); leave --processes out, or \
                 with --sandbox give --processes unlimited"
            ))
        };
        mount(
            "cgroup2",
            GROUPS,
            "cgroup2",
            MS_NOSUID | MS_NODEV | MS_NOEXEC,
            "",
        )?;
        let root = Path::new(GROUPS);
        let group = root.join(GROUP);
        fs::write(root.join("cgroup.subtree_control"), "+pids").map_err(lacks)?;
        fs::create_dir(&group).map_err(lacks)?;
        fs::write(group.join("pids.max"), most.to_string()).map_err(lacks)?;
        let members = File::options().write(true).open(group.join("cgroup.procs"));
        let members = members.map_err(lacks)?;
        let events = File::open(group.join("pids.events")).map_err(lacks)?;
        // The commands find no control groups, as without this limit.
        let _ = sys::unmount(GROUPS);
        Ok(Self { members, events })
    }

    /// The kernel's count of processes that were not started.
    fn refused(&self) -> Option<u64> {
        let mut events = &self.events;
        let mut text = String::new();
        events.seek(SeekFrom::Start(0)).ok()?;
        events.read_to_string(&mut text).ok()?;
        text.lines()
            .find_map(|line| line.strip_prefix("max "))?
            .parse()
            .ok()
    }
}

/// Moves the calling process into the group. May be called between fork and exec.
pub fn enter(mut members: &File) -> io::Result<()> {
    members.write_all(b"0")
}
