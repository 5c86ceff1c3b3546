//! The I/O APIC: 24 pins, each routed by an entry of the redirection table (82093AA data sheet,
//! with the EOI register of version 20h).
//!
//! The line of a pin carries *assertion*: true means that the device requests service. The polarity
//! bit of an entry is stored but does not invert the line, because the board's wiring matches what
//! the ACPI tables tell the guest to program.

use super::local_apic::message::{DeliveryMode, InterruptBus, InterruptMessage};
use serde::{Deserialize, Serialize};

/// Physical address of the registers.
pub const BASE_ADDRESS: u64 = 0xfec0_0000;
/// The size of the registers' address range in bytes.
pub const REGISTER_BYTES: u64 = 0x1000;
/// The number of interrupt inputs.
pub const PIN_COUNT: usize = 24;
/// The I/O APIC's ID after reset and in the ACPI tables.
pub const IO_APIC_ID: u8 = 1;

/// The index of the last entry, and version 20h.
const VERSION: u32 = ((PIN_COUNT as u32 - 1) << 16) | 0x20;

/// Memory-mapped registers.
mod offset {
    pub const SELECT: u16 = 0x00;
    pub const WINDOW: u16 = 0x10;
    pub const EOI: u16 = 0x40;
}

/// Registers that are accessed through the window.
mod index {
    pub const ID: u8 = 0x00;
    pub const VERSION: u8 = 0x01;
    pub const ARBITRATION: u8 = 0x02;
    pub const REDIRECTION: u8 = 0x10;
    pub const REDIRECTION_LAST: u8 = 0x10 + 2 * super::PIN_COUNT as u8 - 1;
}

/// Bits of a redirection entry.
mod entry {
    pub const LOGICAL: u64 = 1 << 11;
    pub const REMOTE_IRR: u64 = 1 << 14;
    pub const LEVEL: u64 = 1 << 15;
    pub const MASKED: u64 = 1 << 16;
    /// Delivery status and remote IRR are set by the hardware.
    pub const WRITABLE: u64 = 0xff00_0000_0001_afff;
}

/// The I/O APIC.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IoApic {
    select: u8,
    id: u8,
    entries: [u64; PIN_COUNT],
    /// A bit for each asserted pin.
    lines: u32,
}

impl Default for IoApic {
    fn default() -> Self {
        Self::new()
    }
}

impl IoApic {
    /// Makes an I/O APIC in its state after reset, with every pin masked.
    pub fn new() -> Self {
        Self {
            select: 0,
            id: IO_APIC_ID,
            entries: [entry::MASKED; PIN_COUNT],
            lines: 0,
        }
    }

    /// Reads `data.len()` bytes. Only an aligned read of a register returns its value.
    pub fn read(&self, offset: u16, data: &mut [u8]) {
        let value = match offset {
            offset::SELECT => u32::from(self.select),
            offset::WINDOW => self.register(),
            _ => 0,
        };
        data.fill(0);
        for (byte, source) in data.iter_mut().zip(value.to_le_bytes()) {
            *byte = source;
        }
    }

    /// Writes a register. The window accepts only 4-byte writes.
    pub fn write(&mut self, offset: u16, data: &[u8], bus: &mut dyn InterruptBus) {
        let Some(&low) = data.first() else {
            return;
        };
        match (offset, <[u8; 4]>::try_from(data)) {
            (offset::SELECT, _) => self.select = low,
            (offset::WINDOW, Ok(bytes)) => self.set_register(u32::from_le_bytes(bytes), bus),
            (offset::EOI, _) => self.end_of_interrupt(low, bus),
            _ => {}
        }
    }

    /// Returns the pin of the selected register, and whether it is the upper half of the entry.
    fn selected_entry(&self) -> Option<(usize, bool)> {
        (index::REDIRECTION..=index::REDIRECTION_LAST)
            .contains(&self.select)
            .then(|| {
                let position = self.select - index::REDIRECTION;
                (usize::from(position / 2), position % 2 == 1)
            })
    }

    fn register(&self) -> u32 {
        match self.select {
            // A write of the ID also loads the arbitration ID (82093AA 3.2.3), and nothing else
            // changes that, because there is no serial bus to arbitrate for.
            index::ID | index::ARBITRATION => u32::from(self.id) << 24,
            index::VERSION => VERSION,
            _ => match self.selected_entry() {
                Some((pin, true)) => (self.entries[pin] >> 32) as u32,
                Some((pin, false)) => self.entries[pin] as u32,
                None => 0,
            },
        }
    }

    fn set_register(&mut self, value: u32, bus: &mut dyn InterruptBus) {
        if self.select == index::ID {
            self.id = (value >> 24 & 15) as u8;
        } else if let Some((pin, high)) = self.selected_entry() {
            let (keep, shift) = if high {
                (0xffff_ffff, 32)
            } else {
                (!0xffff_ffff, 0)
            };
            let old = self.entries[pin];
            let new = old & (keep | !entry::WRITABLE) | u64::from(value) << shift & entry::WRITABLE;
            // Changing a pin to edge-triggered clears an interrupt in service. It is the only way
            // to end a stuck level-triggered interrupt on versions without an EOI register.
            self.entries[pin] = if new & entry::LEVEL == 0 {
                new & !entry::REMOTE_IRR
            } else {
                new
            };
            self.service_level(pin, bus);
        }
    }

