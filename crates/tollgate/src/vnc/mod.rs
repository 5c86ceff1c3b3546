//! `--display vnc=`: the guest's screen, keyboard and mouse for VNC viewers.
//!
//! The server has a thread of its own, which waits for viewers and for the vCPU thread, and never
//! for only one of them. Data that a viewer does not read waits in its [`client`], and the viewer
//! gets nothing more until then. The crate `rfb` has the protocol. A picture is requested only
//! while a viewer waits for one, and less often the longer the vCPU thread needs for it.

mod client;
mod keys;
pub mod options;

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::net::TcpListener;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollgate_confine::ThreadKind;
use tollgate_host_facts::file_words::writing;
use tollgate_machine::devices::vga::screen::Picture;
use tollgate_machine::vm_handle::{ScreenRequest, Shown, VmHandle};
use tollgate_rfb::{Frame, Password, Session};

use crate::failure::{Failure, say};
use crate::host;
use crate::unix_socket::{self, SocketFile};
use client::{Client, Stream};
use options::{Place, VncOptions};

/// The shortest time between two pictures.
const PERIOD: Duration = Duration::from_millis(40);
/// The shortest time between two pictures while nothing happens.
const IDLE_PERIOD: Duration = Duration::from_millis(200);
/// How long viewers and the screen must be still until nothing is said to happen.
const IDLE_AFTER: Duration = Duration::from_secs(1);
/// Pictures take at most one part in `SHARE` of the vCPU thread's time.
const SHARE: u32 = 10;
/// The maximum number of viewers.
const MAX_CLIENTS: usize = 16;
/// How long the server accepts no connection after accepting failed because no descriptors were
/// left.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// The size of the picture before the guest shows anything.
const FIRST_SIZE: (u16, u16) = (720, 400);

/// A server that listens, before its thread runs.
pub struct Vnc {
    listener: Listener,
    file: Option<SocketFile>,
    password: Option<Password>,
    name: String,
}

enum Listener {
    Port(TcpListener),
    Socket(UnixListener),
}

impl Vnc {
    /// Listens, and reports where. `name` is what viewers call their window.
    ///
    /// # Errors
    ///
    /// One line says that the password cannot be read, or why the server cannot listen.
    pub fn bind(options: &VncOptions, name: String) -> Result<Self, Failure> {
        const FLAG: &str = "--display vnc";
        let password = options.read_password()?;
        let (listener, file) = match &options.place {
            Place::Socket(path) => {
                let (listener, file) = unix_socket::listen(path, FLAG)?;
                (Listener::Socket(listener), Some(file))
            }
            Place::Port(address) => {
                let refuse = |error: io::Error| {
                    let why = match error.kind() {
                        ErrorKind::AddrInUse => "another program listens there".into(),
                        ErrorKind::AddrNotAvailable => "this host has no such address".into(),
                        _ => writing(&error),
                    };
                    Failure::usage(format!("{FLAG}: cannot listen at {address}: {why}"))
                };
                let listener = TcpListener::bind(address).map_err(refuse)?;
                listener.set_nonblocking(true).map_err(refuse)?;
                (Listener::Port(listener), None)
            }
        };
        say(&format!(
            "a VNC viewer finds the screen at {}",
            options.place
        ));
        Ok(Self {
            listener,
            file,
            password,
            name,
        })
    }

    /// Starts the server's thread.
    ///
    /// # Errors
    ///
    /// The host gives no thread or descriptor.
    pub fn start(self, handle: VmHandle) -> io::Result<VncServer> {
        let shared = Arc::new(Shared {
            bell: host::event()?,
            ends: AtomicBool::new(false),
        });
        let server = Server {
            listener: self.listener,
            password: self.password,
            name: self.name,
            handle,
            shared: Arc::clone(&shared),
            randomness: File::open("/dev/urandom")?,
            clients: Vec::new(),
            accepts_again: None,
            awaited: None,
            next: Instant::now(),
            active_at: Instant::now(),
            picture: None,
            frame: Arc::new(Frame::black(FIRST_SIZE.0, FIRST_SIZE.1)),
        };
        let thread = std::thread::Builder::new().name("vnc".into());
        Ok(VncServer {
            thread: Some(thread.spawn(move || {
                tollgate_confine::enter(ThreadKind::Vnc);
                server.run();
            })?),
            shared,
            file: self.file,
        })
    }
}

