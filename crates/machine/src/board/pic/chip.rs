//! One 8259A interrupt controller.

use serde::{Deserialize, Serialize};

/// The next byte that the odd port expects (8259A data sheet, "Initialization Sequence").
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Step {
    /// The chip is initialized, and the next byte is OCW1, the mask.
    Ready,
    Icw2,
    Icw3,
    Icw4,
}

// ICW1.
const ICW1: u8 = 1 << 4;
const ICW1_SINGLE: u8 = 1 << 1;
const ICW1_NEEDS_ICW4: u8 = 1 << 0;
// ICW2.
const ICW2_VECTOR_BASE: u8 = 0xF8;
// ICW4.
const ICW4_SPECIAL_FULLY_NESTED: u8 = 1 << 4;
const ICW4_AUTO_EOI: u8 = 1 << 1;
// In OCW2, bits 7-5 are the command and bits 2-0 the level that it refers to.
const OCW2_COMMAND_SHIFT: u8 = 5;
const OCW2_LEVEL: u8 = 7;
// OCW3.
const OCW3: u8 = 1 << 3;
const OCW3_ENABLE_SPECIAL_MASK: u8 = 1 << 6;
const OCW3_SPECIAL_MASK: u8 = 1 << 5;
const OCW3_POLL: u8 = 1 << 2;
const OCW3_READ_REGISTER: u8 = 1 << 1;
const OCW3_READ_ISR: u8 = 1 << 0;
// The bits of the byte that a poll reads.
const POLL_INTERRUPT: u8 = 1 << 7;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Chip {
    /// The levels of the eight inputs.
    lines: u8,
    /// The inputs whose request follows the line independently of ELCR: the cascade.
    cascade: u8,
    /// Edge/level control: a set bit makes the input level-triggered.
    edge_level: u8,
    request: u8,
    in_service: u8,
    mask: u8,
    vector_base: u8,
    lowest_priority: u8,
    step: Step,
    single: bool,
    needs_icw4: bool,
    auto_eoi: bool,
    rotate_on_auto_eoi: bool,
    special_mask: bool,
    special_fully_nested: bool,
    poll: bool,
    read_in_service: bool,
}

impl Chip {
    /// The registers in the form in which QEMU shows them.
    pub(super) fn described(&self) -> String {
        format!(
            "irr={:02x} imr={:02x} isr={:02x} hprio={} irq_base={:02x} rr_sel={} elcr={:02x} fnm={}",
            self.request,
            self.mask,
            self.in_service,
            (self.lowest_priority + 1) & 7,
            self.vector_base,
            u8::from(self.read_in_service),
            self.edge_level,
            u8::from(self.special_fully_nested),
        )
    }

    pub(super) const fn new(cascade: u8) -> Self {
        Self {
            lines: 0,
            cascade,
            edge_level: 0,
            request: 0,
            in_service: 0,
            mask: 0xFF,
            vector_base: 0,
            lowest_priority: 7,
            step: Step::Ready,
            single: false,
            needs_icw4: false,
            auto_eoi: false,
            rotate_on_auto_eoi: false,
            special_mask: false,
            special_fully_nested: false,
            poll: false,
            read_in_service: false,
        }
    }

    const fn following(&self) -> u8 {
        self.edge_level | self.cascade
    }

    pub(super) fn set_line(&mut self, input: u8, level: bool) {
        let bit = 1 << (input & 7);
        let rises = level && self.lines & bit == 0;
        if level {
            self.lines |= bit;
        } else {
            self.lines &= !bit;
        }
        if self.following() & bit != 0 {
            self.request = (self.request & !bit) | (self.lines & bit);
        } else if rises {
            self.request |= bit;
        }
    }

    pub(super) const fn edge_level(&self) -> u8 {
        self.edge_level
    }

    pub(super) fn set_edge_level(&mut self, value: u8) {
        let changed = self.edge_level ^ value;
        self.edge_level = value;
        // A level input requests as long as it is high; an edge input needs a new edge.
        self.request = (self.request & !changed) | (changed & value & self.lines);
    }

    /// Returns the input to be served next, if its priority is above all that are in service.
    pub(super) fn next_request(&self) -> Option<u8> {
        let requests = self.request & !self.mask;
        if requests == 0 {
            return None;
        }
        let blocking = if self.special_mask {
            self.in_service & !self.mask
        } else {
            self.in_service
        };
        for rank in 1..=8 {
            let input = self.lowest_priority.wrapping_add(rank) & 7;
            let bit = 1 << input;
            let passes_itself = self.special_fully_nested && self.cascade & bit != 0;
            if requests & bit != 0 && (blocking & bit == 0 || passes_itself) {
                return Some(input);
            }
            if blocking & bit != 0 {
                return None;
            }
        }
        None
    }

