//! Systems that are neither Linux nor DOS as guests of experiments, each with a prompt on the serial
//! port: MOROS, as `scripts/get-other-systems` builds it, and GNU Mach with a task of ours.

use crate::experiment::{Arm, Guest, LabError, Options, Stop};
use crate::linux_guest::{Ran, guests_folder};
use crate::nameless_file::NamelessFile;
use crate::running_guest::{RunningGuest, tail};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;
use tollgate_host_facts::file_words::reading;
use tollgate_machine::boot::firmware;
use tollgate_machine::config::{DriveOptions, Format, IdeDrive, MIB, VmConfig};

/// The description of MOROS.
pub const MOROS: Guest = Guest {
    name: "moros",
    what: "MOROS, a 64-bit system in Rust with a shell, from scripts/get-other-systems",
    needs_image: false,
};
/// The description of GNU Mach.
pub const GNU_MACH: Guest = Guest {
    name: "gnumach",
    what: "GNU Mach, a 32-bit microkernel with a task of ours, from scripts/get-guests --extra",
    needs_image: false,
};

/// The task of ours on GNU Mach, see `guests/mach-prompt.S`.
const MACH_PROMPT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/mach-prompt.bin"));
/// What GNU Mach does with the task's file: it passes the names of two ports, and starts it.
const MACH_SCRIPT: &str = "${device-port} ${host-port} $(task-create) $(task-resume)";

/// A system, without its files.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Moros,
    GnuMach,
}

impl Kind {
    fn of(guest: &str) -> Self {
        match guest == MOROS.name {
            true => Self::Moros,
            false => Self::GnuMach,
        }
    }

    const fn memory(self) -> u64 {
        match self {
            Self::Moros => 64 * MIB,
            Self::GnuMach => 128 * MIB,
        }
    }

    /// The file in the folder of guests, and the script that puts it there.
    const fn file(self) -> (&'static str, &'static str) {
        match self {
            Self::Moros => ("moros/disk.img", "scripts/get-other-systems"),
            Self::GnuMach => ("gnumach/gnumach", "scripts/get-guests --extra"),
        }
    }

    /// The end of the prompt. That of MOROS follows the sequence that ends its colour.
    const fn prompt(self) -> &'static str {
        match self {
            Self::Moros => ">\x1b[0m ",
            Self::GnuMach => "mach> ",
        }
    }

    /// A line to type, and the line of output that answers it.
    fn line(self, number: u64) -> (String, String) {
        match self {
            Self::Moros => {
                let sum = number + 70_000;
                (format!("calc \"{number} + 70000\""), sum.to_string())
            }
            Self::GnuMach => {
                let line = format!("memory {}", number % 5 + 1);
                let answer = format!("{line}: done");
                (line, answer)
            }
        }
    }
}

/// The files of a system.
pub struct OtherSystem {
    kind: Kind,
    /// The disk of MOROS, or the kernel of GNU Mach.
    file: PathBuf,
    /// The program that GNU Mach runs.
    program: Option<NamelessFile>,
}

impl OtherSystem {
    /// Opens the file in `--guest-image NAME=FILE`, or the one that the script has put into the
    /// folder of guests.
    ///
    /// # Errors
    ///
    /// [`LabError::NotRun`] if it is missing; [`LabError::Host`] if the host refuses a file.
    pub fn open(guest: &str, options: &Options) -> Result<Self, LabError> {
        let kind = Kind::of(guest);
        let (name, script) = kind.file();
        let file = match options.images.path(guest) {
            Some(file) => file.to_owned(),
            None => guests_folder()
                .map(|folder| folder.join(name))
                .filter(|file| file.is_file())
                .ok_or_else(|| LabError::NotRun(format!("no such system: run {script}")))?,
        };
        let program = match kind {
            Kind::Moros => None,
            Kind::GnuMach => Some(
                NamelessFile::with(MACH_PROMPT)
                    .map_err(|error| LabError::Host(format!("a program: {error}")))?,
            ),
        };
        Ok(Self {
            kind,
            file,
            program,
        })
    }

