//! Functions of the PCI bus that come and go: the bus, and the event that reports it to the guest.

use super::Pc;
use crate::devices::acpi_pm::AcpiPm;
use crate::devices::pci::host::PciHost;
use crate::devices::pci::host::hot_plug::{EVENT, Ejected};
use crate::devices::virtio::device::VirtioDevice;
use crate::devices::virtio::pci_transport::VirtioPci;

/// The reason why nothing is plugged into a machine without the bus.
const NO_BUS: &str = "the machine has no PCI bus";

impl Pc {
    /// Plugs a virtio device into a slot of the PCI bus, and reports that to the guest.
    ///
    /// # Errors
    /// One line: the slot is occupied, or nothing can be plugged into it.
    pub fn plug(&mut self, slot: u8, device: Box<dyn VirtioDevice>) -> Result<(), String> {
        let refusals = device.refusals();
        let plugged = self.with(|host: &mut PciHost, context| {
            host.plug(slot, Box::new(VirtioPci::new(device)), context)
        });
        plugged.ok_or(NO_BUS)??;
        self.refusals.extend(refusals);
        self.report_slots();
        Ok(())
    }

    /// Asks the guest to eject the function in a slot of the PCI bus.
    ///
    /// # Errors
    /// One line: there is no function that can be removed.
    pub fn ask_for_ejection(&mut self, slot: u8) -> Result<(), String> {
        let asked = self.with(|host: &mut PciHost, _| host.ask_for_ejection(slot));
        asked.ok_or(NO_BUS)??;
        self.report_slots();
        Ok(())
    }

    /// Removes the functions that the guest was asked to eject.
    pub fn eject_leaving(&mut self) {
        self.with(|host: &mut PciHost, context| host.eject_leaving(context));
    }

    /// Takes the functions that were ejected, with their slots. Dropping one ends its threads.
    pub fn take_ejected(&mut self) -> Vec<Ejected> {
        let taken = self.with(|host: &mut PciHost, _| host.take_ejected());
        taken.unwrap_or_default()
    }

    /// Raises the event for which the guest looks at the slots.
    fn report_slots(&mut self) {
        self.with(|acpi_pm: &mut AcpiPm, context| {
            acpi_pm.raise_general_event(EVENT);
            acpi_pm.forward(context);
        });
    }
}
