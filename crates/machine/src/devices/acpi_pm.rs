//! ACPI fixed hardware: the PM1 event and control blocks, the power-management timer and a small
//! general-purpose event block (ACPI 6.5, 4.8).
//!
//! The machine is always in ACPI mode: there is no SMI command port, and SCI_EN reads as one. The
//! only sleep state is S5, soft off. The power button is the fixed-hardware one. [`AcpiPm::sci`] is
//! the level of the system control interrupt.

use crate::bus::{Claims, Device, DeviceContext, NearUse, PortWidth, SavedState, StateError};
use serde::{Deserialize, Serialize};
use tollgate_platform::{GuestTime, StopRequest};

/// The first port.
pub const BASE_PORT: u16 = 0x600;
/// The number of ports. Those between the blocks read as zero.
pub const PORT_COUNT: u16 = 0x28;
/// PM1a event block: status, then enable, 2 bytes each.
pub const PM1_EVENT_PORT: u16 = BASE_PORT;
/// PM1a control block, 2 bytes.
pub const PM1_CONTROL_PORT: u16 = BASE_PORT + 4;
/// Power-management timer, 4 bytes.
pub const TIMER_PORT: u16 = BASE_PORT + 8;
/// General-purpose event block 0: status, then enable, 2 bytes each.
pub const GPE0_PORT: u16 = BASE_PORT + 0x20;
/// The size of general-purpose event block 0 in bytes.
pub const GPE0_BYTES: u8 = 4;

/// The interrupt line of the SCI.
pub const SCI_IRQ: u8 = 9;
/// The SLP_TYP value of S5.
pub const SLEEP_TYPE_S5: u8 = 5;
/// The SLP_TYP value of S5 on QEMU's PCs, whose control port is the same. Small kernels that read
/// no ACPI tables write it there.
const CUSTOMARY_SLEEP_TYPE_S5: u8 = 0;
/// Frequency of the power-management timer.
pub const TIMER_HZ: u64 = 3_579_545;

/// PM1 status and enable bits (ACPI 6.5, tables 4.11 and 4.12).
mod pm1 {
    pub const TIMER: u16 = 1 << 0;
    pub const GLOBAL: u16 = 1 << 5;
    pub const POWER_BUTTON: u16 = 1 << 8;
    pub const SLEEP_BUTTON: u16 = 1 << 9;
    pub const RTC: u16 = 1 << 10;
    pub const ENABLE_MASK: u16 = TIMER | GLOBAL | POWER_BUTTON | SLEEP_BUTTON | RTC;
}

/// PM1 control bits (ACPI 6.5, table 4.13).
mod control {
    pub const SCI_ENABLE: u16 = 1 << 0;
    pub const SLEEP_TYPE_SHIFT: u32 = 10;
    pub const SLEEP_ENABLE: u16 = 1 << 13;
    /// BM_RLD and SLP_TYP keep the written value.
    pub const KEPT: u16 = 1 << 1 | 7 << SLEEP_TYPE_SHIFT;
}

/// The fixed-hardware registers.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AcpiPm {
    status: u16,
    enable: u16,
    control: u16,
    gpe_status: u16,
    gpe_enable: u16,
    /// How often bit 31 of the timer had changed when the timer was last read or advanced.
    timer_toggles: u64,
    power_off: bool,
}

/// Returns the timer's ticks since the machine was started. They are computed from the time itself,
/// so that no error accumulates. Seconds and the remainder are converted separately, so that all
/// products fit in 64 bits.
fn ticks(now: GuestTime) -> u64 {
    const SECOND: u64 = 1_000_000_000;
    let (seconds, rest) = (now.0 / SECOND, now.0 % SECOND);
    seconds * TIMER_HZ + rest * TIMER_HZ / SECOND
}

impl AcpiPm {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// Makes the registers in their state after reset.
    pub fn new() -> Self {
        Self::default()
    }

    /// Resets the registers. The timer keeps running.
    pub fn reset(&mut self) {
        *self = Self {
            timer_toggles: self.timer_toggles,
            ..Self::default()
        };
    }

    /// Reads 1 to 4 bytes, beginning at `port`.
    pub fn read(&mut self, port: u16, size: u8, now: GuestTime) -> u32 {
        self.advance(now);
        if (port, size) == (TIMER_PORT, 4) {
            return ticks(now) as u32;
        }
        let mut value = 0;
        for position in 0..u16::from(size.min(4)) {
            let byte = self.read_byte(port.wrapping_add(position), now);
            value |= u32::from(byte) << (8 * position);
        }
        value
    }

    fn read_byte(&self, port: u16, now: GuestTime) -> u8 {
        let offset = port.wrapping_sub(BASE_PORT);
        let word = match offset & !1 {
            0x00 => self.status,
            0x02 => self.enable,
            0x04 => self.control | control::SCI_ENABLE,
            0x08 => ticks(now) as u16,
            0x0a => (ticks(now) >> 16) as u16,
            0x20 => self.gpe_status,
            0x22 => self.gpe_enable,
            _ => 0,
        };
        word.to_le_bytes()[usize::from(offset & 1)]
    }

