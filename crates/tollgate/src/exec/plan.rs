//! The plan of a run of `tollgate exec`: the kernel, what the guest shares with this host, and the
//! agent's task, derived from the arguments and this host.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::process::{Gid, getegid, geteuid, getgroups};
use tollgate_agent::protocol::{MOUNT_PARAMETER, Mount, READ_ONLY, ROOT_TAG, Root, Start, User};
use tollgate_machine::config::{
    AdapterModel, DriveOptions, NetworkKind, NetworkOptions, ShareOptions, VsockOptions,
};

use super::arguments::ExecArguments;
use super::kernel::{self, Kernel, Needs};
use super::own_terminal::own_terminal;
use super::sandbox;
use crate::failure::Failure;

/// The beginning of the kernel's command line. The kernel must be quiet, because each character on
/// the console is an exit. It does not probe for hardware that this machine lacks. The self-tests
/// of the kernel's ciphers alone would take a tenth of a second or more. The pressure on
/// memory and processors is computed at each switch between programs. AppArmor and TOMOYO are called
/// at each file that is opened, and have no rules in a guest.
const COMMAND_LINE: &str = "console=ttyS0 panic=-1 tsc=reliable mitigations=off \
    random.trust_cpu=on 8250.nr_uarts=1 i8042.noaux audit=0 cryptomgr.notests nowatchdog psi=0 \
    lsm=landlock,lockdown,yama,integrity,bpf";

/// The number of seconds for which the guest may cache what it has read of its root. Programs of
/// the host are seldom replaced while a command runs.
const ROOT_CACHE_SECONDS: u32 = 60;

/// Variables that a command gets with their values here: those for every root, and those for the
/// host's own root.
const VARIABLES: [&str; 5] = ["TERM", "COLORTERM", "TZ", "LANG", "LANGUAGE"];
const HOST_VARIABLES: [&str; 5] = ["PATH", "HOME", "USER", "LOGNAME", "SHELL"];

/// The variables of a sandboxed command: how its output may look.
const SANDBOX_VARIABLES: [&str; 2] = ["TERM", "COLORTERM"];
/// The name of every sandboxed guest, and the mode bits that are cleared in its new files.
const SANDBOX_NAME: &str = "sandbox";
const SANDBOX_UMASK: u32 = 0o022;

/// The plan of a run.
pub struct Plan {
    /// The guest's kernel.
    pub kernel: Kernel,
    /// The disk with the root, if it is one.
    pub drives: Vec<DriveOptions>,
    /// The directories of this host that the guest uses.
    pub shares: Vec<ShareOptions>,
    /// The guest's networks.
    pub networks: Vec<NetworkOptions>,
    /// Its sockets to this host.
    pub vsock: Option<VsockOptions>,
    /// The agent's task.
    pub start: Start,
}

/// A directory of the host and its place in the guest.
struct Place {
    directory: PathBuf,
    path: PathBuf,
    readonly: bool,
}

