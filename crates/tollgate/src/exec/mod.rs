//! `tollgate exec`: runs one command in a virtual machine, with this host's files, and returns its
//! exit code.
//!
//! ```text
//! arguments --> kernel and modules --> initramfs: the agent, its orders, modules
//!           --> shares: the root (read-only), the current directory, others
//!           --> ports: control, standard input, output, error --> session (a thread)
//! the vCPU runs on a thread of its own, as in `tollgate run`
//! ```
//!
//! The other side is the crate `tollgate-agent`, which also defines the protocol between the two.

mod arguments;
mod broker;
mod build_error;
mod compressed;
mod console;
mod first_writes;
mod image;
mod initramfs;
mod inside;
mod keep;
mod kernel;
mod session;
mod streams;
mod template;
mod unindexed;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Gid, Resource, getegid, geteuid, getgroups, getrlimit};
use tollgate_agent::protocol::{
    MOUNT_PARAMETER, Mount, PORT_NAMES, READ_ONLY, ROOT_TAG, Root, Start, Terminal, User, code,
    task_frames,
};
use tollgate_host_facts::file_words::writing;
use tollgate_machine::config::{
    DriveOptions, NetworkKind, OnLoss, PortOptions, PortTarget, ShareOptions, TripleFaultAction,
    VmConfig,
};
use tollgate_machine::vm::{Consoles, RunOutcome, Vm};
use tollgate_machine::vm_handle::VmHandle;

pub use arguments::{ExecArguments, ShareArgument, join_networks};
use console::Console;
use first_writes::FirstWrites;
pub use inside::{Connection, Heard, feed};
use keep::Keep;
use kernel::{Kernel, Needs};
use session::{End, Session, Setup};
use streams::Links;
pub use template::SUFFIX as TEMPLATE_SUFFIX;
use template::Template;

use crate::cache::folders;
use crate::cache::translations::{self, Begin, Translations};
use crate::control::identity::Identity;
use crate::control::run_time;
use crate::failure::{Failure, say};
use crate::machines::{self, Facts, detach};
use crate::signals::Signals;
use crate::statistics::{FinalReport, Reporter};
use crate::trace_file::TraceFile;
use crate::{confinement, doctor, exit_code, perf_map};

/// The exit code of failures of Tollgate itself.
const FAILED: u8 = code::FAILED;

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

/// Runs `tollgate exec` and returns its exit code.
pub fn run(arguments: &ExecArguments) -> u8 {
    if let Some(name) = &arguments.keep.inside {
        return inside::run(name, arguments);
    }
    let detached = detach::begin(&arguments.machine.presence);
    let run = |detached| match detached {
        Some(code) => Ok(code),
        None => start_and_run(arguments),
    };
    detached.and_then(run).unwrap_or_else(|failure| {
        failure.report();
        FAILED
    })
}

