//! The PC around the monitor: its devices, memory map, firmware tables and boot protocols, and the
//! virtual machine as a whole.
//!
//! A program describes a machine by a [`config::VmConfig`], builds and runs it as a [`vm::Vm`], and
//! controls it from other threads through a [`vm_handle::VmHandle`].

pub mod acpi;
pub mod board;
pub mod boot;
pub mod bus;
pub mod comma_list;
pub mod config;
pub mod cpu;
pub mod debugger;
pub mod device_list;
pub mod devices;
mod errands;
pub mod inspection;
pub mod knobs;
pub mod marks;
pub mod pc;
pub mod saved;
pub mod smbios;
pub mod snapshot;
pub mod translations;
pub mod vm;
pub mod vm_handle;
