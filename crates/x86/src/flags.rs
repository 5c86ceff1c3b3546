//! The EFLAGS register (SDM volume 1, 3.4.3).

bitflags::bitflags! {
    /// Bits of RFLAGS. Bit 1, which is always set in an image, is not part of this type.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct Flags: u64 {
        /// Carry.
        const CF = 1 << 0;
        /// Parity of the low byte.
        const PF = 1 << 2;
        /// Auxiliary carry (out of bit 3).
        const AF = 1 << 4;
        /// Zero.
        const ZF = 1 << 6;
        /// Sign.
        const SF = 1 << 7;
        /// Trap after the next instruction.
        const TF = 1 << 8;
        /// Maskable interrupts enabled.
        const IF = 1 << 9;
        /// String direction: set counts down.
        const DF = 1 << 10;
        /// Overflow.
        const OF = 1 << 11;
        /// I/O privilege level, low bit.
        const IOPL_LOW = 1 << 12;
        /// I/O privilege level, high bit.
        const IOPL_HIGH = 1 << 13;
        /// Nested task.
        const NT = 1 << 14;
        /// Resume: suppresses instruction breakpoints once.
        const RF = 1 << 16;
        /// Virtual-8086 mode.
        const VM = 1 << 17;
        /// Alignment check.
        const AC = 1 << 18;
        /// Virtual interrupt flag.
        const VIF = 1 << 19;
        /// Virtual interrupt pending.
        const VIP = 1 << 20;
        /// CPUID available.
        const ID = 1 << 21;
        /// The six flags that arithmetic writes.
        const ARITHMETIC = 0x8d5;
        /// Both IOPL bits.
        const IOPL = 0x3000;
        /// Every flag that this processor implements.
        const ALL = 0x3f_7fd5;
    }
}

/// Bit 1 of EFLAGS, which always reads as one.
pub const RESERVED_ONE: u64 = 2;

impl Flags {
    /// The I/O privilege level, 0 to 3.
    pub const fn iopl(self) -> u8 {
        ((self.bits() >> 12) & 3) as u8
    }

    /// The image that PUSHFQ stores, with the reserved bit set.
    pub const fn image(self) -> u64 {
        self.bits() | RESERVED_ONE
    }
}
