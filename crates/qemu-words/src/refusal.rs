//! Why a command line is refused: one line.

use std::fmt;

/// One line that says which option is wrong, and why.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal(pub String);

impl Refusal {
    /// Puts the option that is wrong in front of the reason.
    #[must_use]
    pub fn of(self, option: &str) -> Self {
        Self(format!("{option}: {}", self.0))
    }
}

impl From<String> for Refusal {
    fn from(line: String) -> Self {
        Self(line)
    }
}

impl From<&str> for Refusal {
    fn from(line: &str) -> Self {
        Self(line.to_owned())
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}