fn start_and_run(arguments: &ExecArguments) -> Result<u8, Failure> {
    let started = Instant::now();
    doctor::required_floor().map_err(Failure::host)?;
    doctor::warn();
    check_descriptors()?;
    if !arguments.no_input && !arguments.keep.keep {
        streams::check_input()?;
    }
    let plan = Plan::new(arguments)?;
    let host =
        |what: &'static str| move |error| Failure::host(format!("{what}: {}", writing(&error)));

    let links = Links::new().map_err(host("no sockets for the guest's ports"))?;
    let mut config = configuration(arguments, &plan, &links)?;
    let key = template::key(&config, &plan.kernel.files(plan.needs()));
    let translation_folder = match &arguments.machine.translation_cache {
        Some(flag) => translations::folder(flag)?,
        None => folders::translations(),
    };
    let template = match key {
        Some(key) if !arguments.cold => Template::of(&config, key),
        _ => None,
    };

    confinement::begin(arguments.machine.confine, &config, FAILED)?;
    // Signals are blocked before any thread exists, because threads inherit that.
    let signals =
        Signals::block_these(&session::SIGNALS).map_err(host("cannot receive signals"))?;
    let reporter = Arc::new(Reporter::open(&arguments.statistics)?);
    let report = FinalReport::open(&arguments.statistics, &reporter)?;
    let identity = Identity::new(
        config.memory_bytes,
        Some(&config.kernel),
        None,
        &config.append,
    );
    let presence = &arguments.machine.presence;
    let facts = Facts::new(what(arguments), config.memory_bytes, presence);
    let name = facts.name.clone();
    let _entry = machines::register(presence, facts)?;
    let (control_server, _link) =
        run_time::open(arguments.machine.control.as_deref(), &reporter, &identity)?;
    let console = Console::new(arguments.verbose);
    let handle = VmHandle::new();
    let continued = match &arguments.keep.restore {
        Some(path) => Some(template::continued(path, &config)?),
        None => None,
    };
    let template = template.filter(|_| continued.is_none());
    let warm = template.as_ref().and_then(|template| {
        let mut snapshot = template.open()?;
        let record = FirstWrites::follow(template.first_writes(), &mut snapshot);
        let consoles = consoles_on(&console);
        let vm = Vm::restored(snapshot, &config, consoles, &handle);
        let mut vm = vm.inspect_err(|_| template.remove()).ok()?;
        if let Some(record) = &record {
            record.begin(&mut vm);
        }
        Some((vm, record))
    });
    let warm = match continued {
        Some(snapshot) => {
            let vm = Vm::restored(snapshot, &config, consoles_on(&console), &handle);
            Some((
                vm.map_err(|error| Failure::usage(format!("--restore: {error}")))?,
                None,
            ))
        }
        None => warm,
    };
    let is_warm = warm.is_some();
    let (mut vm, record) = match warm {
        Some(warm) => warm,
        None => {
            let modules = plan.kernel.read_modules(plan.needs())?;
            config.initramfs = Some(initramfs::new(&modules, plan.kernel.is_32_bit()));
            let vm = Vm::build(&config, consoles_on(&console), &handle)
                .map_err(|error| build_error::failure_of(&error, arguments))?;
            (vm, None)
        }
    };
    let begin = if is_warm { Begin::Warm } else { Begin::Cold };
    let translations = (translation_folder.zip(key))
        .and_then(|(folder, key)| Translations::of(&config, key, begin, &folder));
    if let Some(translations) = &translations {
        translations.lend(&mut vm);
    }
    drop(links.guest);
    confinement::enter();
    let trace = TraceFile::begin(&arguments.statistics, &reporter, &mut vm)?;
    let setup = Setup {
        task: task(&plan.start)?,
        is_warm,
        template: template.filter(|_| !is_warm).map(Template::new_one),
        signals,
        links: links.host,
        has_terminal: plan.start.terminal.is_some(),
        shows_progress: session::show_progress(arguments.verbose),
        has_no_input: arguments.no_input,
        boot_timeout: arguments.boot_timeout,
        timeout: arguments.timeout,
        control_server,
        keep: arguments.keep.keep.then(|| Keep {
            name: name.clone(),
            ends_with_input: arguments.keep.end_with_input,
            continues: arguments.keep.restore.is_some(),
        }),
    };
    if !arguments.keep.keep {
        detach::report_ready(&name);
    }
    let session = Session::start(setup, handle).map_err(host("cannot talk to the guest"))?;

    let start_up = started.elapsed();
    // After a panic the machine is only asked for its counts.
    let outcome = confinement::run(&mut vm)?;
    let outcome_is_known = outcome.is_some();
    let (end, losses) = session.finish();
    if let Some(record) = record.filter(|_| outcome_is_known) {
        record.write(&mut vm);
    }
    let code = match end {
        Some(end) => losses.exit_code(report_end(&end)),
        None => report_outcome(outcome, &console),
    };
    let mut is_written = !console.has_lost_output();
    if let Some(trace) = trace {
        vm.end_trace();
        is_written &= trace.finish();
    }
    if arguments.statistics.perf_map {
        is_written &= perf_map::write(&vm, &reporter);
    }
    is_written &= report.is_none_or(|report| report.write(&vm, start_up));
    if let Some(translations) = translations.filter(|_| outcome_is_known) {
        translations.keep(&vm);
    }
    vm.end_with_process();
    Ok(match code {
        exit_code::SUCCESS if !is_written => FAILED,
        code => code,
    })
}