    /// Drives a pin. An edge on a masked pin is lost, as the data sheet says.
    pub fn set_line(&mut self, pin: usize, asserted: bool, bus: &mut dyn InterruptBus) {
        if pin >= PIN_COUNT {
            return;
        }
        let bit = 1 << pin;
        let was_asserted = self.lines & bit != 0;
        if asserted == was_asserted {
            return;
        }
        self.lines ^= bit;
        if !asserted {
            return;
        }
        let entry = self.entries[pin];
        if entry & entry::LEVEL != 0 {
            self.service_level(pin, bus);
        } else if entry & entry::MASKED == 0 {
            bus.deliver(&Self::message(entry));
        }
    }

    /// Whether a pin is asserted.
    #[cfg(test)]
    pub fn is_asserted(&self, pin: usize) -> bool {
        self.lines >> pin & 1 != 0
    }

    /// Handles the end of a vector at a local APIC: asserted level-triggered interrupts are sent
    /// again.
    pub fn end_of_interrupt(&mut self, vector: u8, bus: &mut dyn InterruptBus) {
        for pin in 0..PIN_COUNT {
            let entry = &mut self.entries[pin];
            if *entry as u8 == vector && *entry & entry::LEVEL != 0 {
                *entry &= !entry::REMOTE_IRR;
                self.service_level(pin, bus);
            }
        }
    }

    /// Whether an asserted pin passes the 8259's interrupts to the processor.
    pub fn passes_external_interrupts(&self) -> bool {
        self.entries.iter().enumerate().any(|(pin, &entry)| {
            self.lines >> pin & 1 != 0
                && entry & entry::MASKED == 0
                && Self::message(entry).mode == DeliveryMode::ExternalInterrupt
        })
    }

    fn service_level(&mut self, pin: usize, bus: &mut dyn InterruptBus) {
        let entry = self.entries[pin];
        if self.lines >> pin & 1 == 0
            || entry & (entry::LEVEL | entry::MASKED | entry::REMOTE_IRR) != entry::LEVEL
        {
            return;
        }
        let message = Self::message(entry);
        if bus.deliver(&message) && message.level {
            self.entries[pin] |= entry::REMOTE_IRR;
        }
    }

