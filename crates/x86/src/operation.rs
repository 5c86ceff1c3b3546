//! Integer instructions with at most one memory operand, classified by their operation.

/// The operation of an instruction on its first operand, the *destination*, and on its second one.
/// Flags change as in SDM volume 2.
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
    /// BT that tests a bit of the operand itself, not of memory next to it.
    TestBit,
    /// BTS of a bit of the operand itself.
    SetBit,
    /// BTR of a bit of the operand itself.
    ResetBit,
    /// BTC of a bit of the operand itself.
    ComplementBit,
    /// A string instruction, single or repeated.
    String,
}

impl Operation {
    /// Whether the operation reads its destination.
    pub const fn reads_destination(self) -> bool {
        !matches!(
            self,
            Self::Move | Self::MoveZeroExtended | Self::MoveSignExtended | Self::String
        )
    }

    /// Whether the operation writes its destination.
    pub const fn writes_destination(self) -> bool {
        !matches!(
            self,
            Self::Compare | Self::Test | Self::TestBit | Self::String
        )
    }

    /// Whether the operation can change arithmetic flags.
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
