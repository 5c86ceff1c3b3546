//! The machine's side of the host bridge: configuration accesses, the addresses in BARs, and
//! interrupt lines.

pub mod hot_plug;

use super::config_space::{CONFIG_BYTES, Command, Window};
use super::function::PciFunction;
use super::host_bridge::HostBridge;
use super::{ECAM_BASE, ECAM_BYTES, MAX_FUNCTIONS, Place, interrupt_line};
use crate::bus::completion::Completer;
use crate::bus::{Claims, Device, DeviceContext, PortClaim, PortWidth, SavedState, StateError};
use crate::devices::virtio::drive_change::DriveChange;
use hot_plug::HotPlug;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::ops::Range;
use tollgate_exits::blame::DeviceAddress;
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;

/// The address port of configuration mechanism #1 (PCI Local Bus Specification 3.0, 3.2.2.3.2),
/// which takes doublewords. Other accesses here are for other devices: CF9h is the reset register.
const ADDRESS_PORT: u16 = 0xcf8;
/// The data port for the doubleword that the address selects, or for a part of it.
const DATA_PORT: u16 = 0xcfc;
/// In the address: the data port accesses configuration space.
const ADDRESS_ENABLE: u32 = 1 << 31;
/// The bits of the address that are stored.
const ADDRESS_BITS: u32 = ADDRESS_ENABLE | 0x00ff_fffc;

struct Slot {
    place: Place,
    function: Box<dyn PciFunction>,
    /// Whether the function asserts its line.
    asserted: bool,
}

/// The PCI bus as a device on the machine's bus.
pub struct PciHost {
    /// The value that was written to the address port.
    address: u32,
    /// The functions in the order of their places.
    slots: Vec<Slot>,
    /// The ranges at which functions answer, with their slots. If two overlap, the first counts.
    windows: Vec<(usize, Window)>,
    /// Ports of functions that are in no BAR, with the slots of the functions.
    fixed: Vec<(usize, PortClaim)>,
    /// The addresses whose stores reach a function independently of its BARs, with its slot.
    fixed_memory: Option<(usize, Range<u64>)>,
    /// Whether there is a window for enhanced configuration accesses.
    has_ecam: bool,
    /// A bit for each ISA line to which an interrupt line of this bus is routed and that is
    /// asserted.
    isa_lines: u16,
    /// What is known of functions that come and go.
    hot_plug: HotPlug,
    /// Connects the threads of functions, once the bus has connected this device.
    completer: Option<Completer>,
}

#[derive(Serialize, Deserialize)]
struct State {
    address: u32,
    isa_lines: u16,
    /// States of machines without hot plug lack this field.
    #[serde(default)]
    hot_plug: hot_plug::Registers,
    /// For each function its name, its configuration space and its remaining state.
    functions: Vec<(String, Vec<u8>, SavedState)>,
}

impl PciHost {
    /// Version of the saved state.
    const STATE_VERSION: u32 = 2;

    /// Makes the bus with its host bridge, and `functions` at the device numbers from 1 on.
    /// Functions without a free number are left out.
    pub fn new(functions: Vec<Box<dyn PciFunction>>) -> Self {
        let bridge: Box<dyn PciFunction> = Box::new(HostBridge::default());
        let all = std::iter::once(bridge).chain(functions);
        let placed = (0..MAX_FUNCTIONS as u8).map(Place::device).zip(all);
        Self::with_places(placed.collect(), true)
    }

    /// Makes the bus of a machine that starts from firmware: the functions of the chip set, and
    /// `functions` at the device numbers after them. Functions without a free number are left out.
    pub fn with_chipset(
        chipset: Vec<(Place, Box<dyn PciFunction>)>,
        functions: Vec<Box<dyn PciFunction>>,
    ) -> Self {
        let first = chipset.iter().map(|(place, _)| place.device + 1).max();
        let places = (first.unwrap_or(0)..MAX_FUNCTIONS as u8).map(Place::device);
        let placed = chipset.into_iter().chain(places.zip(functions));
        Self::with_places(placed.collect(), false)
    }

