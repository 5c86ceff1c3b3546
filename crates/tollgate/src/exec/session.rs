//! The thread that talks to the agent while the command runs. It forwards signals and the size of
//! the terminal, and learns how the command has ended.

use std::io::{self, IsTerminal, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::termios::{OutputModes, Termios};
use tollgate_agent::protocol::{DATA, Frames, ToGuest, ToHost, code, frame, port};
use tollgate_confine::ThreadKind;
use tollgate_machine::vm_handle::VmHandle;

use super::broker::Broker;
use super::keep::{Keep, Kept};
use super::own_terminal::window_size;
use super::streams::{self, Progress};
use super::template::NewTemplate;
use crate::control::server::{Handed, Server};
use crate::lost_output::LostOutput;
use crate::signals::{self, Asked, Signals};
use crate::terminal::{self, RawTerminal};
use crate::{exit_code, failure, host};

/// The signals that are forwarded to the command, and the one that reports a new size of the
/// terminal.
pub const SIGNALS: [libc::c_int; 7] = [
    libc::SIGTERM,
    libc::SIGINT,
    libc::SIGHUP,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGWINCH,
];

/// The number of times that an ending signal must come to end the machine.
const INSISTENT: u32 = 3;
/// How long the command may take to end after its time is over.
const TIMEOUT_GRACE: Duration = Duration::from_secs(5);
/// How long the vCPU thread may take to end after it was asked to.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// How the command or its machine ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// The command ended with this code.
    Exited {
        /// The exit code.
        code: u8,
        /// Processes that the guest's kernel has killed for lack of memory.
        killed_for_memory: u32,
        /// The limits that it has reached, as bits.
        limits_reached: u8,
    },
    /// The command cannot be run.
    Failed {
        /// The exit code.
        code: u8,
        /// Why it cannot be run.
        why: String,
    },
    /// A signal ended the machine, before the command ran or because the signal was repeated.
    Signal(i32),
    /// The command's time was over.
    TimedOut {
        /// The time, if it was not the user who has set it.
        default: Option<Duration>,
    },
}

impl End {
    /// A machine that stays was ended in order.
    const KEPT: Self = Self::Exited {
        code: exit_code::SUCCESS,
        killed_for_memory: 0,
        limits_reached: 0,
    };
}

/// The arguments of [`Session::start`].
pub struct Setup {
    /// The frames with the agent's task.
    pub task: Vec<u8>,
    /// The agent waits for its task already: the machine was restored.
    pub is_warm: bool,
    /// A template that is written when the agent is ready.
    pub template: Option<NewTemplate>,
    /// The signals that the thread reads, which are blocked already.
    pub signals: Signals,
    /// This process's ends of the ports: control, input, output, errors.
    pub links: [UnixStream; 4],
    /// Whether the command has a terminal.
    pub has_terminal: bool,
    /// Whether a line on standard error says that the guest is starting.
    pub shows_progress: bool,
    /// Whether standard input is not read, so that the command finds its input at the end.
    pub has_no_input: bool,
    /// How long the guest may take before it runs the command.
    pub boot_timeout: Duration,
    /// How long the command may take from then on.
    pub timeout: Option<Duration>,
    /// Whether this time is the limit of all sandboxes.
    pub timeout_is_default: bool,
    /// The control socket's server.
    pub control_server: Option<Server>,
    /// What a machine that stays does; `None` if it runs one command.
    pub keep: Option<Keep>,
}

/// The thread, and what it has learned.
pub struct Session {
    thread: Option<JoinHandle<()>>,
    stop: Arc<OwnedFd>,
    end: Arc<Mutex<Option<End>>>,
    losses: Losses,
}

/// Bytes of the command's streams that were lost on the host. Each loss was reported.
#[derive(Clone)]
pub struct Losses {
    outputs: [Arc<LostOutput>; 2],
    /// Whether standard input could not be read to its end.
    input: Arc<AtomicBool>,
}

