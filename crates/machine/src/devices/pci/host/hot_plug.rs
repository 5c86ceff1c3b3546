//! Functions that come and go while the machine runs, and the registers by which ACPI's methods
//! follow that (QEMU, docs/specs/acpi_pci_hotplug.rst).
//!
//! ```text
//!   AE00h  slots that have got a function; a read clears them     AE04h  slots to be vacated
//!   AE08h  written with a bit for each slot: ejects its function  AE0Ch  slots that can be ejected
//!   AE10h  the selected bus, of which there is only bus 0
//! ```
//!
//! A *slot* is a device number of the bus, and bit N of a register is slot N. A function is plugged
//! in at once. To remove it, its bit among the slots to be vacated is set, and the guest is asked by
//! a general-purpose event; the function stays until the guest ejects it, or until a reset. The
//! guest may also eject a function that no caller has asked for.

use super::{PciHost, Slot};
use crate::bus::DeviceContext;
use crate::devices::pci::function::PciFunction;
use crate::devices::pci::{MAX_FUNCTIONS, Place};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// The first port of the registers.
pub const FIRST_PORT: u16 = 0xae00;
/// The number of ports.
pub const PORT_COUNT: u16 = 0x14;
/// The bit of general-purpose event block 0 that reports a change.
pub const EVENT: u8 = 1;

/// Offsets of the registers, which have 4 bytes each.
mod register {
    pub const INSERTED: u16 = 0x00;
    pub const LEAVING: u16 = 0x04;
    pub const EJECT: u16 = 0x08;
    pub const REMOVABLE: u16 = 0x0c;
    pub const BUS: u16 = 0x10;
}

/// The state of hot plug, as far as the guest can change or read it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Registers {
    /// The slots that have got a function since the guest last read this.
    inserted: u32,
    /// The slots whose functions the guest was asked to eject.
    leaving: u32,
    /// The selected bus.
    bus: u32,
}

/// A function that is no longer on the bus, with its slot.
pub type Ejected = (u8, Box<dyn PciFunction>);

/// Everything about functions that come and go.
#[derive(Default)]
pub struct HotPlug {
    /// The slots whose functions come and go. Without any, the registers do not exist.
    slots: u32,
    pub(super) registers: Registers,
    /// The functions that are no longer on the bus and were not taken yet. Each slot of the bus was
    /// occupied before its function got here, and only a caller outside the guest fills a slot.
    ejected: Vec<Ejected>,
}

/// Returns the bit of a slot.
const fn bit(slot: u8) -> u32 {
    1 << (slot % MAX_FUNCTIONS as u8)
}

/// Returns the slots whose bits are set.
fn slots_of(bits: u32) -> impl Iterator<Item = u8> {
    (0..MAX_FUNCTIONS as u8).filter(move |slot| bits & bit(*slot) != 0)
}

impl HotPlug {
    /// Returns the ports of the registers if they exist.
    pub(super) fn ports(&self) -> Option<RangeInclusive<u16>> {
        (self.slots != 0).then_some(FIRST_PORT..=FIRST_PORT + (PORT_COUNT - 1))
    }

    /// Returns the offset of a port in the registers if they exist.
    pub(super) fn offset(&self, port: u16) -> Option<u16> {
        let is_there = self.ports()?.contains(&port);
        is_there.then(|| port - FIRST_PORT)
    }
}

impl PciHost {
    /// Makes the bus one whose functions in these slots (a bit for each) come and go.
    #[must_use]
    pub fn with_hot_plug(mut self, slots: u32) -> Self {
        self.hot_plug.slots = slots;
        self
    }

    /// Puts a function into a slot. The guest is not notified.
    ///
    /// # Errors
    /// One line: functions do not come and go there, or the slot is occupied.
    pub fn insert(&mut self, slot: u8, mut function: Box<dyn PciFunction>) -> Result<(), String> {
        if usize::from(slot) >= MAX_FUNCTIONS || self.hot_plug.slots & bit(slot) == 0 {
            return Err(format!("no function can be plugged into slot {slot}"));
        }
        if self.slots.iter().any(|other| other.place.device == slot) {
            return Err(format!("slot {slot} is occupied"));
        }
        let place = Place::device(slot);
        if let Some(completer) = &self.completer {
            function.connect(completer.for_part(place.part()));
        }
        let index = self.slots.partition_point(|other| other.place < place);
        let asserted = false;
        self.slots.insert(
            index,
            Slot {
                place,
                function,
                asserted,
            },
        );
        self.number_slots();
        Ok(())
    }

