//! What the machine boots.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::body::Body;
use crate::fault::Fault;

/// The kernel, its initial RAM disk and its command line.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BootSource {
    /// The path of the kernel's image.
    pub kernel_image_path: PathBuf,
    /// The initial RAM disk.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub initrd_path: Option<PathBuf>,
    /// The command line.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub boot_args: Option<String>,
}

impl BootSource {
    /// The command line of a kernel for which none is given, as Firecracker documents it.
    pub const DEFAULT_ARGS: &str = "reboot=k panic=1 nomodule 8250.nr_uarts=0 i8042.noaux i8042.nomux i8042.dumbkbd swiotlb=noforce";
}

impl Body for BootSource {
    fn check(&self) -> Result<(), Fault> {
        match self.kernel_image_path.as_os_str().is_empty() {
            true => Err(Fault::field("kernel_image_path", "the path is empty")),
            false => Ok(()),
        }
    }
}
