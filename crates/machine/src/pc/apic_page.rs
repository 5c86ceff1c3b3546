//! The local APIC's page over RAM: accesses by the processor must reach the APIC.
//!
//! A guest may place the page anywhere through IA32_APIC_BASE (SDM volume 3, 11.4.5). Below 4 GiB a
//! region without memory takes the page out of the memory map, so that accesses go to the board,
//! which checks for the APIC first. When the page moves on, the RAM appears again, and devices
//! restore the regions that they had there. RAM from 4 GiB on cannot be hidden: the APIC is
//! unreachable there.

use super::Pc;
use tollgate_memory::layout::HIGH_RAM_START;
use tollgate_memory::{Region, RegionKind};
use tollgate_x86::PhysicalAddress;

use crate::board::local_apic::REGISTER_BYTES;
use crate::devices::pci::host::PciHost;

impl Pc {
    /// Makes the memory map follow the page. Must be called whenever the APIC's base may have
    /// changed.
    pub(super) fn follow_apic_page(&mut self) {
        let apic = &self.board.interrupts.local_apic;
        let memory = &self.board.memory;
        let wanted = apic.page().map(PhysicalAddress).filter(|&page| {
            page.0 < HIGH_RAM_START && memory.ram().layout().is_ram(page, REGISTER_BYTES)
        });
        if wanted == self.hidden_by_apic {
            return;
        }
        if let Some(old) = self.hidden_by_apic.take() {
            let memory = &mut self.board.memory;
            // The region was set earlier, so clearing it cannot fail.
            let _ = memory.clear_region(old, REGISTER_BYTES);
            self.with(|host: &mut PciHost, context| host.place_regions(context));
        }
        if let Some(start) = wanted {
            let region = Region {
                start,
                bytes: REGISTER_BYTES,
                kind: RegionKind::Device,
                block: None,
            };
            if self.board.memory.set_region(region).is_ok() {
                self.hidden_by_apic = wanted;
            }
        }
    }
}
