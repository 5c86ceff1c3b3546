//! A place for characters while the machine runs: its end on the host, and its users.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;

use tollgate_machine::vm_handle::VmHandle;
use tollgate_qemu_words::monitor::{Event, Hmp, Qmp};

use super::end::End;
use super::keys::{Keys, Typed};
use crate::qemu::orders::Orders;

/// How many bytes wait for the host before the guest waits.
const MOST_WAITING: usize = 64 << 10;
/// How many bytes wait for a user before no more are read.
const MOST_INPUT: usize = 16 << 10;

/// Hands a serial port bytes, and returns how many it takes.
pub type Input = fn(&VmHandle, &[u8]) -> usize;

/// Who uses a place: a device of the guest, at the other end of a pair of sockets, or a monitor.
pub struct User {
    stream: Option<UnixStream>,
    monitor: Option<Session>,
    /// What the guest's input goes through, instead of the stream.
    serial: Option<(VmHandle, Input)>,
    /// Whether the guest has input at all.
    has_input: bool,
    to_guest: VecDeque<u8>,
}

impl User {
    /// A port of a virtio console.
    pub fn port(stream: UnixStream) -> Self {
        Self {
            stream: Some(stream),
            monitor: None,
            serial: None,
            has_input: true,
            to_guest: VecDeque::new(),
        }
    }

    /// A serial port, which gets its input through the handle.
    pub fn serial(stream: UnixStream, handle: VmHandle, input: Input) -> Self {
        Self {
            serial: Some((handle, input)),
            ..Self::port(stream)
        }
    }

    /// A monitor in this process.
    pub fn monitor(session: Session) -> Self {
        Self {
            stream: None,
            monitor: Some(session),
            serial: None,
            has_input: true,
            to_guest: VecDeque::new(),
        }
    }

    /// A console without input.
    pub fn output(stream: UnixStream) -> Self {
        Self {
            has_input: false,
            ..Self::port(stream)
        }
    }

    fn take(&mut self, bytes: &[u8]) {
        if self.has_input {
            self.to_guest.extend(bytes);
        }
    }

    /// Hands the guest what waits for it, as far as there is room.
    fn offer(&mut self) {
        let (first, _) = self.to_guest.as_slices();
        if first.is_empty() {
            return;
        }
        let taken = match (&self.serial, &mut self.stream) {
            (Some((handle, input)), _) => input(handle, first),
            (None, Some(stream)) => match stream.write(first) {
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
                Err(_) => first.len(),
            },
            (None, None) => first.len(),
        };
        self.to_guest.drain(..taken);
    }
}

/// A monitor for one client.
pub enum Session {
    /// JSON for programs.
    Control(Qmp),
    /// Lines for people.
    Readline(Hmp),
}

/// A place and its users.
pub struct Place {
    /// The name by which users find it.
    pub id: String,
    /// The host's end.
    pub end: End,
    /// The keys, if several users share the place.
    pub keys: Option<Keys>,
    /// A file that gets the output too.
    pub log: Option<File>,
    /// The users, in the order in which a key switches between them.
    pub users: Vec<User>,
    /// The user that has the input.
    pub focus: usize,
    waiting: VecDeque<u8>,
}

/// Where the descriptors of a place are in the list that is waited for.
pub struct Slots(usize);

impl Place {
    /// A place without users.
    pub fn new(id: &str, end: End, keys: Option<Keys>, log: Option<File>) -> Self {
        Self {
            id: id.to_owned(),
            end,
            keys,
            log,
            users: Vec::new(),
            focus: 0,
            waiting: VecDeque::new(),
        }
    }

    /// Adds what to wait for: listener, input, output, and each user.
    pub fn add_interests(&self, fds: &mut Vec<libc::pollfd>) -> Slots {
        let slots = Slots(fds.len());
        let mut add = |fd: RawFd, is_wanted: bool, events| {
            fds.push(crate::host::interest(
                if is_wanted { fd } else { -1 },
                events,
            ));
        };
        let user = self.users.get(self.focus);
        let has_room = user.is_none_or(|user| user.to_guest.len() < MOST_INPUT);
        add(self.end.listener_fd(), true, libc::POLLIN);
        add(self.end.input_fd(), has_room, libc::POLLIN);
        add(
            self.end.output_fd(),
            !self.waiting.is_empty(),
            libc::POLLOUT,
        );
        for user in &self.users {
            let fd = user.stream.as_ref().map_or(-1, AsRawFd::as_raw_fd);
            let is_read = self.waiting.len() < MOST_WAITING;
            let is_written = user.serial.is_none() && !user.to_guest.is_empty();
            let mut events = if is_read { libc::POLLIN } else { 0 };
            if is_written {
                events |= libc::POLLOUT;
            }
            add(fd, events != 0, events);
        }
        slots
    }

