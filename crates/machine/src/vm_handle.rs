//! The handle through which other threads reach a running virtual machine.
//!
//! Everything from outside arrives here: commands (pause, resume, quit, power button)
//! serial input, keys and moves of the mouse. A [`VmHandle`] may be cloned and used from any thread; the vCPU
//! thread is the only consumer and holds the other side, [`VmCommands`]:
//!
//! ```text
//! any thread                              vCPU thread
//! handle.pause() -- queue --+-- kick ---> leaves guest code
//!                           |             commands.take() == [Command::Pause]
//!                           |             commands.publish(Status { Paused, .. })
//!                           +-- wake ---> commands.wait_for_command(None) returns
//! ```
//!
//! The *kick* is a closure that the vCPU thread installs; it must make that thread
//! leave guest code soon (in practice: a signal). A thread that sleeps in
//! [`VmCommands::wait_for_work`] or [`VmCommands::wait_for_command`] needs no kick.
//!
//! The queue is bounded by construction: a command that is already waiting is not
//! queued again, and of pause and resume only the latest is kept.

mod commands;
mod mailbox;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::devices::i8042::{Buttons, Key, MouseEvent};
use crate::devices::vga::screen::Screen;
use crate::knobs::Assignment;
use tollgate_exits::books::Books;

pub use commands::VmCommands;
pub use mailbox::{
    Answer, BOOKS_AGE, BooksRequest, Command, Happened, KEY_CAPACITY, KickFunction, Listener,
    MOUSE_CAPACITY, MediumChange, MediumRequest, Query, QueryNumber, RemovableDrive, ResetRequest,
    Resets, SERIAL_INPUT_CAPACITY, ScreenRequest, Shown, State, Status, StatusRequest,
};
use mailbox::{Mailbox, Shared};

/// The side that anyone may hold: commands go in, the status comes out.
#[derive(Clone)]
pub struct VmHandle(Arc<Shared>);

impl Default for VmHandle {
    fn default() -> Self {
        Self::new()
    }
}

impl VmHandle {
    /// A handle with nothing queued, in [`State::Starting`].
    pub fn new() -> Self {
        Self(Arc::new(Shared {
            mailbox: Mutex::default(),
            has_commands: AtomicBool::new(false),
            has_serial_input: AtomicBool::new(false),
            has_keys: AtomicBool::new(false),
            has_mouse: AtomicBool::new(false),
            queued: Condvar::new(),
            published: Condvar::new(),
            kick: Mutex::new(None),
            listener: Mutex::new(None),
            created: Instant::now(),
        }))
    }

    /// Whether both are handles of the same machine.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The vCPU thread's side.
    pub fn commands(&self) -> VmCommands {
        VmCommands(Arc::clone(&self.0))
    }

    /// Asks for a pause at the next instruction boundary.
    pub fn pause(&self) {
        self.submit(Command::Pause);
    }

    /// Asks to go on after a pause.
    pub fn resume(&self) {
        self.submit(Command::Resume);
    }

    /// Pauses if resume was asked for last, else resumes. Returns whether a pause is
    /// now wanted.
    pub fn toggle_pause(&self) -> bool {
        let pause = !self.0.mailbox().pause_wanted;
        self.submit(if pause {
            Command::Pause
        } else {
            Command::Resume
        });
        pause
    }

    /// Asks for the end of the virtual machine.
    pub fn quit(&self) {
        self.submit(Command::Quit);
    }

    /// Presses the ACPI power button.
    pub fn power_button(&self) {
        self.submit(Command::PowerButton);
    }

    /// Asks for knobs to be turned, all at the same instruction boundary.
    pub fn turn_knobs(&self, assignments: &[Assignment]) {
        self.submit_all(assignments.iter().copied().map(Command::Set));
    }

    /// Queues input for the serial port and returns how many bytes were taken: fewer
    /// than given when [`SERIAL_INPUT_CAPACITY`] is reached. Never blocks.
    pub fn serial_input(&self, bytes: &[u8]) -> usize {
        let taken = {
            let mut mailbox = self.0.mailbox();
            let room = SERIAL_INPUT_CAPACITY.saturating_sub(mailbox.serial_input.len());
            let taken = bytes.len().min(room);
            mailbox.serial_input.extend(bytes.iter().take(taken));
            if taken > 0 {
                self.0.has_serial_input.store(true, Ordering::Release);
            }
            taken
        };
        if taken > 0 {
            self.0.wake();
        }
        taken
    }

    /// Presses (`down`) or releases a key of the PS/2 keyboard. The keyboard takes keys as
    /// the guest reads them; false, and nothing done, while [`KEY_CAPACITY`] wait. Never
    /// blocks.
    pub fn key(&self, key: Key, down: bool) -> bool {
        {
            let mut mailbox = self.0.mailbox();
            if mailbox.keys.len() >= KEY_CAPACITY {
                return false;
            }
            mailbox.keys.push_back((key, down));
            self.0.has_keys.store(true, Ordering::Release);
        }
        self.0.wake();
        true
    }

