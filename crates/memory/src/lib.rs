//! Guest RAM, the physical memory map, and the one gate through which everything except guest code
//! writes guest memory.
//!
//! [`GuestRam`] owns the bytes, [`CodeMap`] knows which of them the translator has read as code,
//! and [`GuestMemory`] combines the two: it records a write to code until the monitor has dropped
//! the stale translations.
//!
//! [`PhysicalLayout`] defines a fixed memory map, except for [`Region`]s, which are set and moved
//! while the guest runs.
//!
//! A [`GuestMemory`] is a handle: its clones reach the same memory. The machine owns one, its
//! processor and its devices hold others, all on the vCPU's thread. Other threads can access only
//! the RAM that is [lent](LentRam) to them, to have the host read or fill it.

mod cells;
mod code_bytes;
pub mod code_map;
pub mod gate;
pub mod huge_page;
pub mod layout;
pub mod map;
pub mod ram;

pub use code_map::{CodeMap, LINE_SIZE};
pub use gate::{CodeWrite, Filling, GuestMemory};
pub use layout::{MemoryRegion, PhysicalLayout};
pub use map::{BlockId, MapError, PageUse, Region, RegionKind};
pub use ram::{GuestRam, LentRam, MemoryBacking, MemoryError, PageSource, PageSpan};
