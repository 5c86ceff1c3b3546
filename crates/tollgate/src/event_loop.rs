//! The thread that waits for all events outside the guest: typed keys, the pseudo-terminal,
//! signals, control clients. It passes input to the vCPU thread through the [`VmHandle`], and never
//! waits for anything except events.
//!
//! If the vCPU thread does not end within [`END_PATIENCE`] after it was asked to (it may wait for a
//! reader of the guest's output), the loop ends the process itself.

use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tollgate_confine::ThreadKind;
use tollgate_machine::vm_handle::VmHandle;

use crate::control::server::Server;
use crate::keyboard::Keyboard;
use crate::png_display::PngDisplay;
use crate::signals::{Asked, Signals};
use crate::silence::Silence;
use crate::terminal_keys::{self, Typed};
use crate::text_display::{TextDisplay, keys::Strokes};
use crate::vnc::VncServer;
use crate::{exit_code, failure, host, terminal, text_display};

/// How long the vCPU thread may take to end after it was asked to.
const END_PATIENCE: Duration = Duration::from_secs(3);
/// How long to wait before input that found no room is offered again.
const INPUT_RETRY: Duration = Duration::from_millis(5);
/// The number of bytes read in one call.
const CHUNK: usize = 1024;

/// The sources of events that the loop listens to.
pub struct Sources {
    /// The signals that ask for the end of the machine.
    pub signals: Signals,
    /// Standard input, if it is the guest's serial input.
    pub keyboard: Option<Keyboard>,
    /// The master of the pseudo-terminal, if that is the guest's serial port.
    pub pty: Option<OwnedFd>,
    /// The control socket's server.
    pub control: Option<Server>,
    /// The terminal, if it shows the guest's screen; typed characters go to the guest's keyboard.
    pub display: Option<TextDisplay>,
    /// The folder for pictures of the screen, if there is one.
    pub pictures: Option<PngDisplay>,
    /// The server for VNC viewers, which has a thread of its own.
    pub vnc: Option<VncServer>,
    /// The watch on a console that may stay silent.
    pub silence: Option<Silence>,
}

/// The running event loop.
pub struct EventLoop {
    thread: Option<JoinHandle<()>>,
    shared: Arc<SharedWithOwner>,
}

struct SharedWithOwner {
    /// The event that stops the loop.
    stop: OwnedFd,
    /// The event that says that the vCPU thread has published something.
    published: OwnedFd,
    /// The signal that asked for the end; 0 if none did.
    signal: AtomicI32,
    /// Whether a signal, a key or a client has asked for the end.
    end_wanted: AtomicBool,
}

impl EventLoop {
    /// Starts the loop's thread.
    ///
    /// # Errors
    ///
    /// The host gives no thread or descriptor.
    pub fn start(sources: Sources, handle: VmHandle) -> io::Result<Self> {
        let shared = Arc::new(SharedWithOwner {
            stop: host::event()?,
            published: host::event()?,
            signal: AtomicI32::new(0),
            end_wanted: AtomicBool::new(false),
        });
        let listener = Arc::clone(&shared);
        let bell = sources.vnc.as_ref().map(VncServer::bell);
        handle.add_listener(Arc::new(move || {
            host::raise(listener.published.as_fd());
            if let Some(bell) = &bell {
                bell.ring();
            }
        }));
        let state = Loop {
            sources,
            handle,
            shared: Arc::clone(&shared),
            keyboard_backlog: Vec::new(),
            pty_backlog: Vec::new(),
            end_by: None,
        };
        let entry = tollgate_confine::entry_of_child(ThreadKind::Main);
        let thread = thread::Builder::new()
            .name("event-loop".into())
            .spawn(move || {
                entry.enter();
                let _guard = EndOnPanic(state.handle.clone());
                state.run();
            })?;
        Ok(Self {
            thread: Some(thread),
            shared,
        })
    }

    /// Whether the end was requested, so that the machine must not be started again.
    pub fn end_wanted(&self) -> bool {
        self.shared.end_wanted.load(Ordering::Acquire)
    }

    /// The signal that asked for the end, if one did.
    pub fn signal(&self) -> Option<i32> {
        match self.shared.signal.load(Ordering::Acquire) {
            0 => None,
            signal => Some(signal),
        }
    }
}

