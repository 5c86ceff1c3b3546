//! The local APIC in xAPIC mode and in x2APIC mode (SDM volume 3, chapter 11).
//!
//! It accepts interrupt messages from the I/O APIC and from itself, keeps them by priority, and has
//! the timer that Linux prefers. Interrupts to other processors are dropped, because the machine
//! has only one. NMI and INIT messages reach the processor whether or not software has enabled the
//! APIC (SDM volume 3, 11.4.7.2); SMIs are ignored. The device gets the time as a [`Clock`] and
//! returns a deadline, so it needs no thread.
//!
//! Not offered are the suppression of EOI broadcasts and corrected-machine-check interrupts.

pub mod message;
mod timer;
mod x2apic;

pub use timer::{Clock, ClockSource};

use message::{DeliveryMode, InterruptBus, InterruptMessage};
use serde::{Deserialize, Serialize};
use timer::{Timer, TimerMode};
use tollgate_platform::GuestTime;
use tollgate_x86::local_apic_msrs::{
    APIC_BASE_BOOTSTRAP, APIC_BASE_ENABLE, APIC_BASE_X2APIC, APIC_DEFAULT_ADDRESS,
};
use tollgate_x86::paging::PHYSICAL_ADDRESS_BITS;

/// The bits of IA32_APIC_BASE that hold the page's address: all address bits that CPUID offers (SDM
/// volume 3, 11.4.4).
const BASE_ADDRESS_BITS: u64 = ((1 << PHYSICAL_ADDRESS_BITS) - 1) & !0xfff;
/// The size of the register page in bytes.
pub const REGISTER_BYTES: u64 = 0x1000;

/// Version 14h with six LVT entries and without EOI-broadcast suppression
/// (SDM volume 3, 11.4.8).
const VERSION: u32 = 0x0005_0014;
/// The processor's APIC ID.
const APIC_ID: u8 = 0;

/// The destination that addresses all APICs.
const BROADCAST: u8 = 0xff;
/// A destination that addresses no APIC of this machine.
const NOBODY: u8 = 0xfe;

/// Register offsets (SDM volume 3, table 11-1).
mod register {
    pub const ID: u16 = 0x20;
    pub const VERSION: u16 = 0x30;
    pub const TASK_PRIORITY: u16 = 0x80;
    pub const ARBITRATION_PRIORITY: u16 = 0x90;
    pub const PROCESSOR_PRIORITY: u16 = 0xa0;
    pub const END_OF_INTERRUPT: u16 = 0xb0;
    pub const REMOTE_READ: u16 = 0xc0;
    pub const LOGICAL_DESTINATION: u16 = 0xd0;
    pub const DESTINATION_FORMAT: u16 = 0xe0;
    pub const SPURIOUS_VECTOR: u16 = 0xf0;
    pub const IN_SERVICE: u16 = 0x100;
    pub const TRIGGER_MODE: u16 = 0x180;
    pub const REQUEST: u16 = 0x200;
    pub const ERROR_STATUS: u16 = 0x280;
    pub const COMMAND_LOW: u16 = 0x300;
    pub const COMMAND_HIGH: u16 = 0x310;
    pub const LVT_TIMER: u16 = 0x320;
    pub const LVT_ERROR: u16 = 0x370;
    pub const INITIAL_COUNT: u16 = 0x380;
    pub const CURRENT_COUNT: u16 = 0x390;
    pub const DIVIDE: u16 = 0x3e0;
    /// This register exists only in x2APIC mode.
    pub const SELF_INTERRUPT: u16 = 0x3f0;
}

/// Entries of the local vector table, in register order from 320h. Thermal and
/// performance interrupts (1 and 2) have no source.
mod local_vector {
    pub const TIMER: usize = 0;
    pub const LINT0: usize = 3;
    pub const LINT1: usize = 4;
    pub const ERROR: usize = 5;
}

