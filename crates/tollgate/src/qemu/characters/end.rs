//! The host's end of a place for characters: descriptors, a listener, a ring.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal, Write};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::PoisonError;

use tollgate_host_facts::file_words::{cause, writing};
use tollgate_qemu_words::{Backend, Place};

use super::telnet;
use crate::console::Pty;
use crate::failure::{Failure, say};
use crate::host;
use crate::qemu::exit_code::failed;
use crate::qemu::orders::Ring;
use crate::terminal::{self, RawTerminal};
use crate::unix_socket::{self, SocketFile};

/// A socket that waits for clients.
enum Listener {
    Unix {
        listener: UnixListener,
        /// Removed with the listener.
        _file: SocketFile,
    },
    Tcp(TcpListener),
}

impl Listener {
    fn fd(&self) -> RawFd {
        match self {
            Self::Unix { listener, .. } => listener.as_raw_fd(),
            Self::Tcp(listener) => listener.as_raw_fd(),
        }
    }

    fn accept(&self) -> io::Result<OwnedFd> {
        match self {
            Self::Unix { listener, .. } => Ok(listener.accept()?.0.into()),
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                // Each key is a packet of its own.
                let _ = stream.set_nodelay(true);
                Ok(stream.into())
            }
        }
    }
}

/// The host's end of a place.
#[derive(Default)]
pub struct End {
    input: Option<File>,
    output: Option<File>,
    listener: Option<Listener>,
    /// Whether input and output are those of a client of the listener.
    is_client: bool,
    /// Whether output that the other side does not take now is dropped.
    drops: bool,
    /// The last bytes, for a ring buffer, and its size.
    ring: Option<(Ring, usize)>,
    telnet: Option<telnet::Filter>,
    /// Where this is found, for people.
    pub label: String,
    _terminal: Option<RawTerminal>,
    _pty: Option<Pty>,
}

impl End {
    /// Opens the end of a place.
    ///
    /// # Errors
    /// One line says what cannot be opened, and why.
    pub fn open(id: &str, backend: &Backend) -> Result<Self, Failure> {
        let mut end = Self::default();
        let opened = end.open_backend(id, backend);
        opened.map_err(|why| failed(format!("chardev {id}: {why}")))?;
        Ok(end)
    }

    fn open_backend(&mut self, id: &str, backend: &Backend) -> Result<(), String> {
        let of_file = |path: &Path, error: &io::Error| {
            format!("Could not open '{}': {}", path.display(), writing(error))
        };
        match backend {
            Backend::Null => self.label = "null".into(),
            Backend::Ring(size) => {
                self.ring = Some((Ring::default(), *size));
                self.label = "ringbuf".into();
            }
            Backend::Stdio { signals } => {
                let copy = |fd: io::Result<OwnedFd>| fd.map(File::from).map_err(|it| cause(&it));
                self.input = Some(copy(io::stdin().as_fd().try_clone_to_owned())?);
                self.output = Some(copy(io::stdout().as_fd().try_clone_to_owned())?);
                if io::stdin().is_terminal() && terminal::is_in_foreground() {
                    let settings = if *signals {
                        with_signals
                    } else {
                        terminal::raw
                    };
                    self._terminal = RawTerminal::enter_as(settings).ok();
                }
                self.label = "stdio".into();
            }
            Backend::File {
                path,
                append,
                input,
            } => {
                let mut options = OpenOptions::new();
                options
                    .write(true)
                    .create(true)
                    .append(*append)
                    .truncate(!append);
                let output = options.open(path).map_err(|error| of_file(path, &error))?;
                self.output = Some(output);
                if let Some(path) = input {
                    self.input = Some(File::open(path).map_err(|error| of_file(path, &error))?);
                }
                self.label = "file".into();
            }
            Backend::Pipe(path) => {
                let with = |suffix: &str| {
                    let mut name = path.as_os_str().to_owned();
                    name.push(suffix);
                    PathBuf::from(name)
                };
                let open = |path: &Path| {
                    // Opening a pipe for both directions does not wait for its other end.
                    let opened = OpenOptions::new().read(true).write(true).open(path);
                    opened.map_err(|error| of_file(path, &error))
                };
                let (input, output) = (with(".in"), with(".out"));
                let has_two = input.exists() || output.exists();
                let (input, output) = match has_two {
                    true => (open(&input)?, open(&output)?),
                    false => {
                        let both = open(path)?;
                        (both.try_clone().map_err(|error| cause(&error))?, both)
                    }
                };
                (self.input, self.output) = (Some(input), Some(output));
                self.label = "pipe".into();
            }
            Backend::Pty => {
                let pty = Pty::open().map_err(|error| format!("no pseudo-terminal: {error}"))?;
                let copy = || {
                    pty.master
                        .try_clone()
                        .map(File::from)
                        .map_err(|it| cause(&it))
                };
                (self.input, self.output) = (Some(copy()?), Some(copy()?));
                self.drops = true;
                let path = pty.path.display();
                println!("char device redirected to {path} (label {id})");
                self.label = format!("pty:{path}");
                self._pty = Some(pty);
            }
            Backend::Device(path) => {
                let opened = OpenOptions::new().read(true).write(true).open(path);
                let device = opened.map_err(|error| of_file(path, &error))?;
                if device.is_terminal()
                    && let Ok(settings) = terminal::settings(&device)
                {
                    let _ = terminal::apply(&device, &terminal::raw(settings));
                }
                self.input = Some(device.try_clone().map_err(|error| cause(&error))?);
                self.output = Some(device);
                self.label = path.display().to_string();
            }
            Backend::Socket {
                place,
                server,
                wait,
                telnet,
                ..
            } => {
                self.telnet = telnet.then(telnet::Filter::default);
                self.label = label_of(place);
                match server {
                    true => self.listen(place, *wait)?,
                    false => self.connect(place)?,
                }
            }
        }
        Ok(())
    }