    /// Writes 1 to 4 bytes, beginning at `port`.
    pub fn write(&mut self, port: u16, size: u8, value: u32, now: GuestTime) {
        self.advance(now);
        for position in 0..u16::from(size.min(4)) {
            self.write_byte(port.wrapping_add(position), (value >> (8 * position)) as u8);
        }
    }

    fn write_byte(&mut self, port: u16, value: u8) {
        let offset = port.wrapping_sub(BASE_PORT);
        let shift = 8 * (offset & 1);
        let bits = u16::from(value) << shift;
        let lane = 0xff << shift;
        match offset & !1 {
            0x00 => self.status &= !bits,
            0x02 => self.enable = self.enable & !lane | bits & pm1::ENABLE_MASK,
            0x04 => {
                self.control = self.control & !lane | bits & control::KEPT;
                let sleep_type = (self.control >> control::SLEEP_TYPE_SHIFT & 7) as u8;
                let soft_off = [SLEEP_TYPE_S5, CUSTOMARY_SLEEP_TYPE_S5].contains(&sleep_type);
                if bits & control::SLEEP_ENABLE != 0 && soft_off {
                    self.power_off = true;
                }
            }
            0x20 => self.gpe_status &= !bits,
            0x22 => self.gpe_enable = self.gpe_enable & !lane | bits,
            _ => {}
        }
    }

    /// Presses the power button.
    pub fn press_power_button(&mut self) {
        self.status |= pm1::POWER_BUTTON;
    }

    /// Reports that the real-time clock's alarm has gone off.
    pub fn report_alarm(&mut self) {
        self.status |= pm1::RTC;
    }

    /// Reports general-purpose event `number` (0 to 15).
    pub fn raise_general_event(&mut self, number: u8) {
        self.gpe_status |= 1_u16.checked_shl(number.into()).unwrap_or(0);
    }

    /// Drives the line of the system control interrupt.
    pub fn forward(&self, context: &mut DeviceContext<'_>) {
        context.set_line(SCI_IRQ, self.sci());
    }

    /// Whether the system control interrupt is asserted (level-triggered).
    pub fn sci(&self) -> bool {
        self.status & self.enable & pm1::ENABLE_MASK != 0 || self.gpe_status & self.gpe_enable != 0
    }

    /// Returns whether the guest has entered S5 since the last call.
    pub fn take_power_off(&mut self) -> bool {
        std::mem::take(&mut self.power_off)
    }

    /// Updates the timer's status if bit 31 of the timer has changed.
    pub fn advance(&mut self, now: GuestTime) {
        let toggles = ticks(now) >> 31;
        if toggles != self.timer_toggles {
            self.timer_toggles = toggles;
            self.status |= pm1::TIMER;
        }
    }

    /// Returns when [`AcpiPm::advance`] must be called next. It must only if the guest has enabled
    /// the timer's interrupt.
    pub fn next_deadline(&self) -> Option<GuestTime> {
        if self.enable & pm1::TIMER == 0 || self.status & pm1::TIMER != 0 {
            return None;
        }
        let target = u128::from(self.timer_toggles.saturating_add(1)) << 31;
        let nanoseconds = (target * 1_000_000_000).div_ceil(u128::from(TIMER_HZ));
        Some(GuestTime(u64::try_from(nanoseconds).unwrap_or(u64::MAX)))
    }
}

impl Device for AcpiPm {
    fn name(&self) -> &str {
        "acpi-pm"
    }

    fn claims(&self) -> Claims {
        let ports = BASE_PORT..=BASE_PORT + (PORT_COUNT - 1);
        let timer = TIMER_PORT..=TIMER_PORT + 3;
        Claims::none()
            .with_ports(ports, PortWidth::Any)
            .with_near(timer, NearUse::READ)
    }

    fn port_read(&mut self, port: u16, size: u8, context: &mut DeviceContext<'_>) -> u32 {
        let value = self.read(port, size, context.now());
        self.forward(context);
        value
    }

    fn port_write(&mut self, port: u16, size: u8, value: u32, context: &mut DeviceContext<'_>) {
        self.write(port, size, value, context.now());
        self.forward(context);
        if self.take_power_off() {
            context.request_stop(StopRequest::PowerOff);
        }
    }

    fn deadline(&self, _context: &DeviceContext<'_>) -> Option<GuestTime> {
        self.next_deadline()
    }

    fn advance(&mut self, context: &mut DeviceContext<'_>) {
        self.advance(context.now());
        self.forward(context);
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        self.reset();
    }

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        *self = saved.read(Self::STATE_VERSION)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: GuestTime = GuestTime(0);

    #[test]
    fn acpi_mode_is_always_on() {
        let mut pm = AcpiPm::new();
        assert_eq!(pm.read(PM1_CONTROL_PORT, 2, START), 1);
        pm.write(PM1_CONTROL_PORT, 2, 0, START);
        assert_eq!(pm.read(PM1_CONTROL_PORT, 2, START), 1);
    }

