//! IA32_TSC_DEADLINE, the deadline of the local APIC's timer, as the guest reads and writes it.
//!
//! The deadline is compared with the guest's time-stamp counter (SDM volume 3, 11.5.4.1), which is
//! the machine's plus the offset that the guest has set by IA32_TIME_STAMP_COUNTER or
//! IA32_TSC_ADJUST. The machine uses its own counter. Example: the machine's counter is 5000, and
//! the guest has set its own to 100 (the offset is -4900). A deadline of 300 is 200 ticks away, so
//! it is 5200 for the machine.

use tollgate_platform::Environment;
use tollgate_x86::CpuState;
use tollgate_x86::local_apic_msrs::TSC_DEADLINE;

/// The deadline as a value of the guest's counter; zero if none is armed. `None` if the machine has
/// no such register.
pub fn read(state: &CpuState, environment: &mut dyn Environment) -> Option<u64> {
    let deadline = environment.machine(|machine| machine.msr_read(TSC_DEADLINE))?;
    Some(match deadline {
        0 => 0,
        armed => armed.wrapping_add(state.tsc_offset),
    })
}

/// Converts a value of the guest's counter to one of the machine's, which is `machine` now. Zero,
/// which disarms the timer, stays zero. A deadline that the machine's counter would reach only
/// after an overflow becomes the latest value that it can reach.
pub fn of_machine(state: &CpuState, machine: u64, value: u64) -> u64 {
    if value == 0 {
        return 0;
    }
    let remaining = value.saturating_sub(machine.wrapping_add(state.tsc_offset));
    // Zero would disarm the timer.
    machine.saturating_add(remaining).max(1)
}

/// Arms the timer for a value of the guest's counter; zero disarms it. Returns the result of
/// [`tollgate_platform::Platform::msr_write`].
pub fn write(state: &CpuState, environment: &mut dyn Environment, value: u64) -> Option<bool> {
    environment.machine(|machine| {
        let deadline = of_machine(state, machine.time_stamp(), value);
        machine.msr_write(TSC_DEADLINE, deadline)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msr;
    use crate::test_environment::protected_mode;

    const COUNTER: u32 = 0x10;
    const ADJUST: u32 = 0x3b;

    /// A guest whose counter is `guest` while the machine's is `machine`.
    fn guest(machine: u64, guest: u64) -> (CpuState, crate::test_environment::TestEnvironment) {
        let (mut state, mut environment) = protected_mode(0);
        environment.platform.msrs = vec![(TSC_DEADLINE, 0)];
        environment.platform.time_stamp = machine;
        msr::write(&mut state, &mut environment, COUNTER, guest).unwrap();
        (state, environment)
    }

    #[test]
    fn a_deadline_is_a_value_of_the_guests_counter() {
        for (counter, deadline, expected) in [
            (100, 300, 5200),
            // The guest's counter is ahead.
            (1_000_000, 1_000_300, 5300),
            // These are already reached: past or present values of the machine's counter.
            (1_000_000, 300, 5000),
            (100, 100, 5000),
            // The guest's counter overflows before the machine's.
            (u64::MAX - 10, u64::MAX, 5010),
            // The machine's counter would overflow first, so the deadline is never reached.
            (100, u64::MAX, u64::MAX),
        ] {
            let (mut state, mut environment) = guest(5000, counter);
            msr::write(&mut state, &mut environment, TSC_DEADLINE, deadline).unwrap();
            assert_eq!(
                environment.platform.msrs[0].1, expected,
                "{counter} {deadline}"
            );
            if expected > 5000 && expected < u64::MAX {
                assert_eq!(
                    msr::read(&state, &mut environment, TSC_DEADLINE),
                    Ok(deadline)
                );
            }
        }
    }

    #[test]
    fn zero_disarms_and_reads_as_zero() {
        let (mut state, mut environment) = guest(5000, 100);
        msr::write(&mut state, &mut environment, TSC_DEADLINE, 300).unwrap();
        msr::write(&mut state, &mut environment, TSC_DEADLINE, 0).unwrap();
        assert_eq!(environment.platform.msrs[0].1, 0);
        assert_eq!(msr::read(&state, &mut environment, TSC_DEADLINE), Ok(0));
    }

    #[test]
    fn a_deadline_at_the_machines_zero_is_not_taken_for_none() {
        let (mut state, mut environment) = guest(0, 100);
        msr::write(&mut state, &mut environment, TSC_DEADLINE, 100).unwrap();
        assert_eq!(environment.platform.msrs[0].1, 1);
    }

    #[test]
    fn an_armed_deadline_follows_changes_of_the_counter() {
        let (mut state, mut environment) = guest(5000, 100);
        msr::write(&mut state, &mut environment, TSC_DEADLINE, 300).unwrap();
        // The deadline is 150 ticks nearer.
        msr::write(&mut state, &mut environment, COUNTER, 250).unwrap();
        assert_eq!(environment.platform.msrs[0].1, 5050);
        assert_eq!(msr::read(&state, &mut environment, TSC_DEADLINE), Ok(300));
        // Without an offset, 300 passed long ago.
        msr::write(&mut state, &mut environment, ADJUST, 0).unwrap();
        assert_eq!(environment.platform.msrs[0].1, 5000);
    }

    #[test]
    fn changes_of_the_counter_arm_nothing() {
        let (mut state, mut environment) = guest(5000, 100);
        msr::write(&mut state, &mut environment, ADJUST, 77).unwrap();
        assert_eq!(environment.platform.msrs[0].1, 0);
    }

    #[test]
    fn a_machine_without_the_register_refuses_it() {
        let (mut state, mut environment) = protected_mode(0);
        assert!(msr::read(&state, &mut environment, TSC_DEADLINE).is_err());
        assert!(msr::write(&mut state, &mut environment, TSC_DEADLINE, 5).is_err());
        msr::write(&mut state, &mut environment, ADJUST, 77).unwrap();
        assert_eq!(state.tsc_offset, 77);
    }
}
