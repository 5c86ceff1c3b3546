//! Which memory the floppy drive has written: QEMU does not log what a device transfers by DMA.
//!
//! The guest programs the address into channel 2 of the first 8237; it knows that the transfer is
//! over when it reads the first result byte of the floppy disk controller.

/// The state that was programmed into the 8237 (its data sheet, "Programming").
#[derive(Clone, Copy, Debug, Default)]
pub struct FloppyDma {
    address: u16,
    count: u16,
    page: u8,
    /// The flip-flop: whether the upper byte comes next.
    upper: bool,
    /// Whether the channel writes memory.
    writes: bool,
    /// Whether a transfer was started whose end has not been seen.
    begun: bool,
}

/// A range of memory that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Written {
    /// The address of the first byte.
    pub physical: u64,
    /// The number of bytes, 1 to 65536.
    pub bytes: usize,
}

const ADDRESS: u16 = 0x04;
const COUNT: u16 = 0x05;
const SINGLE_MASK: u16 = 0x0a;
const MODE: u16 = 0x0b;
const CLEAR_FLIP_FLOP: u16 = 0x0c;
const MASTER_CLEAR: u16 = 0x0d;
const PAGE: u16 = 0x81;
/// The data register of the floppy disk controller.
const FLOPPY_DATA: u16 = 0x3f5;

const CHANNEL: u8 = 2;
/// Bits of the mode register for a transfer to memory.
const DIRECTION: u8 = 0b1100;
const TO_MEMORY: u8 = 0b0100;
const IS_MASKED: u8 = 1 << 2;

impl FloppyDma {
    /// Handles a write of the guest to a port.
    pub fn port_write(&mut self, port: u16, value: u8) {
        match port {
            ADDRESS | COUNT => {
                let register = if port == ADDRESS {
                    &mut self.address
                } else {
                    &mut self.count
                };
                let [low, high] = register.to_le_bytes();
                *register = u16::from_le_bytes(if self.upper {
                    [low, value]
                } else {
                    [value, high]
                });
                self.upper = !self.upper;
            }
            CLEAR_FLIP_FLOP | MASTER_CLEAR => self.upper = false,
            MODE if value & 3 == CHANNEL => self.writes = value & DIRECTION == TO_MEMORY,
            SINGLE_MASK if value & 3 == CHANNEL => self.begun = value & IS_MASKED == 0,
            PAGE => self.page = value,
            _ => {}
        }
    }

    /// Handles a read of the guest from a port. Returns the memory that the drive has written by
    /// then.
    pub fn port_read(&mut self, port: u16) -> Option<Written> {
        if port != FLOPPY_DATA || !std::mem::take(&mut self.begun) || !self.writes {
            return None;
        }
        Some(Written {
            physical: u64::from(self.page) << 16 | u64::from(self.address),
            bytes: usize::from(self.count) + 1,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn programmed(mode: u8) -> FloppyDma {
        let mut dma = FloppyDma::default();
        let sector = [
            (SINGLE_MASK, 0x06),
            (CLEAR_FLIP_FLOP, 0),
            (ADDRESS, 0x00),
            (ADDRESS, 0x7c),
            (CLEAR_FLIP_FLOP, 0),
            (COUNT, 0xff),
            (COUNT, 0x01),
            (MODE, mode),
            (PAGE, 0x01),
            (SINGLE_MASK, 0x02),
        ];
        for (port, value) in sector {
            dma.port_write(port, value);
        }
        dma
    }

    #[test]
    fn a_transfer_is_known_by_its_result() {
        let mut dma = programmed(0x46);
        assert_eq!(dma.port_read(0x3f4), None);
        let written = Written {
            physical: 0x1_7c00,
            bytes: 512,
        };
        assert_eq!(dma.port_read(FLOPPY_DATA), Some(written));
        assert_eq!(dma.port_read(FLOPPY_DATA), None);
    }

    #[test]
    fn what_goes_to_the_disk_changes_no_memory() {
        assert_eq!(programmed(0x4a).port_read(FLOPPY_DATA), None);
    }
}
