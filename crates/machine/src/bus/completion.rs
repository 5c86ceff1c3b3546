//! Completions: work that other threads have finished for devices, on its way to the vCPU's thread.
//!
//! ```text
//! worker thread                               vCPU thread
//! completer.send(token) -- queue --+-- kick -> leaves guest code
//!       waits while it is full     |           Bus::take_completions
//!                                  +---------> device.complete(token, context)
//! ```
//!
//! Only the device that a token belongs to knows its meaning. A device that consists of several
//! parts, such as a PCI bus of functions, gives each part a [`Completer`] that marks its tokens
//! with the part's number. The queue is bounded: a worker waits while it is full, the vCPU never
//! does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The maximum number of completions that wait for the vCPU's thread.
pub const CAPACITY: usize = 1024;

/// A function that makes the vCPU's thread leave guest code. It must not send completions.
pub type KickFunction = Arc<dyn Fn() + Send + Sync>;

/// The machine has ended and accepts no more completions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Closed;

/// A finished piece of work: the device's slot on the bus, and the token.
pub(super) type Completion = (u8, u64);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<Completion>,
    closed: bool,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Whether the queue is not empty. This is read without the lock.
    has_some: AtomicBool,
    /// Signalled when the queue was emptied or closed.
    room: Condvar,
    /// Signalled when something is queued.
    arrived: Condvar,
    /// This lock is held while the kick runs, so that no kick is still running after it was
    /// removed.
    kick: Mutex<Option<KickFunction>>,
}

impl Shared {
    /// No code leaves the queue half-changed while it holds the lock.
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kick_slot(&self) -> MutexGuard<'_, Option<KickFunction>> {
        self.kick.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The position in a token of the number of the device's part.
const PART_SHIFT: u32 = 56;

/// Reports to a device what its threads have finished. Clones may be sent to any thread.
#[derive(Clone)]
pub struct Completer {
    slot: u8,
    /// The number of the device's part, for the upper bits of each token.
    part: u8,
    shared: Arc<Shared>,
}

impl Completer {
    /// Returns a completer for a part of the device. Its tokens have 56 bits.
    pub fn for_part(&self, part: u8) -> Self {
        Self {
            part,
            ..self.clone()
        }
    }

    /// Splits a token into the number of the part that sent it, and the token as the part sent it.
    pub const fn part_of(token: u64) -> (u8, u64) {
        ((token >> PART_SHIFT) as u8, token & ((1 << PART_SHIFT) - 1))
    }

    /// Makes the vCPU's thread call the device's [`complete`](super::Device::complete) with
    /// `token`, soon if the guest runs. Waits while [`CAPACITY`] completions are queued. It must
    /// not be called on the vCPU's thread, which would wait for itself.
    ///
    /// # Errors
    /// The machine has ended.
    pub fn send(&self, token: u64) -> Result<(), Closed> {
        let shared = &*self.shared;
        let token = match self.part {
            0 => token,
            part => u64::from(part) << PART_SHIFT | Self::part_of(token).1,
        };
        let mut queue = shared
            .room
            .wait_while(shared.queue(), |queue| {
                queue.waiting.len() >= CAPACITY && !queue.closed
            })
            .unwrap_or_else(PoisonError::into_inner);
        if queue.closed {
            return Err(Closed);
        }
        queue.waiting.push_back((self.slot, token));
        let is_first = !shared.has_some.swap(true, Ordering::AcqRel);
        drop(queue);
        shared.arrived.notify_all();
        // Completions that follow the first one are taken together with it and need no kick.
        if is_first && let Some(kick) = shared.kick_slot().as_ref() {
            kick();
        }
        Ok(())
    }
}

impl std::fmt::Debug for Completer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Completer({}, {})", self.slot, self.part)
    }
}

/// The vCPU thread's side of the queue.
pub(super) struct Completions(Arc<Shared>);

