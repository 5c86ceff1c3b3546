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
    /// A part without state.
    pub fn empty() -> Self {
        Self::default()
    }

    /// `part`, in the layout of `version`.
    pub fn of(version: u32, part: &impl Serialize) -> Self {
        Self {
            version,
            // Fails for maps whose keys are not text, which no part has. The reader would
            // refuse the null.
            data: serde_json::to_value(part).unwrap_or_default(),
        }
    }

    /// Version of the layout, for parts that read several.
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// The part, if it has the layout of `version`.
    ///
    /// # Errors
    /// Another version, or data that does not fit.
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

/// Why no state was saved, or a saved one was refused and nothing changed. Prints as one
/// line.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StateError {
    /// A part has a layout that this program does not read.
    Version {
        /// The part; empty until the bus fills it in.
        part: String,
        /// Version of the saved state.
        found: u32,
        /// Version that this program reads.
        expected: u32,
    },
    /// A part does not have the form that its version says.
    Unreadable {
        /// The part; empty until the bus fills it in.
        part: String,
        /// What is wrong.
        why: String,
    },
    /// Threads of a device did not finish their work in time.
    Busy {
        /// The device.
        part: String,
    },
    /// The saved machine has other devices.
    Devices {
        /// Those of the saved machine, in order.
        found: Vec<String>,
        /// Those of this one.
        expected: Vec<String>,
    },
}

impl StateError {
    /// The same error with the name of the part.
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
                write!(formatter, "'{part}' still has work under way")
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