struct Shared {
    /// The event that says that the vCPU thread has published something, or that the server must
    /// end.
    bell: OwnedFd,
    ends: AtomicBool,
}

/// Wakes the server's thread when the vCPU thread has published something.
#[derive(Clone)]
pub struct Bell(Arc<Shared>);

impl Bell {
    /// Wakes the thread.
    pub fn ring(&self) {
        host::raise(self.0.bell.as_fd());
    }
}

/// The running server. Dropping this ends it.
pub struct VncServer {
    thread: Option<JoinHandle<()>>,
    shared: Arc<Shared>,
    file: Option<SocketFile>,
}

impl VncServer {
    /// The bell that must be rung when the vCPU thread has published something.
    pub fn bell(&self) -> Bell {
        Bell(Arc::clone(&self.shared))
    }

    /// Removes the socket's file, if there is one.
    pub fn remove_file(&self) {
        if let Some(file) = &self.file {
            file.remove();
        }
    }
}

impl Drop for VncServer {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Release);
        host::raise(self.shared.bell.as_fd());
        if let Some(thread) = self.thread.take() {
            // The panic hook has reported a panic of that thread; the machine continues without
            // viewers.
            let _ = thread.join();
        }
    }
}

struct Server {
    listener: Listener,
    password: Option<Password>,
    name: String,
    handle: VmHandle,
    shared: Arc<Shared>,
    /// The source of random bytes for challenges.
    randomness: File,
    clients: Vec<Client>,
    accepts_again: Option<Instant>,
    /// The request for the screen that is not answered yet.
    awaited: Option<ScreenRequest>,
    /// The time from which on the screen may be requested again.
    next: Instant,
    /// The time at which a viewer was last active or the screen last changed.
    active_at: Instant,
    /// The last picture, and the frame made from it.
    picture: Option<Arc<Picture>>,
    frame: Arc<Frame>,
}

/// Positions in the list of descriptors; those of clients follow.
const BELL: usize = 0;
const LISTENER: usize = 1;
const CLIENTS: usize = 2;

impl Server {
    fn run(mut self) {
        let mut fds = Vec::new();
        while !self.shared.ends.load(Ordering::Acquire) {
            self.list_interests(&mut fds);
            if let Err(error) = host::poll(&mut fds, self.timeout()) {
                say(&format!("--display vnc: no more viewers: {error}"));
                return;
            }
            if fds[BELL].revents != 0 {
                // Every turn serves what waits for this event, so it is only reset here. The
                // counter has eight bytes.
                let _ = host::read(self.shared.bell.as_fd(), &mut [0; 8]);
            }
            self.serve_clients(&fds[CLIENTS..]);
            if self.accepts_again.is_some_and(|at| at <= Instant::now()) {
                self.accepts_again = None;
            }
            if fds[LISTENER].revents != 0 {
                self.accept();
            }
            self.look_at_screen();
        }
    }

    fn list_interests(&self, fds: &mut Vec<libc::pollfd>) {
        let listener = match self.accepts_again {
            Some(_) => -1,
            None => self.listener.fd(),
        };
        let bell = self.shared.bell.as_raw_fd();
        fds.clear();
        fds.push(host::interest(bell, libc::POLLIN));
        fds.push(host::interest(listener, libc::POLLIN));
        fds.extend(self.clients.iter().map(Client::interest));
    }

    /// How long the thread may wait if no event comes.
    fn timeout(&self) -> Option<Duration> {
        let wants_picture = self.awaited.is_none() && self.clients.iter().any(Client::wants_update);
        let deadlines = self.clients.iter().filter_map(Client::deadline);
        let deadlines = deadlines.chain(self.accepts_again);
        let deadline = deadlines.chain(wants_picture.then_some(self.next)).min();
        deadline.map(|at| at.saturating_duration_since(Instant::now()))
    }

