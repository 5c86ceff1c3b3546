//! All devices of the PC, as one structure that can be saved.

use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};
use tollgate_memory::PhysicalLayout;
use tollgate_platform::{GuestTime, StopRequest};

use super::interrupts::Interrupts;
use super::lost_ticks::LostTicks;
use crate::config::{RtcBase, VmConfig};
use crate::devices::acpi_pm::{self, AcpiPm};
use crate::devices::debug_ports::{DebugConsole, DebugExit, PostCode};
use crate::devices::fpu_error::FpuError;
use crate::devices::i8042::I8042;
use crate::devices::local_apic::Clock;
use crate::devices::pit::Pit;
use crate::devices::reset_ports::{ResetControl, SystemControlPort};
use crate::devices::rtc::Rtc;
use crate::devices::serial::Serial;
use crate::devices::speaker_port::SpeakerPort;

/// Every device of the machine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Devices {
    /// Interrupt controllers.
    pub interrupts: Interrupts,
    /// Interval timer.
    pub pit: Pit,
    /// Its interrupts that the guest could not take in time.
    pub lost_ticks: LostTicks,
    /// Port 61h.
    pub speaker_port: SpeakerPort,
    /// Clock and CMOS memory.
    pub rtc: Rtc,
    /// COM1.
    pub serial: Serial,
    /// Keyboard controller.
    pub keyboard: I8042,
    /// ACPI fixed hardware.
    pub acpi_pm: AcpiPm,
    /// Console at port E9h.
    pub bochs_console: DebugConsole,
    /// Console at port 402h.
    pub firmware_console: DebugConsole,
    /// Port 80h.
    pub post_code: PostCode,
    /// Ports F4h to F7h.
    pub debug_exit: DebugExit,
    /// Port CF9h.
    pub reset_control: ResetControl,
    /// Port 92h.
    pub system_control: SystemControlPort,
    /// Ports F0h and F1h.
    pub fpu_error: FpuError,
    /// Address line 20 is passed through.
    pub a20: bool,
}

/// Nanoseconds since 1970 that the real-time clock shows first.
fn rtc_start(base: RtcBase) -> u64 {
    let universal = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |since| since.as_nanos());
    let universal = u64::try_from(universal).unwrap_or(0);
    match base {
        RtcBase::Universal => universal,
        RtcBase::Local => {
            let offset = local_offset((universal / 1_000_000_000) as i64);
            universal.saturating_add_signed(offset.saturating_mul(1_000_000_000))
        }
    }
}

/// Seconds by which local time is ahead of universal time; zero if unknown.
fn local_offset(seconds: i64) -> i64 {
    let mut broken_down = std::mem::MaybeUninit::<libc::tm>::uninit();
    // SAFETY: both pointers are valid; a non-null result says that it was filled in.
    let filled = unsafe { libc::localtime_r(&seconds, broken_down.as_mut_ptr()) };
    if filled.is_null() {
        return 0;
    }
    // SAFETY: localtime_r succeeded and has filled the structure in.
    unsafe { broken_down.assume_init() }.tm_gmtoff
}

impl Devices {
    /// Devices after power-up, as firmware would leave them.
    pub fn new(config: &VmConfig) -> Self {
        let mut rtc = Rtc::new(rtc_start(config.rtc_base));
        let layout = PhysicalLayout::new(config.memory_bytes);
        rtc.set_memory_sizes(layout.low_bytes(), layout.high_bytes());
        Self::with_rtc(rtc)
    }

    fn with_rtc(rtc: Rtc) -> Self {
        Self {
            interrupts: Interrupts::new(),
            pit: Pit::new(),
            lost_ticks: LostTicks::default(),
            speaker_port: SpeakerPort::new(),
            rtc,
            serial: Serial::new(),
            keyboard: I8042::new(),
            acpi_pm: AcpiPm::new(),
            bochs_console: DebugConsole::default(),
            firmware_console: DebugConsole::default(),
            post_code: PostCode::default(),
            debug_exit: DebugExit::default(),
            reset_control: ResetControl::default(),
            system_control: SystemControlPort::new(),
            fpu_error: FpuError::default(),
            a20: true,
        }
    }

