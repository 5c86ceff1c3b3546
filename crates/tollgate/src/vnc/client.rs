//! One VNC viewer's connection: input from the viewer, and pictures to it.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_machine::board::input::{Buttons, MouseEvent};
use tollgate_machine::vm_handle::VmHandle;
use tollgate_rfb::{Event, Frame, Refusal, Session};

use super::keys::{KeyEvent, Keys};
use crate::host;

/// How long a viewer may take until it has given its password.
const GREETING_PATIENCE: Duration = Duration::from_secs(30);
/// How long a viewer with a wrong password waits for the answer.
const PENANCE: Duration = Duration::from_secs(1);
/// How long a viewer may read nothing before it is disconnected, because its pictures take memory.
const SENDING_PATIENCE: Duration = Duration::from_secs(60);
/// How long to wait before input that found no room is offered to the guest again.
const RETRY: Duration = Duration::from_millis(10);
/// The number of bytes read in one call.
const CHUNK: usize = 4096;

/// A connection of either kind.
pub enum Stream {
    /// A connection to the TCP port.
    Port(TcpStream),
    /// A connection to the Unix socket.
    Socket(UnixStream),
}

impl Stream {
    /// Makes reads and writes return immediately.
    ///
    /// # Errors
    ///
    /// The errors of fcntl(2).
    pub fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            Self::Port(stream) => {
                // An update is sent as one piece, so nothing is gained by collecting small writes.
                let _ = stream.set_nodelay(true);
                stream.set_nonblocking(true)
            }
            Self::Socket(stream) => stream.set_nonblocking(true),
        }
    }

    fn fd(&self) -> i32 {
        match self {
            Self::Port(stream) => stream.as_raw_fd(),
            Self::Socket(stream) => stream.as_raw_fd(),
        }
    }

    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Port(stream) => stream.read(bytes),
            Self::Socket(stream) => stream.read(bytes),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Port(stream) => stream.write(bytes),
            Self::Socket(stream) => stream.write(bytes),
        }
    }
}

/// Input that the guest had no room for yet.
enum Input {
    Keys(Vec<KeyEvent>),
    Mouse(MouseEvent),
}

/// A connected viewer.
pub struct Client {
    stream: Stream,
    session: Session,
    keys: Keys,
    /// The last position of its pointer.
    pointer: Option<(u16, u16)>,
    /// The buttons that it held then, as in its messages.
    buttons: u8,
    backlog: VecDeque<Input>,
    /// The time until which the viewer must have given its password, or must have read something.
    deadline: Instant,
    /// Nothing is written before this time.
    held_until: Option<Instant>,
    /// Whether the connection closes when the viewer has read the rest.
    is_refused: bool,
    is_gone: bool,
}

/// The result of serving a viewer.
#[derive(Default)]
pub struct Served {
    /// Whether it has pressed keys or moved the pointer.
    pub is_active: bool,
    /// Whether it wants to be the only viewer.
    pub is_exclusive: bool,
}

impl Client {
    /// A viewer that has just connected.
    pub fn new(stream: Stream, session: Session) -> Self {
        Self {
            stream,
            session,
            keys: Keys::default(),
            pointer: None,
            buttons: 0,
            backlog: VecDeque::new(),
            deadline: Instant::now() + GREETING_PATIENCE,
            held_until: None,
            is_refused: false,
            is_gone: false,
        }
    }

    /// The descriptor and the events to wait for.
    pub fn interest(&self) -> libc::pollfd {
        let mut events = 0;
        // While the guest has no room, no more is read from the viewer.
        if self.backlog.is_empty() && !self.is_refused {
            events |= libc::POLLIN;
        }
        if !self.session.output().is_empty() && self.held_until.is_none() {
            events |= libc::POLLOUT;
        }
        host::interest(self.stream.fd(), events)
    }

    /// The time at which the viewer must be served even if it is not ready.
    pub fn deadline(&self) -> Option<Instant> {
        let retry = (!self.backlog.is_empty()).then(|| Instant::now() + RETRY);
        let patience = (!self.session.is_let_in() || !self.session.output().is_empty())
            .then_some(self.deadline);
        [retry, patience, self.held_until]
            .into_iter()
            .flatten()
            .min()
    }

    /// Whether the connection has ended.
    pub fn is_gone(&self) -> bool {
        self.is_gone
    }

    /// Whether it waits for changes of the screen.
    pub fn wants_update(&self) -> bool {
        self.session.wants_update()
    }

    /// Whether it has given the password, if there is one.
    pub fn is_let_in(&self) -> bool {
        self.session.is_let_in()
    }

    /// Sends the changes of the screen.
    pub fn update(&mut self, frame: &Arc<Frame>) {
        let was_idle = self.session.output().is_empty();
        self.session.update(frame);
        if was_idle {
            self.deadline = Instant::now() + SENDING_PATIENCE;
        }
        self.write();
    }

