//! The MC146818 real-time clock and its CMOS memory, at ports 70h and 71h.
//!
//! Time is not counted but computed. Guest time plus a phase is the position of the 32.768 kHz
//! divider chain, and its whole seconds plus a base are the calendar time. While the guest sets the
//! clock (SET, or the divider held in reset) the registers are plain memory; their contents when
//! the guest has finished become the new base.
//!
//! The update itself takes no time: UIP is set for the 244 us before it, and the registers change
//! at the end of that time. Flags are collected in register C. The interrupt line is high from the
//! time when an enabled flag is set until C is read, as the data sheet says, so a period that ends
//! before C is read merges with the next. Periods that pass while the host runs other programs and
//! no flag is set are delivered later: see [`LostTicks`]. All divider settings other than 32.768
//! kHz stop the clock. Daylight saving (DSE) and the square wave output (SQWE) are stored without
//! effect.

mod alarm;
mod bus;
mod calendar;
mod registers;
mod start;

use alarm::Alarm;
use calendar::{DateTime, Format};
use registers::{
    Control, DIVIDER_32768_HZ, DIVIDER_MASK, Flags, RATE_MASK, UPDATE_IN_PROGRESS, VALID, register,
};
use serde::{Deserialize, Serialize};
pub use start::{BootDevice, RtcBase};
use std::ops::RangeInclusive;
use tollgate_platform::GuestTime;

use super::floppy::format::DriveKind;
use super::ide::Geometry;
use super::lost_ticks::LostTicks;
use crate::board::IrqLine;

const SECOND: u64 = 1_000_000_000;
/// UIP is set this many nanoseconds before an update.
const UPDATE_WARNING: u64 = 244_000;
/// The first update comes half a second after the divider chain leaves its reset.
const FIRST_UPDATE: u64 = SECOND / 2;
const CRYSTAL_HZ: u64 = 32_768;

/// The raw time registers while updates are stopped.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct HeldTime {
    second: u8,
    minute: u8,
    hour: u8,
    weekday: u8,
    day: u8,
    month: u8,
    year: u8,
    century: u8,
}

/// The clock and 128 bytes of CMOS memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rtc {
    index: u8,
    nmi_disabled: bool,
    /// 128 bytes. Those of the clock's own registers are unused, except for the alarm's.
    memory: [[u8; 16]; 8],
    /// Register A without the bit UIP.
    control_a: u8,
    control_b: Control,
    flags: Flags,
    /// The position of the divider chain minus guest time, in nanoseconds.
    phase: u64,
    /// The seconds since 1970 when the divider chain was at zero.
    base: i64,
    /// The nanoseconds since 1970 that the clock shows at guest time zero, unless the guest sets it.
    start: i64,
    /// A number of days that is added to the true weekday, because the guest may count from another
    /// day.
    weekday_shift: u8,
    held: Option<HeldTime>,
    /// Events up to this time are in `flags`.
    settled: GuestTime,
    lost_periods: LostTicks,
    irq: IrqLine,
    /// Whether an alarm with its interrupt has gone off that was not reported to ACPI yet.
    #[serde(skip)]
    alarm_rang: bool,
}

impl Rtc {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 3;

    /// The index and data ports.
    pub const PORTS: RangeInclusive<u16> = 0x70..=0x71;

    /// The ISA interrupt line.
    pub const IRQ: u8 = 8;

    /// The CMOS address of the century, for the FADT.
    pub const CENTURY_INDEX: u8 = register::CENTURY;

    /// Makes a clock that shows a time of `start` nanoseconds after the beginning of 1970 at guest
    /// time zero, in 24-hour BCD form. Its CMOS memory is that of a PC with an x87, a keyboard and
    /// no drives.
    pub fn new(start: u64) -> Self {
        let mut rtc = Self {
            index: 0,
            nmi_disabled: false,
            memory: [[0; 16]; 8],
            control_a: DIVIDER_32768_HZ | 6,
            control_b: Control::HOURS_24,
            flags: Flags::empty(),
            phase: start % SECOND,
            base: (start / SECOND) as i64,
            start: i64::try_from(start).unwrap_or(i64::MAX),
            weekday_shift: 1,
            held: None,
            settled: GuestTime(0),
            lost_periods: LostTicks::default(),
            irq: IrqLine::default(),
            alarm_rang: false,
        };
        const X87_PRESENT: u8 = 1 << 1;
        rtc.set_memory_byte(register::EQUIPMENT, X87_PRESENT);
        rtc.set_memory_sizes(0, 0);
        rtc
    }

