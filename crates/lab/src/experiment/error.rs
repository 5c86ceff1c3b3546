//! The reasons why an experiment has no result.

use std::fmt;

/// Why an experiment, or one of its cells, has no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LabError {
    /// The host refused something.
    Host(String),
    /// Nothing has this name; the error lists the known names.
    Unknown {
        /// The flag with the unknown name.
        flag: &'static str,
        /// What was requested: a workload, a guest.
        what: &'static str,
        /// The unknown name.
        name: String,
        /// The known names.
        known: Vec<&'static str>,
    },
    /// A guest did not do its work, or not the same work as before.
    WorkNotDone(String),
    /// This cell cannot run here, for this reason.
    NotRun(String),
    /// The experiment was stopped on request.
    Interrupted,
}

impl fmt::Display for LabError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(why) => write!(formatter, "the host refused: {why}"),
            Self::Unknown {
                flag,
                what,
                name,
                known,
            } => {
                let known = known.join(", ");
                write!(
                    formatter,
                    "{flag}: no {what} is called '{name}'; there are: {known}"
                )
            }
            Self::WorkNotDone(why) => {
                write!(formatter, "no result: the guest did not do its work: {why}")
            }
            Self::NotRun(why) => write!(formatter, "not run: {why}"),
            Self::Interrupted => formatter.write_str("interrupted"),
        }
    }
}

impl std::error::Error for LabError {}