/// Bits of an LVT entry (SDM volume 3, figure 11-8).
mod lvt {
    pub const VECTOR: u32 = 0xff;
    pub const MODE: u32 = 7 << 8;
    pub const MODE_NMI: u32 = 4 << 8;
    pub const MODE_EXTINT: u32 = 7 << 8;
    pub const POLARITY: u32 = 1 << 13;
    pub const LEVEL: u32 = 1 << 15;
    /// Delivery status and remote IRR, which are read-only.
    pub const STATUS: u32 = 1 << 12 | 1 << 14;
    pub const MASKED: u32 = 1 << 16;
    pub const TIMER_MODE: u32 = 3 << 17;
    /// The bits that software may set, by entry.
    pub const WRITABLE: [u32; 6] = [
        VECTOR | MASKED | TIMER_MODE,
        VECTOR | MODE | MASKED,
        VECTOR | MODE | MASKED,
        VECTOR | MODE | POLARITY | LEVEL | MASKED,
        VECTOR | MODE | POLARITY | LEVEL | MASKED,
        VECTOR | MASKED,
    ];
}

/// Spurious-vector register: software enable.
const SOFTWARE_ENABLE: u32 = 1 << 8;
/// Spurious-vector register: vector, software enable, focus checking.
const SPURIOUS_WRITABLE: u32 = 0x3ff;

/// Bits of the interrupt command register's low half (SDM volume 3, figure 11-12).
mod command {
    /// If clear, the interrupt is deasserted.
    pub const LEVEL: u32 = 1 << 14;
    /// If set, the interrupt is level-triggered.
    pub const TRIGGER: u32 = 1 << 15;
}

/// Error status bits (SDM volume 3, 11.5.3).
mod error {
    pub const SEND_ILLEGAL_VECTOR: u32 = 1 << 5;
    pub const RECEIVE_ILLEGAL_VECTOR: u32 = 1 << 6;
    pub const ILLEGAL_REGISTER: u32 = 1 << 7;
}

/// The lowest vector that can be delivered.
const FIRST_LEGAL_VECTOR: u8 = 16;

/// A 256-bit register, one bit for each vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct VectorSet([u32; 8]);

impl VectorSet {
    fn set(&mut self, vector: u8) {
        self.0[usize::from(vector / 32)] |= 1 << (vector % 32);
    }

    fn clear(&mut self, vector: u8) {
        self.0[usize::from(vector / 32)] &= !(1 << (vector % 32));
    }

    fn contains(&self, vector: u8) -> bool {
        self.0[usize::from(vector / 32)] >> (vector % 32) & 1 != 0
    }

    fn highest(&self) -> Option<u8> {
        (0..8u8).rev().find_map(|word| {
            let bits = self.0[usize::from(word)];
            (bits != 0).then(|| word * 32 + (31 - bits.leading_zeros() as u8))
        })
    }
}

/// The local APIC of the only processor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LocalApic {
    base: u64,
    task_priority: u8,
    logical_destination: u32,
    destination_format: u32,
    spurious: u32,
    in_service: VectorSet,
    trigger_mode: VectorSet,
    request: VectorSet,
    error_visible: u32,
    error_pending: u32,
    command: u64,
    local_vectors: [u32; 6],
    timer: Timer,
    lint_level: [bool; 2],
    nmi_pending: bool,
    /// Whether an INIT of the processor was requested.
    #[serde(default)]
    init_pending: bool,
}

impl Default for LocalApic {
    fn default() -> Self {
        Self::new()
    }
}