    fn connect(&mut self, place: &Place) -> Result<(), String> {
        let refused = |error: io::Error| {
            format!(
                "Failed to connect to {}: {}",
                label_of(place),
                cause(&error)
            )
        };
        let stream: OwnedFd = match place {
            Place::Unix(path) => UnixStream::connect(path).map_err(refused)?.into(),
            Place::Tcp(host, port) => {
                let stream = TcpStream::connect((&**host, *port)).map_err(refused)?;
                let _ = stream.set_nodelay(true);
                stream.into()
            }
            Place::Descriptor(number) => duplicate(*number).map_err(refused)?,
        };
        self.take_client(stream).map_err(refused)
    }

    fn listen(&mut self, place: &Place, wait: bool) -> Result<(), String> {
        let refused = |error: io::Error| {
            format!("Failed to listen at {}: {}", label_of(place), cause(&error))
        };
        let listener = match place {
            Place::Unix(path) => {
                let (listener, file) =
                    unix_socket::listen(path, "socket").map_err(|failure| failure.message)?;
                Listener::Unix {
                    listener,
                    _file: file,
                }
            }
            Place::Tcp(host, port) => {
                let mut addresses = (&**host, *port).to_socket_addrs().map_err(refused)?;
                let address = addresses.next().ok_or("the host has no address")?;
                Listener::Tcp(TcpListener::bind(address).map_err(refused)?)
            }
            Place::Descriptor(number) => {
                Listener::Tcp(TcpListener::from(duplicate(*number).map_err(refused)?))
            }
        };
        if wait {
            say(&format!(
                "info: QEMU waiting for connection on: disconnected:{},server=on",
                self.label
            ));
            let mut fds = [host::interest(listener.fd(), libc::POLLIN)];
            while fds[0].revents == 0 {
                host::poll(&mut fds, None).map_err(refused)?;
            }
            let client = listener.accept().map_err(refused)?;
            self.take_client(client).map_err(refused)?;
        }
        let fd = match &listener {
            Listener::Unix { listener, .. } => listener.as_fd(),
            Listener::Tcp(listener) => listener.as_fd(),
        };
        host::set_nonblocking(fd).map_err(refused)?;
        self.listener = Some(listener);
        Ok(())
    }

