//! Compares the exits that the ledger counted with those that the guest's loops must have caused.

use super::kinds::{Expected, Kind};
use super::outcome::{AROUND_A_COMMAND, Outcome};
use super::{CheckedCount, CostError, GuestMode};

/// The exits that were expected and those that were counted so far.
pub(super) struct Reading {
    expected: &'static [Expected],
    mode: GuestMode,
    counts: Vec<CheckedCount>,
    /// The number of repetitions so far, and of all their exits.
    repetitions: u64,
    exits: u64,
}

impl Reading {
    pub(super) fn new(kind: &Kind, mode: GuestMode) -> Self {
        let counts = kind.expected.iter().map(|expected| CheckedCount {
            kind: expected.kind.name().to_owned(),
            expected: 0,
            counted: 0,
            at_least: expected.at_least,
        });
        Self {
            expected: kind.expected,
            mode,
            counts: counts.collect(),
            repetitions: 0,
            exits: 0,
        }
    }

    /// The number of all exits for one repetition.
    pub(super) fn exits_each(&self) -> f64 {
        self.exits as f64 / self.repetitions.max(1) as f64
    }

    /// The sums of all commands.
    pub(super) fn counts(self) -> Vec<CheckedCount> {
        self.counts
    }

    /// Checks one command's exits for `repetitions`; `what` is for error messages.
    pub(super) fn check(
        &mut self,
        outcome: &Outcome,
        repetitions: u64,
        what: &str,
    ) -> Result<(), CostError> {
        let Some(ledger) = &outcome.counted else {
            return Ok(());
        };
        self.repetitions += repetitions;
        self.exits += ledger.total();
        for (rule, sum) in self.expected.iter().zip(&mut self.counts) {
            let around = AROUND_A_COMMAND
                .iter()
                .find(|(kind, _)| *kind == rule.kind)
                .map_or(0, |(_, count)| *count);
            let each = match self.mode {
                GuestMode::Ring3 | GuestMode::LongRing3 => rule.each + rule.in_ring_3,
                GuestMode::Long => rule.each + rule.in_64_bit,
                GuestMode::Real => rule.each + rule.in_real_mode,
                _ => rule.each,
            };
            let expected = each * repetitions + rule.once;
            let fast_paths = match rule.or_fast_path {
                true => ledger.fast_paths(rule.kind),
                false => 0,
            };
            let counted = (ledger.exits(rule.kind) + fast_paths).saturating_sub(around);
            let early = counted.saturating_sub(expected);
            let counted = match early <= rule.first {
                true => counted - early,
                false => counted,
            };
            let agrees = counted == expected || (rule.at_least && counted > expected);
            if !agrees {
                return Err(CostError::WorkNotDone(format!(
                    "{what}: expected {expected} exits of kind {}, the ledger counted \
                     {counted} (all exits: {})",
                    rule.kind.name(),
                    ledger.all_exits()
                )));
            }
            sum.expected += expected;
            sum.counted += counted;
        }
        Ok(())
    }
}
