//! The flags of `tollgate exec`.

#[cfg(test)]
use std::ffi::OsStr;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tollgate_machine::comma_list;

use super::image::{self, ImageArgument};
use super::keep::KeepArguments;
use super::sandbox::SandboxArguments;
use crate::flags::{DeveloperArguments, MachineArguments, NetworkArguments};
use crate::net;
use crate::statistics::StatisticsArguments;
use crate::words::{begins_command, takes_next_word};

/// The arguments of `tollgate exec`.
#[derive(Args, Debug)]
#[command(
    after_long_help = help(),
    mut_arg("memory", |memory| memory.default_value(DEFAULT_MEMORY)),
    // The word that follows `--net` may be the guest's command.
    mut_arg("net", |net| net.require_equals(true))
)]
pub struct ExecArguments {
    /// The guest's root: a directory of this host, instead of this host's own root
    ///
    /// The guest may change all of it. The changes are kept in the guest's memory and are discarded
    /// at the end.
    #[arg(long, value_name = "DIR", verbatim_doc_comment)]
    pub root: Option<PathBuf>,

    /// The guest's root: a disk image with ext4: FILE[,partition=N][,format=raw|qcow2][,rw]
    ///
    /// Without partition=N the root is the whole disk, or the first partition that holds a system.
    /// With rw the guest changes the image; otherwise its changes are kept in its memory and are
    /// discarded at the end. A file is qcow2 if its name ends with .qcow2, unless format= says
    /// otherwise. backing=any|same-dir|none: which files the image may name as its backing files.
    #[arg(
        long,
        value_name = "IMAGE",
        value_parser = image::parse,
        conflicts_with = "root",
        verbatim_doc_comment
    )]
    pub image: Option<ImageArgument>,

    /// A directory that the guest may change, at its own path. May be repeated
    #[arg(long, value_name = "DIR")]
    pub rw: Vec<PathBuf>,

    /// A directory, at its own path or at another path in the guest: DIR[:PATH][,ro]. May be repeated
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub share: Vec<ShareArgument>,

    /// The directory of the guest in which the command starts, instead of the current directory
    #[arg(long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,

    /// A variable of the command's environment: NAME=VALUE, or NAME with its value here
    ///
    /// The command always gets TERM, COLORTERM, TZ, LANG, LANGUAGE and LC_*; without --root and
    /// --image it also gets PATH, HOME, USER, LOGNAME and SHELL. May be repeated.
    #[arg(long, value_name = "NAME[=VALUE]", verbatim_doc_comment)]
    pub env: Vec<OsString>,

    /// The user who runs the command: NAME or UID, and optionally :GROUP or :GID
    ///
    /// The default is you; with --root or --image it is the guest's root. In both cases the files that
    /// the command creates in shared directories belong to you.
    #[arg(long, value_name = "USER", verbatim_doc_comment)]
    pub user: Option<String>,

    /// Give the command an empty standard input
    ///
    /// Without this flag standard input is read even if the command reads nothing, which takes the
    /// input of a shell's loop away.
    #[arg(short = 'n', long, verbatim_doc_comment)]
    pub no_input: bool,

    /// End the command when it has run for this time: seconds, or a number with s, m or h
    ///
    /// The command gets SIGTERM, and five seconds later the machine is switched off. The exit code is
    /// 124.
    #[arg(long, value_name = "TIME", value_parser = parse_time, verbatim_doc_comment)]
    pub timeout: Option<Duration>,

    /// How long the guest may take to start the command: seconds, or a number with s, m or h
    #[arg(long, value_name = "TIME", value_parser = parse_time, default_value = "5m")]
    pub boot_timeout: Duration,

    /// The guest's kernel: a 64-bit Linux bzImage or vmlinux
    ///
    /// The default is the kernel that scripts/get-guests has fetched (into the folder that
    /// TOLLGATE_GUESTS names, or next to the build), otherwise this host's own kernel in /boot, if you
    /// may read it.
    #[arg(long, value_name = "PATH", verbatim_doc_comment)]
    pub kernel: Option<PathBuf>,

    /// The kernel's modules: a folder like /lib/modules/VERSION, or one with .ko files
    #[arg(long, value_name = "DIR")]
    pub modules: Option<PathBuf>,

    /// Boot the guest, instead of continuing one that has booted before
    ///
    /// The first run keeps a guest that has just booted in your cache folder, before it knows
    /// anything of you; later runs with the same kernel, memory and devices continue from there.
    /// With this flag no such guest is kept either.
    #[arg(long, verbatim_doc_comment)]
    pub cold: bool,

    /// More words for the kernel's command line
    #[arg(
        long,
        value_name = "STRING",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true
    )]
    pub append: String,

    /// Show the messages of the guest's kernel on standard error
    #[arg(short, long)]
    pub verbose: bool,

    /// What the command may use of this host.
    #[command(flatten)]
    pub sandbox: SandboxArguments,

    /// Machines that stay.
    #[command(flatten)]
    pub keep: KeepArguments,

    /// Memory, processor and control socket of the machine.
    #[command(flatten)]
    pub machine: MachineArguments,

    /// The guest's networks and sockets.
    #[command(flatten)]
    pub network: NetworkArguments,

    /// What is counted and how it is shown.
    #[command(flatten)]
    pub statistics: StatisticsArguments,

    /// How guest code is translated, and experiments with that.
    #[command(flatten)]
    pub developer: DeveloperArguments,

    /// The command and its arguments
    #[arg(
        value_name = "COMMAND",
        required_unless_present = "keep",
        trailing_var_arg = true
    )]
    pub command: Vec<OsString>,
}

