//! Translations of guest code in a file, so that later machines need not make them again.

use crate::config::VmConfig;
use crate::cpu;
use crate::knobs::Settings;
use crate::vm::Vm;
use memmap2::Mmap;
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
pub use tollgate_engine::stored::StoredTranslations;
use tollgate_engine::stored::file::Unusable;
pub use tollgate_engine::stored::key::Key;

/// Everything that translations depend on in addition to the guest's code, as one number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Identity(u64);

impl Identity {
    /// The identity of machines with this configuration, run by the program that `build` stands
    /// for: no two builds may have the same value.
    pub fn of(config: &VmConfig, build: u64) -> Self {
        let mut hasher = DefaultHasher::new();
        (env!("CARGO_PKG_VERSION"), build).hash(&mut hasher);
        cpu::shown_features(&config.cpu).hash(&mut hasher);
        format!("{:?}", config.cpu.model).hash(&mut hasher);
        format!("{:?}", config.register_map).hash(&mut hasher);
        Vec::from_iter(Settings::of(config).names()).hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Why the translations in a file cannot be used.
#[derive(Debug)]
pub enum TranslationsError {
    /// The file cannot be read.
    Read(io::Error),
    /// Its contents cannot be used.
    Unusable(Unusable),
}

impl std::fmt::Display for TranslationsError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Read(error) => write!(formatter, "{error}"),
            Self::Unusable(why) => write!(formatter, "{why}"),
        }
    }
}

impl std::error::Error for TranslationsError {}

/// The contents of a file.
struct Mapped(Mmap);

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// Opens the translations in a file, which no other user may be able to change. They are read when
/// they are needed. Without the `key` that has signed them, they are verified first.
///
/// # Errors
/// [`TranslationsError`]: the file cannot be read, or was made for other machines.
pub fn open(
    file: &File,
    identity: Identity,
    key: Option<Key>,
) -> Result<StoredTranslations, TranslationsError> {
    // SAFETY: such a file is written under another name and renamed when it is whole, and only this
    // user can open it. So it is neither changed nor shortened while it is mapped.
    let map = unsafe { Mmap::map(file) }.map_err(TranslationsError::Read)?;
    let bytes = Box::new(Mapped(map));
    StoredTranslations::open(bytes, identity.0, key).map_err(TranslationsError::Unusable)
}

/// Opens the translations in a file for whatever machines they were made, to look at them.
///
/// # Errors
/// [`TranslationsError`]: the file cannot be read, or is damaged.
pub fn open_any(file: &File, key: Option<Key>) -> Result<StoredTranslations, TranslationsError> {
    let identity = StoredTranslations::identity_in(file).map_err(TranslationsError::Read)?;
    open(file, Identity(identity), key)
}

/// How many translations a machine has made, and how many it has taken from a file.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct TranslationCounts {
    /// Blocks that were translated.
    pub translated: u64,
    /// Blocks that were taken from a file.
    pub taken: u64,
}

impl Vm {
    /// Takes translations from `stored` from now on, where the guest's code is the same. To be
    /// called before [`Vm::run`]; returns false if it is too late.
    pub fn use_translations(&mut self, stored: StoredTranslations) -> bool {
        self.vcpu.use_stored_translations(stored)
    }

    /// Describes the translations for later machines, with what was not taken of those that this
    /// machine uses. `None` if there is nothing that could be used: a knob was turned, or too many
    /// were stored before.
    pub fn store_translations(&self, identity: Identity, key: Option<Key>) -> Option<Vec<u8>> {
        match self.knobs_turned {
            true => None,
            false => self.vcpu.store_translations(identity.0, key),
        }
    }

    /// How many translations there were.
    pub fn translation_counts(&self) -> TranslationCounts {
        let counts = self.vcpu.counts().engine;
        TranslationCounts {
            translated: counts.translations,
            taken: counts.brought,
        }
    }
}
