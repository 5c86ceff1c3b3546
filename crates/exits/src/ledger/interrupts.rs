//! The ledger's record of interrupts that wait: [`crate::latency`].

use super::{
    Arrival, Detail, HostTime, InterruptibleWork, Latency, Ledger, Request, SUSPICIOUSLY_LONG,
};
use crate::counter::counter;

impl Ledger {
    /// How long interrupts waited, and for whom.
    pub fn latency(&self) -> &Latency {
        &self.accounts.latency
    }

    /// Requests are taken at this boundary. The machine's earliest deadline passed `late`
    /// nanoseconds ago; 0 if none has passed.
    pub fn request_taken(&mut self, request: Request, late: u64) {
        if self.detail != Detail::Full {
            return;
        }
        let host = self.host_time();
        let now = request.taken;
        let arrival = self.arrival(request, late, (host, now));
        // The waiting time that an exit being timed has had so far must still be subtracted from
        // it.
        if !self.sampling {
            self.waiting_seen = self.waiting_by(host, now);
        }
        (self.looked_at, self.taken_at) = ((host, now), (host, now));
        self.accounts.latency.arrive(arrival);
    }

    fn arrival(&self, request: Request, late: u64, (host, now): (HostTime, u64)) -> Arrival {
        let per_nanosecond = self.cycles_per_nanosecond(host, now);
        let cycles = |nanoseconds: u64| (nanoseconds as f64 * per_nanosecond) as u64;
        let since = |begun: u64| match begun {
            0 => 0,
            _ => now.saturating_sub(begun),
        };
        // If no signal recorded the time, the thread was reached immediately.
        let mut monitor = match request.heard {
            0 => since(request.asked),
            heard => since(heard),
        };
        let whole = since(request.asked).max(cycles(late)).max(monitor);
        if monitor >= SUSPICIOUSLY_LONG {
            let lost = match request.on_processor {
                0 => {
                    let had = host
                        .on_processor
                        .saturating_sub(self.taken_at.0.on_processor);
                    now.saturating_sub(self.taken_at.1)
                        .saturating_sub(cycles(had))
                }
                had => monitor.saturating_sub(cycles(host.on_processor.saturating_sub(had))),
            };
            monitor = monitor.saturating_sub(lost);
        }
        let heard = now.saturating_sub(monitor);
        Arrival {
            host: whole - monitor,
            monitor,
            masker: self.accounts.latency.masker(heard, now, self.last),
            at: now,
        }
    }

    fn cycles_per_nanosecond(&self, host: HostTime, now: u64) -> f64 {
        let passed = host.passed.saturating_sub(self.run_start_host.passed);
        now.wrapping_sub(self.run_start) as f64 / passed.max(1) as f64
    }

    /// A piece of interruptible work has run since this reading of [`Self::now`]. It checked for
    /// requests at least every `piece` cycles; `lets_in` says whether the guest let interrupts in.
    pub fn interruptible_work(
        &mut self,
        work: InterruptibleWork,
        begin: u64,
        piece: u64,
        lets_in: bool,
    ) {
        if self.detail != Detail::Full {
            return;
        }
        let end = counter();
        let cycles = end.wrapping_sub(begin);
        let had = match cycles < SUSPICIOUSLY_LONG {
            true => cycles,
            false => cycles.saturating_sub(self.lost_lately(end)),
        };
        let latency = &mut self.accounts.latency;
        latency.interruptible_work(work, (begin, end), (had, piece), lets_in);
    }

    /// How long the thread was not scheduled since requests were last taken or this function was
    /// last called. Makes a system call.
    fn lost_lately(&mut self, now: u64) -> u64 {
        let host = self.host_time();
        let had = host
            .on_processor
            .saturating_sub(self.looked_at.0.on_processor);
        let had = had as f64 * self.cycles_per_nanosecond(host, now);
        let passed = now.saturating_sub(self.looked_at.1);
        self.looked_at = (host, now);
        passed.saturating_sub(had as u64)
    }

    /// Notes whether interrupts wait for the guest at this boundary.
    #[inline]
    pub fn interrupts_wait(&mut self, waits: bool) {
        self.accounts.latency.interrupts_wait(waits, counter);
    }

    /// Notes that an interrupt is being delivered.
    #[inline]
    pub fn interrupt_delivered(&mut self) {
        if self.detail == Detail::Full {
            self.accounts.latency.delivered(counter());
        }
    }
}
