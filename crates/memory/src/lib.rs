//! Guest RAM, the physical memory map, and the one gate through which everything
//! but guest code writes guest memory.
//!
//! [`GuestRam`] owns the bytes, [`CodeMap`] knows which of them the translator has
//! read as code, and [`GuestMemory`] joins the two: a write through it that hits
//! code is remembered until the monitor has dropped the stale translations.
//!
//! What lies where is fixed by [`PhysicalLayout`] but for [`Region`]s, which are set and
//! moved while the guest runs.
//!
//! A [`GuestMemory`] is a handle: its clones reach the same memory. The machine owns
//! one, its processor and its devices hold others, all on the vCPU's thread. Other threads
//! reach RAM by what is [lent](LentRam) to them alone, to have the host read or fill it.

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
pub use ram::{GuestRam, LentRam, MemoryBacking, MemoryError};
