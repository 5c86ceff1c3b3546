//! Segment descriptors, selectors and the hidden parts of segment registers
//! (SDM volume 3, 3.4 and 5.2).

use serde::{Deserialize, Serialize};

/// The segment registers, in the order in which instructions encode them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
#[allow(missing_docs, reason = "each name is the manual's")]
pub enum SegmentRegister {
    Es = 0,
    Cs = 1,
    Ss = 2,
    Ds = 3,
    Fs = 4,
    Gs = 5,
}

impl SegmentRegister {
    /// All six segment registers, in encoding order.
    pub const ALL: [SegmentRegister; 6] = [
        SegmentRegister::Es,
        SegmentRegister::Cs,
        SegmentRegister::Ss,
        SegmentRegister::Ds,
        SegmentRegister::Fs,
        SegmentRegister::Gs,
    ];
}

/// A segment selector.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
#[repr(transparent)]
pub struct Selector(pub u16);

impl Selector {
    /// Requested privilege level, 0 to 3.
    pub const fn rpl(self) -> u8 {
        (self.0 & 3) as u8
    }

    /// Whether the selector names the local descriptor table.
    pub const fn is_local(self) -> bool {
        self.0 & 4 != 0
    }

    /// Offset of the descriptor in its table, in bytes.
    pub const fn table_offset(self) -> u16 {
        self.0 & !7
    }

    /// Whether this is a null selector (0 to 3).
    pub const fn is_null(self) -> bool {
        self.0 & !3 == 0
    }

    /// The selector as an error code holds it, with the RPL bits cleared.
    pub const fn error_code(self) -> u32 {
        (self.0 & !3) as u32
    }
}

bitflags::bitflags! {
    /// Bits 40 to 55 of a descriptor, with the limit's bits (8 to 11 here) always clear.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
    #[repr(transparent)]
    pub struct Attributes: u16 {
        /// Set by the processor when the segment is loaded (code and data).
        const ACCESSED = 1 << 0;
        /// Data: writable. Code: readable.
        const WRITABLE_OR_READABLE = 1 << 1;
        /// Data: expand-down. Code: conforming.
        const EXPAND_DOWN_OR_CONFORMING = 1 << 2;
        /// Code, not data.
        const CODE = 1 << 3;
        /// Code or data, not a system segment.
        const NOT_SYSTEM = 1 << 4;
        /// Descriptor privilege level, low bit.
        const DPL_LOW = 1 << 5;
        /// Descriptor privilege level, high bit.
        const DPL_HIGH = 1 << 6;
        /// Present. A clear bit in a loaded segment register means "unusable".
        const PRESENT = 1 << 7;
        /// Available for use by software.
        const AVAILABLE = 1 << 12;
        /// The segment is 64-bit code.
        const LONG = 1 << 13;
        /// 32-bit operands (code), 32-bit stack pointer (stack), 4 GiB upper bound (expand-down).
        const DEFAULT_BIG = 1 << 14;
        /// Limit counted in 4 KiB units.
        const GRANULARITY = 1 << 15;
    }
}

impl Attributes {
    /// Descriptor privilege level, 0 to 3.
    pub const fn dpl(self) -> u8 {
        ((self.bits() >> 5) & 3) as u8
    }

    /// The type field, four bits.
    pub const fn kind(self) -> u8 {
        (self.bits() & 15) as u8
    }

    /// Whether this is a code segment, present or not.
    pub const fn is_code(self) -> bool {
        self.contains(Self::CODE.union(Self::NOT_SYSTEM))
    }

    /// Whether this is a data segment (neither code nor a system segment).
    pub const fn is_data(self) -> bool {
        self.contains(Self::NOT_SYSTEM) && !self.contains(Self::CODE)
    }

    /// Whether this is a writable data segment.
    pub const fn is_writable_data(self) -> bool {
        self.is_data() && self.contains(Self::WRITABLE_OR_READABLE)
    }

    /// Whether this is a data segment or a readable code segment.
    pub const fn is_readable(self) -> bool {
        self.is_data() || (self.is_code() && self.contains(Self::WRITABLE_OR_READABLE))
    }

    /// Whether this is 64-bit code while IA-32e mode is active.
    pub const fn is_long_code(self) -> bool {
        self.is_code() && self.contains(Self::LONG)
    }

    /// Whether this is expand-down data, whose valid offsets lie above the limit.
    pub const fn is_expand_down(self) -> bool {
        self.is_data() && self.contains(Self::EXPAND_DOWN_OR_CONFORMING)
    }

    /// Whether this is conforming code.
    pub const fn is_conforming(self) -> bool {
        self.is_code() && self.contains(Self::EXPAND_DOWN_OR_CONFORMING)
    }
}

/// Offset in a 32- or 64-bit TSS of the two bytes with the offset of the I/O permission bitmap (SDM
/// volume 3, figures 8-2 and 8-11).
pub const TSS_IO_MAP_BASE: u64 = 0x66;

