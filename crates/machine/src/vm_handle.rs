//! The handle by which other threads control a running virtual machine.
//!
//! Everything from outside arrives here: commands (pause, resume, quit, power button), serial
//! input, keys and mouse events. A [`VmHandle`] may be cloned and used from any thread. The vCPU
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
//! The *kick* is a closure that the vCPU thread installs; it must make that thread leave guest code
//! soon (in practice by a signal). A thread that sleeps in [`VmCommands::wait_for_command`] needs no
//! kick.
//!
//! The queue is bounded by construction: a command that is already waiting is not queued again, and
//! of pause and resume only the latest is kept.

mod commands;
mod mailbox;
mod orders;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::board::input::{Buttons, Key, MouseEvent};
use crate::devices::vga::screen::Screen;
use crate::devices::virtio::balloon::control::BalloonControl;
use crate::inspection::{Inspected, Inspection};
use crate::knobs::Assignment;
use tollgate_exits::reading::Reading;
use tollgate_network::RefusedList;

pub use commands::VmCommands;
pub use mailbox::{
    AfterSnapshot, Answer, Command, DriveOrder, DriveRequest, Happened, InspectionRequest,
    KEY_CAPACITY, KickFunction, Listener, MOUSE_CAPACITY, MediumChange, Query, QueryNumber,
    READING_AGE, ReadingRequest, RemovableDrive, ResetRequest, Resets, SERIAL_INPUT_CAPACITY,
    ScreenRequest, Shown, SnapshotOrder, SnapshotRequest, State, Status, StatusRequest,
};
use mailbox::{Mailbox, Shared};

/// The side that any thread may hold: it sends commands and reads the status.
#[derive(Clone)]
pub struct VmHandle(Arc<Shared>);

impl Default for VmHandle {
    fn default() -> Self {
        Self::new()
    }
}

