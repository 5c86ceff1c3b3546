//! Which machine a status is about: process, memory, kernel and firmware.

use std::path::{Path, PathBuf, absolute};

use serde::Serialize;

/// Describes a machine. Nothing in this changes while the machine runs.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Identity {
    /// The process that runs it.
    pub pid: u32,
    /// Bytes of its RAM.
    pub memory_bytes: u64,
    /// The kernel's file; `None` if the machine starts from firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// The firmware's file, if the machine starts from firmware.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<PathBuf>,
    /// The kernel's command line.
    pub command_line: String,
}

impl Identity {
    /// Describes the machine of this process. Paths are made absolute, because a reader may be in
    /// another folder.
    pub fn new(
        memory_bytes: u64,
        kernel: Option<&Path>,
        firmware: Option<&Path>,
        command_line: &str,
    ) -> Self {
        let whole = |path: &Path| absolute(path).unwrap_or_else(|_| path.to_owned());
        Self {
            pid: std::process::id(),
            memory_bytes,
            kernel: kernel.map(whole),
            firmware: firmware.map(whole),
            command_line: command_line.to_owned(),
        }
    }
}