/// Guest RAM of `exec` if no flag says otherwise. A command on a whole system needs more memory
/// than a kernel alone.
const DEFAULT_MEMORY: &str = "1G";

/// A share as the user has written it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ShareArgument {
    /// The directory of the host.
    pub directory: PathBuf,
    /// Its path in the guest; `None` if it is the same as on the host.
    pub path: Option<PathBuf>,
    /// Whether the guest cannot change it.
    pub readonly: bool,
}

fn parse_share(text: &str) -> Result<ShareArgument, String> {
    const FORM: &str = "DIR[:PATH][,ro]";
    let mut parts = comma_list::split(text).into_iter();
    let place = parts.next().unwrap_or_default();
    let (directory, path) = match place.split_once(':') {
        None => (place.as_str(), None),
        Some((directory, path)) if path.starts_with('/') => (directory, Some(PathBuf::from(path))),
        Some((_, path)) => {
            return Err(format!("'{path}' is no absolute path; expected {FORM}"));
        }
    };
    if directory.is_empty() {
        return Err(format!("it names no directory; expected {FORM}"));
    }
    let mut share = ShareArgument {
        directory: directory.into(),
        path,
        readonly: false,
    };
    for part in parts {
        match &*part {
            "ro" => share.readonly = true,
            "rw" => share.readonly = false,
            _ => return Err(format!("unknown word '{part}'; expected {FORM}")),
        }
    }
    Ok(share)
}

fn parse_time(text: &str) -> Result<Duration, String> {
    const EXPECTED: &str = "expected seconds, or a number with s, m or h, such as 90 or 5m";
    let digits = text.trim_end_matches(|last: char| last.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(EXPECTED.into()),
    };
    let number = digits.parse::<f64>().map_err(|_| EXPECTED.to_owned())?;
    let time = Duration::try_from_secs_f64(number * unit).map_err(|_| EXPECTED.to_owned())?;
    if time.is_zero() {
        return Err(format!("no time at all; {EXPECTED}"));
    }
    Ok(time)
}

/// Rewrites `--net NETWORK` as `--net=NETWORK`. The network may be left out, so the parser would
/// take the word after `--net` for the guest's command.
pub fn join_networks(words: Vec<OsString>) -> Vec<OsString> {
    let definition = ExecArguments::augment_args(clap::Command::new("exec"));
    let mut joined = Vec::new();
    let mut words = words.into_iter().peekable();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy().into_owned();
        let is_network = |next: &mut OsString| net::is_network(&next.to_string_lossy());
        if begins_command(&text) {
            joined.push(word);
            break;
        }
        let takes_next = takes_next_word(&definition, &text);
        joined.push(word);
        if text == "--net" {
            if let Some(network) = words.next_if(|next| is_network(&mut next.clone())) {
                let last = joined.last_mut().expect("the flag was pushed just now");
                last.push("=");
                last.push(network);
            }
        } else if takes_next {
            joined.extend(words.next());
        }
    }
    joined.extend(words);
    joined
}

