//! Why an experiment has no result.

use std::fmt;

/// Why an experiment, or one of its cells, has no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum LabError {
    /// The host refused something.
    Host(String),
    /// Nothing has this name; what there is.
    Unknown {
        /// The flag that asked.
        flag: &'static str,
        /// What was asked for: a workload, a guest.
        what: &'static str,
        /// The name.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// A guest did not do what it was to do, or not the same as before.
    WorkNotDone(String),
    /// This cell cannot be had here; the reason.
    NotRun(String),
    /// Somebody wanted it to end.
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
