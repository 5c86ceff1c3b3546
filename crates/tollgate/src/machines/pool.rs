//! `tollgate pool`: keeps machines ready, and hands one out to each who asks.
//!
//! ```text
//!   one thread: starts 'tollgate exec --keep --end-with-input' until enough machines are ready
//!   a thread for each client: takes a machine, says where it is, and ends it when the client has gone
//! ```
//!
//! Each machine's standard input is a pipe of this process, so all end with it, however that ends.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::entry::{self, Facts};
use super::name::Name;
use crate::control::run_time;
use crate::exit_code;
use crate::failure::{Failure, say};
use crate::flags::{Admission, PresenceArguments};
use crate::host;
use crate::signals::{Asked, Signals};
use crate::standard_output::print;
use crate::unix_socket::{self, SocketFile};

/// How long no machine is started after one could not be.
const PAUSE: Duration = Duration::from_secs(1);

/// The arguments of `tollgate pool`.
#[derive(Args, Debug)]
#[command(after_help = "\
'tollgate exec --in NAME' takes a machine that is ready, runs its command there and ends the machine; another
one is started in its place. Machines share what they only read of the host's memory.
The pool prints its name when all machines are ready. It ends by tollgate kill NAME, or a signal, and all
its machines with it.
Example:
  tollgate pool --size 5 --name web --warm 'python3 -c pass' -- --memory 512M &
  tollgate exec --in web -- python3 -c 'print(1)'")]
pub struct PoolArguments {
    /// How many machines are ready
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=256))]
    pub size: u32,

    /// The pool's name, instead of its process's number
    #[arg(long, value_name = "NAME")]
    pub name: Option<Name>,

    /// Run this command of the guest's shell in each machine before it is ready
    ///
    /// The next command of its kind finds the files in memory and the code translated. What the command
    /// writes is thrown away; what it changes in its machine stays. If it fails, the machine is
    /// not used.
    #[arg(long, value_name = "COMMAND", verbatim_doc_comment)]
    pub warm: Option<String>,

    /// End the pool when its standard input ends
    #[arg(long)]
    pub end_with_input: bool,

    /// Flags of 'tollgate exec' for each machine, after --
    #[arg(value_name = "FLAG", last = true)]
    pub flags: Vec<OsString>,
}

/// A machine that is ready.
struct Ready {
    process: Child,
    name: String,
}

impl Ready {
    fn has_ended(&mut self) -> bool {
        !matches!(self.process.try_wait(), Ok(None))
    }
}

impl Drop for Ready {
    fn drop(&mut self) {
        // The end of its standard input ends it. Only its process is waited for.
        drop(self.process.stdin.take());
        let _ = self.process.wait();
    }
}

struct Pool {
    flags: Vec<OsString>,
    warm: Option<String>,
    size: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    ready: VecDeque<Ready>,
    /// Why the last machine could not be started.
    refusal: Option<String>,
}

/// Runs `tollgate pool` and returns its exit code.
pub fn run(arguments: &PoolArguments) -> u8 {
    serve(arguments).unwrap_or_else(|failure| failure.report())
}

fn serve(arguments: &PoolArguments) -> Result<u8, Failure> {
    let failed = |error: io::Error| Failure::host(format!("no pool: {error}"));
    // Signals are blocked before any thread exists, because threads inherit that.
    let signals = Signals::block().map_err(failed)?;
    let presence = PresenceArguments {
        name: arguments.name.clone(),
        detach: false,
        detached_log: None,
        admission: Admission::Off,
    };
    let what = format!("(pool of {} machines)", arguments.size);
    let facts = Facts::new(what, 0, &presence);
    let name = facts.name.clone();
    let _entry = entry::register(&presence, facts)?;
    let (listener, _file) = listen()?;
    listener.set_nonblocking(false).map_err(failed)?;
    let pool = Arc::new(Pool {
        flags: arguments.flags.clone(),
        warm: arguments.warm.clone(),
        size: arguments.size as usize,
        state: Mutex::default(),
        changed: Condvar::new(),
    });
    let ended = Arc::new(host::event().map_err(failed)?);
    let has_none = Arc::new(AtomicBool::new(false));
    let filler = Arc::clone(&pool);
    let (ends, says_none) = (Arc::clone(&ended), Arc::clone(&has_none));
    thread::spawn(move || {
        filler.fill(&name);
        says_none.store(true, Ordering::Release);
        host::raise(ends.as_fd());
    });
    thread::spawn(move || pool.accept(&listener));
    if arguments.end_with_input {
        let ended = Arc::clone(&ended);
        thread::spawn(move || {
            let mut stdin = io::stdin().lock();
            while stdin.read(&mut [0; 64]).is_ok_and(|count| count > 0) {}
            host::raise(ended.as_fd());
        });
    }
    loop {
        let mut fds = [host::interest(ended.as_raw_fd(), libc::POLLIN)];
        signals.poll(&mut fds, None).map_err(failed)?;
        if fds[0].revents != 0 {
            return Ok(match has_none.load(Ordering::Acquire) {
                true => exit_code::HOST,
                false => exit_code::SUCCESS,
            });
        }
        if let Some(Asked::Signal(signal)) = signals.next() {
            return Ok(exit_code::for_signal(signal));
        }
    }
}