    /// Reads what the viewer has sent, if it is ready, and writes as much as it takes.
    pub fn serve(&mut self, ready: libc::c_short, handle: &VmHandle) -> Served {
        let mut served = Served::default();
        self.offer(handle);
        if ready & libc::POLLIN != 0 && self.backlog.is_empty() && !self.is_refused {
            served = self.read(handle);
        } else if ready & (libc::POLLERR | libc::POLLHUP) != 0 {
            self.is_gone = true;
        }
        let now = Instant::now();
        if self.held_until.is_some_and(|until| until <= now) {
            self.held_until = None;
        }
        self.write();
        let is_late = !self.session.is_let_in() || !self.session.output().is_empty();
        if is_late && now >= self.deadline {
            self.is_gone = true;
        }
        served
    }

    fn read(&mut self, handle: &VmHandle) -> Served {
        let mut served = Served::default();
        let mut bytes = [0; CHUNK];
        let count = match self.stream.read(&mut bytes) {
            Ok(count @ 1..) => count,
            Err(error) if is_passing(&error) => return served,
            _ => {
                self.is_gone = true;
                return served;
            }
        };
        let was_let_in = self.session.is_let_in();
        let mut events = Vec::new();
        let refused = self.session.receive(&bytes[..count], &mut events).err();
        if !was_let_in && self.session.is_let_in() {
            self.deadline = Instant::now() + SENDING_PATIENCE;
        }
        for event in events {
            served.is_exclusive |= event == Event::Exclusive;
            served.is_active |= event != Event::Exclusive;
            self.take(event);
        }
        self.offer(handle);
        if let Some(refusal) = refused {
            self.is_refused = true;
            self.deadline = Instant::now() + GREETING_PATIENCE;
            if refusal == Refusal::Password {
                self.held_until = Some(Instant::now() + PENANCE);
            }
        }
        served
    }

    /// Passes the viewer's action to the guest's keyboard or mouse.
    fn take(&mut self, event: Event) {
        let keys = match event {
            Event::Key { is_down, keysym } => self.keys.meant(keysym, is_down),
            Event::PlacedKey { is_down, scancode } => self.keys.placed(scancode, is_down),
            Event::Pointer { x, y, buttons } => {
                let (old_x, old_y) = self.pointer.replace((x, y)).unwrap_or((x, y));
                let moved = |new: u16, old: u16| i32::from(new) - i32::from(old);
                return self.mouse(moved(x, old_x), moved(y, old_y), buttons);
            }
            Event::Motion {
                right,
                down,
                buttons,
            } => return self.mouse(right, down, buttons),
            Event::Exclusive => return,
        };
        if !keys.is_empty() {
            self.backlog.push_back(Input::Keys(keys));
        }
    }

    fn mouse(&mut self, right: i32, down: i32, buttons: u8) {
        const WHEEL_UP: u8 = 1 << 3;
        const WHEEL_DOWN: u8 = 1 << 4;
        let pressed = buttons & !self.buttons;
        let step = |button: u8| i32::from(pressed & button != 0);
        self.buttons = buttons;
        self.backlog.push_back(Input::Mouse(MouseEvent {
            right,
            down,
            wheel: step(WHEEL_DOWN) - step(WHEEL_UP),
            buttons: mouse_buttons(buttons),
        }));
    }

    /// Passes on as much as the guest has room for.
    fn offer(&mut self, handle: &VmHandle) {
        while let Some(input) = self.backlog.front() {
            let is_taken = match input {
                Input::Keys(keys) => handle.keys(keys),
                Input::Mouse(event) => handle.mouse(&[*event]),
            };
            if !is_taken {
                return;
            }
            self.backlog.pop_front();
        }
    }

    fn write(&mut self) {
        while !self.session.output().is_empty() && self.held_until.is_none() {
            match self.stream.write(self.session.output()) {
                Ok(count @ 1..) => {
                    self.session.sent(count);
                    if self.session.is_let_in() {
                        self.deadline = Instant::now() + SENDING_PATIENCE;
                    }
                }
                Err(error) if is_passing(&error) => return,
                _ => {
                    self.is_gone = true;
                    return;
                }
            }
        }
        self.is_gone |= self.is_refused && self.held_until.is_none();
    }

    /// Releases everything that the viewer held down when it disconnected.
    pub fn let_go(&mut self, handle: &VmHandle) {
        let keys = self.keys.release_all();
        if !keys.is_empty() {
            handle.keys(&keys);
        }
        if self.buttons & 7 != 0 {
            handle.mouse(&[MouseEvent::default()]);
        }
    }
}

/// The buttons in the viewer's messages: left, middle, right.
fn mouse_buttons(mask: u8) -> Buttons {
    let buttons = [Buttons::LEFT, Buttons::MIDDLE, Buttons::RIGHT];
    let pressed = (0..).zip(buttons).filter(|(bit, _)| mask >> bit & 1 != 0);
    pressed.map(|(_, button)| button).collect()
}

/// Whether the call can be tried again later.
fn is_passing(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buttons_have_the_mouse_s_order() {
        assert_eq!(mouse_buttons(0b001), Buttons::LEFT);
        assert_eq!(mouse_buttons(0b010), Buttons::MIDDLE);
        assert_eq!(mouse_buttons(0b1_1100), Buttons::RIGHT);
    }
}
