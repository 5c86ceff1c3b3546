//! The devices of the PC, one file each.
//!
//! A device is a pure state machine: registers in, registers out, with guest time passed to every
//! call. It has no thread, no file descriptor and no clock of its own. Its `impl Device`
//! ([`crate::bus::Device`]) connects it to the machine: it gives the ports and addresses at which
//! the device answers, the lines that it drives, and the time when it next needs attention.
//!
//! A new device is a file here and a line in [`crate::device_list`].
//!
//! The state of a device is a plain serializable structure with a `STATE_VERSION`.

pub mod acpi_pm;
pub mod board_windows;
pub mod boot_timer;
pub mod chipset;
pub mod debug_ports;
pub mod e1000;
pub mod flash;
pub mod floppy;
pub mod fw_cfg;
pub mod generation_id;
pub mod hpet;
pub mod i8042;
pub mod ide;
pub mod kvm_clock;
mod lost_ticks;
pub mod medium;
pub mod parallel;
pub mod pc_testdev;
pub mod pci;
pub mod pit;
pub mod pvpanic;
pub mod reset_ports;
pub mod rtc;
pub mod serial;
pub mod speaker_port;
pub mod system_timer;
mod time_of_day;
pub mod vga;
pub mod virtio;
pub mod watchdog;

#[cfg(test)]
mod hostile_guest;
