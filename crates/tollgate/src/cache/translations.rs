//! Translations of guest code that are kept from one run to the next: a guest that does what an
//! earlier one did is not translated again.
//!
//! Whatever is wrong with the file, the guest is translated.

use std::cell::Cell;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use tollgate_disk::NewFile;
use tollgate_machine::config::VmConfig;
use tollgate_machine::translations::{self, Identity, Key};
use tollgate_machine::vm::Vm;

use super::folders;
use super::signing_key::signing_key;
use crate::failure::Failure;
use crate::files::open_private;

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
        Some(Self {
            path: folder.join(name),
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
        let bytes = vm.store_translations(self.identity, Some(self.key));
        let Some(bytes) = bytes.filter(|bytes| bytes.len() <= MOST_BYTES) else {
            return;
        };
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        folders::remove_oldest(folder, SUFFIX, MOST_FILES - 1);
        // Without the file the next guest is translated.
        let _ = write(&self.path, &bytes);
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let file = NewFile::create(path, MODE)?;
    file.file().write_all(bytes)?;
    file.publish(true)
}
