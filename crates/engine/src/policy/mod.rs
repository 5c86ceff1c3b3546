//! The decisions on how guest code is translated: the mode it runs in, which instructions may run
//! on the host, and how instructions that use the interrupt flag are run.

pub mod access;
pub mod allow_list;
pub mod breakpoints;
pub mod fast_path;
pub mod instruction_kind;
pub mod masked_access;
pub mod memory_operand;
pub mod mode;
pub mod out_of_line;
pub mod string_routine;
pub mod virtual_interrupts;
