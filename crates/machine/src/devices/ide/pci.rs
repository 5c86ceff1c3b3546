//! The IDE function of the PIIX3 on the PCI bus.

use super::channel::{Channel, State};
use super::registers::register;
use super::unit::Unit;
use crate::bus::completion::Completer;
use crate::bus::{Claims, DeviceContext, PortClaim, SavedState, StateError};
use crate::devices::medium::Medium;
use crate::devices::pci::config_space::{BarKind, Command, ConfigSpace, Identity};
use crate::devices::pci::function::PciFunction;
use tollgate_disk::DriveOptions;

const IDENTITY: Identity = Identity {
    vendor: 0x8086,
    device: 0x7010,
    revision: 0,
    // An IDE controller with bus master, at its traditional addresses.
    class: 0x01_01_80,
    subsystem_vendor: 0x1af4,
    subsystem: 0x1100,
};

/// The registers of the bus masters: 8 bytes for each channel.
const MASTER_BAR: usize = 4;
/// The timing register of the first channel, 16 bits. That of the second follows it (2.7.11).
const TIMING: usize = 0x40;
/// In the timing register: the channel answers at its ports.
const DECODE: u16 = 1 << 15;

const NO_SUCH_DRIVE: &str = "the machine has no such drive";

/// Returns a unit's name in lines on standard error, with the image in it.
pub fn unit_name(place: usize, image: Option<&DriveOptions>) -> String {
    match image {
        Some(image) => format!("ide{place} ({})", image.path.display()),
        None => format!("ide{place}"),
    }
}

/// The ports of a channel.
struct Ports {
    command: u16,
    control: u16,
    line: u8,
}

const PORTS: [Ports; 2] = [
    Ports {
        command: 0x1f0,
        control: 0x3f6,
        line: 14,
    },
    Ports {
        command: 0x170,
        control: 0x376,
        line: 15,
    },
];

/// The function, with its channels and units.
#[derive(Debug)]
pub struct IdeFunction {
    config: ConfigSpace,
    channels: [Channel; 2],
}

impl IdeFunction {
    /// Version of the saved state.
    const STATE_VERSION: u32 = 2;
    /// The maximum number of units.
    pub const PLACES: usize = 4;

    /// Makes the function with its units: the first channel's two, then the second's.
    pub fn new(units: [Option<Unit>; Self::PLACES]) -> Self {
        let mut config = ConfigSpace::new(&IDENTITY);
        config.make_writable(TIMING..TIMING + 0x20);
        config.add_bar(MASTER_BAR, BarKind::Io, 16);
        let mut channels = <[Channel; 2]>::default();
        for (index, mut unit) in units.into_iter().enumerate() {
            unit.iter_mut().for_each(Unit::set_signature);
            channels[index / 2].units[index % 2] = unit;
        }
        let mut function = Self { config, channels };
        function.after_reset();
        function
    }

    fn answers(&self, channel: usize) -> bool {
        self.config.u16(TIMING + 2 * channel) & DECODE != 0
            && self.config.command().contains(Command::IO)
    }

    fn forward(&mut self, context: &mut DeviceContext<'_>) {
        for (channel, ports) in self.channels.iter_mut().zip(&PORTS) {
            context.forward(ports.line, &mut channel.line);
        }
    }

    /// Returns the channel of a port, and the offset in the command block if the port belongs to
    /// it.
    fn target(port: u16) -> Option<(usize, Option<u16>)> {
        PORTS.iter().enumerate().find_map(|(index, ports)| {
            let offset = port.wrapping_sub(ports.command);
            match offset {
                0..=7 => Some((index, Some(offset))),
                _ => (port == ports.control).then_some((index, None)),
            }
        })
    }
}

impl PciFunction for IdeFunction {
    fn name(&self) -> &str {
        "piix3-ide"
    }

