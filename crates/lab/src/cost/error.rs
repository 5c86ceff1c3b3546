//! Why an experiment of `tollgate cost` failed.

use super::kinds;
use std::fmt;

/// Why there is no result.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CostError {
    /// The host refused something.
    Host(String),
    /// No kind has this name.
    UnknownKind(String),
    /// None of the requested kinds occurs in the requested modes.
    NothingChosen,
    /// The guest did not do its work, or the ledger's counts differ from it.
    WorkNotDone(String),
    /// It was stopped before it had a result.
    Interrupted,
}

impl fmt::Display for CostError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(why) => write!(formatter, "the host refused: {why}"),
            Self::UnknownKind(name) => {
                write!(
                    formatter,
                    "--kind: no kind of exit is called '{name}'; there are: "
                )?;
                let names: Vec<_> = kinds::KINDS.iter().map(|kind| kind.name).collect();
                formatter.write_str(&names.join(", "))
            }
            Self::NothingChosen => formatter
                .write_str("none of these kinds (--kind) is measured in these modes (--mode)"),
            Self::WorkNotDone(why) => {
                write!(formatter, "no result: the guest did not do its work: {why}")
            }
            Self::Interrupted => formatter.write_str("interrupted"),
        }
    }
}

impl std::error::Error for CostError {}
