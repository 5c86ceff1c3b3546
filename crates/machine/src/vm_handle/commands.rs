//! The vCPU thread's side of a `VmHandle`: it executes the commands of other threads.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use super::mailbox::{
    Answer, Command, DriveOrder, KickFunction, Mailbox, Shared, Shown, SnapshotOrder, Status,
};
use crate::board::input::{Key, MouseEvent};
use crate::inspection::{Inspected, Inspection};
use crate::pc::Outside;
use tollgate_exits::reading::Reading;
use tollgate_network::Refusals;

/// The vCPU thread's side: it takes what was queued and publishes the status.
pub struct VmCommands(pub(super) Arc<Shared>);

impl Outside for VmCommands {
    #[inline]
    fn serial_input(&mut self, room: usize) -> Vec<u8> {
        self.take_serial_input(room)
    }

    #[inline]
    fn second_serial_input(&mut self, room: usize) -> Vec<u8> {
        self.take_second_serial_input(room)
    }

    #[inline]
    fn key(&mut self) -> Option<(Key, bool)> {
        self.take_key()
    }

    #[inline]
    fn mouse(&mut self) -> Option<MouseEvent> {
        self.take_mouse()
    }

    fn wants_attention(&mut self) -> bool {
        self.has_commands()
    }
}

impl VmCommands {
    /// Installs the closure that makes this thread leave guest code. Commands that were queued
    /// earlier caused no kick, so [`VmCommands::take`] must be called afterwards.
    pub fn install_kick(&self, kick: KickFunction) {
        *self.0.kick_slot() = Some(kick);
    }

    /// Removes the kick. When this returns, no kick is running and none will come, so the thread
    /// that it was for may end.
    pub fn remove_kick(&self) {
        *self.0.kick_slot() = None;
    }

    /// Notes that a pause has ended for another reason than a command.
    pub fn note_resumed(&self) {
        self.0.mailbox().pause_wanted = false;
    }