impl Plan {
    /// Makes a plan.
    ///
    /// # Errors
    /// One line says which argument is wrong, or what this host lacks.
    pub fn new(arguments: &ExecArguments) -> Result<Self, Failure> {
        let is_sandbox = arguments.sandbox.sandbox;
        if is_sandbox {
            sandbox::check(arguments)?;
        }
        let limits = arguments.sandbox.limits(arguments)?;
        let root = arguments.root.as_deref().unwrap_or(Path::new("/"));
        let is_hosts_root = has_hosts_root(arguments);
        // The links of a stranger's system may lead to any file here.
        let root_of_modules = if is_sandbox { Path::new("/") } else { root };
        let kernel = kernel::find(
            arguments.kernel.as_deref(),
            arguments.modules.as_deref(),
            root_of_modules,
        )?;
        kernel.check()?;
        let here = match is_sandbox {
            true => PathBuf::from("/"),
            false => std::env::current_dir().map_err(|error| {
                Failure::usage(format!("the current directory cannot be told: {error}"))
            })?,
        };
        let places = places(arguments, &here)?;
        let mut shares = Vec::new();
        if arguments.image.is_none() {
            shares.push(ShareOptions {
                readonly: true,
                cache_seconds: ROOT_CACHE_SECONDS,
                keeps_owners: is_hosts_root,
                // The agent mounts it read-only, so that files need not be opened to be read.
                reads_unopened: true,
                lists_unopened: true,
                // If the root is another system's, a guest may have written these attributes.
                hides_attributes: is_hosts_root,
                ..ShareOptions::new(root, ROOT_TAG)
            });
        }
        let mut mounts = Vec::new();
        for (index, place) in places.into_iter().enumerate() {
            let tag = format!("share{index}");
            shares.push(ShareOptions {
                readonly: place.readonly,
                keeps_owners: is_hosts_root,
                reads_unopened: true,
                ..ShareOptions::new(place.directory, &tag)
            });
            mounts.push(Mount {
                tag,
                path: place.path,
                readonly: place.readonly,
            });
        }
        let networks = arguments.network.networks();
        if networks
            .iter()
            .any(|network| network.model != AdapterModel::Virtio)
        {
            return Err(Failure::usage(
                "--net: the guest of a command has drivers for model=virtio alone",
            ));
        }
        let directory = match &arguments.workdir {
            Some(directory) => here.join(directory),
            None => here,
        };
        let image = arguments.image.as_ref();
        let start = Start {
            root: image.map_or(Root::Share, |image| Root::Disk {
                partition: image.partition,
            }),
            root_is_writable: image.is_some_and(|image| image.is_writable),
            mounts,
            // The agent configures the first interface.
            has_user_network: networks
                .first()
                .is_some_and(|network| matches!(network.kind, NetworkKind::User(_))),
            host_name: match is_sandbox {
                true => SANDBOX_NAME.into(),
                false => fs::read_to_string("/proc/sys/kernel/hostname")
                    .map_or_else(|_| "tollgate".into(), |name| name.trim().to_owned()),
            },
            command: arguments.command.clone(),
            environment: environment(arguments)?,
            directory,
            user: match &arguments.user {
                Some(user) => User::Named(user.clone()),
                None if is_hosts_root => own_user(),
                None => User::Numbers(0, 0, Vec::new()),
            },
            umask: if is_sandbox { SANDBOX_UMASK } else { umask() },
            terminal: own_terminal().filter(|_| !arguments.no_input && !arguments.keep.keep),
            is_kept: arguments.keep.keep,
            has_private_tmp: is_sandbox,
            limits,
        };
        let drive = image.map(|image| match is_sandbox {
            true => sandbox::drive(image),
            false => image.drive.clone(),
        });
        Ok(Self {
            kernel,
            drives: drive.into_iter().collect(),
            shares,
            networks,
            vsock: arguments.network.vsock.clone(),
            start,
        })
    }

    /// What the guest has in addition to its root and its streams.
    pub fn needs(&self) -> Needs {
        Needs {
            network: !self.networks.is_empty(),
            disk: !self.drives.is_empty(),
            vsock: self.vsock.is_some(),
        }
    }
}

/// Whether the guest's root is this host's own.
fn has_hosts_root(arguments: &ExecArguments) -> bool {
    arguments.root.is_none() && arguments.image.is_none()
}