    fn with_places(mut placed: Vec<(Place, Box<dyn PciFunction>)>, has_ecam: bool) -> Self {
        placed.sort_by_key(|(place, _)| *place);
        let devices: Vec<u8> = placed.iter().map(|(place, _)| place.device).collect();
        for (place, function) in &mut placed {
            if devices
                .iter()
                .filter(|device| **device == place.device)
                .count()
                > 1
            {
                function.config_mut().set_multifunction();
            }
        }
        let slots = placed.into_iter().map(|(place, function)| Slot {
            place,
            function,
            asserted: false,
        });
        let mut host = Self {
            address: 0,
            slots: slots.collect(),
            windows: Vec::new(),
            fixed: Vec::new(),
            fixed_memory: None,
            has_ecam,
            isa_lines: 0,
            hot_plug: HotPlug::default(),
            completer: None,
        };
        // A function may answer from the start, if no firmware will enable it.
        host.number_slots();
        host
    }

    /// Looks up everything that refers to slots by their numbers.
    fn number_slots(&mut self) {
        let mut slots = self.slots.iter().enumerate();
        self.fixed_memory =
            slots.find_map(|(number, slot)| Some((number, slot.function.fixed_memory()?)));
        self.look_up_claims();
    }

    /// Returns the functions in the order of their places.
    pub fn functions(&self) -> impl Iterator<Item = &dyn PciFunction> {
        self.slots.iter().map(|slot| &*slot.function)
    }

    /// Returns the first function of a type.
    pub fn get<T: PciFunction>(&self) -> Option<&T> {
        self.functions()
            .find_map(|function| (function as &dyn Any).downcast_ref())
    }

    /// Returns the first function of a type for changes.
    pub fn get_mut<T: PciFunction>(&mut self) -> Option<&mut T> {
        let mut slots = self.slots.iter_mut();
        slots.find_map(|slot| (&mut *slot.function as &mut dyn Any).downcast_mut())
    }

    /// Makes every function place its regions of memory.
    pub fn place_regions(&mut self, context: &mut DeviceContext<'_>) {
        for slot in &mut self.slots {
            slot.function.place_regions(context);
        }
    }

