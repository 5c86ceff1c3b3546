//! Explains why the machine of `tollgate run` cannot be built, in the words of the flags.

use tollgate_machine::boot::BootError;
use tollgate_machine::config::{DriveOptions, IdeDrive, VmConfig};
use tollgate_machine::device_list::BackEndError;
use tollgate_machine::vm::BuildError;

use crate::failure::Failure;
use crate::net::flag_of;

/// The failure, in the words of the flags of `tollgate run`.
pub fn failure_of(error: &BuildError, config: &VmConfig) -> Failure {
    Failure::usage(format!("{}{error}", flag(error, config)))
}

/// The flag that an error is about, to precede an error that does not name the flag itself.
fn flag(error: &BuildError, config: &VmConfig) -> &'static str {
    match error {
        BuildError::BackEnd(BackEndError::Share(_)) => "--share: ",
        BuildError::BackEnd(BackEndError::Disk(error)) => {
            let is_it = |disk: &DriveOptions| disk.path == error.path;
            let is_disc =
                |drive: &IdeDrive| matches!(drive, IdeDrive::CdRom(Some(disc)) if is_it(disc));
            if config.flash.iter().any(is_it) {
                "--pflash: "
            } else if config.floppies.iter().flatten().any(is_it) {
                "--floppy: "
            } else if config.ide_drives.iter().flatten().any(is_disc) {
                "--cdrom: "
            } else {
                "--drive: "
            }
        }
        BuildError::Boot(
            BootError::NotAKernel { .. }
            | BootError::Truncated { .. }
            | BootError::Unsupported { .. },
        ) => "--kernel: ",
        BuildError::Boot(BootError::FirmwareSize { .. }) => "--bios: ",
        _ => flag_of(error),
    }
}