    fn take_client(&mut self, client: OwnedFd) -> io::Result<()> {
        host::set_nonblocking(client.as_fd())?;
        self.input = Some(File::from(client.try_clone()?));
        self.output = Some(File::from(client));
        self.is_client = true;
        if let Some(filter) = &mut self.telnet {
            *filter = telnet::Filter::default();
            if let Some(output) = &mut self.output {
                output.write_all(&telnet::GREETING)?;
            }
        }
        Ok(())
    }

    /// Whether something is at the other end.
    pub fn is_open(&self) -> bool {
        self.listener.is_none() || self.is_client
    }

    /// The descriptor of the listener, while it may accept a client; otherwise -1.
    pub fn listener_fd(&self) -> RawFd {
        match &self.listener {
            Some(listener) if !self.is_client => listener.fd(),
            _ => -1,
        }
    }

    /// The descriptor of input, or -1.
    pub fn input_fd(&self) -> RawFd {
        self.input.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// The descriptor of output, or -1.
    pub fn output_fd(&self) -> RawFd {
        self.output.as_ref().map_or(-1, AsRawFd::as_raw_fd)
    }

    /// Accepts a client that waits. Returns whether one came.
    pub fn accept(&mut self) -> bool {
        let client = self
            .listener
            .as_ref()
            .and_then(|listener| listener.accept().ok());
        client.is_some_and(|client| self.take_client(client).is_ok())
    }

    /// Reads what is there; `None` if the other end has gone.
    pub fn read(&mut self) -> Option<Vec<u8>> {
        let mut bytes = [0; 4096];
        let input = self.input.as_ref()?;
        let bytes = match host::read(input.as_fd(), &mut bytes) {
            Ok(count) if count > 0 => &bytes[..count],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Some(Vec::new()),
            _ => {
                self.input = None;
                if self.is_client {
                    self.output = None;
                    self.is_client = false;
                }
                return None;
            }
        };
        Some(match &mut self.telnet {
            Some(filter) => filter.take(bytes),
            None => bytes.to_vec(),
        })
    }

    /// Writes the first bytes of `waiting` and removes what needs not wait any more.
    pub fn write(&mut self, waiting: &mut VecDeque<u8>) {
        /// A pipe that is ready accepts this many bytes without waiting.
        const PIECE: usize = 4096;
        if let Some((ring, size)) = &mut self.ring {
            let mut ring = ring.lock().unwrap_or_else(PoisonError::into_inner);
            ring.extend(waiting.drain(..));
            let excess = ring.len().saturating_sub(*size);
            ring.drain(..excess);
            return;
        }
        let Some(output) = &mut self.output else {
            waiting.clear();
            return;
        };
        let (first, _) = waiting.as_slices();
        match output.write(&first[..first.len().min(PIECE)]) {
            Ok(count) => _ = waiting.drain(..count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if self.drops {
                    waiting.clear();
                }
            }
            Err(_) => {
                waiting.clear();
                if !self.is_client {
                    self.output = None;
                }
            }
        }
    }

    /// The ring buffer, if this is one.
    pub fn ring(&self) -> Option<Ring> {
        self.ring.as_ref().map(|(ring, _)| Ring::clone(ring))
    }

    /// Whether output is written without waiting until the descriptor is ready.
    pub fn writes_at_once(&self) -> bool {
        self.drops || self.output.is_none()
    }
}

/// A descriptor of this process that another process has opened.
fn duplicate(number: RawFd) -> io::Result<OwnedFd> {
    // SAFETY: the number is only duplicated, which fails if it is not open.
    host::owned(unsafe { libc::fcntl(number, libc::F_DUPFD_CLOEXEC, 3) })
}

fn label_of(place: &Place) -> String {
    match place {
        Place::Unix(path) => format!("unix:{}", path.display()),
        Place::Tcp(host, port) => format!("tcp:{host}:{port}"),
        Place::Descriptor(number) => format!("fd:{number}"),
    }
}

/// The settings of a terminal whose keys still send signals.
fn with_signals(settings: rustix::termios::Termios) -> rustix::termios::Termios {
    let is_on = settings.local_modes & rustix::termios::LocalModes::ISIG;
    let mut raw = terminal::raw(settings);
    raw.local_modes |= is_on;
    raw
}