    /// Calls a function, and updates claims and interrupt lines afterwards.
    fn call(
        &mut self,
        slot: usize,
        context: &mut DeviceContext<'_>,
        call: impl FnOnce(&mut dyn PciFunction, &mut DeviceContext<'_>),
    ) {
        let Some(found) = self.slots.get_mut(slot) else {
            return;
        };
        call(&mut *found.function, context);
        self.drive(slot, context);
    }

    /// Drives the line of a function as the function requests.
    fn drive(&mut self, slot: usize, context: &mut DeviceContext<'_>) {
        let slot = &mut self.slots[slot];
        let wanted = slot.function.wants_interrupt();
        let config = slot.function.config_mut();
        config.set_interrupt_status(wanted);
        let asserted = wanted && !config.command().contains(Command::INTX_DISABLE);
        let device = slot.place.device;
        if std::mem::replace(&mut slot.asserted, asserted) != asserted {
            self.drive_line(device, context);
            self.drive_isa(context);
        }
    }

    /// Drives the line of a device number, which several devices share.
    fn drive_line(&self, device: u8, context: &mut DeviceContext<'_>) {
        let line = interrupt_line(device);
        let mut slots = self.slots.iter();
        let level = slots.any(|slot| slot.asserted && interrupt_line(slot.place.device) == line);
        context.set_line(line, level);
    }

    /// Drives the ISA lines to which an ISA bridge leads interrupts, if there is such a bridge.
    fn drive_isa(&mut self, context: &mut DeviceContext<'_>) {
        let asserted = self.slots.iter().filter(|slot| slot.asserted);
        let lines = asserted
            .filter_map(|slot| {
                let mut functions = self.functions();
                functions.find_map(|bridge| bridge.isa_line(slot.place.device))
            })
            .fold(0, |lines, line| lines | 1 << line);
        let changed = std::mem::replace(&mut self.isa_lines, lines) ^ lines;
        for line in (0..16).filter(|line| changed >> line & 1 != 0) {
            context.set_line(line, lines >> line & 1 != 0);
        }
    }

    fn config_read(
        &mut self,
        device: usize,
        offset: usize,
        data: &mut [u8],
        context: &mut DeviceContext<'_>,
    ) {
        self.call(device, context, |function, context| {
            function.config_read(offset, data, context);
        });
    }

    fn config_write(
        &mut self,
        device: usize,
        offset: usize,
        data: &[u8],
        context: &mut DeviceContext<'_>,
    ) {
        self.call(device, context, |function, context| {
            function.config_write(offset, data, context);
        });
        self.drive_isa(context);
        if self.look_up_claims() {
            context.claims_changed();
        }
    }

    /// Asks all functions where they answer. Returns whether that has changed.
    fn look_up_claims(&mut self) -> bool {
        let functions = self.functions().enumerate();
        let fixed = functions.flat_map(|(device, function)| {
            let claims = function.fixed_ports().into_iter();
            claims.map(move |claim| (device, claim))
        });
        let fixed = fixed.collect();
        let windows = self.find_windows();
        let changed = windows != self.windows || fixed != self.fixed;
        (self.windows, self.fixed) = (windows, fixed);
        changed
    }

    /// Returns the slot of the function that a fixed port belongs to.
    fn fixed_at(&self, port: u16) -> Option<usize> {
        let mut fixed = self.fixed.iter();
        let (device, _) = fixed.find(|(_, claim)| claim.ports.contains(&port))?;
        Some(*device)
    }

    fn find_windows(&self) -> Vec<(usize, Window)> {
        let functions = self.functions().enumerate();
        functions
            .flat_map(|(device, function)| {
                let windows = function.config().windows();
                windows.map(move |window| (device, window))
            })
            .collect()
    }

    /// Returns the slot, the BAR and the offset in it of an address or port.
    fn window_at(&self, address: u64, is_io: bool) -> Option<(usize, usize, u64)> {
        self.windows.iter().find_map(|(device, window)| {
            let offset = address.wrapping_sub(window.start);
            (window.is_io == is_io && offset < window.bytes)
                .then_some((*device, window.bar, offset))
        })
    }

    /// Returns the slot and the offset of an access to the data port from `port` on.
    fn data_port_target(&self, port: u16) -> Option<(usize, usize)> {
        const BUS: u32 = 0x00ff_0000;
        let is_there = self.address & ADDRESS_ENABLE != 0 && self.address & BUS == 0;
        let slot = self.slot_at(self.address >> 8)?;
        let offset = (self.address & 0xfc) as usize + usize::from(port & 3);
        is_there.then_some((slot, offset))
    }

    /// Returns the slot of the function whose device and function numbers are the lowest eight bits
    /// of an address.
    fn slot_at(&self, address: u32) -> Option<usize> {
        let place = Place {
            device: (address >> 3 & 31) as u8,
            function: (address & 7) as u8,
        };
        self.slots.iter().position(|slot| slot.place == place)
    }

    /// Returns the slot and the offset of an address in the ECAM window. Functions have no extended
    /// configuration space: its bytes read as ones.
    fn ecam_target(&self, address: u64) -> Option<(usize, usize)> {
        let offset = address - ECAM_BASE;
        let slot = self.slot_at((offset >> 12) as u32)?;
        let offset = (offset & 0xfff) as usize;
        (offset < CONFIG_BYTES).then_some((slot, offset))
    }

    fn is_ecam(&self, address: PhysicalAddress) -> bool {
        self.has_ecam && (ECAM_BASE..ECAM_BASE + ECAM_BYTES).contains(&address.0)
    }
}

/// Returns how many bytes of an access of `size` bytes from `port` on lie in the data port.
fn bytes_in_data_port(port: u16, size: u8) -> usize {
    usize::from(size).min(4 - usize::from(port & 3))
}

impl Device for PciHost {
    fn name(&self) -> &str {
        "pci"
    }