/// The directories that the guest shares in addition to its root: the current directory, unless
/// that is the root itself, and those that flags name. Each comes after the directories that
/// contain it.
fn places(arguments: &ExecArguments, here: &Path) -> Result<Vec<Place>, Failure> {
    let absolute = |flag: &str, directory: &Path| {
        fs::canonicalize(directory)
            .map_err(|error| Failure::usage(format!("{flag}: '{}': {error}", directory.display())))
    };
    let mut places: Vec<Place> = Vec::new();
    let mut add = |place: Place| {
        // The last flag for a path is the valid one.
        places.retain(|other| other.path != place.path);
        places.push(place);
    };
    if here != Path::new("/") {
        add(Place {
            directory: here.to_owned(),
            path: here.to_owned(),
            readonly: false,
        });
    }
    for directory in &arguments.rw {
        let path = absolute("--rw", directory)?;
        add(Place {
            directory: path.clone(),
            path,
            readonly: false,
        });
    }
    for share in &arguments.share {
        let directory = absolute("--share", &share.directory)?;
        add(Place {
            path: share.path.clone().unwrap_or_else(|| directory.clone()),
            directory,
            readonly: share.readonly,
        });
    }
    if let Some(place) = places.iter().find(|place| place.path == Path::new("/")) {
        let directory = place.directory.display();
        return Err(Failure::usage(format!(
            "'{directory}' cannot be shared as the guest's root; name it with --root"
        )));
    }
    places.sort_by_key(|place| place.path.components().count());
    Ok(places)
}

/// The command's environment.
fn environment(arguments: &ExecArguments) -> Result<Vec<OsString>, Failure> {
    let mut names: Vec<OsString> = match arguments.sandbox.sandbox {
        true => SANDBOX_VARIABLES.iter().map(OsString::from).collect(),
        false => VARIABLES.iter().map(OsString::from).collect(),
    };
    if has_hosts_root(arguments) {
        names.extend(HOST_VARIABLES.iter().map(OsString::from));
    }
    if !arguments.sandbox.sandbox {
        let of_language = std::env::vars_os().map(|(name, _)| name);
        names.extend(of_language.filter(|name| name.as_bytes().starts_with(b"LC_")));
    }
    let is_unset = |name: &OsStr| {
        arguments.env.iter().any(|given| {
            let given = given.as_bytes();
            given.starts_with(name.as_bytes()) && given.get(name.len()) == Some(&b'=')
        })
    };
    names.retain(|name| !is_unset(name));
    let mut variables = Vec::new();
    let mut copy = |name: &OsStr| {
        if let Some(value) = std::env::var_os(name) {
            let mut variable = name.to_owned();
            variable.push("=");
            variable.push(value);
            variables.push(variable);
        }
    };
    for name in &names {
        copy(name);
    }
    let mut given = Vec::new();
    for variable in &arguments.env {
        match variable.as_bytes().iter().position(|byte| *byte == b'=') {
            Some(0) => return Err(Failure::usage("--env: a variable needs a name")),
            Some(_) => given.push(variable.clone()),
            None => copy(variable),
        }
    }
    variables.extend(given);
    Ok(variables)
}

/// The user who runs this process.
fn own_user() -> User {
    let others = getgroups().unwrap_or_default();
    User::Numbers(
        geteuid().as_raw(),
        getegid().as_raw(),
        others.into_iter().map(Gid::as_raw).collect(),
    )
}

/// The file mode creation mask of this process. The only way to read it without /proc is to set it,
/// so this is called before other threads create files.
fn umask() -> u32 {
    use rustix::fs::Mode;
    use rustix::process::umask;
    let mask = umask(Mode::from_bits_retain(0o077));
    umask(mask);
    mask.bits()
}

/// The kernel's command line. With --verbose the console shows the kernel's messages.
pub fn command_line(arguments: &ExecArguments, shares: &[ShareOptions]) -> String {
    let loudness = match arguments.verbose {
        true => "loglevel=7",
        false => "quiet",
    };
    // The agent mounts the shares before it has its task.
    let mounts: String = shares
        .iter()
        .map(|share| {
            let access = if share.readonly { READ_ONLY } else { "rw" };
            format!(" {MOUNT_PARAMETER}{}:{access}", share.tag)
        })
        .collect();
    format!("{COMMAND_LINE} {loudness}{mounts} {}", arguments.append)
}
