//! The ISA bridge of the PIIX3 (82371SB data sheet, 2.2): it routes the interrupt lines of the PCI
//! bus to those of the ISA bus.

use crate::devices::pci::config_space::{ConfigSpace, Identity};
use crate::devices::pci::function::PciFunction;

const IDENTITY: Identity = Identity {
    vendor: 0x8086,
    device: 0x7000,
    revision: 0,
    class: 0x06_01_00,
    subsystem_vendor: 0x1af4,
    subsystem: 0x1100,
};

/// The routing register of PIRQA; those of B to D follow (PIRQRC\[A:D\]).
const ROUTES: usize = 0x60;
/// In a routing register: the line is not routed.
const DISABLED: u8 = 1 << 7;
/// In a routing register: the ISA line.
const LINE: u8 = 0xf;
/// The ISA lines that a route may name. The others belong to the board.
const ROUTABLE: u16 = 0b1101_1110_1111_1000;

/// The ISA bridge.
#[derive(Debug)]
pub struct IsaBridge(ConfigSpace);

impl Default for IsaBridge {
    fn default() -> Self {
        let mut config = ConfigSpace::new(&IDENTITY);
        config.make_writable(0x40..0x100);
        let mut bridge = Self(config);
        bridge.disable_routes();
        bridge
    }
}

impl IsaBridge {
    fn disable_routes(&mut self) {
        self.0.write(ROUTES, &[DISABLED; 4]);
    }
}

impl PciFunction for IsaBridge {
    fn name(&self) -> &str {
        "piix3-isa"
    }

    /// Leads the INTA of device 1 to where PIRQA is routed, that of device 2 to where PIRQB is, and
    /// so on modulo 4.
    fn isa_line(&self, device: u8) -> Option<u8> {
        let line = device.wrapping_sub(1) & 3;
        let route = self.0.u16(ROUTES + usize::from(line)) as u8;
        let isa = route & LINE;
        (route & DISABLED == 0 && ROUTABLE >> isa & 1 != 0).then_some(isa)
    }

    fn config(&self) -> &ConfigSpace {
        &self.0
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.0
    }

    /// The host resets the configuration space before it asks for the routes again.
    fn after_reset(&mut self) {
        self.disable_routes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_lead_nowhere_until_they_are_routed_to_one_that_may_be() {
        let mut bridge = IsaBridge::default();
        assert_eq!(bridge.isa_line(1), None);
        for (value, line) in [(0x0a, Some(10)), (0x8a, None), (0x08, None), (0x02, None)] {
            bridge.config_mut().write(ROUTES + 1, &[value]);
            assert_eq!(bridge.isa_line(2), line, "{value:#x}");
        }
    }

    #[test]
    fn devices_share_the_four_lines_in_turn() {
        let mut bridge = IsaBridge::default();
        bridge.config_mut().write(ROUTES, &[3, 4, 5, 6]);
        let lines: Vec<_> = (0..6).map(|device| bridge.isa_line(device)).collect();
        assert_eq!(lines, [6, 3, 4, 5, 6, 3].map(Some));
    }
}
