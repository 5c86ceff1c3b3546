//! `tollgate snapshot`: writes the state of a running machine to a file, and shows and checks such
//! files.

mod arguments;
mod fork;
pub mod separate;

use std::path::{Path, PathBuf};

use serde_json::json;
use tollgate_machine::snapshot::{Description, SnapshotFile};
use tollgate_machine::translations::StoredTranslations;

use arguments::{Action, CreateArguments, InfoArguments};
pub use arguments::{ResetArguments, SnapshotArguments};

use crate::cache::read_all;
use crate::cache::translations::{of_snapshot, open_of_snapshot};
use crate::control::client::{ask, exit_code_of, talk};
use crate::control::command::Name;
use crate::exit_code;
use crate::failure::Failure;
use crate::standard_output::print_and_end;

/// Runs `tollgate snapshot` and returns its exit code.
pub fn run(arguments: &SnapshotArguments) -> u8 {
    match &arguments.action {
        Action::Create(create) => self::create(create),
        Action::Fork(fork) => self::fork::run(fork),
        Action::Info(info) => match show(info) {
            Ok(text) => print_and_end(&text, exit_code::SUCCESS),
            Err(failure) => failure.report(),
        },
        Action::Check(check) => match check_all(&check.file) {
            Ok(text) => print_and_end(&text, exit_code::SUCCESS),
            Err(failure) => failure.report(),
        },
    }
}

fn create(arguments: &CreateArguments) -> u8 {
    // The machine may run in another folder.
    let name = |path: &Path| {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        path.into_os_string().into_string().ok()
    };
    let base = arguments.base.as_deref().map(name);
    let (Some(file), None | Some(Some(_))) = (name(&arguments.file), &base) else {
        return Failure::usage("the file's name is not UTF-8").report();
    };
    let request = json!({
        "command": Name::Snapshot,
        "file": file,
        "base": base.flatten(),
        "then": arguments.then,
    });
    match talk(&arguments.socket, &request) {
        Ok(answer) => exit_code_of(&answer),
        Err(failure) => failure.report(),
    }
}

/// Runs `tollgate reset` and returns its exit code.
pub fn reset(arguments: &ResetArguments) -> u8 {
    match ask(&arguments.socket, Name::Reset) {
        Ok(answer) => exit_code_of(&answer),
        Err(failure) => failure.report(),
    }
}

/// Opens a snapshot and checks its description.
///
/// # Errors
/// One line that says what is wrong.
pub fn open(path: &Path) -> Result<SnapshotFile, Failure> {
    SnapshotFile::open(path).map_err(|error| Failure::usage(error.to_string()))
}

fn show(arguments: &InfoArguments) -> Result<String, Failure> {
    let snapshot = open(&arguments.file)?;
    let description = snapshot.description();
    if arguments.json {
        let text = serde_json::to_string_pretty(&summary(&snapshot)).unwrap_or_default();
        return Ok(format!("{text}\n"));
    }
    let config = &description.config;
    let mut lines = vec![
        (
            "written by".to_owned(),
            format!("tollgate {}", description.program),
        ),
        (
            "written at".into(),
            format!("{} s after 1970", description.created),
        ),
        (
            "memory".into(),
            format!("{} MiB", config.memory_bytes >> 20),
        ),
        (
            "of it in the file".into(),
            format!("{} MiB", saved_bytes(description) >> 20),
        ),
        ("processor".into(), config.cpu.model.name().into()),
    ];
    match &config.firmware {
        Some(path) => lines.push(("firmware".into(), path.display().to_string())),
        None => lines.push(("kernel".into(), config.kernel.display().to_string())),
    }
    for base in &description.bases {
        let state = base.open().err().unwrap_or_else(|| "as it was".into());
        lines.push((format!("base {}", base.path.display()), state));
    }
    for disk in &description.disks {
        let state = disk.check().err().unwrap_or_else(|| "as it was".into());
        lines.push((format!("disk {}", disk.path.display()), state));
    }
    if let Some(translations) = Translations::of(&snapshot) {
        lines.push(("translations".into(), translations.state()));
    }
    let width = lines.iter().map(|line| line.0.len()).max().unwrap_or(0);
    let lines = lines
        .iter()
        .map(|(name, value)| format!("{name:width$}  {value}\n"));
    Ok(lines.collect())
}

/// How many bytes of RAM the snapshot's own file holds.
fn saved_bytes(description: &Description) -> u64 {
    let own = description.memory.iter().filter(|run| run.file == 0);
    let pieces: u64 = own.map(|run| run.pieces).sum();
    pieces * tollgate_machine::snapshot::PIECE_BYTES
}

/// The file with the translations of machines that continue from a snapshot.
struct Translations {
    path: PathBuf,
    bytes: u64,
    /// The translations, or why machines that are restored do not use them.
    opened: Result<StoredTranslations, String>,
}

impl Translations {
    /// `None` if there is no such file.
    fn of(snapshot: &SnapshotFile) -> Option<Self> {
        let opened =
            open_of_snapshot(&snapshot.description().config, snapshot.path()).transpose()?;
        let path = of_snapshot(snapshot.path());
        let bytes = path.symlink_metadata().map_or(0, |it| it.len());
        Some(Self {
            path,
            bytes,
            opened,
        })
    }

    /// Where they are, and whether they can be used.
    fn state(&self) -> String {
        let path = self.path.display();
        match &self.opened {
            Ok(_) => format!("{path}, {} MiB", self.bytes.div_ceil(1 << 20)),
            Err(why) => format!("{path}, which cannot be used: {why}"),
        }
    }
}

/// What `--json` prints: the description without checksums and the state of the devices.
fn summary(snapshot: &SnapshotFile) -> serde_json::Value {
    let description = snapshot.description();
    let translations = Translations::of(snapshot).map(|translations| {
        json!({
            "path": translations.path,
            "bytes": translations.bytes,
            "unusable": translations.opened.err(),
        })
    });
    json!({
        "program": description.program,
        "created": description.created,
        "memory_bytes": description.config.memory_bytes,
        "saved_bytes": saved_bytes(description),
        "features": description.features,
        "bases": description.bases,
        "disks": description.disks,
        "translations": translations,
        "config": description.config,
    })
}

fn check_all(path: &Path) -> Result<String, Failure> {
    let snapshot = open(path)?;
    let refused = |error: &dyn std::fmt::Display| Failure::usage(error.to_string());
    snapshot.check_memory().map_err(|error| refused(&error))?;
    for disk in &snapshot.description().disks {
        disk.check().map_err(|error| refused(&error))?;
    }
    let and_bases = match snapshot.description().bases.len() {
        0 => "",
        1 => " with its base",
        _ => " with its bases",
    };
    let translations = match Translations::of(&snapshot) {
        Some(translations) => checked(&translations),
        None => String::new(),
    };
    Ok(format!(
        "'{}' is whole{and_bases}, and its disks are as they were\n{translations}",
        path.display()
    ))
}

/// Reads all translations. Without them the snapshot can be restored, so nothing here is an error.
fn checked(translations: &Translations) -> String {
    let contents = match &translations.opened {
        Ok(stored) => read_all(stored),
        Err(why) => Err(why.clone()),
    };
    match contents {
        Ok(contents) => format!("its translations are whole: {contents}\n"),
        Err(why) => format!(
            "its translations in '{}' are not used, and machines that are restored are translated: {why}\n",
            translations.path.display()
        ),
    }
}