impl Drop for EventLoop {
    /// Stops the loop. The control socket is removed and the terminal is restored.
    fn drop(&mut self) {
        host::raise(self.shared.stop.as_fd());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of that thread.
            let _ = thread.join();
        }
    }
}

/// Ends the machine if the event loop panics, because nothing else could end it then.
struct EndOnPanic(VmHandle);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.quit();
        }
    }
}

struct Loop {
    sources: Sources,
    handle: VmHandle,
    shared: Arc<SharedWithOwner>,
    /// Input that the queue had no room for. The loop reads no more while this waits.
    keyboard_backlog: Vec<u8>,
    pty_backlog: Vec<u8>,
    /// The time at which the process is ended if the machine has not ended.
    end_by: Option<Instant>,
}

/// Positions of the fixed sources in the list of descriptors; those of the control socket follow.
const STOP: usize = 0;
const KEYBOARD: usize = 1;
const PTY: usize = 2;
const PUBLISHED: usize = 3;
const CONTROL: usize = 4;

impl Loop {
    fn run(mut self) {
        let mut fds = Vec::new();
        loop {
            self.list_interests(&mut fds);
            if let Err(error) = self.sources.signals.poll(&mut fds, self.timeout()) {
                failure::say(&format!("cannot wait for events: {error}"));
                self.handle.quit();
                return;
            }
            if fds[STOP].revents != 0 {
                return;
            }
            self.take_signals();
            self.take_keyboard(fds[KEYBOARD].revents != 0);
            self.take_pty(fds[PTY].revents != 0);
            if fds[PUBLISHED].revents != 0 {
                // Every turn serves the clients that wait for this event, so it is only reset here.
                // The counter has eight bytes.
                let _ = host::read(self.shared.published.as_fd(), &mut [0; 8]);
            }
            if let Some(control) = &mut self.sources.control
                && control.serve(&fds[CONTROL..], &self.handle)
            {
                self.end();
            }
            if let Some(display) = &mut self.sources.display {
                display.go_on(&self.handle);
            }
            if let Some(pictures) = &mut self.sources.pictures {
                pictures.go_on(&self.handle);
            }
            if let Some(silence) = &mut self.sources.silence {
                silence.look();
            }
            if self.end_by.is_some_and(|end_by| end_by <= Instant::now()) {
                self.end_process();
            }
        }
    }

    fn list_interests(&self, fds: &mut Vec<libc::pollfd>) {
        let display = self.sources.display.as_ref();
        let has_room = self.keyboard_backlog.is_empty()
            && display.is_none_or(|display| display.strokes.has_room());
        let keyboard = match &self.sources.keyboard {
            Some(keyboard) if has_room => keyboard.poll_fd(),
            _ => -1,
        };
        let pty = match &self.sources.pty {
            Some(pty) if self.pty_backlog.is_empty() => pty.as_raw_fd(),
            _ => -1,
        };
        fds.clear();
        fds.push(host::interest(self.shared.stop.as_raw_fd(), libc::POLLIN));
        fds.push(host::interest(keyboard, libc::POLLIN));
        fds.push(host::interest(pty, libc::POLLIN));
        fds.push(host::interest(
            self.shared.published.as_raw_fd(),
            libc::POLLIN,
        ));
        if let Some(control) = &self.sources.control {
            control.add_interests(fds);
        }
    }