impl LocalApic {
    /// The registers as lines of text.
    pub fn described(&self) -> String {
        let names = ["T", "THERM", "PERF", "T0", "T1", "ERR"];
        let mut text = String::from("dumping local APIC state for CPU 0\n\n");
        for (name, entry) in names.iter().zip(self.local_vectors) {
            let masked = if entry & lvt::MASKED != 0 {
                " masked"
            } else {
                ""
            };
            text += &format!("LV{name:<6} 0x{entry:08x}{masked} (vec {})\n", entry & 0xff);
        }
        let enabled = if self.spurious & 0x100 != 0 {
            "on"
        } else {
            "off"
        };
        text += &format!("SPIV     0x{:08x} APIC {enabled}\n", self.spurious);
        text += &format!("TPR      0x{:02x}\n", self.task_priority);
        for (name, set) in [("ISR", &self.in_service), ("IRR", &self.request)] {
            let vectors: Vec<String> = (0..=u8::MAX)
                .filter(|vector| set.contains(*vector))
                .map(|vector| vector.to_string())
                .collect();
            let vectors = match vectors.is_empty() {
                true => "(none)".to_owned(),
                false => vectors.join(" "),
            };
            text += &format!("{name}      {vectors}\n");
        }
        text
    }

    /// Makes an APIC in its state after power-up, globally enabled (SDM volume 3, 11.4.7.1).
    pub fn new() -> Self {
        Self {
            base: APIC_DEFAULT_ADDRESS | APIC_BASE_BOOTSTRAP | APIC_BASE_ENABLE,
            task_priority: 0,
            logical_destination: 0,
            destination_format: u32::MAX,
            spurious: 0xff,
            in_service: VectorSet::default(),
            trigger_mode: VectorSet::default(),
            request: VectorSet::default(),
            error_visible: 0,
            error_pending: 0,
            command: 0,
            local_vectors: [lvt::MASKED; 6],
            timer: Timer::default(),
            lint_level: [false; 2],
            nmi_pending: false,
            init_pending: false,
        }
    }

    /// Sets up virtual-wire mode as firmware leaves it: the APIC is enabled, LINT0 passes the
    /// 8259's interrupts, and LINT1 is the NMI (MultiProcessor Specification, 3.6.2.2).
    pub fn enter_virtual_wire_mode(&mut self) {
        self.spurious |= SOFTWARE_ENABLE;
        self.local_vectors[local_vector::LINT0] = lvt::MODE_EXTINT;
        self.local_vectors[local_vector::LINT1] = lvt::MODE_NMI;
    }

    /// Handles INIT of the processor: registers get their values after power-up, except that
    /// IA32_APIC_BASE and the pins are unchanged (SDM volume 3, 11.4.7.3).
    pub fn init(&mut self) {
        *self = Self {
            base: self.base,
            lint_level: self.lint_level,
            ..Self::new()
        };
    }

    /// Whether IA32_APIC_BASE enables the APIC. If not, its registers do not exist and the 8259 is
    /// connected directly to the processor.
    pub fn is_enabled(&self) -> bool {
        self.base & APIC_BASE_ENABLE != 0
    }

    /// Whether the registers are MSRs and not a page (x2APIC mode; SDM volume 3, 11.12.1).
    pub fn is_x2apic(&self) -> bool {
        self.base & APIC_BASE_X2APIC != 0
    }

    /// Returns the physical address of the register page, which exists in xAPIC mode.
    pub fn page(&self) -> Option<u64> {
        (self.is_enabled() && !self.is_x2apic()).then_some(self.base_address())
    }

    /// Returns IA32_APIC_BASE.
    pub fn base_msr(&self) -> u64 {
        self.base
    }

    /// Returns the address of the register page in xAPIC mode.
    fn base_address(&self) -> u64 {
        self.base & BASE_ADDRESS_BITS
    }

    /// Writes IA32_APIC_BASE. Returns false if the value has reserved bits or requests a change of
    /// mode that is not allowed. Disabling the APIC resets every register, but the task priority
    /// can still be written afterwards.
    pub fn set_base_msr(&mut self, value: u64) -> bool {
        const MODE: u64 = APIC_BASE_ENABLE | APIC_BASE_X2APIC;
        if value & !(BASE_ADDRESS_BITS | APIC_BASE_BOOTSTRAP | MODE) != 0
            || !x2apic::may_change_mode(self.base & MODE, value & MODE)
        {
            return false;
        }
        if value & APIC_BASE_ENABLE == 0 && self.is_enabled() {
            let lint_level = self.lint_level;
            *self = Self {
                lint_level,
                ..Self::new()
            };
        }
        self.base = value | APIC_BASE_BOOTSTRAP;
        true
    }

