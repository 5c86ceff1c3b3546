//! What keeps a guest busy while interrupts arrive: a database, a flood of datagrams, a flood of
//! requests to a disk.

use super::about::{DATABASE, DISK, NETWORK};
use super::flood::Flood;
use crate::experiment::{LabError, Options};
use crate::linux_guest::{Extra, LinuxGuest, Program, System, kernel_folder};
use crate::nameless_file::NamelessFile;
use std::fs;
use std::path::Path;
use tollgate_machine::config::{
    DriveOptions, Format, MIB, NetworkKind, NetworkOptions, UserOptions, VmConfig,
};
use tollgate_network::Rules;

/// The program that receives datagrams from the host.
pub(super) const DATAGRAMS: Program = Program {
    name: "datagrams",
    narrow: include_bytes!(concat!(env!("OUT_DIR"), "/linux-datagrams.bin")),
    wide: include_bytes!(concat!(env!("OUT_DIR"), "/linux-datagrams-64.bin")),
};
pub(super) const DATABASE_SCRIPT: &str = include_str!("../../guests/load/database");
pub(super) const TRANSACTIONS_SCRIPT: &str = include_str!("../../guests/load/transactions");
pub(super) const DISK_SCRIPT: &str = include_str!("../../guests/load/disk");

/// The size of the guest's disk.
pub(super) const DISK_BYTES: u64 = 64 * MIB;
/// The guest's modules, in the order in which they are loaded. A module that has no file is built
/// into the kernel.
const MODULES: [&str; 14] = [
    "virtio_ring",
    "virtio",
    "virtio_pci_legacy_dev",
    "virtio_pci_modern_dev",
    "virtio_pci",
    "virtio_blk",
    "failover",
    "net_failover",
    "virtio_net",
    "crc16",
    "crc32c_generic",
    "mbcache",
    "jbd2",
    "ext4",
];

/// The kind of a load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Database,
    Network,
    Disk,
}

/// A load of a guest, with the host's part of it.
pub struct Load {
    pub(super) kind: Kind,
    disk: NamelessFile,
    pub(super) flood: Flood,
    /// Sectors that the guest's disk had read and written before the last run.
    sectors: [u64; 2],
}

impl Load {
    /// The load of a workload; `None` if the workload needs none.
    ///
    /// # Errors
    ///
    /// The host refuses a file or a socket.
    pub fn of(workload: &str) -> Result<Option<Self>, LabError> {
        let kind = match workload {
            DATABASE => Kind::Database,
            NETWORK => Kind::Network,
            DISK => Kind::Disk,
            _ => return Ok(None),
        };
        let refused = |error| LabError::Host(format!("the guest's disk: {error}"));
        Ok(Some(Self {
            kind,
            disk: NamelessFile::zeroed(DISK_BYTES).map_err(refused)?,
            flood: Flood::open()?,
            sectors: [0; 2],
        }))
    }

    /// The number of events in a run.
    pub fn events(&self, options: &Options) -> u64 {
        let (full, quick) = match self.kind {
            Kind::Database => (2_000, 200),
            Kind::Network => (100_000, 20_000),
            Kind::Disk => (20_000, 4_000),
        };
        if options.quick { quick } else { full }
    }

    /// Opens the guest's system, with the modules and programs that the load needs.
    ///
    /// # Errors
    ///
    /// [`LabError::NotRun`] if one of them is missing.
    pub fn system(
        &self,
        guest: &str,
        latency: Program,
        options: &Options,
    ) -> Result<System, LabError> {
        let programs = [latency, DATAGRAMS];
        System::open_with(guest, &programs, options, |folder, _| {
            self.extras(guest, folder)
        })
    }

    fn extras(&self, guest: &str, folder: &Path) -> Result<Vec<Extra>, LabError> {
        let load = match self.kind {
            Kind::Database => DATABASE_SCRIPT.to_owned(),
            Kind::Disk => DISK_SCRIPT.to_owned(),
            Kind::Network => {
                let port = self.flood.port();
                format!("#!/bin/sh\nexec /lab/datagrams {port} \"$1\"\n")
            }
        };
        let mut extras = vec![
            Extra::program("load", load),
            Extra::program("transactions", TRANSACTIONS_SCRIPT),
            Extra::folder("modules"),
        ];
        let modules = folder.join(format!("{}-modules", kernel_folder(guest)));
        if !modules.join("virtio_blk.ko").is_file() {
            return Err(missing("modules", &modules));
        }
        for name in MODULES {
            if let Ok(module) = fs::read(modules.join(format!("{name}.ko"))) {
                extras.push(Extra::program(&format!("modules/{name}.ko"), module));
            }
        }
        if self.kind == Kind::Database {
            let database = folder.join("sqlite-amd64");
            extras.push(Extra::folder("sqlite"));
            let files = fs::read_dir(&database).map_err(|_| missing("database", &database))?;
            for file in files.flatten() {
                let name = format!("sqlite/{}", file.file_name().to_string_lossy());
                let content = fs::read(file.path()).map_err(|_| missing("database", &database))?;
                extras.push(Extra::program(&name, content));
            }
        }
        Ok(extras)
    }