    /// Stores the sizes of RAM in bytes where firmware does: below 4 GiB (counted from address 0,
    /// without a hole) and above. A size that a field cannot hold becomes the field's largest
    /// value.
    pub fn set_memory_sizes(&mut self, below_4_gib: u64, above_4_gib: u64) {
        const KIB: u64 = 1 << 10;
        const MIB: u64 = 1 << 20;
        const BLOCK: u64 = 64 * KIB;
        let base = (below_4_gib / KIB).min(640);
        let extended = below_4_gib.saturating_sub(MIB) / KIB;
        let above_16_mib = below_4_gib.saturating_sub(16 * MIB) / BLOCK;
        let above_4_gib = (above_4_gib / BLOCK).min(0xFF_FFFF);
        for (address, value) in [
            (register::BASE_MEMORY, base),
            (register::EXTENDED_MEMORY, extended.min(0xFFFF)),
            (register::EXTENDED_MEMORY_COPY, extended.min(0xFFFF)),
            (register::MEMORY_ABOVE_16_MIB, above_16_mib.min(0xFFFF)),
        ] {
            self.set_memory_byte(address, value as u8);
            self.set_memory_byte(address + 1, (value >> 8) as u8);
        }
        for byte in 0..3 {
            let value = (above_4_gib >> (8 * byte)) as u8;
            self.set_memory_byte(register::MEMORY_ABOVE_4_GIB + byte, value);
        }
        let checksum = (0x10..register::CHECKSUM_HIGH).fold(0u16, |sum, address| {
            sum.wrapping_add(u16::from(self.memory_byte(address)))
        });
        self.set_memory_byte(register::CHECKSUM_HIGH, (checksum >> 8) as u8);
        self.set_memory_byte(register::CHECKSUM_LOW, checksum as u8);
    }

    /// Stores the kinds of the floppy drives where firmware does.
    pub fn set_floppies(&mut self, kinds: &[DriveKind]) {
        /// In the equipment byte: there are floppy drives, and the two highest bits hold their
        /// number minus one.
        const FLOPPIES_PRESENT: u8 = 1;
        let kind = |drive: usize| kinds.get(drive).map_or(0, |kind| kind.cmos_type());
        self.set_memory_byte(register::FLOPPIES, kind(0) << 4 | kind(1));
        let mut equipment = self.memory_byte(register::EQUIPMENT) & 0x3E;
        if let Some(more) = kinds.len().checked_sub(1) {
            equipment |= FLOPPIES_PRESENT | (more as u8) << 6;
        }
        self.set_memory_byte(register::EQUIPMENT, equipment);
    }

    /// Stores the geometries of IDE disks, by their places, where firmware does: those of the first
    /// two in the format of type 47, and for all disks the translation for INT 13h, where SeaBIOS
    /// looks on QEMU's machines. Must be called before [`Rtc::set_memory_sizes`], which computes
    /// the checksum.
    pub fn set_disks(&mut self, disks: &[Option<Geometry>]) {
        /// The type is in the extended byte.
        const IS_EXTENDED: u8 = 0xF;
        /// The geometry is stored together with the type.
        const USER_DEFINED: u8 = 47;
        const GEOMETRY_BYTES: u8 = 9;
        /// There is no cylinder from which write currents are reduced.
        const NO_PRECOMPENSATION: u16 = 0xFFFF;
        /// The control byte: the disk does neither retries nor error correction, as with all types.
        const NO_RETRIES: u8 = 0xC0;
        const MORE_THAN_8_HEADS: u8 = 1 << 3;

        let mut types = 0;
        let mut translations = 0;
        for (place, disk) in (0u8..4).zip(disks) {
            let Some(disk) = disk else { continue };
            translations |= (disk.translation as u8) << (2 * place);
            if place > 1 {
                continue;
            }
            types |= IS_EXTENDED << (4 * (1 - place));
            self.set_memory_byte(register::DISK_TYPES + place, USER_DEFINED);
            let heads = if disk.heads > 8 { MORE_THAN_8_HEADS } else { 0 };
            let [low, high] = disk.cylinders.to_le_bytes();
            let [first, second] = NO_PRECOMPENSATION.to_le_bytes();
            // The heads are parked after the last cylinder.
            let bytes = [
                low,
                high,
                disk.heads,
                first,
                second,
                NO_RETRIES | heads,
                low,
                high,
                disk.sectors,
            ];
            let start = register::DISK_GEOMETRIES + GEOMETRY_BYTES * place;
            for (address, byte) in (start..).zip(bytes) {
                self.set_memory_byte(address, byte);
            }
        }
        self.set_memory_byte(register::DISKS, types);
        self.set_memory_byte(register::DISK_TRANSLATIONS, translations);
    }

