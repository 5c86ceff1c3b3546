//! Message-signalled interrupts: the meaning of a device's write to FEExxxxxh (SDM volume 3,
//! 11.11).

use crate::devices::io_apic::{DeliveryMode, InterruptMessage};

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
