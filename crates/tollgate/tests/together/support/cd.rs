//! Makes images of CD-ROMs that boot (El Torito 1.0).

use super::finish;
use super::folder::Folder;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SECTOR: usize = 2048;
/// How long a tool that makes an image may take.
const TOOL_PATIENCE: Duration = Duration::from_secs(120);

/// The sector with the text on a CD-ROM of [`bootable`].
pub const TEXT_SECTOR: usize = 24;

/// A disc without a file system that boots `code`, at most 2048 bytes, without emulation, and has a
/// text in a sector.
pub fn bootable(code: &[u8], text: &str) -> Vec<u8> {
    const CATALOG: usize = 20;
    const CODE: usize = 21;
    let mut disc = vec![0; 32 * SECTOR];
    let mut put = |sector: usize, offset: usize, bytes: &[u8]| {
        disc[sector * SECTOR + offset..][..bytes.len()].copy_from_slice(bytes);
    };
    put(17, 0, b"\0CD001\x01EL TORITO SPECIFICATION");
    put(17, 0x47, &(CATALOG as u32).to_le_bytes());
    // The validation entry, whose 16 words have the sum zero, and the entry that is booted.
    put(CATALOG, 0, &[1, 0, 0, 0]);
    put(CATALOG, 28, &[0xaa, 0x55, 0x55, 0xaa]);
    put(CATALOG, 32, &[0x88, 0, 0, 0, 0, 0, 4, 0]);
    put(CATALOG, 40, &(CODE as u32).to_le_bytes());
    put(CODE, 0, code);
    put(TEXT_SECTOR, 0, text.as_bytes());
    disc
}

/// A disc of ISO 9660 with the files of a folder. `options` are options of `xorriso -as mkisofs`
/// that say what it boots.
pub fn of_folder(folder: &Folder, files: &Path, options: &[&str]) -> PathBuf {
    let disc = folder.path("disc.iso");
    let mut command = Command::new("xorriso");
    command.args(["-as", "mkisofs", "-quiet", "-o"]).arg(&disc);
    made(command.args(options).arg(files));
    disc
}

/// Runs a tool and expects that it succeeds.
#[track_caller]
pub fn made(command: &mut Command) {
    let output = finish(command, TOOL_PATIENCE);
    assert!(
        output.status.success(),
        "{command:?} (scripts/install-dependencies installs it): {}",
        String::from_utf8_lossy(&output.stderr)
    );
}
