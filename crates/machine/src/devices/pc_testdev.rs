//! QEMU's `pc-testdev`, with which test kernels such as kvm-unit-tests' exercise a board. It exists
//! only with `--device pc-testdev`.
//!
//! | where | what |
//! |---|---|
//! | ports E0h-E3h | a 32-bit register, any part of which can be read and written |
//! | ports E4h-E7h | a 32-bit write gives a physical page whose mapping on the host must be dropped, which no guest could notice |
//! | ports E8h-EBh | the register of E0h again, one access for each byte. E9h by itself is the debug console |
//! | ports 2000h-2017h | a written byte is the level of interrupt line 0 to 23 |
//! | memory from FF000000h | 64 KiB that keep what is written |

use crate::bus::{Claims, Device, DeviceContext, PortWidth, SavedState, StateError};
use serde::{Deserialize, Serialize};
use tollgate_x86::PhysicalAddress;

/// The first port of the 32-bit register.
const REGISTER_PORT: u16 = 0xe0;
/// The port for the page whose host mapping must be dropped.
const FLUSH_PORT: u16 = 0xe4;
/// The port of the register for accesses byte by byte.
const BYTES_PORT: u16 = 0xe8;
/// The port of interrupt line 0.
const LINES_PORT: u16 = 0x2000;
/// The number of interrupt lines.
const LINES: u16 = 24;
/// The first address of the memory.
const MEMORY_START: u64 = 0xff00_0000;
/// The size of the memory in bytes.
const MEMORY_BYTES: usize = 0x1_0000;

/// The device with its register and its memory.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PcTestdev {
    register: [u8; 4],
    memory: Vec<u8>,
}

impl Default for PcTestdev {
    fn default() -> Self {
        Self {
            register: [0; 4],
            memory: vec![0; MEMORY_BYTES],
        }
    }
}

impl PcTestdev {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// Returns the bytes of the register that an access covers.
    fn lanes(&mut self, port: u16, size: u8) -> &mut [u8] {
        let first = usize::from(port & 3);
        let end = (first + usize::from(size)).min(self.register.len());
        &mut self.register[first..end]
    }

    /// Returns the part of the memory from an address on.
    fn memory_from(&mut self, address: PhysicalAddress) -> &mut [u8] {
        let offset = address.0.wrapping_sub(MEMORY_START);
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        self.memory.get_mut(offset..).unwrap_or_default()
    }
}

impl Device for PcTestdev {
    fn name(&self) -> &str {
        "pc-testdev"
    }

    fn claims(&self) -> Claims {
        Claims::none()
            .with_ports(REGISTER_PORT..=REGISTER_PORT + 3, PortWidth::Any)
            .with_ports(FLUSH_PORT..=FLUSH_PORT, PortWidth::Exactly(4))
            .with_ports(BYTES_PORT..=BYTES_PORT + 3, PortWidth::Any)
            .with_byte_ports(LINES_PORT..=LINES_PORT + LINES - 1)
            .with_memory(MEMORY_START, MEMORY_BYTES as u64)
    }

    fn port_read(&mut self, port: u16, size: u8, _context: &mut DeviceContext<'_>) -> u32 {
        if port == FLUSH_PORT || port >= LINES_PORT {
            return u32::MAX;
        }
        let mut value = [0xff; 4];
        let lanes = self.lanes(port, size);
        value[..lanes.len()].copy_from_slice(lanes);
        u32::from_le_bytes(value)
    }

    fn port_write(&mut self, port: u16, size: u8, value: u32, context: &mut DeviceContext<'_>) {
        if port >= LINES_PORT {
            context.set_line((port - LINES_PORT) as u8, value != 0);
        } else if port != FLUSH_PORT {
            let lanes = self.lanes(port, size);
            lanes.copy_from_slice(&value.to_le_bytes()[..lanes.len()]);
        }
    }

    fn memory_read(
        &mut self,
        address: PhysicalAddress,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        data.fill(0xff);
        for (byte, from) in data.iter_mut().zip(self.memory_from(address)) {
            *byte = *from;
        }
    }

