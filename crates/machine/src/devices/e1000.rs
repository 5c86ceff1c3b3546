//! A network adapter that most systems have a driver for: Intel's 82540EM, as QEMU's `e1000` is one
//! (PCI/PCI-X Family of Gigabit Ethernet Controllers, Software Developer's Manual 317453).
//!
//! ```text
//!   driver -- tail --> ring of descriptors -- transmit --> offload --> Adapter -- cable
//!   driver <-- head, INTA -- ring of descriptors <-- receive -- filter <-- Adapter
//! ```
//!
//! Registers lie in a window of memory, and a pair of ports leads to them. Frames of the guest are taken when it
//! moves the tail of the ring; while the cable is full, they stay there. Frames for the guest stay in the
//! cable until it has buffers. So the adapter holds no whole frame between two calls.

mod eeprom;
mod offload;
mod phy;
mod receive;
mod registers;
mod transmit;

use self::eeprom::{Eeprom, Pins};
use self::phy::Phy;
use self::registers::{Registers, cause, control, status};
use self::transmit::Transmitter;
use super::pci::config_space::{BarKind, Command, ConfigSpace, Identity};
use super::pci::function::PciFunction;
use crate::bus::completion::Completer;
use crate::bus::{DeviceContext, SavedState, StateError};
use serde::{Deserialize, Serialize};
use tollgate_network::{Adapter, Backend, MacAddress, Refusals};

const IDENTITY: Identity = Identity {
    vendor: 0x8086,
    device: 0x100e,
    revision: 3,
    // A network controller: Ethernet.
    class: 0x02_00_00,
    subsystem_vendor: 0x1af4,
    subsystem: 0x1100,
};

/// The window of memory with all registers.
const MEMORY_BAR: usize = 0;
const MEMORY_BYTES: u64 = 0x2_0000;
/// The ports: the offset of a register, and its value.
const PORTS_BAR: usize = 1;
const PORTS_BYTES: u64 = 64;
const PORT_OFFSET: u64 = 0;
const PORT_VALUE: u64 = 4;

/// Bits of the register that reads a word of the EEPROM (13.4.4).
mod eeprom_read {
    pub const START: u32 = 1;
    pub const DONE: u32 = 1 << 4;
}

/// What a saved state consists of.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct State {
    registers: Registers,
    /// The causes of interrupts that are pending, and those that request one.
    causes: u32,
    mask: u32,
    phy: Phy,
    pins: Pins,
    transmitter: Transmitter,
    /// The register that the ports select.
    selected: u32,
}

/// An 82540EM with its network.
pub struct E1000 {
    name: String,
    config: ConfigSpace,
    mac: MacAddress,
    eeprom: Eeprom,
    registers: Registers,
    causes: u32,
    mask: u32,
    phy: Phy,
    transmitter: Transmitter,
    selected: u32,
    adapter: Adapter,
    /// The network's threads, which run as long as the adapter exists.
    backend: Option<Backend>,
}

impl E1000 {
    /// Version of the saved state.
    const STATE_VERSION: u32 = 1;

    /// Makes an adapter on a network. `name` is its name in saved states.
    pub fn new(name: String, mac: MacAddress, adapter: Adapter, backend: Backend) -> Self {
        Self {
            backend: Some(backend),
            ..Self::plugged(name, mac, adapter)
        }
    }

    /// Makes an adapter on a cable whose other end belongs to the caller.
    fn plugged(name: String, mac: MacAddress, adapter: Adapter) -> Self {
        let mut config = ConfigSpace::new(&IDENTITY);
        config.add_bar(MEMORY_BAR, BarKind::Memory32, MEMORY_BYTES);
        config.add_bar(PORTS_BAR, BarKind::Io, PORTS_BYTES);
        config.add_interrupt_pin();
        let subsystem = [IDENTITY.subsystem_vendor, IDENTITY.subsystem];
        let eeprom = Eeprom::new(mac, IDENTITY.vendor, IDENTITY.device, subsystem);
        let mut e1000 = Self {
            name,
            config,
            mac,
            eeprom,
            registers: Registers::new(),
            causes: 0,
            mask: 0,
            phy: Phy::default(),
            transmitter: Transmitter::default(),
            selected: 0,
            adapter,
            backend: None,
        };
        e1000.reset_registers();
        e1000
    }

    /// What the adapter's network has refused, if it is one that refuses.
    pub fn refusals(&self) -> Option<Refusals> {
        self.backend.as_ref()?.refusals()
    }

    /// Resets everything but the EEPROM. The first address is the adapter's own.
    fn reset_registers(&mut self) {
        self.registers = Registers::new();
        let [a, b, c, d, e, f] = self.mac.0;
        let low = u32::from_le_bytes([a, b, c, d]);
        let high = u32::from_le_bytes([e, f, 0, 0]) | registers::ADDRESS_VALID;
        self.registers.set(registers::ADDRESSES, low);
        self.registers.set(registers::ADDRESSES + 4, high);
        (self.causes, self.mask) = (0, 0);
        self.phy = Phy::default();
        self.transmitter = Transmitter::default();
        self.adapter.reset();
    }

    fn is_master(&self) -> bool {
        self.config.command().contains(Command::BUS_MASTER)
    }

    /// Moves frames in both directions, as far as the driver and the cable let it.
    fn run(&mut self, context: &mut DeviceContext<'_>) {
        if self.is_master() {
            let (registers, memory) = (&mut self.registers, context.memory());
            self.causes |= receive::run(registers, memory, &self.adapter);
            self.causes |= self.transmitter.run(registers, memory, &self.adapter);
        }
    }

