//! The loop of a virtual processor, and the work that is due at the boundary of an instruction.
//!
//! `run_loop.rs` is the loop, `events.rs` delivers interrupts and exceptions, and `emulated.rs`
//! executes the instructions that do not run as guest code. `vcpu.rs` owns all parts of a virtual
//! processor, and `running.rs` borrows them together with the machine while guest code runs.

pub mod counts;
mod current_instruction;
pub(crate) mod due_work;
pub(crate) mod emulated;
pub(crate) mod emulation_environment;
mod events;
pub mod hypercall;
pub mod instruction_cache;
mod interrupt_shadow;
pub(crate) mod interruptible_work;
mod memory_changes;
pub mod non_register_state;
pub(crate) mod out_of_line;
pub(crate) mod resume_flag;
mod run_loop;
pub mod runner;
pub mod running;
pub mod settings;
mod single_step;
pub mod state_dump;
pub(crate) mod stop;
pub(crate) mod timed_platform;
pub mod vcpu;
pub mod watched;
pub(crate) mod x87_errors;