    fn serve_clients(&mut self, ready: &[libc::pollfd]) {
        let mut alone = None;
        for (index, (client, ready)) in self.clients.iter_mut().zip(ready).enumerate() {
            let served = client.serve(ready.revents, &self.handle);
            if served.is_active {
                let now = Instant::now();
                self.active_at = now;
                self.next = self.next.min(now + PERIOD);
            }
            if served.is_exclusive {
                alone = Some(index);
            }
        }
        let mut index = 0;
        self.clients.retain_mut(|client| {
            let others = alone.is_some_and(|alone| alone != index) && client.is_let_in();
            let stays = !client.is_gone() && !others;
            index += 1;
            if !stays {
                client.let_go(&self.handle);
            }
            stays
        });
    }

    fn accept(&mut self) {
        match self.listener.accept() {
            Ok(stream) => {
                // If there are too many viewers, this connection is closed.
                let is_ready = stream.set_nonblocking().is_ok();
                let mut challenge = [0; 16];
                let has_challenge = self.randomness.read_exact(&mut challenge).is_ok();
                if is_ready && has_challenge && self.clients.len() < MAX_CLIENTS {
                    let (password, size) = (self.password.clone(), self.frame.size());
                    let session = Session::new(password, challenge, size, &self.name);
                    self.clients.push(Client::new(stream, session));
                }
            }
            Err(error) => {
                let is_passing = matches!(
                    error.kind(),
                    ErrorKind::WouldBlock | ErrorKind::Interrupted | ErrorKind::ConnectionAborted
                );
                if !is_passing {
                    self.accepts_again = Some(Instant::now() + ACCEPT_PAUSE);
                }
            }
        }
    }

    /// Requests the screen if a viewer waits for it and it is time; shows it if it has arrived.
    fn look_at_screen(&mut self) {
        let now = Instant::now();
        match self.awaited {
            Some(request) => {
                if let Some(shown) = self.handle.screen_after(request) {
                    self.awaited = None;
                    self.take(&shown);
                    let is_idle = now.saturating_duration_since(self.active_at) > IDLE_AFTER;
                    let period = if is_idle { IDLE_PERIOD } else { PERIOD };
                    self.next = now + period.max(shown.took * SHARE);
                }
            }
            None if now >= self.next && self.clients.iter().any(Client::wants_update) => {
                self.awaited = Some(self.handle.request_screen(true));
            }
            None => {}
        }
    }

    fn take(&mut self, shown: &Shown) {
        let is_same = match (&self.picture, &shown.picture) {
            (Some(old), Some(new)) => Arc::ptr_eq(old, new),
            (None, None) => true,
            _ => false,
        };
        if !is_same {
            self.picture.clone_from(&shown.picture);
            let (width, height) = self.frame.size();
            let frame = shown.picture.as_deref().and_then(frame);
            let frame = frame.unwrap_or_else(|| Frame::black(width, height));
            if *self.frame != frame {
                self.frame = Arc::new(frame);
                self.active_at = Instant::now();
            }
        }
        for client in &mut self.clients {
            client.update(&self.frame);
        }
    }
}

impl Listener {
    fn fd(&self) -> RawFd {
        let fd: BorrowedFd<'_> = match self {
            Self::Port(listener) => listener.as_fd(),
            Self::Socket(listener) => listener.as_fd(),
        };
        fd.as_raw_fd()
    }

    fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Port(listener) => Stream::Port(listener.accept()?.0),
            Self::Socket(listener) => Stream::Socket(listener.accept()?.0),
        })
    }
}

/// A picture in the protocol's form.
fn frame(picture: &Picture) -> Option<Frame> {
    let (width, height) = (picture.size.width, picture.size.height);
    let (width, height) = (width.try_into().ok()?, height.try_into().ok()?);
    Frame::new(width, height, picture.pixels.clone())
}
