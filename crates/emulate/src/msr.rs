//! Model-specific registers (SDM volume 4; volume 3, 18.17; AMD's manual volume 2, appendix A).
//!
//! Accesses to an MSR that this virtual machine does not have raise #GP(0), as on a real processor.
//! The local APIC's MSRs belong to the machine.

use crate::Outcome;
use crate::cpuid::{Vendor, policy};
use crate::operand::require_cpl0;
use crate::{machine_check, memory_types, page_access, plain_msr, tsc_deadline, tsc_offset};
use iced_x86::CpuidFeature;
use tollgate_platform::Environment;
use tollgate_x86::TranslationChange;
use tollgate_x86::local_apic_msrs::TSC_DEADLINE;
use tollgate_x86::time_stamp_msrs::{TIME_STAMP_ADJUST, TIME_STAMP_COUNTER};
use tollgate_x86::{CpuState, Efer, Exception, Gpr};

const PLATFORM_ID: u32 = 0x17;
const MICROCODE_UPDATE: u32 = 0x79;
const MICROCODE_REVISION: u32 = 0x8b;
const PLATFORM_INFO: u32 = 0xce;
const ARCH_CAPABILITIES: u32 = 0x10a;
const MISC_ENABLE: u32 = 0x1a0;
const DEBUG_CONTROL: u32 = 0x1d9;
const PAT: u32 = 0x277;
/// IA32_XSS: the supervisor state components that XSAVES saves. There are none.
const EXTENDED_SUPERVISOR_STATE: u32 = 0xda0;
/// IA32_PKRS: the rights to supervisor pages by their protection keys.
const SUPERVISOR_KEY_RIGHTS: u32 = 0x6e1;
const EFER: u32 = 0xc000_0080;

/// The bits of IA32_MISC_ENABLE that keep the written value: fast strings.
const MISC_ENABLE_WRITABLE: u64 = 1;
/// The bits of IA32_MISC_ENABLE that read as ones: no branch trace, no precise sampling.
const MISC_ENABLE_FIXED: u64 = 1 << 11 | 1 << 12;

/// AMD's own MSRs that operating systems read without consulting CPUID.
mod amd {
    pub const SYSTEM_CONFIGURATION: u32 = 0xc001_0010;
    pub const HARDWARE_CONFIGURATION: u32 = 0xc001_0015;
    pub const TOP_OF_MEMORY: u32 = 0xc001_001a;
    pub const TOP_OF_MEMORY_2: u32 = 0xc001_001d;
    pub const NORTH_BRIDGE_CONFIGURATION: u32 = 0xc001_001f;
    pub const PATCH_LOADER: u32 = 0xc001_0020;
    pub const INTERRUPT_PENDING: u32 = 0xc001_0055;
    pub const MMIO_CONFIGURATION: u32 = 0xc001_0058;
    pub const FIRST_P_STATE: u32 = 0xc001_0061;
    pub const LAST_P_STATE: u32 = 0xc001_006b;
    pub const SMM_ADDRESS: u32 = 0xc001_0112;
    pub const SMM_MASK: u32 = 0xc001_0113;
    pub const VM_CONTROL: u32 = 0xc001_0114;
    pub const LOAD_STORE_CONFIGURATION: u32 = 0xc001_1020;
    pub const DATA_CACHE_CONFIGURATION: u32 = 0xc001_1022;
    pub const DECODE_CONFIGURATION: u32 = 0xc001_1029;
    pub const BUS_UNIT_CONFIGURATION_2: u32 = 0xc001_102a;

    /// The time-stamp counter runs at the P0 frequency.
    pub const HARDWARE_TSC_AT_P0: u64 = 1 << 24;
    /// Bits whose writes have no effect here: SMM lock, cache flush and FERR options.
    pub const HARDWARE_IGNORED: u64 = 1 << 3 | 1 << 6 | 1 << 8 | HARDWARE_TSC_AT_P0;
    /// The status registers of machine-check banks accept any value (McStatusWrEn).
    pub const HARDWARE_STATUS_WRITABLE: u64 = 1 << 18;
    /// SVM is disabled, and cannot be enabled (locked).
    pub const VM_CONTROL_DISABLED: u64 = 1 << 3 | 1 << 4;
    /// LFENCE waits for earlier instructions.
    pub const DECODE_LFENCE_SERIALIZES: u64 = 1 << 1;
    /// Bits that operating systems set as workarounds for processor errata.
    pub const DECODE_IGNORED: u64 = 1 << 9 | DECODE_LFENCE_SERIALIZES;
}

