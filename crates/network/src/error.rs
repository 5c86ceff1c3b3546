//! Why a network cannot be used.

use std::fmt;

/// Why a network cannot be started.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NetworkError {
    /// What failed, for a line on standard error.
    pub what: String,
    /// The host's reason.
    pub why: String,
}

impl NetworkError {
    pub(crate) fn new(what: impl Into<String>, why: impl fmt::Display) -> Self {
        // The host's words are shown without the error number.
        let mut why = why.to_string();
        why.truncate(why.find(" (os error ").unwrap_or(why.len()));
        Self {
            what: what.into(),
            why,
        }
    }
}

impl fmt::Display for NetworkError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.what, self.why)
    }
}

impl std::error::Error for NetworkError {}