    /// How long the loop may wait if no event comes.
    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        let control = self.sources.control.as_ref().and_then(Server::deadline);
        let display = self.sources.display.as_ref();
        let display = display.and_then(TextDisplay::deadline);
        let silence = self.sources.silence.as_ref().and_then(Silence::deadline);
        let pictures = self.sources.pictures.as_ref();
        let pictures = pictures.and_then(PngDisplay::deadline);
        let deadlines = [self.end_by, control, display, pictures, silence];
        let deadline = deadlines.into_iter().flatten().min();
        let has_backlog = !self.keyboard_backlog.is_empty() || !self.pty_backlog.is_empty();
        [
            deadline.map(|at| at.saturating_duration_since(now)),
            has_backlog.then_some(INPUT_RETRY),
            self.sources.keyboard.as_ref().and_then(Keyboard::retry),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn take_signals(&mut self) {
        while let Some(asked) = self.sources.signals.next() {
            match asked {
                Asked::Signal(signal) => {
                    self.shared.signal.store(signal, Ordering::Release);
                    self.end();
                }
                Asked::Continued => {
                    if let Some(keyboard) = &mut self.sources.keyboard {
                        keyboard.continued();
                    }
                    if let Some(display) = &mut self.sources.display {
                        display.forget();
                    }
                }
            }
        }
    }

    fn take_keyboard(&mut self, is_ready: bool) {
        offer(&mut self.keyboard_backlog, &self.handle);
        let Some(keyboard) = &mut self.sources.keyboard else {
            return;
        };
        if !is_ready {
            keyboard.attach_again();
            return;
        }
        for typed in keyboard.read() {
            match typed {
                Typed::Input(bytes) => match &mut self.sources.display {
                    Some(display) => display.strokes.take(&bytes),
                    None => self.keyboard_backlog.extend(bytes),
                },
                Typed::CtrlAltDelete => {
                    if let Some(display) = &mut self.sources.display {
                        display.strokes.take_named(&["ctrl", "alt", "delete"]);
                    } else {
                        // Typed characters go to the keyboard of a machine whose screen is
                        // elsewhere.
                        let mut strokes = Strokes::default();
                        strokes.take_named(&["ctrl", "alt", "delete"]);
                        strokes.offer(&self.handle);
                    }
                }
                Typed::Quit => self.end(),
                Typed::TogglePause => {
                    let text = if self.handle.toggle_pause() {
                        "paused; Ctrl-A p goes on"
                    } else {
                        "running"
                    };
                    note(&format!("\ntollgate: {text}\n"));
                }
                Typed::Help => note(&format!("\n{}", terminal_keys::help())),
            }
        }
        offer(&mut self.keyboard_backlog, &self.handle);
    }

    fn take_pty(&mut self, is_ready: bool) {
        offer(&mut self.pty_backlog, &self.handle);
        if let (true, Some(pty)) = (is_ready, &self.sources.pty) {
            if let Some(bytes) = read_some(pty.as_fd()) {
                self.pty_backlog.extend(bytes);
            }
            offer(&mut self.pty_backlog, &self.handle);
        }
    }

    /// Asks the machine to end; it has [`END_PATIENCE`] from the first request on.
    fn end(&mut self) {
        self.shared.end_wanted.store(true, Ordering::Release);
        self.handle.quit();
        if self.end_by.is_none() {
            self.end_by = Instant::now().checked_add(END_PATIENCE);
        }
    }

    /// Ends the process without waiting for the vCPU thread.
    fn end_process(&mut self) -> ! {
        // The process may end by _exit, which drops nothing.
        if let Some(control) = &self.sources.control {
            control.remove_file();
        }
        if let Some(vnc) = &self.sources.vnc {
            vnc.remove_file();
        }
        text_display::restore();
        terminal::restore();
        let seconds = END_PATIENCE.as_secs();
        failure::say(&format!(
            "the virtual machine did not end within {seconds} s (does nobody read its output?); ended anyway"
        ));
        let code = match self.shared.signal.load(Ordering::Acquire) {
            0 => exit_code::STOPPED,
            signal => exit_code::for_signal(signal),
        };
        host::end_process(code)
    }
}

/// Hands the guest as much of `backlog` as there is room for.
fn offer(backlog: &mut Vec<u8>, handle: &VmHandle) {
    if !backlog.is_empty() {
        let taken = handle.serial_input(backlog);
        backlog.drain(..taken);
    }
}

/// Reads the bytes that are available; `None` if there are none.
fn read_some(fd: BorrowedFd<'_>) -> Option<Vec<u8>> {
    let mut bytes = [0; CHUNK];
    let count = host::read(fd, &mut bytes).ok()?;
    Some(bytes[..count].to_vec())
}

/// Shows the person at the terminal a message, on standard error.
fn note(text: &str) {
    let _ = io::stderr().write_all(text.as_bytes());
}
