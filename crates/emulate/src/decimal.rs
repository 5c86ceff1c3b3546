//! Decimal adjustment: AAA, AAS, DAA, DAS, AAM and AAD (SDM volume 2).
//!
//! Flags that the manuals leave undefined are set as each maker's processors set them, measured for
//! all operands. Intel's processors clear OF, and set SF, ZF and PF by AL. AMD's set these flags as
//! the one addition or subtraction does that adjusts AL (DAA, DAS) or AX (AAA, AAS), before the
//! upper digit of AL is cleared. On both, AAD sets OF, AF and CF like the addition in it.

use crate::Outcome;
use crate::cpuid::{Vendor, policy};
use iced_x86::Instruction;
use tollgate_x86::{CpuState, Exception, Flags, Gpr, Vector};

fn ax(state: &CpuState) -> u16 {
    state.register(Gpr::Rax) as u16
}

fn set_ax(state: &mut CpuState, value: u16) {
    let place = &mut state.gpr[Gpr::Rax as usize];
    *place = *place & !0xffff | u64::from(value);
}

fn set_al(state: &mut CpuState, value: u8) {
    set_ax(state, ax(state) & 0xff00 | u16::from(value));
}

fn change_flags(state: &mut CpuState, changes: &[(Flags, bool)]) {
    let mut flags = state.flags();
    for (flag, value) in changes {
        flags.set(*flag, *value);
    }
    state.set_flags(flags);
}

/// Sets SF, ZF and PF by a result in AL, and clears OF.
fn set_result_flags(state: &mut CpuState, al: u8) {
    change_flags(
        state,
        &[
            (Flags::SF, al & 0x80 != 0),
            (Flags::ZF, al == 0),
            (Flags::PF, al.count_ones().is_multiple_of(2)),
            (Flags::OF, false),
        ],
    );
}

/// What determines SF, ZF, PF and OF after the addition or subtraction that adjusts AL or AX.
struct Sum {
    /// The lowest byte, whose parity PF shows.
    low: u8,
    /// The highest byte, whose sign SF shows.
    high: u8,
    is_zero: bool,
    overflows: bool,
}

fn set_sum_flags(state: &mut CpuState, sum: &Sum) {
    change_flags(
        state,
        &[
            (Flags::SF, sum.high & 0x80 != 0),
            (Flags::ZF, sum.is_zero),
            (Flags::PF, sum.low.count_ones().is_multiple_of(2)),
            (Flags::OF, sum.overflows),
        ],
    );
}

/// Whether the low digit needs adjustment.
fn low_digit_overflowed(state: &CpuState) -> bool {
    ax(state) & 0xf > 9 || state.flags().contains(Flags::AF)
}

/// AAA and AAS. `delta` is what a carry out of the digit adds to AX.
fn adjust_ascii(state: &mut CpuState, delta: u16) -> Outcome {
    let adjust = low_digit_overflowed(state);
    let value = if adjust {
        ax(state).wrapping_add(delta)
    } else {
        ax(state)
    };
    let old = ax(state);
    set_ax(state, value & 0xff0f);
    change_flags(state, &[(Flags::AF, adjust), (Flags::CF, adjust)]);
    if policy(state).vendor() == Vendor::Amd {
        // A sum overflows if both operands' signs differ from the result's; a difference if AX's
        // sign alone does.
        let amount = if adjust { 0x106 } else { 0 };
        let operands = if delta >> 15 == 0 {
            !(old ^ amount)
        } else {
            old ^ amount
        };
        let [low, high] = value.to_le_bytes();
        let sum = Sum {
            low,
            high,
            is_zero: value == 0,
            overflows: operands & (old ^ value) & 0x8000 != 0,
        };
        set_sum_flags(state, &sum);
    } else {
        set_result_flags(state, value as u8 & 0xf);
    }
    Outcome::Next
}

/// AAA: adjusts AL after an addition.
pub fn ascii_adjust_after_addition(state: &mut CpuState) -> Outcome {
    adjust_ascii(state, 0x106)
}

/// AAS: adjusts AL after a subtraction.
pub fn ascii_adjust_after_subtraction(state: &mut CpuState) -> Outcome {
    // This subtracts 6 from AX, then 1 from AH.
    adjust_ascii(state, 0x106u16.wrapping_neg())
}

