//! Requests to leave guest code: the word that is tested before guest code is entered, and the time
//! at which each request came.
//!
//! A request is made by another thread, or by a signal that arrives on the vCPU's thread. The first
//! request after requests were last [taken](Requests::take) notes its time, which tells how long it
//! waited and for what. The notes are for statistics: if one is lost to a race, the request appears
//! to have come when it was taken.

use crate::preemption::Checkpoints;
use std::ops::Deref;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use tollgate_exits::counter::counter;
use tollgate_exits::latency::{InterruptibleWork, Request};

/// Nanoseconds after which a timer's signal is sent again if it found the thread in code that the
/// thread cannot leave.
const SOON: i64 = 30_000;
/// How often a signal is put off at most.
const MOST_PUT_OFF: u32 = 4;

/// The requests to one vCPU.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Requests {
    /// Not zero if something must be done at the next instruction boundary. The word is the first
    /// field since a signal carries its address.
    pending: AtomicU32,
    /// When another thread made a request, in cycles of the time-stamp counter; 0 if none has.
    asked: AtomicU64,
    /// When a request reached the vCPU's thread; 0 if none has yet.
    heard: AtomicU64,
    /// The CPU time of that thread at that moment, in nanoseconds; 0 if it is unknown.
    on_processor: AtomicU64,
    /// How often a signal has been put off since requests were last taken.
    put_off: AtomicU32,
    /// The checkpoints at which the monitor's work stops for requests.
    checkpoints: Checkpoints,
}

/// Gives access to the word that is tested before guest code is entered.
impl Deref for Requests {
    type Target = AtomicU32;

    fn deref(&self) -> &AtomicU32 {
        &self.pending
    }
}

impl Requests {
    /// The checkpoints at which the monitor's work stops for requests.
    pub fn checkpoints(&self) -> &Checkpoints {
        &self.checkpoints
    }

    /// Whether a piece of the monitor's work stops at this checkpoint.
    #[inline]
    pub fn stops(&self, work: InterruptibleWork) -> bool {
        self.checkpoints.stops(work, &self.pending)
    }

    /// Whether a piece of work whose length the guest chooses stops at this checkpoint. Unlike with
    /// [`stops`](Self::stops), it stops after a while even if the guest holds interrupts off.
    #[inline]
    pub fn pauses(&self, work: InterruptibleWork) -> bool {
        self.checkpoints.pauses(work, &self.pending)
    }

    /// Makes a request from another thread. Returns false if a request was already waiting.
    pub fn ask(&self) -> bool {
        let is_first = self.pending.swap(1, Ordering::SeqCst) == 0;
        if is_first {
            self.asked.store(counter(), Ordering::Relaxed);
        }
        is_first
    }

    /// Notes that a request has reached the vCPU's thread. Async-signal-safe.
    pub fn hear(&self) {
        self.pending.store(1, Ordering::SeqCst);
        if self.heard.load(Ordering::Relaxed) == 0 {
            self.on_processor.store(on_processor(), Ordering::Relaxed);
            self.heard.store(counter(), Ordering::Relaxed);
        }
    }

    /// Sets the timer to send its signal again soon, since the signal found the thread in code that
    /// the thread cannot leave. Returns false if the timer cannot be set, or was set too often.
    /// Async-signal-safe.
    pub(crate) fn come_again(&self, timer: i32) -> bool {
        if self.put_off.fetch_add(1, Ordering::Relaxed) >= MOST_PUT_OFF {
            return false;
        }
        let zero = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        let value = libc::itimerspec {
            it_interval: zero,
            it_value: libc::timespec {
                tv_sec: 0,
                tv_nsec: SOON,
            },
        };
        let nothing = std::ptr::null_mut::<libc::itimerspec>();
        // SAFETY: the kernel reads one value, and the number is that of the timer that sent the
        // signal.
        unsafe { libc::syscall(libc::SYS_timer_settime, timer, 0, &raw const value, nothing) == 0 }
    }

    /// Notes that the vCPU's thread has slept, and will itself look for work.
    pub fn wake(&self) {
        self.pending.store(1, Ordering::SeqCst);
        if self.heard.load(Ordering::Relaxed) == 0 {
            self.heard.store(counter(), Ordering::Relaxed);
        }
    }

    /// Clears the requests, which the caller is about to serve, and returns when they came.
    pub fn take(&self) -> Request {
        self.pending.store(0, Ordering::SeqCst);
        let request = Request {
            taken: counter(),
            asked: self.asked.load(Ordering::Relaxed),
            heard: self.heard.load(Ordering::Relaxed),
            on_processor: self.on_processor.load(Ordering::Relaxed),
        };
        self.forget();
        request
    }

    /// Forgets when requests came.
    pub fn forget(&self) {
        self.put_off.store(0, Ordering::Relaxed);
        for note in [&self.asked, &self.heard, &self.on_processor] {
            note.store(0, Ordering::Relaxed);
        }
    }
}

/// The CPU time of the calling thread, in nanoseconds.
pub fn on_processor() -> u64 {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the kernel writes one timespec; the clock exists on every Linux.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_is_noted_until_it_is_taken() {
        let requests = Requests::default();
        assert!(requests.ask());
        assert!(!requests.ask());
        let asked = requests.asked.load(Ordering::Relaxed);
        requests.hear();
        let heard = requests.heard.load(Ordering::Relaxed);
        requests.hear();
        requests.wake();
        assert_ne!(requests.load(Ordering::SeqCst), 0);
        let request = requests.take();
        assert_eq!((request.asked, request.heard), (asked, heard));
        assert_ne!(request.on_processor, 0);
        assert_eq!(requests.load(Ordering::SeqCst), 0);
        let none = requests.take();
        assert_eq!((none.asked, none.heard, none.on_processor), (0, 0, 0));
        assert!(none.taken >= request.taken);
    }

    #[test]
    fn a_signal_of_no_timer_is_not_put_off() {
        let requests = Requests::default();
        requests.hear();
        assert!(!requests.come_again(i32::MAX));
    }

    #[test]
    fn a_signal_is_put_off_a_few_times_until_it_is_taken() {
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: an all-zero sigevent is a valid value.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_NONE;
        // SAFETY: both pointers are to live values.
        let made = unsafe { libc::timer_create(libc::CLOCK_MONOTONIC, &mut event, &mut timer) };
        assert_eq!(made, 0);
        // The C library's `timer_t` is the kernel's number of the timer, which signals carry.
        let number = timer as usize as i32;
        let requests = Requests::default();
        for _ in 0..2 {
            let answers = [0; MOST_PUT_OFF as usize + 2].map(|_| requests.come_again(number));
            let times = answers.iter().filter(|it| **it).count();
            assert_eq!(times, MOST_PUT_OFF as usize);
            requests.take();
        }
        // SAFETY: the timer is this test's.
        unsafe { libc::timer_delete(timer) };
    }

    #[test]
    fn a_signal_finds_the_word_at_its_address() {
        let requests = Requests::default();
        let word: *const AtomicU32 = &*requests;
        assert_eq!(word.cast::<Requests>(), &raw const requests);
    }
}
