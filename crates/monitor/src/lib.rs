//! The monitor: one virtual processor's life. It enters guest code, takes an exit, handles it,
//! accounts for it and injects events.
//!
//! - `execution` is the loop and what happens at an instruction's boundary. It is written for any
//!   [`Runner`], which is what runs guest code.
//! - `memory` is guest memory as the processor sees it, and what is derived from the guest's page
//!   tables.
//! - `host` is what the virtual processor needs of the host: a timer, a signal and clocks.
//! - [`translated`] is copy-translation as a [`Runner`].

mod execution;
mod host;
mod memory;
pub mod translated;

pub use execution::counts::VcpuCounts;
pub use execution::latches::Latches;
pub use execution::runner::Runner;
pub use execution::settings::VcpuSettings;
pub use execution::stop::VcpuStop;
pub use execution::vcpu::Vcpu;
pub use execution::{hypercall, instruction_cache, latches, runner, running, state_dump, vcpu};
pub use host::kick::{self, Kick};
pub use memory::addresses::code_address;
pub use memory::{guest_view, memory_access, shadow_tables, space_switch, translations};
