//! The PC: the board, and all devices on its bus.
//!
//! The monitor sees [`Pc`] as a [`Platform`]. `Pc` forwards accesses to the [`Bus`], keeps the
//! guest's clocks, and turns what the guest requests of the board (power-off, reset, address line
//! 20) into answers that the monitor fetches. The local APIC's page is not on the bus: it belongs
//! to the processor, so `Pc` checks each address for it first.

mod apic_page;
mod hot_plug;

use serde::{Deserialize, Serialize};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};
use tollgate_exits::blame::DeviceAddress;
use tollgate_memory::layout::DISPLAY_START;
use tollgate_memory::{GuestMemory, MemoryError};
use tollgate_network::Refusals;
use tollgate_platform::{
    GuestTime, MarkName, Near, NearAccess, NearRun, Platform, ResetCause, StopRequest,
};
use tollgate_share::RequestCounts;
use tollgate_x86::local_apic_msrs::{X2APIC_FIRST, X2APIC_LAST};
use tollgate_x86::{PhysicalAddress, local_apic_msrs};

use crate::board::dma::DmaControllers;
use crate::board::input::{Key, MouseEvent};
use crate::board::local_apic::ClockSource;
use crate::board::pic::Pic;
use crate::board::{Board, Console, local_apic};
use crate::bus::completion::KickFunction;
use crate::bus::{Bus, Device, DeviceContext, SavedState};
use crate::config::{DriveOptions, RtcBase, VmConfig};
use crate::device_list::{self, BackEnds};
use crate::devices::acpi_pm::AcpiPm;
use crate::devices::chipset::host_bridge::HostBridge440fx;
use crate::devices::chipset::rom::FirmwareRom;
use crate::devices::e1000::E1000;
use crate::devices::flash::Flash;
use crate::devices::floppy::Floppy;
use crate::devices::generation_id::{self, GenerationId};
use crate::devices::i8042::I8042;
use crate::devices::ide::pci::IdeFunction;
use crate::devices::kvm_clock::KvmClock;
use crate::devices::pci::host::PciHost;
use crate::devices::rtc::Rtc;
use crate::devices::serial::Serial;
use crate::devices::vga::Vga;
use crate::devices::vga::pci::VgaFunction;
use crate::devices::vga::screen::{Picture, Screen};
use crate::devices::virtio::balloon::control::BalloonControl;
use crate::devices::virtio::device::VirtioDevice;
use crate::devices::virtio::drive_change::DriveChange;

pub use crate::board::{GuestClock, Outside, StateError};

/// The version of the layout of [`PcState`]. Each device's state has a version of its own.
pub const PC_STATE_VERSION: u32 = 4;

/// The longest time that the threads of devices may take to finish before a state is saved.
const QUIESCE_PATIENCE: Duration = Duration::from_secs(10);

/// While an interrupt is pending, completions are handed to devices for `COMPLETIONS_AT_ONCE`
/// nanoseconds; the rest follows `COMPLETIONS_LATER` nanoseconds later.
const COMPLETIONS_AT_ONCE: u64 = 15_000;
const COMPLETIONS_LATER: u64 = 50_000;

/// The machine around the processor.
pub struct Pc {
    clock: GuestClock,
    board: Board,
    bus: Bus,
    /// Whether another thread wants the processor to stop.
    attention: bool,
    /// When the completions are due that were postponed for an interrupt.
    completions_due: Option<GuestTime>,
    /// The page of RAM that the local APIC's registers hide.
    hidden_by_apic: Option<PhysicalAddress>,
    /// Set when something arrived from outside that the devices have not seen yet.
    news: Arc<AtomicBool>,
    /// Whether every source of outside events sets `news`. If not, each advance calls every device.
    is_told_of_news: bool,
    /// The counts of requests to each shared directory.
    share_requests: Vec<Arc<RequestCounts>>,
    /// What each network has refused.
    refusals: Vec<Refusals>,
    /// The control of the balloon.
    balloon: Option<BalloonControl>,
}