    /// Returns the task priority register: the class in the upper half, the subclass in the lower.
    pub fn task_priority(&self) -> u8 {
        self.task_priority
    }

    /// Writes the task priority register. As CR8 allows it, this also works while the APIC is
    /// disabled.
    pub fn set_task_priority(&mut self, value: u8) {
        self.task_priority = value;
    }

    /// Returns IA32_TSC_DEADLINE, which is zero unless armed in TSC-deadline mode.
    pub fn tsc_deadline_msr(&self) -> u64 {
        self.timer.tsc_deadline()
    }

    /// Writes IA32_TSC_DEADLINE, in ticks of [`Clock::tsc`]. The write is ignored in other timer
    /// modes. A deadline that has passed fires immediately; zero disarms (SDM volume 3, 11.5.4.1).
    pub fn set_tsc_deadline_msr(&mut self, value: u64, clock: &Clock) {
        self.timer.set_tsc_deadline(value, clock);
        self.advance(clock);
    }

    /// Reads registers into `data`, beginning at `offset`. Only the first four of each 16 bytes
    /// hold a register; the others read as zero.
    pub fn read(&mut self, offset: u16, data: &mut [u8], clock: &impl ClockSource) {
        let mut address = offset;
        let mut rest = data;
        while !rest.is_empty() {
            let lane = usize::from(address & 15);
            let (piece, behind) = rest.split_at_mut(rest.len().min(16 - lane));
            let mut bytes = [0; 16];
            if lane < 4 {
                let value = self.register(address & !15, clock);
                bytes[..4].copy_from_slice(&value.to_le_bytes());
            }
            piece.copy_from_slice(&bytes[lane..lane + piece.len()]);
            address = address.wrapping_add(piece.len() as u16);
            rest = behind;
        }
    }

    fn register(&mut self, offset: u16, clock: &impl ClockSource) -> u32 {
        let word = |base: u16| usize::from((offset - base) / 16);
        match offset {
            register::ID => u32::from(APIC_ID) << 24,
            register::VERSION => VERSION,
            register::TASK_PRIORITY => u32::from(self.task_priority),
            register::ARBITRATION_PRIORITY | register::REMOTE_READ => 0,
            register::PROCESSOR_PRIORITY => u32::from(self.processor_priority()),
            register::END_OF_INTERRUPT => 0,
            register::LOGICAL_DESTINATION => self.logical_destination,
            register::DESTINATION_FORMAT => self.destination_format,
            register::SPURIOUS_VECTOR => self.spurious,
            register::IN_SERVICE..register::TRIGGER_MODE => {
                self.in_service.0[word(register::IN_SERVICE)]
            }
            register::TRIGGER_MODE..register::REQUEST => {
                self.trigger_mode.0[word(register::TRIGGER_MODE)]
            }
            register::REQUEST..register::ERROR_STATUS => self.request.0[word(register::REQUEST)],
            register::ERROR_STATUS => self.error_visible,
            register::COMMAND_LOW => self.command as u32,
            register::COMMAND_HIGH => (self.command >> 32) as u32,
            register::LVT_TIMER..=register::LVT_ERROR => {
                self.local_vectors[word(register::LVT_TIMER)]
            }
            register::INITIAL_COUNT => self.timer.initial(),
            register::CURRENT_COUNT => self.timer.current_count(clock.clock().now),
            register::DIVIDE => self.timer.divide(),
            _ => {
                self.raise_error(error::ILLEGAL_REGISTER);
                0
            }
        }
    }

    /// Whether writing this value to the register at `offset` merely changes the APIC's state,
    /// without sending an NMI or an INIT.
    pub fn is_near(&self, offset: u16, value: u32) -> bool {
        match offset {
            register::TASK_PRIORITY
            | register::END_OF_INTERRUPT
            | register::COMMAND_HIGH
            | register::LVT_TIMER
            | register::INITIAL_COUNT
            | register::DIVIDE => true,
            register::COMMAND_LOW => value & lvt::MODE == 0,
            _ => false,
        }
    }

