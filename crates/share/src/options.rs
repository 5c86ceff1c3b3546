//! The options of a share.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::path::PathBuf;

/// The protocol by which a guest mounts a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum ShareProtocol {
    /// FUSE requests over virtio-fs: `mount -t virtiofs`.
    #[default]
    VirtioFs,
    /// 9P2000.L messages over virtio: `mount -t 9p -o trans=virtio`.
    NineP,
}

/// Where owners and special mode bits that the guest wants are kept: QEMU's `security_model`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum SecurityModel {
    /// In an extended attribute of the file (`mapped-xattr`): see [`owner`](crate::owner).
    #[default]
    Mapped,
    /// In the host's file, as far as the host permits that to this process; what it refuses is
    /// ignored (`none`). Set-user-ID and set-group-ID are never given to the host's file.
    None,
    /// In the host's file; what the host refuses is an error of the guest (`passthrough`).
    Passthrough,
}

/// A directory of the host that a guest can mount.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ShareOptions {
    /// The path of the directory.
    pub path: PathBuf,
    /// The name by which the guest mounts the directory; see [`ShareOptions::is_tag`].
    pub tag: String,
    /// Whether the guest cannot change anything.
    pub readonly: bool,
    /// For how many seconds the guest may cache names and attributes.
    pub cache_seconds: u32,
    /// Whether the guest sees the host's owners, so that the files of the server's user do not
    /// appear as root's.
    pub keeps_owners: bool,
    /// Whether files are read without being opened, if the share is read-only and the guest's
    /// kernel supports it. The host's refusal to read a file then comes with the first read. The
    /// guest must mount the share read-only in order to refuse writers when they open a file.
    pub reads_unopened: bool,
    /// Whether directories are read without being opened, if the guest's kernel supports it. The
    /// kernel caches a directory until its modification time changes, and then learns only the
    /// names of the files in it. This is useful if names may be cached for long.
    pub lists_unopened: bool,
    /// Whether the guest sees no extended attributes. Its kernel learns that from the first request
    /// and sends no others.
    pub hides_attributes: bool,
    /// The protocol by which the guest mounts the share.
    pub protocol: ShareProtocol,
    /// Where owners are kept. Models other than [`SecurityModel::Mapped`] imply `keeps_owners`.
    pub security: SecurityModel,
}

impl ShareOptions {
    /// The maximum size of a tag in bytes (virtio 1.2, 5.11.4).
    pub const MAX_TAG_BYTES: usize = 36;
    /// The default number of seconds for which the guest may cache names and attributes.
    pub const DEFAULT_CACHE_SECONDS: u32 = 1;

    /// Makes the options of a writable share.
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
            protocol: ShareProtocol::VirtioFs,
            security: SecurityModel::Mapped,
        }
    }

    /// Whether this is a valid tag: 1 to [`MAX_TAG_BYTES`](Self::MAX_TAG_BYTES) letters, digits,
    /// and the characters `.`, `_`, `-`. Devices also take slashes, as in `/dev/root`.
    pub fn is_tag(text: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=Self::MAX_TAG_BYTES).contains(&text.len()) && text.bytes().all(is_plain)
    }
}

/// Why a directory cannot be shared.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShareError {
    /// The path of the directory.
    pub path: PathBuf,
    /// The reason in one line.
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
