//! `--gdb`: listens for a debugger that speaks gdb's remote protocol, and carries its bytes to the
//! machine.
//!
//! One thread accepts connections, one at a time, and reads; another writes what the machine says.
//! The protocol itself is spoken by the machine ([`tollgate_machine::debugger`]).

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use tollgate_confine::ThreadKind;
use tollgate_machine::debugger::{DebugLine, FromDebugger, Width};
use tollgate_machine::vm::Vm;
use tollgate_machine::vm_handle::VmHandle;

use crate::failure::{Failure, say};
use crate::unix_socket::{self, SocketFile};

/// The flag, for messages.
const FLAG: &str = "--gdb";
/// The form of a place, for messages.
const FORM: &str = "tcp:[HOST]:PORT[,i386] or unix:PATH[,i386]";

/// Where a debugger connects.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// A TCP port of an address of this host.
    Port(SocketAddr),
    /// A Unix socket that only this user can access.
    Socket(PathBuf),
}

/// The value of `--gdb`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GdbOptions {
    /// Where the debugger connects.
    pub place: Place,
    /// The registers that the debugger sees.
    pub width: Width,
}

/// Parses the value of `--gdb`. Without a host, the port is on this host's own address.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(text: &str) -> Result<GdbOptions, String> {
    let (text, width) = match text.strip_suffix(",i386") {
        Some(text) => (text, Width::Bits32),
        None => (text, Width::Bits64),
    };
    let place = match text.split_once(':') {
        Some(("unix", path)) if !path.is_empty() => Place::Socket(path.into()),
        Some(("tcp", address)) => Place::Port(address_of(address)?),
        _ => return Err(format!("expected {FORM}")),
    };
    Ok(GdbOptions { place, width })
}

fn address_of(text: &str) -> Result<SocketAddr, String> {
    let (host, port) = text.rsplit_once(':').ok_or(format!("expected {FORM}"))?;
    let port = port
        .parse()
        .map_err(|_| format!("'{port}' is no port; expected {FORM}"))?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let host = match host {
        "" | "localhost" => Ipv4Addr::LOCALHOST.into(),
        host => host
            .parse()
            .map_err(|_| format!("'{host}' is no IP address, such as 127.0.0.1"))?,
    };
    Ok(SocketAddr::new(host, port))
}

enum Listener {
    Port(TcpListener),
    Socket(UnixListener),
}

enum Stream {
    Port(TcpStream),
    Socket(UnixStream),
}

impl Stream {
    fn try_clone(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Port(stream) => Self::Port(stream.try_clone()?),
            Self::Socket(stream) => Self::Socket(stream.try_clone()?),
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Port(stream) => stream.read(buffer),
            Self::Socket(stream) => stream.read(buffer),
        }
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::Port(stream) => stream.write_all(bytes),
            Self::Socket(stream) => stream.write_all(bytes),
        }
    }
}

impl Listener {
    fn accept(&self) -> io::Result<Stream> {
        Ok(match self {
            Self::Port(listener) => {
                let (stream, _) = listener.accept()?;
                // Packets are small, and each is waited for.
                stream.set_nodelay(true)?;
                Stream::Port(stream)
            }
            Self::Socket(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Stream::Socket(stream)
            }
        })
    }
}

/// A socket on which a debugger is awaited. Dropping it removes the socket's file.
pub struct Gdb {
    listener: Option<Listener>,
    width: Width,
    _file: Option<SocketFile>,
}

impl Gdb {
    /// Begins to listen for debuggers at the place that the options name.
    ///
    /// # Errors
    ///
    /// One line says why that is impossible.
    pub fn bind(options: &GdbOptions) -> Result<Self, Failure> {
        let (listener, file) = match &options.place {
            Place::Socket(path) => {
                let (listener, file) = unix_socket::listen(path, FLAG)?;
                let refuse = |error| Failure::host(format!("{FLAG}: {error}"));
                listener.set_nonblocking(false).map_err(refuse)?;
                (Listener::Socket(listener), Some(file))
            }
            Place::Port(address) => {
                let refuse =
                    |error| Failure::usage(format!("{FLAG}: cannot listen at {address}: {error}"));
                let listener = TcpListener::bind(address).map_err(refuse)?;
                let address = listener.local_addr().map_err(refuse)?;
                if options.place != Place::Port(address) {
                    say(&format!("gdb can connect to tcp:{address}"));
                }
                (Listener::Port(listener), None)
            }
        };
        Ok(Self {
            listener: Some(listener),
            width: options.width,
            _file: file,
        })
    }