/// The state of the machine without its RAM and its processor.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct PcState {
    version: u32,
    time: GuestTime,
    tsc: u64,
    // States up to version 3 lack this field; they are refused because of their version.
    #[serde(default)]
    board: SavedState,
    #[serde(default)]
    parts: Vec<(String, SavedState)>,
}

impl PcState {
    /// Returns this state with its clocks advanced by `nanoseconds` of guest time and by `ticks` of
    /// the time-stamp counter. What became due in between is not done yet.
    pub fn later(mut self, nanoseconds: u64, ticks: u64) -> Self {
        self.time = self.time.after(nanoseconds);
        self.tsc = self.tsc.wrapping_add(ticks);
        self
    }
}

impl Pc {
    /// Makes a machine that has just been switched on, with running clocks. Its devices access
    /// `memory`. The output of the first serial port goes to `serial_output`; that of the debug
    /// consoles goes to standard error until [`Pc::set_debug_output`] is called. The drives of the
    /// configuration are left out.
    pub fn new(
        config: &VmConfig,
        memory: GuestMemory,
        serial_output: Box<dyn Write + Send>,
    ) -> Self {
        Self::with_back_ends(config, memory, serial_output, BackEnds::default())
    }

    /// Like [`Pc::new`], with these virtio devices; see [`device_list::virtio_devices`].
    pub fn with_virtio(
        config: &VmConfig,
        memory: GuestMemory,
        serial_output: Box<dyn Write + Send>,
        virtio: Vec<Box<dyn VirtioDevice>>,
    ) -> Self {
        let back_ends = BackEnds {
            virtio,
            ..BackEnds::default()
        };
        Self::with_back_ends(config, memory, serial_output, back_ends)
    }

    /// Like [`Pc::new`], with everything that devices use on the host; see [`BackEnds::open`].
    pub fn with_back_ends(
        config: &VmConfig,
        memory: GuestMemory,
        serial_output: Box<dyn Write + Send>,
        back_ends: BackEnds,
    ) -> Self {
        let share_requests = (back_ends.virtio.iter())
            .filter_map(|device| device.share_requests())
            .collect();
        let plugged = back_ends.plugged.iter().map(|(_, device)| device);
        let virtio = back_ends.virtio.iter().chain(plugged);
        let of_virtio = virtio.map(|device| device.refusals());
        let of_others = back_ends.adapters.iter().map(E1000::refusals);
        let refusals = of_virtio.chain(of_others).flatten().collect();
        let balloon = (back_ends.virtio.iter()).find_map(|device| device.balloon());
        let clock = GuestClock::start();
        let debug_output = Console::new(Box::new(std::io::stderr()));
        let mut board = Board::new(memory, Console::new(serial_output), debug_output);
        if config.firmware.is_none() {
            board.dma = DmaControllers::cascaded();
            board.interrupts.pic = Pic::as_firmware_leaves_it();
        }
        let mut bus = Bus::new();
        for device in device_list::devices(config, back_ends) {
            let added = bus.add(device, &mut board, &clock);
            debug_assert_eq!(added, Ok(()));
        }
        Self {
            clock,
            board,
            bus,
            attention: false,
            completions_due: None,
            hidden_by_apic: None,
            news: Arc::default(),
            is_told_of_news: false,
            share_requests,
            refusals,
            balloon,
        }
    }

    /// Returns the control of the balloon, if there is one.
    pub fn balloon(&self) -> Option<BalloonControl> {
        self.balloon.clone()
    }

    /// Returns the records of what networks have refused to the guest.
    pub fn refusals(&self) -> &[Refusals] {
        &self.refusals
    }

