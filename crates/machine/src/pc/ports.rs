//! Which port belongs to which device.
//!
//! Most devices are 8 bits wide: a wider access is one access for each byte, lowest
//! first, as the ISA bus does it. The ACPI block takes accesses of any width. Ports
//! that nobody claims read as ones and ignore what is written.

use super::Pc;
use crate::devices::acpi_pm::AcpiPm;
use crate::devices::debug_ports::{DebugConsole, DebugExit, PostCode};
use crate::devices::fpu_error::FpuError;
use crate::devices::i8042::I8042;
use crate::devices::reset_ports::{ResetControl, SystemControlPort};

/// The PCI address register: four bytes at once. There is no PCI bus, but its bytes
/// must not be taken for the reset control register inside it.
const PCI_ADDRESS_PORT: u16 = 0xcf8;

impl Pc {
    pub(super) fn read_port(&mut self, port: u16, size: u8) -> u32 {
        if AcpiPm::owns_port(port) {
            let now = self.clock.now();
            let value = self.devices.acpi_pm.read(port, size, now);
            self.devices.forward_sci();
            return value;
        }
        if port == PCI_ADDRESS_PORT && size == 4 {
            return u32::MAX;
        }
        let mut value = 0;
        for position in 0..size.min(4) {
            let byte = self.read_byte(port.wrapping_add(u16::from(position)));
            value |= u32::from(byte) << (8 * position);
        }
        value
    }

    pub(super) fn write_port(&mut self, port: u16, size: u8, value: u32) {
        if AcpiPm::owns_port(port) {
            let now = self.clock.now();
            self.devices.acpi_pm.write(port, size, value, now);
            self.devices.forward_sci();
            self.collect_requests();
            return;
        }
        if port == PCI_ADDRESS_PORT && size == 4 {
            return;
        }
        for position in 0..size.min(4) {
            let byte = (value >> (8 * position)) as u8;
            self.write_byte(port.wrapping_add(u16::from(position)), byte);
        }
    }

    fn read_byte(&mut self, port: u16) -> u8 {
        let devices = &mut self.devices;
        match port {
            0x20..=0x21 | 0xa0..=0xa1 | 0x4d0..=0x4d1 => {
                let value = devices.interrupts.pic.read(port);
                devices.interrupts.update_intr();
                value
            }
            0x40..=0x43 => {
                let now = self.clock.now();
                let value = devices.pit.read(port, now);
                devices.forward_pit(now);
                value
            }
            0x61 => devices
                .speaker_port
                .read(&mut devices.pit, self.clock.now()),
            I8042::DATA_PORT | I8042::COMMAND_PORT => {
                let value = devices.keyboard.read(port, self.clock.now());
                devices.forward_keyboard();
                self.slow_deadline.set(None);
                value
            }
            0x70..=0x71 => {
                let value = devices.rtc.read(port, self.clock.now());
                devices.forward_rtc();
                self.slow_deadline.set(None);
                value
            }
            0x3f8..=0x3ff => {
                let value = devices.serial.read(port, self.clock.now());
                devices.forward_serial();
                self.feed_serial_port();
                value
            }
            PostCode::PORT => devices.post_code.read(),
            SystemControlPort::PORT => devices.system_control.read(),
            DebugConsole::BOCHS_PORT => devices.bochs_console.read(),
            DebugConsole::FIRMWARE_PORT => devices.firmware_console.read(),
            port if DebugExit::PORTS.contains(&port) => devices.debug_exit.read(),
            ResetControl::PORT => devices.reset_control.read(),
            _ => 0xff,
        }
    }

    fn write_byte(&mut self, port: u16, value: u8) {
        let devices = &mut self.devices;
        match port {
            // Kernels write here to pass time: nothing else may happen.
            PostCode::PORT => devices.post_code.write(value),
            0x3f8..=0x3ff => self.write_serial(port, value),
            0x20..=0x21 | 0xa0..=0xa1 | 0x4d0..=0x4d1 => {
                devices.interrupts.pic.write(port, value);
                devices.interrupts.update_intr();
            }
            0x40..=0x43 => {
                devices.write_pit(port, value, self.clock.now());
                self.slow_deadline.set(None);
            }
            0x61 => {
                let now = self.clock.now();
                devices.speaker_port.write(value, &mut devices.pit, now);
            }
            I8042::DATA_PORT | I8042::COMMAND_PORT => {
                devices.keyboard.write(port, value, self.clock.now());
                if let Some(enabled) = devices.keyboard.take_a20_request() {
                    devices.set_a20(enabled);
                }
                devices.forward_keyboard();
                self.collect_requests();
            }
            0x70..=0x71 => {
                devices.rtc.write(port, value, self.clock.now());
                devices.forward_rtc();
                self.slow_deadline.set(None);
            }
            SystemControlPort::PORT => {
                devices.system_control.write(value);
                if let Some(enabled) = devices.system_control.take_a20_request() {
                    devices.set_a20(enabled);
                }
                self.collect_requests();
            }
            DebugConsole::BOCHS_PORT => {
                devices.bochs_console.write(value);
                let output = devices.bochs_console.take_output();
                self.debug_output.push(&output, self.clock.now());
            }
            DebugConsole::FIRMWARE_PORT => {
                devices.firmware_console.write(value);
                let output = devices.firmware_console.take_output();
                self.debug_output.push(&output, self.clock.now());
            }
            FpuError::CLEAR_PORT | FpuError::RESET_PORT => {
                devices.fpu_error.write();
                devices.forward_fpu_error();
            }
            port if DebugExit::PORTS.contains(&port) => {
                devices.debug_exit.write(value);
                self.collect_requests();
            }
            ResetControl::PORT => {
                devices.reset_control.write(value);
                self.collect_requests();
            }
            _ => {}
        }
    }

    fn write_serial(&mut self, port: u16, value: u8) {
        let now = self.clock.now();
        let serial = &mut self.devices.serial;
        serial.write(port, value, now);
        if !serial.output().is_empty() {
            let output = serial.take_output();
            self.serial_output.push(&output, now);
        }
        self.devices.forward_serial();
        self.feed_serial_port();
    }
}
