//! One vCPU's life: enter guest code, take an exit, handle it, account for it, inject.
//!
//! `run_loop.rs` is the loop, `events.rs` what it delivers, `emulated.rs` executes what does not
//! run as guest code, `guest_view.rs` and `surroundings.rs` are memory as the processor and its
//! emulated instructions see it. All of it is written for any `runner.rs`, what runs guest code.
//! That is copy-translation, in `translated.rs` and its folder.

mod a20;
mod alarm;
mod changes;
mod decode;
mod due;
mod emulated;
mod events;
mod faulting_sites;
mod fetch;
pub mod guest_view;
mod host;
mod host_timer;
pub mod hypercall;
pub mod instruction_cache;
mod instruction_in_work;
mod interrupt_shadow;
mod kept_spaces;
pub mod kick;
pub mod latches;
pub mod memory_access;
mod memory_map;
mod metered;
mod near;
mod program_names;
mod raw;
mod resume_flag;
mod run_loop;
pub mod runner;
pub mod running;
mod shadow_check;
pub mod shadow_tables;
mod single_step;
pub mod space_switch;
pub mod state_dump;
mod surroundings;
pub mod translated;
pub mod translations;
mod unchanged_tables;
pub mod vcpu;
mod windows;
mod x87_errors;

pub use kick::Kick;
pub use latches::Latches;
pub use runner::Runner;
pub use vcpu::{Vcpu, VcpuStop};
