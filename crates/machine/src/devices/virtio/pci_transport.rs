//! A virtio device as a PCI function (4.1).
//!
//! ```text
//!   BAR 0   0000h common configuration   1000h ISR   2000h device configuration
//!           3000h notifications, 4 bytes a queue
//!   BAR 1   MSI-X table and pending bits
//! ```

use super::core::Core;
use super::device::VirtioDevice;
use super::device_type;
use super::drive_change::DriveChange;
use crate::bus::completion::Completer;
use crate::bus::{DeviceContext, SavedState, StateError};
use crate::devices::pci::config_space::{BarKind, CONFIG_BYTES, Command, ConfigSpace, Identity};
use crate::devices::pci::function::PciFunction;
use crate::devices::pci::msix::MsiX;
use serde::{Deserialize, Serialize};

/// The vendor ID of all virtio devices.
const VENDOR: u16 = 0x1af4;
/// The device ID of a modern device is this number plus its type.
const DEVICE_BASE: u16 = 0x1040;
/// The subsystem ID, which modern drivers ignore.
const SUBSYSTEM: u16 = 0x1100;

/// The capability ID for vendor-specific capabilities.
const CAPABILITY: u8 = 0x09;
/// The part of the device that a capability describes (4.1.4).
mod capability {
    pub const COMMON: u8 = 1;
    pub const NOTIFY: u8 = 2;
    pub const ISR: u8 = 3;
    pub const DEVICE: u8 = 4;
    pub const PCI_ACCESS: u8 = 5;
}

/// The BARs of the registers, and of the MSI-X table with the pending bits.
const REGISTER_BAR: usize = 0;
const MSIX_BAR: usize = 1;
/// The size of the BAR of registers in bytes.
const REGISTER_BYTES: u64 = 0x4000;
/// The size of each part of that BAR in bytes.
const PART_BYTES: u32 = 0x1000;
const COMMON_PART: u32 = 0x0000;
const ISR_PART: u32 = 0x1000;
const DEVICE_PART: u32 = 0x2000;
const NOTIFY_PART: u32 = 0x3000;
/// The distance in bytes between the notification registers of two queues.
const NOTIFY_MULTIPLIER: u32 = 4;

/// The common configuration (4.1.4.3).
mod common {
    pub const BYTES: usize = 56;
    pub const DEVICE_FEATURE_SELECT: u64 = 0;
    pub const DRIVER_FEATURE_SELECT: u64 = 8;
    pub const DRIVER_FEATURE: u64 = 12;
    pub const CONFIG_VECTOR: u64 = 16;
    pub const STATUS: u64 = 20;
    pub const QUEUE_SELECT: u64 = 22;
    pub const QUEUE_SIZE: u64 = 24;
    pub const QUEUE_VECTOR: u64 = 26;
    pub const QUEUE_ENABLE: u64 = 28;
    pub const QUEUE_DESCRIPTORS: u64 = 32;
    pub const QUEUE_DRIVER: u64 = 40;
    pub const QUEUE_DEVICE: u64 = 48;
}

/// The value for no vector.
const NO_VECTOR: u16 = 0xffff;
/// In the ISR: a queue has used chains.
const ISR_QUEUE: u8 = 1;
/// In the ISR: the configuration or the status has changed.
const ISR_CONFIG: u8 = 2;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Registers {
    isr: u8,
    config_vector: u16,
    /// The vector of each queue.
    queue_vectors: Vec<u16>,
}

/// A virtio device on the PCI bus.
pub struct VirtioPci {
    core: Core,
    config: ConfigSpace,
    messages: MsiX,
    registers: Registers,
    /// The offset of the capability for accesses through configuration space.
    access: usize,
}

/// Returns a capability that describes a part of a BAR, without ID and pointer (4.1.4).
fn part(kind: u8, start: u32, bytes: u32, more: &[u8]) -> Vec<u8> {
    let mut body = vec![16 + more.len() as u8, kind, REGISTER_BAR as u8, 0, 0, 0];
    body.extend(start.to_le_bytes());
    body.extend(bytes.to_le_bytes());
    body.extend(more);
    body
}

impl VirtioPci {
    /// Version of the saved state.
    const STATE_VERSION: u32 = 1;

