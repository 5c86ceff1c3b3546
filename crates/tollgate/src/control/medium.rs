//! `tollgate medium`: changes the disk in a drive of a running machine.

use std::path::PathBuf;

use clap::Args;
use serde_json::json;
use tollgate_machine::config::DriveOptions;

use super::client::{exit_code_of, talk};
use super::command::Name;
use crate::failure::Failure;
use crate::floppy;

/// The form of a medium, for messages.
const FORM: &str = "FILE[,readonly=on|off][,snapshot=on|off][,backing=any|same-dir|none]";

/// The arguments of `tollgate medium`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 the machine did not do it, 2 nothing answers at PATH.
Examples:
  The second disk of an installation:
    tollgate medium vm.sock a disk2.img
  One that the guest cannot write:
    tollgate medium vm.sock a disk2.img,readonly=on
  An empty drive:
    tollgate medium vm.sock a --eject
  Another CD-ROM, though the guest uses the one that is there:
    tollgate medium vm.sock d disc.iso --force")]
pub struct MediumArguments {
    /// The path given to tollgate run --control
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,

    /// The drive: a or b, the floppy drives; d, the first one for CD-ROMs; e, f, g
    #[arg(value_name = "DRIVE")]
    pub drive: String,

    /// The image that is put in, as for --floppy or --cdrom
    #[arg(value_name = "MEDIUM", value_parser = parse, required_unless_present = "eject")]
    pub medium: Option<DriveOptions>,

    /// Take out what is in the drive
    #[arg(long, conflicts_with = "medium")]
    pub eject: bool,

    /// Also if the guest has locked the drive. Without it the guest is asked to open it
    #[arg(long)]
    pub force: bool,
}

fn parse(text: &str) -> Result<DriveOptions, String> {
    floppy::medium(text, FORM)
}

/// Runs `tollgate medium` and returns its exit code.
pub fn run(arguments: &MediumArguments) -> u8 {
    let mut request = json!({
        "command": Name::Medium,
        "drive": arguments.drive,
        "force": arguments.force,
    });
    if let Some(medium) = &arguments.medium {
        // The machine may run in another folder, so the path is made absolute.
        let path = std::path::absolute(&medium.path).unwrap_or_else(|_| medium.path.clone());
        let Some(path) = path.to_str() else {
            return Failure::usage("the file's name is not UTF-8").report();
        };
        request["file"] = json!(path);
        request["readonly"] = json!(medium.readonly);
        request["snapshot"] = json!(medium.snapshot);
        request["backing"] = json!(medium.backing);
    }
    match talk(&arguments.socket, &request) {
        Ok(answer) => exit_code_of(&answer),
        Err(failure) => failure.report(),
    }
}
