//! Saved state: plain data with the version of its layout.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The state of one part of the machine.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct SavedState {
    version: u32,
    data: serde_json::Value,
}

impl SavedState {
    /// Returns the state of a part that has none.
    pub fn empty() -> Self {
        Self::default()
    }

    /// Saves `part` in the layout of `version`.
    pub fn of(version: u32, part: &impl Serialize) -> Self {
        Self {
            version,
            // This fails for maps whose keys are not text, which no part has. The reader would
            // refuse the null.
            data: serde_json::to_value(part).unwrap_or_default(),
        }
    }

    /// Returns the version of the layout, for parts that can read several.
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// Reads the part if its state has the layout of `version`.
    ///
    /// # Errors
    /// The state has another version, or its data does not fit.
    pub fn read<T: DeserializeOwned>(&self, version: u32) -> Result<T, StateError> {
        if self.version != version {
            return Err(StateError::Version {
                part: String::new(),
                found: self.version,
                expected: version,
            });
        }
        T::deserialize(&self.data).map_err(|error| StateError::Unreadable {
            part: String::new(),
            why: error.to_string(),
        })
    }
}

/// Why a state was not saved, or a saved state was refused. Nothing has changed then. Each error
/// prints as one line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateError {
    /// A part has a layout that this program cannot read.
    Version {
        /// The name of the part. It is empty until the bus fills it in.
        part: String,
        /// The version of the saved state.
        found: u32,
        /// The version that this program reads.
        expected: u32,
    },
    /// The data of a part does not have the form that its version requires.
    Unreadable {
        /// The name of the part. It is empty until the bus fills it in.
        part: String,
        /// A description of the error.
        why: String,
    },
    /// Threads of a device did not finish their work in time.
    Busy {
        /// The name of the device.
        part: String,
    },
    /// The guest uses something of the host that a saved state does not contain.
    InUse {
        /// The name of the device.
        part: String,
        /// What the guest does with it.
        why: String,
    },
    /// The saved machine has other devices.
    Devices {
        /// The devices of the saved machine, in order.
        found: Vec<String>,
        /// The devices of this machine, in order.
        expected: Vec<String>,
    },
}

impl StateError {
    /// Returns the same error with the name of the part.
    #[must_use]
    pub fn of_part(self, name: &str) -> Self {
        let part = name.to_owned();
        match self {
            Self::Version {
                found, expected, ..
            } => Self::Version {
                part,
                found,
                expected,
            },
            Self::Unreadable { why, .. } => Self::Unreadable { part, why },
            other => other,
        }
    }
}

impl fmt::Display for StateError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version {
                part,
                found,
                expected,
            } => write!(
                formatter,
                "saved state of '{part}' has version {found}, this program reads version {expected}"
            ),
            Self::Unreadable { part, why } => {
                write!(formatter, "saved state of '{part}' cannot be read: {why}")
            }
            Self::Busy { part } => {
                write!(formatter, "'{part}' still has unfinished work")
            }
            Self::InUse { part, why } => {
                write!(
                    formatter,
                    "the state of '{part}' cannot be saved: the guest {why}"
                )
            }
            Self::Devices { found, expected } => write!(
                formatter,
                "saved state is that of a machine with other devices: {} instead of {}",
                found.join(", "),
                expected.join(", ")
            ),
        }
    }
}

impl std::error::Error for StateError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_is_read_back_in_its_own_version_only() {
        let saved = SavedState::of(3, &[1u8, 2]);
        assert_eq!(saved.read::<[u8; 2]>(3), Ok([1, 2]));
        let error = saved.read::<[u8; 2]>(4).unwrap_err().of_part("disk");
        assert_eq!(
            error.to_string(),
            "saved state of 'disk' has version 3, this program reads version 4"
        );
        let error = saved.read::<String>(3).unwrap_err().of_part("disk");
        assert!(matches!(error, StateError::Unreadable { part, .. } if part == "disk"));
    }
}
