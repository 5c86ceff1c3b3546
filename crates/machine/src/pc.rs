//! The PC: every device, and the board that joins them.
//!
//! [`Pc`] is what the monitor sees as a [`Platform`]. It routes ports and device
//! memory to the devices, their interrupt lines to the controllers, keeps the guest's
//! clocks, and turns what the guest asks of the board (power-off, reset, address
//! line 20) into answers that the monitor fetches.

mod clock;
mod console;
mod devices;
mod interrupts;
mod lost_ticks;
mod outside;
mod ports;

pub use clock::GuestClock;
pub use devices::Devices;
pub use interrupts::Interrupts;
pub use outside::Outside;

use console::Console;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::fmt;
use std::io::Write;
use tollgate_platform::{GuestTime, Platform, StopRequest};
use tollgate_x86::PhysicalAddress;

use crate::config::VmConfig;
use crate::devices::local_apic::ClockSource;
use crate::devices::{i8042, io_apic, local_apic};

/// Version of [`PcState`]; changes with the layout of any device's state.
pub const PC_STATE_VERSION: u32 = 3;

/// The machine around the processor.
pub struct Pc {
    clock: GuestClock,
    devices: Devices,
    serial_output: Console,
    debug_output: Console,
    stop: Option<StopRequest>,
    outside: Box<dyn Outside>,
    /// Somebody outside wants the processor to stop.
    attention: bool,
    /// Deadline of all devices but the local APIC, which reprograms often and answers
    /// fast. The inner `None` is "never", the outer one "not known".
    slow_deadline: Cell<Option<Option<GuestTime>>>,
}

/// All that the machine remembers, apart from RAM and processor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PcState {
    version: u32,
    time: GuestTime,
    tsc: u64,
    devices: Devices,
}

impl PcState {
    /// The same machine with its clocks `nanoseconds` of guest time and `ticks` of the
    /// time-stamp counter later, and with nothing done yet that became due meanwhile.
    pub fn later(mut self, nanoseconds: u64, ticks: u64) -> Self {
        self.time = self.time.after(nanoseconds);
        self.tsc = self.tsc.wrapping_add(ticks);
        self
    }
}

/// A saved state comes from a program with another layout.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct VersionMismatch {
    /// Version of the saved state.
    pub found: u32,
    /// Version that this program reads.
    pub expected: u32,
}

impl fmt::Display for VersionMismatch {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            formatter,
            "saved machine state has version {}, this program reads version {}",
            self.found, self.expected
        )
    }
}

impl std::error::Error for VersionMismatch {}

impl Pc {
    /// A machine just switched on, with its clocks running. What the guest sends over
    /// the first serial port goes to `serial_output`; debug consoles print to standard
    /// error until [`Pc::set_debug_output`].
    pub fn new(config: &VmConfig, serial_output: Box<dyn Write + Send>) -> Self {
        Self {
            clock: GuestClock::start(),
            devices: Devices::new(config),
            serial_output: Console::new(serial_output),
            debug_output: Console::new(Box::new(std::io::stderr())),
            stop: None,
            outside: Box::new(outside::Nobody),
            attention: false,
            slow_deadline: Cell::new(None),
        }
    }

    /// Resets every device, as the reset line does. The clocks run on, the real-time
    /// clock keeps its time and memory, and a stop that waits is forgotten.
    pub fn reset(&mut self) {
        self.flush_output();
        self.devices.reset(self.clock.now());
        self.stop = None;
        self.slow_deadline.set(None);
    }

    /// Sends the serial port's output somewhere else from now on.
    pub fn set_serial_output(&mut self, sink: Box<dyn Write + Send>) {
        self.serial_output.set_sink(sink);
    }

    /// Sends the debug consoles' output (ports E9h and 402h) somewhere else from now on.
    pub fn set_debug_output(&mut self, sink: Box<dyn Write + Send>) {
        self.debug_output.set_sink(sink);
    }

    /// Writes out all output that is still gathered.
    pub fn flush_output(&mut self) {
        self.serial_output.flush();
        self.debug_output.flush();
    }

