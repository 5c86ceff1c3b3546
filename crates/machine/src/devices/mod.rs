//! The devices of the PC, one file each.
//!
//! A device is a pure state machine: registers in, registers out, with guest time
//! passed to every call. It has no thread, no file descriptor and no clock of its own.
//! Its owner, the PC, routes port and memory accesses to it, calls `advance` when its
//! `next_deadline` has come, and forwards its interrupt line ([`IrqLine::forward`])
//! after each of these calls.
//!
//! The state of a device is a plain serializable structure with a `STATE_VERSION`.

pub mod acpi_pm;
pub mod debug_ports;
pub mod fpu_error;
pub mod i8042;
pub mod io_apic;
pub mod irq_line;
pub mod local_apic;
pub mod pic;
pub mod pit;
pub mod reset_ports;
pub mod rtc;
pub mod serial;
pub mod speaker_port;

#[cfg(test)]
mod hostile_guest;

pub use irq_line::IrqLine;
