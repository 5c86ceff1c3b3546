//! Which files a thread may open: Landlock's rules.

use std::path::PathBuf;

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreated,
    RulesetCreatedAttr, RulesetError, RulesetStatus,
};

/// The newest version of the rules that this file was written for. Older kernels know fewer kinds of
/// access, which the rules then leave alone.
const NEWEST: ABI = ABI::V5;
/// The file that names the servers for name look-ups, which the network's thread reads again and
/// again.
const RESOLVER: &str = "/etc/resolv.conf";

/// What may be done beneath a directory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TreeAccess {
    /// Files are read.
    Read,
    /// Files are read, written, made and removed.
    Write,
}

/// A directory that is served to the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tree {
    /// Where the directory is.
    pub path: PathBuf,
    /// What may be done beneath it.
    pub access: TreeAccess,
}

/// The rules for the kinds of threads.
pub struct FileRules {
    nothing: RulesetCreated,
    trees: RulesetCreated,
    resolver: RulesetCreated,
}

/// What a thread may reach.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    /// Not a single file.
    Nothing,
    /// What is beneath the served directories.
    Trees,
    /// The resolver's file.
    Resolver,
}

impl FileRules {
    /// Makes the rules. A directory that cannot be opened is in none of them; who serves it reports
    /// that.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn new(trees: &[Tree]) -> Result<Self, RulesetError> {
        let mut of_trees = empty()?;
        for tree in trees {
            let access = match tree.access {
                TreeAccess::Read => AccessFs::from_read(NEWEST),
                TreeAccess::Write => AccessFs::from_all(NEWEST),
            };
            of_trees = with(of_trees, tree.path.clone(), access)?;
        }
        // The file may be replaced by another one with the same name, in the folder where it really is.
        let file = std::fs::canonicalize(RESOLVER).unwrap_or_else(|_| RESOLVER.into());
        let folder = file.parent().map_or_else(|| "/etc".into(), PathBuf::from);
        Ok(Self {
            nothing: empty()?,
            trees: of_trees,
            resolver: with(empty()?, folder, AccessFs::ReadFile.into())?,
        })
    }

    /// Holds the calling thread, and those that it starts, to the rules. Returns whether the kernel
    /// enforces them.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn enforce(&self, reach: Reach) -> Result<bool, RulesetError> {
        let rules = match reach {
            Reach::Nothing => &self.nothing,
            Reach::Trees => &self.trees,
            Reach::Resolver => &self.resolver,
        };
        let Ok(rules) = rules.try_clone() else {
            return Ok(false);
        };
        let status = rules.restrict_self()?;
        Ok(status.ruleset != RulesetStatus::NotEnforced)
    }
}

/// Holds the calling thread to no file at all. Returns whether the kernel enforces it.
///
/// # Errors
/// The kernel refuses.
pub fn reach_nothing() -> Result<bool, RulesetError> {
    let status = empty()?.restrict_self()?;
    Ok(status.ruleset != RulesetStatus::NotEnforced)
}

/// Rules that allow nothing.
fn empty() -> Result<RulesetCreated, RulesetError> {
    Ruleset::default()
        .handle_access(AccessFs::from_all(NEWEST))?
        .create()
}

fn with(
    rules: RulesetCreated,
    path: PathBuf,
    access: BitFlags<AccessFs>,
) -> Result<RulesetCreated, RulesetError> {
    match PathFd::new(path) {
        Ok(directory) => rules.add_rule(PathBeneath::new(directory, access)),
        Err(_) => Ok(rules),
    }
}
