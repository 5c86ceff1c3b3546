//! A Debian with databases: a kernel and shell of scripts/get-guests, the disk of
//! scripts/get-database, and a swap disk.

use super::work::{Printed, table};
use super::workloads::{AMD64, Database, Residence, Task};
use crate::experiment::{Arm, GuestImages, LabError, Options, Stop};
use crate::linux_guest::{self, Extra, LinuxGuest, Ran, System, guests_folder};
use crate::nameless_file::NamelessFile;
use std::fs;
use std::path::{Path, PathBuf};
use tollgate_machine::config::{Cache, DriveOptions, MemoryBackingChoice, VmConfig};

/// The scripts in the guest.
const SCRIPTS: [(&str, &str); 4] = [
    ("setup", include_str!("../../../guests/database/setup")),
    ("run", include_str!("../../../guests/database/run")),
    (
        "postgres",
        include_str!("../../../guests/database/postgres"),
    ),
    ("sqlite", include_str!("../../../guests/database/sqlite")),
];
/// The size of the guest's RAM if it should not page.
const LARGE_MEMORY: u64 = 512 << 20;
/// The size of the swap disk.
const SWAP: u64 = 512 << 20;

/// A booted guest with its databases.
pub struct DatabaseGuest {
    linux: LinuxGuest,
    task: Task,
    /// The file of the swap disk.
    _swap: NamelessFile,
}

/// The result of one action.
pub struct Acted {
    /// The costs of the action.
    pub ran: Ran,
    /// The guest's output.
    pub printed: Printed,
}

/// Whether instructions are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Counting {
    /// The guest runs as fast as it can.
    Off,
    /// All instructions are counted, which slows the guest down.
    Instructions,
}

impl DatabaseGuest {
    /// Boots the guest, and makes tables with `held` rows of each writer.
    ///
    /// # Errors
    ///
    /// It is missing, does not start, or its tables are not as expected.
    pub fn boot(
        guest: &str,
        task: Task,
        held: u64,
        counting: Counting,
        options: &Options,
        stop: &Stop,
    ) -> Result<Self, LabError> {
        let folder = folder_of(guest, options)?;
        let disk = disk_in(&folder, guest);
        if !disk.is_file() {
            return Err(LabError::NotRun(
                "no disk with a database: run scripts/get-database".into(),
            ));
        }
        let Memory { bytes, taken } = Memory::of(guest, task);
        let system = open_system(guest, &folder, options)?.with_memory(bytes);
        let swap = NamelessFile::zeroed(SWAP)
            .map_err(|error| LabError::Host(format!("a swap disk: {error}")))?;
        let config = VmConfig {
            drives: vec![
                DriveOptions {
                    snapshot: true,
                    ..DriveOptions::new(disk)
                },
                DriveOptions {
                    cache: Cache::Unsafe,
                    ..DriveOptions::new(swap.path())
                },
            ],
            memory_backing: match task.residence {
                Residence::Usual => MemoryBackingChoice::Anonymous,
                Residence::Resident => MemoryBackingChoice::Resident,
                Residence::Pageable => MemoryBackingChoice::Pageable,
            },
            count_instructions: counting == Counting::Instructions,
            ..VmConfig::default()
        };
        let mut booted = Self {
            linux: LinuxGuest::boot(&system, &config, stop)?,
            task,
            _swap: swap,
        };
        booted
            .linux
            .run(&format!("sh /lab/database/setup {taken}"))?;
        booted.act("prepare", held)?;
        let check = booted.act("check", held)?;
        check.printed.check(&[("work".into(), table(held))])?;
        booted.act("copy", held)?;
        Ok(booted)
    }

    /// Sets the knobs of an arm.
    ///
    /// # Errors
    ///
    /// The machine does not respond.
    pub fn turn(&self, arm: &Arm) -> Result<(), LabError> {
        self.linux.turn(arm)
    }

