//! Putting a restored machine back to its snapshot, while its process goes on.

use super::{DiskState, SnapshotError, disks};
use crate::config::{DriveOptions, IdeDrive, VmConfig};
use crate::saved::MachineState;
use crate::vm::Vm;
use std::path::PathBuf;

/// The snapshot that a machine was restored from.
pub(crate) struct Origin {
    pub(super) path: PathBuf,
    pub(super) state: MachineState,
    pub(super) disks: Vec<DiskState>,
    pub(super) media: Media,
}

/// What is in the drives whose media can be changed.
#[derive(PartialEq, Eq)]
pub(super) struct Media {
    floppies: Vec<Option<DriveOptions>>,
    ide: Vec<Option<IdeDrive>>,
}

impl Media {
    pub(super) fn of(config: &VmConfig) -> Self {
        Self {
            floppies: config.floppies.clone(),
            ide: config.ide_drives.to_vec(),
        }
    }
}

impl Vm {
    /// Puts the machine back to the state of its snapshot, which it was restored from. Only pages
    /// that were written since are copied. Knobs, statistics and the network's host side stay as
    /// they are. Must not be called while [`Vm::run`] runs.
    ///
    /// # Errors
    /// [`SnapshotError`]: the machine was not restored, has written to a disk since, or has another
    /// medium in a drive, and continues as it is; or the snapshot cannot be read any more, and the
    /// machine must end.
    pub fn put_back(&mut self) -> Result<(), SnapshotError> {
        let Some(origin) = self.origin.take() else {
            let why = "the machine was not restored from a snapshot ('tollgate run --restore')";
            return Err(SnapshotError::NoWayBack(why));
        };
        let result = self.put_back_to(&origin);
        self.origin = Some(origin);
        result
    }

    fn put_back_to(&mut self, origin: &Origin) -> Result<(), SnapshotError> {
        if self.config().firmware.is_some() {
            // Firmware moves memory of the machine, such as its own, over RAM and away again.
            let why = "a machine that starts from firmware cannot be put back; restore it again";
            return Err(SnapshotError::NoWayBack(why));
        }
        if self.memory().ram().is_secret() {
            let why = "a machine with secret memory cannot be put back; restore it again";
            return Err(SnapshotError::NoWayBack(why));
        }
        if let Some(disk) = disks::temporary(self.config()) {
            let why = "cannot be put back; restore the machine again";
            return Err(SnapshotError::Temporary(disk.into(), why));
        }
        if Media::of(self.config()) != origin.media {
            let why = "a drive has another medium than the snapshot's machine";
            return Err(SnapshotError::NoWayBack(why));
        }
        // What the devices' threads still do belongs to the state that is left.
        self.pc.finish_work().map_err(SnapshotError::State)?;
        for disk in &origin.disks {
            disk.check().map_err(SnapshotError::Disk)?;
        }
        let failed = |error| SnapshotError::Read(origin.path.clone(), error);
        let mut memory = self.memory();
        memory.put_back().map_err(failed)?;
        self.restore(origin.state.clone())
            .map_err(SnapshotError::State)?;
        self.follow_time_of_day();
        Ok(())
    }
}
