//! Making a machine from a snapshot.

use super::file::saved_run;
use super::put_back::{Media, Origin};
use super::{BlockContents, SnapshotError, SnapshotFile, piece_offset};
use crate::config::VmConfig;
use crate::cpu;
use crate::vm::{BuildError, Consoles, Vm};
use crate::vm_handle::VmHandle;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use tollgate_memory::GuestMemory;
use tollgate_memory::ram::{PIECE_BYTES, SavedRun};
use tollgate_x86::{CpuState, PhysicalAddress};

impl Vm {
    /// Makes a machine that continues where a snapshot was taken. `config` is the snapshot's own
    /// configuration, in which only what is outside the guest may differ: where ports, shares and
    /// networks lead, and settings that the guest cannot notice. Commands arrive through `handle`.
    ///
    /// # Errors
    /// [`BuildError`], which prints as one line for the user.
    pub fn restored(
        mut snapshot: SnapshotFile,
        config: &VmConfig,
        consoles: Consoles,
        handle: &VmHandle,
    ) -> Result<Self, BuildError> {
        let present = cpu::shown_features(&config.cpu);
        let shown = &snapshot.description().features;
        let missing = shown.iter().filter(|name| !present.contains(name));
        let missing: Vec<String> = missing.cloned().collect();
        if !missing.is_empty() {
            return Err(SnapshotError::Features(missing).into());
        }
        for disk in &snapshot.description().disks {
            disk.check().map_err(SnapshotError::Disk)?;
        }
        let ahead = std::mem::take(&mut snapshot.ahead);
        let bases = snapshot.open_bases()?;
        let (path, file, description) = snapshot.into_parts();
        let files: Vec<File> = [file].into_iter().chain(bases).collect();
        let media = Media::of(&description.config);
        let damaged = |error| SnapshotError::Read(path.clone(), error);
        let runs: Vec<SavedRun> = description.memory.iter().map(saved_run).collect();
        let mapped = files.iter().map(File::try_clone);
        let mapped = mapped.collect::<io::Result<Vec<_>>>().map_err(damaged)?;
        let mut vm = Self::assemble(config, consoles, handle, |memory| {
            memory
                .map_saved(mapped, &whole_pieces(memory, &runs))
                .and_then(|()| fill_rest(memory, &runs, &files))
                .and_then(|()| memory.copy_ahead(&ahead))
                .map_err(damaged)?;
            Ok(CpuState::at_reset())
        })?;
        fill_blocks(&mut vm.memory(), &description.blocks, &files, &path)?;
        vm.restore(description.state.clone())
            .map_err(SnapshotError::State)?;
        vm.origin = Some(Origin {
            path: path.clone(),
            state: description.state,
            disks: description.disks,
            media,
        });
        vm.pc.renew_generation_id();
        vm.follow_time_of_day();
        Ok(vm)
    }
}

/// The runs without a last piece that is longer than the rest of RAM, which cannot be mapped.
fn whole_pieces(memory: &GuestMemory, runs: &[SavedRun]) -> Vec<SavedRun> {
    let whole = runs.iter().map(|run| SavedRun {
        bytes: run.bytes - rest_of(memory, run),
        ..*run
    });
    whole.filter(|run| run.bytes != 0).collect()
}

/// The size of a run's last piece if RAM ends in the middle of it; otherwise 0.
fn rest_of(memory: &GuestMemory, run: &SavedRun) -> u64 {
    let last = run
        .address
        .saturating_add(run.bytes)
        .saturating_sub(PIECE_BYTES);
    match memory.ram().file_offset(last, PIECE_BYTES) {
        Some(_) => 0,
        None => PIECE_BYTES.min(run.bytes),
    }
}

/// Copies what cannot be mapped.
fn fill_rest(memory: &mut GuestMemory, runs: &[SavedRun], files: &[File]) -> io::Result<()> {
    for run in runs {
        let bytes = rest_of(memory, run);
        let address = (run.address + run.bytes) - bytes;
        let mut offset = run.file_offset + run.bytes - bytes;
        let mut page = [0; 4096];
        for at in (address..address + bytes).step_by(page.len()) {
            files[run.file].read_exact_at(&mut page, offset)?;
            offset += page.len() as u64;
            let is_ram = memory.write(PhysicalAddress(at), &page);
            if !is_ram && page != [0; 4096] {
                let why = "it has contents where the machine has no memory";
                return Err(io::Error::new(io::ErrorKind::InvalidData, why));
            }
        }
    }
    Ok(())
}

/// Fills firmware and display memory.
fn fill_blocks(
    memory: &mut GuestMemory,
    blocks: &[BlockContents],
    files: &[File],
    path: &Path,
) -> Result<(), SnapshotError> {
    let failed = |error| SnapshotError::Read(path.into(), error);
    let present = memory.block_sizes();
    let sizes = present.iter().map(|&(_, bytes)| bytes);
    if !sizes.eq(blocks.iter().map(|block| block.bytes)) {
        let why = "its display memory or firmware is that of another machine";
        return Err(SnapshotError::Damaged(path.into(), why.into()));
    }
    let mut bytes = vec![0; PIECE_BYTES as usize];
    for (&(id, size), block) in present.iter().zip(blocks) {
        for run in &block.runs {
            for piece in 0..run.pieces {
                (files[run.file].read_exact_at(&mut bytes, piece_offset(run.first + piece)))
                    .map_err(failed)?;
                let offset = run.address.saturating_add(piece * PIECE_BYTES);
                let length = size.saturating_sub(offset).min(PIECE_BYTES) as usize;
                memory
                    .write_block(id, offset, &bytes[..length])
                    .map_err(failed)?;
            }
        }
    }
    Ok(())
}
