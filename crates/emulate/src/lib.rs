//! The instructions that are never copied, executed as the manuals describe them.
//!
//! [`execute`] takes one decoded instruction and does what the SDM's pseudo-code says, on the
//! registers in `CpuState` and whatever else the `Environment` reaches, in every mode. Each file
//! documents what it leaves out.
//!
//! The invariant of the whole crate: when an instruction ends in a fault, the registers are exactly
//! as before it (REP strings keep their progress, as they must). Only if the instruction has
//! switched to another task does the fault belong to that task, see [`task_switch`].

pub mod base_registers;
pub mod bits;
pub mod canonical;
pub mod control;
pub mod cpuid;
pub mod decimal;
pub mod descriptor_instructions;
pub mod descriptor_table;
pub mod exception_delivery;
pub mod far;
pub mod fast_call;
pub mod flag_instructions;
pub mod gather;
pub mod host_arithmetic;
pub mod interrupt;
pub mod invlpg;
pub mod invpcid;
pub mod io;
pub mod iret;
pub mod machine_check;
pub mod memory_access;
pub mod memory_types;
pub mod msr;
pub mod operand;
pub mod outcome;
pub mod page_access;
pub mod performance_counters;
pub mod plain_msr;
pub mod privilege_change;
pub mod scatter;
pub mod segments;
pub mod stack;
pub mod stack_access;
pub mod string;
pub mod system_call;
pub mod task_switch;
pub mod tsc_deadline;
pub mod tsc_offset;
pub mod vector_image;
pub mod vector_state;
pub mod virtual_8086;
pub mod x87_environment;

mod dispatch;
mod dispatch_system;
mod host_string;
mod string_pointers;
#[cfg(test)]
pub(crate) mod test_environment;

pub use dispatch::execute;
pub use outcome::Outcome;