/// What the machine runs, for lists of machines.
fn what(arguments: &ExecArguments) -> String {
    if arguments.keep.keep {
        return "(kept for commands)".into();
    }
    let words = arguments.command.iter().map(|word| word.to_string_lossy());
    words.collect::<Vec<_>>().join(" ")
}

/// The machine's consoles.
fn consoles_on(console: &Console) -> Consoles {
    Consoles {
        serial: Box::new(console.clone()),
        debug: Box::new(io::sink()),
    }
}

/// The frames with the agent's task, the present time, and random bytes for the guest.
fn task(start: &Start) -> Result<Vec<u8>, Failure> {
    let (time_ns, entropy) = moment()?;
    Ok(task_frames(start, time_ns, &entropy))
}

/// The present time in nanoseconds since 1970, and random bytes for the guest.
fn moment() -> Result<(u64, [u8; 64]), Failure> {
    let mut entropy = [0; 64];
    rustix::rand::getrandom(&mut entropy, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| Failure::host(format!("no random bytes for the guest: {error}")))?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    Ok((now.map_or(0, |now| now.as_nanos() as u64), entropy))
}

/// The number of files and sockets that a machine with two shares opens by itself, and some for the
/// command.
const LEAST_DESCRIPTORS: u64 = 128;

/// Refuses a limit on open files that would make the guest's root fail during the start. The soft
/// limit is raised to the hard one later.
fn check_descriptors() -> Result<(), Failure> {
    match getrlimit(Resource::Nofile).maximum {
        Some(limit) if limit < LEAST_DESCRIPTORS => Err(Failure::host(format!(
            "this process may have {limit} files open; a guest's root needs {LEAST_DESCRIPTORS} \
             ('ulimit -n')"
        ))),
        _ => Ok(()),
    }
}

/// The explanation for a command whose processes the guest's kernel has killed for lack of memory.
const OUT_OF_MEMORY: &str =
    "the guest's memory was full (--memory gives it more), and its kernel has killed";

/// Reports how the command ended, if that needs a report; returns the exit code.
fn report_end(end: &End) -> u8 {
    match end {
        End::Exited {
            code,
            killed_for_memory,
        } => {
            match killed_for_memory {
                0 => {}
                1 => say(&format!("{OUT_OF_MEMORY} a process")),
                count => say(&format!("{OUT_OF_MEMORY} {count} processes")),
            }
            *code
        }
        End::Failed { code, why } => {
            say(why);
            *code
        }
        End::Signal(signal) => exit_code::for_signal(*signal),
        End::TimedOut => code::TIMED_OUT,
    }
}
use report_end as report;

/// Reports why the guest ended before its command did; returns the exit code.
fn report_outcome(outcome: Option<RunOutcome>, console: &Console) -> u8 {
    let why = match outcome {
        Some(RunOutcome::PowerOff) => "switched itself off".into(),
        Some(RunOutcome::Reset(cause)) => format!("was reset by {cause}"),
        Some(RunOutcome::TripleFault(_)) => "was reset by a triple fault".into(),
        Some(RunOutcome::Panicked(_)) => "panicked".into(),
        Some(RunOutcome::Stopped(why)) => format!("was stopped: {why}"),
        Some(RunOutcome::Quit | RunOutcome::DebugExit(_)) => "was ended".into(),
        None => {
            say("tollgate failed (the message above says where); please report it");
            return FAILED;
        }
    };
    let lines = console.last_lines();
    let colon = if lines.is_empty() {
        ""
    } else {
        "; its last words:"
    };
    say(&format!("the guest {why} before the command ended{colon}"));
    let _ = io::stderr().write_all(lines.as_bytes());
    FAILED
}