    /// The same of several keys, of which all are taken or none.
    pub fn keys(&self, keys: &[(Key, bool)]) -> bool {
        {
            let mut mailbox = self.0.mailbox();
            if mailbox.keys.len() + keys.len() > KEY_CAPACITY {
                return false;
            }
            mailbox.keys.extend(keys);
            let waits = !mailbox.keys.is_empty();
            self.0.has_keys.store(waits, Ordering::Release);
        }
        self.0.wake();
        true
    }

    /// Does something with the mouse, all of it or nothing: false while too much waits, see
    /// [`MOUSE_CAPACITY`]. The mouse takes it as the guest reads its reports. Never blocks.
    pub fn mouse(&self, events: &[MouseEvent]) -> bool {
        {
            let mut mailbox = self.0.mailbox();
            if mailbox.mouse.len() + events.len() > MOUSE_CAPACITY {
                return false;
            }
            for event in events {
                // A press is at the place where it was: what follows it is a move of its own.
                let moves = event.buttons == mailbox.mouse_buttons;
                let merges = moves && mailbox.mouse_moved;
                (mailbox.mouse_buttons, mailbox.mouse_moved) = (event.buttons, moves);
                match mailbox.mouse.back_mut().filter(|_| merges) {
                    Some(last) => *last = last.followed_by(*event),
                    None => mailbox.mouse.push_back(*event),
                }
            }
            let waits = !mailbox.mouse.is_empty();
            self.0.has_mouse.store(waits, Ordering::Release);
        }
        self.0.wake();
        true
    }

    /// The buttons that are down, as [`VmHandle::mouse`] was told last.
    pub fn mouse_buttons(&self) -> Buttons {
        self.0.mailbox().mouse_buttons
    }

    /// Asks the vCPU thread to change a medium; the answer is for [`VmHandle::medium_after`].
    pub fn request_medium(&self, change: MediumChange) -> MediumRequest {
        let number = {
            let mut mailbox = self.0.mailbox();
            mailbox.media_requests += 1;
            let number = mailbox.media_requests;
            mailbox.media.push_back((number, change));
            number
        };
        self.submit(Command::ChangeMedia);
        MediumRequest(number)
    }

    /// What came of a change, if it was made; an error is one line.
    pub fn medium_after(&self, request: MediumRequest) -> Option<Result<(), String>> {
        let mailbox = self.0.mailbox();
        let mut results = mailbox.media_changed.iter();
        let (_, result) = results.find(|(number, _)| *number == request.0)?;
        Some(result.clone())
    }

    /// Asks the vCPU thread for what is on the screen; the answer is for
    /// [`VmHandle::screen_after`].
    pub fn request_screen(&self, with_picture: bool) -> ScreenRequest {
        let request = ScreenRequest(self.0.mailbox().screens, with_picture);
        self.submit(Command::ReportScreen(with_picture));
        request
    }

    /// What is on the screen, if that was published after the request.
    pub fn screen_after(&self, request: ScreenRequest) -> Option<Arc<Shown>> {
        let mailbox = self.0.mailbox();
        let screen = mailbox.screen.as_ref()?;
        // One without its picture may have been published for somebody else.
        let has_it = !request.1 || screen.picture.is_some() || screen.screen == Screen::Off;
        (mailbox.screens != request.0 && has_it).then(|| Arc::clone(screen))
    }

    /// The status published last.
    pub fn status(&self) -> Status {
        self.with_uptime(self.0.mailbox().status)
    }

    /// From now on `listener` hears of each publication: of statuses and of books. For
    /// threads that wait for other events too.
    pub fn set_listener(&self, listener: Listener) {
        let mut slot = self
            .0
            .listener
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        *slot = Some(listener);
    }

    /// Asks the vCPU thread for a fresh status; the answer is for
    /// [`VmHandle::status_after`].
    pub fn request_status(&self) -> StatusRequest {
        let request = StatusRequest(self.0.mailbox().publications);
        if self.status_after(request).is_none() {
            self.submit(Command::ReportStatus);
        }
        request
    }

    /// The status, if one was published after the request or the machine has stopped.
    pub fn status_after(&self, request: StatusRequest) -> Option<Status> {
        let mailbox = self.0.mailbox();
        request
            .is_answered(&mailbox)
            .then(|| self.with_uptime(mailbox.status))
    }

    /// Asks the vCPU thread for a fresh status and waits for it. After `timeout` the
    /// status published last is returned.
    pub fn fresh_status(&self, timeout: Duration) -> Status {
        let request = self.request_status();
        self.wait(timeout, |mailbox| request.is_answered(mailbox))
    }

