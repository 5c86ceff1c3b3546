//! Interrupt messages, by which the I/O APIC and devices reach local APICs. A device's message is a
//! write to FEExxxxxh (SDM volume 3, 11.11).

/// How a message is handled (82093AA 3.2.4; SDM volume 3, 11.6.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeliveryMode {
    /// The vector goes to every destination.
    Fixed,
    /// The vector goes to the destination with the lowest priority.
    LowestPriority,
    /// A system management interrupt.
    Smi,
    /// A non-maskable interrupt.
    Nmi,
    /// An INIT of the processor.
    Init,
    /// A start-up message, which exists only between processors.
    StartUp,
    /// The vector comes from the 8259.
    ExternalInterrupt,
    /// An encoding without a meaning.
    Reserved,
}

impl DeliveryMode {
    /// Decodes the three-bit field; other bits are ignored.
    pub const fn from_bits(bits: u32) -> Self {
        match bits & 7 {
            0 => Self::Fixed,
            1 => Self::LowestPriority,
            2 => Self::Smi,
            4 => Self::Nmi,
            5 => Self::Init,
            6 => Self::StartUp,
            7 => Self::ExternalInterrupt,
            _ => Self::Reserved,
        }
    }
}

/// An interrupt message on its way to local APICs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InterruptMessage {
    /// The vector; it has no meaning for NMI and similar modes.
    pub vector: u8,
    /// How the message is handled.
    pub mode: DeliveryMode,
    /// An APIC ID (FFh: all APICs) or a logical destination.
    pub destination: u8,
    /// Whether `destination` is logical.
    pub logical: bool,
    /// Whether the interrupt is level-triggered, so that its end must be reported.
    pub level: bool,
}

/// The bus that carries messages to local APICs.
pub trait InterruptBus {
    /// Delivers one message. Returns whether an APIC accepted it.
    fn deliver(&mut self, message: &InterruptMessage) -> bool;
}

/// Bits 31 to 20 of the address of every message.
const ADDRESS_PREFIX: u64 = 0xfee;
/// In the address: position of the APIC ID or logical destination.
const DESTINATION_SHIFT: u32 = 12;
/// In the address: the destination is logical. Without the redirection hint this bit is ignored,
/// but with one processor that makes no difference.
const LOGICAL: u64 = 1 << 2;
/// In the data: position of the delivery mode.
const MODE_SHIFT: u32 = 8;
/// In the data: a level-triggered message asserts.
const ASSERT: u32 = 1 << 14;
/// In the data: the message is level-triggered.
const LEVEL: u32 = 1 << 15;

/// Decodes a write of `data` to `address` into an interrupt. Returns `None` if the address is not
/// that of a message, or if the message deasserts a level, which has no effect here.
pub fn decode(address: u64, data: u32) -> Option<InterruptMessage> {
    if address >> 20 != ADDRESS_PREFIX || data & (LEVEL | ASSERT) == LEVEL {
        return None;
    }
    let mode = DeliveryMode::from_bits(data >> MODE_SHIFT);
    Some(InterruptMessage {
        vector: data as u8,
        mode,
        destination: (address >> DESTINATION_SHIFT) as u8,
        logical: address & LOGICAL != 0,
        // Only vectored interrupts have an end to report.
        level: data & LEVEL != 0
            && matches!(mode, DeliveryMode::Fixed | DeliveryMode::LowestPriority),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_those_of_the_manual() {
        let message = decode(0xfee0_5004, 0x0000_0141).unwrap();
        assert_eq!((message.vector, message.destination), (0x41, 5));
        assert_eq!(message.mode, DeliveryMode::LowestPriority);
        assert!(message.logical && !message.level);
        let message = decode(0xfeef_f000, 0xc031).unwrap();
        assert_eq!((message.vector, message.destination), (0x31, 0xff));
        assert!(message.level && !message.logical);
        assert!(!decode(0xfee0_0000, 0xc400).unwrap().level);
    }

    #[test]
    fn other_addresses_and_withdrawn_levels_are_no_interrupts() {
        for address in [0, 0xfed0_0000, 0xfef0_0000, 0x1_fee0_0000, u64::MAX] {
            assert_eq!(decode(address, 0x41), None);
        }
        assert_eq!(decode(0xfee0_0000, 0x8041), None);
    }
}
