//! Why a monitor does not do what it is told.

use serde_json::{Value, json};

/// Why a device is not plugged in.
pub const NO_HOT_PLUG: &str =
    "only virtio-blk-pci, virtio-net-pci, virtio-rng-pci, scsi-hd and scsi-cd come and go";

/// Why a command failed: a class of QMP's, and one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    class: &'static str,
    why: String,
}

impl Fault {
    /// A failure of the most frequent class.
    pub fn generic(why: impl Into<String>) -> Self {
        Self {
            class: "GenericError",
            why: why.into(),
        }
    }

    /// There is no such command, or not now.
    pub fn no_command(why: impl Into<String>) -> Self {
        Self {
            class: "CommandNotFound",
            why: why.into(),
        }
    }

    /// There is no device or place with this name.
    pub fn no_device(name: &str) -> Self {
        Self {
            class: "DeviceNotFound",
            why: format!("Device '{name}' not found"),
        }
    }

    /// The fault as one line for people.
    pub fn line(self) -> String {
        self.why
    }

    /// The fault as QMP has it.
    pub fn json(&self) -> Value {
        json!({"class": self.class, "desc": self.why})
    }
}

impl From<String> for Fault {
    fn from(why: String) -> Self {
        Self::generic(why)
    }
}
