//! What is derived from the guest's page tables.
//!
//! There is one form of it here, the *checked* view: a [`SoftwareTlb`] that generated code
//! indexes inline, or in IA-32e mode a [`LongTlb`]. Windows (the *direct* view) will live
//! beside it. Other crates have caches of their own, of fetches and of links.
//!
//! All of them are [`Derived`], by which they are told what to forget. What an entry comes
//! from, a large page or a physical page, is noted once for all, in [`Origins`]; the entries of
//! page tables that it rests on, in [`TableEntries`].

pub mod derived;
pub mod long_tlb;
pub mod origins;
mod parts;
pub mod reservation;
pub mod shadow_windows;
pub mod slots;
pub mod software_tlb;
pub mod table_entries;

pub use derived::{Allows, Derived, Held, LeadsTo, PageRange, SPACES, SpaceNumber};
pub use long_tlb::LongTlb;
pub use origins::Origins;
pub use shadow_windows::{Run, ShadowWindows};
pub use slots::Slots;
pub use software_tlb::{Entry, SoftwareTlb, Stores, View};
pub use table_entries::{Comparison, TableEntries};