/// DAA and DAS; `add` selects DAA.
fn adjust_decimal(state: &mut CpuState, add: bool) -> Outcome {
    let old = ax(state) as u8;
    let old_carry = state.flags().contains(Flags::CF);
    let step = |value: u8, amount: u8| {
        if add {
            value.overflowing_add(amount)
        } else {
            value.overflowing_sub(amount)
        }
    };
    let (mut al, mut carry) = (old, false);
    let low = low_digit_overflowed(state);
    if low {
        let (adjusted, overflow) = step(al, 6);
        al = adjusted;
        carry = old_carry || overflow;
    }
    if old > 0x99 || old_carry {
        al = step(al, 0x60).0;
        carry = true;
    } else if add {
        carry = false;
    }
    set_al(state, al);
    change_flags(state, &[(Flags::AF, low), (Flags::CF, carry)]);
    if policy(state).vendor() == Vendor::Amd {
        let amount = if add {
            al.wrapping_sub(old)
        } else {
            old.wrapping_sub(al)
        };
        let operands = if add { !(old ^ amount) } else { old ^ amount };
        let sum = Sum {
            low: al,
            high: al,
            is_zero: al == 0,
            overflows: operands & (old ^ al) & 0x80 != 0,
        };
        set_sum_flags(state, &sum);
    } else {
        set_result_flags(state, al);
    }
    Outcome::Next
}

/// DAA: adjusts AL after an addition.
pub fn decimal_adjust_after_addition(state: &mut CpuState) -> Outcome {
    adjust_decimal(state, true)
}

/// DAS: adjusts AL after a subtraction.
pub fn decimal_adjust_after_subtraction(state: &mut CpuState) -> Outcome {
    adjust_decimal(state, false)
}

/// AAM: splits AL into digits of the immediate's base.
///
/// # Errors
/// #DE for base 0.
pub fn ascii_adjust_after_multiplication(
    state: &mut CpuState,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let base = instruction.immediate8();
    let al = ax(state) as u8;
    let (Some(high), Some(low)) = (al.checked_div(base), al.checked_rem(base)) else {
        return Err(Exception::new(Vector::DivideError));
    };
    set_ax(state, u16::from(high) << 8 | u16::from(low));
    set_result_flags(state, low);
    change_flags(state, &[(Flags::AF, false), (Flags::CF, false)]);
    Ok(Outcome::Next)
}

