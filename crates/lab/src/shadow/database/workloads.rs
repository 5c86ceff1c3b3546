//! The guests and workloads with a database.

use super::super::arms::*;
use crate::experiment::{Guest, Workload};

/// 64-bit Debian with databases.
pub const AMD64: Guest = Guest {
    name: "database-amd64",
    what: "64-bit Debian with PostgreSQL and SQLite, from scripts/get-guests and scripts/get-database",
    needs_image: false,
};
/// 32-bit Debian with databases.
pub const I386: Guest = Guest {
    name: "database-i386",
    what: "32-bit Debian with PostgreSQL and SQLite, from the same scripts",
    needs_image: false,
};

/// The database that a workload uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Database {
    /// A server with a process for each client.
    Postgres,
    /// A library: each process has the file open.
    Sqlite,
}

impl Database {
    /// The name of its script in the guest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgres",
            Self::Sqlite => "sqlite",
        }
    }
}

/// What is done with the database.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Action {
    /// It starts, and adds up what it holds.
    Start,
    /// Five writers insert and change rows.
    Jobs,
    /// Five writers, while another one starts.
    Both,
    /// Five processes sort and add up in memory.
    Compute,
}

impl Action {
    /// The name of the action in the guest.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Jobs => "jobs",
            Self::Both => "both",
            Self::Compute => "compute",
        }
    }

    /// Whether the guest has so little memory for it that it must page.
    pub const fn pages(self) -> bool {
        !matches!(self, Self::Compute)
    }
}

/// What holds the guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Residence {
    /// The machine's default.
    Usual,
    /// The host never pages it out.
    Resident,
    /// A file, to which the host may page it out.
    Pageable,
}

/// A workload's parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Task {
    /// The database that is used.
    pub database: Database,
    /// What is done with it.
    pub action: Action,
    /// What holds the guest's memory.
    pub residence: Residence,
}

/// Workload: the jobs of PostgreSQL.
pub const POSTGRES_JOBS: &str = "postgres-jobs";
/// Workload: the jobs of SQLite.
pub const SQLITE_JOBS: &str = "sqlite-jobs";

const fn task(database: Database, action: Action, residence: Residence) -> Task {
    Task {
        database,
        action,
        residence,
    }
}

/// The workloads with their parts.
const TASKS: &[(&str, Task)] = {
    use Action::{Both, Compute, Jobs, Start};
    use Database::{Postgres, Sqlite};
    use Residence::{Pageable, Resident, Usual};
    &[
        ("postgres-start", task(Postgres, Start, Usual)),
        (POSTGRES_JOBS, task(Postgres, Jobs, Usual)),
        ("postgres-both", task(Postgres, Both, Usual)),
        ("postgres-compute", task(Postgres, Compute, Usual)),
        ("postgres-resident", task(Postgres, Jobs, Resident)),
        ("postgres-pageable", task(Postgres, Jobs, Pageable)),
        ("sqlite-start", task(Sqlite, Start, Usual)),
        (SQLITE_JOBS, task(Sqlite, Jobs, Usual)),
        ("sqlite-both", task(Sqlite, Both, Usual)),
        ("sqlite-compute", task(Sqlite, Compute, Usual)),
    ]
};

/// The parts of the workload with this name; `None` if it has no database.
pub fn task_of(workload: &str) -> Option<Task> {
    let found = TASKS.iter().find(|(name, _)| *name == workload);
    found.map(|(_, task)| *task)
}

/// The guests' names.
pub const GUESTS: &[&str] = &[AMD64.name, I386.name];

/// The guests of workloads that say little more on a second one.
const ONE_GUEST: &[&str] = &[AMD64.name];

/// The workloads: an event is one row written or sorted, or one start.
pub const WORKLOADS: [Workload; 10] = [
    Workload::of_events(
        TASKS[0].0,
        "PostgreSQL starts and adds up its rows, in a guest that pages",
    )
    .with(DATABASE)
    .on(GUESTS),
    Workload::of_events(
        TASKS[1].0,
        "five clients of PostgreSQL insert and change rows, in a guest that pages",
    )
    .with(SEARCH)
    .on(GUESTS),
    Workload::of_events(TASKS[2].0, "the same while another PostgreSQL starts")
        .with(FEW)
        .on(GUESTS),
    Workload::of_events(
        TASKS[3].0,
        "five clients of PostgreSQL sort and add up in memory",
    )
    .with(FEW)
    .on(ONE_GUEST),
    Workload::of_events(
        TASKS[4].0,
        "postgres-jobs in memory that the host keeps resident",
    )
    .with(FEW)
    .on(ONE_GUEST),
    Workload::of_events(
        TASKS[5].0,
        "postgres-jobs in memory that the host may page out",
    )
    .with(FEW)
    .on(ONE_GUEST),
    Workload::of_events(
        TASKS[6].0,
        "five processes open an SQLite database and check it, in a guest that pages",
    )
    .with(DATABASE)
    .on(ONE_GUEST),
    Workload::of_events(
        TASKS[7].0,
        "five processes insert and change rows of one SQLite database, in a guest that pages",
    )
    .with(SEARCH)
    .on(GUESTS),
    Workload::of_events(
        TASKS[8].0,
        "the same while five others open and check another database",
    )
    .with(FEW)
    .on(ONE_GUEST),
    Workload::of_events(
        TASKS[9].0,
        "five processes sort and add up in memory with SQLite",
    )
    .with(FEW)
    .on(ONE_GUEST),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_workload_has_parts_and_its_name_says_them() {
        for workload in &WORKLOADS {
            let task = task_of(workload.name).unwrap();
            let database = task.database.name();
            assert!(workload.name.starts_with(database), "{}", workload.name);
            if task.residence == Residence::Usual {
                assert!(workload.name.ends_with(task.action.name()));
            }
        }
        assert_eq!(task_of("switch"), None);
    }
}
