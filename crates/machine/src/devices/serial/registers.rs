//! Registers and bits of the 16550A (National Semiconductor PC16550D data sheet,
//! section 8).

use bitflags::bitflags;
use serde::{Deserialize, Serialize};

// Offsets from the base port.
/// Receiver buffer and transmitter holding register, or the divisor's low byte.
pub(super) const DATA: u16 = 0;
/// Interrupt enable register, or the divisor's high byte.
pub(super) const INTERRUPT_ENABLE: u16 = 1;
/// Interrupt identification (read) and FIFO control (write).
pub(super) const IDENTIFICATION: u16 = 2;
/// Line control register.
pub(super) const LINE_CONTROL: u16 = 3;
/// Modem control register.
pub(super) const MODEM_CONTROL: u16 = 4;
/// Line status register.
pub(super) const LINE_STATUS: u16 = 5;
/// Modem status register.
pub(super) const MODEM_STATUS: u16 = 6;

bitflags! {
    /// Interrupt enable register (8.6).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub(super) struct InterruptEnable: u8 {
        const RECEIVED_DATA = 1 << 0;
        const TRANSMITTER_EMPTY = 1 << 1;
        const LINE_STATUS = 1 << 2;
        const MODEM_STATUS = 1 << 3;
    }
}

/// Interrupt identification register (8.5), highest priority first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Interrupt {
    LineStatus = 0x06,
    ReceivedData = 0x04,
    CharacterTimeout = 0x0C,
    TransmitterEmpty = 0x02,
    ModemStatus = 0x00,
}

/// In the identification register: no interrupt is pending.
pub(super) const NO_INTERRUPT: u8 = 1 << 0;
/// In the identification register: the FIFOs are enabled.
pub(super) const FIFOS_ENABLED: u8 = 3 << 6;

bitflags! {
    /// FIFO control register (8.4); bits 7-6 are the trigger level.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    pub(super) struct FifoControl: u8 {
        const ENABLE = 1 << 0;
        const RESET_RECEIVER = 1 << 1;
        const RESET_TRANSMITTER = 1 << 2;
    }
}

/// The number of bytes in the receiver FIFO that cause an interrupt, by bits 7-6 of the FIFO
/// control register.
pub(super) const TRIGGER_LEVELS: [usize; 4] = [1, 4, 8, 14];

bitflags! {
    /// Line control register (8.1).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub(super) struct LineControl: u8 {
        const WORD_LENGTH_LOW = 1 << 0;
        const WORD_LENGTH_HIGH = 1 << 1;
        const STOP_BITS = 1 << 2;
        const PARITY_ENABLE = 1 << 3;
        const EVEN_PARITY = 1 << 4;
        const STICK_PARITY = 1 << 5;
        const BREAK = 1 << 6;
        const DIVISOR_LATCH = 1 << 7;
    }
}

impl LineControl {
    /// Returns the mask of a character's data bits, five to eight.
    pub(super) const fn data_mask(self) -> u8 {
        0xFF >> (3 - (self.bits() & 3))
    }

    /// Returns the number of a character's data bits.
    pub(super) fn data_bits(self) -> u64 {
        self.data_mask().count_ones().into()
    }

    /// Returns the number of bits that follow a character's data.
    pub(super) fn parity_and_stop_bits(self) -> u64 {
        let parity = u64::from(self.contains(Self::PARITY_ENABLE));
        let stop = u64::from(self.contains(Self::STOP_BITS));
        parity + 1 + stop
    }
}

bitflags! {
    /// Modem control register (8.7).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub(super) struct ModemControl: u8 {
        const DTR = 1 << 0;
        const RTS = 1 << 1;
        const OUT1 = 1 << 2;
        /// On a PC this output connects the interrupt to the bus.
        const OUT2 = 1 << 3;
        const LOOPBACK = 1 << 4;
    }
}

bitflags! {
    /// Line status register (8.3).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub(super) struct LineStatus: u8 {
        const DATA_READY = 1 << 0;
        const OVERRUN = 1 << 1;
        const PARITY_ERROR = 1 << 2;
        const FRAMING_ERROR = 1 << 3;
        const BREAK = 1 << 4;
        const HOLDING_EMPTY = 1 << 5;
        const TRANSMITTER_EMPTY = 1 << 6;
        const ERROR_IN_FIFO = 1 << 7;
        /// The bits that interrupt and that reading the register clears.
        const ERRORS = 0x1E;
        /// The errors that belong to one character and pass through the FIFO with it.
        const CHARACTER_ERRORS = 0x1C;
    }
}

bitflags! {
    /// Modem status register (8.8).
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
    pub struct ModemStatus: u8 {
        /// CTS changed.
        const DELTA_CTS = 1 << 0;
        /// DSR changed.
        const DELTA_DSR = 1 << 1;
        /// RI went off.
        const TRAILING_RI = 1 << 2;
        /// DCD changed.
        const DELTA_DCD = 1 << 3;
        /// Clear to send.
        const CTS = 1 << 4;
        /// Data set ready.
        const DSR = 1 << 5;
        /// Ring indicator.
        const RI = 1 << 6;
        /// Data carrier detect.
        const DCD = 1 << 7;
        /// The four inputs.
        const INPUTS = 0xF0;
        /// The four change bits, cleared by reading.
        const CHANGES = 0x0F;
    }
}