    /// Returns the number of requests to shared directories, by kind.
    pub fn share_requests(&self) -> Vec<(&'static str, u64)> {
        let mut sums: Vec<(&'static str, u64)> = Vec::new();
        for counts in &self.share_requests {
            for (place, row) in counts.named().enumerate() {
                match sums.get_mut(place) {
                    Some(sum) => sum.1 += row.1,
                    None => sums.push(row),
                }
            }
        }
        sums
    }

    /// Installs the firmware's ROM, or without one the flash memory, and the display adapter's
    /// memory. The registers of the chip set decide what of it appears below 1 MiB.
    ///
    /// # Errors
    /// The host has no memory for the flash memory or the display adapter.
    pub fn set_firmware(&mut self, rom: Option<FirmwareRom>) -> Result<(), MemoryError> {
        let flash = self.with(|flash: &mut Flash, context| flash.make_memory(context));
        let flash = flash.transpose().map_err(MemoryError::Create)?.flatten();
        let video = self.with(|vga: &mut Vga, context| vga.make_memory(context.memory()));
        let video = video.transpose()?;
        self.with(|host: &mut PciHost, context| {
            if let (Some(function), Some(video)) = (host.get_mut::<VgaFunction>(), video) {
                function.set_video(video);
            }
            if let (Some(bridge), Some(rom)) = (host.get_mut::<HostBridge440fx>(), rom.or(flash)) {
                bridge.set_rom(rom);
            }
            host.place_regions(context);
        });
        Ok(())
    }

    /// Returns what the screen shows.
    pub fn screen(&mut self) -> Screen {
        let screen = self.with(|vga: &mut Vga, context| vga.screen(context.memory()));
        screen.unwrap_or_default()
    }

    /// Returns the picture on the screen, or `None` in a text mode.
    pub fn picture(&mut self) -> Option<Arc<Picture>> {
        self.with(|vga: &mut Vga, context| vga.picture(context.memory()))?
    }

    /// From now on takes serial input and requests from `outside`. The processor stops for
    /// attention once at the start.
    pub fn connect(&mut self, outside: Box<dyn Outside>) {
        self.board.outside = outside;
        self.attention = true;
    }

    /// Adds a device to the bus, after all others.
    ///
    /// # Errors
    /// The bus is full, or has a device of this name.
    pub fn add_device(&mut self, device: Box<dyn Device>) -> Result<(), crate::bus::BusError> {
        self.bus.add(device, &mut self.board, &self.clock)
    }

    /// Resets every device, as the reset line does. The clocks keep running, the real-time clock
    /// keeps its time and memory, and a pending stop request is dropped.
    pub fn reset(&mut self) {
        self.flush_output();
        self.board.reset();
        self.bus.reset(&mut self.board, &self.clock);
        self.follow_apic_page();
    }

    /// Signals INIT to the processor: its local APIC loses its settings. Devices and memory keep
    /// theirs.
    pub fn reset_processor(&mut self) {
        self.board.interrupts.local_apic.init();
    }

    /// Replaces the destination of the debug consoles' output (ports E9h and 402h).
    pub fn set_debug_output(&mut self, sink: Box<dyn Write + Send>) {
        self.board.debug_output.set_sink(sink);
    }

    /// Sets where the output of the second serial port, and what is printed, goes. Without it, it is
    /// lost.
    pub fn set_other_outputs(
        &mut self,
        serial: Box<dyn Write + Send>,
        printer: Box<dyn Write + Send>,
    ) {
        self.board.second_serial_output.set_sink(serial);
        self.board.printer_output.set_sink(printer);
    }

    /// Writes all buffered output.
    pub fn flush_output(&mut self) {
        self.board.serial_output.flush();
        self.board.second_serial_output.flush();
        self.board.printer_output.flush();
        self.board.debug_output.flush();
    }

    /// Returns the registers of the 8259 pair and of the local APIC as text.
    pub(crate) fn interrupts_described(&self) -> [String; 2] {
        let interrupts = &self.board.interrupts;
        let apic = interrupts.local_apic.described();
        [interrupts.pic.described(), apic]
    }

    /// Sends bytes to the guest's first serial port and returns how many it accepted. The caller
    /// must offer the rest again after the guest has read some.
    pub fn serial_input(&mut self, bytes: &[u8]) -> usize {
        self.with(|serial: &mut Serial, context| serial.take_input(bytes, context))
            .unwrap_or(0)
    }

    /// Returns how many bytes [`Pc::serial_input`] would accept now.
    pub fn serial_input_space(&self) -> usize {
        self.bus.get().map_or(0, Serial::input_space)
    }

    /// Presses (`down`) or releases a key of the PS/2 keyboard.
    pub fn key(&mut self, key: Key, down: bool) {
        self.with(|keyboard: &mut I8042, context| keyboard.press(key, down, context));
    }

    /// Moves the PS/2 mouse, or presses or releases its buttons.
    pub fn mouse(&mut self, event: MouseEvent) {
        self.with(|controller: &mut I8042, context| controller.mouse_event(event, context));
    }

    /// Removes the disk from a floppy drive (0 is the first), or inserts another one.
    ///
    /// # Errors
    /// One line: there is no such drive, or the disk cannot be used. The drive is then empty.
    pub fn change_floppy(
        &mut self,
        drive: usize,
        image: Option<&DriveOptions>,
    ) -> Result<(), String> {
        self.with(|floppy: &mut Floppy, context| {
            let changed = floppy.change_disk(drive, image);
            floppy.advance(context);
            changed
        })
        .unwrap_or_else(|| Err("the machine has no floppy drive".into()))
    }

    /// Removes the disc from the CD-ROM drive at a place of the IDE function, or inserts another
    /// one. With `force` it does so even if the guest has locked the drive.
    ///
    /// # Errors
    /// One line: there is no such drive, it is locked, or the image cannot be used. The drive then
    /// keeps its disc.
    pub fn change_disc(
        &mut self,
        place: usize,
        image: Option<&DriveOptions>,
        force: bool,
    ) -> Result<(), String> {
        self.with(|pci: &mut PciHost, context| {
            let function = pci.get_mut::<IdeFunction>();
            function.map(|function| function.change_disc(place, image, force, context))
        })
        .flatten()
        .unwrap_or_else(|| Err("the machine has no IDE function".into()))
    }

    /// Changes a drive of a virtio device, and tells the guest.
    ///
    /// # Errors
    /// One line: there is no such drive, or its image cannot be used. If the image before cannot be
    /// opened again either, requests of the guest fail.
    pub fn change_drive(&mut self, change: &DriveChange) -> Result<(), String> {
        let changed = (self.bus).change_drive(change, &mut self.board, &self.clock);
        changed.unwrap_or_else(|| Err("the machine has no such drive".into()))
    }

    /// Presses the power button: the guest may switch itself off.
    pub fn press_power_button(&mut self) {
        self.with(|acpi_pm: &mut AcpiPm, context| {
            acpi_pm.press_power_button();
            acpi_pm.forward(context);
        });
    }

    /// Gives the machine another generation ID, if it has one, and reports that to the guest.
    pub fn renew_generation_id(&mut self) {
        if (self.with(|id: &mut GenerationId, _| id.renew())).is_some() {
            self.with(|acpi_pm: &mut AcpiPm, context| {
                acpi_pm.raise_general_event(generation_id::EVENT);
                acpi_pm.forward(context);
            });
        }
    }

    /// Lets the real-time clock and KVM's wall clock show the host's time of day `host` from now on.
    /// Guest time, and what the guest has derived from these clocks before, do not change.
    pub fn follow_time_of_day(&mut self, base: RtcBase, host: SystemTime) {
        self.with(|rtc: &mut Rtc, context| rtc.follow_host(base, host, context.now()));
        self.with(|clock: &mut KvmClock, context| clock.follow_host(host, context.now()));
    }

    /// Presses the NMI button.
    pub fn raise_nmi(&mut self) {
        self.board.interrupts.raise_nmi();
    }

    /// Asks the monitor to stop the processor. An earlier request is kept.
    pub fn request_stop(&mut self, request: StopRequest) {
        self.board.request_stop(request);
    }

    /// Calls a function with the first device of a type, for a caller outside the guest.
    fn with<T: Device, R>(
        &mut self,
        call: impl FnOnce(&mut T, &mut DeviceContext<'_>) -> R,
    ) -> Option<R> {
        self.bus.with(&mut self.board, &self.clock, call)
    }

    /// Stops the guest's clocks.
    pub fn pause(&mut self) {
        self.flush_output();
        self.clock.pause();
    }

    /// Lets the guest's clocks continue from where they stopped.
    pub fn resume(&mut self) {
        self.clock.resume();
    }

    /// Lets the guest's clocks continue as if there had been no pause, and reports the pause to a
    /// guest that uses KVM's clock.
    pub fn resume_and_catch_up(&mut self) {
        self.clock.resume_and_catch_up();
        self.with(|clock: &mut KvmClock, context| clock.was_paused(context));
    }

    /// Returns the guest's clocks.
    pub fn clock(&self) -> &GuestClock {
        &self.clock
    }

    /// Returns how many ticks the guest's time-stamp counter makes in a millisecond.
    pub fn tsc_khz(&self) -> u64 {
        self.clock.tsc_khz()
    }

    /// Returns the name of the device that answers at a port or an address.
    pub fn device_name(&self, address: DeviceAddress) -> Option<&str> {
        let apic = self.board.interrupts.local_apic.page();
        match address {
            DeviceAddress::Memory(at) if apic == Some(at & !0xfff) => Some("local-apic"),
            _ => self.bus.name_at(address),
        }
    }

    /// Sets the function that makes the vCPU's thread leave guest code when a device's thread has
    /// finished some work. `None` means that the guest does not run.
    pub fn set_kick(&mut self, kick: Option<KickFunction>) {
        self.is_told_of_news = kick.is_some();
        self.news.store(true, Ordering::Release);
        self.bus.set_kick(kick);
    }

    /// Returns the flag that a kick must set: something arrived from outside, so every device must
    /// be called. While a kick function is set and the flag is clear, each device is called only at
    /// its own deadline.
    pub fn news(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.news)
    }

    /// Waits until no device has unfinished work.
    ///
    /// # Errors
    /// [`StateError::Busy`]: the threads of a device do not finish.
    pub fn finish_work(&mut self) -> Result<(), StateError> {
        self.bus
            .quiesce(&mut self.board, &self.clock, QUIESCE_PATIENCE)
    }

    /// Waits until no device has unfinished work, and returns the state of all devices and clocks.
    ///
    /// # Errors
    /// [`StateError::Busy`]: the threads of a device do not finish; [`StateError::InUse`]: the guest
    /// uses something of the host that the state does not contain.
    pub fn save(&mut self) -> Result<PcState, StateError> {
        self.finish_work()?;
        self.report_alarm();
        self.bus.can_be_saved()?;
        Ok(PcState {
            version: PC_STATE_VERSION,
            time: self.clock.now(),
            tsc: self.clock.time_stamp(),
            board: self.board.save(),
            parts: self.bus.save(),
        })
    }

    /// Restores a saved state. The clocks continue from the saved values; they run or stand still
    /// as they do now. The time-stamp counter runs at this host's frequency.
    ///
    /// # Errors
    /// [`StateError`]: the state, or that of a device, has a layout that this program cannot read,
    /// or belongs to a machine with other devices, or the threads of a device do not finish.
    /// Nothing has changed then.
    pub fn restore(&mut self, state: PcState) -> Result<(), StateError> {
        if state.version != PC_STATE_VERSION {
            return Err(StateError::Version {
                part: "machine".into(),
                found: state.version,
                expected: PC_STATE_VERSION,
            });
        }
        self.finish_work()?;
        let before = self.board.save();
        self.board.restore(&state.board)?;
        if let Err(error) = self.bus.restore(&state.parts) {
            self.board.restore(&before)?;
            return Err(error);
        }
        self.clock = if self.clock.is_paused() {
            GuestClock::paused_at(state.time, state.tsc)
        } else {
            GuestClock::start_from(state.time, state.tsc)
        };
        self.bus.settle(&mut self.board, &self.clock);
        self.with(|clock: &mut KvmClock, context| clock.publish(context));
        self.with(|host: &mut PciHost, context| host.place_regions(context));
        self.with(|flash: &mut Flash, context| flash.place_regions(context));
        self.with(|vga: &mut Vga, context| vga.follow(context));
        self.follow_apic_page();
        Ok(())
    }

    fn near_apic_read(&mut self, offset: u16) -> Near {
        let apic = &mut self.board.interrupts.local_apic;
        let mut data = [0; 4];
        apic.read(offset, &mut data, &self.clock);
        Near::Done(u32::from_le_bytes(data).into())
    }

    fn near_apic_write(&mut self, offset: u16, value: u32) -> Near {
        let interrupts = &mut self.board.interrupts;
        if !interrupts.local_apic.is_near(offset, value) {
            return Near::No;
        }
        let deadline = interrupts.local_apic.next_deadline();
        let data = value.to_le_bytes();
        if let Some(vector) = interrupts.local_apic.write(offset, &data, &self.clock) {
            interrupts.end_of_interrupt(vector);
        }
        Near::done(0, deadline, interrupts.local_apic.next_deadline())
    }

    fn near_msr_read(&mut self, index: u32) -> Near {
        let apic = &mut self.board.interrupts.local_apic;
        match apic.msr_read(index, &self.clock) {
            Some(value) => Near::Done(value),
            None => Near::No,
        }
    }

    fn near_msr_write(&mut self, index: u32, value: u64) -> Near {
        let interrupts = &mut self.board.interrupts;
        let deadline = interrupts.local_apic.next_deadline();
        if index == local_apic_msrs::TSC_DEADLINE {
            (interrupts.local_apic).set_tsc_deadline_msr(value, &self.clock.clock());
        } else if interrupts.local_apic.is_near_msr(index, value) {
            interrupts.write_x2apic(index, value, &self.clock);
        } else {
            return Near::No;
        }
        Near::done(0, deadline, interrupts.local_apic.next_deadline())
    }

    /// Returns the offset of the address in the local APIC's page, or `None` outside of the page.
    fn local_apic_offset(&self, address: PhysicalAddress) -> Option<u16> {
        let page = self.board.interrupts.local_apic.page()?;
        let offset = address.0.wrapping_sub(page);
        (offset < local_apic::REGISTER_BYTES).then_some(offset as u16)
    }
}

impl Pc {
    /// Reports an alarm of the real-time clock to ACPI's fixed hardware, if it has gone off.
    fn report_alarm(&mut self) {
        if std::mem::take(&mut self.board.alarm_rang) {
            self.with(|acpi_pm: &mut AcpiPm, context| {
                acpi_pm.report_alarm();
                acpi_pm.forward(context);
            });
        }
    }

