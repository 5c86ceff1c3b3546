//! `jailer`: starts `tollgate-firecracker` in a folder of its own, with as little as it needs, from the
//! command line of Firecracker's jailer.
//!
//! Firecracker's jailer needs root. This one does what the host lets its user do: a step that takes
//! privileges and is refused is left out and named, unless the user is root.

mod arguments;
mod control_groups;
mod folder;
mod separation;

use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Parser;
use rustix::process::{Resource, Rlimit, getegid, geteuid, setrlimit, setsid};

use self::arguments::{JailerArguments, ResourceLimit};
use self::folder::Jail;
use crate::exit_code;
use crate::standard_output::print_and_end;

/// The exit code of a jailer that failed, which is Firecracker's.
const FAILED: u8 = 1;
/// The most descriptors if no limit is given, as with Firecracker's jailer.
const DEFAULT_FILES: u64 = 2048;

/// The entry of `jailer`.
pub fn main() -> ExitCode {
    ExitCode::from(match JailerArguments::try_parse() {
        Ok(arguments) => match start(&arguments) {
            Ok(()) => exit_code::SUCCESS,
            Err(why) => {
                say(&why);
                FAILED
            }
        },
        Err(error) if error.use_stderr() => {
            let _ = write!(std::io::stderr(), "{error}");
            FAILED
        }
        Err(help) => print_and_end(&help.to_string(), exit_code::SUCCESS),
    })
}

fn say(what: &str) {
    let what = crate::failure::one_line(what);
    // If standard error is closed, the line is lost.
    let _ = writeln!(std::io::stderr(), "jailer: {what}");
}

/// The result of a step that may take privileges: for root it must succeed; for others it is left out
/// with a line.
fn step(what: &str, result: Result<(), String>) -> Result<bool, String> {
    match result {
        Ok(()) => Ok(true),
        Err(why) if geteuid().is_root() => Err(format!("{what}: {why}")),
        Err(why) => {
            say(&format!("left out, for want of privileges: {what}: {why}"));
            Ok(false)
        }
    }
}

fn start(arguments: &JailerArguments) -> Result<(), String> {
    let began = now_us();
    let jail = Jail::make(arguments)?;
    separation::close_files_with_exec().map_err(|error| format!("open files: {error}"))?;
    limit(&arguments.resource_limit)?;
    if !arguments.cgroup.is_empty() {
        let groups = control_groups::enter(arguments, &jail.program);
        step("--cgroup", groups)?;
    }
    if let Some(path) = &arguments.netns {
        step("--netns", separation::join_network(path))?;
    }
    let null = std::fs::File::options()
        .read(true)
        .write(true)
        .open("/dev/null")
        .map_err(|error| format!("/dev/null: {error}"))?;
    let program = enter(arguments, &jail)?;
    if arguments.daemonize {
        setsid().map_err(|error| format!("--daemonize: {error}"))?;
        for duplicate in [
            rustix::stdio::dup2_stdin(&null),
            rustix::stdio::dup2_stdout(&null),
            rustix::stdio::dup2_stderr(&null),
        ] {
            duplicate.map_err(|error| format!("--daemonize: {error}"))?;
        }
    }
    let mut command = Command::new(&program);
    command
        .env_clear()
        .arg("--id")
        .arg(&arguments.id)
        .arg(format!("--start-time-us={began}"))
        .arg(format!("--start-time-cpu-us={}", processor_us()))
        .args(&arguments.flags);
    if geteuid().is_root() {
        command.uid(arguments.uid).gid(arguments.gid);
    }
    if arguments.new_pid_ns && step("--new-pid-ns", separation::new_processes())? {
        let child = command
            .spawn()
            .map_err(|error| not_started(&program, &error))?;
        let file = program.with_extension("pid");
        return std::fs::write(&file, child.id().to_string())
            .map_err(|error| format!("'{}': {error}", file.display()));
    }
    Err(not_started(&program, &command.exec()))
}

/// Makes the jail the root if that is possible, and the current directory in any case. Returns the
/// program's path from then on.
fn enter(arguments: &JailerArguments, jail: &Jail) -> Result<PathBuf, String> {
    let is_root = geteuid().is_root();
    if !is_root && (geteuid().as_raw(), getegid().as_raw()) != (arguments.uid, arguments.gid) {
        let (user, group) = (geteuid().as_raw(), getegid().as_raw());
        say(&format!(
            "left out, for want of privileges: --uid and --gid: the program runs as {user} and {group}"
        ));
    }
    let changed = match jail.lacks_loader() {
        // Firecracker's own documents ask for a static program.
        Some(loader) => {
            say(&format!(
                "left out: the change of root: the program needs '{loader}' and libraries, which are not in \
                 the folder; a static build needs none"
            ));
            false
        }
        None => step("the change of root", separation::change_root(&jail.root))?,
    };
    let place = match changed {
        true => Path::new("/"),
        false => jail.root.as_path(),
    };
    std::env::set_current_dir(place).map_err(|error| format!("'{}': {error}", place.display()))?;
    if is_root {
        // Root of a container may be refused this; user networking does not need it.
        if let Err(why) = separation::make_device(place) {
            say(&format!(
                "left out, for want of privileges: /dev/net/tun: {why}"
            ));
        }
        let given = separation::give_away(place, arguments.uid, arguments.gid);
        step("the folder's owner", given)?;
    }
    Ok(place.join(&jail.program))
}

fn not_started(program: &Path, error: &std::io::Error) -> String {
    format!("cannot run '{}': {error}", program.display())
}

fn limit(limits: &[ResourceLimit]) -> Result<(), String> {
    let set = |resource, value| {
        let limit = Rlimit {
            current: Some(value),
            maximum: Some(value),
        };
        setrlimit(resource, limit).map_err(|error| format!("--resource-limit: {error}"))
    };
    let names_files = |it: &ResourceLimit| matches!(it, ResourceLimit::Files(_));
    if !limits.iter().any(names_files) {
        let most = rustix::process::getrlimit(Resource::Nofile).maximum;
        set(
            Resource::Nofile,
            most.map_or(DEFAULT_FILES, |most| most.min(DEFAULT_FILES)),
        )?;
    }
    for limit in limits {
        match *limit {
            ResourceLimit::FileSize(bytes) => set(Resource::Fsize, bytes)?,
            ResourceLimit::Files(count) => set(Resource::Nofile, count)?,
        }
    }
    Ok(())
}

fn now_us() -> u128 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |now| now.as_micros())
}

fn processor_us() -> i64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec * 1_000_000 + time.tv_nsec / 1000
}
