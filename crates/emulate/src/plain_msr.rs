//! Model-specific registers that only hold a value: reading one has no side effect, and writing one
//! affects only later instructions.

use crate::canonical::require_canonical;
use crate::cpuid::{Vendor, policy};
use iced_x86::CpuidFeature;
use tollgate_x86::{CpuState, Exception, SegmentRegister};

/// IA32_SYSENTER_CS.
pub const SYSENTER_CS: u32 = 0x174;
/// IA32_SYSENTER_ESP.
pub const SYSENTER_ESP: u32 = 0x175;
/// IA32_SYSENTER_EIP.
pub const SYSENTER_EIP: u32 = 0x176;
/// IA32_STAR: selectors of SYSCALL and SYSRET.
pub const STAR: u32 = 0xc000_0081;
/// IA32_LSTAR: the target of SYSCALL in 64-bit code.
pub const LSTAR: u32 = 0xc000_0082;
/// IA32_CSTAR: the target of SYSCALL in compatibility mode.
pub const CSTAR: u32 = 0xc000_0083;
/// IA32_FMASK: flags that SYSCALL clears.
pub const FMASK: u32 = 0xc000_0084;
/// IA32_FS_BASE.
pub const FS_BASE: u32 = 0xc000_0100;
/// IA32_GS_BASE.
pub const GS_BASE: u32 = 0xc000_0101;
/// IA32_KERNEL_GS_BASE.
pub const KERNEL_GS_BASE: u32 = 0xc000_0102;
/// IA32_TSC_AUX.
pub const TSC_AUX: u32 = 0xc000_0103;

/// Whether the register is the base of FS or GS.
pub fn is_segment_base(index: u32) -> bool {
    matches!(index, FS_BASE | GS_BASE)
}

/// The feature that a register belongs to; `None` if all processors have it.
fn feature(index: u32) -> Option<CpuidFeature> {
    match index {
        SYSENTER_CS..=SYSENTER_EIP => None,
        STAR | FMASK => Some(CpuidFeature::SYSCALL),
        TSC_AUX => Some(CpuidFeature::RDTSCP),
        _ => Some(CpuidFeature::X64),
    }
}

fn is_offered(state: &CpuState, index: u32) -> bool {
    feature(index).is_none_or(|feature| policy(state).offers(feature))
}

/// The value of such a register. `None` if it is another register, or if this virtual machine does
/// not have it.
pub fn read(state: &CpuState, index: u32) -> Option<u64> {
    let value = match index {
        SYSENTER_CS => state.sysenter_cs,
        SYSENTER_ESP => state.sysenter_esp,
        SYSENTER_EIP => state.sysenter_eip,
        STAR => state.star,
        LSTAR => state.lstar,
        CSTAR => state.cstar,
        FMASK => state.sfmask,
        FS_BASE => state.segment(SegmentRegister::Fs).base,
        GS_BASE => state.segment(SegmentRegister::Gs).base,
        KERNEL_GS_BASE => state.kernel_gs_base,
        TSC_AUX => state.tsc_aux,
        _ => return None,
    };
    is_offered(state, index).then_some(value)
}

/// Writes such a register. `None` if it is another register, or if this virtual machine does not
/// have it.
///
/// # Errors
///
/// #GP(0) if the value is refused.
pub fn write(state: &mut CpuState, index: u32, value: u64) -> Option<Result<(), Exception>> {
    if !matches!(index, SYSENTER_CS..=SYSENTER_EIP | STAR..=FMASK | FS_BASE..=TSC_AUX)
        || !is_offered(state, index)
    {
        return None;
    }
    Some(write_offered(state, index, value))
}

fn write_offered(state: &mut CpuState, index: u32, value: u64) -> Result<(), Exception> {
    let is_address = matches!(
        index,
        SYSENTER_ESP | SYSENTER_EIP | LSTAR | CSTAR | FS_BASE | GS_BASE | KERNEL_GS_BASE
    );
    if is_address {
        require_canonical(value)?;
    }
    // Intel's processors refuse reserved bits of TSC_AUX, AMD's ignore them.
    let is_refused = match index {
        FMASK => true,
        TSC_AUX => policy(state).vendor() != Vendor::Amd,
        _ => false,
    };
    if is_refused && value >> 32 != 0 {
        return Err(Exception::general_protection(0));
    }
    match index {
        SYSENTER_CS => state.sysenter_cs = value & 0xffff_ffff,
        SYSENTER_ESP => state.sysenter_esp = value,
        SYSENTER_EIP => state.sysenter_eip = value,
        STAR => state.star = value,
        LSTAR => state.lstar = value,
        CSTAR => state.cstar = value,
        FMASK => state.sfmask = value,
        FS_BASE => state.segment_mut(SegmentRegister::Fs).base = value,
        GS_BASE => state.segment_mut(SegmentRegister::Gs).base = value,
        KERNEL_GS_BASE => state.kernel_gs_base = value,
        _ => state.tsc_aux = value & 0xffff_ffff,
    }
    Ok(())
}
