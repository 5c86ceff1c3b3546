//! How emitted code names guest memory once its host address is known.

use super::assembler::Mem;
use crate::abi::host::*;
use iced_x86::Register;

/// The way in which emitted code reaches the guest memory that a look-up has found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// R9 has the host address.
    Pointer,
    /// RCX, which can be named without a REX prefix, has the host address.
    LowPointer,
    /// The host address is the sum of RCX (host minus linear address) and R8 (the linear address).
    Sum,
    /// The operand is this number of bytes above R11, in the range of a shared look-up.
    Window(u8),
    /// The host address is the sum of `delta` (host minus linear address), of the register `base`
    /// and of the displacement. The operand is in the shadow window of the value of `base`, or of
    /// the displacement if there is no `base`.
    Near {
        /// RCX, or R11 for a shared look-up.
        delta: Host,
        base: Option<Host>,
        displacement: i32,
    },
    /// The operand is at this displacement from the register's value, through the anchor in GS.
    Anchored { base: Host, displacement: i32 },
    /// The host address is the sum of R9 (the base of the segment), R8 (the offset) and the base of
    /// GS, which leads to the shadow window.
    InSegment,
}

impl Reach {
    /// The memory operand for host instructions.
    pub(crate) const fn mem(self) -> Mem {
        match self {
            Self::Pointer => Mem::base(R9, 0),
            Self::LowPointer => Mem::base(RCX, 0),
            Self::Sum => Mem::indexed(RCX, R8, 1, 0),
            Self::Window(place) => Mem::base(R11, place as i32),
            Self::Near {
                delta,
                base: Some(base),
                displacement,
            } => Mem::indexed(delta, base, 1, displacement),
            Self::Near {
                delta,
                base: None,
                displacement,
            } => Mem::base(delta, displacement),
            Self::Anchored { base, displacement } => Mem::base(base, displacement).by_gs(),
            Self::InSegment => Mem::indexed(R9, R8, 1, 0).by_gs(),
        }
    }

    /// Whether the memory operand needs a GS prefix.
    pub(crate) const fn is_by_gs(self) -> bool {
        matches!(self, Self::Anchored { .. } | Self::InSegment)
    }

    /// The base, the index and the displacement of the memory operand.
    pub(crate) fn operand(self) -> (Register, Register, i32) {
        let name = |host: Host| Register::RAX + u32::from(host.0);
        match self {
            Self::Pointer => (Register::R9, Register::None, 0),
            Self::LowPointer => (Register::RCX, Register::None, 0),
            Self::Sum => (Register::RCX, Register::R8, 0),
            Self::Window(place) => (Register::R11, Register::None, place.into()),
            Self::Near {
                delta,
                base,
                displacement,
            } => (name(delta), base.map_or(Register::None, name), displacement),
            Self::Anchored { base, displacement } => (name(base), Register::None, displacement),
            Self::InSegment => (Register::R9, Register::R8, 0),
        }
    }
}

/// Largest displacement in bytes that counts as near: with a larger one, the displacement may be
/// the address and the register an index.
pub(in crate::emit) const NEAR: i64 = 1 << 20;

pub(in crate::emit) fn is_near(displacement: i64) -> bool {
    (-NEAR..=NEAR).contains(&displacement)
}