impl Losses {
    /// The exit code for a command that ended with `code`. If output was lost, success becomes a
    /// failure, and so does an end by SIGPIPE, which the lost output has caused.
    pub fn exit_code(&self, code: u8) -> u8 {
        const SIGPIPE: u8 = code::SIGNAL + libc::SIGPIPE as u8;
        let has_lost_output = self.outputs.iter().any(|output| output.is_lost());
        let has_lost_input = self.input.load(Ordering::Acquire);
        match code {
            exit_code::SUCCESS if has_lost_output || has_lost_input => super::FAILED,
            SIGPIPE if has_lost_output => super::FAILED,
            code => code,
        }
    }
}

impl Session {
    /// Starts the thread.
    ///
    /// # Errors
    /// The host gives no thread or descriptor.
    pub fn start(setup: Setup, handle: VmHandle) -> io::Result<Self> {
        let stop = Arc::new(host::event()?);
        let moved = Arc::new(host::event()?);
        let [control, input, output, errors] = setup.links;
        let streams = [output, errors];
        let doors = [&control, &input, &streams[0], &streams[1]].map(UnixStream::try_clone);
        let doors = doors.into_iter().collect::<io::Result<Vec<_>>>()?;
        let outputs = [
            io::stdout().as_fd().try_clone_to_owned()?,
            io::stderr().as_fd().try_clone_to_owned()?,
        ];
        let lost = ["standard output", "standard error"].map(LostOutput::of_stream);
        let mut progress = Vec::new();
        let (input, kept) = match setup.keep {
            Some(keep) => {
                let [output, _errors] = streams;
                let broker = Broker::start(input, output, Arc::clone(&moved))?;
                (None, Some(Kept::new(keep, broker)))
            }
            None => {
                for ((stream, output), lost) in streams.into_iter().zip(outputs).zip(&lost) {
                    let (moved, lost) = (Arc::clone(&moved), Arc::clone(lost));
                    progress.push(streams::receive_output(stream, output, moved, lost)?);
                }
                (Some(input), None)
            }
        };
        let losses = Losses {
            outputs: lost,
            input: Arc::default(),
        };
        let end = Arc::new(Mutex::new(None));
        if setup.control_server.is_some() {
            let published = Arc::clone(&moved);
            handle.add_listener(Arc::new(move || host::raise(published.as_fd())));
        }
        let talk = Talk {
            task: setup.task,
            is_warm: setup.is_warm,
            template: setup.template,
            signals: setup.signals,
            control,
            input,
            kept,
            doors,
            has_terminal: setup.has_terminal,
            shows_progress: setup.shows_progress,
            has_no_input: setup.has_no_input,
            timeout: setup.timeout,
            timeout_is_default: setup.timeout_is_default,
            deadline: None,
            boot_timeout: setup.boot_timeout,
            boot_deadline: Instant::now().checked_add(setup.boot_timeout),
            server: setup.control_server,
            is_last_call: false,
            handle,
            stop: Arc::clone(&stop),
            moved,
            told_closed: [false; 2],
            progress,
            frames: Frames::default(),
            is_started: false,
            exited: None,
            insisted: (0, 0),
            raw: None,
            end: Arc::clone(&end),
            end_by: None,
            losses: losses.clone(),
        };
        let entry = tollgate_confine::entry_of_child(ThreadKind::Main);
        let thread = thread::Builder::new()
            .name("session".into())
            .spawn(move || {
                entry.enter();
                talk.run();
            })?;
        Ok(Self {
            thread: Some(thread),
            stop,
            end,
            losses,
        })
    }

    /// Ends the thread and restores the terminal. Returns how the command has ended, if it has, and
    /// what its streams have lost.
    pub fn finish(mut self) -> (Option<End>, Losses) {
        self.join();
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        (end.clone(), self.losses.clone())
    }

    fn join(&mut self) {
        host::raise(self.stop.as_fd());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of that thread.
            let _ = thread.join();
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.join();
    }
}

/// Raw settings that leave output unchanged, because the guest's terminal makes the line ends.
pub fn transparent(settings: Termios) -> Termios {
    let mut settings = terminal::raw(settings);
    settings.output_modes -= OutputModes::OPOST;
    settings
}