    /// Resets all devices. The battery keeps the real-time clock going; its RESET pin
    /// disables its interrupts. Serial input that the guest has not read is lost.
    pub fn reset(&mut self, now: GuestTime) {
        const CONTROL_B: u8 = 0x0b;
        const CONTROL_C: u8 = 0x0c;
        /// PIE, AIE, UIE and SQWE.
        const CLEARED_BY_RESET: u8 = 0x78;
        let (index, data) = (*Rtc::PORTS.start(), *Rtc::PORTS.end());
        self.rtc.write(index, CONTROL_B, now);
        let control = self.rtc.read(data, now);
        self.rtc.write(data, control & !CLEARED_BY_RESET, now);
        self.rtc.write(index, CONTROL_C, now);
        self.rtc.read(data, now);

        let mut acpi_pm = self.acpi_pm.clone();
        acpi_pm.reset();
        *self = Self {
            acpi_pm,
            ..Self::with_rtc(self.rtc.clone())
        };
    }

    /// Hands COM1's interrupt line on.
    pub fn forward_serial(&mut self) {
        let interrupts = &mut self.interrupts;
        self.serial
            .irq_line()
            .forward(|level| interrupts.set_line(Serial::COM1_IRQ, level));
    }

    /// Hands the keyboard controller's lines on.
    pub fn forward_keyboard(&mut self) {
        let interrupts = &mut self.interrupts;
        self.keyboard
            .keyboard_irq_line()
            .forward(|level| interrupts.set_line(I8042::KEYBOARD_IRQ, level));
        self.keyboard
            .auxiliary_irq_line()
            .forward(|level| interrupts.set_line(I8042::AUXILIARY_IRQ, level));
    }

    /// Hands the interval timer's line on, with an edge that was lost before if one is due.
    pub fn forward_pit(&mut self, now: GuestTime) {
        let interrupts = &mut self.interrupts;
        let line = self.pit.irq_line();
        let edges = line.forward(|level| interrupts.set_line(Pit::IRQ, level));
        self.lost_ticks.saw(edges, now);
        if self.lost_ticks.take(now) {
            line.record(1, line.level());
            line.forward(|level| interrupts.set_line(Pit::IRQ, level));
        }
    }

    /// Writes one of the interval timer's ports.
    pub fn write_pit(&mut self, port: u16, value: u8, now: GuestTime) {
        self.pit.write(port, value, now);
        self.forward_pit(now);
        if Pit::sets_timer_interrupt(port, value) {
            self.lost_ticks.forget();
        }
    }

    /// Hands the real-time clock's line on.
    pub fn forward_rtc(&mut self) {
        let interrupts = &mut self.interrupts;
        self.rtc
            .irq_line()
            .forward(|level| interrupts.set_line(Rtc::IRQ, level));
    }

    /// Hands the system control interrupt on.
    pub fn forward_sci(&mut self) {
        self.interrupts
            .set_line(acpi_pm::SCI_IRQ, self.acpi_pm.sci());
    }

    /// Drives the x87's error line.
    pub fn forward_fpu_error(&mut self) {
        self.interrupts
            .set_line(FpuError::IRQ, self.fpu_error.line());
    }

    /// Sets address line 20's gate, which two devices show.
    pub fn set_a20(&mut self, enabled: bool) {
        self.a20 = enabled;
        self.keyboard.set_a20(enabled);
        self.system_control.set_a20(enabled);
    }

    /// Takes what the guest has asked of the board since the last call.
    pub fn take_request(&mut self) -> Option<StopRequest> {
        if let Some(code) = self.debug_exit.take_request() {
            return Some(StopRequest::DebugExit(code));
        }
        if self.acpi_pm.take_power_off() {
            return Some(StopRequest::PowerOff);
        }
        let resets = [
            self.keyboard.take_reset_request(),
            self.system_control.take_reset_request(),
            self.reset_control.take_reset_request(),
        ];
        resets.contains(&true).then_some(StopRequest::Reset)
    }

    /// When [`Devices::advance`] is next needed by a device other than the local APIC.
    pub fn next_deadline(&self, now: GuestTime) -> Option<GuestTime> {
        [
            self.pit.next_deadline(),
            self.lost_ticks.next_deadline(),
            self.rtc.next_deadline(now),
            self.keyboard.next_deadline(now),
            self.serial.next_deadline(now),
            self.acpi_pm.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Lets every timer fire that is due.
    pub fn advance(&mut self, clock: &Clock) {
        self.interrupts.local_apic.advance(clock);
        self.pit.advance(clock.now);
        self.forward_pit(clock.now);
        self.rtc.advance(clock.now);
        self.forward_rtc();
        self.keyboard.advance(clock.now);
        self.forward_keyboard();
        self.serial.advance(clock.now);
        self.forward_serial();
        self.acpi_pm.advance(clock.now);
        self.forward_sci();
    }
}