    /// Stores the drives that firmware boots from, the first choice first, where SeaBIOS looks on
    /// QEMU's machines. There is room for three.
    pub fn set_boot_order(&mut self, order: &[BootDevice]) {
        let choice = |index: usize| order.get(index).map_or(0, |device| device.cmos_code());
        self.set_memory_byte(register::BOOT_FIRST, choice(1) << 4 | choice(0));
        self.set_memory_byte(register::BOOT_THIRD, choice(2) << 4);
    }

    fn memory_byte(&self, address: u8) -> u8 {
        self.memory[usize::from(address >> 4 & 7)][usize::from(address & 0xF)]
    }

    fn set_memory_byte(&mut self, address: u8, value: u8) {
        self.memory[usize::from(address >> 4 & 7)][usize::from(address & 0xF)] = value;
    }

    /// Whether bit 7 of port 70h masks NMIs.
    pub const fn nmi_disabled(&self) -> bool {
        self.nmi_disabled
    }

    /// Reads a port. The index port cannot be read and returns FFh.
    pub fn read(&mut self, port: u16, now: GuestTime) -> u8 {
        if port & 1 == 0 {
            return 0xFF;
        }
        self.advance(now);
        match self.index {
            register::A => {
                let update =
                    self.held.is_none() && SECOND - self.chain(now) % SECOND <= UPDATE_WARNING;
                self.control_a | if update { UPDATE_IN_PROGRESS } else { 0 }
            }
            register::B => self.control_b.bits(),
            register::C => {
                let mut value = self.flags;
                value.set(Flags::INTERRUPT_REQUEST, self.requests_interrupt());
                self.flags = Flags::empty();
                self.irq.set(false);
                value.bits()
            }
            register::D => VALID,
            address => match self.time_registers(now).register(address) {
                Some(value) => *value,
                None => self.memory_byte(address),
            },
        }
    }

    /// Writes a port.
    pub fn write(&mut self, port: u16, value: u8, now: GuestTime) {
        if port & 1 == 0 {
            self.index = value & 0x7F;
            self.nmi_disabled = value & 0x80 != 0;
            return;
        }
        self.advance(now);
        match self.index {
            register::A => self.change_controls(value & !UPDATE_IN_PROGRESS, self.control_b, now),
            register::B => {
                let mut control = Control::from_bits_retain(value);
                if control.contains(Control::SET) {
                    control.remove(Control::UPDATE_ENDED_INTERRUPT);
                }
                self.change_controls(self.control_a, control, now);
            }
            register::C | register::D => {}
            address => {
                let mut time = self.time_registers(now);
                if let Some(register) = time.register(address) {
                    *register = value;
                    if self.held.is_some() {
                        self.held = Some(time);
                    } else {
                        self.set_time(time, now);
                    }
                } else {
                    self.set_memory_byte(address, value);
                }
            }
        }
        self.irq.set(self.requests_interrupt());
    }

    /// Changes registers A and B, which may stop or start the clock.
    fn change_controls(&mut self, control_a: u8, control_b: Control, now: GuestTime) {
        let time = self.time_registers(now);
        let was_counting = self.divider_runs();
        self.lost_periods.forget();
        self.control_a = control_a;
        self.control_b = control_b;
        if !was_counting && self.divider_runs() {
            let position = now.0 % SECOND;
            let seconds = self.seconds(now);
            self.phase = (SECOND + SECOND - FIRST_UPDATE - position) % SECOND;
            self.base = seconds.saturating_sub((self.chain(now) / SECOND) as i64);
        }
        let stopped = control_b.contains(Control::SET) || !self.divider_runs();
        match (self.held, stopped) {
            (None, true) => self.held = Some(time),
            (Some(held), false) => {
                self.held = None;
                self.set_time(held, now);
            }
            _ => {}
        }
    }