/// How the command has ended, as the agent reports it.
#[derive(Clone, Copy)]
struct Exit {
    code: u8,
    /// The number of bytes of standard output and of standard error.
    written: [u64; 2],
    killed_for_memory: u32,
    limits_reached: u8,
}

struct Talk {
    /// The agent's task, until it is sent.
    task: Vec<u8>,
    is_warm: bool,
    template: Option<NewTemplate>,
    signals: Signals,
    control: UnixStream,
    /// The host's end of the input, until standard input is read.
    input: Option<UnixStream>,
    /// The clients of a machine that stays.
    kept: Option<Kept>,
    /// Copies of all links, to shut them down at the end.
    doors: Vec<UnixStream>,
    has_terminal: bool,
    shows_progress: bool,
    has_no_input: bool,
    timeout: Option<Duration>,
    timeout_is_default: bool,
    /// The time at which the command must end, once it runs.
    deadline: Option<Instant>,
    boot_timeout: Duration,
    boot_deadline: Option<Instant>,
    /// Whether the deadline has passed and the command was asked to end.
    is_last_call: bool,
    handle: VmHandle,
    stop: Arc<OwnedFd>,
    moved: Arc<OwnedFd>,
    progress: Vec<Arc<Progress>>,
    /// Whether the guest knows that an output has no reader.
    told_closed: [bool; 2],
    frames: Frames,
    is_started: bool,
    /// How the command has ended.
    exited: Option<Exit>,
    /// The last ending signal, and the number of times it has come.
    insisted: (i32, u32),
    raw: Option<RawTerminal>,
    end: Arc<Mutex<Option<End>>>,
    /// The time at which the process is ended if the vCPU thread has not ended.
    end_by: Option<Instant>,
    losses: Losses,
    /// The control socket's server.
    server: Option<Server>,
}

/// Positions of the fixed descriptors in the list; those of the control socket follow.
const STOP: usize = 0;
const CONTROL: usize = 1;
const MOVED: usize = 2;
const SERVER: usize = 3;

impl Talk {
    fn run(mut self) {
        if self.kept.as_ref().is_some_and(Kept::continues) {
            self.continue_kept();
        } else if self.is_warm {
            self.send_task();
        }
        let mut fds = Vec::new();
        loop {
            let control = if self.end_by.is_some() {
                -1
            } else {
                self.control.as_raw_fd()
            };
            fds.clear();
            fds.extend([
                host::interest(self.stop.as_raw_fd(), libc::POLLIN),
                host::interest(control, libc::POLLIN),
                host::interest(self.moved.as_raw_fd(), libc::POLLIN),
            ]);
            if let Some(server) = &self.server {
                server.add_interests(&mut fds);
            }
            if let Err(error) = self.signals.poll(&mut fds, self.timeout()) {
                self.fail(format!("cannot wait for events: {error}"));
            }
            let [stop, control, moved] = [STOP, CONTROL, MOVED].map(|at| fds[at].revents != 0);
            // The agent's last message counts, even if the machine has ended in the meantime.
            if control {
                self.listen();
            }
            if stop {
                break;
            }
            self.take_signals();
            if moved {
                let _ = host::read(self.moved.as_fd(), &mut [0; 8]);
                self.tell_closed();
            }
            if let Some(server) = &mut self.server
                && server.serve(&fds[SERVER..], &self.handle)
            {
                match self.kept {
                    Some(_) => self.end(End::KEPT),
                    None => self.fail("the machine was ended through its control socket".into()),
                }
            }
            self.look_at_clients();
            self.look_at_outputs();
            self.look_at_clock();
        }
        self.erase_progress();
        // Dropping the value restores the terminal.
        drop(self.raw.take());
    }

    fn timeout(&self) -> Option<Duration> {
        let boot = self.boot_deadline.filter(|_| !self.is_started);
        let server = self.server.as_ref().and_then(Server::deadline);
        let deadlines = match self.end_by {
            Some(end_by) => [Some(end_by), server, None],
            None => [self.deadline, server, boot],
        };
        let next = deadlines.into_iter().flatten().min()?;
        Some(next.saturating_duration_since(Instant::now()))
    }