    fn message(entry: u64) -> InterruptMessage {
        let mode = DeliveryMode::from_bits((entry >> 8) as u32);
        InterruptMessage {
            vector: entry as u8,
            mode,
            destination: (entry >> 56) as u8,
            logical: entry & entry::LOGICAL != 0,
            // Only vectored interrupts have an end to report.
            level: entry & entry::LEVEL != 0
                && matches!(mode, DeliveryMode::Fixed | DeliveryMode::LowestPriority),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Bus {
        messages: Vec<InterruptMessage>,
        deaf: bool,
    }

    impl InterruptBus for Bus {
        fn deliver(&mut self, message: &InterruptMessage) -> bool {
            self.messages.push(*message);
            !self.deaf
        }
    }

    fn set(apic: &mut IoApic, register: u8, value: u32, bus: &mut Bus) {
        apic.write(offset::SELECT, &u32::from(register).to_le_bytes(), bus);
        apic.write(offset::WINDOW, &value.to_le_bytes(), bus);
    }

    fn get(apic: &mut IoApic, register: u8) -> u32 {
        apic.write(offset::SELECT, &[register], &mut Bus::default());
        let mut bytes = [0; 4];
        apic.read(offset::WINDOW, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    #[test]
    fn identification_and_reset_values() {
        let mut apic = IoApic::new();
        assert_eq!(get(&mut apic, 0), 1 << 24);
        assert_eq!(get(&mut apic, 1), 0x0017_0020);
        assert_eq!(get(&mut apic, 0x10), 0x1_0000);
        assert_eq!(get(&mut apic, 0x3f), 0);
        assert_eq!(get(&mut apic, 0x40), 0);
        assert_eq!(get(&mut apic, 0xff), 0);
    }

    #[test]
    fn the_arbitration_id_follows_the_id_and_cannot_be_written() {
        let (mut apic, mut bus) = (IoApic::new(), Bus::default());
        assert_eq!(get(&mut apic, 2), 1 << 24);
        set(&mut apic, 0, u32::MAX, &mut bus);
        assert_eq!(get(&mut apic, 0), 0x0f00_0000);
        assert_eq!(get(&mut apic, 2), 0x0f00_0000);
        set(&mut apic, 2, 0x0300_0000, &mut bus);
        assert_eq!(get(&mut apic, 2), 0x0f00_0000);
    }

    #[test]
    fn an_edge_is_sent_once_and_lost_while_masked() {
        let (mut apic, mut bus) = (IoApic::new(), Bus::default());
        apic.set_line(4, true, &mut bus);
        apic.set_line(4, false, &mut bus);
        set(&mut apic, 0x18, 0x34, &mut bus);
        assert!(bus.messages.is_empty());
        apic.set_line(4, true, &mut bus);
        apic.set_line(4, true, &mut bus);
        assert_eq!(bus.messages.len(), 1);
        assert_eq!(bus.messages[0].vector, 0x34);
        assert!(!bus.messages[0].level);
    }

    #[test]
    fn a_level_repeats_after_eoi_while_asserted() {
        let (mut apic, mut bus) = (IoApic::new(), Bus::default());
        set(&mut apic, 0x22, 0x8039, &mut bus);
        apic.set_line(9, true, &mut bus);
        assert_eq!(bus.messages.len(), 1);
        assert_eq!(get(&mut apic, 0x22), 0xc039);
        apic.end_of_interrupt(0x38, &mut bus);
        assert_eq!(bus.messages.len(), 1);
        apic.end_of_interrupt(0x39, &mut bus);
        assert_eq!(bus.messages.len(), 2);
        apic.set_line(9, false, &mut bus);
        apic.write(offset::EOI, &0x39u32.to_le_bytes(), &mut bus);
        assert_eq!(bus.messages.len(), 2);
        assert_eq!(get(&mut apic, 0x22), 0x8039);
    }

    #[test]
    fn unmasking_an_asserted_level_sends_it() {
        let (mut apic, mut bus) = (IoApic::new(), Bus::default());
        set(&mut apic, 0x22, 0x1_8039, &mut bus);
        apic.set_line(9, true, &mut bus);
        assert!(bus.messages.is_empty());
        set(&mut apic, 0x22, 0x8039, &mut bus);
        assert_eq!(bus.messages.len(), 1);
    }

    #[test]
    fn remote_irr_is_set_only_by_an_accepted_message_and_cleared_by_edge_mode() {
        let (mut apic, mut bus) = (IoApic::new(), Bus::default());
        bus.deaf = true;
        set(&mut apic, 0x22, 0x8039, &mut bus);
        apic.set_line(9, true, &mut bus);
        assert_eq!(get(&mut apic, 0x22), 0x8039);
        bus.deaf = false;
        set(&mut apic, 0x22, 0x8039, &mut bus);
        assert_eq!(get(&mut apic, 0x22), 0xc039);
        set(&mut apic, 0x22, 0x1_0039, &mut bus);
        set(&mut apic, 0x22, 0x1_8039, &mut bus);
        assert_eq!(get(&mut apic, 0x22), 0x1_8039);
    }

    #[test]
    fn hardware_bits_cannot_be_written() {
        let (mut apic, mut bus) = (IoApic::new(), Bus::default());
        set(&mut apic, 0x11, u32::MAX, &mut bus);
        set(&mut apic, 0x10, u32::MAX, &mut bus);
        assert_eq!(get(&mut apic, 0x10), 0x1_afff);
        assert_eq!(get(&mut apic, 0x11), 0xff00_0000);
        set(&mut apic, 1, u32::MAX, &mut bus);
        assert_eq!(get(&mut apic, 1), 0x0017_0020);
    }

    #[test]
    fn nmi_and_external_modes_have_no_end() {
        let (mut apic, mut bus) = (IoApic::new(), Bus::default());
        set(&mut apic, 0x22, 0x8400, &mut bus);
        apic.set_line(9, true, &mut bus);
        assert_eq!(bus.messages[0].mode, DeliveryMode::Nmi);
        assert!(!bus.messages[0].level);
        set(&mut apic, 0x10, 0x0700, &mut bus);
        assert!(!apic.passes_external_interrupts());
        apic.set_line(0, true, &mut bus);
        assert!(apic.passes_external_interrupts());
    }

    #[test]
    fn odd_accesses_are_harmless() {
        let (mut apic, mut bus) = (IoApic::new(), Bus::default());
        let mut bytes = [0xff; 64];
        for offset in 0..0x1000 {
            apic.write(offset, &bytes[..usize::from(offset) % 64], &mut bus);
            apic.write(offset, &[0xff; 4], &mut bus);
            apic.read(offset, &mut bytes);
        }
        apic.set_line(usize::MAX, true, &mut bus);
        // It still is what it was, and sends what it is programmed to send.
        assert_eq!(get(&mut apic, 1), 0x0017_0020);
        set(&mut apic, 0x10 + 2 * 3, 0x31, &mut bus);
        set(&mut apic, 0x11 + 2 * 3, 0, &mut bus);
        bus.messages.clear();
        apic.set_line(3, false, &mut bus);
        apic.set_line(3, true, &mut bus);
        let [message] = bus.messages[..] else {
            panic!("{:?}", bus.messages)
        };
        assert_eq!((message.vector, message.destination), (0x31, 0));
    }
}
