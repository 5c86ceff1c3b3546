//! How interrupt lines reach the processor: to the 8259 pair and to the I/O APIC at
//! once, and from those through the local APIC.
//!
//! ```text
//!   line --+--> 8259 pair --INTR--+--> LINT0 --\
//!          |                      +--> pin 0    local APIC --> processor
//!          +--> I/O APIC ---------- messages --/
//! ```
//!
//! ISA line n is I/O APIC pin n, except that the timer's line 0 is pin 2: pin 0
//! belongs to the 8259's INTR. Lines 16 to 23 lead to the I/O APIC alone. While the local
//! APIC is globally disabled, INTR goes straight to the processor.
//!
//! Messages of devices come in beside the lines and go to the local APIC.

use serde::{Deserialize, Serialize};

use crate::devices::io_apic::{DeliveryMode, InterruptBus, InterruptMessage, IoApic, PIN_COUNT};
use crate::devices::local_apic::{ClockSource, LocalApic};
use crate::devices::pic::Pic;

/// ISA line of the timer.
const TIMER_LINE: u8 = 0;
/// ISA line of the real-time clock.
const CLOCK_LINE: u8 = 8;
/// I/O APIC pin of the timer.
const TIMER_PIN: usize = 2;
/// I/O APIC pin of the 8259's INTR.
const EXTERNAL_PIN: usize = 0;
/// Local interrupt pins.
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
    /// INTR as the APICs last saw it.
    intr: bool,
    /// An NMI that arrived while the local APIC was disabled.
    direct_nmi: bool,
    /// A message asked for an interrupt whose vector the 8259 pair gives.
    external_message: bool,
    /// For each line, a bit for each slot of the bus whose device asserts it.
    drivers: [u64; PIN_COUNT],
    /// The slot whose device alone drives the timer's and the clock's lines, if one does.
    #[serde(default)]
    legacy_driver: Option<u8>,
}

impl Default for Interrupts {
    fn default() -> Self {
        Self::new()
    }
}

impl Interrupts {
    /// The controllers as firmware leaves them: virtual-wire mode.
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

    /// The device in `slot` (0 to 63) of the bus asserts a line, or no longer does. The
    /// line is asserted while any device asserts it.
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

    /// From now on the device in a slot alone drives the lines of timer and clock; `None`: all
    /// that are wired to them do. What the others do meanwhile is remembered.
    pub fn replace_legacy_lines(&mut self, slot: Option<u8>) {
        if std::mem::replace(&mut self.legacy_driver, slot) != slot {
            self.follow_drivers(TIMER_LINE);
            self.follow_drivers(CLOCK_LINE);
        }
    }

    /// Sets a line to what its drivers make of it.
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

    /// Delivers a message of a device. False: no interrupt controller accepted it.
    pub fn deliver(&mut self, message: &InterruptMessage) -> bool {
        if message.mode != DeliveryMode::ExternalInterrupt {
            return self.local_apic.deliver(message);
        }
        let taken = self.local_apic.is_addressed_by(message);
        self.external_message |= taken;
        taken
    }

    /// Writes a register of the local APIC in x2APIC mode. False: #GP.
    pub fn write_x2apic(&mut self, index: u32, value: u64, clock: &impl ClockSource) -> bool {
        let written = self.local_apic.msr_write(index, value, clock);
        if let Some(Some(vector)) = written {
            self.end_of_interrupt(vector);
        }
        written.is_some()
    }

    /// Sets the level of an interrupt line: 0 to 15 are the ISA bus's, 16 to 23 lead to the
    /// I/O APIC alone.
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

    /// Tells the APICs of the 8259's output; call after every access to it.
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

    /// Whether the processor is asked to take an interrupt.
    pub fn pending(&self) -> bool {
        self.external_pending()
            || self.local_apic.is_enabled() && self.local_apic.pending().is_some()
    }

    /// The processor takes an interrupt: its vector. External ones come first.
    pub fn acknowledge(&mut self) -> Option<u8> {
        if self.external_pending() {
            self.external_message = false;
            let vector = self.pic.acknowledge();
            // INTR falls during the acknowledge cycle, even if more is waiting.
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

    /// Takes an NMI, if one waits.
    pub fn take_nmi(&mut self) -> bool {
        let direct = std::mem::take(&mut self.direct_nmi);
        self.local_apic.take_nmi() || direct
    }

    /// The local APIC ended a level-triggered interrupt.
    pub fn end_of_interrupt(&mut self, vector: u8) {
        self.io_apic.end_of_interrupt(vector, &mut self.local_apic);
    }
}
