//! Why a snapshot was not written, or cannot be used.

use super::version::SNAPSHOT_VERSION;
use crate::bus::StateError;
use std::fmt;
use std::io;
use std::path::PathBuf;
use tollgate_host_facts::file_words;

/// Why a snapshot was not written, or cannot be used. Each error prints as one line.
#[derive(Debug)]
pub enum SnapshotError {
    /// The file cannot be written.
    Write(PathBuf, io::Error),
    /// The file cannot be read.
    Read(PathBuf, io::Error),
    /// The file is no snapshot, or a damaged one.
    Damaged(PathBuf, String),
    /// The file is a snapshot of another version.
    Version(PathBuf, u32),
    /// A base of the snapshot, the second path, cannot be used for this reason.
    Base(PathBuf, PathBuf, String),
    /// The snapshot has this number of bases, and can have no difference.
    TooManyBases(PathBuf, usize),
    /// A difference would replace this file, which is its base.
    ReplacesBase(PathBuf),
    /// The machine is in a state that cannot be saved, or the file's state does not fit.
    State(StateError),
    /// A disk is not as it was.
    Disk(String),
    /// What the guest writes to this disk is in a temporary file, for which something is impossible.
    Temporary(PathBuf, &'static str),
    /// The contents of guest RAM are secret, and belong in no file.
    SecretMemory,
    /// The machine cannot be put back to a snapshot, for this reason.
    NoWayBack(&'static str),
    /// This host's processor lacks features that the guest was shown.
    Features(Vec<String>),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write(path, error) => write!(
                formatter,
                "cannot write the snapshot '{}': {}",
                path.display(),
                file_words::writing(error)
            ),
            Self::Read(path, error) => write!(
                formatter,
                "cannot read the snapshot '{}': {}",
                path.display(),
                file_words::cause(error)
            ),
            Self::Damaged(path, why) => {
                write!(
                    formatter,
                    "'{}' is no whole snapshot: {why}",
                    path.display()
                )
            }
            Self::Version(path, version) => write!(
                formatter,
                "the snapshot '{}' has version {version}; this program reads version {SNAPSHOT_VERSION}",
                path.display()
            ),
            Self::Base(path, base, why) => write!(
                formatter,
                "the snapshot '{}' needs its base '{}', which {why}",
                path.display(),
                base.display()
            ),
            Self::TooManyBases(path, count) => write!(
                formatter,
                "the snapshot '{}' has {count} bases, which is the most, so it cannot be a base too; \
                 write a whole snapshot (without --base)",
                path.display()
            ),
            Self::ReplacesBase(path) => write!(
                formatter,
                "the snapshot '{}' would replace its own base; give it another name",
                path.display()
            ),
            Self::State(error) => error.fmt(formatter),
            Self::Disk(why) => formatter.write_str(why),
            Self::Temporary(path, why) => write!(
                formatter,
                "the disk '{}' has snapshot=on: what the guest writes is in a temporary file, \
                 which {why}",
                path.display()
            ),
            Self::SecretMemory => formatter.write_str(
                "the machine has secret memory (--secret-memory), which is written to no snapshot",
            ),
            Self::NoWayBack(why) => formatter.write_str(why),
            Self::Features(names) => write!(
                formatter,
                "the guest was shown features that this host's processor lacks: {}",
                names.join(", ")
            ),
        }
    }
}

impl std::error::Error for SnapshotError {}

impl From<StateError> for SnapshotError {
    fn from(error: StateError) -> Self {
        Self::State(error)
    }
}