    /// Writes registers. Only aligned 4-byte writes to a register have an effect (SDM volume 3,
    /// 11.4.1). Returns the vector of a level-triggered interrupt that ended, which must be
    /// reported to the I/O APIC.
    pub fn write(&mut self, offset: u16, data: &[u8], clock: &impl ClockSource) -> Option<u8> {
        let Ok(bytes) = <[u8; 4]>::try_from(data) else {
            return None;
        };
        if offset & 15 != 0 {
            return None;
        }
        let value = u32::from_le_bytes(bytes);
        match offset {
            register::TASK_PRIORITY => self.task_priority = value as u8,
            register::END_OF_INTERRUPT => return self.end_of_interrupt(),
            register::LOGICAL_DESTINATION => self.logical_destination = value & 0xff00_0000,
            register::DESTINATION_FORMAT => self.destination_format = value | 0x0fff_ffff,
            register::SPURIOUS_VECTOR => self.write_spurious(value),
            register::ERROR_STATUS => {
                self.error_visible = std::mem::take(&mut self.error_pending);
            }
            register::COMMAND_LOW => {
                self.command = self.command & !0xffff_ffff | u64::from(value & 0x000c_cfff);
                self.send_command();
            }
            register::COMMAND_HIGH => {
                self.command = self.command & 0xffff_ffff | u64::from(value & 0xff00_0000) << 32;
            }
            register::LVT_TIMER..=register::LVT_ERROR => {
                self.write_local_vector(offset, value, clock);
            }
            register::INITIAL_COUNT => {
                self.timer.set_initial_count(value, clock.clock().now);
            }
            register::DIVIDE => {
                let clock = clock.clock();
                self.advance(&clock);
                self.timer.set_divide(value, clock.now);
            }
            register::ID
            | register::VERSION
            | register::ARBITRATION_PRIORITY
            | register::PROCESSOR_PRIORITY
            | register::REMOTE_READ
            | register::CURRENT_COUNT
            | register::IN_SERVICE..register::ERROR_STATUS => {}
            _ => self.raise_error(error::ILLEGAL_REGISTER),
        }
        None
    }

    fn is_software_enabled(&self) -> bool {
        self.spurious & SOFTWARE_ENABLE != 0
    }

    fn write_spurious(&mut self, value: u32) {
        self.spurious = value & SPURIOUS_WRITABLE;
        if !self.is_software_enabled() {
            // All LVT mask bits are set and stay set (SDM volume 3, 11.4.7.2).
            for entry in &mut self.local_vectors {
                *entry |= lvt::MASKED;
            }
        }
    }

    fn write_local_vector(&mut self, offset: u16, value: u32, clock: &impl ClockSource) {
        let index = usize::from((offset - register::LVT_TIMER) / 16);
        let mut value = value & lvt::WRITABLE[index];
        if !self.is_software_enabled() {
            value |= lvt::MASKED;
        }
        if index == local_vector::TIMER {
            // An expiry that is already due is handled by the old entry.
            let clock = clock.clock();
            self.advance(&clock);
            self.timer.set_mode(TimerMode::of_entry(value), clock.now);
        }
        self.local_vectors[index] = value;
        if index == local_vector::LINT0 || index == local_vector::LINT1 {
            self.service_level_lint(index - local_vector::LINT0);
        }
    }

    // ---- priority and delivery ----

    /// Returns the processor priority (SDM volume 3, 11.8.3.1).
    fn processor_priority(&self) -> u8 {
        let in_service = self.in_service.highest().unwrap_or(0);
        if self.task_priority >> 4 >= in_service >> 4 {
            self.task_priority
        } else {
            in_service & 0xf0
        }
    }