    /// `config`, changed to boot this system. What it writes to its disk is discarded.
    fn config(&self, config: &VmConfig) -> Result<VmConfig, LabError> {
        let config = VmConfig {
            memory_bytes: self.kind.memory(),
            ..config.clone()
        };
        if let Some(program) = &self.program {
            return Ok(VmConfig {
                kernel: self.file.clone(),
                append: "console=com0".into(),
                initrd: Some(format!("{} {MACH_SCRIPT}", program.path().display())),
                ..config
            });
        }
        let disk = DriveOptions {
            format: Some(Format::Raw),
            snapshot: true,
            ..DriveOptions::new(&self.file)
        };
        Ok(VmConfig {
            firmware: Some(firmware::find().map_err(LabError::NotRun)?),
            ide_drives: IdeDrive::place(vec![IdeDrive::Disk(disk, None)], None)
                .map_err(|error| LabError::Host(error.to_string()))?,
            ..config
        })
    }
}

/// Whether this module has the guest with this name.
pub fn has(guest: &str) -> bool {
    [MOROS.name, GNU_MACH.name].contains(&guest)
}

/// Checks the file that a user names for a guest.
///
/// # Errors
///
/// [`LabError::NotRun`] if it cannot be read.
pub fn check_image(guest: &str, path: &Path) -> Result<(), LabError> {
    File::open(path).map(drop).map_err(|error| {
        let (path, why) = (path.display(), reading(&error));
        LabError::NotRun(format!(
            "--guest-image {guest}: cannot read '{path}': {why}"
        ))
    })
}

/// A system whose prompt waits for lines.
pub struct OtherGuest {
    kind: Kind,
    guest: RunningGuest,
    booted: Ran,
}

impl OtherGuest {
    /// Boots the system on a machine with these settings, up to its prompt.
    ///
    /// # Errors
    ///
    /// The machine cannot be built, the guest does not show its prompt, or the experiment should
    /// stop.
    pub fn boot(system: &OtherSystem, config: &VmConfig, stop: &Stop) -> Result<Self, LabError> {
        let mut guest = RunningGuest::start(system.config(config)?, stop, || Ok(()));
        let begun = Instant::now();
        let output = prompt(&mut guest, system.kind)?;
        let booted = Ran {
            output,
            elapsed: begun.elapsed(),
            reading: guest.reading()?,
        };
        Ok(Self {
            kind: system.kind,
            guest,
            booted,
        })
    }

    /// Sets the knobs of an arm, and waits until they are set.
    ///
    /// # Errors
    ///
    /// The machine does not respond.
    pub fn turn(&self, arm: &Arm) -> Result<(), LabError> {
        self.guest.turn(arm)
    }

    /// The costs of the boot from the start to the prompt.
    pub const fn booted(&self) -> &Ran {
        &self.booted
    }

    /// Types this number of lines at the prompt, one after the other, and checks each answer.
    ///
    /// # Errors
    ///
    /// An answer is wrong, the guest ends or takes too long, or the experiment should stop.
    pub fn lines(&mut self, count: u64) -> Result<Ran, LabError> {
        self.guest.reset_ledger()?;
        let begun = Instant::now();
        let mut output = String::new();
        for number in 0..count {
            let (line, answer) = self.kind.line(number);
            self.guest.type_text(&format!("{line}\r"))?;
            output = prompt(&mut self.guest, self.kind)?;
            // An echo of the typed line is not the answer: MOROS puts sequences into it.
            if !output.lines().any(|it| it.trim_end() == answer) {
                let shown = tail(&output);
                return Err(LabError::WorkNotDone(format!(
                    "the guest does not answer '{answer}': {shown}"
                )));
            }
        }
        Ok(Ran {
            output,
            elapsed: begun.elapsed(),
            reading: self.guest.reading()?,
        })
    }
}

/// Waits for the prompt; returns the output up to its end.
fn prompt(guest: &mut RunningGuest, kind: Kind) -> Result<String, LabError> {
    let prompt = kind.prompt();
    let (output, _) = guest.wait_for(|text| Some(text.find(prompt)? + prompt.len()))?;
    Ok(output)
}