/// The plan of a run, derived from the arguments and this host.
struct Plan {
    kernel: Kernel,
    drives: Vec<DriveOptions>,
    shares: Vec<ShareOptions>,
    networks: Vec<tollgate_machine::config::NetworkOptions>,
    vsock: Option<tollgate_machine::config::VsockOptions>,
    start: Start,
}

/// A directory of the host and its place in the guest.
struct Place {
    directory: PathBuf,
    path: PathBuf,
    readonly: bool,
}

impl Plan {
    fn new(arguments: &ExecArguments) -> Result<Self, Failure> {
        let root = arguments.root.as_deref().unwrap_or(Path::new("/"));
        let is_hosts_root = has_hosts_root(arguments);
        let kernel = kernel::find(
            arguments.kernel.as_deref(),
            arguments.modules.as_deref(),
            root,
        )?;
        kernel.check()?;
        let here = std::env::current_dir().map_err(|error| {
            Failure::usage(format!("the current directory cannot be told: {error}"))
        })?;
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
            host_name: fs::read_to_string("/proc/sys/kernel/hostname")
                .map_or_else(|_| "tollgate".into(), |name| name.trim().to_owned()),
            command: arguments.command.clone(),
            environment: environment(arguments)?,
            directory,
            user: match &arguments.user {
                Some(user) => User::Named(user.clone()),
                None if is_hosts_root => own_user(),
                None => User::Numbers(0, 0, Vec::new()),
            },
            umask: umask(),
            terminal: own_terminal().filter(|_| !arguments.no_input && !arguments.keep.keep),
            is_kept: arguments.keep.keep,
        };
        Ok(Self {
            kernel,
            drives: image.map(|image| image.drive.clone()).into_iter().collect(),
            shares,
            networks,
            vsock: arguments.network.vsock.clone(),
            start,
        })
    }
}

impl Plan {
    /// What the guest has in addition to its root and its streams.
    fn needs(&self) -> Needs {
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
    let mut names: Vec<OsString> = VARIABLES.iter().map(OsString::from).collect();
    if has_hosts_root(arguments) {
        names.extend(HOST_VARIABLES.iter().map(OsString::from));
    }
    let of_language = std::env::vars_os().map(|(name, _)| name);
    names.extend(of_language.filter(|name| name.as_bytes().starts_with(b"LC_")));
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

/// The terminal that the command gets, if standard input and one of the outputs are terminals.
fn own_terminal() -> Option<Terminal> {
    let has_output = io::stdout().is_terminal();
    let has_errors = io::stderr().is_terminal();
    let is_terminal = io::stdin().is_terminal() && (has_output || has_errors);
    is_terminal.then(|| Terminal {
        size: session::window_size(),
        has_output,
        has_errors,
    })
}

/// The kernel's command line. With --verbose the console shows the kernel's messages.
fn command_line(arguments: &ExecArguments, shares: &[ShareOptions]) -> String {
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

fn configuration(
    arguments: &ExecArguments,
    plan: &Plan,
    links: &Links,
) -> Result<VmConfig, Failure> {
    let ports = PORT_NAMES.iter().zip(links.guest_descriptors());
    let mut config = VmConfig {
        kernel: plan.kernel.image.clone(),
        append: command_line(arguments, &plan.shares),
        triple_fault: TripleFaultAction::Reset,
        // The agent gives a restored guest random bytes before it runs anything.
        generation_id: false,
        drives: plan.drives.clone(),
        shares: plan.shares.clone(),
        networks: plan.networks.clone(),
        vsock: plan.vsock.clone(),
        ports: ports
            .map(|(name, descriptor)| PortOptions {
                name: (*name).into(),
                target: PortTarget::Descriptor(descriptor),
                is_console: false,
                on_loss: OnLoss::default(),
            })
            .collect(),
        count_instructions: arguments.statistics.count_instructions,
        ..VmConfig::default()
    };
    arguments.machine.apply(&mut config);
    arguments.developer.apply(&mut config)?;
    config
        .validate()
        .map_err(|error| Failure::usage(error.to_string()))?;
    Ok(config)
}
