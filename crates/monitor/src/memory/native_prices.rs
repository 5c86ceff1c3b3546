//! What programs do natively, what that costs on this host, and what it saves.

/// A program saves its running time divided by this.
const SAVED_PART: i64 = 2;

/// What programs of a space have done natively since some moment.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct NativeWork {
    /// Nanoseconds that their process has run.
    pub(crate) ran: u64,
    /// How often they were entered.
    pub(crate) entries: u64,
    /// How often a page was missing.
    pub(crate) pages: u64,
}

impl NativeWork {
    /// What was done between an earlier moment and this one.
    pub(super) fn since(self, earlier: Self) -> Self {
        Self {
            ran: self.ran.saturating_sub(earlier.ran),
            entries: self.entries.saturating_sub(earlier.entries),
            pages: self.pages.saturating_sub(earlier.pages),
        }
    }

    /// Nanoseconds that were saved, less those that were paid.
    pub(super) fn gain(self, prices: NativePrices) -> i64 {
        let entries = signed(self.entries);
        let ran = signed(self.ran).saturating_sub(entries.saturating_mul(prices.in_process()));
        let paid = entries.saturating_mul(prices.entry());
        let paid = paid.saturating_add(signed(self.pages).saturating_mul(prices.page()));
        (ran.max(0) / SAVED_PART).saturating_sub(paid)
    }
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// What native code costs on this host, from the shortest time for which a program was seen to be in its
/// process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NativePrices {
    /// Nanoseconds of the way into a process and back, with a few instructions there.
    shortest: u64,
}

impl Default for NativePrices {
    fn default() -> Self {
        Self {
            shortest: Self::MOST,
        }
    }
}

impl NativePrices {
    /// Nanoseconds of the way into a process and back before it was measured, as on a processor of 2022 in a
    /// virtual machine. Longer ones are times of programs.
    const MOST: u64 = 7_300;
    /// Nanoseconds that the monitor adds to an entry: registers in and out, what the program has left for.
    const MONITOR: i64 = 2_000;

    /// Notes that the way into a process, what ran there, and the way back took this many nanoseconds.
    pub(crate) fn note(&mut self, nanoseconds: u64) {
        self.shortest = self.shortest.min(nanoseconds);
    }

    /// Nanoseconds that it costs to enter a program, to leave it, and to do what it has left for.
    fn entry(self) -> i64 {
        signed(self.shortest) + Self::MONITOR
    }

    /// Nanoseconds of that which the host books as the running time of the program's process: about a third
    /// of the way.
    fn in_process(self) -> i64 {
        signed(self.shortest) / 3
    }

    /// Nanoseconds that it costs, in addition, to give the process a page that it lacks: changes of mappings
    /// are a third dearer than entries.
    fn page(self) -> i64 {
        self.entry() * 4 / 3
    }
}
