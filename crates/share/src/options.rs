//! What a share is.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// A directory of the host that a guest can mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShareOptions {
    /// The directory.
    pub path: PathBuf,
    /// The name by which the guest mounts it; see [`ShareOptions::is_tag`].
    pub tag: String,
    /// The guest cannot change anything.
    pub readonly: bool,
    /// Seconds for which the guest may believe what it knows of names and attributes.
    pub cache_seconds: u32,
    /// Files belong to whom they belong on the host: those of the server's user are not root's.
    pub keeps_owners: bool,
    /// Files are read without being opened, if the share is read-only and the
    /// guest's kernel can do that. Then the host's refusal to let one be read comes with the first
    /// read, and the guest must mount it read-only to have writers refused when they open one.
    pub reads_unopened: bool,
    /// Directories are read without being opened, if the guest's kernel can do that. It keeps what it
    /// has read until the directory's time of change is another one, and then learns of the files in
    /// it no more than their names: good where what it knows of names holds for long.
    pub lists_unopened: bool,
    /// The guest sees no extended attributes. Its kernel learns that from the first request and sends
    /// no further ones.
    pub hides_attributes: bool,
}

impl ShareOptions {
    /// Bytes of a tag at most (virtio 1.2, 5.11.4).
    pub const MAX_TAG_BYTES: usize = 36;
    /// Seconds for which the guest's cache holds unless it is told otherwise.
    pub const DEFAULT_CACHE_SECONDS: u32 = 1;

    /// A writable share.
    pub fn new(path: impl Into<PathBuf>, tag: impl Into<String>) -> Self {
        Self {
            path: path.into(),
            tag: tag.into(),
            readonly: false,
            cache_seconds: Self::DEFAULT_CACHE_SECONDS,
            keeps_owners: false,
            reads_unopened: false,
            lists_unopened: false,
            hides_attributes: false,
        }
    }

    /// Whether this can be a tag: 1 to [`MAX_TAG_BYTES`](Self::MAX_TAG_BYTES) letters, digits,
    /// and the signs `.`, `_`, `-`.
    pub fn is_tag(text: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=Self::MAX_TAG_BYTES).contains(&text.len()) && text.bytes().all(is_plain)
    }
}

/// Why a directory cannot be shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShareError {
    /// The directory.
    pub path: PathBuf,
    /// The reason.
    pub why: String,
}

impl fmt::Display for ShareError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "cannot share '{}': {}",
            self.path.display(),
            self.why
        )
    }
}

impl std::error::Error for ShareError {}