    /// Makes the PCI function of a device.
    pub fn new(device: Box<dyn VirtioDevice>) -> Self {
        let mut config = ConfigSpace::new(&Identity {
            vendor: VENDOR,
            device: DEVICE_BASE + device.device_type(),
            revision: 1,
            class: match device.device_type() {
                device_type::NET => 0x02_00_00,
                device_type::BLOCK => 0x01_00_00,
                _ => 0x00_ff_00,
            },
            subsystem_vendor: VENDOR,
            subsystem: SUBSYSTEM,
        });
        config.add_interrupt_pin();
        config.add_bar(REGISTER_BAR, BarKind::Memory32, REGISTER_BYTES);
        let mut add = |kind, start, more: &[u8]| {
            config.add_capability(CAPABILITY, &part(kind, start, PART_BYTES, more), &[]);
        };
        add(capability::COMMON, COMMON_PART, &[]);
        add(capability::ISR, ISR_PART, &[]);
        add(capability::DEVICE, DEVICE_PART, &[]);
        add(
            capability::NOTIFY,
            NOTIFY_PART,
            &NOTIFY_MULTIPLIER.to_le_bytes(),
        );
        // The driver may set BAR, offset and length, and the data after them.
        let mut writable = [0; 18];
        writable[2] = 0xff;
        writable[6..].fill(0xff);
        let body = part(capability::PCI_ACCESS, 0, 0, &[0; 4]);
        let access = config.add_capability(CAPABILITY, &body, &writable);
        let core = Core::new(device);
        let messages = MsiX::add_to(&mut config, MSIX_BAR, core.queue_count() + 1);
        let registers = Self::power_up(&core);
        Self {
            core,
            config,
            messages,
            registers,
            access,
        }
    }

    fn power_up(core: &Core) -> Registers {
        Registers {
            isr: 0,
            config_vector: NO_VECTOR,
            queue_vectors: vec![NO_VECTOR; core.queue_count().into()],
        }
    }

    /// Returns the device's core.
    pub const fn core(&self) -> &Core {
        &self.core
    }

    /// Returns the common configuration.
    fn common(&self) -> [u8; common::BYTES] {
        let core = &self.core;
        let queue = core.queue();
        let selected = core.selected();
        let vectors = &self.registers.queue_vectors;
        let vector = vectors.get(usize::from(selected)).copied();
        let mut bytes = [0; common::BYTES];
        let mut place = 0;
        let mut put = |value: &[u8]| {
            bytes[place..place + value.len()].copy_from_slice(value);
            place += value.len();
        };
        put(&core.device_features_select().to_le_bytes());
        put(&core.device_features().to_le_bytes());
        put(&core.driver_features_select().to_le_bytes());
        put(&core.driver_features().to_le_bytes());
        put(&self.registers.config_vector.to_le_bytes());
        put(&core.queue_count().to_le_bytes());
        put(&[core.status(), core.config_generation() as u8]);
        put(&selected.to_le_bytes());
        put(&queue.map_or(0, |queue| queue.size).to_le_bytes());
        put(&vector.unwrap_or(NO_VECTOR).to_le_bytes());
        put(&u16::from(queue.is_some_and(super::queue::Queue::is_enabled)).to_le_bytes());
        // The notification register of a queue has the queue's number.
        put(&selected.to_le_bytes());
        put(&queue.map_or(0, |queue| queue.descriptors).to_le_bytes());
        put(&queue.map_or(0, |queue| queue.driver_area).to_le_bytes());
        put(&queue.map_or(0, |queue| queue.device_area).to_le_bytes());
        bytes
    }