    /// Begins to serve the request of `input`, for the processor or for a poll.
    pub(super) fn begin_service(&mut self, input: u8) {
        let bit = 1 << (input & 7);
        self.request &= !(bit & !self.following());
        if !self.auto_eoi {
            self.in_service |= bit;
        } else if self.rotate_on_auto_eoi {
            self.lowest_priority = input & 7;
        }
    }

    pub(super) const fn vector(&self, input: u8) -> u8 {
        self.vector_base | (input & 7)
    }

    /// Takes a pending poll command. If there was one, the owner must perform the poll, because
    /// acknowledging a cascade changes its slave's request.
    pub(super) fn take_poll(&mut self) -> bool {
        std::mem::take(&mut self.poll)
    }

    /// Returns the byte of a poll, which acknowledges the interrupt that it reports.
    pub(super) fn poll_read(&mut self) -> u8 {
        match self.next_request() {
            Some(input) => {
                self.begin_service(input);
                POLL_INTERRUPT | input
            }
            None => 0,
        }
    }

    pub(super) const fn read_status(&self) -> u8 {
        if self.read_in_service {
            self.in_service
        } else {
            self.request
        }
    }

    pub(super) const fn read_mask(&self) -> u8 {
        self.mask
    }

    /// Writes the even port: ICW1, OCW2 or OCW3.
    pub(super) fn write_command(&mut self, value: u8) {
        if value & ICW1 != 0 {
            self.initialize(value);
        } else if value & OCW3 != 0 {
            self.write_ocw3(value);
        } else {
            self.write_ocw2(value);
        }
    }

    fn initialize(&mut self, icw1: u8) {
        // Edge inputs need a new rising edge. ELCR has replaced ICW1's level bit.
        self.request &= self.following();
        self.in_service = 0;
        self.mask = 0;
        self.lowest_priority = 7;
        self.special_mask = false;
        self.read_in_service = false;
        self.poll = false;
        self.rotate_on_auto_eoi = false;
        self.auto_eoi = false;
        self.special_fully_nested = false;
        self.single = icw1 & ICW1_SINGLE != 0;
        self.needs_icw4 = icw1 & ICW1_NEEDS_ICW4 != 0;
        self.step = Step::Icw2;
    }

    /// Writes the odd port: ICW2 to ICW4 during initialization, and OCW1 otherwise.
    pub(super) fn write_data(&mut self, value: u8) {
        let after_icw3 = if self.needs_icw4 {
            Step::Icw4
        } else {
            Step::Ready
        };
        self.step = match self.step {
            Step::Ready => {
                self.mask = value;
                Step::Ready
            }
            Step::Icw2 => {
                self.vector_base = value & ICW2_VECTOR_BASE;
                if self.single { after_icw3 } else { Step::Icw3 }
            }
            // The board, and not ICW3, determines which input is the cascade.
            Step::Icw3 => after_icw3,
            Step::Icw4 => {
                self.auto_eoi = value & ICW4_AUTO_EOI != 0;
                self.special_fully_nested = value & ICW4_SPECIAL_FULLY_NESTED != 0;
                Step::Ready
            }
        };
    }

    fn write_ocw3(&mut self, value: u8) {
        if value & OCW3_ENABLE_SPECIAL_MASK != 0 {
            self.special_mask = value & OCW3_SPECIAL_MASK != 0;
        }
        if value & OCW3_POLL != 0 {
            self.poll = true;
        } else if value & OCW3_READ_REGISTER != 0 {
            self.read_in_service = value & OCW3_READ_ISR != 0;
        }
    }

    fn write_ocw2(&mut self, value: u8) {
        let level = value & OCW2_LEVEL;
        match value >> OCW2_COMMAND_SHIFT {
            0b000 => self.rotate_on_auto_eoi = false,
            0b100 => self.rotate_on_auto_eoi = true,
            0b001 => {
                self.end_highest();
            }
            0b101 => {
                if let Some(ended) = self.end_highest() {
                    self.lowest_priority = ended;
                }
            }
            0b011 => self.in_service &= !(1 << level),
            0b111 => {
                self.in_service &= !(1 << level);
                self.lowest_priority = level;
            }
            0b110 => self.lowest_priority = level,
            _ => {} // 010: no operation
        }
    }

    /// Executes a non-specific EOI: the service of the highest priority ends. In special mask mode
    /// masked inputs are skipped.
    fn end_highest(&mut self) -> Option<u8> {
        let candidates = if self.special_mask {
            self.in_service & !self.mask
        } else {
            self.in_service
        };
        let ended = (1..=8)
            .map(|rank| self.lowest_priority.wrapping_add(rank) & 7)
            .find(|input| candidates & (1 << input) != 0)?;
        self.in_service &= !(1 << ended);
        Some(ended)
    }
}