    /// The session is over: the machine ends, and nothing waits for a reader any more.
    fn end(&mut self, end: End) {
        let mut slot = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.is_none() {
            *slot = Some(end);
        }
        drop(slot);
        for door in &self.doors {
            let _ = door.shutdown(Shutdown::Both);
        }
        self.handle.quit();
        if self.end_by.is_none() {
            self.end_by = Instant::now().checked_add(END_PATIENCE);
        }
    }

    fn fail(&mut self, why: String) {
        let code = super::FAILED;
        self.end(End::Failed { code, why });
    }

    fn tell(&mut self, message: ToGuest) {
        // If the guest has ended, another event reports that.
        let _ = self.control.write_all(&message.encode());
    }

    /// Gives the agent its task.
    fn send_task(&mut self) {
        // If the guest has gone, its end is noticed elsewhere.
        let _ = self.control.write_all(&std::mem::take(&mut self.task));
    }

    fn listen(&mut self) {
        let mut buffer = [0; 1024];
        let count = match self.control.read(&mut buffer) {
            Ok(count @ 1..) => count,
            // The machine has ended; the stop event follows.
            _ => {
                if self.end_by.is_none() {
                    self.end_by = Instant::now().checked_add(END_PATIENCE);
                }
                return;
            }
        };
        self.frames.extend(&buffer[..count]);
        loop {
            let message = match self.frames.take() {
                Ok(Some((kind, rest))) => ToHost::decode(kind, &rest),
                Ok(None) => return,
                Err(_) => None,
            };
            match message {
                Some(ToHost::Ready) if !self.task.is_empty() => {
                    if let Some(template) = self.template.take() {
                        template.write(&self.handle);
                    }
                    self.send_task();
                }
                Some(ToHost::Started) if !self.is_started => self.begin(),
                Some(ToHost::Failed { code, why }) => {
                    let why = failure::one_line(&why);
                    self.end(End::Failed { code, why });
                }
                Some(ToHost::Exited {
                    code,
                    written,
                    killed_for_memory,
                    limits_reached,
                }) => {
                    self.exited = Some(Exit {
                        code,
                        written,
                        killed_for_memory,
                        limits_reached,
                    });
                }
                _ => return self.fail("the guest does not keep to the protocol".into()),
            }
        }
    }

    /// Begins with a machine that stays and that was ready when its snapshot was taken.
    fn continue_kept(&mut self) {
        self.task.clear();
        match super::moment() {
            Ok((time_ns, entropy)) => {
                if let Some(kept) = &self.kept {
                    kept.broker().begin_anew(time_ns, &entropy);
                }
                self.begin();
            }
            Err(failure) => self.fail(failure.message),
        }
    }

    /// Passes new clients of a machine that stays to their commands.
    fn look_at_clients(&mut self) {
        let Some(kept) = &self.kept else {
            return;
        };
        for Handed { stream, unread } in
            self.server.as_mut().map(Server::handed).unwrap_or_default()
        {
            kept.broker().serve(stream, unread);
        }
        if kept.broker().has_failed() {
            self.fail("the guest does not keep to the protocol".into());
        } else if kept.is_over() {
            self.end(End::KEPT);
        }
    }

    /// Notes that the command runs, and starts to read standard input.
    fn begin(&mut self) {
        self.is_started = true;
        self.erase_progress();
        if let Some(kept) = &self.kept {
            if let Some(server) = &mut self.server {
                server.take_commands();
            }
            if let Err(error) = kept.begin(&self.moved) {
                self.fail(format!("cannot wait for standard input: {error}"));
            }
            return;
        }
        let now = Instant::now();
        self.deadline = self.timeout.and_then(|timeout| now.checked_add(timeout));
        if self.has_terminal && terminal::is_in_foreground() {
            // Without raw mode, input is read in lines.
            self.raw = RawTerminal::enter_as(transparent).ok();
        }
        if self.has_no_input {
            // If the guest has ended, another event reports that.
            let end = frame(DATA, &[]);
            let _ = self.input.take().map(|mut input| input.write_all(&end));
        } else if let Some(input) = self.input.take()
            && let Err(error) = streams::send_input(input, Arc::clone(&self.losses.input))
        {
            self.fail(format!("cannot read standard input: {error}"));
        }
    }

