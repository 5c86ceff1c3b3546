//! Translations of guest code that are kept from one run to the next: a guest that does what an
//! earlier one did is not translated again.
//!
//! Whatever is wrong with the file, the guest is translated.

use std::cell::Cell;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tollgate_disk::NewFile;
use tollgate_host_facts::file_words::reading;
use tollgate_machine::config::VmConfig;
use tollgate_machine::translations::{self, Identity, Key, StoredTranslations};
use tollgate_machine::vm::Vm;

use super::folders;
use super::signing_key::signing_key;
use crate::failure::Failure;
use crate::files::open_private;

/// Why a file of translations is refused that has no signature of this user.
pub const NOT_SIGNED: &str = "it was not written by a run of this user on this host";
/// The end of the name of a file with translations.
pub const SUFFIX: &str = ".translations";
/// How many such files are kept.
const MOST_FILES: usize = 16;
/// The most bytes of a file.
const MOST_BYTES: usize = 96 << 20;
/// The permissions of a file.
const MODE: u32 = 0o600;
/// With fewer new translations the file is not written again.
const FEWEST: u64 = 256;
/// The part of all translations that new ones must be: one of this number.
const PART: u64 = 20;

/// How a guest begins. A guest that continues from a template runs little of the code with which it
/// has booted, and what it is lent it pays for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Begin {
    /// It boots a kernel.
    Cold,
    /// It continues from a template.
    Warm,
}

/// The folder of translations that `--translation-cache` names; `None` for `off`.
///
/// # Errors
/// One line: others could use the folder, or it cannot be made.
pub fn folder(flag: &Path) -> Result<Option<PathBuf>, Failure> {
    if flag == Path::new("off") {
        return Ok(None);
    }
    folders::made(flag.into()).map(Some).ok_or_else(|| {
        let folder = flag.display();
        Failure::usage(format!(
            "--translation-cache: '{folder}' must be a folder that only you can use (chmod 700)"
        ))
    })
}

/// The place of the translations for one kind of guest.
pub struct Translations {
    path: PathBuf,
    /// The snapshot that the guest continues from, if its translations are next to it.
    snapshot: Option<PathBuf>,
    identity: Identity,
    key: Key,
    /// Translations must pass the verifier, even if they are signed.
    verifies: bool,
    /// How many blocks the run translated that has written the file.
    translated_before: Cell<u64>,
}

impl Translations {
    /// The place in a folder for guests of a configuration. `guest` is a number that guests with
    /// other files do not have. `None` if the user has no folder for secrets that is safe.
    pub fn of(config: &VmConfig, guest: u64, begin: Begin, folder: &Path) -> Option<Self> {
        let begin = match begin {
            Begin::Cold => "cold",
            Begin::Warm => "warm",
        };
        let name = format!("{guest:016x}-{begin}{SUFFIX}");
        Self::at(folder.join(name), config)
    }

    /// The place next to a snapshot for machines that continue from it.
    pub fn next_to(snapshot: &Path, config: &VmConfig) -> Option<Self> {
        let place = Self::at(of_snapshot(snapshot), config)?;
        Some(Self {
            snapshot: Some(snapshot.into()),
            ..place
        })
    }

    fn at(path: PathBuf, config: &VmConfig) -> Option<Self> {
        Some(Self {
            path,
            snapshot: None,
            identity: Identity::of(config, folders::build_stamp()?),
            key: signing_key()?,
            verifies: config.verify_code,
            translated_before: Cell::new(0),
        })
    }

    /// Lets a machine that has not run yet use the translations, if there are any.
    pub fn lend(&self, vm: &mut Vm) {
        let Ok(file) = open_private(&self.path) else {
            return;
        };
        let key = (!self.verifies).then_some(self.key);
        match translations::open(&file, self.identity, key) {
            // To verify a file that is not signed takes longer than to translate.
            Ok(stored) if stored.is_signed() || self.verifies => {
                // The time of the last use.
                let _ = file.set_modified(SystemTime::now());
                self.translated_before.set(stored.index().translated);
                vm.use_translations(stored);
            }
            _ => {
                let _ = fs::remove_file(&self.path);
            }
        }
    }

    /// Keeps the translations of a machine that has ended, if many of them are new.
    pub fn keep(&self, vm: &Vm) {
        let counts = vm.translation_counts();
        let before = self.translated_before.get();
        // Some code is translated in each run, such as what a kernel patches while it boots.
        let is_usual = (before / 2..=before + before / 4).contains(&counts.translated);
        if counts.translated < FEWEST.max(counts.taken / PART) || is_usual {
            return;
        }
        // The snapshot of forks has no name any more.
        if (self.snapshot.as_ref()).is_some_and(|snapshot| !snapshot.exists()) {
            return;
        }
        let bytes = vm.store_translations(self.identity, Some(self.key));
        let Some(bytes) = bytes.filter(|bytes| bytes.len() <= MOST_BYTES) else {
            return;
        };
        // A snapshot's folder has other files of the user.
        if self.snapshot.is_none() {
            let folder = self.path.parent().unwrap_or(Path::new("/"));
            folders::remove_oldest(folder, SUFFIX, MOST_FILES - 1);
        }
        // Without the file the next guest is translated.
        let _ = write(&self.path, &bytes);
    }
}

/// The file next to a snapshot for the translations of machines that continue from it.
pub fn of_snapshot(snapshot: &Path) -> PathBuf {
    let mut name = snapshot.as_os_str().to_owned();
    name.push(SUFFIX);
    name.into()
}

/// Opens the translations next to a snapshot of a machine with this configuration. `None` if there
/// are none.
///
/// # Errors
/// One line says why they cannot be used.
pub fn open_of_snapshot(
    config: &VmConfig,
    snapshot: &Path,
) -> Result<Option<StoredTranslations>, String> {
    let file = match open_private(&of_snapshot(snapshot)) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(reading(&error)),
    };
    let (Some(build), Some(key)) = (folders::build_stamp(), signing_key()) else {
        return Err("you have no folder for the key that translations are signed with".into());
    };
    match translations::open(&file, Identity::of(config, build), Some(key)) {
        Ok(stored) if stored.is_signed() => Ok(Some(stored)),
        Ok(_) => Err(NOT_SIGNED.into()),
        Err(error) => Err(error.to_string()),
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = NewFile::create(path, MODE)?;
    file.file().write_all(bytes)?;
    file.publish(true)
}