    /// Puts a function into a slot while the machine runs. The caller reports [`EVENT`] to the guest.
    ///
    /// # Errors
    /// Those of [`PciHost::insert`].
    pub fn plug(
        &mut self,
        slot: u8,
        function: Box<dyn PciFunction>,
        context: &mut DeviceContext<'_>,
    ) -> Result<(), String> {
        self.insert(slot, function)?;
        self.hot_plug.registers.inserted |= bit(slot);
        self.hot_plug.registers.leaving &= !bit(slot);
        context.claims_changed();
        Ok(())
    }

    /// Notes that the guest shall eject the function in a slot. The caller reports [`EVENT`] to the
    /// guest, also if this was noted before: the guest may have missed it.
    ///
    /// # Errors
    /// One line: there is no function, or it stays as long as the machine.
    pub fn ask_for_ejection(&mut self, slot: u8) -> Result<(), String> {
        match self.ejectable() & bit(slot) {
            0 => Err(format!("slot {slot} has no function that can be removed")),
            asked => {
                self.hot_plug.registers.leaving |= asked;
                Ok(())
            }
        }
    }

    /// Removes the functions that the guest was asked to eject, as a reset does.
    pub fn eject_leaving(&mut self, context: &mut DeviceContext<'_>) {
        self.eject(self.hot_plug.registers.leaving, context);
    }

    /// Takes the functions that are no longer on the bus. Dropping one ends its threads.
    pub fn take_ejected(&mut self) -> Vec<Ejected> {
        std::mem::take(&mut self.hot_plug.ejected)
    }

    /// Returns a bit for each slot with a function that can be ejected.
    fn ejectable(&self) -> u32 {
        let occupied = self.slots.iter().map(|slot| bit(slot.place.device));
        self.hot_plug.slots & occupied.fold(0, |bits, bit| bits | bit)
    }

    /// Takes functions off the bus.
    fn eject(&mut self, slots: u32, context: &mut DeviceContext<'_>) {
        let ejected = slots & self.ejectable();
        if ejected == 0 {
            return;
        }
        for slot in slots_of(ejected) {
            let place = Place::device(slot);
            let Some(index) = self.slots.iter().position(|other| other.place == place) else {
                continue;
            };
            let mut removed = self.slots.remove(index);
            // The function lets go of the guest's memory.
            removed.function.reset(context);
            if removed.asserted {
                self.drive_line(slot, context);
                self.drive_isa(context);
            }
            self.hot_plug.ejected.push((slot, removed.function));
        }
        let registers = &mut self.hot_plug.registers;
        registers.inserted &= !ejected;
        registers.leaving &= !ejected;
        self.number_slots();
        context.claims_changed();
        context.request_stop(tollgate_platform::StopRequest::Attention);
    }

    /// Reads a register. Only whole registers can be read.
    pub(super) fn read_hot_plug(&mut self, offset: u16, size: u8) -> u32 {
        let ejectable = self.ejectable();
        let registers = &mut self.hot_plug.registers;
        match (offset, registers.bus) {
            _ if size != 4 => 0,
            (register::BUS, bus) => bus,
            (_, 1..) => 0,
            (register::INSERTED, 0) => std::mem::take(&mut registers.inserted),
            (register::LEAVING, 0) => registers.leaving,
            (register::REMOVABLE, 0) => ejectable,
            _ => 0,
        }
    }

    /// Writes a register. Only whole registers can be written.
    pub(super) fn write_hot_plug(
        &mut self,
        offset: u16,
        size: u8,
        value: u32,
        context: &mut DeviceContext<'_>,
    ) {
        match (offset, self.hot_plug.registers.bus) {
            _ if size != 4 => {}
            (register::BUS, _) => self.hot_plug.registers.bus = value,
            (register::EJECT, 0) => self.eject(value, context),
            _ => {}
        }
    }
}