    /// Sends bytes to the guest's first serial port; returns how many it took. The rest
    /// must be offered again when the guest has read some.
    pub fn serial_input(&mut self, bytes: &[u8]) -> usize {
        let taken = self.devices.serial.push_input(bytes);
        self.devices.forward_serial();
        self.slow_deadline.set(None);
        taken
    }

    /// How many bytes [`Pc::serial_input`] would take now.
    pub fn serial_input_space(&self) -> usize {
        self.devices.serial.input_space()
    }

    /// Someone presses (`down`) or releases a key of the PS/2 keyboard.
    pub fn key(&mut self, key: i8042::Key, down: bool) {
        let now = self.clock.now();
        self.devices.keyboard.key(key, down, now);
        self.devices.forward_keyboard();
        self.slow_deadline.set(None);
    }

    /// Someone presses the power button: the guest may switch itself off.
    pub fn press_power_button(&mut self) {
        self.devices.acpi_pm.press_power_button();
        self.devices.forward_sci();
    }

    /// Someone presses the NMI button.
    pub fn raise_nmi(&mut self) {
        self.devices.interrupts.raise_nmi();
    }

    /// Asks the monitor to stop the processor. An earlier request stands.
    pub fn request_stop(&mut self, request: StopRequest) {
        self.stop.get_or_insert(request);
    }

    /// Stops the guest's clocks.
    pub fn pause(&mut self) {
        self.flush_output();
        self.clock.pause();
    }

    /// Lets the guest's clocks run on from where they stopped.
    pub fn resume(&mut self) {
        self.clock.resume();
    }

    /// The guest's clocks.
    pub fn clock(&self) -> &GuestClock {
        &self.clock
    }

    /// Ticks of the guest's time-stamp counter in a millisecond.
    pub fn tsc_khz(&self) -> u64 {
        self.clock.tsc_khz()
    }

    /// The state of all devices and clocks.
    pub fn save(&self) -> PcState {
        PcState {
            version: PC_STATE_VERSION,
            time: self.clock.now(),
            tsc: self.clock.time_stamp(),
            devices: self.devices.clone(),
        }
    }

    /// Puts a saved state in place. The clocks go on from the saved values, running or
    /// paused as they are now. The time-stamp counter runs at this host's frequency.
    ///
    /// # Errors
    /// [`VersionMismatch`]; nothing was changed.
    pub fn restore(&mut self, state: PcState) -> Result<(), VersionMismatch> {
        if state.version != PC_STATE_VERSION {
            return Err(VersionMismatch {
                found: state.version,
                expected: PC_STATE_VERSION,
            });
        }
        self.clock = if self.clock.is_paused() {
            GuestClock::paused_at(state.time, state.tsc)
        } else {
            GuestClock::start_from(state.time, state.tsc)
        };
        self.devices = state.devices;
        self.stop = None;
        self.slow_deadline.set(None);
        Ok(())
    }

    /// Collects what a device access has led to on the board.
    fn collect_requests(&mut self) {
        self.slow_deadline.set(None);
        if let Some(request) = self.devices.take_request() {
            self.request_stop(request);
        }
    }

    fn slow_deadline(&self) -> Option<GuestTime> {
        if let Some(known) = self.slow_deadline.get() {
            return known;
        }
        let deadline = self.devices.next_deadline(self.clock.now());
        self.slow_deadline.set(Some(deadline));
        deadline
    }

    /// Offset inside the local APIC's page, if the address lies there.
    fn local_apic_offset(&self, address: PhysicalAddress) -> Option<u16> {
        let apic = &self.devices.interrupts.local_apic;
        let offset = address.0.wrapping_sub(apic.base_address());
        (offset < local_apic::REGISTER_BYTES && apic.is_enabled()).then_some(offset as u16)
    }
}

/// Offset inside the I/O APIC's page, if the address lies there.
fn io_apic_offset(address: PhysicalAddress) -> Option<u16> {
    let offset = address.0.wrapping_sub(io_apic::BASE_ADDRESS);
    (offset < io_apic::REGISTER_BYTES).then_some(offset as u16)
}

impl Platform for Pc {
    fn port_read(&mut self, port: u16, size: u8) -> u32 {
        self.read_port(port, size)
    }

