//! The power management function of the PIIX4 (82371AB data sheet, 7.1), by which firmware finds the
//! ports of ACPI's fixed hardware ([`crate::devices::acpi_pm`]).
//!
//! ```text
//!   40h  the first port, which firmware would choose; here it is fixed
//!   5Bh  bit 1: system management mode has been set up
//!   80h  bit 0: the ports answer
//! ```
//!
//! OVMF takes ports that answer as they are; SeaBIOS chooses those that are there. SeaBIOS would set
//! up system management mode, which this machine does not have, and wait for its answer.
//!
//! To switch off, OVMF writes to the control register at the port that it would have chosen itself,
//! wherever the ports are. So that register also answers there.

use crate::bus::{Claims, DeviceContext, PortClaim, PortWidth};
use crate::devices::acpi_pm::BASE_PORT;
use crate::devices::pci::config_space::{ConfigSpace, Identity};
use crate::devices::pci::function::PciFunction;
use tollgate_platform::StopRequest;

const IDENTITY: Identity = Identity {
    vendor: 0x8086,
    device: 0x7113,
    // The timer of revisions 0 to 2 has an error that systems work around.
    revision: 3,
    class: 0x06_80_00,
    subsystem_vendor: 0x1af4,
    subsystem: 0x1100,
};

/// The base register of the ports (PMBA). Bit 0 marks ports.
const PORTS: usize = 0x40;
/// The highest byte of device activity B (DEVACTB).
const ACTIVITY: usize = 0x5b;
/// In it: writes to the APM control port make a system management interrupt (APMC_EN).
const MANAGEMENT_IS_SET_UP: u8 = 1 << 1;
/// Miscellaneous power management (PMREGMISC).
const ENABLE: usize = 0x80;
/// In it: the ports answer (PMIOSE).
const PORTS_ANSWER: u8 = 1 << 0;

/// The control register of ACPI's fixed hardware, with OVMF's choice of ports.
const OTHER_CONTROL_PORT: u16 = 0xb004;
/// What it reads as: the machine is in ACPI mode.
const IN_ACPI_MODE: u16 = 1;
/// In the control register: enter the sleep state (SLP_EN), which is soft off.
const SLEEP_ENABLE: u16 = 1 << 13;

/// The power management function.
#[derive(Debug)]
pub struct PowerManagement(ConfigSpace);

impl Default for PowerManagement {
    fn default() -> Self {
        let mut config = ConfigSpace::new(&IDENTITY);
        config.make_writable(0x40..0x100);
        config.fix(PORTS, &(u32::from(BASE_PORT) | 1).to_le_bytes());
        config.fix(ACTIVITY, &[MANAGEMENT_IS_SET_UP]);
        config.fix(ENABLE, &[PORTS_ANSWER]);
        Self(config)
    }
}

impl PciFunction for PowerManagement {
    fn name(&self) -> &str {
        "piix4-pm"
    }

    fn config(&self) -> &ConfigSpace {
        &self.0
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.0
    }

    fn fixed_ports(&self) -> Vec<PortClaim> {
        let ports = OTHER_CONTROL_PORT..=OTHER_CONTROL_PORT;
        Claims::none()
            .with_ports(ports, PortWidth::Exactly(2))
            .ports
    }

    fn port_read(&mut self, _port: u16, data: &mut [u8], _context: &mut DeviceContext<'_>) {
        for (byte, value) in data.iter_mut().zip(IN_ACPI_MODE.to_le_bytes()) {
            *byte = value;
        }
    }

    fn port_write(&mut self, _port: u16, data: &[u8], context: &mut DeviceContext<'_>) {
        let [_, high] = SLEEP_ENABLE.to_le_bytes();
        if data.get(1).is_some_and(|byte| byte & high != 0) {
            context.request_stop(StopRequest::PowerOff);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::testing::Bench;

    #[test]
    fn firmware_switches_off_at_the_port_of_its_choice() {
        let mut function = PowerManagement::default();
        let mut bench = Bench::new();
        let mut data = [0xff; 2];
        function.port_read(OTHER_CONTROL_PORT, &mut data, &mut bench.context(0));
        function.port_write(OTHER_CONTROL_PORT, &data, &mut bench.context(0));
        assert_eq!(bench.board.stop, None);
        function.port_write(OTHER_CONTROL_PORT, &[1, 0x20], &mut bench.context(0));
        assert_eq!(bench.board.stop, Some(StopRequest::PowerOff));
    }

    #[test]
    fn the_ports_stay_where_the_tables_say() {
        let mut function = PowerManagement::default();
        function.config_mut().write(PORTS, &0xb001u32.to_le_bytes());
        function.config_mut().write(ENABLE, &[0]);
        function.config_mut().reset();
        assert_eq!(function.config().u16(PORTS), BASE_PORT | 1);
        assert_eq!(function.config().u16(ENABLE) & 1, 1);
    }
}
