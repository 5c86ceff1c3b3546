//! `tollgate exec --sandbox`: a command that gets nothing of this host except what flags name, and
//! the limits of what it may use.

use std::fs;
use std::path::Path;
use std::time::Duration;

use clap::Args;
use tollgate_agent::protocol::Limits;
use tollgate_machine::config::{Backing, DriveOptions, NetworkKind, NetworkOptions, Rules};

use super::arguments::ExecArguments;
use super::image::ImageArgument;
use crate::confinement::Confinement;
use crate::failure::Failure;
use crate::size;

/// The limits of a sandbox, unless flags say otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);
const DEFAULT_PROCESSES: u32 = 1024;
/// The share of the guest's memory that files may fill by default.
const FILES_SHARE: u64 = 2;
/// Fewer processes than these run no useful command: a shell, and what it starts.
const LEAST_PROCESSES: u32 = 4;
/// Less memory for files than this holds no useful file.
const LEAST_FILES: u64 = 1 << 20;

/// The flags of sandboxes, and limits.
#[derive(Args, Debug)]
#[command(next_help_heading = "Sandbox")]
pub struct SandboxArguments {
    /// Give the command nothing of this host: for commands that you do not trust
    ///
    /// It needs another root (--root or --image), which it cannot change. The command sees no current
    /// directory, no environment but TERM and COLORTERM, no other host name than 'sandbox', no network,
    /// and an empty /tmp. It may run for 10 minutes (--timeout), use 1 GiB of memory (--memory), half of it
    /// for files (--files), and 1024 processes (--processes); a machine that is kept has no --timeout.
    /// The process is confined as with --confine strict. More is given only by name: --env NAME=VALUE,
    /// --share DIR:PATH,ro, and --net user with allow= or deny=.
    #[arg(long, verbatim_doc_comment)]
    pub sandbox: bool,

    /// The most memory for files that the command changes or makes, such as 512M
    ///
    /// The default is half of the guest's memory, of each: changes of the root, /run and /dev/shm. With this
    /// flag or --sandbox they share one limit. Directories of the host have none.
    #[arg(long, value_name = "SIZE", value_parser = size::parse, verbatim_doc_comment)]
    pub files: Option<u64>,

    /// The most processes and threads of the command: a number, or unlimited
    #[arg(long, value_name = "N|unlimited", value_parser = parse_processes)]
    pub processes: Option<Processes>,
}

/// The value of `--processes`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Processes {
    /// At most this number.
    Most(u32),
    /// As many as the guest's kernel allows.
    Unlimited,
}

fn parse_processes(text: &str) -> Result<Processes, String> {
    match text.parse() {
        _ if text == "unlimited" => Ok(Processes::Unlimited),
        Ok(count @ LEAST_PROCESSES..) => Ok(Processes::Most(count)),
        Ok(_) => Err(format!("fewer than {LEAST_PROCESSES} run no command")),
        Err(_) => Err("expected a number of processes, or unlimited".into()),
    }
}

impl SandboxArguments {
    /// The limits that the guest's kernel enforces.
    ///
    /// # Errors
    /// One line says which of them is useless.
    pub fn limits(&self, arguments: &ExecArguments) -> Result<Limits, Failure> {
        let memory = arguments.machine.memory;
        let file_bytes = match self.files {
            None if self.sandbox => Some(memory / FILES_SHARE),
            limit => limit,
        };
        if let Some(bytes) = self.files {
            let refused = |why: String| Err(Failure::usage(format!("--files: {why}")));
            if bytes >= memory {
                return refused(format!(
                    "files are kept in the guest's memory, which is {} MiB; give more with --memory",
                    memory >> 20
                ));
            }
            if bytes < LEAST_FILES {
                return refused("less than 1 MiB holds no files".into());
            }
            if arguments.image.as_ref().is_some_and(|it| it.is_writable) {
                return refused(
                    "with ,rw changes are kept in the image, whose size is the limit".into(),
                );
            }
        }
        let processes = match self.processes {
            Some(Processes::Most(count)) => Some(count),
            Some(Processes::Unlimited) => None,
            None => self.sandbox.then_some(DEFAULT_PROCESSES),
        };
        Ok(Limits {
            file_bytes,
            processes,
        })
    }

    /// How long a command may run that has this `--timeout`; `is_kept` if the machine stays and runs
    /// commands of others.
    pub fn timeout(&self, timeout: Option<Duration>, is_kept: bool) -> Option<Duration> {
        timeout.or((self.sandbox && !is_kept).then_some(DEFAULT_TIMEOUT))
    }

    /// How much the process is confined.
    pub fn confine(&self, asked: Option<Confinement>) -> Confinement {
        asked.unwrap_or(match self.sandbox {
            true => Confinement::Strict,
            false => Confinement::Auto,
        })
    }
}

