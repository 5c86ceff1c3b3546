//! Why a machine cannot be built, with the flag that it is about.

use std::path::PathBuf;

use tollgate_machine::boot::BootError;
use tollgate_machine::config::{DriveOptions, IdeDrive, VmConfig};
use tollgate_machine::devices::list::BackEndError;
use tollgate_machine::vm::BuildError;

use crate::exec::{ExecArguments, ShareArgument};
use crate::failure::Failure;

/// In the words of `tollgate run`'s flags.
pub fn failure_of_run(error: &BuildError, config: &VmConfig) -> Failure {
    Failure::usage(format!("{}{error}", flag(error, config)))
}

/// In the words of `tollgate exec`'s.
pub fn failure_of_exec(error: &BuildError, arguments: &ExecArguments) -> Failure {
    Failure::usage(match error {
        BuildError::Boot(BootError::InitrdTooLarge { size, room }) => {
            let kib = |bytes: &u64| bytes.div_ceil(1 << 10);
            format!(
                "--memory: {} MiB are too little: the kernel leaves {} KiB, and the guest's first \
                 files have {} KiB",
                arguments.memory >> 20,
                room >> 10,
                kib(size)
            )
        }
        BuildError::Boot(BootError::InitrdUnsupported { kernel }) => {
            format!("--kernel: {kernel} is no Linux kernel")
        }
        BuildError::BackEnd(BackEndError::Port(error)) => {
            format!("the guest's streams: {}", error.why)
        }
        _ => format!("{}{error}", flag_of_exec(error, arguments)),
    })
}

/// What stands before an error that does not name its flag itself.
fn flag_of_exec(error: &BuildError, arguments: &ExecArguments) -> &'static str {
    match error {
        BuildError::BackEnd(BackEndError::Disk(_)) => "--image: ",
        BuildError::BackEnd(BackEndError::Share(error)) => {
            let is_it = |path: &PathBuf| *path == error.path;
            let is_share = |share: &ShareArgument| is_it(&share.directory);
            if arguments.root.as_ref().is_some_and(is_it) {
                "--root: "
            } else if arguments.rw.iter().any(is_it) {
                "--rw: "
            } else if arguments.share.iter().any(is_share) {
                "--share: "
            } else {
                ""
            }
        }
        BuildError::Boot(
            BootError::NotAKernel { .. }
            | BootError::Truncated { .. }
            | BootError::Unsupported { .. },
        ) => "--kernel: ",
        _ => network_flag(error),
    }
}

/// What stands before an error that does not name its flag itself.
fn flag(error: &BuildError, config: &VmConfig) -> &'static str {
    match error {
        BuildError::BackEnd(BackEndError::Share(_)) => "--share: ",
        BuildError::BackEnd(BackEndError::Disk(error)) => {
            let is_it = |disk: &DriveOptions| disk.path == error.path;
            let is_disc =
                |drive: &IdeDrive| matches!(drive, IdeDrive::CdRom(Some(disc)) if is_it(disc));
            if config.floppies.iter().flatten().any(is_it) {
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
        _ => network_flag(error),
    }
}

fn network_flag(error: &BuildError) -> &'static str {
    match error {
        // It begins with its name.
        BuildError::BackEnd(BackEndError::Network(error)) if error.what.starts_with("vsock") => {
            "--"
        }
        BuildError::BackEnd(BackEndError::Network(_)) => "--net: ",
        _ => "",
    }
}
