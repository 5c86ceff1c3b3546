//! There are no performance counters: CPUID offers none, their registers do not exist, and RDPMC
//! finds none (SDM volume 3, 20.2; APM volume 2, 13.2.2).
//!
//! AMD's processors have four counters that no bit of CPUID announces (C001_0000h to C001_0007h).
//! Here, accesses to their registers fail: operating systems test whether they can be written, and
//! otherwise do without counters. Counters that never count would make programs believe that no
//! event ever happens.

use crate::Outcome;
use crate::operand::require_cpl0;
use tollgate_x86::{CpuState, Cr4, Exception};

/// RDPMC: reads a performance counter.
///
/// # Errors
///
/// Always #GP(0): above CPL 0 without CR4.PCE, and otherwise because the counter does not exist.
pub fn read_instruction(state: &CpuState) -> Result<Outcome, Exception> {
    if !state.cr4().contains(Cr4::PCE) {
        require_cpl0(state)?;
    }
    Err(Exception::general_protection(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{protected_mode, run};
    use tollgate_x86::CpuModel;

    #[test]
    fn no_processor_has_counters() {
        const RDPMC: [u8; 2] = [0x0f, 0x33];
        const RDMSR: [u8; 2] = [0x0f, 0x32];
        const WRMSR: [u8; 2] = [0x0f, 0x30];
        // AMD's event selectors and counters, and Intel's.
        for msr in (0xc001_0000..=0xc001_0007).chain([0xc001_0200, 0x186, 0xc1, 0x38f]) {
            for model in [CpuModel::Host, CpuModel::Qemu64] {
                let (mut state, mut environment) = protected_mode(0);
                state.model = model;
                state.gpr[1] = msr;
                let refused = Err(Exception::general_protection(0));
                assert_eq!(
                    run(&mut state, &mut environment, &WRMSR),
                    refused,
                    "{msr:x}"
                );
                assert_eq!(
                    run(&mut state, &mut environment, &RDMSR),
                    refused,
                    "{msr:x}"
                );
                state.cr4 |= Cr4::PCE.bits();
                state.gpr[1] &= 3;
                assert_eq!(
                    run(&mut state, &mut environment, &RDPMC),
                    refused,
                    "{msr:x}"
                );
            }
        }
    }
}