/// AAD: combines the digits in AH and AL.
pub fn ascii_adjust_before_division(state: &mut CpuState, instruction: &Instruction) -> Outcome {
    let [al, ah] = ax(state).to_le_bytes();
    let tens = ah.wrapping_mul(instruction.immediate8());
    let (joined, carry) = tens.overflowing_add(al);
    set_ax(state, u16::from(joined));
    set_result_flags(state, joined);
    let half_carry = (tens ^ al ^ joined) & 0x10 != 0;
    let overflow = !(tens ^ al) & (tens ^ joined) & 0x80 != 0;
    change_flags(
        state,
        &[
            (Flags::OF, overflow),
            (Flags::AF, half_carry),
            (Flags::CF, carry),
        ],
    );
    Outcome::Next
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpuid::policy_of;
    use crate::test_environment::{real_mode, run};
    use tollgate_x86::CpuModel;

    /// The result on a processor of the model's maker. AMD's models run on any host, Intel's only
    /// on an Intel host.
    fn after_on(model: CpuModel, ax: u16, flags: Flags, code: &[u8]) -> (u16, Flags) {
        let (mut state, mut environment) = real_mode();
        state.model = model;
        state.gpr[0] = 0x5555_0000 | u64::from(ax);
        state.set_flags(flags);
        run(&mut state, &mut environment, code).unwrap();
        assert_eq!(state.gpr[0] >> 16, 0x5555);
        (state.gpr[0] as u16, state.flags())
    }

    fn after(ax: u16, flags: Flags, code: &[u8]) -> (u16, Flags) {
        after_on(CpuModel::Host, ax, flags, code)
    }

    #[test]
    fn daa_corrects_packed_sums() {
        let (cf, af) = (Flags::CF, Flags::AF);
        // 79h + 35h = AEh, and 79 + 35 = 114.
        let (ax, flags) = after(0x00ae, Flags::empty(), &[0x27]);
        assert_eq!(ax, 0x14);
        assert_eq!(flags & (cf | af), cf | af);
        assert_eq!(flags & Flags::PF, Flags::PF);
        let (ax, flags) = after(0x0042, Flags::empty(), &[0x27]);
        assert_eq!((ax, flags & (cf | af)), (0x42, Flags::empty()));
        // FAh + 6 carries out of the byte.
        let (ax, flags) = after(0x00fa, Flags::empty(), &[0x27]);
        assert_eq!((ax, flags & (cf | af)), (0x60, cf | af));
    }

    #[test]
    fn packed_addition_and_subtraction_agree_with_decimal_arithmetic() {
        let packed = |value: u16| ((value / 10) << 4) | (value % 10);
        for a in 0..100u16 {
            for b in 0..100u16 {
                let (pa, pb) = (packed(a), packed(b));
                let mut flags = Flags::empty();
                flags.set(Flags::AF, (pa & 15) + (pb & 15) > 15);
                flags.set(Flags::CF, pa + pb > 255);
                let (ax, flags) = after((pa + pb) & 0xff, flags, &[0x27]);
                assert_eq!(ax, packed((a + b) % 100));
                assert_eq!(flags.contains(Flags::CF), a + b > 99);

                let mut flags = Flags::empty();
                flags.set(Flags::AF, pa & 15 < pb & 15);
                flags.set(Flags::CF, pa < pb);
                let (ax, flags) = after(pa.wrapping_sub(pb) & 0xff, flags, &[0x2f]);
                assert_eq!(ax, packed((100 + a - b) % 100));
                assert_eq!(flags.contains(Flags::CF), a < b);
            }
        }
    }

    #[test]
    fn ascii_adjustment_carries_into_ah() {
        let both = Flags::CF | Flags::AF;
        let (ax, flags) = after(0x010b, Flags::empty(), &[0x37]);
        assert_eq!((ax, flags & both), (0x0201, both));
        let (ax, flags) = after(0x0235, both.difference(Flags::AF), &[0x37]);
        assert_eq!((ax, flags & both), (0x0205, Flags::empty()));
        // 2 - 5 = FDh with a borrow.
        let (ax, flags) = after(0x02fd, both, &[0x3f]);
        assert_eq!((ax, flags & both), (0x0107, both));
        // A carry out of AL is also added to AH.
        let (ax, _) = after(0x00fa, Flags::empty(), &[0x37]);
        assert_eq!(ax, 0x0200);
    }

    #[test]
    fn aam_divides_and_aad_multiplies() {
        let (ax, flags) = after(0xff3f, Flags::empty(), &[0xd4, 10]);
        assert_eq!((ax, flags), (0x0603, Flags::PF));
        let (ax, flags) = after(0x0603, Flags::empty(), &[0xd5, 10]);
        assert_eq!((ax, flags), (0x003f, Flags::PF));
        let (ax, flags) = after(0x1000, Flags::empty(), &[0xd5, 16]);
        assert_eq!((ax, flags), (0, Flags::ZF | Flags::PF));
    }

    /// Measured on Intel's processors, for all operands.
    #[test]
    fn flags_that_the_manual_leaves_open_are_those_of_real_processors() {
        let all = Flags::ARITHMETIC;
        assert_eq!(after(0x0047, all, &[0xd4, 10]).1, Flags::empty());
        // First DAA and DAS, then AAA and AAS.
        assert_eq!(after(0x0042, Flags::OF, &[0x27]).1, Flags::PF);
        assert_eq!(after(0x0042, Flags::OF, &[0x2f]).1, Flags::PF);
        if policy_of(CpuModel::Host).vendor() == Vendor::Intel {
            assert_eq!(
                after(0x0140, all, &[0x37]).1,
                all & (Flags::AF | Flags::CF | Flags::PF)
            );
            let without_carry = all.difference(Flags::AF | Flags::CF);
            assert_eq!(
                after(0x0140, without_carry, &[0x3f]).1,
                Flags::ZF | Flags::PF
            );
        }
        // AAD adds: 40h + 40h overflows, FFh + 1 carries out of both digits.
        let (ax, flags) = after(0x0440, all, &[0xd5, 16]);
        assert_eq!((ax, flags), (0x0080, Flags::OF | Flags::SF));
        let (ax, flags) = after(0x01ff, Flags::empty(), &[0xd5, 1]);
        let expected = Flags::ZF | Flags::PF | Flags::AF | Flags::CF;
        assert_eq!((ax, flags), (0x0000, expected));
    }

    /// Measured on AMD's processors of family 19h, for all operands.
    #[test]
    fn amds_processors_set_flags_as_the_adjusting_addition_does() {
        let of = |ax, code| after_on(CpuModel::Qemu64, ax, Flags::empty(), &[code]);
        let (af, cf, of_, sf, pf) = (Flags::AF, Flags::CF, Flags::OF, Flags::SF, Flags::PF);
        assert_eq!(of(0x007a, 0x27), (0x0080, of_ | sf | af));
        assert_eq!(of(0x009a, 0x2f), (0x0034, of_ | af | cf));
        assert_eq!(of(0x7efa, 0x37), (0x8000, of_ | sf | af | cf | pf));
        assert_eq!(of(0x000a, 0x37), (0x0100, af | cf));
        assert_eq!(of(0x0030, 0x37), (0x0000, pf));
        assert_eq!(of(0x800a, 0x3f), (0x7f04, of_ | af | cf));
        assert_eq!(of(0x000a, 0x3f), (0xff04, sf | af | cf));
        assert_eq!(of(0x0010, 0x3f), (0x0000, Flags::empty()));
    }

    #[test]
    fn aam_by_zero_is_a_divide_error() {
        let (mut state, mut environment) = real_mode();
        assert_eq!(
            run(&mut state, &mut environment, &[0xd4, 0]),
            Err(Exception::new(Vector::DivideError))
        );
    }
}