    fn config(&self) -> &ConfigSpace {
        &self.config
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn config_write(&mut self, offset: usize, data: &[u8], context: &mut DeviceContext<'_>) {
        self.config.write(offset, data);
        // The function may have become a bus master.
        self.run_masters(context);
        self.forward(context);
    }

    fn fixed_ports(&self) -> Vec<PortClaim> {
        let channels = PORTS.iter().enumerate();
        let claims = channels.filter(|(index, _)| self.answers(*index));
        claims
            .fold(Claims::none(), |claims, (_, ports)| {
                use crate::bus::PortWidth;
                claims
                    .with_ports(ports.command..=ports.command, PortWidth::Any)
                    .with_byte_ports(ports.command + 1..=ports.command + 7)
                    .with_byte_ports(ports.control..=ports.control)
            })
            .ports
    }

    fn port_read(&mut self, port: u16, data: &mut [u8], context: &mut DeviceContext<'_>) {
        data.fill(0xff);
        let Some((index, register)) = Self::target(port) else {
            return;
        };
        let channel = &mut self.channels[index];
        match register {
            Some(register::DATA) => channel.read_data(data, context),
            Some(register) => data[0] = channel.read(register),
            None => data[0] = channel.alternate_status(),
        }
        self.forward(context);
    }

    fn port_write(&mut self, port: u16, data: &[u8], context: &mut DeviceContext<'_>) {
        let Some((index, register)) = Self::target(port) else {
            return;
        };
        let channel = &mut self.channels[index];
        match register {
            Some(register::DATA) => channel.write_data(data, context),
            Some(register) => channel.write(register, data[0], context),
            None => channel.write_control(data[0]),
        }
        self.forward(context);
    }

    fn bar_read(
        &mut self,
        _bar: usize,
        offset: u64,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        for (byte, offset) in data.iter_mut().zip(offset..) {
            let channel = &self.channels[(offset >> 3 & 1) as usize];
            *byte = channel.state.master.read((offset & 7) as u8);
        }
    }

    fn bar_write(
        &mut self,
        _bar: usize,
        offset: u64,
        data: &[u8],
        context: &mut DeviceContext<'_>,
    ) {
        for (byte, offset) in data.iter().zip(offset..) {
            let channel = &mut self.channels[(offset >> 3 & 1) as usize];
            channel.state.master.write((offset & 7) as u8, *byte);
        }
        self.run_masters(context);
        self.forward(context);
    }

    fn connect(&mut self, completer: Completer) {
        let units = self.channels.iter_mut().flat_map(|c| &mut c.units);
        for unit in units.flatten() {
            match unit {
                Unit::Disk(disk) => disk.medium.connect(completer.clone()),
                Unit::CdDrive(drive) => drive.connect(completer.clone()),
            }
        }
    }

    fn complete(&mut self, _token: u64, context: &mut DeviceContext<'_>) {
        let is_master = self.config.command().contains(Command::BUS_MASTER);
        for channel in &mut self.channels {
            channel.may_master = is_master;
            channel.complete(context);
        }
        self.forward(context);
    }

    fn has_pending_work(&self) -> bool {
        let units = self.channels.iter().flat_map(|channel| &channel.units);
        let mut media = units.flatten().filter_map(Unit::medium);
        media.any(Medium::has_pending_work)
    }

    fn flush(&self) {
        let units = self.channels.iter().flat_map(|channel| &channel.units);
        let media = units.flatten().filter_map(Unit::medium);
        media.for_each(Medium::flush);
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        self.channels.iter_mut().for_each(Channel::reset_all);
    }

    fn after_reset(&mut self) {
        // UEFI firmware relies on this, as on QEMU's function, whose ports always answer.
        for channel in 0..2 {
            let timing = DECODE.to_le_bytes();
            self.config.write(TIMING + 2 * channel, &timing);
        }
    }

    fn save(&self) -> SavedState {
        let states: Vec<State> = self.channels.iter().map(Channel::save).collect();
        SavedState::of(Self::STATE_VERSION, &states)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        let states: Vec<State> = saved.read(Self::STATE_VERSION)?;
        for (channel, state) in self.channels.iter_mut().zip(states) {
            channel.restore(state);
        }
        Ok(())
    }
}

impl IdeFunction {
    /// Removes the disc from the CD-ROM drive at `place`, or inserts another one. With `force` it
    /// does so even if the guest has locked the drive.
    ///
    /// # Errors
    /// One line: there is no such drive, it is locked, or the image cannot be used.
    pub fn change_disc(
        &mut self,
        place: usize,
        image: Option<&DriveOptions>,
        force: bool,
        context: &mut DeviceContext<'_>,
    ) -> Result<(), String> {
        let (channel, unit) = (place / 2, place % 2);
        let Some(channel) = self.channels.get_mut(channel) else {
            return Err(NO_SUCH_DRIVE.into());
        };
        let Some(Unit::CdDrive(drive)) = &mut channel.units[unit] else {
            return Err(NO_SUCH_DRIVE.into());
        };
        let changed = drive.change(unit_name(place, image), image, force);
        if changed.is_ok() {
            channel.disc_changed(unit);
        }
        self.forward(context);
        changed
    }

    fn run_masters(&mut self, context: &mut DeviceContext<'_>) {
        let is_master = self.config.command().contains(Command::BUS_MASTER);
        for channel in &mut self.channels {
            channel.may_master = is_master;
            channel.run_master(context);
        }
    }
}
