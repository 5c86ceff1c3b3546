//! The host's own integer instructions, executed on two values: exact by construction, including
//! flags that the manuals leave undefined.

use std::arch::asm;
use tollgate_x86::{Flags, Operation};

/// The arithmetic flags of an RFLAGS image.
const ARITHMETIC: u64 = Flags::ARITHMETIC.bits();

/// Bit 1 of RFLAGS, which is always set.
const FLAGS_FIXED: u64 = 1 << 1;

/// What an instruction leaves in a destination of `size` (1, 2, 4 or 8) bytes, and the arithmetic
/// flags after it. The higher bits of the values are ignored; in the result they are zero. `flags`
/// are the flags before the instruction. Moves, exchanges and string instructions leave both
/// unchanged.
pub fn execute(
    operation: Operation,
    size: u8,
    (destination, source): (u64, u64),
    flags: u64,
) -> (u64, u64) {
    // IF cannot be changed at the host's privilege level 3; DF, TF and AC stay clear.
    let mut image = flags & ARITHMETIC | FLAGS_FIXED;
    macro_rules! on_host {
        ($instruction:literal, $type:ty, $class:ident, $form:literal, $($other:tt)*) => {{
            let mut value = destination as $type;
            // SAFETY: one arithmetic instruction on registers, with flags that any code may have;
            // everything that is pushed is popped.
            unsafe {
                asm!(
                    "push {image}", "popfq",
                    concat!($instruction, " ", $form),
                    "pushfq", "pop {image}",
                    value = inout($class) value, image = inout(reg) image, $($other)*
                );
            }
            u64::from(value)
        }};
    }
    macro_rules! binary {
        ($instruction:literal) => {
            match size {
                1 => on_host!($instruction, u8, reg_byte, "{value}, {other}",
                    other = in(reg_byte) source as u8),
                2 => on_host!($instruction, u16, reg, "{value:x}, {other:x}",
                    other = in(reg) source as u16),
                4 => on_host!($instruction, u32, reg, "{value:e}, {other:e}",
                    other = in(reg) source as u32),
                _ => on_host!($instruction, u64, reg, "{value:r}, {other:r}",
                    other = in(reg) source),
            }
        };
    }
    macro_rules! unary {
        ($instruction:literal) => {
            match size {
                1 => on_host!($instruction, u8, reg_byte, "{value}",),
                2 => on_host!($instruction, u16, reg, "{value:x}",),
                4 => on_host!($instruction, u32, reg, "{value:e}",),
                _ => on_host!($instruction, u64, reg, "{value:r}",),
            }
        };
    }
    macro_rules! shift {
        ($instruction:literal) => {
            match size {
                1 => on_host!($instruction, u8, reg_byte, "{value}, cl", in("cl") source as u8),
                2 => on_host!($instruction, u16, reg, "{value:x}, cl", in("cl") source as u8),
                4 => on_host!($instruction, u32, reg, "{value:e}, cl", in("cl") source as u8),
                _ => on_host!($instruction, u64, reg, "{value:r}, cl", in("cl") source as u8),
            }
        };
    }
    macro_rules! bit {
        ($instruction:literal) => {
            match size {
                4 => on_host!($instruction, u32, reg, "{value:e}, {other:e}",
                    other = in(reg) source as u32),
                8 => on_host!($instruction, u64, reg, "{value:r}, {other:r}",
                    other = in(reg) source),
                _ => on_host!($instruction, u16, reg, "{value:x}, {other:x}",
                    other = in(reg) source as u16),
            }
        };
    }
    use Operation::*;
    let value = match operation {
        Move | MoveZeroExtended | MoveSignExtended | Exchange | String => destination,
        Add => binary!("add"),
        Or => binary!("or"),
        AddWithCarry => binary!("adc"),
        SubtractWithBorrow => binary!("sbb"),
        And => binary!("and"),
        Subtract => binary!("sub"),
        Xor => binary!("xor"),
        Compare => binary!("cmp"),
        Test => binary!("test"),
        Increment => unary!("inc"),
        Decrement => unary!("dec"),
        Not => unary!("not"),
        Negate => unary!("neg"),
        RotateLeft => shift!("rol"),
        RotateRight => shift!("ror"),
        RotateLeftThroughCarry => shift!("rcl"),
        RotateRightThroughCarry => shift!("rcr"),
        ShiftLeft => shift!("shl"),
        ShiftRight => shift!("shr"),
        ShiftRightArithmetic => shift!("sar"),
        TestBit => bit!("bt"),
        SetBit => bit!("bts"),
        ResetBit => bit!("btr"),
        ComplementBit => bit!("btc"),
    };
    (value, image & ARITHMETIC)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CF: u64 = Flags::CF.bits();
    const PF: u64 = Flags::PF.bits();
    const AF: u64 = Flags::AF.bits();
    const ZF: u64 = Flags::ZF.bits();
    const SF: u64 = Flags::SF.bits();
    const OF: u64 = Flags::OF.bits();

    #[test]
    fn results_and_flags_are_those_of_the_operand_s_size() {
        let add = |size, one, other| execute(Operation::Add, size, (one, other), 0);
        assert_eq!(add(1, 0x1ff, 1), (0, CF | PF | AF | ZF));
        assert_eq!(add(2, 0x7fff, 1), (0x8000, PF | AF | SF | OF));
        assert_eq!(add(4, u64::MAX, 1), (0, CF | PF | AF | ZF));
        assert_eq!(add(8, u64::MAX, 2), (1, CF | AF));
    }

    #[test]
    fn flags_from_before_are_used_and_kept() {
        let with_carry = |operation, carry| execute(operation, 1, (0xff, 0), carry);
        assert_eq!(with_carry(Operation::AddWithCarry, CF).0, 0);
        assert_eq!(with_carry(Operation::AddWithCarry, 0).0, 0xff);
        assert_eq!(with_carry(Operation::Increment, CF), (0, CF | PF | AF | ZF));
        assert_eq!(with_carry(Operation::Not, CF | OF), (0, CF | OF));
        // A shift by zero changes no flag.
        let all = Flags::ARITHMETIC.bits();
        assert_eq!(execute(Operation::ShiftLeft, 4, (5, 0x20), all), (5, all));
    }

    #[test]
    fn comparisons_leave_the_destination() {
        assert_eq!(execute(Operation::Compare, 4, (5, 5), 0), (5, PF | ZF));
        let (value, flags) = execute(Operation::Test, 1, (0x80, 0x80), CF);
        assert_eq!((value, flags & !AF), (0x80, SF));
        let (value, flags) = execute(Operation::TestBit, 2, (8, 3), 0);
        assert_eq!((value, flags & CF), (8, CF));
        let (value, flags) = execute(Operation::SetBit, 8, (0, 63), 0);
        assert_eq!((value, flags & CF), (1 << 63, 0));
    }
}
