//! The socket of the interface and its clients, each of which is served a request at a time.

use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;

use tollgate_firecracker::{Api, Connection, Received};

use super::host::{Built, Host};
use super::log::Level;
use crate::failure::Failure;
use crate::host;
use crate::unix_socket::{self, SocketFile};

/// The maximum number of connected clients.
const MAX_CLIENTS: usize = 32;
/// The number of bytes of answers that a client may leave unread.
const MAX_UNREAD: usize = 1 << 20;

/// The listening socket and all connections to it. Dropping this removes the socket's file.
pub struct Server {
    listener: UnixListener,
    _file: SocketFile,
    clients: Vec<Client>,
    max_body: usize,
}

impl Server {
    /// Creates the socket, which only this user can access.
    ///
    /// # Errors
    /// One line says why it cannot be made.
    pub fn bind(path: &Path, max_body: usize) -> Result<Self, Failure> {
        let (listener, file) = unix_socket::listen(path, "--api-sock")?;
        Ok(Self {
            listener,
            _file: file,
            clients: Vec::new(),
            max_body,
        })
    }

    /// Adds the descriptors to wait for: the listener first, then each client.
    pub fn add_interests(&self, fds: &mut Vec<libc::pollfd>) {
        let has_room = self.clients.len() < MAX_CLIENTS;
        let listener = if has_room {
            self.listener.as_raw_fd()
        } else {
            -1
        };
        fds.push(host::interest(listener, libc::POLLIN));
        fds.extend(self.clients.iter().map(Client::interest));
    }

    /// Serves what is ready: `ready` holds the descriptors that the latest
    /// [`Server::add_interests`] added. Returns the machine that a request has started.
    pub fn serve(
        &mut self,
        ready: &[libc::pollfd],
        api: &mut Api,
        host: &mut Host,
    ) -> Option<Built> {
        let (listener, clients) = ready.split_first()?;
        let mut built = None;
        for (client, ready) in self.clients.iter_mut().zip(clients) {
            if ready.revents != 0 {
                built = client.serve(api, host).or(built);
            }
        }
        self.clients.retain(|client| !client.is_gone);
        if listener.revents != 0
            && let Ok((stream, _)) = self.listener.accept()
            && stream.set_nonblocking(true).is_ok()
        {
            self.clients.push(Client {
                stream,
                connection: Connection::new(self.max_body),
                unread: Vec::new(),
                is_finished: false,
                is_gone: false,
            });
        }
        built
    }
}

/// The connection to one client.
struct Client {
    stream: UnixStream,
    connection: Connection,
    /// Answers that the client has not read.
    unread: Vec<u8>,
    /// The connection closes when its answers are read.
    is_finished: bool,
    is_gone: bool,
}

impl Client {
    fn interest(&self) -> libc::pollfd {
        let events = match self.unread.is_empty() {
            true => libc::POLLIN,
            false => libc::POLLOUT,
        };
        host::interest(self.stream.as_raw_fd(), events)
    }

    fn serve(&mut self, api: &mut Api, host: &mut Host) -> Option<Built> {
        let mut built = None;
        let mut bytes = [0; 16 * 1024];
        if self.unread.is_empty() && !self.is_finished {
            match self.stream.read(&mut bytes) {
                Ok(0) => self.is_finished = true,
                Ok(count) => {
                    self.connection.add(&bytes[..count]);
                    built = self.answer(api, host);
                }
                Err(error) if is_passing(&error) => {}
                Err(_) => self.is_gone = true,
            }
        }
        self.send();
        self.is_gone |= self.is_finished && self.unread.is_empty();
        built
    }

    /// Answers the requests that have arrived.
    fn answer(&mut self, api: &mut Api, host: &mut Host) -> Option<Built> {
        let mut built = None;
        while !self.is_finished && self.unread.len() < MAX_UNREAD {
            match self.connection.take_next() {
                Received::Nothing => break,
                Received::AsksToContinue => self.unread.extend(Connection::CONTINUE),
                Received::Request(request) => {
                    let served = api.serve(&request, host);
                    let name = format!("{} {}", request.method_name, request.path);
                    match &served.refusal {
                        None => host.log.write(Level::Info, &format!("{name}: done")),
                        Some(why) => host.log.write(Level::Error, &format!("{name}: {why}")),
                    }
                    let bytes = served.response.bytes(request.keeps_alive);
                    self.unread.extend(bytes);
                    self.is_finished = !request.keeps_alive;
                    built = served.built.or(built);
                }
                Received::Broken(fault) => {
                    self.unread.extend(fault.response().bytes(false));
                    self.is_finished = true;
                }
            }
        }
        built
    }

    fn send(&mut self) {
        while !self.unread.is_empty() && !self.is_gone {
            match self.stream.write(&self.unread) {
                Ok(0) => self.is_gone = true,
                Ok(count) => {
                    self.unread.drain(..count);
                }
                Err(error) if is_passing(&error) => break,
                Err(_) => self.is_gone = true,
            }
        }
    }
}

fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
