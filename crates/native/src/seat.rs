//! The processor that a thread keeps while it runs programs.
//!
//! A program's process runs on the processor of the thread that enters it, because waking a task on another
//! processor costs several times as much as switching to it. But each time that the program leaves, the process
//! wakes the thread while it is still running itself, and Linux moves the thread to another processor if one is
//! idle: the process would have to follow each time. So the thread binds itself to the processor that it is on.
//! It lets itself go when it has other things to do ([`leave_seat`]), and for one entry from time to time, so
//! that Linux can spread the load.

use crate::host;
use std::cell::RefCell;
use std::time::{Duration, Instant};
use tollgate_host_facts::processors::Affinity;

/// How long the thread stays before Linux may move it.
const STAY: Duration = Duration::from_millis(50);

/// Where the thread is.
enum Seat {
    /// Where Linux has put it.
    Free,
    /// The same, until it has entered a program once.
    Offered,
    /// On this processor, which it keeps.
    Kept(Kept),
}

struct Kept {
    processor: usize,
    /// The processors that the thread may use otherwise.
    before: Affinity,
    since: Instant,
}

thread_local! {
    static SEAT: RefCell<Seat> = const { RefCell::new(Seat::Free) };
}

impl Kept {
    /// Binds the thread to the processor that it is on; nothing if the host does not allow it.
    fn new() -> Option<Self> {
        let before = Affinity::current().ok()?;
        let processor = host::current_processor()?;
        Affinity::only(processor)?.apply().ok()?;
        Some(Self {
            processor,
            before,
            since: Instant::now(),
        })
    }

    /// Lets the thread go, unless it was bound from outside in the meantime.
    fn leave(&self) {
        let bound = Affinity::only(self.processor);
        if bound.is_some() && Affinity::current().ok() == bound {
            let _ = self.before.apply();
        }
    }
}

impl Seat {
    fn keep(&mut self) -> Option<usize> {
        if matches!(self, Self::Free)
            && let Some(kept) = Kept::new()
        {
            *self = Self::Kept(kept);
        }
        match self {
            Self::Kept(kept) => Some(kept.processor),
            _ => host::current_processor(),
        }
    }

    fn leave(&mut self, to: Self) {
        if let Self::Kept(kept) = std::mem::replace(self, to) {
            kept.leave();
        }
    }

    fn keep_for_entry(&mut self) -> Option<usize> {
        match self {
            Self::Offered => *self = Self::Free,
            Self::Kept(kept) if kept.since.elapsed() > STAY => self.leave(Self::Offered),
            _ => {}
        }
        self.keep()
    }
}

/// Keeps the calling thread on the processor that it is on, and returns which one that is.
pub fn keep() -> Option<usize> {
    SEAT.with_borrow_mut(Seat::keep)
}

/// Does the same before a program is entered, but lets the thread go for this entry if it has stayed for long.
pub fn keep_for_entry() -> Option<usize> {
    SEAT.with_borrow_mut(Seat::keep_for_entry)
}

/// Lets the calling thread run on all processors that it may use, as before it entered programs. To be called
/// before it sleeps for anything else than a program, and when it stops running programs.
pub fn leave_seat() {
    SEAT.with_borrow_mut(|seat| seat.leave(Seat::Free));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_stays_until_it_leaves() {
        let before = Affinity::current().ok();
        let seat = keep().expect("a processor");
        assert_eq!(Affinity::current().ok(), Affinity::only(seat));
        for _ in 0..100 {
            std::thread::yield_now();
            assert_eq!((keep(), keep_for_entry()), (Some(seat), Some(seat)));
            assert_eq!(host::current_processor(), Some(seat));
        }
        leave_seat();
        assert_eq!(Affinity::current().ok(), before);
        leave_seat();
        assert_eq!(Affinity::current().ok(), before);
    }

    #[test]
    fn it_is_free_for_one_entry_from_time_to_time() {
        let before = Affinity::current().ok();
        let seat = keep().expect("a processor");
        std::thread::sleep(STAY + Duration::from_millis(1));
        assert_eq!(keep(), Some(seat), "no entry");
        keep_for_entry();
        assert_eq!(Affinity::current().ok(), before);
        keep();
        assert_eq!(Affinity::current().ok(), before, "the entry has not ended");
        let seat = keep_for_entry().expect("a processor");
        assert_eq!(Affinity::current().ok(), Affinity::only(seat));
        leave_seat();
    }

    #[test]
    fn a_thread_that_was_bound_from_outside_stays_so() {
        let before = Affinity::current().expect("processors");
        keep();
        // As taskset would do it from outside.
        before.apply().expect("as it was");
        let only = Affinity::only(host::current_processor().expect("a processor"));
        let only = only.expect("a set");
        only.apply().expect("its own");
        leave_seat();
        let after = Affinity::current().expect("processors");
        assert!(
            after == only || after == before,
            "it was the same processor"
        );
        before.apply().expect("as it was");
    }
}