    /// Lets a debugger control the machine from now on. With `waits` the machine does not start
    /// before a debugger lets it.
    ///
    /// # Errors
    ///
    /// One line says that the host starts no thread.
    pub fn start(&mut self, vm: &mut Vm, handle: &VmHandle, waits: bool) -> Result<(), Failure> {
        let Some(listener) = self.listener.take() else {
            return Ok(());
        };
        let (say, said) = channel();
        let outgoing = move |debugger, bytes| {
            // The writer ends with the process.
            let _ = say.send((debugger, bytes));
        };
        let (sender, line) = DebugLine::new(outgoing);
        let client = Arc::new(Mutex::new(None));
        let (reader, writer) = (Arc::clone(&client), client);
        let handle = handle.clone();
        let refuse = |error| Failure::host(format!("{FLAG}: no thread: {error}"));
        let thread = || std::thread::Builder::new().name("gdb".into());
        thread()
            .spawn(move || {
                tollgate_confine::enter(ThreadKind::Vnc);
                read(&listener, &sender, &handle, &reader);
            })
            .map_err(refuse)?;
        thread()
            .spawn(move || {
                tollgate_confine::enter(ThreadKind::Vnc);
                write(&said, &writer);
            })
            .map_err(refuse)?;
        vm.attach_debugger(line, self.width, waits);
        Ok(())
    }
}

/// The debugger that is connected, and its number.
type Client = Mutex<Option<(u64, Stream)>>;

/// Accepts debuggers one after the other, and passes on what they send.
fn read(listener: &Listener, sender: &Sender<FromDebugger>, handle: &VmHandle, client: &Client) {
    let pass = |arrived| {
        let is_passed = sender.send(arrived).is_ok();
        handle.wake_debugger();
        is_passed
    };
    for number in 1.. {
        let Ok(mut stream) = listener.accept() else {
            return;
        };
        let present = stream.try_clone().ok().map(|stream| (number, stream));
        *client.lock().unwrap_or_else(PoisonError::into_inner) = present;
        if !pass(FromDebugger::Connected) {
            return;
        }
        let mut buffer = [0; 4096];
        while let Ok(count) = stream.read(&mut buffer) {
            if count == 0 || !pass(FromDebugger::Bytes(buffer[..count].to_vec())) {
                break;
            }
        }
        *client.lock().unwrap_or_else(PoisonError::into_inner) = None;
        if !pass(FromDebugger::Gone) {
            return;
        }
    }
}

/// Writes what the machine says to the debugger that it is for, unless that has gone.
fn write(said: &Receiver<(u64, Vec<u8>)>, client: &Client) {
    for (number, bytes) in said {
        let mut client = client.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, stream)) = client.as_mut().filter(|(present, _)| *present == number) {
            // The reader notices that the debugger has gone.
            let _ = stream.write_all(&bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_port_or_a_socket() {
        let port = |text: &str, width| GdbOptions {
            place: Place::Port(text.parse().unwrap()),
            width,
        };
        for (text, expected) in [
            ("tcp::1234", port("127.0.0.1:1234", Width::Bits64)),
            ("tcp:0.0.0.0:1,i386", port("0.0.0.0:1", Width::Bits32)),
            ("tcp:[::1]:7", port("[::1]:7", Width::Bits64)),
        ] {
            assert_eq!(parse(text), Ok(expected));
        }
        let socket = parse("unix:/run/g,i386").unwrap();
        assert_eq!(socket.place, Place::Socket("/run/g".into()));
        for (text, why) in [
            ("", "expected tcp:"),
            ("unix:", "expected tcp:"),
            ("1234", "expected tcp:"),
            ("tcp:1234", "expected tcp:"),
            ("tcp::x", "'x' is no port"),
            ("tcp:example.org:1", "'example.org' is no IP address"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }
}
