//! Explains why the machine of `tollgate exec` cannot be built, in the words of the flags.

use std::path::PathBuf;

use tollgate_machine::boot::BootError;
use tollgate_machine::device_list::BackEndError;
use tollgate_machine::vm::BuildError;

use super::{ExecArguments, ShareArgument};
use crate::failure::Failure;
use crate::net::flag_of;

/// The failure, in the words of the flags of `tollgate exec`.
pub fn failure_of(error: &BuildError, arguments: &ExecArguments) -> Failure {
    Failure::usage(match error {
        BuildError::Boot(BootError::InitrdTooLarge { size, room }) => {
            let kib = |bytes: &u64| bytes.div_ceil(1 << 10);
            format!(
                "--memory: {} MiB are too little: the kernel leaves {} KiB, and the guest's first \
                 files take {} KiB",
                arguments.machine.memory >> 20,
                room >> 10,
                kib(size)
            )
        }
        BuildError::Boot(BootError::InitrdUnsupported { kernel }) => {
            format!("--kernel: {kernel} is not a Linux kernel")
        }
        BuildError::BackEnd(BackEndError::Port(error)) => {
            format!("the guest's streams: {}", error.why)
        }
        _ => format!("{}{error}", flag(error, arguments)),
    })
}

/// The flag that an error is about, to precede an error that does not name the flag itself.
fn flag(error: &BuildError, arguments: &ExecArguments) -> &'static str {
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
        _ => flag_of(error),
    }
}