/// Types of system descriptors (SDM volume 3, table 3-2). In IA-32e mode the codes of the 32-bit
/// types mean 64-bit ones, and the other TSSs and gates do not exist.
pub mod system_type {
    /// 16-bit TSS, available.
    pub const TSS16_AVAILABLE: u8 = 1;
    /// Local descriptor table.
    pub const LDT: u8 = 2;
    /// 16-bit TSS, busy.
    pub const TSS16_BUSY: u8 = 3;
    /// 16-bit call gate.
    pub const CALL_GATE16: u8 = 4;
    /// Task gate.
    pub const TASK_GATE: u8 = 5;
    /// 16-bit interrupt gate.
    pub const INTERRUPT_GATE16: u8 = 6;
    /// 16-bit trap gate.
    pub const TRAP_GATE16: u8 = 7;
    /// 32-bit TSS, available.
    pub const TSS32_AVAILABLE: u8 = 9;
    /// 32-bit TSS, busy.
    pub const TSS32_BUSY: u8 = 11;
    /// 32-bit call gate.
    pub const CALL_GATE32: u8 = 12;
    /// 32-bit interrupt gate.
    pub const INTERRUPT_GATE32: u8 = 14;
    /// 32-bit trap gate.
    pub const TRAP_GATE32: u8 = 15;
}

/// A raw 8-byte descriptor, as in memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Descriptor(pub u64);

impl Descriptor {
    /// The base address, from bits 16 to 39 and 56 to 63.
    pub const fn base(self) -> u32 {
        ((self.0 >> 16) & 0xff_ffff) as u32 | ((self.0 >> 56) << 24) as u32
    }

    /// The limit in bytes, scaled by the granularity bit.
    pub const fn limit(self) -> u32 {
        let raw = (self.0 & 0xffff) as u32 | ((self.0 >> 32) & 0xf_0000) as u32;
        if self.0 >> 55 & 1 != 0 {
            (raw << 12) | 0xfff
        } else {
            raw
        }
    }

    /// Type, privilege level and the other attribute bits.
    pub const fn attributes(self) -> Attributes {
        Attributes::from_bits_retain(((self.0 >> 40) & 0xf0ff) as u16)
    }

    /// The target selector of a gate.
    pub const fn gate_selector(self) -> Selector {
        Selector((self.0 >> 16) as u16)
    }

    /// The target offset of a gate; 16-bit gates use only the low half.
    pub const fn gate_offset(self) -> u32 {
        (self.0 & 0xffff) as u32 | ((self.0 >> 48) << 16) as u32
    }

    /// The number of parameters that a call gate copies, 0 to 31.
    pub const fn gate_parameter_count(self) -> u8 {
        ((self.0 >> 32) & 31) as u8
    }

    /// The descriptor as the hidden part of a segment register.
    pub const fn segment(self, selector: Selector) -> Segment {
        Segment {
            base: self.base() as u64,
            limit: self.limit(),
            selector,
            attributes: self.attributes(),
        }
    }
}

/// A segment register: the selector and the hidden part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[repr(C)]
pub struct Segment {
    /// Linear address of the segment's offset zero.
    pub base: u64,
    /// The last valid offset in bytes; for expand-down segments, valid offsets start above it.
    pub limit: u32,
    /// The visible part of the register.
    pub selector: Selector,
    /// Type, privilege level and other attributes. Without PRESENT the register is unusable.
    pub attributes: Attributes,
}

impl Segment {
    /// A segment register as real mode and V86 mode load it (SDM volume 3, 21.1.1 and 21.2). `dpl`
    /// is 0 in real mode and 3 in V86 mode.
    pub const fn real_mode(selector: u16, dpl: u8) -> Self {
        Self {
            base: (selector as u64) << 4,
            limit: 0xffff,
            selector: Selector(selector),
            attributes: Attributes::from_bits_retain(0x93 | ((dpl as u16) << 5)),
        }
    }

    /// An unusable register, as a null selector leaves it.
    pub const fn null(selector: Selector) -> Self {
        Self {
            base: 0,
            limit: 0,
            selector,
            attributes: Attributes::empty(),
        }
    }

    /// SS at privilege level `level` of IA-32e mode, after a null selector was loaded by the
    /// program or by the processor: SS is unusable, but its DPL still holds the level.
    pub const fn null_stack(selector: Selector, level: u8) -> Self {
        Self {
            attributes: Attributes::from_bits_retain((level as u16 & 3) << 5),
            ..Self::null(selector)
        }
    }

    /// Whether the register can be used for memory accesses at all.
    pub const fn is_usable(&self) -> bool {
        self.attributes.contains(Attributes::PRESENT)
    }

    /// Whether the default size of the stack or code is 32 bits.
    pub const fn is_big(&self) -> bool {
        self.attributes.contains(Attributes::DEFAULT_BIG)
    }

    /// Whether every byte of `offset..offset + size` lies inside the limit
    /// (SDM volume 3, 5.3). `size` is at least 1.
    pub const fn contains(&self, offset: u32, size: u32) -> bool {
        let last = offset as u64 + size as u64 - 1;
        if self.attributes.is_expand_down() {
            let upper = if self.is_big() { 0xffff_ffff } else { 0xffff };
            offset as u64 > self.limit as u64 && last <= upper
        } else {
            last <= self.limit as u64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flat_code_descriptor_decodes() {
        let descriptor = Descriptor(0x00cf_9a00_0000_ffff);
        assert_eq!(descriptor.base(), 0);
        assert_eq!(descriptor.limit(), 0xffff_ffff);
        assert!(descriptor.attributes().is_code());
        assert!(descriptor.attributes().contains(Attributes::DEFAULT_BIG));
        assert_eq!(descriptor.attributes().dpl(), 0);
    }

    #[test]
    fn expand_down_segments_are_valid_above_their_limit() {
        let mut segment = Segment::real_mode(0, 0);
        segment.attributes |= Attributes::EXPAND_DOWN_OR_CONFORMING;
        segment.limit = 0xfff;
        assert!(!segment.contains(0xfff, 1));
        assert!(segment.contains(0x1000, 4));
        assert!(!segment.contains(0xfffe, 4));
    }
}
