//! The data that is derived from the guest's page tables: software TLBs and shadow windows.
//!
//! Generated code reaches guest memory in one of two ways. With *checked* access it indexes a
//! [`SoftwareTlb`], or in IA-32e mode a [`LongTlb`], inline. With *direct* access it reaches guest
//! RAM through [shadow windows](shadow_windows) without a look-up. Other crates have caches of
//! their own, for fetches and for links.
//!
//! All these structures implement [`Derived`], the trait that notifies them what to forget. Two
//! notes are kept once for all of them: [`Origins`] has the large page and the physical page that
//! an entry comes from, and [`TableEntries`] has the page-table entries that it depends on.

pub mod derived;
pub mod long_tlb;
pub mod origins;
mod parts;
pub mod reservation;
pub mod shadow_windows;
pub mod slots;
pub mod software_tlb;
pub mod table_entries;
pub mod view;

pub use derived::{Allows, Derived, Held, LeadsTo, PageRange, SPACES, SpaceNumber};
pub use long_tlb::{GsTarget, LongTlb};
pub use origins::Origins;
pub use shadow_windows::{Run, ShadowWindows};
pub use slots::{KnownPage, LookUpFor, Slots};
pub use software_tlb::{Entry, SoftwareTlb, Stores};
pub use table_entries::{Comparison, TableEntries};
pub use view::View;