impl Completions {
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Returns the completer of the device in `slot`.
    pub fn completer(&self, slot: u8) -> Completer {
        Completer {
            slot,
            part: 0,
            shared: Arc::clone(&self.0),
        }
    }

    /// Sets the function that is called when a completion is queued. `None` means that the guest
    /// does not run.
    pub fn set_kick(&self, kick: Option<KickFunction>) {
        *self.0.kick_slot() = kick;
    }

    /// Takes all waiting completions, oldest first. Takes no lock if there are none.
    pub fn take(&self) -> VecDeque<Completion> {
        if !self.0.has_some.load(Ordering::Acquire) {
            return VecDeque::new();
        }
        let mut queue = self.0.queue();
        self.0.has_some.store(false, Ordering::Release);
        let taken = std::mem::take(&mut queue.waiting);
        drop(queue);
        self.0.room.notify_all();
        taken
    }

    /// Sleeps until a completion waits, or until `end`.
    pub fn wait_until(&self, end: Instant) {
        let timeout = end.saturating_duration_since(Instant::now());
        let is_empty = |queue: &mut Queue| queue.waiting.is_empty();
        drop(
            self.0
                .arrived
                .wait_timeout_while(
                    self.0.queue(),
                    timeout.max(Duration::from_nanos(1)),
                    is_empty,
                )
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        self.0.queue().closed = true;
        self.0.room.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;
    use std::thread;

    #[test]
    fn completions_come_out_once_in_order_with_one_kick_for_those_taken_together() {
        let completions = Completions::new();
        let kicks = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&kicks);
        completions.set_kick(Some(Arc::new(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        })));
        let (first, second) = (completions.completer(1), completions.completer(2));
        assert!(completions.take().is_empty());
        for token in 0..3 {
            first.send(token).unwrap();
            second.send(10 + token).unwrap();
        }
        assert_eq!(kicks.load(Ordering::Relaxed), 1);
        let expected = [(1, 0), (2, 10), (1, 1), (2, 11), (1, 2), (2, 12)];
        assert_eq!(completions.take(), expected);
        assert!(completions.take().is_empty());
        completions.set_kick(None);
        first.send(9).unwrap();
        assert_eq!(kicks.load(Ordering::Relaxed), 1);
        assert_eq!(completions.take(), [(1, 9)]);
    }

    #[test]
    fn tokens_of_a_part_say_which_it_is() {
        let completions = Completions::new();
        let device = completions.completer(3);
        device.for_part(7).send(0x1234).unwrap();
        device.for_part(0xff).send(u64::MAX).unwrap();
        let tokens = completions.take().into_iter().map(|(_, token)| token);
        let parts: Vec<_> = tokens.map(Completer::part_of).collect();
        assert_eq!(parts, [(7, 0x1234), (0xff, u64::MAX >> 8)]);
    }

    #[test]
    fn a_worker_waits_while_the_queue_is_full_and_loses_nothing() {
        const ALL: u64 = 3 * CAPACITY as u64;
        let completions = Completions::new();
        let completer = completions.completer(0);
        let worker = thread::spawn(move || {
            for token in 0..ALL {
                completer.send(token).unwrap();
            }
        });
        let mut next = 0;
        while next < ALL {
            completions.wait_until(Instant::now() + Duration::from_secs(60));
            let taken = completions.take();
            assert!(taken.len() <= CAPACITY);
            for (_, token) in taken {
                assert_eq!(token, next);
                next += 1;
            }
        }
        worker.join().unwrap();
    }

    #[test]
    fn the_end_of_the_machine_ends_the_wait_of_its_workers() {
        let completions = Completions::new();
        let completer = completions.completer(0);
        for token in 0..CAPACITY as u64 {
            completer.send(token).unwrap();
        }
        let worker = thread::spawn(move || completer.send(0));
        drop(completions);
        assert_eq!(worker.join().unwrap(), Err(Closed));
    }
}
