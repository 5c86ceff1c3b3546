//! The guest's time-stamp counter: the machine's plus an offset that the guest sets (SDM volume 3,
//! 18.17). RDTSC and RDTSCP are implemented here; translated code adds the same offset.

use crate::Outcome;
use crate::cpuid::policy;
use crate::msr::set_edx_eax;
use crate::operand::require_cpl0;
use crate::tsc_deadline;
use iced_x86::CpuidFeature;
use tollgate_platform::Environment;
use tollgate_x86::time_stamp_msrs::TIME_STAMP_ADJUST;
use tollgate_x86::{CpuState, Cr4, Exception, Gpr};

/// The guest's time-stamp counter.
pub fn time_stamp(state: &CpuState, environment: &mut dyn Environment) -> u64 {
    environment
        .machine(|machine| machine.time_stamp())
        .wrapping_add(state.tsc_offset)
}

/// Changes the offset that the guest has added to the time-stamp counter. An armed deadline remains
/// the same value of the guest's counter, which may have reached it now. The machine is notified,
/// in case it derives something from the guest's counter.
pub fn set(state: &mut CpuState, environment: &mut dyn Environment, offset: u64) {
    let deadline = tsc_deadline::read(state, environment).unwrap_or(0);
    state.tsc_offset = offset;
    environment.machine(|machine| machine.msr_write(TIME_STAMP_ADJUST, offset));
    if deadline != 0 {
        tsc_deadline::write(state, environment, deadline);
    }
}

/// RDTSC: reads the time-stamp counter.
///
/// # Errors
///
/// #GP(0) above CPL 0 with CR4.TSD set.
pub fn read_time_stamp(
    state: &mut CpuState,
    environment: &mut dyn Environment,
) -> Result<Outcome, Exception> {
    if state.cr4().contains(Cr4::TSD) {
        require_cpl0(state)?;
    }
    let value = time_stamp(state, environment);
    set_edx_eax(state, value);
    Ok(Outcome::Next)
}

/// RDTSCP: reads the time-stamp counter and IA32_TSC_AUX.
///
/// # Errors
///
/// #UD if CPUID does not offer it; #GP(0) as for [`read_time_stamp`].
pub fn read_time_stamp_and_processor(
    state: &mut CpuState,
    environment: &mut dyn Environment,
) -> Result<Outcome, Exception> {
    if !policy(state).offers(CpuidFeature::RDTSCP) {
        return Err(Exception::invalid_opcode());
    }
    let outcome = read_time_stamp(state, environment)?;
    state.gpr[Gpr::Rcx as usize] = state.tsc_aux & 0xffff_ffff;
    Ok(outcome)
}
