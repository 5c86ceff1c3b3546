//! Why a run of the small system failed.

use std::fmt;

/// Why there is no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SmallSystemError {
    /// The machine could not be built.
    Build(String),
    /// The guest reported what it cannot do.
    Refused(String),
    /// The machine ended in another way than the guest's success: how, and the last lines of
    /// output.
    Ended(String, String),
    /// The output differs from the contract.
    Unreadable(String),
    /// The guest's work differs from what it should be.
    WrongWork {
        /// The key in the `done` or `monitor` line, or another name.
        what: String,
        /// The expected value.
        expected: String,
        /// The value in the output.
        found: String,
    },
}

impl fmt::Display for SmallSystemError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Build(why) => formatter.write_str(why),
            Self::Refused(why) => write!(formatter, "the small system refuses: {why}"),
            Self::Ended(how, tail) => {
                write!(
                    formatter,
                    "the small system ended unexpectedly: {how}; it printed last: {tail}"
                )
            }
            Self::Unreadable(why) => write!(formatter, "the small system's output: {why}"),
            Self::WrongWork {
                what,
                expected,
                found,
            } => write!(
                formatter,
                "the small system did not do its work: {what} is {found}, expected {expected}"
            ),
        }
    }
}

impl std::error::Error for SmallSystemError {}
