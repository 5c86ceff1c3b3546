//! Memory of a guest that continues from a snapshot.

use std::fs::{self, File};
use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_memory::GuestMemory;
use tollgate_memory::ram::{PIECE_BYTES, SavedRun};
use tollgate_x86::PhysicalAddress;

/// Returns memory of the same size with the same contents, all of which are in a file until they
/// are written, as after the restore of a snapshot.
///
/// # Errors
///
/// The host refuses memory, or a file in its folder for temporary files.
pub fn restored(memory: &GuestMemory) -> io::Result<GuestMemory> {
    static FILES: AtomicU64 = AtomicU64::new(0);
    let number = FILES.fetch_add(1, Ordering::Relaxed);
    let name = format!("tollgate-restored-{}-{number}", std::process::id());
    let path = std::env::temp_dir().join(name);
    let mut options = File::options();
    let options = options.read(true).write(true).create_new(true);
    let mut file = options.open(&path)?;
    fs::remove_file(&path)?;
    let mut runs: Vec<SavedRun> = Vec::new();
    let mut bytes = [0; PIECE_BYTES as usize];
    let mut next = memory.next_piece(PhysicalAddress(0));
    while let Some(address) = next {
        next = memory.next_piece(PhysicalAddress(address.0 + PIECE_BYTES));
        memory.read_piece(address, &mut bytes)?;
        if bytes.iter().all(|&byte| byte == 0) {
            continue;
        }
        file.write_all(&bytes)?;
        runs.push(SavedRun {
            address: address.0,
            bytes: PIECE_BYTES,
            file: 0,
            file_offset: runs.len() as u64 * PIECE_BYTES,
        });
    }
    let mut restored = GuestMemory::new(memory.ram().size()).map_err(io::Error::other)?;
    restored.map_saved(vec![file], &runs)?;
    Ok(restored)
}