    #[test]
    fn entering_s5_switches_off_once_and_other_types_do_nothing() {
        let mut pm = AcpiPm::new();
        // 1 is S3 on QEMU's PCs.
        for sleep_type in [1, 2, 3, 4, 6, 7] {
            pm.write(PM1_CONTROL_PORT, 2, 1 << 13 | sleep_type << 10, START);
            assert!(!pm.take_power_off(), "{sleep_type}");
        }
        pm.write(PM1_CONTROL_PORT, 2, 5 << 10, START);
        assert!(!pm.take_power_off());
        pm.write(PM1_CONTROL_PORT, 2, 1 << 13 | 5 << 10, START);
        assert!(pm.take_power_off());
        assert!(!pm.take_power_off());
        assert_eq!(pm.read(PM1_CONTROL_PORT, 2, START), 5 << 10 | 1);
    }

    #[test]
    fn the_value_that_needs_no_acpi_tables_switches_off_too() {
        let mut pm = AcpiPm::new();
        pm.write(PM1_CONTROL_PORT, 2, 0x2000, START);
        assert!(pm.take_power_off());
    }

    #[test]
    fn the_power_button_raises_the_sci_until_its_status_is_cleared() {
        let mut pm = AcpiPm::new();
        pm.press_power_button();
        assert!(!pm.sci());
        pm.write(PM1_EVENT_PORT + 2, 2, 0xffff, START);
        assert_eq!(pm.read(PM1_EVENT_PORT + 2, 2, START), 0x721);
        assert!(pm.sci());
        pm.write(PM1_EVENT_PORT, 2, 0xff, START);
        assert!(pm.sci());
        pm.write(PM1_EVENT_PORT + 1, 1, 1, START);
        assert!(!pm.sci());
    }

    #[test]
    fn the_clocks_alarm_is_an_event_that_is_off_until_the_guest_wants_it() {
        let mut pm = AcpiPm::new();
        pm.report_alarm();
        assert_eq!(pm.read(PM1_EVENT_PORT, 2, START), 1 << 10);
        assert!(!pm.sci());
        pm.write(PM1_EVENT_PORT + 2, 2, 1 << 10, START);
        assert!(pm.sci());
        pm.write(PM1_EVENT_PORT, 2, 1 << 10, START);
        assert!(!pm.sci());
    }

    #[test]
    fn a_general_event_raises_the_sci_once_it_is_enabled_until_it_is_cleared() {
        let mut pm = AcpiPm::new();
        pm.raise_general_event(3);
        assert!(!pm.sci());
        pm.write(GPE0_PORT + 2, 1, 1 << 3, START);
        assert!(pm.sci());
        assert_eq!(pm.read(GPE0_PORT, 1, START), 1 << 3);
        pm.write(GPE0_PORT, 1, 1 << 3, START);
        assert!(!pm.sci());
        pm.raise_general_event(16);
        assert_eq!(pm.read(GPE0_PORT, 2, START), 0);
    }

    #[test]
    fn the_timer_does_not_drift() {
        let mut pm = AcpiPm::new();
        let hour = GuestTime(3_600_000_000_000);
        assert_eq!(pm.read(TIMER_PORT, 4, hour), (3600 * TIMER_HZ) as u32);
        assert_eq!(pm.read(TIMER_PORT, 4, GuestTime(1_000_000_000)), 3_579_545);
    }

    #[test]
    fn the_timers_top_bit_sets_its_status_at_the_deadline() {
        let mut pm = AcpiPm::new();
        assert_eq!(pm.next_deadline(), None);
        pm.write(PM1_EVENT_PORT + 2, 2, 1, START);
        let due = pm.next_deadline().unwrap();
        pm.advance(GuestTime(due.0 - 1));
        assert!(!pm.sci());
        pm.advance(due);
        assert!(pm.sci());
        assert_eq!(pm.read(TIMER_PORT, 4, due), 1 << 31);
        assert_eq!(pm.next_deadline(), None);
        pm.write(PM1_EVENT_PORT, 2, 1, due);
        assert!(!pm.sci());
        assert!(pm.next_deadline().unwrap() > due);
    }

    #[test]
    fn extreme_times_and_ports_are_harmless() {
        let mut pm = AcpiPm::new();
        for port in 0..=u16::MAX {
            pm.write(port, 4, u32::MAX, GuestTime(u64::MAX));
            pm.read(port, 255, GuestTime(u64::MAX));
        }
        pm.write(PM1_EVENT_PORT, 2, 1, GuestTime(u64::MAX));
        pm.next_deadline();
        // The button is still noticed, and the guest can still switch off.
        pm.write(PM1_EVENT_PORT, 2, 0xffff, GuestTime(u64::MAX));
        assert!(!pm.sci());
        pm.press_power_button();
        assert!(pm.sci());
        pm.take_power_off();
        let off = 1 << 13 | 5 << 10;
        pm.write(PM1_CONTROL_PORT, 2, off, GuestTime(u64::MAX));
        assert!(pm.take_power_off());
    }
}