    /// Sets the records of what the machine's networks refuse.
    pub(crate) fn set_refusals(&self, refusals: Vec<Refusals>) {
        let slot = self.0.refusals.lock();
        *slot.unwrap_or_else(PoisonError::into_inner) = refusals;
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

    /// Takes at most `limit` bytes of serial input, which is the room that the device has.
    pub fn take_serial_input(&self, limit: usize) -> Vec<u8> {
        self.take_input(limit, |mailbox| &mut mailbox.serial_input)
    }

    /// Like [`VmCommands::take_serial_input`], for the second serial port.
    pub fn take_second_serial_input(&self, limit: usize) -> Vec<u8> {
        self.take_input(limit, |mailbox| &mut mailbox.second_serial_input)
    }

    fn take_input(&self, limit: usize, of: fn(&mut Mailbox) -> &mut VecDeque<u8>) -> Vec<u8> {
        if limit == 0 || !self.has_serial_input() {
            return Vec::new();
        }
        let mut mailbox = self.0.mailbox();
        let input = of(&mut mailbox);
        let count = limit.min(input.len());
        let taken = input.drain(..count).collect();
        if mailbox.serial_input.is_empty() && mailbox.second_serial_input.is_empty() {
            self.0.has_serial_input.store(false, Ordering::Release);
        }
        taken
    }

    /// Takes the oldest key event: a key, and whether it goes down. Takes no lock if no key waits.
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

    /// Takes the oldest waiting event of the mouse.
    #[inline]
    pub fn take_mouse(&self) -> Option<MouseEvent> {
        if !self.0.has_mouse.load(Ordering::Acquire) {
            return None;
        }
        let mut mailbox = self.0.mailbox();
        let event = mailbox.mouse.pop_front();
        if mailbox.mouse.is_empty() {
            self.0.has_mouse.store(false, Ordering::Release);
        }
        event
    }

    /// Sleeps until a command waits or `timeout` has passed. Returns whether a command waits. This
    /// is for a paused machine, and for one that has no room for serial input.
    pub fn wait_for_command(&self, timeout: Option<Duration>) -> bool {
        self.sleep(timeout, |mailbox| !mailbox.commands.is_empty())
    }

    /// Sleeps until a command, serial input, a key or a mouse event waits, or `timeout` has passed.
    /// Returns whether anything waits.
    #[cfg(test)]
    pub(super) fn wait_for_work(&self, timeout: Option<Duration>) -> bool {
        self.sleep(timeout, |mailbox| {
            !mailbox.commands.is_empty()
                || !mailbox.serial_input.is_empty()
                || !mailbox.keys.is_empty()
                || !mailbox.mouse.is_empty()
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

    /// Publishes `status` to all other threads.
    pub fn publish(&self, status: Status) {
        let mut mailbox = self.0.mailbox();
        mailbox.status = status;
        mailbox.publications = mailbox.publications.wrapping_add(1);
        drop(mailbox);
        self.0.tell_listener();
    }

    /// Withdraws the published reading after a reset: it is no longer an answer to any request.
    pub fn forget_ledger(&self) {
        let previous = {
            let mut mailbox = self.0.mailbox();
            mailbox.resets += 1;
            mailbox.reading.take()
        };
        self.0.tell_listener();
        drop(previous);
    }

    /// Takes the waiting orders about drives, oldest first, with the numbers of their requests.
    pub fn take_drive_orders(&self) -> VecDeque<(u64, DriveOrder)> {
        self.0.mailbox().drives.take()
    }

    /// Publishes the result of an order about drives.
    pub fn publish_drive_order(&self, request: u64, result: Result<(), String>) {
        self.0.mailbox().drives.publish(request, result);
        self.0.tell_listener();
    }

    /// Publishes that the functions in these slots of the PCI bus are gone.
    pub fn publish_ejected(&self, slots: &[u8]) {
        self.0.mailbox().ejected.extend(slots);
        self.0.tell_listener();
    }

    /// Takes the inspections, oldest first, with the numbers of their requests.
    pub fn take_inspections(&self) -> VecDeque<(u64, Inspection)> {
        self.0.mailbox().inspections.take()
    }

    /// Publishes what an inspection has seen.
    pub fn publish_inspected(&self, request: u64, seen: Inspected) {
        self.0.mailbox().inspections.publish(request, Ok(seen));
        self.0.tell_listener();
    }

    /// Takes the orders for snapshots, oldest first, with the numbers of their requests.
    pub fn take_snapshot_orders(&self) -> VecDeque<(u64, SnapshotOrder)> {
        self.0.mailbox().snapshots.take()
    }

    /// Publishes the result of an order for a snapshot.
    pub fn publish_snapshot(&self, request: u64, result: Result<(), String>) {
        self.0.mailbox().snapshots.publish(request, result);
        self.0.tell_listener();
    }

    /// Publishes the contents of the screen.
    pub fn publish_screen(&self, shown: Shown) {
        let previous = {
            let mut mailbox = self.0.mailbox();
            mailbox.screens = mailbox.screens.wrapping_add(1);
            mailbox.screen.replace(Arc::new(shown))
        };
        self.0.tell_listener();
        // The previous contents are freed outside the lock.
        drop(previous);
    }

    /// Publishes the answer to a query.
    pub fn publish_answer(&self, number: u64, answer: Answer) {
        let dropped = self.0.mailbox().keep(number, answer);
        self.0.tell_listener();
        // The dropped answer is freed outside the lock.
        drop(dropped);
    }

    /// Publishes `reading` in place of the previous one.
    pub fn publish_reading(&self, reading: Reading) {
        let reading = Arc::new(reading);
        let previous = self.0.mailbox().reading.replace((Instant::now(), reading));
        self.0.tell_listener();
        // The previous reading is freed outside the lock.
        drop(previous);
    }
}