    /// Whether input waits for room in the serial port, which gives no sign of it.
    pub fn must_offer_again(&self) -> bool {
        self.users
            .iter()
            .any(|user| user.serial.is_some() && !user.to_guest.is_empty())
    }

    /// Greets those at the other end, unless they have to come first, or a key leads to the
    /// monitor.
    pub fn begin(&mut self) {
        if self.end.is_open() {
            self.greet(false);
        }
    }

    /// Begins with a new client, or the first one.
    fn greet(&mut self, is_new: bool) {
        let mut greeting = Vec::new();
        let focus = self.focus;
        for (number, user) in self.users.iter_mut().enumerate() {
            match &mut user.monitor {
                Some(Session::Control(qmp)) => greeting.extend(qmp.open()),
                Some(Session::Readline(hmp)) => {
                    if is_new {
                        hmp.forget();
                    }
                    if number == focus {
                        greeting.extend(hmp.open());
                    }
                }
                None => {}
            }
        }
        self.write(&greeting);
    }

    /// Tells programs at monitors what happened.
    pub fn tell(&mut self, event: &Event) {
        let mut text = Vec::new();
        for user in &self.users {
            if let Some(Session::Control(qmp)) = &user.monitor {
                text.extend(qmp.event(event));
            }
        }
        self.write(&text);
    }

    /// Moves bytes. Returns whether the end of the machine was asked for.
    pub fn serve(&mut self, slots: &Slots, fds: &[libc::pollfd], orders: &mut Orders) -> bool {
        let ready = |number: usize| fds.get(slots.0 + number).map_or(0, |fd| fd.revents);
        let mut quits = false;
        if ready(0) != 0 && self.end.accept() {
            self.waiting.clear();
            self.greet(true);
        }
        if ready(1) != 0
            && let Some(bytes) = self.end.read()
        {
            quits |= self.typed(&bytes, orders);
        }
        for number in 0..self.users.len() {
            if ready(3 + number) & (libc::POLLIN | libc::POLLHUP) != 0 {
                self.hear(number);
            }
            self.users[number].offer();
        }
        if !self.waiting.is_empty() && (ready(2) != 0 || self.end.writes_at_once()) {
            self.end.write(&mut self.waiting);
        }
        quits
    }

    /// Takes input of the host.
    fn typed(&mut self, bytes: &[u8], orders: &mut Orders) -> bool {
        let Some(keys) = &mut self.keys else {
            self.input(bytes, orders);
            return false;
        };
        let mut quits = false;
        for typed in keys.take(bytes) {
            match typed {
                Typed::Input(bytes) => self.input(&bytes, orders),
                Typed::Quit => quits = true,
                Typed::Switch => self.switch(),
                Typed::Help => {
                    let help = self.keys.as_ref().map(Keys::help).unwrap_or_default();
                    self.write(help.as_bytes());
                }
            }
        }
        quits
    }

    /// Gives the focus to the next user.
    fn switch(&mut self) {
        self.focus = (self.focus + 1) % self.users.len().max(1);
        let user = self.users.get_mut(self.focus);
        if let Some(Session::Readline(hmp)) = user.and_then(|user| user.monitor.as_mut()) {
            let greeting = hmp.open();
            self.write(b"\r\n");
            self.write(&greeting);
        }
    }

    fn input(&mut self, bytes: &[u8], orders: &mut Orders) {
        let Some(user) = self.users.get_mut(self.focus) else {
            return;
        };
        let shown = match &mut user.monitor {
            Some(Session::Control(qmp)) => qmp.take(bytes, orders),
            Some(Session::Readline(hmp)) => hmp.take(bytes, orders),
            None => return user.take(bytes),
        };
        self.write(&shown);
    }

    /// Takes output of a user.
    fn hear(&mut self, number: usize) {
        let mut bytes = [0; 4096];
        let user = &mut self.users[number];
        let Some(stream) = &mut user.stream else {
            return;
        };
        match stream.read(&mut bytes) {
            Ok(0) => user.stream = None,
            Ok(count) => self.write(&bytes[..count]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(_) => user.stream = None,
        }
    }

    /// Adds output for the host.
    pub fn write(&mut self, bytes: &[u8]) {
        if let Some(log) = &mut self.log {
            // A log that cannot be written loses what it would have held.
            let _ = log.write_all(bytes);
        }
        if self.end.is_open() {
            self.waiting.extend(bytes);
        }
    }

    /// Whether the guest's devices have gone and the host has all of their output.
    pub fn is_done(&self) -> bool {
        self.waiting.is_empty() && self.users.iter().all(|user| user.stream.is_none())
    }
}