    /// The settings of the guest's machine, with the devices that the load needs.
    pub fn config(&self) -> VmConfig {
        let drive = DriveOptions {
            format: Some(Format::Raw),
            ..DriveOptions::new(self.disk.path())
        };
        // The guest asks a port of this host for the flood.
        let network = NetworkOptions::new(NetworkKind::User(UserOptions {
            rules: Rules::open(),
            ..UserOptions::default()
        }));
        VmConfig {
            drives: vec![drive],
            networks: vec![network],
            ..VmConfig::default()
        }
    }

    /// Prepares the guest's devices after its boot.
    ///
    /// # Errors
    ///
    /// The guest cannot use a device.
    pub fn prepare(&self, guest: &mut LinuxGuest) -> Result<(), LabError> {
        let names = MODULES.join(" ");
        guest.run(&format!(
            "for it in {names}; do it=/lab/modules/$it.ko; [ ! -e $it ] || insmod $it || break; \
             done; [ -b /dev/vda ]"
        ))?;
        guest.run(match self.kind {
            Kind::Disk => ":",
            Kind::Network => "ifconfig eth0 10.0.2.15 netmask 255.255.255.0 up",
            Kind::Database => {
                "mkdir /disk && mke2fs -F /dev/vda >/dev/null && mount -t ext4 /dev/vda /disk"
            }
        })?;
        Ok(())
    }

    /// Prepares a run with this many events.
    ///
    /// # Errors
    ///
    /// The guest does not do it.
    pub fn before(&mut self, guest: &mut LinuxGuest, events: u64) -> Result<(), LabError> {
        match self.kind {
            Kind::Database => {
                guest.run(&format!("sh /lab/transactions {}", events / 2))?;
            }
            Kind::Disk => self.sectors = sectors(guest)?,
            Kind::Network => {}
        }
        Ok(())
    }

    /// Runs `line` in the guest while the host does its part.
    ///
    /// # Errors
    ///
    /// Those of `run`.
    pub fn during<T>(&self, run: impl FnOnce() -> Result<T, LabError>) -> Result<T, LabError> {
        match self.kind {
            Kind::Network => self.flood.during(run),
            Kind::Database | Kind::Disk => run(),
        }
    }

    /// Checks that a run with this many events has done its work. The program that receives
    /// datagrams ends with the last of them.
    ///
    /// # Errors
    ///
    /// It has not.
    pub fn check(&self, guest: &mut LinuxGuest, events: u64) -> Result<(), LabError> {
        let not_done = |what: String| Err(LabError::WorkNotDone(what));
        match self.kind {
            Kind::Network => {}
            Kind::Disk => {
                let [read, written] = sectors(guest)?;
                let expected = events / 8 * 4 * 8;
                let done = [read - self.sectors[0], written - self.sectors[1]];
                if done != [expected; 2] {
                    return not_done(format!(
                        "the guest's disk read {} sectors and wrote {}, not {expected} each",
                        done[0], done[1]
                    ));
                }
            }
            Kind::Database => {
                let asked = guest.run(
                    "/lab/sqlite/ld.so --library-path /lab/sqlite /lab/sqlite/sqlite3 /disk/db \
                     'SELECT sum(count) FROM total; SELECT count(*) FROM item; PRAGMA integrity_check;'",
                )?;
                let lines: Vec<_> = asked.output.split_whitespace().collect();
                let count = (events / 2 * 2).to_string();
                if lines != [&*count, &*count, "ok"] {
                    return not_done(format!(
                        "the database has not {count} transactions: {}",
                        lines.join(" ")
                    ));
                }
            }
        }
        Ok(())
    }
}

/// The sectors that the guest's disk has read and written.
fn sectors(guest: &mut LinuxGuest) -> Result<[u64; 2], LabError> {
    let text = guest.run("cat /sys/block/vda/stat")?.output;
    let field = |index| text.split_whitespace().nth(index)?.parse().ok();
    match (field(2), field(6)) {
        (Some(read), Some(written)) => Ok([read, written]),
        _ => Err(LabError::WorkNotDone(format!("the disk's counts: {text}"))),
    }
}

fn missing(what: &str, folder: &Path) -> LabError {
    LabError::NotRun(format!(
        "no {what} for the guest, '{}': run scripts/get-guests --extra",
        folder.display()
    ))
}
