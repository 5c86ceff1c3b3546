//! A virtio device as a page of registers, for machines without PCI (4.2). Its address is in the
//! ACPI tables or on the kernel's command line.

use super::core::Core;
use super::device::VirtioDevice;
use super::drive_change::DriveChange;
use super::queue::Queue;
use crate::bus::completion::Completer;
use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};
use tollgate_x86::PhysicalAddress;

/// The address of the first device. The others follow.
pub const BASE_ADDRESS: u64 = 0xe010_0000;
/// The size of a device's registers in bytes.
pub const DEVICE_BYTES: u64 = 0x200;

/// The ISA lines that nothing else on the board uses. The first devices have one each.
const LINES: [u8; 6] = [5, 10, 11, 14, 15, 7];

/// The characters "virt".
const MAGIC: u32 = 0x7472_6976;
/// The version of the modern interface.
const VERSION: u32 = 2;
/// The characters "TLGT", which no driver checks.
const VENDOR: u32 = 0x5447_4c54;

/// Registers (4.2.2).
mod register {
    pub const MAGIC: u64 = 0x000;
    pub const VERSION: u64 = 0x004;
    pub const DEVICE_ID: u64 = 0x008;
    pub const VENDOR_ID: u64 = 0x00c;
    pub const DEVICE_FEATURES: u64 = 0x010;
    pub const DEVICE_FEATURES_SELECT: u64 = 0x014;
    pub const DRIVER_FEATURES: u64 = 0x020;
    pub const DRIVER_FEATURES_SELECT: u64 = 0x024;
    pub const QUEUE_SELECT: u64 = 0x030;
    pub const QUEUE_SIZE_MAX: u64 = 0x034;
    pub const QUEUE_SIZE: u64 = 0x038;
    pub const QUEUE_READY: u64 = 0x044;
    pub const QUEUE_NOTIFY: u64 = 0x050;
    pub const INTERRUPT_STATUS: u64 = 0x060;
    pub const INTERRUPT_ACKNOWLEDGE: u64 = 0x064;
    pub const STATUS: u64 = 0x070;
    pub const QUEUE_DESCRIPTORS_LOW: u64 = 0x080;
    pub const QUEUE_DESCRIPTORS_HIGH: u64 = 0x084;
    pub const QUEUE_DRIVER_LOW: u64 = 0x090;
    pub const QUEUE_DRIVER_HIGH: u64 = 0x094;
    pub const QUEUE_DEVICE_LOW: u64 = 0x0a0;
    pub const QUEUE_DEVICE_HIGH: u64 = 0x0a4;
    pub const SHARED_MEMORY_LENGTH_LOW: u64 = 0x0b0;
    pub const SHARED_MEMORY_BASE_HIGH: u64 = 0x0bc;
    pub const CONFIG_GENERATION: u64 = 0x0fc;
    pub const CONFIG: u64 = 0x100;
}

/// In the interrupt status: a queue has used chains.
const STATUS_QUEUE: u32 = 1;
/// In the interrupt status: the configuration or the status has changed.
const STATUS_CONFIG: u32 = 2;

/// Returns the interrupt line of the device with this number.
pub const fn interrupt_line(index: u8) -> u8 {
    LINES[index as usize % LINES.len()]
}

/// Returns the address of the device with this number.
pub const fn address(index: u8) -> u64 {
    BASE_ADDRESS + index as u64 * DEVICE_BYTES
}

/// Returns the kernel parameter that describes the device with this number to Linux if ACPI does
/// not (its module parameter `virtio_mmio.device`, in kernels with
/// CONFIG_VIRTIO_MMIO_CMDLINE_DEVICES).
pub fn kernel_parameter(index: u8) -> String {
    let (address, line) = (address(index), interrupt_line(index));
    format!("virtio_mmio.device={DEVICE_BYTES}@{address:#x}:{line}")
}

/// A virtio device with registers in memory.
pub struct VirtioMmio {
    core: Core,
    index: u8,
    interrupt_status: u32,
}

impl VirtioMmio {
    /// Version of the saved state.
    const STATE_VERSION: u32 = 1;

    /// Makes a device with its number among those of the machine.
    pub fn new(device: Box<dyn VirtioDevice>, index: u8) -> Self {
        Self {
            core: Core::new(device),
            index,
            interrupt_status: 0,
        }
    }