    /// Returns the name of the function whose BAR contains the address; all other addresses are
    /// those of the configuration mechanism.
    fn name_at(&self, address: DeviceAddress) -> &str {
        let window = match address {
            DeviceAddress::Port(port) => self.window_at(port.into(), true),
            DeviceAddress::Memory(at) => self.window_at(at, false),
        };
        let fixed = match address {
            DeviceAddress::Port(port) => self.fixed_at(port),
            DeviceAddress::Memory(_) => None,
        };
        let device = fixed.or(window.map(|(device, ..)| device));
        let function = device.and_then(|device| self.functions().nth(device));
        function.map_or(self.name(), PciFunction::name)
    }

    fn claims(&self) -> Claims {
        let mut claims = Claims::none()
            .with_ports(ADDRESS_PORT..=ADDRESS_PORT, PortWidth::Exactly(4))
            .with_ports(DATA_PORT..=DATA_PORT + 3, PortWidth::Any);
        if self.has_ecam {
            claims = claims.with_memory(ECAM_BASE, ECAM_BYTES);
        }
        if let Some((_, memory)) = &self.fixed_memory {
            claims = claims.with_memory(memory.start, memory.end - memory.start);
        }
        if let Some(ports) = self.hot_plug.ports() {
            claims = claims.with_ports(ports, PortWidth::Any);
        }
        let fixed = self.fixed.iter();
        claims.ports.extend(fixed.map(|(_, claim)| claim.clone()));
        self.windows.iter().fold(claims, |claims, (_, window)| {
            if window.is_io {
                let last = window.start + (window.bytes - 1);
                let ports = window.start as u16..=last.min(0xffff) as u16;
                claims.with_ports(ports, PortWidth::Any)
            } else {
                claims.with_memory(window.start, window.bytes)
            }
        })
    }

    fn port_read(&mut self, port: u16, size: u8, context: &mut DeviceContext<'_>) -> u32 {
        if port == ADDRESS_PORT {
            return self.address;
        }
        if let Some(offset) = self.hot_plug.offset(port) {
            return self.read_hot_plug(offset, size);
        }
        let mut data = [0xff; 4];
        if port & !3 == DATA_PORT {
            if let Some((device, offset)) = self.data_port_target(port) {
                let data = &mut data[..bytes_in_data_port(port, size)];
                self.config_read(device, offset, data, context);
            }
        } else if let Some(device) = self.fixed_at(port) {
            self.call(device, context, |function, context| {
                let data = &mut data[..usize::from(size.min(4))];
                function.port_read(port, data, context);
            });
        } else if let Some((device, bar, offset)) = self.window_at(port.into(), true) {
            self.call(device, context, |function, context| {
                let data = &mut data[..usize::from(size.min(4))];
                function.bar_read(bar, offset, data, context);
            });
        }
        u32::from_le_bytes(data)
    }

    fn port_write(&mut self, port: u16, size: u8, value: u32, context: &mut DeviceContext<'_>) {
        let data = value.to_le_bytes();
        if port == ADDRESS_PORT {
            self.address = value & ADDRESS_BITS;
        } else if let Some(offset) = self.hot_plug.offset(port) {
            self.write_hot_plug(offset, size, value, context);
        } else if port & !3 == DATA_PORT {
            if let Some((device, offset)) = self.data_port_target(port) {
                let data = &data[..bytes_in_data_port(port, size)];
                self.config_write(device, offset, data, context);
            }
        } else if let Some(device) = self.fixed_at(port) {
            self.call(device, context, |function, context| {
                let data = &data[..usize::from(size.min(4))];
                function.port_write(port, data, context);
            });
        } else if let Some((device, bar, offset)) = self.window_at(port.into(), true) {
            self.call(device, context, |function, context| {
                let data = &data[..usize::from(size.min(4))];
                function.bar_write(bar, offset, data, context);
            });
        }
    }

    fn memory_read(
        &mut self,
        address: PhysicalAddress,
        data: &mut [u8],
        context: &mut DeviceContext<'_>,
    ) {
        data.fill(0xff);
        if self.is_ecam(address) {
            if let Some((device, offset)) = self.ecam_target(address.0) {
                let length = data.len().min(CONFIG_BYTES - offset);
                self.config_read(device, offset, &mut data[..length], context);
            }
        } else if let Some((device, bar, offset)) = self.window_at(address.0, false) {
            self.call(device, context, |function, context| {
                function.bar_read(bar, offset, data, context);
            });
        }
    }