/// Puts a 64-bit value into EDX:EAX.
pub(crate) fn set_edx_eax(state: &mut CpuState, value: u64) {
    state.gpr[Gpr::Rax as usize] = value & 0xffff_ffff;
    state.gpr[Gpr::Rdx as usize] = value >> 32;
}

/// The value in EDX:EAX.
fn edx_eax(state: &CpuState) -> u64 {
    state.register(Gpr::Rax) & 0xffff_ffff | state.register(Gpr::Rdx) << 32
}

fn refused<T>() -> Result<T, Exception> {
    Err(Exception::general_protection(0))
}

/// Reads a model-specific register.
///
/// # Errors
/// #GP(0) if this virtual machine has no such register.
pub fn read(
    state: &CpuState,
    environment: &mut dyn Environment,
    index: u32,
) -> Result<u64, Exception> {
    let stored = plain_msr::read(state, index)
        .or_else(|| memory_types::read(&state.memory_types, index))
        .or_else(|| machine_check::read(&state.machine_check, index));
    if let Some(value) = stored {
        return Ok(value);
    }
    let value = match index {
        TIME_STAMP_COUNTER => tsc_offset::time_stamp(state, environment),
        TIME_STAMP_ADJUST => state.tsc_offset,
        TSC_DEADLINE => {
            return tsc_deadline::read(state, environment).ok_or(Exception::general_protection(0));
        }
        PLATFORM_ID | PLATFORM_INFO if policy(state).vendor() == Vendor::Intel => 0,
        // Intel's processors keep the revision in the upper half.
        MICROCODE_REVISION if policy(state).vendor() == Vendor::Intel => 1 << 32,
        MICROCODE_REVISION => 1,
        MISC_ENABLE => state.misc_enable & MISC_ENABLE_WRITABLE | MISC_ENABLE_FIXED,
        DEBUG_CONTROL => 0,
        PAT => state.pat,
        EXTENDED_SUPERVISOR_STATE if policy(state).offers(CpuidFeature::XSAVES) => 0,
        SUPERVISOR_KEY_RIGHTS if policy(state).has_supervisor_keys() => state.pkrs.into(),
        EFER => state.efer,
        ARCH_CAPABILITIES => {
            return policy(state)
                .arch_capabilities()
                .ok_or(Exception::general_protection(0));
        }
        _ => {
            if let Some(value) = environment.machine(|machine| machine.msr_read(index)) {
                return Ok(value);
            }
            return match policy(state).vendor() {
                Vendor::Amd => read_amd(state, index),
                _ => refused(),
            };
        }
    };
    Ok(value)
}

fn read_amd(state: &CpuState, index: u32) -> Result<u64, Exception> {
    match index {
        amd::HARDWARE_CONFIGURATION if state.machine_check.takes_any_status => {
            Ok(amd::HARDWARE_TSC_AT_P0 | amd::HARDWARE_STATUS_WRITABLE)
        }
        amd::HARDWARE_CONFIGURATION => Ok(amd::HARDWARE_TSC_AT_P0),
        amd::VM_CONTROL => Ok(amd::VM_CONTROL_DISABLED),
        amd::DECODE_CONFIGURATION => Ok(amd::DECODE_LFENCE_SERIALIZES),
        amd::SYSTEM_CONFIGURATION
        | amd::TOP_OF_MEMORY
        | amd::TOP_OF_MEMORY_2
        | amd::NORTH_BRIDGE_CONFIGURATION
        | amd::INTERRUPT_PENDING
        | amd::MMIO_CONFIGURATION
        | amd::FIRST_P_STATE..=amd::LAST_P_STATE
        | amd::SMM_ADDRESS
        | amd::SMM_MASK
        | amd::LOAD_STORE_CONFIGURATION
        | amd::DATA_CACHE_CONFIGURATION
        | amd::BUS_UNIT_CONFIGURATION_2 => Ok(0),
        _ => refused(),
    }
}

