//! The handle through which other threads reach a running virtual machine.
//!
//! Everything from outside arrives here: commands (pause, resume, quit, power button)
//! serial input and keys. A [`VmHandle`] may be cloned and used from any thread; the vCPU
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

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::devices::i8042::Key;
use crate::knobs::{Assignment, Settings};
use crate::pc::Outside;
use serde::Serialize;
use tollgate_exits::books::Books;

/// Bytes of serial input that wait for the guest at most.
pub const SERIAL_INPUT_CAPACITY: usize = 4096;

/// Key events that wait for the guest at most.
pub const KEY_CAPACITY: usize = 256;

/// Books that are no older than this serve another reader too, so that readers who ask
/// all the time take little of the vCPU's.
pub const BOOKS_AGE: Duration = Duration::from_millis(20);

/// Makes the vCPU thread leave guest code. It must not call the handle.
pub use crate::bus::completion::KickFunction;

/// Hears on the vCPU thread that something was published. It must not call the handle.
pub type Listener = Arc<dyn Fn() + Send + Sync>;

/// A request from another thread to the virtual machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Stop at an instruction boundary; guest time stands still.
    Pause,
    /// Go on after a pause.
    Resume,
    /// End the virtual machine.
    Quit,
    /// Press the ACPI power button.
    PowerButton,
    /// Publish a fresh [`Status`].
    ReportStatus,
    /// Publish the books as they are now.
    ReportBooks,
    /// Turn a knob.
    Set(Assignment),
}

/// What the virtual machine is doing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// Being built; no instruction has run yet.
    #[default]
    Starting,
    /// Running guest code.
    Running,
    /// Waiting for an interrupt in HLT.
    Halted,
    /// Stopped by a pause.
    Paused,
    /// Ended; it runs no more.
    Stopped,
}

/// A snapshot of the virtual machine as others see it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Status {
    /// What the machine is doing.
    pub state: State,
    /// Nanoseconds of host time since the handle was made; filled in when the status
    /// is read, so the vCPU thread may leave it zero.
    pub uptime_ns: u64,
    /// Nanoseconds of guest time.
    pub guest_time_ns: u64,
    /// Exits of all kinds so far.
    pub exits: u64,
    /// How the knobs stand.
    #[serde(rename = "knobs")]
    pub settings: Settings,
}

/// What the two sides share under the lock.
#[derive(Default)]
struct Mailbox {
    commands: Vec<Command>,
    serial_input: VecDeque<u8>,
    keys: VecDeque<(Key, bool)>,
    pause_wanted: bool,
    status: Status,
    /// Counts publications, so that a waiting reader sees a new one.
    publications: u64,
    /// The books published last, and when.
    books: Option<(Instant, Arc<Books>)>,
}

struct Shared {
    mailbox: Mutex<Mailbox>,
    /// Commands wait; read without the lock on the vCPU's fast path.
    has_commands: AtomicBool,
    /// Serial input waits; read without the lock on the vCPU's fast path.
    has_serial_input: AtomicBool,
    /// Keys wait; read without the lock on the vCPU's fast path.
    has_keys: AtomicBool,
    /// Signalled when something is queued.
    queued: Condvar,
    /// Signalled when a status is published.
    published: Condvar,
    /// Held while the kick runs, so that no kick is under way once it was removed.
    kick: Mutex<Option<KickFunction>>,
    /// Called after each publication.
    listener: Mutex<Option<Listener>>,
    created: Instant,
}

impl Shared {
    /// No user of the lock leaves the mailbox half-changed, so a panic elsewhere
    /// does not make its content wrong.
    fn mailbox(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kick_slot(&self) -> MutexGuard<'_, Option<KickFunction>> {
        self.kick.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_listener(&self) {
        self.published.notify_all();
        let listener = self.listener.lock();
        if let Some(listener) = listener.unwrap_or_else(PoisonError::into_inner).as_ref() {
            listener();
        }
    }

    fn wake(&self) {
        self.queued.notify_all();
        if let Some(kick) = self.kick_slot().as_ref() {
            kick();
        }
    }
}

/// A status was asked for when this many had been published.
#[derive(Clone, Copy, Debug)]
pub struct StatusRequest(u64);

impl StatusRequest {
    fn is_answered(self, mailbox: &Mailbox) -> bool {
        mailbox.publications != self.0 || mailbox.status.state == State::Stopped
    }
}

/// Books were asked for at this moment.
#[derive(Clone, Copy, Debug)]
pub struct BooksRequest(Instant);

impl BooksRequest {
    fn answer(self, mailbox: &Mailbox) -> Option<Arc<Books>> {
        let (at, books) = mailbox.books.as_ref()?;
        (self.0.saturating_duration_since(*at) < BOOKS_AGE).then(|| Arc::clone(books))
    }

