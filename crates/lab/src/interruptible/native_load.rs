//! The loads of a guest on the host itself: the same scripts and programs, with the host's paths.

use super::host_folder::HostFolder;
use super::load::{
    DATABASE_SCRIPT, DATAGRAMS, DISK_BYTES, DISK_SCRIPT, Kind, Load, TRANSACTIONS_SCRIPT,
};
use std::fs;
use std::path::Path;
use std::process::Command;

/// Puts the program `load` into the folder, with what it needs for this number of events; `guests` is the folder that
/// `scripts/get-guests` has filled. `None` if something is missing or the host does not permit it.
pub fn prepare(load: &Load, guests: Option<&Path>, folder: &HostFolder, events: u64) -> Option<()> {
    let here = folder.path().to_str()?;
    match load.kind {
        Kind::Network => {
            let port = load.flood.port();
            let script = format!("#!/bin/sh\nexec {here}/datagrams {port} \"$1\" here\n");
            folder.add_program("datagrams", DATAGRAMS.wide)?;
            folder.add_program("load", script.as_bytes())
        }
        Kind::Disk => {
            // A file stands for the disk.
            let disk = fs::File::create(folder.file("disk")).ok()?;
            disk.set_len(DISK_BYTES).ok()?;
            let script = DISK_SCRIPT.replace("/dev/vda", &format!("{here}/disk"));
            folder.add_program("load", script.as_bytes())
        }
        Kind::Database => {
            let sqlite = guests?.join("sqlite-amd64");
            if !sqlite.join("sqlite3").is_file() {
                return None;
            }
            let with_paths = |script: &str| {
                script
                    .replace("/lab/sqlite", &sqlite.to_string_lossy())
                    .replace("/disk/db", &format!("{here}/db"))
                    .replace("/sql.", &format!("{here}/sql."))
            };
            folder.add_program("load", with_paths(DATABASE_SCRIPT).as_bytes())?;
            let transactions = with_paths(TRANSACTIONS_SCRIPT);
            folder.add_program("transactions", transactions.as_bytes())?;
            let each = (events / 2).to_string();
            let mut prepared = Command::new(folder.file("transactions"));
            let prepared = prepared.arg(each).output().ok()?;
            prepared.status.success().then_some(())
        }
    }
}
