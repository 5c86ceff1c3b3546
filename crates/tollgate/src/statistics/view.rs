//! How statistics are shown: the format, the order and the number of lines.

use clap::ValueEnum;

/// The format in which statistics are written.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Format {
    /// A table for people
    #[default]
    Table,
    /// Everything, for programs; see docs/reference/stats.md
    Json,
    /// For spreadsheets: a row for each kind of exit, time and origin
    Csv,
}

/// The order of lines in tables.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Sort {
    /// The highest cost first
    #[default]
    Cost,
    /// The highest count first
    Count,
}

/// How many lines a table shows, and in which order.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct View {
    /// The order of lines.
    pub sort: Sort,
    /// The number of lines of each list; `None` for all kinds of exit and some origins.
    pub top: Option<usize>,
}
