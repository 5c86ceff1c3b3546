//! Traces: every exit with its time, passed to another thread in batches.
//!
//! The vCPU thread never waits: it collects events in a batch and puts full batches into a bounded
//! queue. When the queue is full (the disk is slow), a batch is dropped and counted. Work inside an
//! exit (translating, sleeping, devices) is a separate event, which follows the exit that contains
//! it:
//!
//! ```text
//! | exit: halt ............................ |
//!            | inside: asleep ..... |
//! ```

use crate::ExitKind;
use crate::blame::Place;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::time::{Duration, Instant};

/// Number of events in a batch.
const BATCH: usize = 4096;
/// Maximum number of batches that wait for the other thread: about 10 MiB in total.
const QUEUE: usize = 64;
/// Maximum number of events inside one exit; more are dropped and counted.
const INSIDE: usize = 64;
/// How long the last batch may wait for room in the queue.
const LAST_PATIENCE: Duration = Duration::from_secs(2);

/// What took the time of an event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Span {
    /// An exit of this kind.
    Exit(ExitKind),
    /// Inside an exit: translating.
    Translating,
    /// Inside an exit: asleep in HLT.
    Asleep,
    /// Inside an exit: in a device.
    Device,
}

impl Span {
    /// The name in output.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Exit(kind) => kind.name(),
            Self::Translating => "translating",
            Self::Asleep => "asleep",
            Self::Device => "device",
        }
    }
}

/// One event of a trace.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TraceEvent {
    /// What took the time.
    pub span: Span,
    /// The start, as a value of the time-stamp counter.
    pub start: u64,
    /// The duration, in cycles of the time-stamp counter.
    pub cycles: u64,
    /// The guest instruction, for exits.
    pub place: Place,
}

/// The state that both sides share.
#[derive(Default, Debug)]
struct Shared {
    stopped: AtomicBool,
    dropped: AtomicU64,
    system_call_entry: AtomicU64,
}

/// The vCPU's side of a trace.
pub struct Tracer {
    batch: Vec<TraceEvent>,
    inside: Vec<TraceEvent>,
    queue: SyncSender<Vec<TraceEvent>>,
    shared: Arc<Shared>,
}

/// The reader's side of a trace: takes batches until the vCPU's side is dropped.
pub struct TraceEvents {
    queue: Receiver<Vec<TraceEvent>>,
    shared: Arc<Shared>,
}

/// Makes both sides of a trace.
pub fn channel() -> (Tracer, TraceEvents) {
    let (sender, receiver) = sync_channel(QUEUE);
    let shared = Arc::new(Shared::default());
    let tracer = Tracer {
        batch: Vec::with_capacity(BATCH),
        inside: Vec::new(),
        queue: sender,
        shared: Arc::clone(&shared),
    };
    let events = TraceEvents {
        queue: receiver,
        shared,
    };
    (tracer, events)
}

impl Tracer {
    /// Whether the reader still wants events.
    pub fn is_wanted(&self) -> bool {
        !self.shared.stopped.load(Ordering::Relaxed)
    }

    /// Passes on the guest's SYSENTER_EIP, or LSTAR, by which the reader finds symbols.
    pub fn set_system_call_entry(&self, entry: u64) {
        self.shared
            .system_call_entry
            .store(entry, Ordering::Relaxed);
    }

    /// Records work inside the current exit.
    pub fn inside(&mut self, span: Span, start: u64, cycles: u64) {
        if self.inside.len() < INSIDE {
            self.inside.push(TraceEvent {
                span,
                start,
                cycles,
                place: Place::default(),
            });
        } else {
            self.drop_events(1);
        }
    }

    /// Records the exit that contains the work recorded since the previous one; `None` if it has no
    /// kind.
    pub fn exit(&mut self, kind: Option<ExitKind>, start: u64, cycles: u64, place: Place) {
        if let Some(kind) = kind {
            self.push(TraceEvent {
                span: Span::Exit(kind),
                start,
                cycles,
                place,
            });
        }
        for index in 0..self.inside.len() {
            let mut event = self.inside[index];
            // Events inside an exit start and end inside it.
            event.start = event.start.max(start);
            let last = start.saturating_add(cycles).saturating_sub(event.start);
            event.cycles = event.cycles.min(last);
            self.push(event);
        }
        self.inside.clear();
    }