    fn port_write(&mut self, port: u16, size: u8, value: u32) {
        self.write_port(port, size, value);
    }

    fn memory_read(&mut self, address: PhysicalAddress, data: &mut [u8]) {
        if let Some(offset) = self.local_apic_offset(address) {
            let apic = &mut self.devices.interrupts.local_apic;
            apic.read(offset, data, &self.clock);
        } else if let Some(offset) = io_apic_offset(address) {
            self.devices.interrupts.io_apic.read(offset, data);
        } else {
            data.fill(0xff);
        }
    }

    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]) {
        if let Some(offset) = self.local_apic_offset(address) {
            let interrupts = &mut self.devices.interrupts;
            if let Some(vector) = interrupts.local_apic.write(offset, data, &self.clock) {
                interrupts.end_of_interrupt(vector);
            }
        } else if let Some(offset) = io_apic_offset(address) {
            let interrupts = &mut self.devices.interrupts;
            interrupts
                .io_apic
                .write(offset, data, &mut interrupts.local_apic);
        }
    }

    /// IA32_APIC_BASE and IA32_TSC_DEADLINE, which is in ticks of [`Platform::time_stamp`]:
    /// the guest's own offset is not known here.
    fn msr_read(&mut self, index: u32) -> Option<u64> {
        let apic = &self.devices.interrupts.local_apic;
        match index {
            local_apic::MSR_APIC_BASE => Some(apic.base_msr()),
            local_apic::MSR_TSC_DEADLINE => Some(apic.tsc_deadline_msr()),
            _ => None,
        }
    }

    fn msr_write(&mut self, index: u32, value: u64) -> Option<bool> {
        let apic = &mut self.devices.interrupts.local_apic;
        match index {
            local_apic::MSR_APIC_BASE => Some(apic.set_base_msr(value)),
            local_apic::MSR_TSC_DEADLINE => {
                apic.set_tsc_deadline_msr(value, &self.clock.clock());
                Some(true)
            }
            _ => None,
        }
    }

    fn task_priority(&mut self) -> u8 {
        self.devices.interrupts.local_apic.task_priority() >> 4
    }

    fn set_task_priority(&mut self, class: u8) {
        let apic = &mut self.devices.interrupts.local_apic;
        apic.set_task_priority(class << 4);
    }

    fn interrupt_pending(&mut self) -> bool {
        self.devices.interrupts.pending()
    }

    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.devices.interrupts.acknowledge()
    }

    fn take_nmi(&mut self) -> bool {
        !self.devices.rtc.nmi_disabled() && self.devices.interrupts.take_nmi()
    }

    fn now(&self) -> GuestTime {
        self.clock.now()
    }

    fn next_deadline(&self) -> Option<GuestTime> {
        [
            self.devices.interrupts.local_apic.next_deadline(),
            self.slow_deadline(),
            self.serial_output.next_deadline(),
            self.debug_output.next_deadline(),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn advance(&mut self) {
        let clock = self.clock.clock();
        self.devices.advance(&clock);
        self.serial_output.advance(clock.now);
        self.debug_output.advance(clock.now);
        self.slow_deadline.set(None);
        self.look_outside();
    }

    fn time_stamp(&self) -> u64 {
        self.clock.time_stamp()
    }

    fn host_time_stamp_offset(&self) -> u64 {
        self.clock.host_tsc_offset()
    }

    fn a20_enabled(&self) -> bool {
        self.devices.a20
    }

    fn take_stop_request(&mut self) -> Option<StopRequest> {
        if std::mem::take(&mut self.attention) {
            return Some(StopRequest::Attention);
        }
        let request = self.stop.take();
        if request.is_some() {
            self.flush_output();
        }
        request
    }

    fn signal_fpu_error(&mut self) {
        self.devices.fpu_error.signal();
        self.devices.forward_fpu_error();
    }

    fn ignores_fpu_error(&self) -> bool {
        self.devices.fpu_error.is_ignored()
    }

    fn fpu_error_cleared(&mut self) {
        self.devices.fpu_error.error_cleared();
    }
}

impl Drop for Pc {
    fn drop(&mut self) {
        self.flush_output();
    }
}

#[cfg(test)]
mod tests;
