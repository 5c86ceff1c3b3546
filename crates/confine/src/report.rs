//! What is enforced, and what the host lacks.

use std::fmt;

use crate::kernel;
use crate::kind::ThreadKind;
use crate::policy;

/// The oldest version of the rules for files that is used: the first one forbids to move files
/// between directories.
pub(crate) const OLDEST_FILE_RULES: i64 = 2;

/// A part of the confinement that a host may lack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// System calls are filtered.
    SystemCalls,
    /// Files are out of reach.
    Files,
    /// No privileges are gained, and those that are not needed are dropped.
    Privileges,
}

impl Part {
    /// Every part, in this order.
    pub const ALL: [Self; 3] = [Self::SystemCalls, Self::Files, Self::Privileges];

    /// What the part is called in messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SystemCalls => "filters of system calls (seccomp)",
            Self::Files => "rules for files (Landlock, Linux 5.19)",
            Self::Privileges => "dropped privileges",
        }
    }
}

impl fmt::Display for Part {
    /// Prints what is confined, in one or two words.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::SystemCalls => "system calls",
            Self::Files => "files",
            Self::Privileges => "privileges",
        })
    }
}

/// What is enforced in this process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Report {
    /// The number of threads of each kind that are or were confined.
    pub threads: Vec<(ThreadKind, usize)>,
    /// The parts that are enforced.
    pub in_force: Vec<Part>,
    /// The parts that are not.
    pub missing: Vec<Part>,
}

/// Whether the host has a part.
pub fn host_offers(part: Part) -> bool {
    match part {
        Part::SystemCalls => kernel::has_filters(),
        Part::Files => kernel::version_of_file_rules() >= OLDEST_FILE_RULES,
        Part::Privileges => true,
    }
}

/// What is enforced; `None` if the process is not confined.
pub fn report() -> Option<Report> {
    let policy = policy::current()?;
    let threads = ThreadKind::ALL.map(|kind| (kind, policy.count(kind)));
    let is_missing = |part: &Part| policy.is_missing(*part);
    Some(Report {
        threads: threads
            .into_iter()
            .filter(|(_, count)| *count != 0)
            .collect(),
        in_force: Part::ALL
            .into_iter()
            .filter(|part| !is_missing(part))
            .collect(),
        missing: Part::ALL.into_iter().filter(is_missing).collect(),
    })
}
