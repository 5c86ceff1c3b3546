//! Integer instructions with one memory operand at most, by what they do.

/// What an instruction does with its first operand, the *destination*, and with its second one.
/// Flags are those of SDM volume 2.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Operation {
    /// MOV.
    Move,
    /// MOVZX.
    MoveZeroExtended,
    /// MOVSX and MOVSXD.
    MoveSignExtended,
    /// XCHG.
    Exchange,
    /// ADD.
    Add,
    /// OR.
    Or,
    /// ADC.
    AddWithCarry,
    /// SBB.
    SubtractWithBorrow,
    /// AND.
    And,
    /// SUB.
    Subtract,
    /// XOR.
    Xor,
    /// CMP.
    Compare,
    /// TEST.
    Test,
    /// INC.
    Increment,
    /// DEC.
    Decrement,
    /// NOT.
    Not,
    /// NEG.
    Negate,
    /// ROL.
    RotateLeft,
    /// ROR.
    RotateRight,
    /// RCL.
    RotateLeftThroughCarry,
    /// RCR.
    RotateRightThroughCarry,
    /// SHL.
    ShiftLeft,
    /// SHR.
    ShiftRight,
    /// SAR.
    ShiftRightArithmetic,
    /// BT of a bit of the operand itself.
    TestBit,
    /// BTS, likewise.
    SetBit,
    /// BTR, likewise.
    ResetBit,
    /// BTC, likewise.
    ComplementBit,
    /// A string instruction, single or repeated.
    String,
}

impl Operation {
    /// The destination is loaded.
    pub const fn reads_destination(self) -> bool {
        !matches!(
            self,
            Self::Move | Self::MoveZeroExtended | Self::MoveSignExtended | Self::String
        )
    }

    /// The destination is stored.
    pub const fn writes_destination(self) -> bool {
        !matches!(
            self,
            Self::Compare | Self::Test | Self::TestBit | Self::String
        )
    }

    /// Arithmetic flags may change.
    pub const fn changes_flags(self) -> bool {
        !matches!(
            self,
            Self::Move
                | Self::MoveZeroExtended
                | Self::MoveSignExtended
                | Self::Exchange
                | Self::Not
        )
    }
}
