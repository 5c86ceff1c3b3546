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
mod own_terminal;
mod plan;
mod sandbox;
mod session;
mod streams;
mod template;
mod unindexed;

use std::io::{self, Write};
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Resource, getrlimit};
use tollgate_agent::protocol::{PORT_NAMES, Start, code, reached, task_frames};
use tollgate_host_facts::file_words::writing;
use tollgate_machine::config::{OnLoss, PortOptions, PortTarget, TripleFaultAction, VmConfig};
use tollgate_machine::vm::{Consoles, RunOutcome, Vm};
use tollgate_machine::vm_handle::VmHandle;

pub use arguments::{ExecArguments, ShareArgument, join_networks};
use console::Console;
use first_writes::FirstWrites;
pub use inside::{Connection, Heard, feed};
use keep::Keep;
use plan::{Plan, command_line};
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
use crate::{confinement, doctor, exit_code, limits, perf_map};

/// The exit code of failures of Tollgate itself.
const FAILED: u8 = code::FAILED;

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

    let limits = arguments.machine.limit.unwrap_or_default();
    // What confinement starts belongs to the group, too.
    let group = limits.enter(&mut config)?;
    let confine = arguments.sandbox.confine(arguments.machine.confine);
    confinement::begin(confine, &config, FAILED)?;
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
    limits.watch(group.as_ref(), &handle)?;
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
        // Secret memory is written to no file.
        template: template
            .filter(|_| !is_warm && !arguments.machine.secret_memory)
            .map(Template::new_one),
        signals,
        links: links.host,
        has_terminal: plan.start.terminal.is_some(),
        shows_progress: session::show_progress(arguments.verbose),
        has_no_input: arguments.no_input,
        boot_timeout: arguments.boot_timeout,
        timeout: (arguments.sandbox).timeout(arguments.timeout, arguments.keep.keep),
        timeout_is_default: arguments.timeout.is_none(),
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

/// The explanations for limits that a command has reached.
const LIMIT_LINES: [(u8, &str); 2] = [
    (
        reached::PROCESSES,
        "the command reached its limit of processes (--processes), and could not start another one",
    ),
    (
        reached::FILES,
        "the files that the command has changed or made fill their limit (--files)",
    ),
];

/// Reports how the command ended, if that needs a report; returns the exit code.
fn report_end(end: &End) -> u8 {
    match end {
        End::Exited {
            code,
            killed_for_memory,
            limits_reached,
        } => {
            match killed_for_memory {
                0 => {}
                1 => say(&format!("{OUT_OF_MEMORY} a process")),
                count => say(&format!("{OUT_OF_MEMORY} {count} processes")),
            }
            for (bit, line) in LIMIT_LINES {
                if limits_reached & bit != 0 {
                    say(line);
                }
            }
            *code
        }
        End::Failed { code, why } => {
            say(why);
            *code
        }
        End::Signal(signal) => exit_code::for_signal(*signal),
        End::TimedOut { default } => {
            if let Some(limit) = default {
                say(&format!(
                    "the command ran longer than {} minutes, the limit of a sandbox (--timeout)",
                    limit.as_secs() / 60
                ));
            }
            code::TIMED_OUT
        }
    }
}
use report_end as report;

/// Reports why the guest ended before its command did; returns the exit code.
fn report_outcome(outcome: Option<RunOutcome>, console: &Console) -> u8 {
    let why = match outcome {
        // A line has said why.
        Some(RunOutcome::Quit) if limits::are_exceeded() => return FAILED,
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