    fn read(&self, offset: u64) -> u32 {
        let core = &self.core;
        match offset {
            register::MAGIC => MAGIC,
            register::VERSION => VERSION,
            register::DEVICE_ID => core.device().device_type().into(),
            register::VENDOR_ID => VENDOR,
            register::DEVICE_FEATURES => core.device_features(),
            register::QUEUE_SIZE_MAX => core.queue().map_or(0, Queue::max_size).into(),
            register::QUEUE_READY => core.queue().is_some_and(Queue::is_enabled).into(),
            register::INTERRUPT_STATUS => self.interrupt_status,
            register::STATUS => core.status().into(),
            // There is no such region, which is expressed by -1 as length and base.
            register::SHARED_MEMORY_LENGTH_LOW..=register::SHARED_MEMORY_BASE_HIGH => u32::MAX,
            register::CONFIG_GENERATION => core.config_generation(),
            _ => 0,
        }
    }

    fn write(&mut self, offset: u64, value: u32, context: &mut DeviceContext<'_>) {
        let core = &mut self.core;
        match offset {
            register::DEVICE_FEATURES_SELECT => core.select_device_features(value),
            register::DRIVER_FEATURES_SELECT => core.select_driver_features(value),
            register::DRIVER_FEATURES => core.set_driver_features(value),
            // The register has 32 bits. A value of more than 16 bits is neither a queue nor a size.
            register::QUEUE_SELECT => core.select_queue(u16::try_from(value).unwrap_or(u16::MAX)),
            register::QUEUE_SIZE => {
                let size = u16::try_from(value).unwrap_or(0);
                core.change_queue(|queue| queue.size = size);
            }
            register::QUEUE_READY if value == 1 => core.enable_queue(),
            register::QUEUE_NOTIFY => {
                if let Ok(queue) = u16::try_from(value) {
                    core.notify(queue, context.memory());
                }
            }
            register::INTERRUPT_ACKNOWLEDGE => {
                self.interrupt_status &= !value;
                let is_asserted = self.interrupt_status != 0;
                context.set_line(interrupt_line(self.index), is_asserted);
            }
            register::STATUS => {
                core.set_status(value as u8);
                if value == 0 {
                    self.interrupt_status = 0;
                    context.set_line(interrupt_line(self.index), false);
                }
            }
            _ => core.change_queue(|queue| {
                let (part, is_high) = match offset {
                    register::QUEUE_DESCRIPTORS_LOW => (&mut queue.descriptors, false),
                    register::QUEUE_DESCRIPTORS_HIGH => (&mut queue.descriptors, true),
                    register::QUEUE_DRIVER_LOW => (&mut queue.driver_area, false),
                    register::QUEUE_DRIVER_HIGH => (&mut queue.driver_area, true),
                    register::QUEUE_DEVICE_LOW => (&mut queue.device_area, false),
                    register::QUEUE_DEVICE_HIGH => (&mut queue.device_area, true),
                    _ => return,
                };
                *part = if is_high {
                    *part & 0xffff_ffff | u64::from(value) << 32
                } else {
                    *part & !0xffff_ffff | u64::from(value)
                };
            }),
        }
    }

    /// Notifies the driver. The line falls before it rises: an interrupt controller that waits for
    /// edges sees one for each notification, even if the last was not acknowledged yet.
    fn tell(&mut self, context: &mut DeviceContext<'_>) {
        let news = self.core.take_news();
        let mut bits = 0;
        if news.queues != 0 {
            bits |= STATUS_QUEUE;
        }
        if news.config {
            bits |= STATUS_CONFIG;
        }
        if bits != 0 {
            self.interrupt_status |= bits;
            context.set_line(interrupt_line(self.index), false);
            context.set_line(interrupt_line(self.index), true);
        }
    }
}

impl Device for VirtioMmio {
    fn name(&self) -> &str {
        self.core.device().name()
    }

    fn claims(&self) -> Claims {
        Claims::none().with_memory(address(self.index), DEVICE_BYTES)
    }

    fn memory_read(
        &mut self,
        at: PhysicalAddress,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        let offset = at.0 - address(self.index);
        data.fill(0);
        if offset >= register::CONFIG {
            self.core.read_config(offset - register::CONFIG, data);
        } else if data.len() == 4 {
            // Registers are read as a whole (4.2.2.2).
            data.copy_from_slice(&self.read(offset).to_le_bytes());
        }
    }

    fn memory_write(&mut self, at: PhysicalAddress, data: &[u8], context: &mut DeviceContext<'_>) {
        let offset = at.0 - address(self.index);
        if offset >= register::CONFIG {
            self.core.write_config(offset - register::CONFIG, data);
        } else if let Ok(bytes) = data.try_into() {
            self.write(offset, u32::from_le_bytes(bytes), context);
            self.tell(context);
        }
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
        self.interrupt_status = 0;
    }

    fn save(&self) -> SavedState {
        let state = (self.interrupt_status, self.core.save());
        SavedState::of(Self::STATE_VERSION, &state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        let (interrupt_status, core): (u32, SavedState) = saved.read(Self::STATE_VERSION)?;
        self.core.restore(&core)?;
        self.interrupt_status = interrupt_status;
        Ok(())
    }
}
