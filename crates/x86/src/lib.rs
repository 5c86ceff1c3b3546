//! Architectural facts about x86 processors, independent of the monitor.
//!
//! Everything here follows the Intel 64 and IA-32 Architectures Software Developer's Manual
//! ("SDM"). Where a rule is subtle, the comment names the section.

pub mod address;
pub mod breakpoints;
pub mod canonical;
pub mod descriptor;
pub mod exception;
pub mod flags;
mod init;
mod interrupt_shadow;
pub mod local_apic_msrs;
pub mod machine_check;
pub mod memory_types;
pub mod model;
mod operation;
pub mod paging;
pub mod paravirtual;
pub mod prefix;
pub mod registers;
pub mod state;
pub mod time_stamp_msrs;
pub mod translation_change;
mod watched;
pub mod xsave;

pub use address::{LinearAddress, PhysicalAddress};
pub use descriptor::{Attributes, Descriptor, Segment, SegmentRegister, Selector};
pub use exception::{Exception, Vector};
pub use flags::Flags;
pub use model::{AddedFeatures, CpuModel};
pub use operation::Operation;
pub use paravirtual::Paravirtual;
pub use registers::{Cr0, Cr4, Efer, Gpr};
pub use state::CpuState;
pub use translation_change::{Space, SpaceName, TranslationChange};
pub use watched::Watched;
