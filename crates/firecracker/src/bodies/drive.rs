//! Disks.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::body::{Body, check_id};
use super::limiter::{RateLimiter, check_limiter};
use crate::fault::Fault;

/// What flushes of the guest do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum CacheType {
    /// They have no effect.
    #[default]
    Unsafe,
    /// They make what was written safe.
    Writeback,
}

/// How the host's file is read, which makes no difference here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum IoEngine {
    /// One request after the other.
    #[default]
    Sync,
    /// Through io_uring.
    Async,
}

/// A virtio disk and its image.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Drive {
    /// Its name in requests.
    pub drive_id: String,
    /// Whether the guest's root file system is on it.
    pub is_root_device: bool,
    /// The partition with the root file system.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partuuid: Option<String>,
    /// What flushes do.
    #[serde(default)]
    pub cache_type: CacheType,
    /// Whether the guest cannot write.
    #[serde(default)]
    pub is_read_only: bool,
    /// The image, which the description allows to be missing for other back ends.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_on_host: Option<PathBuf>,
    /// A limit, which is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rate_limiter: Option<RateLimiter>,
    /// How the image is read.
    #[serde(default)]
    pub io_engine: IoEngine,
    /// The socket of a vhost-user back end, which is refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
}

impl Body for Drive {
    fn check(&self) -> Result<(), Fault> {
        check_id("drive_id", &self.drive_id)?;
        if self.socket.is_some() {
            let why = "Tollgate has no vhost-user block devices; give path_on_host";
            return Err(Fault::field("socket", why));
        }
        if self.path_on_host.is_none() {
            return Err(Fault::field("path_on_host", "the field is missing"));
        }
        check_limiter("rate_limiter", self.rate_limiter.as_ref())
    }
}

/// A change of a disk.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriveUpdate {
    /// Its name in requests.
    pub drive_id: String,
    /// Another image.
    pub path_on_host: Option<PathBuf>,
    /// A limit, which is refused.
    pub rate_limiter: Option<RateLimiter>,
}

impl Body for DriveUpdate {
    fn check(&self) -> Result<(), Fault> {
        check_limiter("rate_limiter", self.rate_limiter.as_ref())
    }
}
