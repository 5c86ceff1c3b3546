//! Registers of devices that are near: the guest reaches them without an exit.

use crate::GuestTime;
use tollgate_x86::PhysicalAddress;

/// An access of the guest to a device. It is *near* if the register is no more than a word of
/// state, tells the time, or is a byte of display memory: then it changes neither guest memory, nor what lies where, nor
/// address line 20, and stops nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NearAccess {
    /// Reads `size` (1, 2 or 4) bytes from a port.
    PortRead {
        /// The first port.
        port: u16,
        /// Bytes.
        size: u8,
    },
    /// Writes `size` (1, 2 or 4) bytes to a port.
    PortWrite {
        /// The first port.
        port: u16,
        /// Bytes.
        size: u8,
        /// Bits above `size` bytes are zero.
        value: u32,
    },
    /// Reads `size` (1 to 8) bytes of device memory.
    MemoryRead {
        /// The first byte; the last one lies in the same page.
        address: PhysicalAddress,
        /// Bytes.
        size: u8,
    },
    /// Writes `size` (1 to 8) bytes of device memory.
    MemoryWrite {
        /// The first byte; the last one lies in the same page.
        address: PhysicalAddress,
        /// Bytes.
        size: u8,
        /// Bits above `size` bytes are zero.
        value: u64,
    },
    /// Reads a model-specific register.
    MsrRead(u32),
    /// Writes a model-specific register.
    MsrWrite(u32, u64),
}

/// Bytes of the window of display memory.
pub const DISPLAY_WINDOW: u64 = 0x2_0000;

/// What became of a [`NearAccess`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Near {
    /// It is not near. Nothing was done.
    No,
    /// It was made; this is what was read, or zero. An interrupt may wait now, or none any more.
    Done(u64),
    /// The same, and the machine's next deadline is earlier than before.
    DoneAndDue(u64),
}

impl Near {
    /// An access was made that read this, and changed the next deadline from `before` to `after`.
    /// A deadline that is later or gone asks for nothing: whoever waits for the earlier one
    /// looks anew then.
    #[inline]
    pub fn done(read: u64, before: Option<GuestTime>, after: Option<GuestTime>) -> Self {
        match (before, after) {
            (_, None) => Self::Done(read),
            (Some(before), Some(after)) if before <= after => Self::Done(read),
            _ => Self::DoneAndDue(read),
        }
    }
}