    fn is_answered(self, mailbox: &Mailbox) -> bool {
        self.answer(mailbox).is_some()
    }
}

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

/// The vCPU thread's side: takes what was queued, publishes the status.
pub struct VmCommands(Arc<Shared>);

impl Outside for VmCommands {
    #[inline]
    fn serial_input(&mut self, room: usize) -> Vec<u8> {
        self.take_serial_input(room)
    }

    #[inline]
    fn key(&mut self) -> Option<(Key, bool)> {
        self.take_key()
    }

    fn wants_attention(&mut self) -> bool {
        self.has_commands()
    }
}

impl VmCommands {
    /// Installs the closure that makes this thread leave guest code. Commands queued
    /// earlier caused no kick: call [`VmCommands::take`] afterwards.
    pub fn install_kick(&self, kick: KickFunction) {
        *self.0.kick_slot() = Some(kick);
    }

    /// Removes the kick. When this returns, no kick is under way and none will come,
    /// so the thread it was aimed at may end.
    pub fn remove_kick(&self) {
        *self.0.kick_slot() = None;
    }

    /// Whether commands wait. Takes no lock.
    #[inline]
    pub fn has_commands(&self) -> bool {
        self.0.has_commands.load(Ordering::Acquire)
    }

    /// Whether serial input waits. Takes no lock.
    #[inline]
    pub fn has_serial_input(&self) -> bool {
        self.0.has_serial_input.load(Ordering::Acquire)
    }

    /// Takes all waiting commands, oldest first.
    pub fn take(&self) -> Vec<Command> {
        if !self.has_commands() {
            return Vec::new();
        }
        let mut mailbox = self.0.mailbox();
        self.0.has_commands.store(false, Ordering::Release);
        std::mem::take(&mut mailbox.commands)
    }

    /// Takes at most `limit` bytes of serial input: as many as the device has room for.
    pub fn take_serial_input(&self, limit: usize) -> Vec<u8> {
        if limit == 0 || !self.has_serial_input() {
            return Vec::new();
        }
        let mut mailbox = self.0.mailbox();
        let count = limit.min(mailbox.serial_input.len());
        let taken = mailbox.serial_input.drain(..count).collect();
        if mailbox.serial_input.is_empty() {
            self.0.has_serial_input.store(false, Ordering::Release);
        }
        taken
    }

    /// Takes the oldest key event: a key, and whether it goes down. Takes no lock if there
    /// is none.
    pub fn take_key(&self) -> Option<(Key, bool)> {
        if !self.0.has_keys.load(Ordering::Acquire) {
            return None;
        }
        let mut mailbox = self.0.mailbox();
        let key = mailbox.keys.pop_front();
        if mailbox.keys.is_empty() {
            self.0.has_keys.store(false, Ordering::Release);
        }
        key
    }

    /// Sleeps until a command waits, or until `timeout` if one is given. Returns
    /// whether a command waits. For the paused machine, and for one that has no room
    /// for serial input.
    pub fn wait_for_command(&self, timeout: Option<Duration>) -> bool {
        self.sleep(timeout, |mailbox| !mailbox.commands.is_empty())
    }

    /// Sleeps until a command, serial input or a key waits, or until `timeout` if one is
    /// given. Returns whether anything waits. For the halted machine.
    pub fn wait_for_work(&self, timeout: Option<Duration>) -> bool {
        self.sleep(timeout, |mailbox| {
            !mailbox.commands.is_empty()
                || !mailbox.serial_input.is_empty()
                || !mailbox.keys.is_empty()
        })
    }

