//! The performance counters that every processor of AMD's has without a bit of CPUID for
//! them (AMD's manual volume 2, 13.2.2): four event selects and four counters.
//!
//! They hold what is written and count nothing: as if no event ever happened.

use crate::Outcome;
use crate::cpuid::{Vendor, policy};
use crate::msr::set_edx_eax;
use crate::operand::require_cpl0;
use tollgate_x86::{CpuState, Cr4, Exception, Gpr};

/// MSR numbers of the event selects, and behind them of the counters.
const FIRST_SELECT: u32 = 0xc001_0000;
const FIRST_COUNTER: u32 = 0xc001_0004;
const LAST_COUNTER: u32 = 0xc001_0007;

/// Bits of an event select that hold what is written: all but 63 to 42, 39 to 36, 21 and 19.
const SELECT_WRITABLE: u64 = 0x0000_030f_ffd7_ffff;
/// A counter has 48 bits.
const COUNTER_WRITABLE: u64 = 0x0000_ffff_ffff_ffff;

/// The value of the event select or counter with this MSR number; `None`: it is neither.
pub fn read(state: &CpuState, msr: u32) -> Option<u64> {
    (FIRST_SELECT..=LAST_COUNTER)
        .contains(&msr)
        .then(|| state.performance[(msr - FIRST_SELECT) as usize])
}

/// Writes the event select or counter with this MSR number; reserved bits are dropped.
/// False: it is neither.
pub fn write(state: &mut CpuState, msr: u32, value: u64) -> bool {
    let writable = match msr {
        FIRST_SELECT..FIRST_COUNTER => SELECT_WRITABLE,
        FIRST_COUNTER..=LAST_COUNTER => COUNTER_WRITABLE,
        _ => return false,
    };
    state.performance[(msr - FIRST_SELECT) as usize] = value & writable;
    true
}

/// RDPMC: counter ECX into EDX:EAX. Only AMD's processors have counters here.
///
/// # Errors
/// #GP(0) above CPL 0 without CR4.PCE, and for a counter that is not there.
pub fn read_instruction(state: &mut CpuState) -> Result<Outcome, Exception> {
    if !state.cr4().contains(Cr4::PCE) {
        require_cpl0(state)?;
    }
    let msr = FIRST_COUNTER.checked_add(state.register(Gpr::Rcx) as u32);
    let value = msr
        .filter(|_| policy(state).vendor() == Vendor::Amd)
        .and_then(|msr| read(state, msr))
        .ok_or(Exception::general_protection(0))?;
    set_edx_eax(state, value);
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{TestEnvironment, protected_mode, run};
    use tollgate_x86::CpuModel;

    const RDPMC: [u8; 2] = [0x0f, 0x33];
    const RDMSR: [u8; 2] = [0x0f, 0x32];
    const WRMSR: [u8; 2] = [0x0f, 0x30];
    const GP: Result<Outcome, Exception> = Err(Exception::general_protection(0));

    /// A processor of AMD's on any host.
    fn amd(cpl: u8) -> (CpuState, TestEnvironment) {
        let (mut state, environment) = protected_mode(cpl);
        state.model = CpuModel::Qemu64;
        (state, environment)
    }

    fn set(state: &mut CpuState, value: u64) {
        (state.gpr[0], state.gpr[2]) = (value & 0xffff_ffff, value >> 32);
    }

    fn get(state: &CpuState) -> u64 {
        state.register(Gpr::Rax) | state.register(Gpr::Rdx) << 32
    }

    #[test]
    fn selects_and_counters_hold_what_is_written_but_for_reserved_bits() {
        let (mut state, mut environment) = amd(0);
        for msr in FIRST_SELECT..=LAST_COUNTER {
            state.gpr[1] = u64::from(msr);
            for (value, select, counter) in [
                (0, 0, 0),
                (0xabcd, 0xabcd, 0xabcd),
                (u64::MAX, 0x030f_ffd7_ffff, 0xffff_ffff_ffff),
            ] {
                set(&mut state, value);
                assert!(run(&mut state, &mut environment, &WRMSR).is_ok(), "{msr:x}");
                set(&mut state, 0x5555);
                assert!(run(&mut state, &mut environment, &RDMSR).is_ok(), "{msr:x}");
                let expected = if msr < FIRST_COUNTER { select } else { counter };
                assert_eq!(get(&state), expected, "{msr:x}");
            }
        }
        for msr in [FIRST_SELECT - 1, LAST_COUNTER + 1] {
            state.gpr[1] = u64::from(msr);
            assert_eq!(run(&mut state, &mut environment, &WRMSR), GP);
            assert_eq!(run(&mut state, &mut environment, &RDMSR), GP);
        }
    }

    #[test]
    fn rdpmc_reads_four_counters_at_level_0_or_with_cr4_pce() {
        let (mut state, mut environment) = amd(0);
        for counter in 0..4 {
            assert!(write(&mut state, FIRST_COUNTER + counter, 0x1234_5678_9abc));
            state.gpr[1] = u64::from(counter);
            run(&mut state, &mut environment, &RDPMC).unwrap();
            assert_eq!(get(&state), 0x1234_5678_9abc);
        }
        for counter in [4, 0x4000_0000, 0xffff_ffff] {
            state.gpr[1] = counter;
            assert_eq!(run(&mut state, &mut environment, &RDPMC), GP);
        }
        let (mut state, mut environment) = amd(3);
        state.gpr[1] = 0;
        assert_eq!(run(&mut state, &mut environment, &RDPMC), GP);
        state.cr4 |= Cr4::PCE.bits();
        assert!(run(&mut state, &mut environment, &RDPMC).is_ok());
    }

    #[test]
    fn only_amds_processors_have_them() {
        let (mut state, mut environment) = protected_mode(0);
        state.gpr[1] = u64::from(FIRST_COUNTER);
        let has_them = policy(&state).vendor() == Vendor::Amd;
        let result = run(&mut state, &mut environment, &WRMSR);
        assert_eq!(result.is_ok(), has_them);
        state.gpr[1] = 0;
        let result = run(&mut state, &mut environment, &RDPMC);
        assert_eq!(result.is_ok(), has_them);
    }
}