/// The last sections of `tollgate exec --help`.
fn help() -> &'static str {
    "\
Without --root and --image the command sees all files that you can read on this host, keys and
tokens too. It can change those below the current directory and those in --rw and --share
directories. All other changes are kept in the guest's memory and are discarded at the end.

Examples:
  Build here, in a virtual machine:
    tollgate exec -- make check
  As the machine's root, with a network, without any lasting change:
    cd / && tollgate exec --user root --net -- apt-get -y install hello
  Another system, unpacked in a directory:
    tollgate exec --root ./bookworm -- /bin/sh
  A disk image; with ,rw after its name the changes last:
    tollgate exec --image debian.qcow2 --net -- apt-get -y upgrade
  In a pipeline; standard input, output and error are separate:
    tar c . | tollgate exec -- xz -9 > ../all.tar.xz
  A command that you do not trust, which gets nothing of this host but its input:
    tollgate exec --sandbox --root ./bookworm -- python3 - < strange.py
  With a time limit and more memory:
    tollgate exec --timeout 5m -m 4G -- ./run-tests
  In a shell's loop over lines that the command must not read:
    while read -r file; do tollgate exec -n -- ./check \"$file\"; done < files

Exit codes:
  the command's own, and 128+n if signal n ended the command
  124    the command took longer than --timeout
  125    tollgate failed, or lost output: a line on standard error says why
  126    the command was found but cannot be run
  127    the command was not found

Signals (TERM, INT, HUP, QUIT, USR1, USR2) are passed to the command. A signal that ends programs
ends the machine when it arrives for the third time, or before the command has started.
"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_a_directory_and_where_it_is() {
        let share = |directory: &str, path: Option<&str>, readonly| {
            Ok(ShareArgument {
                directory: directory.into(),
                path: path.map(Into::into),
                readonly,
            })
        };
        assert_eq!(parse_share("a"), share("a", None, false));
        assert_eq!(parse_share("/a,,b,ro"), share("/a,b", None, true));
        assert_eq!(parse_share("a:/b,ro"), share("a", Some("/b"), true));
        for bad in ["", ":/b", "a:b", "a,x"] {
            assert!(parse_share(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_time_is_seconds_or_has_a_unit() {
        for (text, seconds) in [("90", 90.0), ("1.5s", 1.5), ("5m", 300.0), ("2h", 7200.0)] {
            assert_eq!(parse_time(text), Ok(Duration::from_secs_f64(seconds)));
        }
        for bad in ["", "0", "-1", "5d", "m", "1e999"] {
            assert!(parse_time(bad).is_err(), "{bad}");
        }
    }

    fn joined(line: &str) -> String {
        let words = join_networks(line.split(' ').map(OsString::from).collect());
        words.join(OsStr::new(" ")).into_string().unwrap()
    }

    #[test]
    fn a_network_may_be_the_next_word_as_in_run() {
        for (line, expected) in [
            ("--net user,restrict=on make", "--net=user,restrict=on make"),
            ("--net none --net tap=t -- x", "--net=none --net=tap=t -- x"),
            ("--net make --net user", "--net make --net user"),
            ("--net -- user", "--net -- user"),
            ("--root --net --net passt a", "--root --net --net=passt a"),
            ("-nm 1G --net user a", "-nm 1G --net=user a"),
            (
                "-m1G --stats --net=user user",
                "-m1G --stats --net=user user",
            ),
            ("--user net --mem 1G --net", "--user net --mem 1G --net"),
        ] {
            assert_eq!(joined(line), expected);
        }
    }

    #[test]
    fn help_lines_fit_a_wide_terminal() {
        for line in help().lines() {
            assert!(line.chars().count() <= 99, "{line}");
        }
    }
}