    /// Runs an action of the database's script.
    ///
    /// # Errors
    ///
    /// It fails, or the guest ends.
    pub fn act(&mut self, action: &str, rows: u64) -> Result<Acted, LabError> {
        let database = self.task.database.name();
        let line = format!("sh /lab/database/run {database} {action} {rows}");
        let ran = self.linux.run(&line)?;
        let printed = Printed::read(&ran.output);
        Ok(Acted { ran, printed })
    }
}

/// How much memory a guest has.
struct Memory {
    /// The size of its RAM.
    bytes: u64,
    /// The MiB that are taken from it at the start: the kernel does not start with less RAM.
    taken: u64,
}

impl Memory {
    /// As little as the task can run in, if it should page: SQLite needs less than PostgreSQL.
    fn of(guest: &str, task: Task) -> Self {
        let is_wide = guest == AMD64.name;
        match (task.action.pages(), task.database, is_wide) {
            (false, ..) => Self {
                bytes: LARGE_MEMORY,
                taken: 0,
            },
            (true, Database::Postgres, true) => Self {
                bytes: 88 << 20,
                taken: 0,
            },
            (true, Database::Postgres, false) => Self {
                bytes: 64 << 20,
                taken: 0,
            },
            (true, Database::Sqlite, true) => Self {
                bytes: 88 << 20,
                taken: 16,
            },
            (true, Database::Sqlite, false) => Self {
                bytes: 64 << 20,
                taken: 26,
            },
        }
    }
}

/// The Linux guest with the kernel and the shell.
fn linux(guest: &str) -> &'static str {
    match guest == AMD64.name {
        true => linux_guest::AMD64.name,
        false => linux_guest::I686.name,
    }
}

/// The folder with the guest's files.
fn folder_of(guest: &str, options: &Options) -> Result<PathBuf, LabError> {
    let given = options.images.path(guest).map(Path::to_owned);
    given.or_else(guests_folder).ok_or_else(|| {
        LabError::NotRun("no such system: run scripts/get-guests and scripts/get-database".into())
    })
}

fn disk_in(folder: &Path, guest: &str) -> PathBuf {
    folder.join(guest).join("disk.img")
}

/// The kernel with a shell, the scripts, and the modules for its disks.
fn open_system(guest: &str, folder: &Path, options: &Options) -> Result<System, LabError> {
    let linux = linux(guest);
    let options = Options {
        images: GuestImages::of([(linux.to_owned(), folder.to_owned())]),
        ..options.clone()
    };
    System::open_with(linux, &[], &options, |folder, is_wide| {
        let modules = folder.join(match is_wide {
            true => "debian-amd64-modules",
            false => "debian-686-modules",
        });
        let mut extras = vec![Extra::folder("database"), Extra::folder("modules")];
        let scripts = SCRIPTS.map(|(name, text)| Extra::program(&format!("database/{name}"), text));
        extras.extend(scripts);
        let entries = fs::read_dir(&modules).map_err(|error| {
            LabError::NotRun(format!(
                "no modules of the guest's kernel, '{}': {error}; run scripts/get-guests",
                modules.display()
            ))
        })?;
        for entry in entries.flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.ends_with(".ko") {
                let content = fs::read(entry.path())
                    .map_err(|error| LabError::Host(format!("a module, {name}: {error}")))?;
                extras.push(Extra::program(&format!("modules/{name}"), content));
            }
        }
        Ok(extras)
    })
}

/// Checks the folder that `--guest-image` names for a guest.
///
/// # Errors
///
/// [`LabError::NotRun`] if a file is missing.
pub fn check_folder(guest: &str, folder: &Path) -> Result<(), LabError> {
    linux_guest::check_folder(linux(guest), folder)?;
    let disk = disk_in(folder, guest);
    fs::File::open(&disk).map(drop).map_err(|error| {
        LabError::NotRun(format!(
            "--guest-image {guest}: cannot read '{}': {error}",
            disk.display()
        ))
    })
}