    /// Brings all devices to the present time. Completions of other threads are postponed as soon
    /// as `stops` returns true.
    fn advance_until(&mut self, stops: impl Fn(&Board, GuestTime) -> bool) {
        let clock = self.clock.clock();
        let guest_clock = &self.clock;
        let stops = |board: &Board| stops(board, guest_clock.now());
        let is_left = self
            .bus
            .take_completions_until(&mut self.board, guest_clock, stops);
        self.completions_due = is_left.then(|| guest_clock.now().after(COMPLETIONS_LATER));
        self.board.interrupts.local_apic.advance(&clock);
        if self.news.swap(false, Ordering::AcqRel) || !self.is_told_of_news {
            self.bus.advance(&mut self.board, &self.clock);
        } else {
            self.bus
                .advance_due(&mut self.board, &self.clock, clock.now);
        }
        self.report_alarm();
        self.board.serial_output.advance(clock.now);
        self.board.second_serial_output.advance(clock.now);
        self.board.printer_output.advance(clock.now);
        self.board.debug_output.advance(clock.now);
        self.attention |= self.board.outside.wants_attention();
    }
}

/// Whether the local APIC's registers support an access of this size at this offset.
fn is_apic_access(offset: u16, size: u8) -> bool {
    size == 4 && offset.is_multiple_of(4)
}

impl Platform for Pc {
    fn port_read(&mut self, port: u16, size: u8) -> u32 {
        self.bus.port_read(port, size, &mut self.board, &self.clock)
    }