    /// Lets the clock show from now on what it would show if its start at guest time zero had been
    /// `start` nanoseconds after the beginning of 1970. If the guest has set the clock ahead or back,
    /// that stays. Registers that the guest is setting do not change, and no alarm is made up for.
    pub fn start_at(&mut self, start: i64) {
        const SECONDS: i128 = SECOND as i128;
        let step = i128::from(start) - i128::from(self.start);
        let shown = i128::from(self.base) * SECONDS + i128::from(self.phase) + step;
        let seconds = shown.div_euclid(SECONDS);
        self.base = seconds.clamp(i64::MIN.into(), i64::MAX.into()) as i64;
        self.phase = shown.rem_euclid(SECONDS) as u64;
        self.start = start;
    }

    const fn divider_runs(&self) -> bool {
        self.control_a & DIVIDER_MASK == DIVIDER_32768_HZ
    }

    const fn format(&self) -> Format {
        Format {
            binary: self.control_b.contains(Control::BINARY),
            hours_24: self.control_b.contains(Control::HOURS_24),
        }
    }

    /// Returns the position of the divider chain in nanoseconds.
    const fn chain(&self, now: GuestTime) -> u64 {
        now.0.saturating_add(self.phase)
    }

    /// Returns the seconds since 1970 that the clock shows if nothing holds it.
    const fn seconds(&self, now: GuestTime) -> i64 {
        self.base.saturating_add((self.chain(now) / SECOND) as i64)
    }