    fn read_register(&mut self, offset: u32) -> u32 {
        match offset {
            registers::STATUS => status::FULL_DUPLEX | status::LINK_UP | status::SPEED,
            registers::EEPROM_CONTROL => self.eeprom.read(),
            registers::CAUSES => {
                let asserted = if self.wants_interrupt() {
                    cause::ASSERTED
                } else {
                    0
                };
                std::mem::take(&mut self.causes) | asserted
            }
            registers::SET_MASK => self.mask,
            registers::SET_CAUSES | registers::CLEAR_MASK => 0,
            offset if registers::STATISTICS.contains(&offset) => self.registers.take(offset),
            offset => self.registers.get(offset),
        }
    }

    fn write_register(&mut self, offset: u32, value: u32, context: &mut DeviceContext<'_>) {
        match offset {
            registers::CONTROL if value & control::RESET != 0 => self.reset_registers(),
            registers::CONTROL => {
                if value & control::PHY_RESET != 0 {
                    self.phy = Phy::default();
                }
                self.registers.write(offset, value);
            }
            registers::EEPROM_CONTROL => self.eeprom.write(value),
            registers::EEPROM_READ if value & eeprom_read::START != 0 => {
                let word = self.eeprom.word(value as u16 >> 8);
                let done = value & 0xff00 | eeprom_read::DONE | u32::from(word) << 16;
                self.registers.set(offset, done);
            }
            registers::MDI_CONTROL => {
                let (value, wants_interrupt) = self.phy.order(value);
                self.registers.set(offset, value);
                if wants_interrupt {
                    self.causes |= cause::MDI_DONE;
                }
            }
            registers::CAUSES => self.causes &= !value,
            registers::SET_CAUSES => self.causes |= value & !cause::ASSERTED,
            registers::SET_MASK => self.mask |= value,
            registers::CLEAR_MASK => self.mask &= !value,
            offset => {
                self.registers.write(offset, value);
                let moves = [
                    registers::RECEIVE_CONTROL,
                    registers::TRANSMIT_CONTROL,
                    registers::RECEIVE_RING + registers::RING_TAIL,
                    registers::TRANSMIT_RING + registers::RING_TAIL,
                ];
                if moves.contains(&offset) {
                    self.run(context);
                }
            }
        }
    }
}

impl PciFunction for E1000 {
    fn name(&self) -> &str {
        &self.name
    }

    fn config(&self) -> &ConfigSpace {
        &self.config
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn bar_read(
        &mut self,
        bar: usize,
        offset: u64,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        // Registers have 32 bits. A part of one is taken from all of it.
        let skipped = (offset % 4) as usize;
        let first = offset - offset % 4;
        let mut bytes = Vec::with_capacity(data.len() + 8);
        for place in (first..).step_by(4) {
            if bytes.len() >= skipped + data.len() {
                break;
            }
            let value = match (bar, place) {
                (MEMORY_BAR, 0..MEMORY_BYTES) => self.read_register(place as u32),
                (PORTS_BAR, PORT_OFFSET) => self.selected,
                (PORTS_BAR, PORT_VALUE) => self.read_register(self.selected),
                _ => 0,
            };
            bytes.extend(value.to_le_bytes());
        }
        data.copy_from_slice(&bytes[skipped..skipped + data.len()]);
    }

    fn bar_write(&mut self, bar: usize, offset: u64, data: &[u8], context: &mut DeviceContext<'_>) {
        // A part of a register is written with zeros for the rest.
        let skipped = (offset % 4) as usize;
        let bytes = [&[0; 3][..skipped], data].concat();
        for (place, part) in (offset - offset % 4..).step_by(4).zip(bytes.chunks(4)) {
            let mut value = [0; 4];
            value[..part.len()].copy_from_slice(part);
            let value = u32::from_le_bytes(value);
            match (bar, place) {
                (MEMORY_BAR, 0..MEMORY_BYTES) => self.write_register(place as u32, value, context),
                (PORTS_BAR, PORT_OFFSET) => self.selected = value & (MEMORY_BYTES as u32 - 4),
                (PORTS_BAR, PORT_VALUE) => self.write_register(self.selected, value, context),
                _ => {}
            }
        }
    }

    fn wants_interrupt(&self) -> bool {
        self.causes & self.mask != 0
    }

    fn connect(&mut self, completer: Completer) {
        // The machine may have ended.
        self.adapter.connect(move || {
            let _ = completer.send(0);
        });
    }

    fn complete(&mut self, _token: u64, context: &mut DeviceContext<'_>) {
        self.run(context);
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        self.reset_registers();
        self.eeprom.pins = Pins::default();
        self.selected = 0;
    }

    fn save(&self) -> SavedState {
        SavedState::of(
            Self::STATE_VERSION,
            &State {
                registers: self.registers.clone(),
                causes: self.causes,
                mask: self.mask,
                phy: self.phy.clone(),
                pins: self.eeprom.pins,
                transmitter: self.transmitter.clone(),
                selected: self.selected,
            },
        )
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        let state: State = saved.read(Self::STATE_VERSION)?;
        self.registers = state.registers;
        (self.causes, self.mask) = (state.causes, state.mask);
        self.phy = state.phy;
        self.eeprom.pins = state.pins;
        self.transmitter = state.transmitter;
        self.selected = state.selected & (MEMORY_BYTES as u32 - 4);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
