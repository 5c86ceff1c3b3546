//! The definition of the command line: the subcommands and, through their arguments, all flags.
//!
//! This file only defines the command line. `command_line` parses words by it, `usage` explains
//! errors, and `documents` writes manual pages from it.

use std::ffi::OsString;

use clap::Parser;

use crate::{control, documents};

/// The whole command line of `tollgate`.
#[derive(Parser, Debug)]
#[command(
    name = "tollgate",
    version,
    max_term_width = 100,
    about = "Runs x86 virtual machines in an ordinary process: no KVM, no root, no kernel module",
    after_help = "Try 'tollgate run --help' for flags, keys, examples and exit codes."
)]
pub struct Cli {
    /// The subcommand and its arguments.
    #[command(subcommand)]
    pub subcommand: Subcommand,
}

/// The subcommands of `tollgate`.
#[derive(clap::Subcommand, Debug)]
pub enum Subcommand {
    /// Run a command in a virtual machine, with this host's files
    Exec(Box<crate::exec::ExecArguments>),
    /// Boot a kernel in a virtual machine
    Run(Box<crate::run::RunArguments>),
    /// Check whether this host can run virtual machines, and what is missing
    Doctor(crate::doctor::DoctorArguments),
    /// Keep virtual machines ready, and hand them out to exec --in
    Pool(crate::machines::pool::PoolArguments),
    /// List your running virtual machines
    Ps(crate::machines::ps::PsArguments),
    /// End running virtual machines by their names
    Kill(crate::machines::kill::KillArguments),
    /// Copy a file into a virtual machine that was started with exec --keep, or out of it
    Cp(crate::machines::cp::CpArguments),
    /// Show what a virtual machine in the background has written
    Logs(crate::machines::logs::LogsArguments),
    /// Send a command to a running virtual machine
    Control(control::client::ControlArguments),
    /// Show or change the knobs of a running virtual machine
    Set(control::set::SetArguments),
    /// Change the disk in a drive of a running virtual machine
    Medium(control::medium::MediumArguments),
    /// Write the state of a running virtual machine to a file, and show or check such files
    Snapshot(crate::snapshot::SnapshotArguments),
    /// Put a running virtual machine back to the snapshot that it was restored from
    Reset(crate::snapshot::ResetArguments),
    /// Show, check or remove what is kept so that later runs start faster
    Cache(crate::cache::CacheArguments),
    /// Show the screen of a running virtual machine, or write it to a picture
    Screen(control::screen::ScreenArguments),
    /// Type on the keyboard of a running virtual machine, or move its mouse
    Type(control::typing::TypeArguments),
    /// Measure what each kind of exit costs on this host
    Cost(crate::cost::CostArguments),
    /// Run an experiment: settings of one machine compared on the same work
    Lab(crate::lab::LabArguments),
    /// Make, show, check or copy disk images
    Image(crate::image::ImageArguments),
    /// Show the exits of a running virtual machine, and where its time goes
    Stats(control::stats::StatsArguments),
    /// Set a mark in the statistics of a running virtual machine, or list the marks
    Mark(control::mark::MarkArguments),
    /// Watch where the time of running virtual machines goes, on the whole terminal
    Top(crate::top::TopArguments),
    /// Write manual pages and shell completions (for packages)
    #[command(hide = true)]
    Documents(documents::DocumentsArguments),
}

/// The definition of the command line as clap uses it.
pub fn definition() -> clap::Command {
    use clap::CommandFactory;
    Cli::command()
}

/// The nested subcommands that `words` names, such as `lab` and `vif`, and the names that could
/// come next.
pub fn subcommands(words: &[OsString]) -> (Vec<String>, Vec<String>) {
    let mut command = definition();
    let mut path = Vec::new();
    for word in words.iter().skip(1).filter_map(|word| word.to_str()) {
        if let Some(next) = command.find_subcommand(word).cloned() {
            path.push(word.to_owned());
            command = next;
        }
    }
    let names = command
        .get_subcommands()
        .filter(|sub| !sub.is_hide_set())
        .map(|sub| sub.get_name().to_owned());
    (path, names.collect())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::run::RunArguments;
    use crate::serial_target::SerialTarget;

    fn run_arguments(words: &[&str]) -> RunArguments {
        let words = ["tollgate", "run", "--kernel", "k"].iter().chain(words);
        match Cli::try_parse_from(words).unwrap().subcommand {
            Subcommand::Run(arguments) => *arguments,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn defaults_need_only_a_kernel() {
        let arguments = run_arguments(&[]);
        assert_eq!(arguments.machine.memory, 256 << 20);
        assert_eq!(*arguments.consoles.serial(), SerialTarget::Stdio);
        assert_eq!(arguments.consoles.debug_console, SerialTarget::Null);
        assert_eq!(arguments.boot.append, "");
        assert!(!arguments.events.reboot);
        assert!(!arguments.statistics.wants_report());
        assert_eq!(arguments.statistics.trace_limit, 64 << 20);
        assert!(arguments.network.networks().is_empty());
        let exec = Cli::try_parse_from(["tollgate", "exec", "true"]).unwrap();
        match exec.subcommand {
            Subcommand::Exec(exec) => assert_eq!(exec.machine.memory, 1 << 30),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn names_from_other_monitors_are_understood() {
        let arguments = run_arguments(&["--boot-args", "-x", "-m", "1G"]);
        assert_eq!(arguments.boot.append, "-x");
        assert_eq!(arguments.machine.memory, 1 << 30);
    }

    #[test]
    fn a_network_without_a_name_is_a_user_network() {
        let named = run_arguments(&["--net", "user"]).network.networks();
        let unnamed = run_arguments(&["--net", "--reboot"]).network.networks();
        assert_eq!(named, unnamed);
        assert_eq!(named.len(), 1);
    }
}
