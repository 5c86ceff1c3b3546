//! What is derived from the guest's page tables.
//!
//! There is one form, the *checked* view: a [`SoftwareTlb`] that generated code indexes
//! inline, or in IA-32e mode a [`LongTlb`]. Windows (the *direct* view) will live beside it
//! and be dropped by the same invalidations.

pub mod long_tlb;
pub mod reservation;
pub mod software_tlb;

pub use long_tlb::LongTlb;
pub use software_tlb::{Entry, SoftwareTlb, Stores, View};