    /// Returns the vector that waits for the processor, if its priority class is above the
    /// processor's priority.
    pub fn pending(&self) -> Option<u8> {
        let vector = self.request.highest()?;
        (vector >> 4 > self.processor_priority() >> 4).then_some(vector)
    }

    /// Acknowledges the waiting vector on behalf of the processor. The vector becomes in-service.
    pub fn acknowledge(&mut self) -> Option<u8> {
        let vector = self.pending()?;
        self.request.clear(vector);
        self.in_service.set(vector);
        Some(vector)
    }

    fn end_of_interrupt(&mut self) -> Option<u8> {
        let vector = self.in_service.highest()?;
        self.in_service.clear(vector);
        let was_level = self.trigger_mode.contains(vector);
        for lint in 0..2 {
            let entry = self.local_vectors[local_vector::LINT0 + lint];
            if entry & lvt::VECTOR == u32::from(vector) {
                self.service_level_lint(lint);
            }
        }
        was_level.then_some(vector)
    }

    fn accept_fixed(&mut self, vector: u8, level: bool) -> bool {
        if !self.is_enabled() || !self.is_software_enabled() {
            return false;
        }
        if vector < FIRST_LEGAL_VECTOR {
            self.raise_error(error::RECEIVE_ILLEGAL_VECTOR);
            return false;
        }
        self.request.set(vector);
        if level {
            self.trigger_mode.set(vector);
        } else {
            self.trigger_mode.clear(vector);
        }
        true
    }

    /// Whether a message is addressed to this APIC and the APIC is enabled.
    pub fn is_addressed_by(&self, message: &InterruptMessage) -> bool {
        self.is_enabled() && self.is_destination(message)
    }

    fn is_destination(&self, message: &InterruptMessage) -> bool {
        let destination = message.destination;
        if !message.logical {
            return destination == APIC_ID || destination == BROADCAST;
        }
        if self.is_x2apic() {
            // The eight bits address processors of cluster 0.
            return u32::from(destination) & x2apic::LOGICAL_ID != 0;
        }
        let own = (self.logical_destination >> 24) as u8;
        if self.destination_format >> 28 == 0xf {
            destination & own != 0
        } else {
            // Cluster model: the high half is the number of the cluster, Fh means all of them.
            let cluster = destination >> 4;
            (cluster == 0xf || cluster == own >> 4) && destination & own & 15 != 0
        }
    }

    fn raise_error(&mut self, bit: u32) {
        let is_new = self.error_pending & bit == 0;
        self.error_pending |= bit;
        let entry = self.local_vectors[local_vector::ERROR];
        let vector = (entry & lvt::VECTOR) as u8;
        // An invalid vector in the error entry itself must not raise errors for ever.
        if is_new && entry & lvt::MASKED == 0 && vector >= FIRST_LEGAL_VECTOR {
            self.accept_fixed(vector, false);
        }
    }

    fn send_command(&mut self) {
        let low = self.command as u32;
        let vector = low as u8;
        let mode = DeliveryMode::from_bits(low >> 8);
        let mut message = InterruptMessage {
            vector,
            mode,
            destination: (self.command >> 56) as u8,
            logical: low >> 11 & 1 != 0,
            level: false,
        };
        match low >> 18 & 3 {
            0 if self.is_x2apic() => {
                let destination = (self.command >> 32) as u32;
                message.destination = match x2apic::is_own(destination, message.logical) {
                    true => APIC_ID,
                    false => NOBODY,
                };
                message.logical = false;
            }
            0 => {}
            // The destination is this processor alone, or all processors including this one.
            1 | 2 => {
                message.destination = BROADCAST;
                message.logical = false;
            }
            // The destination is all other processors, and there are none.
            _ => return,
        }
        match mode {
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => {
                if vector < FIRST_LEGAL_VECTOR {
                    self.raise_error(error::SEND_ILLEGAL_VECTOR);
                } else {
                    self.deliver(&message);
                }
            }
            // With level trigger and a clear level bit, this is INIT level de-assert, which
            // concerns only arbitration between processors (SDM volume 3, 11.6.1).
            DeliveryMode::Init if low & (command::TRIGGER | command::LEVEL) == command::TRIGGER => {
            }
            // The manual defines no combination of these modes with a shorthand that includes the
            // sender (SDM volume 3, table 11-3), but processors deliver them.
            DeliveryMode::Nmi | DeliveryMode::Init => {
                self.deliver(&message);
            }
            // There is no SMM, and a running processor ignores a start-up message (SDM volume 3,
            // 9.4).
            _ => {}
        }
    }

