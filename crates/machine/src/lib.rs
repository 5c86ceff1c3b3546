//! A PC around the monitor: devices, memory map, firmware tables, boot, and the
//! virtual machine as a whole.
//!
//! [`vm::Vm`] is what others build and run, from a [`config::VmConfig`], steered through
//! a [`vm_handle::VmHandle`].

pub mod acpi;
pub mod boot;
pub mod bus;
pub mod comma_list;
pub mod config;
pub mod cpu;
pub mod devices;
pub mod file_words;
pub mod knobs;
pub mod marks;
pub mod pc;
pub mod saved;
pub mod vm;
pub mod vm_handle;
