//! The part of changes of translations that was done ahead of them.

use tollgate_engine::preemption::GivenUp;
use tollgate_tlb::Comparison;
use tollgate_x86::TranslationChange;

/// The part of changes that was done ahead.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(super) given_up: GivenUp<TranslationChange>,
    /// The change whose entries were compared, with the result.
    pub(super) compared: Option<(TranslationChange, Comparison)>,
}

impl Prepared {
    /// The result of the comparison for a change that is made now.
    pub(crate) fn take(&mut self, change: TranslationChange) -> Option<Comparison> {
        let (of, comparison) = self.compared.take()?;
        (of == change).then_some(comparison)
    }
}