    fn memory_write(
        &mut self,
        address: PhysicalAddress,
        data: &[u8],
        _context: &mut DeviceContext<'_>,
    ) {
        for (to, byte) in self.memory_from(address).iter_mut().zip(data) {
            *to = *byte;
        }
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        *self = Self::default();
    }

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        let mut state: Self = saved.read(Self::STATE_VERSION)?;
        state.memory.resize(MEMORY_BYTES, 0);
        *self = state;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::testing::Bench;

    fn write(device: &mut PcTestdev, bench: &mut Bench, port: u16, size: u8, value: u32) {
        device.port_write(port, size, value, &mut bench.context(0));
    }

    fn read(device: &mut PcTestdev, bench: &mut Bench, port: u16, size: u8) -> u32 {
        let value = device.port_read(port, size, &mut bench.context(0));
        value & (u32::MAX >> (32 - 8 * u32::from(size)))
    }

    #[test]
    fn the_register_is_reached_in_any_part_at_both_places() {
        let (mut device, mut bench) = (PcTestdev::default(), Bench::new());
        write(&mut device, &mut bench, 0xe0, 4, 0x1234_5678);
        for (port, size, expected) in [
            (0xe0, 1, 0x78),
            (0xe1, 1, 0x56),
            (0xe1, 2, 0x3456),
            (0xe2, 2, 0x1234),
            (0xe8, 4, 0x1234_5678),
            (0xeb, 1, 0x12),
        ] {
            assert_eq!(read(&mut device, &mut bench, port, size), expected);
        }
        write(&mut device, &mut bench, 0xe9, 2, 0xabcd);
        assert_eq!(read(&mut device, &mut bench, 0xe0, 4), 0x12ab_cd78);
        // Bytes past the end of the register belong to no device.
        write(&mut device, &mut bench, 0xe3, 4, 0x11);
        assert_eq!(read(&mut device, &mut bench, 0xe3, 4), 0xffff_ff11);
        assert_eq!(read(&mut device, &mut bench, 0xe0, 4), 0x11ab_cd78);
    }

    #[test]
    fn forgetting_a_mapping_changes_nothing() {
        let (mut device, mut bench) = (PcTestdev::default(), Bench::new());
        write(&mut device, &mut bench, 0xe0, 4, 5);
        let before = device.clone();
        write(&mut device, &mut bench, 0xe4, 4, 0x1000);
        assert_eq!(device, before);
    }

    #[test]
    fn the_memory_holds_what_is_written_and_ends() {
        let (mut device, mut bench) = (PcTestdev::default(), Bench::new());
        let mut context = bench.context(0);
        let at = |offset: u64| PhysicalAddress(0xff00_0000 + offset);
        device.memory_write(at(0x10), &[1, 2, 3, 4, 5], &mut context);
        device.memory_write(at(0xfffe), &[6; 8], &mut context);
        let mut bytes = [0; 4];
        device.memory_read(at(0x11), &mut bytes, &mut context);
        assert_eq!(bytes, [2, 3, 4, 5]);
        device.memory_read(at(0xfffe), &mut bytes, &mut context);
        assert_eq!(bytes, [6, 6, 0xff, 0xff]);
        // The device never claims these addresses, and accesses there do no harm.
        device.memory_read(PhysicalAddress(u64::MAX), &mut bytes, &mut context);
        device.memory_write(PhysicalAddress(0), &bytes, &mut context);
        assert_eq!(bytes, [0xff; 4]);
    }

    #[test]
    fn state_is_saved_and_reset() {
        let (mut device, mut bench) = (PcTestdev::default(), Bench::new());
        write(&mut device, &mut bench, 0xe0, 1, 7);
        let saved = device.save();
        let before = device.clone();
        device.reset(&mut bench.context(0));
        assert_eq!(device, PcTestdev::default());
        device.restore(&saved).unwrap();
        assert_eq!(device, before);
    }
}