/// Refuses what would give a sandboxed command something of this host without naming it, or let it
/// change this host.
///
/// # Errors
/// One line that names the flag, and what can be done.
pub fn check(arguments: &ExecArguments) -> Result<(), Failure> {
    let refused = |why: &str| Err(Failure::usage(format!("--sandbox: {why}")));
    let root = arguments.root.as_deref();
    let is_hosts_own =
        |root: &Path| fs::canonicalize(root).is_ok_and(|root| root == Path::new("/"));
    if root.is_none() && arguments.image.is_none() {
        return refused("a root that is not this host's is needed: --root DIR or --image FILE");
    }
    if root.is_some_and(is_hosts_own) {
        return refused("--root / is this host's own root; give another system's");
    }
    if let Some(image) = &arguments.image {
        if image.is_writable {
            return refused(",rw lets the command change the image; leave ,rw or --sandbox out");
        }
        if image.backing == Some(Backing::Any) {
            return refused(
                "backing=any lets the image name any file of this host; give backing=same-dir",
            );
        }
    }
    if !arguments.rw.is_empty() {
        return refused("--rw lets the command change this host; --share DIR:PATH,ro lets it read");
    }
    if arguments.share.iter().any(|share| !share.readonly) {
        return refused("--share needs ,ro: without it the command changes this host");
    }
    if arguments.network.vsock.is_some() {
        return refused("--vsock leads to sockets of this host");
    }
    if arguments.machine.confine == Some(Confinement::Off) {
        return refused("--confine off leaves the process open");
    }
    let networks = arguments.network.networks();
    networks.iter().try_for_each(check_network)
}

fn check_network(network: &NetworkOptions) -> Result<(), Failure> {
    let refused = |why: &str| Err(Failure::usage(format!("--sandbox: --net: {why}")));
    match &network.kind {
        NetworkKind::User(user) if user.restrict || user.rules != Rules::default() => Ok(()),
        NetworkKind::User(_) => refused(
            "say what the command reaches: user,allow=HOST,... (allow=any is all that is open without \
             rules)",
        ),
        _ => refused("only user networks have rules; give user,allow=HOST,..."),
    }
}

/// The disk of a sandboxed command. An image that names other files is refused unless the user has
/// said which it may name.
pub fn drive(image: &ImageArgument) -> DriveOptions {
    DriveOptions {
        backing: image.backing.unwrap_or(Backing::None),
        ..image.drive.clone()
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        arguments: ExecArguments,
    }

    /// The arguments of a line, with a root unless the line has one.
    fn arguments(line: &str) -> ExecArguments {
        let words = ["exec", "--sandbox"].into_iter();
        let words = words.chain(line.split_ascii_whitespace());
        Line::parse_from(words.chain(["--", "true"])).arguments
    }

    #[test]
    fn what_contradicts_a_sandbox_is_refused_by_name() {
        for (line, why) in [
            ("", "--root DIR or --image FILE"),
            ("--root /", "this host's own root"),
            ("--root /usr/..", "this host's own root"),
            ("--image a.img,rw", ",rw lets the command change"),
            ("--image a.qcow2,backing=any", "backing=any"),
            ("--root /etc --rw .", "--rw lets"),
            ("--root /etc --share /usr", "--share needs ,ro"),
            ("--root /etc --vsock cid=3,path=s", "--vsock leads"),
            ("--root /etc --confine off", "--confine off"),
            ("--root /etc --net", "user,allow=HOST"),
            ("--root /etc --net=user,log=refused", "user,allow=HOST"),
            ("--root /etc --net=tap=t", "only user networks"),
        ] {
            let failure = check(&arguments(line)).unwrap_err();
            assert!(failure.message.contains(why), "{line}: {}", failure.message);
        }
    }

    #[test]
    fn what_is_given_by_name_is_allowed() {
        for line in [
            "--root /etc",
            "--image a.qcow2",
            "--image a.qcow2,backing=same-dir",
            "--root /etc --share /usr:/data,ro --env A=b",
            "--root /etc --net=user,allow=deb.debian.org:80",
            "--root /etc --net=user,restrict=on",
            "--root /etc --net=none --confine auto",
        ] {
            assert_eq!(check(&arguments(line)), Ok(()), "{line}");
        }
        let image = arguments("--image a.qcow2").image.unwrap();
        assert_eq!(drive(&image).backing, Backing::None);
    }

    #[test]
    fn a_sandbox_has_limits_that_flags_change() {
        let limits = |line: &str| {
            let arguments = arguments(line);
            arguments.sandbox.limits(&arguments)
        };
        let of = |disk: u64, processes| {
            Ok(Limits {
                file_bytes: Some(disk << 20),
                processes,
            })
        };
        assert_eq!(limits(""), of(512, Some(1024)));
        assert_eq!(limits("-m 256M --processes unlimited"), of(128, None));
        assert_eq!(limits("--files 16M --processes 9"), of(16, Some(9)));
        for (line, why) in [
            ("--files 1G", "is 1024 MiB; give more with --memory"),
            ("--files 1K", "less than 1 MiB"),
            ("--image a,rw --files 9M", "in the image"),
        ] {
            let failure = limits(line).unwrap_err();
            assert!(failure.message.contains(why), "{}", failure.message);
        }
        let none = arguments("").sandbox;
        assert_eq!(none.timeout(None, false), Some(DEFAULT_TIMEOUT));
        assert_eq!(none.timeout(None, true), None);
        let second = Some(Duration::from_secs(1));
        assert_eq!(none.timeout(second, false), second);
        assert_eq!(none.confine(None), Confinement::Strict);
        assert_eq!(none.confine(Some(Confinement::Auto)), Confinement::Auto);
    }

    #[test]
    fn a_number_of_processes_is_enough_for_a_command() {
        assert_eq!(parse_processes("4"), Ok(Processes::Most(4)));
        assert_eq!(parse_processes("unlimited"), Ok(Processes::Unlimited));
        for (text, why) in [("3", "fewer than 4"), ("x", "expected"), ("-1", "expected")] {
            assert!(parse_processes(text).unwrap_err().contains(why), "{text}");
        }
    }
}