impl VmHandle {
    /// Makes a handle with empty queues, in [`State::Starting`].
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
            listeners: Mutex::default(),
            refusals: Mutex::default(),
            balloon: Mutex::default(),
            created: Instant::now(),
        }))
    }

    /// Sets the control of the machine's balloon.
    pub(crate) fn set_balloon(&self, balloon: Option<BalloonControl>) {
        let slot = self.0.balloon.lock();
        *slot.unwrap_or_else(PoisonError::into_inner) = balloon;
    }

    /// Returns the control of the machine's balloon, if it has one.
    pub fn balloon(&self) -> Option<BalloonControl> {
        let slot = self.0.balloon.lock();
        slot.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns what the machine's networks have refused to the guest so far.
    pub fn refused(&self) -> RefusedList {
        let refusals = self.0.refusals.lock();
        RefusedList::of_all(&refusals.unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether both are handles of the same machine.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Returns the vCPU thread's side.
    pub fn commands(&self) -> VmCommands {
        VmCommands(Arc::clone(&self.0))
    }

    /// Requests a pause at the next instruction boundary.
    pub fn pause(&self) {
        self.submit(Command::Pause);
    }

    /// Requests the end of a pause.
    pub fn resume(&self) {
        self.submit(Command::Resume);
    }

    /// Pauses if the last request was to resume, and resumes otherwise. Returns whether a pause is
    /// now requested.
    pub fn toggle_pause(&self) -> bool {
        let pause = !self.0.mailbox().pause_wanted;
        self.submit(if pause {
            Command::Pause
        } else {
            Command::Resume
        });
        pause
    }

    /// Requests that the processor executes nothing for this time, in which guest time passes. Another
    /// command ends the rest.
    pub fn rest(&self, time: Duration) {
        self.submit(Command::Rest(time));
    }

    /// Makes the vCPU thread handle what a debugger has sent.
    pub fn wake_debugger(&self) {
        self.submit(Command::ServeDebugger);
    }

    /// Requests the end of the virtual machine.
    pub fn quit(&self) {
        self.submit(Command::Quit);
    }

    /// Presses the ACPI power button.
    pub fn power_button(&self) {
        self.submit(Command::PowerButton);
    }

    /// Requests changes of knobs, all at the same instruction boundary.
    pub fn turn_knobs(&self, assignments: &[Assignment]) {
        self.submit_all(assignments.iter().copied().map(Command::Set));
    }

    /// Queues input for the serial port and returns how many bytes were accepted, which are fewer
    /// than given when [`SERIAL_INPUT_CAPACITY`] is reached. Never blocks.
    pub fn serial_input(&self, bytes: &[u8]) -> usize {
        self.queue_input(bytes, |mailbox| &mut mailbox.serial_input)
    }

    /// Like [`VmHandle::serial_input`], for the second serial port.
    pub fn second_serial_input(&self, bytes: &[u8]) -> usize {
        self.queue_input(bytes, |mailbox| &mut mailbox.second_serial_input)
    }

    fn queue_input(&self, bytes: &[u8], of: fn(&mut Mailbox) -> &mut VecDeque<u8>) -> usize {
        let taken = {
            let mut mailbox = self.0.mailbox();
            let input = of(&mut mailbox);
            let room = SERIAL_INPUT_CAPACITY.saturating_sub(input.len());
            let taken = bytes.len().min(room);
            input.extend(bytes.iter().take(taken));
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

    /// Presses (`down`) or releases a key of the PS/2 keyboard, which takes the keys as the guest
    /// reads them. Returns false and does nothing while [`KEY_CAPACITY`] keys wait. Never blocks.
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

    /// Like [`VmHandle::key`] for several keys, of which all are accepted or none.
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

    /// Queues events of the mouse, which takes them as the guest reads its reports. Returns false
    /// and queues none while [`MOUSE_CAPACITY`] events wait. Never blocks.
    pub fn mouse(&self, events: &[MouseEvent]) -> bool {
        {
            let mut mailbox = self.0.mailbox();
            if mailbox.mouse.len() + events.len() > MOUSE_CAPACITY {
                return false;
            }
            for event in events {
                // A press belongs to the place where it happened, so a move after it is an event of
                // its own.
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

    /// Returns the buttons that are down after the last call of [`VmHandle::mouse`].
    pub fn mouse_buttons(&self) -> Buttons {
        self.0.mailbox().mouse_buttons
    }

    /// Asks the vCPU thread to change drives or media. [`VmHandle::drives_after`] returns the result.
    pub fn request_drives(&self, order: impl Into<DriveOrder>) -> DriveRequest {
        let number = self.0.mailbox().drives.add(order.into());
        self.submit(Command::ChangeDrives);
        DriveRequest(number)
    }

    /// Returns the result of such an order, or `None` before it is made. An error is one line.
    pub fn drives_after(&self, request: DriveRequest) -> Option<Result<(), String>> {
        self.0.mailbox().drives.result(request.0)
    }

    /// Waits for the result of a change of medium; `None` if the machine ends before that.
    pub fn wait_for_drives(&self, request: DriveRequest) -> Option<Result<(), String>> {
        let waits = |mailbox: &mut Mailbox| {
            mailbox.drives.result(request.0).is_none() && mailbox.status.state != State::Stopped
        };
        let mailbox = (self.0.published)
            .wait_while(self.0.mailbox(), waits)
            .unwrap_or_else(PoisonError::into_inner);
        mailbox.drives.result(request.0)
    }

    /// Whether functions of the PCI bus were ejected since [`VmHandle::take_ejected`] was called.
    pub fn has_ejected(&self) -> bool {
        !self.0.mailbox().ejected.is_empty()
    }

    /// Takes the slots of the PCI bus whose functions were ejected since the last call, in the order
    /// in which that happened.
    pub fn take_ejected(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.mailbox().ejected)
    }

    /// Gives the vCPU thread an order about snapshots. [`VmHandle::snapshot_after`] returns the
    /// result.
    pub fn request_snapshot(&self, order: SnapshotOrder) -> SnapshotRequest {
        let number = self.0.mailbox().snapshots.add(order);
        self.submit(Command::ObeySnapshotOrders);
        SnapshotRequest(number)
    }

    /// Returns the result of such an order, or `None` before it is carried out. An error is one line.
    pub fn snapshot_after(&self, request: SnapshotRequest) -> Option<Result<(), String>> {
        self.0.mailbox().snapshots.result(request.0)
    }

    /// Waits until such an order is carried out and returns the result, or `None` if the machine ends
    /// before. An error is one line.
    pub fn wait_for_snapshot(&self, request: SnapshotRequest) -> Option<Result<(), String>> {
        let waits = |mailbox: &mut Mailbox| {
            mailbox.snapshots.result(request.0).is_none() && mailbox.status.state != State::Stopped
        };
        let mailbox = (self.0.published)
            .wait_while(self.0.mailbox(), waits)
            .unwrap_or_else(PoisonError::into_inner);
        mailbox.snapshots.result(request.0)
    }

    /// Asks the vCPU thread for registers, memory or mapped pages. [`VmHandle::inspected_after`] returns
    /// what it sees.
    pub fn request_inspection(&self, inspection: Inspection) -> InspectionRequest {
        let number = self.0.mailbox().inspections.add(inspection);
        self.submit(Command::Inspect);
        InspectionRequest(number)
    }

    /// Returns what an inspection has seen, or `None` before it is carried out.
    pub fn inspected_after(&self, request: InspectionRequest) -> Option<Result<Inspected, String>> {
        self.0.mailbox().inspections.result(request.0)
    }

    /// Asks the vCPU thread for the contents of the screen. [`VmHandle::screen_after`] returns
    /// them.
    pub fn request_screen(&self, with_picture: bool) -> ScreenRequest {
        let request = ScreenRequest(self.0.mailbox().screens, with_picture);
        self.submit(Command::ReportScreen(with_picture));
        request
    }

    /// Returns the contents of the screen if they were published after the request.
    pub fn screen_after(&self, request: ScreenRequest) -> Option<Arc<Shown>> {
        let mailbox = self.0.mailbox();
        let screen = mailbox.screen.as_ref()?;
        // The contents may have been published for a request without a picture.
        let has_it = !request.1 || screen.picture.is_some() || screen.screen == Screen::Off;
        (mailbox.screens != request.0 && has_it).then(|| Arc::clone(screen))
    }

    /// Returns the last published status.
    pub fn status(&self) -> Status {
        self.with_uptime(self.0.mailbox().status)
    }

    /// Adds a function that is called after each publication of a status or of a reading. It serves
    /// threads that also wait for other events.
    pub fn add_listener(&self, listener: Listener) {
        let listeners = self.0.listeners.lock();
        listeners
            .unwrap_or_else(PoisonError::into_inner)
            .push(listener);
    }

    /// Asks the vCPU thread for a new status. [`VmHandle::status_after`] returns it.
    pub fn request_status(&self) -> StatusRequest {
        let request = StatusRequest(self.0.mailbox().publications);
        if self.status_after(request).is_none() {
            self.submit(Command::ReportStatus);
        }
        request
    }

    /// Returns the status if one was published after the request or the machine has stopped.
    pub fn status_after(&self, request: StatusRequest) -> Option<Status> {
        let mailbox = self.0.mailbox();
        request
            .is_answered(&mailbox)
            .then(|| self.with_uptime(mailbox.status))
    }

    /// Asks the vCPU thread for a new status and waits for it. After `timeout` it returns the last
    /// published status.
    pub fn fresh_status(&self, timeout: Duration) -> Status {
        let request = self.request_status();
        self.wait(timeout, |mailbox| request.is_answered(mailbox))
    }

    /// Asks the vCPU thread for a reading of its ledger. [`VmHandle::reading_after`] returns it.
    pub fn request_reading(&self) -> ReadingRequest {
        let request = ReadingRequest(Instant::now());
        let is_needed = {
            let mailbox = self.0.mailbox();
            !request.is_answered(&mailbox) && mailbox.status.state != State::Stopped
        };
        if is_needed {
            self.submit(Command::ReportReading);
        }
        request
    }

    /// Returns the published reading if it is not older than the request by more than
    /// [`READING_AGE`].
    pub fn reading_after(&self, request: ReadingRequest) -> Option<Arc<Reading>> {
        request.answer(&self.0.mailbox())
    }

    /// Asks the vCPU thread for a reading and waits for it. It is at most [`READING_AGE`] old.
    /// Returns `None` if the thread does not answer within `timeout` or has stopped.
    pub fn fresh_reading(&self, timeout: Duration) -> Option<Arc<Reading>> {
        let request = self.request_reading();
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

    /// Asks the vCPU thread to reset its ledger; [`VmHandle::has_reset_ledger`] returns whether it
    /// has done so. A reading that is requested afterwards counts only later events.
    pub fn request_reset_of_ledger(&self) -> ResetRequest {
        let request = ResetRequest(self.0.mailbox().resets);
        self.submit(Command::ResetLedger);
        request
    }

    /// Whether the ledger has been reset since the request.
    pub fn has_reset_ledger(&self, request: ResetRequest) -> bool {
        request.is_answered(&self.0.mailbox())
    }

    /// Asks the vCPU thread to reset its ledger and waits until it has done so. Returns false if it
    /// does not within `timeout` or has stopped.
    pub fn reset_ledger(&self, timeout: Duration) -> bool {
        let request = self.request_reset_of_ledger();
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

    /// Asks the vCPU thread to count between marks, or to set one. [`VmHandle::fetch`] returns the
    /// answer.
    pub fn query(&self, query: Query) -> QueryNumber {
        let number = {
            let mut mailbox = self.0.mailbox();
            mailbox.queries += 1;
            mailbox.queries
        };
        self.submit(Command::Query(query, number));
        QueryNumber(number)
    }

    /// Returns the answer to a query, once. It is kept for a limited time only.
    pub fn fetch(&self, number: QueryNumber) -> Option<Answer> {
        self.0.mailbox().fetch(number.0)
    }

    /// Waits until the published status satisfies `reached` and returns it. After `timeout` it
    /// returns the last published status.
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

/// Whether `queued` has no effect once `command` follows it in the queue.
fn is_replaced(queued: Command, command: Command) -> bool {
    match (queued, command) {
        (Command::Pause | Command::Resume, Command::Pause | Command::Resume) => true,
        (Command::Rest(_), Command::Rest(_)) => true,
        (Command::Set(before), Command::Set(now)) => before.knob().name == now.knob().name,
        _ => queued == command,
    }
}
