//! The two files of a snapshot: one is Tollgate's snapshot with memory and devices, the other says
//! what was configured, so that requests about a restored machine know its devices by their names.

use std::fs;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use tollgate_disk::NewFile;
use tollgate_firecracker::Resources;
use tollgate_host_facts::file_words::{reading, writing};

/// The version of the file with the configuration.
pub const VERSION: u32 = 1;

/// The permissions of both files: they may hold the guest's secrets.
const MODE: u32 = 0o600;
/// The number of bytes of the memory file's header, which has a checksum of the rest's description.
const HEADER_BYTES: usize = 48;

/// The contents of the file with the configuration.
#[derive(Serialize, Deserialize)]
pub struct Saved {
    /// The version of this form.
    pub tollgate_firecracker_snapshot: u32,
    /// The header of the memory file that belongs to it, in hexadecimal.
    memory_header: String,
    /// What was configured.
    pub configuration: Resources,
}

/// Writes the file with the configuration for a memory file.
///
/// # Errors
/// One line.
pub fn write(path: &Path, memory: &Path, configuration: &Resources) -> Result<(), String> {
    let failed = |error: std::io::Error| {
        let why = writing(&error);
        format!("snapshot_path: cannot write '{}': {why}", path.display())
    };
    let saved = Saved {
        tollgate_firecracker_snapshot: VERSION,
        memory_header: header(memory)?,
        configuration: configuration.clone(),
    };
    let text = serde_json::to_vec_pretty(&saved).map_err(|error| failed(error.into()))?;
    let file = NewFile::create(path, MODE).map_err(failed)?;
    file.file().write_all(&text).map_err(failed)?;
    file.publish(true).map_err(failed)
}

/// Reads the file with the configuration.
///
/// # Errors
/// One line.
pub fn read(path: &Path) -> Result<Saved, String> {
    let name = path.display();
    let text = fs::read(path).map_err(|error| {
        let why = reading(&error);
        format!("snapshot_path: cannot read '{name}': {why}")
    })?;
    let saved: Saved = serde_json::from_slice(&text).map_err(|_| {
        format!(
            "snapshot_path: '{name}' is no snapshot of tollgate-firecracker (those of Firecracker itself cannot \
             be loaded)"
        )
    })?;
    match saved.tollgate_firecracker_snapshot {
        VERSION => Ok(saved),
        other => Err(format!(
            "snapshot_path: '{name}' has version {other}, expected {VERSION}"
        )),
    }
}

impl Saved {
    /// Checks that a memory file belongs to this one.
    ///
    /// # Errors
    /// One line.
    pub fn check_memory(&self, memory: &Path) -> Result<(), String> {
        match header(memory)? == self.memory_header {
            true => Ok(()),
            false => Err(format!(
                "mem_backend: '{}' belongs to another snapshot",
                memory.display()
            )),
        }
    }
}

fn header(memory: &Path) -> Result<String, String> {
    let read = || {
        let mut bytes = [0; HEADER_BYTES];
        std::os::unix::fs::FileExt::read_exact_at(&fs::File::open(memory)?, &mut bytes, 0)?;
        Ok(bytes)
    };
    let bytes = read().map_err(|error: std::io::Error| {
        let why = reading(&error);
        format!("mem_backend: cannot read '{}': {why}", memory.display())
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}