fn listen() -> Result<(UnixListener, SocketFile), Failure> {
    let folder = run_time::made().ok_or_else(|| {
        let folder = run_time::folder();
        Failure::host(format!(
            "'{}' is not a folder that only you can use",
            folder.display()
        ))
    })?;
    unix_socket::listen(&run_time::socket_in(&folder), "pool")
}

impl Pool {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts machines until enough are ready, one after the other, for as long as the process lives.
    /// Returns if not even the first one starts, which one line has said.
    fn fill(&self, name: &str) {
        let (mut is_announced, mut has_started) = (false, false);
        loop {
            let mut state = self.state();
            state.ready.retain_mut(|machine| !machine.has_ended());
            while state.ready.len() >= self.size {
                if !is_announced {
                    is_announced = true;
                    // A reader that has gone needs no name.
                    let _ = print(&format!("{name}\n"));
                }
                let woken = self.changed.wait(state);
                state = woken.unwrap_or_else(PoisonError::into_inner);
            }
            drop(state);
            let started = self.start();
            let mut state = self.state();
            match started {
                Ok(machine) => {
                    has_started = true;
                    state.ready.push_back(machine);
                    state.refusal = None;
                    self.changed.notify_all();
                }
                Err(why) => {
                    let why = why.trim_start_matches("tollgate: ").trim_end().to_owned();
                    if state.refusal.as_ref() != Some(&why) {
                        say(&format!("a machine of the pool does not start: {why}"));
                    }
                    state.refusal = Some(why);
                    self.changed.notify_all();
                    drop(state);
                    if !has_started {
                        return;
                    }
                    thread::sleep(PAUSE);
                }
            }
        }
    }

    /// Starts a machine and waits until it is ready.
    fn start(&self) -> Result<Ready, String> {
        let failed = |error: io::Error| error.to_string();
        let program = std::env::current_exe().map_err(failed)?;
        let mut process = Command::new(program)
            .args(["exec", "--keep", "--end-with-input"])
            .args(&self.flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let mut name = String::new();
        if let Some(output) = process.stdout.take() {
            let _ = BufReader::new(output).read_line(&mut name);
        }
        let errors = process.stderr.take();
        if name.ends_with('\n') {
            if let Some(errors) = errors {
                thread::spawn(move || report(errors));
            }
            let name = name.trim_end().to_owned();
            let machine = Ready { process, name };
            if let Some(command) = &self.warm {
                warm_up(&machine, command)?;
            }
            return Ok(machine);
        }
        let mut why = String::new();
        if let Some(mut errors) = errors {
            let _ = errors.read_to_string(&mut why);
        }
        let _ = process.wait();
        Err(why)
    }

    fn accept(self: &Arc<Self>, listener: &UnixListener) {
        for client in listener.incoming() {
            let Ok(client) = client else {
                thread::sleep(PAUSE);
                continue;
            };
            let pool = Arc::clone(self);
            // Without a thread the client finds its connection closed.
            let _ = thread::Builder::new().spawn(move || pool.lend(client));
        }
    }

    /// Lends a machine to a client until that has gone.
    fn lend(&self, mut client: UnixStream) {
        let taken = self.take();
        let answer = match &taken {
            Ok(machine) => json!({
                "ok": true,
                "name": machine.name,
                "pid": machine.process.id(),
                "socket": socket_of(machine),
            }),
            Err(why) => json!({"ok": false, "error": why}),
        };
        if client.write_all(format!("{answer}\n").as_bytes()).is_ok() && taken.is_ok() {
            let mut bytes = [0; 256];
            while client.read(&mut bytes).is_ok_and(|count| count > 0) {}
        }
        drop(taken);
    }

    /// Takes a machine that is ready, or waits for one.
    fn take(&self) -> Result<Ready, String> {
        let mut state = self.state();
        loop {
            while let Some(mut machine) = state.ready.pop_front() {
                self.changed.notify_all();
                if !machine.has_ended() {
                    return Ok(machine);
                }
            }
            if let Some(why) = &state.refusal {
                return Err(format!("the pool has no machine: {why}"));
            }
            let woken = self.changed.wait(state);
            state = woken.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Runs a command in a machine that was not handed out yet.
fn warm_up(machine: &Ready, command: &str) -> Result<(), String> {
    let failed = |error: io::Error| format!("--warm: {error}");
    let program = std::env::current_exe().map_err(failed)?;
    let mut process = Command::new(program);
    // The guest gets nothing of this process's environment but the way to its programs.
    process.env_clear();
    for name in ["PATH", "XDG_RUNTIME_DIR"] {
        process.envs(std::env::var_os(name).map(|value| (name, value)));
    }
    process.args(["exec", "-n", "--in", &machine.name, "--"]);
    process.args(["/bin/sh", "-c", command]);
    let output = process.output().map_err(failed)?;
    match output.status.success() {
        true => Ok(()),
        false => {
            let errors = String::from_utf8_lossy(&output.stderr);
            let last = errors.lines().last().unwrap_or("it says nothing");
            Err(format!("--warm: {}: {last}", output.status))
        }
    }
}

/// Shows what a machine says on standard error.
fn report(errors: impl Read) {
    for line in BufReader::new(errors).lines().map_while(Result::ok) {
        let line = line.strip_prefix("tollgate: ").unwrap_or(&line).to_owned();
        say(&line);
    }
}

fn socket_of(machine: &Ready) -> PathBuf {
    run_time::folder().join(format!("{}.sock", machine.process.id()))
}