    /// Returns the guest time at which the divider chain reaches `position`.
    fn time_at(&self, position: u128) -> GuestTime {
        let nanoseconds = position.saturating_sub(u128::from(self.phase));
        GuestTime(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
    }

    fn time_registers(&self, now: GuestTime) -> HeldTime {
        if let Some(held) = self.held {
            return held;
        }
        let seconds = self.seconds(now);
        let (time, format) = (DateTime::from_seconds(seconds), self.format());
        let weekday = DateTime::weekday(seconds) + i64::from(self.weekday_shift % 7);
        // The registers count the days of the week from 1 to 7.
        let weekday = (weekday + 6).rem_euclid(7) + 1;
        HeldTime {
            second: format.encode(time.second),
            minute: format.encode(time.minute),
            hour: format.encode_hour(time.hour),
            weekday: format.encode(weekday),
            day: format.encode(time.day),
            month: format.encode(time.month),
            year: format.encode(time.year),
            century: format.encode(time.year.div_euclid(100)),
        }
    }

    /// Lets the clock continue from the contents of the time registers.
    fn set_time(&mut self, time: HeldTime, now: GuestTime) {
        let format = self.format();
        let seconds = DateTime {
            year: format.decode(time.century) * 100 + format.decode(time.year),
            month: format.decode(time.month),
            day: format.decode(time.day),
            hour: format.decode_hour(time.hour),
            minute: format.decode(time.minute),
            second: format.decode(time.second),
        }
        .to_seconds();
        let shift = format.decode(time.weekday) - DateTime::weekday(seconds);
        self.weekday_shift = shift.rem_euclid(7) as u8;
        self.base = seconds.saturating_sub((self.chain(now) / SECOND) as i64);
    }

    /// Returns the number of crystal cycles between two periodic events (data sheet, table
    /// "Periodic Interrupt Rate"), or `None` if there are none.
    fn period(&self) -> Option<u64> {
        if !self.divider_runs() {
            return None;
        }
        match self.control_a & RATE_MASK {
            0 => None,
            rate @ 1..=2 => Some(1 << (rate + 6)),
            rate => Some(1 << (rate - 1)),
        }
    }

    fn crystal_cycles(&self, now: GuestTime) -> u64 {
        let (seconds, rest) = (self.chain(now) / SECOND, self.chain(now) % SECOND);
        seconds * CRYSTAL_HZ + rest * CRYSTAL_HZ / SECOND
    }

    fn next_alarm(&self, seconds: i64) -> Option<i64> {
        Alarm {
            second: self.memory_byte(register::SECONDS_ALARM),
            minute: self.memory_byte(register::MINUTES_ALARM),
            hour: self.memory_byte(register::HOURS_ALARM),
            format: self.format(),
        }
        .next_after(seconds)
    }

    const fn requests_interrupt(&self) -> bool {
        const EVENTS: Flags = Flags::PERIODIC
            .union(Flags::ALARM)
            .union(Flags::UPDATE_ENDED);
        self.flags.bits() & self.control_b.bits() & EVENTS.bits() != 0
    }

    /// Returns when the interrupt line will rise next if the guest does nothing.
    pub fn next_deadline(&self, now: GuestTime) -> Option<GuestTime> {
        if self.requests_interrupt() {
            return None;
        }
        let mut deadline: Option<GuestTime> = None;
        let mut add = |time: GuestTime| {
            deadline = Some(deadline.map_or(time, |earlier| earlier.min(time)));
        };
        if self.control_b.contains(Control::PERIODIC_INTERRUPT)
            && let Some(period) = self.period()
        {
            let cycle = (self.crystal_cycles(now) / period + 1).saturating_mul(period);
            add(self.time_at(
                (u128::from(cycle) * u128::from(SECOND)).div_ceil(u128::from(CRYSTAL_HZ)),
            ));
            if let Some(due) = self.lost_periods.next_deadline() {
                // A period that is due when register C is read is reported at the next advance.
                add(due.max(now.after(1)));
            }
        }
        if self.held.is_none() {
            let position = self.chain(now) / SECOND;
            if self.control_b.contains(Control::UPDATE_ENDED_INTERRUPT) {
                add(self.time_at((u128::from(position) + 1) * u128::from(SECOND)));
            }
            if self.control_b.contains(Control::ALARM_INTERRUPT)
                && let Some(seconds) = self.next_alarm(self.seconds(now))
            {
                let position = seconds.saturating_sub(self.base).max(0).unsigned_abs();
                add(self.time_at(u128::from(position) * u128::from(SECOND)));
            }
        }
        deadline
    }

    /// Sets the flags for all events up to `now`, and drives the interrupt line.
    pub fn advance(&mut self, now: GuestTime) {
        if now <= self.settled {
            return;
        }
        if let Some(period) = self.period() {
            let passed =
                self.crystal_cycles(now) / period - self.crystal_cycles(self.settled) / period;
            let interrupts = self.control_b.contains(Control::PERIODIC_INTERRUPT);
            let mut ticks = passed != 0;
            if interrupts && !self.requests_interrupt() {
                // The line would have risen at each of these periods, but the host was late.
                self.lost_periods.saw(passed, now);
                ticks |= self.lost_periods.take(now);
            }
            if ticks {
                self.flags.insert(Flags::PERIODIC);
            }
        }
        let (before, after) = (self.seconds(self.settled), self.seconds(now));
        if self.held.is_none() && after > before {
            self.flags.insert(Flags::UPDATE_ENDED);
            if self.next_alarm(before).is_some_and(|alarm| alarm <= after) {
                self.flags.insert(Flags::ALARM);
                self.alarm_rang |= self.control_b.contains(Control::ALARM_INTERRUPT);
            }
        }
        self.settled = now;
        self.irq.set(self.requests_interrupt());
    }

    /// Returns whether an alarm with its interrupt has gone off since the last call.
    pub fn take_alarm(&mut self) -> bool {
        std::mem::take(&mut self.alarm_rang)
    }

    /// Returns the level of IRQ 8 at the last access or advance.
    pub fn irq(&self) -> bool {
        self.irq.level()
    }

    /// Returns the line of IRQ 8 with its uncollected rising edges.
    pub fn irq_line(&mut self) -> &mut IrqLine {
        &mut self.irq
    }
}

impl HeldTime {
    /// Returns the time register at a CMOS address.
    fn register(&mut self, address: u8) -> Option<&mut u8> {
        Some(match address {
            register::SECONDS => &mut self.second,
            register::MINUTES => &mut self.minute,
            register::HOURS => &mut self.hour,
            register::WEEKDAY => &mut self.weekday,
            register::DAY => &mut self.day,
            register::MONTH => &mut self.month,
            register::YEAR => &mut self.year,
            register::CENTURY => &mut self.century,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests;
