//! What `tollgate cost` must know of a kind of exit.

use super::expected::Expected;

/// The contents of a kind's batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Batch {
    /// Only the event; the empty loop is subtracted.
    Event,
    /// The event and an INVLPG before it, whose own batch is subtracted.
    AfterInvlpg,
    /// The event, and what must precede or follow it, such as EOI.
    Whole,
    /// There is no batch: most of its time would be waiting.
    None,
}

/// One row of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The kind's name, as in the guest's table.
    pub name: &'static str,
    /// What happens between the readings of the clock.
    pub what: &'static str,
    /// The exits of each repetition.
    pub expected: &'static [Expected],
    /// The contents of the kind's batch.
    pub batch: Batch,
    /// Whether the time is measured from a deadline instead of the first reading.
    pub after_deadline: bool,
    /// Whether a repetition takes microseconds, so that fewer are measured.
    pub is_slow: bool,
}

/// The name of the empty loop.
pub const BASELINE: &str = "no-op";
/// The name of the loop that is subtracted from batches of kinds that need it as preparation.
pub const INVLPG: &str = "invlpg";

pub(super) const fn kind(
    name: &'static str,
    what: &'static str,
    expected: &'static [Expected],
) -> Kind {
    Kind {
        name,
        what,
        expected,
        batch: Batch::Event,
        after_deadline: false,
        is_slow: false,
    }
}

impl Kind {
    pub(super) const fn batch(mut self, batch: Batch) -> Self {
        self.batch = batch;
        self
    }

    pub(super) const fn slow(mut self) -> Self {
        self.is_slow = true;
        self
    }

    pub(super) const fn after_deadline(mut self) -> Self {
        self.after_deadline = true;
        self.batch = Batch::None;
        self.slow()
    }
}