    /// Asks the vCPU thread for its books; the answer is for [`VmHandle::books_after`].
    pub fn request_books(&self) -> BooksRequest {
        let request = BooksRequest(Instant::now());
        let is_needed = {
            let mailbox = self.0.mailbox();
            !request.is_answered(&mailbox) && mailbox.status.state != State::Stopped
        };
        if is_needed {
            self.submit(Command::ReportBooks);
        }
        request
    }

    /// The books, if there are some that are at most [`BOOKS_AGE`] older than the request.
    pub fn books_after(&self, request: BooksRequest) -> Option<Arc<Books>> {
        request.answer(&self.0.mailbox())
    }

    /// Asks the vCPU thread for its books and waits for them; `None` if it does not
    /// answer within `timeout` or has stopped. They are at most [`BOOKS_AGE`] old.
    pub fn fresh_books(&self, timeout: Duration) -> Option<Arc<Books>> {
        let request = self.request_books();
        let waits = |mailbox: &mut Mailbox| {
            !request.is_answered(mailbox) && mailbox.status.state != State::Stopped
        };
        let (mailbox, _) = self
            .0
            .published
            .wait_timeout_while(self.0.mailbox(), timeout, waits)
            .unwrap_or_else(PoisonError::into_inner);
        request.answer(&mailbox)
    }

    /// Asks the vCPU thread to begin its books anew; [`VmHandle::has_reset_books`] tells when it has.
    /// Books that are asked for afterwards tell of what came later.
    pub fn request_reset_of_books(&self) -> ResetRequest {
        let request = ResetRequest(self.0.mailbox().resets);
        self.submit(Command::ResetBooks);
        request
    }

    /// Whether the books were begun anew since the request.
    pub fn has_reset_books(&self, request: ResetRequest) -> bool {
        request.is_answered(&self.0.mailbox())
    }

    /// Asks the vCPU thread to begin its books anew, and waits until it has; false if it does not
    /// within `timeout` or has stopped.
    pub fn reset_books(&self, timeout: Duration) -> bool {
        let request = self.request_reset_of_books();
        let waits = |mailbox: &mut Mailbox| {
            !request.is_answered(mailbox) && mailbox.status.state != State::Stopped
        };
        let (mailbox, _) = self
            .0
            .published
            .wait_timeout_while(self.0.mailbox(), timeout, waits)
            .unwrap_or_else(PoisonError::into_inner);
        request.is_answered(&mailbox)
    }

    /// Has the vCPU thread count between marks, or set one; the answer is for [`VmHandle::fetch`].
    pub fn query(&self, query: Query) -> QueryNumber {
        let number = {
            let mut mailbox = self.0.mailbox();
            mailbox.queries += 1;
            mailbox.queries
        };
        self.submit(Command::Query(query, number));
        QueryNumber(number)
    }

    /// The answer to a query, once. It is kept for a while only.
    pub fn fetch(&self, number: QueryNumber) -> Option<Answer> {
        self.0.mailbox().fetch(number.0)
    }

    /// Waits until the published status satisfies `reached` and returns it. After
    /// `timeout` the status published last is returned.
    pub fn wait_for_status(
        &self,
        timeout: Duration,
        mut reached: impl FnMut(&Status) -> bool,
    ) -> Status {
        self.wait(timeout, |mailbox| reached(&mailbox.status))
    }

    fn wait(&self, timeout: Duration, mut reached: impl FnMut(&Mailbox) -> bool) -> Status {
        let (mailbox, _) = self
            .0
            .published
            .wait_timeout_while(self.0.mailbox(), timeout, |mailbox| !reached(mailbox))
            .unwrap_or_else(PoisonError::into_inner);
        self.with_uptime(mailbox.status)
    }

    fn with_uptime(&self, mut status: Status) -> Status {
        let uptime = self.0.created.elapsed().as_nanos();
        status.uptime_ns = u64::try_from(uptime).unwrap_or(u64::MAX);
        status
    }

    fn submit(&self, command: Command) {
        self.submit_all([command]);
    }

    /// Queues commands that are taken together.
    fn submit_all(&self, commands: impl IntoIterator<Item = Command>) {
        {
            let mut mailbox = self.0.mailbox();
            for command in commands {
                if matches!(command, Command::Pause | Command::Resume) {
                    mailbox.pause_wanted = command == Command::Pause;
                }
                mailbox
                    .commands
                    .retain(|queued| !is_replaced(*queued, command));
                mailbox.commands.push(command);
            }
            let waits = !mailbox.commands.is_empty();
            self.0.has_commands.store(waits, Ordering::Release);
        }
        self.0.wake();
    }
}

/// Whether `queued` has no effect once `command` is queued behind it.
fn is_replaced(queued: Command, command: Command) -> bool {
    match (queued, command) {
        (Command::Pause | Command::Resume, Command::Pause | Command::Resume) => true,
        (Command::Set(before), Command::Set(now)) => before.knob().name == now.knob().name,
        _ => queued == command,
    }
}
