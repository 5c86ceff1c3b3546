//! How interrupt lines reach the processor: through the 8259 pair and through the I/O APIC at the
//! same time, and from those through the local APIC.
//!
//! ```text
//!   line --+--> 8259 pair --INTR--+--> LINT0 --\
//!          |                      +--> pin 0    local APIC --> processor
//!          +--> I/O APIC ---------- messages --/
//! ```
//!
//! ISA line n is I/O APIC pin n, except that the timer's line 0 is pin 2, because pin 0 is
//! connected to the 8259's INTR. Lines 16 to 23 lead only to the I/O APIC. While the local APIC is
//! globally disabled, INTR goes directly to the processor.
//!
//! Messages of devices use no line and go to the local APIC.

use serde::{Deserialize, Serialize};

use crate::board::io_apic::{IoApic, PIN_COUNT};
use crate::board::local_apic::message::{DeliveryMode, InterruptBus, InterruptMessage};
use crate::board::local_apic::{ClockSource, LocalApic};
use crate::board::pic::Pic;

/// The ISA line of the timer.
const TIMER_LINE: u8 = 0;
/// The ISA line of the real-time clock.
const CLOCK_LINE: u8 = 8;
/// The I/O APIC pin of the timer.
const TIMER_PIN: usize = 2;
/// The I/O APIC pin of the 8259's INTR.
const EXTERNAL_PIN: usize = 0;
/// The local interrupt pins.
const LINT0: usize = 0;
const LINT1: usize = 1;

/// The interrupt controllers and the wires between them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Interrupts {
    /// The 8259 pair.
    pub pic: Pic,
    /// The I/O APIC.
    pub io_apic: IoApic,
    /// The local APIC.
    pub local_apic: LocalApic,
    /// The level of INTR that the APICs have last seen.
    intr: bool,
    /// Whether an NMI arrived while the local APIC was disabled.
    direct_nmi: bool,
    /// Whether a message requested an interrupt whose vector comes from the 8259 pair.
    external_message: bool,
    /// For each line, one bit for each slot of the bus, set while the slot's device asserts the
    /// line.
    drivers: [u64; PIN_COUNT],
    /// The slot of the device that alone drives the lines of timer and clock, if there is one.
    #[serde(default)]
    legacy_driver: Option<u8>,
}

impl Default for Interrupts {
    fn default() -> Self {
        Self::new()
    }
}

impl Interrupts {
    /// Makes the controllers in the state that firmware leaves them in: virtual-wire mode.
    pub fn new() -> Self {
        let mut local_apic = LocalApic::new();
        local_apic.enter_virtual_wire_mode();
        Self {
            pic: Pic::new(),
            io_apic: IoApic::new(),
            local_apic,
            intr: false,
            direct_nmi: false,
            external_message: false,
            drivers: [0; PIN_COUNT],
            legacy_driver: None,
        }
    }

    /// Asserts or deasserts a line for the device in `slot` (0 to 63) of the bus. The line is
    /// asserted while any device asserts it.
    pub fn drive(&mut self, slot: u8, line: u8, asserted: bool) {
        let Some(drivers) = self.drivers.get_mut(usize::from(line)) else {
            return;
        };
        let bit = 1 << (slot % 64);
        if asserted {
            *drivers |= bit;
        } else {
            *drivers &= !bit;
        }
        self.follow_drivers(line);
    }

    /// Lets only the device in a slot drive the lines of timer and clock from now on, or with
    /// `None` all devices that are wired to them. What the others drive in the meantime is
    /// remembered.
    pub fn replace_legacy_lines(&mut self, slot: Option<u8>) {
        if std::mem::replace(&mut self.legacy_driver, slot) != slot {
            self.follow_drivers(TIMER_LINE);
            self.follow_drivers(CLOCK_LINE);
        }
    }

