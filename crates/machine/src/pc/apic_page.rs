//! The local APIC's page where RAM lies: the processor's accesses reach the APIC.
//!
//! A guest may put the page anywhere by IA32_APIC_BASE (SDM volume 3, 11.4.5). Over RAM
//! below 4 GiB a region without memory takes the page out of the map, so that accesses
//! go to the board, which asks the APIC first; the RAM appears again once the page
//! has moved on, and devices then put the regions in place again that they had there. RAM from
//! 4 GiB on cannot be hidden: there the APIC is not reached.

use super::Pc;
use tollgate_memory::layout::HIGH_RAM_START;
use tollgate_memory::{Region, RegionKind};
use tollgate_x86::PhysicalAddress;

use crate::devices::local_apic::REGISTER_BYTES;
use crate::devices::pci::host::PciHost;

impl Pc {
    /// Makes the map follow the page; to be called when its base may have changed.
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
            // The page was set before, so it can be cleared.
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