/// Writes a model-specific register.
///
/// # Errors
/// #GP(0) if this virtual machine has no such register, or refuses the value.
pub fn write(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    index: u32,
    value: u64,
) -> Result<(), Exception> {
    if let Some(written) = plain_msr::write(state, index, value) {
        return written;
    }
    let vendor = policy(state).vendor();
    let stored = memory_types::write(&mut state.memory_types, index, value)
        .or_else(|| machine_check::write(&mut state.machine_check, vendor, index, value));
    if let Some(is_taken) = stored {
        return if is_taken { Ok(()) } else { refused() };
    }
    match index {
        TIME_STAMP_COUNTER => {
            let offset = value.wrapping_sub(environment.machine(|machine| machine.time_stamp()));
            tsc_offset::set(state, environment, offset);
        }
        TIME_STAMP_ADJUST => tsc_offset::set(state, environment, value),
        TSC_DEADLINE => {
            return match tsc_deadline::write(state, environment, value) {
                Some(true) => Ok(()),
                _ => refused(),
            };
        }
        // Microcode updates are ignored. Software writes the revision before it reads it again.
        MICROCODE_UPDATE | MICROCODE_REVISION => {}
        MISC_ENABLE => state.misc_enable = value & MISC_ENABLE_WRITABLE | MISC_ENABLE_FIXED,
        // Branch recording and branch stepping are not offered.
        DEBUG_CONTROL if value == 0 => {}
        PAT => {
            if !pat_is_valid(value) {
                return refused();
            }
            state.pat = value;
        }
        EXTENDED_SUPERVISOR_STATE if policy(state).offers(CpuidFeature::XSAVES) => {
            if value != 0 {
                return refused();
            }
        }
        SUPERVISOR_KEY_RIGHTS if policy(state).has_supervisor_keys() => {
            return page_access::set_supervisor_key_rights(state, environment, value);
        }
        EFER => return write_efer(state, environment, value),
        _ => {
            return match environment.machine(|machine| machine.msr_write(index, value)) {
                Some(true) => Ok(()),
                Some(false) => refused(),
                None if vendor == Vendor::Amd => write_amd(state, index, value),
                None => refused(),
            };
        }
    }
    Ok(())
}

fn write_amd(state: &mut CpuState, index: u32, value: u64) -> Result<(), Exception> {
    let ignored = match index {
        amd::HARDWARE_CONFIGURATION => amd::HARDWARE_IGNORED | amd::HARDWARE_STATUS_WRITABLE,
        amd::DECODE_CONFIGURATION => amd::DECODE_IGNORED,
        amd::PATCH_LOADER | amd::NORTH_BRIDGE_CONFIGURATION => u64::MAX,
        amd::SYSTEM_CONFIGURATION
        | amd::INTERRUPT_PENDING
        | amd::MMIO_CONFIGURATION
        | amd::LOAD_STORE_CONFIGURATION
        | amd::DATA_CACHE_CONFIGURATION
        | amd::BUS_UNIT_CONFIGURATION_2 => 0,
        _ => return refused(),
    };
    if value & !ignored != 0 {
        return refused();
    }
    if index == amd::HARDWARE_CONFIGURATION {
        state.machine_check.takes_any_status = value & amd::HARDWARE_STATUS_WRITABLE != 0;
    }
    Ok(())
}

/// Whether each of the eight entries is a memory type that PAT accepts (SDM volume 3, 12.12.2).
fn pat_is_valid(value: u64) -> bool {
    value
        .to_le_bytes()
        .iter()
        .all(|entry| matches!(entry, 0 | 1 | 4..=7))
}

/// Writes EFER: only bits that CPUID offers may be set. LMA is not written but follows paging, and
/// LME must not change while paging is enabled (SDM volume 3, 10.8.5).
fn write_efer(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    value: u64,
) -> Result<(), Exception> {
    let mut offered = Efer::NXE | Efer::LMA;
    offered.set(Efer::SCE, policy(state).offers(CpuidFeature::SYSCALL));
    offered.set(Efer::LME, policy(state).offers(CpuidFeature::X64));
    if value & !offered.bits() != 0 {
        return refused();
    }
    let lma = Efer::LMA.bits();
    let value = value & !lma | state.efer & lma;
    let changed = Efer::from_bits_retain(state.efer ^ value);
    if changed.contains(Efer::LME) && state.is_paging() {
        return refused();
    }
    state.efer = value;
    if changed.contains(Efer::NXE) {
        environment.translations_changed(state, TranslationChange::Everything);
    }
    Ok(())
}

/// RDMSR: reads register ECX into EDX:EAX.
///
/// # Errors
///
/// #GP(0) above CPL 0, and those of [`read`].
pub fn read_instruction(
    state: &mut CpuState,
    environment: &mut dyn Environment,
) -> Result<Outcome, Exception> {
    require_cpl0(state)?;
    let value = read(state, environment, state.register(Gpr::Rcx) as u32)?;
    set_edx_eax(state, value);
    Ok(Outcome::Next)
}

/// WRMSR: writes EDX:EAX to register ECX.
///
/// # Errors
///
/// #GP(0) above CPL 0, and those of [`write()`].
pub fn write_instruction(
    state: &mut CpuState,
    environment: &mut dyn Environment,
) -> Result<Outcome, Exception> {
    require_cpl0(state)?;
    let index = state.register(Gpr::Rcx) as u32;
    let value = edx_eax(state);
    write(state, environment, index, value)?;
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests;