    // ---- LINT pins and NMI ----

    /// Drives LINT0 (the 8259's INTR) or LINT1 (`pin` 0 or 1).
    pub fn set_lint(&mut self, pin: usize, level: bool) {
        let Some(state) = self.lint_level.get_mut(pin) else {
            return;
        };
        let rises = level && !*state;
        *state = level;
        if !rises {
            return;
        }
        let entry = self.local_vectors[local_vector::LINT0 + pin];
        if entry & lvt::MASKED != 0 || !self.is_enabled() {
            return;
        }
        match entry & lvt::MODE {
            0 if entry & lvt::LEVEL == 0 => {
                self.accept_fixed(entry as u8, false);
            }
            0 => self.service_level_lint(pin),
            lvt::MODE_NMI => self.nmi_pending = true,
            _ => {}
        }
    }

    /// Requests an interrupt again after each EOI while a level-triggered fixed LINT is asserted.
    fn service_level_lint(&mut self, pin: usize) {
        let entry = self.local_vectors[local_vector::LINT0 + pin];
        let vector = entry as u8;
        if self.lint_level[pin]
            && entry & (lvt::MASKED | lvt::MODE) == 0
            && entry & lvt::LEVEL != 0
            && !self.in_service.contains(vector)
        {
            self.accept_fixed(vector, false);
        }
    }

    /// Whether LINT0 passes the 8259's interrupts to the processor (virtual wire).
    pub fn passes_external_interrupts(&self) -> bool {
        self.is_enabled()
            && self.local_vectors[local_vector::LINT0] & (lvt::MASKED | lvt::MODE)
                == lvt::MODE_EXTINT
    }

    /// Takes a non-maskable interrupt that arrived as a message or on a LINT pin. Returns whether
    /// there was one.
    pub fn take_nmi(&mut self) -> bool {
        std::mem::take(&mut self.nmi_pending)
    }

    /// Takes an INIT that arrived as a message, and returns whether there was one. If so, the
    /// processor must be reset and [`LocalApic::init`] called.
    pub fn take_init(&mut self) -> bool {
        std::mem::take(&mut self.init_pending)
    }

    /// Lets the timer fire if it is due. While it is masked, the expiry is lost.
    pub fn advance(&mut self, clock: &Clock) {
        let entry = self.local_vectors[local_vector::TIMER];
        if self.timer.advance(clock) && entry & lvt::MASKED == 0 {
            self.accept_fixed(entry as u8, false);
        }
    }

    /// Returns when [`LocalApic::advance`] must be called next. A masked timer has no deadline; it
    /// catches up at the next access.
    pub fn next_deadline(&self) -> Option<GuestTime> {
        if self.local_vectors[local_vector::TIMER] & lvt::MASKED == 0 {
            self.timer.next_deadline()
        } else {
            None
        }
    }
}

impl InterruptBus for LocalApic {
    fn deliver(&mut self, message: &InterruptMessage) -> bool {
        if !self.is_addressed_by(message) {
            return false;
        }
        match message.mode {
            DeliveryMode::Fixed | DeliveryMode::LowestPriority => {
                self.accept_fixed(message.vector, message.level)
            }
            DeliveryMode::Nmi => {
                self.nmi_pending = true;
                true
            }
            DeliveryMode::Init => {
                self.init_pending = true;
                true
            }
            // External interrupts are passed on by the I/O APIC instead. An SMI is lost because
            // there is no SMM, and a processor cannot start itself.
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests;