    /// Sets a line to the level that its drivers result in.
    fn follow_drivers(&mut self, line: u8) {
        let drivers = self.drivers[usize::from(line)];
        let level = match self.legacy_driver {
            Some(slot) if matches!(line, TIMER_LINE | CLOCK_LINE) => {
                drivers >> (slot % 64) & 1 != 0
            }
            _ => drivers != 0,
        };
        self.set_line(line, level);
    }

    /// Delivers a message of a device. Returns whether an interrupt controller accepted it.
    pub fn deliver(&mut self, message: &InterruptMessage) -> bool {
        if message.mode != DeliveryMode::ExternalInterrupt {
            return self.local_apic.deliver(message);
        }
        let taken = self.local_apic.is_addressed_by(message);
        self.external_message |= taken;
        taken
    }

    /// Writes a register of the local APIC in x2APIC mode. Returns false if the write causes #GP.
    pub fn write_x2apic(&mut self, index: u32, value: u64, clock: &impl ClockSource) -> bool {
        let written = self.local_apic.msr_write(index, value, clock);
        if let Some(Some(vector)) = written {
            self.end_of_interrupt(vector);
        }
        written.is_some()
    }

    /// Sets the level of an interrupt line: 0 to 15 are those of the ISA bus, 16 to 23 lead only to
    /// the I/O APIC.
    pub fn set_line(&mut self, line: u8, level: bool) {
        self.pic.set_line(line, level);
        let pin = if line == TIMER_LINE {
            TIMER_PIN
        } else {
            usize::from(line)
        };
        self.io_apic.set_line(pin, level, &mut self.local_apic);
        self.update_intr();
    }

    /// Forwards the 8259's output to the APICs. Must be called after every access to the 8259.
    pub fn update_intr(&mut self) {
        let intr = self.pic.pending();
        if intr != self.intr {
            self.intr = intr;
            self.local_apic.set_lint(LINT0, intr);
            self.io_apic
                .set_line(EXTERNAL_PIN, intr, &mut self.local_apic);
        }
    }

    /// Whether the 8259 has an interrupt that would reach the processor.
    fn external_pending(&self) -> bool {
        self.external_message
            || self.intr
                && (!self.local_apic.is_enabled()
                    || self.local_apic.passes_external_interrupts()
                    || self.io_apic.passes_external_interrupts())
    }

    /// Whether an interrupt is pending for the processor.
    pub fn pending(&self) -> bool {
        self.external_pending()
            || self.local_apic.is_enabled() && self.local_apic.pending().is_some()
    }

    /// Acknowledges an interrupt on behalf of the processor and returns its vector. External
    /// interrupts come first.
    pub fn acknowledge(&mut self) -> Option<u8> {
        if self.external_pending() {
            self.external_message = false;
            let vector = self.pic.acknowledge();
            // INTR falls during the acknowledge cycle, even if more interrupts are waiting.
            if std::mem::take(&mut self.intr) {
                self.local_apic.set_lint(LINT0, false);
                self.io_apic
                    .set_line(EXTERNAL_PIN, false, &mut self.local_apic);
            }
            self.update_intr();
            return Some(vector);
        }
        if self.local_apic.is_enabled() {
            self.local_apic.acknowledge()
        } else {
            None
        }
    }

    /// Pulses the NMI line.
    pub fn raise_nmi(&mut self) {
        if self.local_apic.is_enabled() {
            self.local_apic.set_lint(LINT1, true);
            self.local_apic.set_lint(LINT1, false);
        } else {
            self.direct_nmi = true;
        }
    }

    /// Takes a pending NMI. Returns whether there was one.
    pub fn take_nmi(&mut self) -> bool {
        let direct = std::mem::take(&mut self.direct_nmi);
        self.local_apic.take_nmi() || direct
    }

    /// Ends a level-triggered interrupt for the local APIC.
    pub fn end_of_interrupt(&mut self, vector: u8) {
        self.io_apic.end_of_interrupt(vector, &mut self.local_apic);
    }
}
