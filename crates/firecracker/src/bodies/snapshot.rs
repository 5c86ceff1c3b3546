//! Snapshots.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::body::Body;
use crate::fault::Fault;

/// What a snapshot contains.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum SnapshotType {
    /// The contents of all memory.
    #[default]
    Full,
    /// What has changed since the last snapshot.
    Diff,
}

/// An order to write a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotCreate {
    /// The file for memory.
    pub mem_file_path: PathBuf,
    /// The file for everything else.
    pub snapshot_path: PathBuf,
    /// What is written.
    #[serde(default)]
    pub snapshot_type: SnapshotType,
}

impl Body for SnapshotCreate {
    fn check(&self) -> Result<(), Fault> {
        match self.mem_file_path == self.snapshot_path {
            true => Err(Fault::field(
                "snapshot_path",
                "it must not be the mem_file_path",
            )),
            false => Ok(()),
        }
    }
}

/// What supplies a restored machine's memory.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemoryBackend {
    /// What kind of thing that is.
    pub backend_type: MemoryBackendType,
    /// Where that thing is.
    pub backend_path: PathBuf,
}

/// A kind of thing that supplies memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub enum MemoryBackendType {
    /// A file that an earlier order has written.
    File,
    /// A process that handles page faults, which is refused.
    Uffd,
}

/// Another host's interface for a network interface.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkOverride {
    /// The name of the interface in requests.
    pub iface_id: String,
    /// Where it leads now.
    pub host_dev_name: String,
}

/// Another socket for the sockets between guest and host.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VsockOverride {
    /// The path of the socket.
    pub uds_path: PathBuf,
}

/// An order to continue from a snapshot.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SnapshotLoad {
    /// The file for everything except memory.
    pub snapshot_path: PathBuf,
    /// The file for memory.
    pub mem_file_path: Option<PathBuf>,
    /// What supplies memory.
    pub mem_backend: Option<MemoryBackend>,
    /// An old name of `track_dirty_pages`.
    #[serde(default)]
    pub enable_diff_snapshots: bool,
    /// Whether differences are wanted, which are always possible here.
    #[serde(default)]
    pub track_dirty_pages: bool,
    /// Whether the machine runs at once.
    #[serde(default)]
    pub resume_vm: bool,
    /// Other places for networks.
    #[serde(default)]
    pub network_overrides: Vec<NetworkOverride>,
    /// Another place for vsock.
    pub vsock_override: Option<VsockOverride>,
    /// Whether the clocks that show the time of day advance.
    #[serde(default)]
    pub clock_realtime: bool,
}

impl SnapshotLoad {
    /// The file for memory.
    pub fn memory(&self) -> &Path {
        let backend = self.mem_backend.as_ref().map(|it| &it.backend_path);
        let file = backend.or(self.mem_file_path.as_ref());
        file.map_or(Path::new(""), PathBuf::as_path)
    }
}

impl Body for SnapshotLoad {
    fn check(&self) -> Result<(), Fault> {
        match (&self.mem_file_path, &self.mem_backend) {
            (Some(_), Some(_)) | (None, None) => Err(Fault::field(
                "mem_backend",
                "give either mem_backend or mem_file_path",
            )),
            (None, Some(backend)) if backend.backend_type == MemoryBackendType::Uffd => {
                let why = "Tollgate maps memory from files; give File";
                Err(Fault::field("mem_backend.backend_type", why))
            }
            _ => Ok(()),
        }
    }
}