    /// Writes a register of the common configuration. Drivers access each register in its own
    /// width, and addresses as two halves (4.1.3.1); other accesses have no effect.
    fn write_common(&mut self, offset: u64, data: &[u8]) {
        let value = number(data);
        let core = &mut self.core;
        match (offset, data.len()) {
            (common::DEVICE_FEATURE_SELECT, 4) => core.select_device_features(value as u32),
            (common::DRIVER_FEATURE_SELECT, 4) => core.select_driver_features(value as u32),
            (common::DRIVER_FEATURE, 4) => core.set_driver_features(value as u32),
            (common::CONFIG_VECTOR, 2) => self.registers.config_vector = self.vector(value),
            (common::STATUS, 1) => {
                core.set_status(value as u8);
                if value == 0 {
                    self.registers = Self::power_up(core);
                }
            }
            (common::QUEUE_SELECT, 2) => core.select_queue(value as u16),
            (common::QUEUE_SIZE, 2) => core.change_queue(|queue| queue.size = value as u16),
            (common::QUEUE_VECTOR, 2) => {
                let vector = self.vector(value);
                let selected = usize::from(self.core.selected());
                if let Some(queue) = self.registers.queue_vectors.get_mut(selected) {
                    *queue = vector;
                }
            }
            (common::QUEUE_ENABLE, 2) if value == 1 => core.enable_queue(),
            (common::QUEUE_DESCRIPTORS.., 4 | 8) => core.change_queue(|queue| {
                let (register, shift) = match offset & !4 {
                    common::QUEUE_DESCRIPTORS => (&mut queue.descriptors, offset & 4),
                    common::QUEUE_DRIVER => (&mut queue.driver_area, offset & 4),
                    common::QUEUE_DEVICE => (&mut queue.device_area, offset & 4),
                    _ => return,
                };
                *register = match (data.len(), shift) {
                    (8, 0) => value,
                    (4, 0) => *register & !0xffff_ffff | value,
                    (4, 4) => *register & 0xffff_ffff | value << 32,
                    _ => *register,
                };
            }),
            _ => {}
        }
    }

    /// Returns the stored value for a vector, which is none if the vector does not exist.
    fn vector(&self, value: u64) -> u16 {
        if value < u64::from(self.messages.vectors()) {
            value as u16
        } else {
            NO_VECTOR
        }
    }

    fn read_register(&mut self, offset: u64, data: &mut [u8]) {
        let within = offset & u64::from(PART_BYTES - 1);
        data.fill(0);
        match offset as u32 & !(PART_BYTES - 1) {
            COMMON_PART => {
                let bytes = self.common();
                for (index, byte) in data.iter_mut().enumerate() {
                    *byte = bytes.get(within as usize + index).copied().unwrap_or(0);
                }
            }
            // Reading the ISR clears it (4.1.4.5).
            ISR_PART if within == 0 => data[0] = std::mem::take(&mut self.registers.isr),
            DEVICE_PART => self.core.read_config(within, data),
            _ => {}
        }
    }

    fn write_register(&mut self, offset: u64, data: &[u8], context: &mut DeviceContext<'_>) {
        let within = offset & u64::from(PART_BYTES - 1);
        match offset as u32 & !(PART_BYTES - 1) {
            COMMON_PART => self.write_common(within, data),
            NOTIFY_PART if within.is_multiple_of(u64::from(NOTIFY_MULTIPLIER)) => {
                let queue = within / u64::from(NOTIFY_MULTIPLIER);
                if self.is_master() {
                    self.core.notify(queue as u16, context.memory());
                }
            }
            DEVICE_PART => self.core.write_config(within, data),
            _ => {}
        }
        self.tell(context);
    }

    fn is_master(&self) -> bool {
        self.config.command().contains(Command::BUS_MASTER)
    }

    /// Notifies the driver by messages, or by the ISR and the interrupt line.
    fn tell(&mut self, context: &mut DeviceContext<'_>) {
        let news = self.core.take_news();
        let uses_messages = self.messages.is_enabled(&self.config);
        if news.config {
            self.registers.isr |= ISR_CONFIG;
            if uses_messages {
                let vector = self.registers.config_vector;
                self.messages.signal(vector, &self.config, context);
            }
        }
        if news.queues == 0 {
            return;
        }
        if !uses_messages {
            self.registers.isr |= ISR_QUEUE;
            return;
        }
        for (queue, vector) in self.registers.queue_vectors.iter().enumerate() {
            if news.queues >> (queue & 63) & 1 != 0 {
                self.messages.signal(*vector, &self.config, context);
            }
        }
    }