    fn sleep(&self, timeout: Option<Duration>, awaited: impl Fn(&Mailbox) -> bool) -> bool {
        let mailbox = self.0.mailbox();
        let asleep = |mailbox: &mut Mailbox| !awaited(mailbox);
        let mailbox = match timeout {
            None => self
                .0
                .queued
                .wait_while(mailbox, asleep)
                .unwrap_or_else(PoisonError::into_inner),
            Some(timeout) => {
                self.0
                    .queued
                    .wait_timeout_while(mailbox, timeout, asleep)
                    .unwrap_or_else(PoisonError::into_inner)
                    .0
            }
        };
        awaited(&mailbox)
    }

    /// Makes `status` the one that others see.
    pub fn publish(&self, status: Status) {
        let mut mailbox = self.0.mailbox();
        mailbox.status = status;
        mailbox.publications = mailbox.publications.wrapping_add(1);
        drop(mailbox);
        self.0.tell_listener();
    }

    /// Makes `books` the ones that others see; the previous ones are dropped.
    pub fn publish_books(&self, books: Books) {
        let books = Arc::new(books);
        let previous = self.0.mailbox().books.replace((Instant::now(), books));
        self.0.tell_listener();
        // Freed outside the lock.
        drop(previous);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    #[test]
    fn commands_come_out_once_and_in_order() {
        let handle = VmHandle::new();
        let commands = handle.commands();
        assert!(!commands.has_commands());
        handle.power_button();
        handle.quit();
        assert!(commands.has_commands());
        assert_eq!(commands.take(), [Command::PowerButton, Command::Quit]);
        assert!(!commands.has_commands());
        assert_eq!(commands.take(), []);
    }

    #[test]
    fn only_the_latest_of_pause_and_resume_is_kept() {
        let handle = VmHandle::new();
        for _ in 0..1000 {
            handle.pause();
            handle.resume();
            handle.power_button();
        }
        handle.pause();
        assert_eq!(
            handle.commands().take(),
            [Command::PowerButton, Command::Pause]
        );
    }

    #[test]
    fn of_each_knob_only_the_latest_value_is_kept() {
        let handle = VmHandle::new();
        let set = |text: &str| Assignment::parse(text).unwrap();
        for _ in 0..1000 {
            handle.turn_knobs(&[set("vif=off"), set("vir=off")]);
            handle.turn_knobs(&[set("vif=on")]);
        }
        assert_eq!(
            handle.commands().take(),
            [Command::Set(set("vir=off")), Command::Set(set("vif=on"))]
        );
    }

    #[test]
    fn toggling_alternates_between_pause_and_resume() {
        let handle = VmHandle::new();
        let commands = handle.commands();
        assert!(handle.toggle_pause());
        assert_eq!(commands.take(), [Command::Pause]);
        assert!(!handle.toggle_pause());
        assert_eq!(commands.take(), [Command::Resume]);
    }

    #[test]
    fn serial_input_is_bounded_and_keeps_its_order() {
        let handle = VmHandle::new();
        let commands = handle.commands();
        let bytes: Vec<u8> = (0..SERIAL_INPUT_CAPACITY + 10).map(|n| n as u8).collect();
        assert_eq!(handle.serial_input(&bytes), SERIAL_INPUT_CAPACITY);
        assert_eq!(handle.serial_input(b"x"), 0);
        assert!(commands.take_serial_input(0).is_empty());
        assert_eq!(commands.take_serial_input(3), [0, 1, 2]);
        assert_eq!(handle.serial_input(b"abcd"), 3);
        let rest = commands.take_serial_input(usize::MAX);
        assert_eq!(rest.len(), SERIAL_INPUT_CAPACITY);
        assert_eq!(rest[rest.len() - 3..], *b"abc");
        assert!(!commands.has_serial_input());
    }

    #[test]
    fn keys_are_bounded_and_keep_their_order() {
        let handle = VmHandle::new();
        let commands = handle.commands();
        assert_eq!(commands.take_key(), None);
        for event in 0..KEY_CAPACITY {
            assert!(handle.key(Key::new(event as u8), event % 2 == 0));
        }
        assert!(!handle.key(Key::A, true));
        assert!(commands.wait_for_work(None));
        for event in 0..KEY_CAPACITY {
            let key = (Key::new(event as u8), event % 2 == 0);
            assert_eq!(commands.take_key(), Some(key));
        }
        assert_eq!(commands.take_key(), None);
    }

    #[test]
    fn each_command_and_input_kicks_the_vcpu_until_the_kick_is_removed() {
        let handle = VmHandle::new();
        let commands = handle.commands();
        let kicks = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&kicks);
        commands.install_kick(Arc::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        }));
        handle.pause();
        handle.serial_input(b"a");
        handle.serial_input(b"");
        assert_eq!(kicks.load(Ordering::Relaxed), 2);
        commands.remove_kick();
        handle.quit();
        assert_eq!(kicks.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn a_paused_machine_sleeps_through_serial_input() {
        let handle = VmHandle::new();
        let commands = handle.commands();
        handle.serial_input(b"a");
        assert!(!commands.wait_for_command(Some(Duration::from_millis(1))));
        assert!(commands.wait_for_work(None));
    }

    #[test]
    fn a_command_wakes_the_sleeping_vcpu() {
        let handle = VmHandle::new();
        let commands = handle.commands();
        let vcpu = thread::spawn(move || {
            let woken = commands.wait_for_command(Some(LONG));
            (woken, commands.take())
        });
        handle.resume();
        assert_eq!(vcpu.join().unwrap(), (true, vec![Command::Resume]));
    }

    #[test]
    fn a_fresh_status_is_the_one_published_after_the_request() {
        let handle = VmHandle::new();
        let commands = handle.commands();
        commands.publish(Status {
            exits: 1,
            ..Status::default()
        });
        let vcpu = thread::spawn(move || {
            assert!(commands.wait_for_command(Some(LONG)));
            assert_eq!(commands.take(), [Command::ReportStatus]);
            commands.publish(Status {
                state: State::Running,
                exits: 2,
                ..Status::default()
            });
        });
        let status = handle.fresh_status(LONG);
        assert_eq!((status.state, status.exits), (State::Running, 2));
        assert!(status.uptime_ns > 0);
        vcpu.join().unwrap();
    }

    fn books() -> Books {
        let ledger = tollgate_exits::Ledger::new(Default::default, Default::default());
        Books::of(&ledger, 1, 0)
    }

    #[test]
    fn books_are_published_when_asked_for_and_serve_others_for_a_moment() {
        let handle = VmHandle::new();
        let commands = handle.commands();
        let vcpu = thread::spawn(move || {
            assert!(commands.wait_for_command(Some(LONG)));
            assert_eq!(commands.take(), [Command::ReportBooks]);
            commands.publish_books(books());
        });
        let first = handle.fresh_books(LONG).unwrap();
        vcpu.join().unwrap();
        assert_eq!(first.tsc_khz, 1);
        thread::sleep(BOOKS_AGE);
        // Nobody answers any more, and the old ones are too old.
        assert!(handle.fresh_books(Duration::from_millis(1)).is_none());
        handle.commands().publish_books(books());
        let second = handle.fresh_books(Duration::ZERO).unwrap();
        assert!(!Arc::ptr_eq(&first, &second));
    }

    #[test]
    fn a_stopped_machine_has_no_books() {
        let handle = VmHandle::new();
        handle.commands().publish(Status {
            state: State::Stopped,
            ..Status::default()
        });
        assert!(handle.fresh_books(LONG).is_none());
    }

    #[test]
    fn a_stopped_or_silent_machine_does_not_hold_up_its_readers() {
        let handle = VmHandle::new();
        let silent = handle.fresh_status(Duration::from_millis(1));
        assert_eq!(silent.state, State::Starting);
        handle.commands().publish(Status {
            state: State::Stopped,
            ..Status::default()
        });
        assert_eq!(handle.fresh_status(LONG).state, State::Stopped);
        let seen = handle.wait_for_status(LONG, |status| status.state == State::Stopped);
        assert_eq!(seen.state, State::Stopped);
    }
}