    fn push(&mut self, event: TraceEvent) {
        self.batch.push(event);
        if self.batch.len() >= BATCH {
            let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
            let _ = self.hand_over(batch);
        }
    }

    /// Returns an error if the queue is full; if the reader is gone, it wants no more events.
    fn hand_over(&mut self, batch: Vec<TraceEvent>) -> Result<(), ()> {
        match self.queue.try_send(batch) {
            Ok(()) => Ok(()),
            Err(TrySendError::Full(batch)) => {
                self.drop_events(batch.len());
                Err(())
            }
            Err(TrySendError::Disconnected(_)) => {
                self.shared.stopped.store(true, Ordering::Relaxed);
                Ok(())
            }
        }
    }

    /// Passes on the events recorded so far, if there is room for them.
    pub fn flush(&mut self) {
        let batch = std::mem::replace(&mut self.batch, Vec::with_capacity(BATCH));
        if !batch.is_empty() {
            let _ = self.hand_over(batch);
        }
    }

    fn drop_events(&self, count: usize) {
        self.shared
            .dropped
            .fetch_add(count as u64, Ordering::Relaxed);
    }
}

impl Drop for Tracer {
    /// Passes on the last, incomplete batch.
    fn drop(&mut self) {
        if !self.is_wanted() {
            return;
        }
        let end = Instant::now() + LAST_PATIENCE;
        let mut batch = std::mem::take(&mut self.batch);
        loop {
            match self.queue.try_send(batch) {
                Err(TrySendError::Full(back)) if Instant::now() < end => {
                    batch = back;
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(TrySendError::Full(back)) => return self.drop_events(back.len()),
                _ => return,
            }
        }
    }
}

impl TraceEvents {
    /// The guest's SYSENTER_EIP, or LSTAR, at the last look; 0 if not set.
    pub fn system_call_entry(&self) -> u64 {
        self.shared.system_call_entry.load(Ordering::Relaxed)
    }

    /// The next batch; `None` once the vCPU's side is dropped and everything is taken.
    pub fn next_batch(&self) -> Option<Vec<TraceEvent>> {
        self.queue.recv().ok()
    }

    /// Stops the trace: the vCPU no longer times every exit.
    pub fn stop(&self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
    }

    /// Number of events that were dropped because batches were not taken in time.
    pub fn dropped(&self) -> u64 {
        self.shared.dropped.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_exit_comes_before_what_lies_inside_it() {
        let (mut tracer, events) = channel();
        tracer.inside(Span::Asleep, 15, 100);
        tracer.exit(Some(ExitKind::Halt), 10, 20, Place::default());
        drop(tracer);
        let batch = events.next_batch().unwrap();
        assert_eq!(batch[0].span, Span::Exit(ExitKind::Halt));
        assert_eq!(batch[1].span, Span::Asleep);
        assert_eq!((batch[1].start, batch[1].cycles), (15, 15));
        assert_eq!(events.next_batch(), None);
    }

    #[test]
    fn a_reader_that_does_not_read_costs_events_and_no_time() {
        let (mut tracer, events) = channel();
        let count = (QUEUE + 3) * BATCH;
        for _ in 0..count {
            tracer.exit(Some(ExitKind::Cli), 0, 1, Place::default());
        }
        assert_eq!(events.dropped(), 3 * BATCH as u64);
        assert!(tracer.is_wanted());
        events.stop();
        assert!(!tracer.is_wanted());
        let reader = std::thread::spawn(move || {
            let mut taken = 0;
            while let Some(batch) = events.next_batch() {
                taken += batch.len();
            }
            taken
        });
        drop(tracer);
        assert_eq!(reader.join().unwrap(), QUEUE * BATCH);
    }

    #[test]
    fn a_reader_that_is_gone_wants_no_more() {
        let (mut tracer, events) = channel();
        drop(events);
        for _ in 0..=BATCH {
            tracer.exit(Some(ExitKind::Cli), 0, 1, Place::default());
        }
        assert!(!tracer.is_wanted());
    }

    #[test]
    fn what_is_inside_one_exit_is_bounded() {
        let (mut tracer, events) = channel();
        for _ in 0..INSIDE + 5 {
            tracer.inside(Span::Device, 0, 1);
        }
        assert_eq!(events.dropped(), 5);
    }
}