    /// Returns the register that the capability for accesses through configuration space selects:
    /// its offset and its size in bytes (4.1.4.9).
    fn accessed(&self) -> Option<(u64, usize)> {
        let mut window = [0; 16];
        self.config.read(self.access, &mut window);
        let offset = number(&window[8..12]);
        let bytes = number(&window[12..16]);
        let is_there = usize::from(window[4]) == REGISTER_BAR
            && matches!(bytes, 1 | 2 | 4)
            && offset < REGISTER_BYTES
            && offset.is_multiple_of(bytes);
        is_there.then_some((offset, bytes as usize))
    }

    /// Whether an access to configuration space touches the data of that capability.
    fn touches_data(&self, offset: usize, bytes: usize) -> bool {
        let data = self.access + 16;
        offset < data + 4 && data < offset + bytes && offset < CONFIG_BYTES
    }
}

/// Returns a little-endian number of 1 to 8 bytes.
fn number(data: &[u8]) -> u64 {
    let bytes = data.iter().take(8).enumerate();
    bytes.fold(0, |value, (index, byte)| {
        value | u64::from(*byte) << (8 * index)
    })
}

impl PciFunction for VirtioPci {
    fn name(&self) -> &str {
        self.core.device().name()
    }

    fn config(&self) -> &ConfigSpace {
        &self.config
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn config_read(&mut self, offset: usize, data: &mut [u8], _context: &mut DeviceContext<'_>) {
        if self.touches_data(offset, data.len())
            && let Some((register, bytes)) = self.accessed()
        {
            let mut value = [0; 4];
            self.read_register(register, &mut value[..bytes]);
            self.config.write(self.access + 16, &value);
        }
        self.config.read(offset, data);
    }

    fn config_write(&mut self, offset: usize, data: &[u8], context: &mut DeviceContext<'_>) {
        let was_master = self.is_master();
        self.config.write(offset, data);
        self.messages.send_pending(&self.config, context);
        if self.touches_data(offset, data.len())
            && let Some((register, bytes)) = self.accessed()
        {
            let mut value = [0; 4];
            self.config.read(self.access + 16, &mut value);
            self.write_register(register, &value[..bytes], context);
        }
        if self.is_master() && !was_master {
            // Notifications were ignored until now.
            self.core.notify_all(context.memory());
            self.tell(context);
        }
    }

    fn bar_read(
        &mut self,
        bar: usize,
        offset: u64,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        match bar {
            REGISTER_BAR => self.read_register(offset, data),
            _ => self.messages.read(offset, data),
        }
    }

    fn bar_write(&mut self, bar: usize, offset: u64, data: &[u8], context: &mut DeviceContext<'_>) {
        match bar {
            REGISTER_BAR => self.write_register(offset, data, context),
            _ => self.messages.write(offset, data, &self.config, context),
        }
    }

    fn wants_interrupt(&self) -> bool {
        self.registers.isr != 0 && !self.messages.is_enabled(&self.config)
    }

    fn connect(&mut self, completer: Completer) {
        self.core.connect(completer);
    }

    fn complete(&mut self, token: u64, context: &mut DeviceContext<'_>) {
        self.core.complete(token, context.memory());
        self.tell(context);
    }

    fn change_drive(
        &mut self,
        change: &DriveChange,
        context: &mut DeviceContext<'_>,
    ) -> Option<Result<(), String>> {
        let changed = self.core.change_drive(change, context.memory());
        self.tell(context);
        changed
    }

    fn has_pending_work(&self) -> bool {
        self.core.has_pending_work()
    }

    fn flush(&self) {
        self.core.device().flush();
    }

    fn cannot_be_saved(&self) -> Option<String> {
        self.core.device().cannot_be_saved()
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        self.core.reset();
        self.registers = Self::power_up(&self.core);
        self.messages.reset();
    }

    fn save(&self) -> SavedState {
        let state = (&self.registers, &self.messages, self.core.save());
        SavedState::of(Self::STATE_VERSION, &state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        let (registers, messages, core): (Registers, MsiX, SavedState) =
            saved.read(Self::STATE_VERSION)?;
        let fits = registers.queue_vectors.len() == self.registers.queue_vectors.len();
        if !fits || !self.messages.fits(&messages) {
            return Err(StateError::Unreadable {
                part: String::new(),
                why: "its vectors are not those of this device".into(),
            });
        }
        self.core.restore(&core)?;
        self.messages.restore(messages);
        self.registers = registers;
        Ok(())
    }
}
