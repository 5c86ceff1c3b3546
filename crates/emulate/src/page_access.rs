//! Instructions that change which data accesses to user pages are allowed: CLAC and STAC for the
//! supervisor (SDM volume 3, 4.6.1), RDPKRU and WRPKRU by protection keys (4.6.2). The rights to
//! supervisor pages by their keys are in a model-specific register.

use crate::Outcome;
use crate::cpuid::policy;
use iced_x86::CpuidFeature;
use tollgate_platform::Environment;
use tollgate_x86::{CpuState, Cr4, Exception, Flags, Gpr};

/// Bits of PKRU and IA32_PKRS for key 0, which nearly all pages have.
const KEY_0: u32 = 3;

/// STAC if `sets`, otherwise CLAC: sets or clears EFLAGS.AC.
///
/// # Errors
///
/// #UD if CPUID does not offer it, and above CPL 0.
pub fn change_access(state: &mut CpuState, sets: bool) -> Result<Outcome, Exception> {
    if !policy(state).offers(CpuidFeature::SMAP) || state.cpl() != 0 {
        return Err(Exception::invalid_opcode());
    }
    let mut flags = state.flags();
    flags.set(Flags::AC, sets);
    state.set_flags(flags);
    Ok(Outcome::Next)
}

/// Fails unless RDPKRU and WRPKRU may execute.
///
/// # Errors
/// #UD without CR4.PKE; #GP(0) if ECX is not zero.
fn require_keys(state: &CpuState) -> Result<(), Exception> {
    if !state.cr4().contains(Cr4::PKE) {
        return Err(Exception::invalid_opcode());
    }
    if state.register(Gpr::Rcx) as u32 != 0 {
        return Err(Exception::general_protection(0));
    }
    Ok(())
}

/// RDPKRU: copies PKRU to EAX, and sets EDX to zero.
///
/// # Errors
///
/// #UD without CR4.PKE; #GP(0) if ECX is not zero.
pub fn read_key_rights(state: &mut CpuState) -> Result<Outcome, Exception> {
    require_keys(state)?;
    state.gpr[Gpr::Rax as usize] = u64::from(state.pkru);
    state.gpr[Gpr::Rdx as usize] = 0;
    Ok(Outcome::Next)
}

/// WRPKRU: copies EAX to PKRU.
///
/// # Errors
///
/// #UD without CR4.PKE; #GP(0) if ECX or EDX is not zero.
pub fn write_key_rights(
    state: &mut CpuState,
    environment: &mut dyn Environment,
) -> Result<Outcome, Exception> {
    require_keys(state)?;
    if state.register(Gpr::Rdx) as u32 != 0 {
        return Err(Exception::general_protection(0));
    }
    let value = state.register(Gpr::Rax) as u32;
    set_key_rights(state, environment, value);
    Ok(Outcome::Next)
}

/// Sets PKRU; also used by XRSTOR.
pub(crate) fn set_key_rights(state: &mut CpuState, environment: &mut dyn Environment, value: u32) {
    let changed = state.pkru ^ value;
    state.pkru = value;
    report_change(state, environment, (changed, Cr4::PKE));
}

/// Reports that bits of a register with key rights have changed, if CR4 enables such keys
/// (`enables`).
fn report_change(
    state: &CpuState,
    environment: &mut dyn Environment,
    (changed, enables): (u32, Cr4),
) {
    if changed != 0 && state.cr4().contains(enables) {
        environment.key_rights_changed(state, changed & KEY_0 != 0);
    }
}

/// Sets IA32_PKRS, whose upper half is reserved.
///
/// # Errors
///
/// #GP(0) if a reserved bit is set.
pub(crate) fn set_supervisor_key_rights(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    value: u64,
) -> Result<(), Exception> {
    let value = u32::try_from(value).map_err(|_| Exception::general_protection(0))?;
    let changed = state.pkrs ^ value;
    state.pkrs = value;
    report_change(state, environment, (changed, Cr4::PKS));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{long_mode, protected_mode, real_mode, run};
    use tollgate_x86::AddedFeatures;

    const CLAC: [u8; 3] = [0x0f, 1, 0xca];
    const STAC: [u8; 3] = [0x0f, 1, 0xcb];
    const RDPKRU: [u8; 3] = [0x0f, 1, 0xee];
    const WRPKRU: [u8; 3] = [0x0f, 1, 0xef];
    const UNDEFINED: Result<Outcome, Exception> = Err(Exception::invalid_opcode());
    const REFUSED: Result<Outcome, Exception> = Err(Exception::general_protection(0));

    #[test]
    fn clac_and_stac_change_ac_at_level_0_where_they_are_offered() {
        for (mut state, mut environment) in [real_mode(), protected_mode(0), long_mode(0)] {
            assert_eq!(run(&mut state, &mut environment, &STAC), UNDEFINED);
            state.added_features = AddedFeatures::SMAP;
            let before = state.flags;
            assert!(run(&mut state, &mut environment, &STAC).is_ok());
            assert_eq!(state.flags, before | Flags::AC.bits());
            assert!(run(&mut state, &mut environment, &CLAC).is_ok());
            assert_eq!(state.flags, before & !Flags::AC.bits());
        }
        let (mut state, mut environment) = long_mode(3);
        state.added_features = AddedFeatures::SMAP;
        assert_eq!(run(&mut state, &mut environment, &CLAC), UNDEFINED);
    }

    #[test]
    fn key_rights_are_read_and_written_at_every_level_with_cr4_pke() {
        for cpl in [0, 3] {
            let (mut state, mut environment) = long_mode(cpl);
            state.gpr[..3].copy_from_slice(&[0x5555_5554, 0, 0]);
            assert_eq!(run(&mut state, &mut environment, &WRPKRU), UNDEFINED);
            state.cr4 |= Cr4::PKE.bits();
            assert!(run(&mut state, &mut environment, &WRPKRU).is_ok());
            assert_eq!(state.pkru, 0x5555_5554);
            state.gpr[..3].copy_from_slice(&[u64::MAX, 1 << 32, u64::MAX]);
            assert!(run(&mut state, &mut environment, &RDPKRU).is_ok());
            assert_eq!(state.gpr[..3], [0x5555_5554, 1 << 32, 0]);
            state.gpr[2] = 1;
            assert_eq!(run(&mut state, &mut environment, &WRPKRU), REFUSED);
            state.gpr[1..3].copy_from_slice(&[1, 0]);
            assert_eq!(run(&mut state, &mut environment, &WRPKRU), REFUSED);
            assert_eq!(run(&mut state, &mut environment, &RDPKRU), REFUSED);
        }
    }
}
