//! The arguments of `tollgate cache`.

use clap::{Args, Subcommand, ValueEnum};

/// `tollgate cache`.
#[derive(Args, Debug)]
#[command(after_help = "\
'tollgate exec' keeps guests that have booted (templates) and translated code (translations) in
your cache folder, $XDG_CACHE_HOME/tollgate or ~/.cache/tollgate, so that later runs start faster.
Only you can read them. The least recently used go by themselves; nothing breaks if all are removed.
Examples:
  What is there, and how large is it?
    tollgate cache list
  Remove everything:
    tollgate cache clear")]
pub struct CacheArguments {
    /// What to do.
    #[command(subcommand)]
    pub action: Action,
}

/// What to do with what is kept.
#[derive(Subcommand, Debug)]
pub enum Action {
    /// Show what is kept
    List(ListArguments),
    /// Remove what is kept
    Clear(ClearArguments),
    /// Read everything that is kept, and compare checksums
    Check(CheckArguments),
}

/// `tollgate cache list`.
#[derive(Args, Debug)]
pub struct ListArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `tollgate cache clear`.
#[derive(Args, Debug)]
#[command(after_help = "\
Guests that run now are not disturbed.
Exit codes: 0 done, 1 a file cannot be removed.")]
pub struct ClearArguments {
    /// Only files of this kind
    #[arg(value_name = "KIND", value_enum)]
    pub kind: Option<Kind>,
}

/// `tollgate cache check`.
#[derive(Args, Debug)]
#[command(after_help = "\
What is damaged, or was made by another build, is not used: the guest boots or is translated.
Exit codes: 0 everything is whole, 1 something is not.")]
pub struct CheckArguments {}

/// What a file is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Kind {
    /// A guest that has booted and waits for its task.
    #[value(name = "templates")]
    Template,
    /// Code that was translated for guests of earlier runs.
    #[value(name = "translations")]
    Translations,
}
