//! The command line of `jailer`, which is that of Firecracker's jailer.

use std::path::{Component, Path, PathBuf};

use clap::Parser;

/// Starts tollgate-firecracker in a folder of its own, with as little as it needs
///
/// These are the flags of Firecracker's jailer. Root gets all of it; for other users each step that
/// takes privileges is left out if the host refuses it, and one line on standard error names it. The
/// folder is DIR/NAME/ID/root, with DIR from --chroot-base-dir and NAME of the program.
#[derive(Parser, Debug)]
#[command(
    name = "jailer",
    version,
    max_term_width = 96,
    after_long_help = "\
Exit codes: 1 a step failed, and one line says which; otherwise those of tollgate-firecracker.
Example:
  jailer --id box1 --exec-file /usr/bin/tollgate-firecracker --uid $(id -u) --gid $(id -g) \\
      --chroot-base-dir ~/jails -- --config-file vm.json"
)]
pub struct JailerArguments {
    /// The machine's name: letters, digits and hyphens, at most 64
    #[arg(long, value_name = "ID", value_parser = crate::firecracker::id)]
    pub id: String,

    /// The program, whose name contains 'firecracker'; it is copied
    #[arg(long, value_name = "PATH")]
    pub exec_file: PathBuf,

    /// The user who runs it
    #[arg(long, value_name = "NUMBER")]
    pub uid: u32,

    /// The group of this user
    #[arg(long, value_name = "NUMBER")]
    pub gid: u32,

    /// The folder with the folders of machines
    #[arg(long, value_name = "DIR", default_value = "/srv/jailer")]
    pub chroot_base_dir: PathBuf,

    /// The network namespace in which it runs
    #[arg(long, value_name = "PATH")]
    pub netns: Option<PathBuf>,

    /// Run it in a session of its own, without standard streams
    #[arg(long)]
    pub daemonize: bool,

    /// Run it in a process namespace of its own; its number is written to NAME.pid in its folder
    #[arg(long)]
    pub new_pid_ns: bool,

    /// A value for its control group, such as cpu.shares=512. May be repeated
    #[arg(long, value_name = "FILE=VALUE", value_parser = cgroup)]
    pub cgroup: Vec<(String, String)>,

    /// Which control groups are used
    #[arg(long, value_name = "1|2", default_value = "1", value_parser = ["1", "2"])]
    pub cgroup_version: String,

    /// The group in which its group is made, instead of the program's name
    #[arg(long, value_name = "PATH", value_parser = inner)]
    pub parent_cgroup: Option<PathBuf>,

    /// fsize=BYTES or no-file=COUNT. May be repeated
    #[arg(long, value_name = "NAME=VALUE", value_parser = resource)]
    pub resource_limit: Vec<ResourceLimit>,

    /// Flags of the program
    #[arg(value_name = "FLAG", last = true)]
    pub flags: Vec<String>,
}

/// A limit of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ResourceLimit {
    /// The most bytes of a file that it writes.
    FileSize(u64),
    /// The most descriptors.
    Files(u64),
}

fn resource(text: &str) -> Result<ResourceLimit, String> {
    const EXPECTED: &str = "expected fsize=BYTES or no-file=COUNT";
    let (name, value) = text.split_once('=').ok_or(EXPECTED)?;
    let value = value.parse().map_err(|_| EXPECTED)?;
    match name {
        "fsize" => Ok(ResourceLimit::FileSize(value)),
        "no-file" => Ok(ResourceLimit::Files(value)),
        _ => Err(EXPECTED.into()),
    }
}

fn cgroup(text: &str) -> Result<(String, String), String> {
    const EXPECTED: &str = "expected FILE=VALUE, such as cpu.shares=512";
    let (file, value) = text.split_once('=').ok_or(EXPECTED)?;
    let is_name = |it: &str| !it.is_empty() && !it.contains('/') && it.contains('.');
    match is_name(file) && !file.starts_with('.') && !value.is_empty() {
        true => Ok((file.to_owned(), value.to_owned())),
        false => Err(EXPECTED.into()),
    }
}

/// A path inside of another one.
fn inner(text: &str) -> Result<PathBuf, String> {
    let path = Path::new(text);
    let is_name = |it: Component<'_>| matches!(it, Component::Normal(_));
    match path.components().all(is_name) && !text.is_empty() {
        true => Ok(path.to_owned()),
        false => Err("expected a relative path without '..'".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_flags_are_consistent() {
        JailerArguments::command().debug_assert();
    }

    #[test]
    fn values_are_those_of_firecracker_s_jailer() {
        assert_eq!(resource("fsize=9"), Ok(ResourceLimit::FileSize(9)));
        assert_eq!(resource("no-file=9"), Ok(ResourceLimit::Files(9)));
        for wrong in ["", "fsize", "fsize=x", "cpu=1"] {
            assert!(resource(wrong).is_err(), "{wrong}");
        }
        assert_eq!(cgroup("cpu.max=1 2"), Ok(("cpu.max".into(), "1 2".into())));
        for wrong in ["", "cpu", "cpu.max=", "../a.b=1", ".a=1", "cpu=1"] {
            assert!(cgroup(wrong).is_err(), "{wrong}");
        }
        assert_eq!(inner("a/b"), Ok(PathBuf::from("a/b")));
        for wrong in ["", "/a", "../a", "a/../../b"] {
            assert!(inner(wrong).is_err(), "{wrong}");
        }
    }
}
