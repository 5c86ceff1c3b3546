//! The monitor: the life of one virtual processor. It enters guest code, takes exits, handles them,
//! accounts for them and delivers events.
//!
//! - `execution` is the loop of the virtual processor and the work at instruction boundaries. It is
//!   written for any [`Runner`], which is the part that runs guest code.
//! - `memory` is guest memory as the processor sees it, and the data that is derived from the
//!   guest's page tables.
//! - `host` is what the virtual processor needs from the host: a timer, a signal and clocks.
//! - [`translated`] implements [`Runner`] by copy-translation.

mod execution;
mod host;
mod memory;
pub mod translated;

pub use execution::counts::VcpuCounts;
pub use execution::non_register_state::NonRegisterState;
pub use execution::runner::Runner;
pub use execution::settings::VcpuSettings;
pub use execution::stop::VcpuStop;
pub use execution::vcpu::Vcpu;
pub use execution::watched::{DebugStop, Watched, WatchedAccess, WatchedMemory};
pub use execution::{
    hypercall, instruction_cache, non_register_state, runner, running, state_dump, vcpu,
};
pub use host::kick::{self, Kick};
pub use memory::addresses::code_address;
pub use memory::{access_policy, guest_view, shadow_tables, space_switch, translations};