    fn memory_write(
        &mut self,
        address: PhysicalAddress,
        data: &[u8],
        context: &mut DeviceContext<'_>,
    ) {
        if self.is_ecam(address) {
            if let Some((device, offset)) = self.ecam_target(address.0) {
                self.config_write(device, offset, data, context);
            }
        } else if let Some((slot, memory)) = &self.fixed_memory
            && memory.contains(&address.0)
        {
            let function = &mut self.slots[*slot].function;
            function.fixed_memory_write(address, data, context);
        } else if let Some((device, bar, offset)) = self.window_at(address.0, false) {
            self.call(device, context, |function, context| {
                function.bar_write(bar, offset, data, context);
            });
        }
    }

    fn deadline(&self, context: &DeviceContext<'_>) -> Option<GuestTime> {
        let deadlines = self.functions().map(|function| function.deadline(context));
        deadlines.flatten().min()
    }

    fn advance(&mut self, context: &mut DeviceContext<'_>) {
        for device in 0..self.slots.len() {
            self.call(device, context, |function, context| {
                function.advance(context)
            });
        }
    }

    fn connect(&mut self, completer: Completer) {
        for slot in &mut self.slots {
            slot.function.connect(completer.for_part(slot.place.part()));
        }
        self.completer = Some(completer);
    }

    fn complete(&mut self, token: u64, context: &mut DeviceContext<'_>) {
        let (part, token) = Completer::part_of(token);
        // The function may have been ejected in the meantime.
        if let Some(slot) = self.slot_at(part.into()) {
            self.call(slot, context, |function, context| {
                function.complete(token, context);
            });
        }
    }

    fn change_drive(
        &mut self,
        change: &DriveChange,
        context: &mut DeviceContext<'_>,
    ) -> Option<Result<(), String>> {
        (0..self.slots.len()).find_map(|slot| {
            let mut changed = None;
            self.call(slot, context, |function, context| {
                changed = function.change_drive(change, context);
            });
            changed
        })
    }

    fn has_pending_work(&self) -> bool {
        self.functions().any(PciFunction::has_pending_work)
    }

    fn flush(&self) {
        self.functions().for_each(PciFunction::flush);
    }

    fn cannot_be_saved(&self) -> Option<String> {
        self.functions().find_map(PciFunction::cannot_be_saved)
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        self.address = 0;
        self.eject_leaving(context);
        self.hot_plug.registers = hot_plug::Registers::default();
        for device in 0..self.slots.len() {
            self.call(device, context, |function, context| {
                function.reset(context);
                function.config_mut().reset();
                function.after_reset();
            });
        }
        self.isa_lines = 0;
        self.look_up_claims();
    }

    fn save(&self) -> SavedState {
        let functions = self.functions().map(|function| {
            let config = function.config().saved();
            (function.name().to_owned(), config, function.save())
        });
        let state = State {
            address: self.address,
            isa_lines: self.isa_lines,
            hot_plug: self.hot_plug.registers,
            functions: functions.collect(),
        };
        SavedState::of(Self::STATE_VERSION, &state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        let state: State = saved.read(Self::STATE_VERSION)?;
        let found = || state.functions.iter().map(|(name, ..)| name.clone());
        let expected = || self.functions().map(|function| function.name().to_owned());
        if !found().eq(expected()) {
            return Err(StateError::Devices {
                found: found().collect(),
                expected: expected().collect(),
            });
        }
        self.address = state.address & ADDRESS_BITS;
        for (slot, (name, config, rest)) in self.slots.iter_mut().zip(&state.functions) {
            slot.function.config_mut().restore(config);
            let restored = slot.function.restore(rest);
            restored.map_err(|error| error.of_part(name))?;
            let config = slot.function.config();
            // The lines themselves belong to the board and are saved with it.
            slot.asserted = slot.function.wants_interrupt()
                && !config.command().contains(Command::INTX_DISABLE);
        }
        self.isa_lines = state.isa_lines;
        self.hot_plug.registers = state.hot_plug;
        self.look_up_claims();
        Ok(())
    }
}