    fn port_write(&mut self, port: u16, size: u8, value: u32) {
        self.bus
            .port_write(port, size, value, &mut self.board, &self.clock);
    }

    fn memory_read(&mut self, address: PhysicalAddress, data: &mut [u8]) {
        if let Some(offset) = self.local_apic_offset(address) {
            let apic = &mut self.board.interrupts.local_apic;
            apic.read(offset, data, &self.clock);
        } else {
            self.bus
                .memory_read(address, data, &mut self.board, &self.clock);
        }
    }

    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]) {
        if let Some(offset) = self.local_apic_offset(address) {
            let interrupts = &mut self.board.interrupts;
            if let Some(vector) = interrupts.local_apic.write(offset, data, &self.clock) {
                interrupts.end_of_interrupt(vector);
            }
        } else {
            self.bus
                .memory_write(address, data, &mut self.board, &self.clock);
        }
    }

    fn near(&mut self, access: NearAccess) -> Near {
        match access {
            NearAccess::MemoryRead { address, size } => match self.local_apic_offset(address) {
                Some(offset) if is_apic_access(offset, size) => self.near_apic_read(offset),
                Some(_) => Near::No,
                None => self.bus.near(access, &mut self.board, &self.clock),
            },
            NearAccess::MemoryWrite {
                address,
                size,
                value,
            } => match self.local_apic_offset(address) {
                Some(offset) if is_apic_access(offset, size) => {
                    self.near_apic_write(offset, value as u32)
                }
                Some(_) => Near::No,
                None => self.bus.near(access, &mut self.board, &self.clock),
            },
            NearAccess::MsrRead(index) => self.near_msr_read(index),
            NearAccess::MsrWrite(index, value) => self.near_msr_write(index, value),
            _ => self.bus.near(access, &mut self.board, &self.clock),
        }
    }

    fn near_page(&self) -> Option<PhysicalAddress> {
        self.board.interrupts.local_apic.page().map(PhysicalAddress)
    }

    fn near_display(&self) -> Option<PhysicalAddress> {
        Some(PhysicalAddress(DISPLAY_START))
    }

    fn near_run(&mut self, run: NearRun<'_>) -> Near {
        let is_apic = |place| self.local_apic_offset(place).is_some();
        match run.places().into_iter().flatten().any(is_apic) {
            true => Near::No,
            false => self.bus.near_run(run, &mut self.board, &self.clock),
        }
    }

    /// Reads IA32_APIC_BASE, a register of x2APIC mode, or IA32_TSC_DEADLINE. The latter is in
    /// ticks of [`Platform::time_stamp`], because the guest's own TSC offset is not known here.
    fn msr_read(&mut self, index: u32) -> Option<u64> {
        let apic = &mut self.board.interrupts.local_apic;
        match index {
            local_apic_msrs::APIC_BASE => Some(apic.base_msr()),
            local_apic_msrs::TSC_DEADLINE => Some(apic.tsc_deadline_msr()),
            X2APIC_FIRST..=X2APIC_LAST => apic.msr_read(index, &self.clock),
            _ => self
                .bus
                .get()
                .and_then(|clock: &KvmClock| clock.msr_read(index)),
        }
    }

    fn msr_write(&mut self, index: u32, value: u64) -> Option<bool> {
        let apic = &mut self.board.interrupts.local_apic;
        match index {
            local_apic_msrs::APIC_BASE => {
                let accepted = apic.set_base_msr(value);
                self.follow_apic_page();
                Some(accepted)
            }
            local_apic_msrs::TSC_DEADLINE => {
                apic.set_tsc_deadline_msr(value, &self.clock.clock());
                Some(true)
            }
            X2APIC_FIRST..=X2APIC_LAST => {
                let interrupts = &mut self.board.interrupts;
                Some(interrupts.write_x2apic(index, value, &self.clock))
            }
            _ => {
                let taken = self
                    .with(|clock: &mut KvmClock, context| clock.msr_write(index, value, context));
                taken.unwrap_or(false).then_some(true)
            }
        }
    }

    fn task_priority(&mut self) -> u8 {
        self.board.interrupts.local_apic.task_priority() >> 4
    }

    fn set_task_priority(&mut self, class: u8) {
        let apic = &mut self.board.interrupts.local_apic;
        apic.set_task_priority(class << 4);
    }

    fn interrupt_pending(&mut self) -> bool {
        self.board.interrupts.pending()
    }

    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.board.interrupts.acknowledge()
    }

    fn take_nmi(&mut self) -> bool {
        !self.board.nmi_masked && self.board.interrupts.take_nmi()
    }

    fn now(&self) -> GuestTime {
        self.clock.now()
    }

    fn next_deadline(&self) -> Option<GuestTime> {
        [
            self.board.interrupts.local_apic.next_deadline(),
            self.bus.deadline(),
            self.board.serial_output.next_deadline(),
            self.board.second_serial_output.next_deadline(),
            self.board.printer_output.next_deadline(),
            self.board.debug_output.next_deadline(),
            self.completions_due,
        ]
        .into_iter()
        .flatten()
        .min()
    }

    fn advance(&mut self) {
        self.advance_until(|_, _| false);
    }

    fn advance_some(&mut self) {
        let begun = self.clock.now();
        self.advance_until(|board, now| {
            board.interrupts.pending() && now.since(begun) > COMPLETIONS_AT_ONCE
        });
    }

    fn time_stamp(&self) -> u64 {
        self.clock.time_stamp()
    }

    fn host_time_stamp_offset(&self) -> u64 {
        self.clock.host_tsc_offset()
    }

    fn a20_enabled(&self) -> bool {
        self.board.a20
    }

    fn request_mark(&mut self, name: MarkName) {
        self.board.request_stop(StopRequest::Mark(name));
    }

    fn take_stop_request(&mut self) -> Option<StopRequest> {
        if self.board.interrupts.local_apic.take_init() {
            self.board
                .request_stop(StopRequest::ProcessorReset(ResetCause::InitMessage));
        }
        // The guest's own request comes first. A snapshot that is taken for a command does not hold it,
        // so a machine restored from there would never end.
        if let Some(request) = self.board.stop.take() {
            self.flush_output();
            return Some(request);
        }
        std::mem::take(&mut self.attention).then_some(StopRequest::Attention)
    }

    fn signal_fpu_error(&mut self) {
        self.board.fpu_error.signal();
        self.board.forward_fpu_error();
    }

    fn ignores_fpu_error(&self) -> bool {
        self.board.fpu_error.is_ignored()
    }

    fn fpu_error_cleared(&mut self) {
        self.board.fpu_error.error_cleared();
    }
}

impl Drop for Pc {
    fn drop(&mut self) {
        self.flush_output();
    }
}

#[cfg(test)]
mod tests;