    fn take_signals(&mut self) {
        while let Some(asked) = self.signals.next() {
            match asked {
                Asked::Signal(libc::SIGWINCH) => {
                    if self.has_terminal {
                        self.tell(ToGuest::WindowSize(window_size()));
                    }
                }
                Asked::Signal(signal) => self.take_signal(signal),
                Asked::Continued => {
                    if let Some(raw) = &self.raw
                        && terminal::is_in_foreground()
                    {
                        let _ = raw.reenter();
                    }
                }
            }
        }
    }

    fn take_signal(&mut self, signal: i32) {
        if !self.is_started || self.kept.is_some() {
            return self.end(End::Signal(signal));
        }
        if signals::ENDING.contains(&signal) {
            let (last, count) = self.insisted;
            self.insisted = (signal, if last == signal { count + 1 } else { 1 });
            if self.insisted.1 >= INSISTENT {
                return self.end(End::Signal(signal));
            }
        }
        self.tell(ToGuest::Signal(signal));
    }

    /// Notifies the guest of outputs that have no reader.
    fn tell_closed(&mut self) {
        for index in 0..self.progress.len() {
            let is_broken = self.progress[index].is_broken.load(Ordering::Acquire);
            if is_broken && !self.told_closed[index] {
                self.told_closed[index] = true;
                self.tell(ToGuest::Closed(port::OUTPUT + index));
            }
        }
    }

    /// Checks whether everything that the command has written was written here; then it has ended.
    fn look_at_outputs(&mut self) {
        let Some(exit) = self.exited else {
            return;
        };
        let outputs = self.progress.iter().zip(exit.written);
        let is_complete = |(progress, written): (&Arc<Progress>, u64)| {
            progress.is_broken.load(Ordering::Acquire)
                || progress.moved.load(Ordering::Acquire) >= written
        };
        if outputs.into_iter().all(is_complete) {
            self.end(match self.is_last_call {
                true => self.timed_out(),
                false => End::Exited {
                    code: exit.code,
                    killed_for_memory: exit.killed_for_memory,
                    limits_reached: exit.limits_reached,
                },
            });
        }
    }

    fn timed_out(&self) -> End {
        End::TimedOut {
            default: self.timeout.filter(|_| self.timeout_is_default),
        }
    }

    fn look_at_clock(&mut self) {
        let now = Instant::now();
        let is_over = |deadline: Option<Instant>| deadline.is_some_and(|at| at <= now);
        if is_over(self.end_by) {
            self.end_process();
        }
        if self.end_by.is_some() {
            return;
        }
        if is_over(self.deadline) {
            if self.is_last_call {
                return self.end(self.timed_out());
            }
            self.is_last_call = true;
            self.deadline = now.checked_add(TIMEOUT_GRACE);
            self.tell(ToGuest::Signal(libc::SIGTERM));
        }
        if !self.is_started && is_over(self.boot_deadline) {
            let seconds = self.boot_timeout.as_secs_f64();
            self.fail(format!(
                "the guest did not run the command within {seconds} s (--boot-timeout)"
            ));
        }
    }

    /// Ends the process without waiting for the vCPU thread.
    fn end_process(&mut self) -> ! {
        self.erase_progress();
        if let Some(server) = &self.server {
            server.remove_file();
        }
        terminal::restore();
        let end = self.end.lock().unwrap_or_else(PoisonError::into_inner);
        let code = end.as_ref().map_or(super::FAILED, super::report);
        let code = self.losses.exit_code(code);
        host::end_process(code)
    }

    fn erase_progress(&mut self) {
        if std::mem::take(&mut self.shows_progress) {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}

/// Shows that the guest is starting, if standard error is a terminal. Returns whether the line must
/// be erased.
pub fn show_progress(is_verbose: bool) -> bool {
    let is_shown = !is_verbose && io::stderr().is_terminal();
    if is_shown {
        let _ = io::stderr().write_all("tollgate: starting the guest ...".as_bytes());
    }
    is_shown
}
