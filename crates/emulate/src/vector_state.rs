//! The x87, MMX, SSE, AVX and AVX-512 registers as bytes, the checks whether they may be accessed,
//! MXCSR and XCR0 (SDM volume 1, chapters 8, 10, 13 and 15).
//!
//! `CpuState::vector` is an area with the layout in [`tollgate_x86::xsave`]. Its legacy region is
//! that of a 32-bit guest's FXSAVE: FIP and FDP are 32-bit offsets with their selectors. ST
//! registers are in stack order, tags by physical register.

use crate::Outcome;
use crate::cpuid::policy;
use crate::memory_access::{linear_address, read_value, write_value};
use crate::operand::{memory_address, require_cpl0};
use iced_x86::Instruction;
use tollgate_platform::Environment;
use tollgate_x86::paging::AccessKind;
use tollgate_x86::state::{Activity, VectorState, XSAVE_SIZE};
pub(crate) use tollgate_x86::xsave::component;
use tollgate_x86::xsave::{self, AVX, OPMASK, ZMM_16_TO_31, ZMM_HIGH};
use tollgate_x86::{CpuState, Cr0, Cr4, Exception, Gpr, LinearAddress, Vector};

/// Offsets in the legacy region (SDM volume 1, table 10-2) and after it.
pub(crate) mod offset {
    pub const FCW: usize = 0;
    pub const FSW: usize = 2;
    pub const TAGS: usize = 4;
    pub const FOP: usize = 6;
    pub const FIP: usize = 8;
    pub const FCS: usize = 12;
    pub const FDP: usize = 16;
    pub const FDS: usize = 20;
    pub const MXCSR: usize = 24;
    pub const MXCSR_MASK: usize = 28;
    pub const ST: usize = 32;
    pub const XMM: usize = 160;
    pub use tollgate_x86::xsave::HEADER;
}

/// The initial value of MXCSR.
pub(crate) const MXCSR_INITIAL: u32 = 0x1f80;
/// The implemented bits of MXCSR: misaligned SSE mode (AMD) is not offered.
pub(crate) const MXCSR_MASK: u32 = 0xffff;
/// The loadable bits of FCW; bit 6 always reads as one (SDM volume 1, figure 8-6).
const FCW_LOADABLE: u16 = 0x1f3f;
const FCW_ONE: u16 = 0x40;
/// FSW: an unmasked exception is pending (error summary), and its copy (busy).
const FSW_SUMMARY_AND_BUSY: u16 = 0x8080;
const FSW_SUMMARY: u16 = 0x80;
/// Size in bytes of each ST register's slot, of which the register occupies the first part.
const ST_SLOT: usize = 16;
/// Size in bytes of an x87 register.
pub(crate) const ST_SIZE: usize = 10;

/// Size in bytes of the longest vector register, which contains all others.
pub(crate) const VECTOR_SIZE: usize = 64;

/// The bytes of the vector state, with accessors.
pub(crate) struct Registers<'a>(pub &'a mut [u8; XSAVE_SIZE]);

impl<'a> Registers<'a> {
    /// The current registers, from the place where they are at present. Components that XSTATE_BV
    /// marks as initial are given their initial contents, because their bytes may be stale.
    pub fn of(state: &'a mut CpuState, environment: &mut dyn Environment) -> Self {
        let mut registers = Self::as_saved(state, environment);
        registers.initialize(!registers.in_use());
        registers
    }

    /// The current registers, where initial components may have stale bytes.
    pub fn as_saved(state: &'a mut CpuState, environment: &mut dyn Environment) -> Self {
        environment.sync_vector_state(state);
        let VectorState(bytes) = &mut state.vector;
        Self(bytes)
    }

    pub fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.0[at], self.0[at + 1]])
    }

    pub fn set_u16(&mut self, at: usize, value: u16) {
        self.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    pub fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    pub fn set_u32(&mut self, at: usize, value: u32) {
        self.0[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// XSTATE_BV: the components that may differ from their initial state.
    pub fn in_use(&self) -> u64 {
        u64::from(self.0[offset::HEADER])
    }

    /// Gives components their initial contents, except MXCSR.
    pub fn initialize(&mut self, components: u64) {
        xsave::initialize(self.0, components);
    }

    /// Sets components' bits in XSTATE_BV.
    pub fn set_in_use(&mut self, components: u64, in_use: bool) {
        let byte = &mut self.0[offset::HEADER];
        if in_use {
            *byte |= components as u8;
        } else {
            *byte &= !(components as u8);
        }
    }

    /// The top of the x87 stack: the number of the physical register that is ST(0).
    pub fn top(&self) -> usize {
        usize::from(self.u16(offset::FSW) >> 11 & 7)
    }

    /// Changes the top without moving values between physical registers.
    pub fn set_top(&mut self, top: usize) {
        let shift = top.wrapping_sub(self.top()) & 7;
        self.0[offset::ST..offset::XMM].rotate_left(shift * ST_SLOT);
        let status = self.u16(offset::FSW) & !(7 << 11);
        self.set_u16(offset::FSW, status | ((top & 7) as u16) << 11);
    }

    /// The 10 bytes of ST(`index`).
    pub fn st(&self, index: usize) -> &[u8] {
        let at = offset::ST + (index & 7) * ST_SLOT;
        &self.0[at..at + ST_SIZE]
    }

    /// Sets ST(`index`) from 10 bytes.
    pub fn set_st(&mut self, index: usize, bytes: &[u8]) {
        let at = offset::ST + (index & 7) * ST_SLOT;
        self.0[at..at + ST_SLOT].fill(0);
        let used = bytes.len().min(ST_SIZE);
        self.0[at..at + used].copy_from_slice(&bytes[..used]);
    }

    /// Sets FSW's summary bit according to its exceptions and FCW's masks.
    pub fn update_error_summary(&mut self) {
        let status = self.u16(offset::FSW);
        let unmasked = status & !self.u16(offset::FCW) & 0x3f;
        let summary = if unmasked == 0 {
            0
        } else {
            FSW_SUMMARY_AND_BUSY
        };
        self.set_u16(offset::FSW, status & !FSW_SUMMARY_AND_BUSY | summary);
    }

    /// Converts the x87 registers to MMX registers, as every MMX instruction does (SDM volume 1,
    /// 9.5): the top is 0, all tags are valid.
    pub fn enter_mmx(&mut self) {
        self.set_top(0);
        self.0[offset::TAGS] = 0xff;
        self.set_in_use(component::X87, true);
    }

    /// MMX register `number`: the low part of the physical x87 register.
    pub fn mm(&self, number: usize) -> [u8; 8] {
        let mut bytes = [0; 8];
        let slot = number.wrapping_sub(self.top());
        bytes.copy_from_slice(&self.st(slot)[..8]);
        bytes
    }

    /// YMM register `number` (0 to 15), including the upper half.
    pub fn ymm(&self, number: usize) -> [u8; 32] {
        let mut bytes = [0; 32];
        bytes.copy_from_slice(&self.zmm(number & 15)[..32]);
        bytes
    }

    /// Sets YMM register `number` (0 to 15), including the upper half. The rest of the ZMM register
    /// is cleared (SDM volume 1, 15.5).
    pub fn set_ymm(&mut self, number: usize, bytes: &[u8; 32]) {
        let mut wide = [0; VECTOR_SIZE];
        wide[..32].copy_from_slice(bytes);
        self.set_zmm(number & 15, &wide);
    }

    /// ZMM register `number` (0 to 31).
    pub fn zmm(&self, number: usize) -> [u8; VECTOR_SIZE] {
        let mut bytes = [0; VECTOR_SIZE];
        let area = &*self.0;
        if number & 16 != 0 {
            bytes.copy_from_slice(&area[ZMM_16_TO_31.start + (number & 15) * 64..][..64]);
        } else {
            let number = number & 15;
            bytes[..16].copy_from_slice(&area[offset::XMM + number * 16..][..16]);
            bytes[16..32].copy_from_slice(&area[AVX.start + number * 16..][..16]);
            bytes[32..].copy_from_slice(&area[ZMM_HIGH.start + number * 32..][..32]);
        }
        bytes
    }

    /// Sets ZMM register `number` (0 to 31).
    pub fn set_zmm(&mut self, number: usize, bytes: &[u8; VECTOR_SIZE]) {
        let area = &mut *self.0;
        if number & 16 != 0 {
            area[ZMM_16_TO_31.start + (number & 15) * 64..][..64].copy_from_slice(bytes);
            self.set_in_use(component::ZMM_16_TO_31, true);
            return;
        }
        let number = number & 15;
        area[offset::XMM + number * 16..][..16].copy_from_slice(&bytes[..16]);
        area[AVX.start + number * 16..][..16].copy_from_slice(&bytes[16..32]);
        area[ZMM_HIGH.start + number * 32..][..32].copy_from_slice(&bytes[32..]);
        self.set_in_use(component::SSE | component::AVX, true);
        if bytes[32..].iter().any(|&byte| byte != 0) {
            self.set_in_use(component::ZMM_HIGH, true);
        }
    }

    /// Mask register `number` (0 to 7).
    pub fn opmask(&self, number: usize) -> u64 {
        let mut bytes = [0; 8];
        bytes.copy_from_slice(&self.0[OPMASK.start + (number & 7) * 8..][..8]);
        u64::from_le_bytes(bytes)
    }

    /// Sets mask register `number` (0 to 7).
    pub fn set_opmask(&mut self, number: usize, mask: u64) {
        let bytes = mask.to_le_bytes();
        self.0[OPMASK.start + (number & 7) * 8..][..8].copy_from_slice(&bytes);
        self.set_in_use(component::OPMASK, true);
    }
}

/// Fails unless x87 instructions may execute.
///
/// # Errors
/// #NM with CR0.EM or CR0.TS.
pub fn require_x87(state: &CpuState) -> Result<(), Exception> {
    if state.cr0().intersects(Cr0::EM | Cr0::TS) {
        Err(Exception::device_not_available())
    } else {
        Ok(())
    }
}

/// Fails unless MMX instructions may execute.
///
/// # Errors
/// #UD with CR0.EM; #NM with CR0.TS.
pub fn require_mmx(state: &CpuState) -> Result<(), Exception> {
    if state.cr0().contains(Cr0::EM) {
        return Err(Exception::invalid_opcode());
    }
    require_x87(state)
}

/// Fails unless SSE instructions may execute.
///
/// # Errors
/// #UD with CR0.EM or without CR4.OSFXSR; #NM with CR0.TS.
pub fn require_sse(state: &CpuState) -> Result<(), Exception> {
    if !state.cr4().contains(Cr4::OSFXSR) {
        return Err(Exception::invalid_opcode());
    }
    require_mmx(state)
}

/// Fails unless VEX-encoded vector instructions may execute.
///
/// # Errors
/// #UD in real and V86 mode, without CR4.OSXSAVE, or if XCR0 does not enable SSE and AVX;
/// #NM with CR0.TS.
pub fn require_avx(state: &CpuState) -> Result<(), Exception> {
    let enabled = component::SSE | component::AVX;
    if state.has_real_mode_segments() || state.xcr0 & enabled != enabled {
        return Err(Exception::invalid_opcode());
    }
    require_xsave(state)
}

/// Fails unless EVEX-encoded instructions may execute.
///
/// # Errors
///
/// Those of [`require_avx`], and #UD if XCR0 does not enable AVX-512's components.
pub fn require_avx_512(state: &CpuState) -> Result<(), Exception> {
    let enabled = component::SSE | component::AVX | component::AVX_512;
    if state.has_real_mode_segments() || state.xcr0 & enabled != enabled {
        return Err(Exception::invalid_opcode());
    }
    require_xsave(state)
}

/// Fails unless the XSAVE family may execute.
///
/// # Errors
/// #UD without CR4.OSXSAVE; #NM with CR0.TS.
pub fn require_xsave(state: &CpuState) -> Result<(), Exception> {
    require_osxsave(state)?;
    if state.cr0().contains(Cr0::TS) {
        return Err(Exception::device_not_available());
    }
    Ok(())
}

fn require_osxsave(state: &CpuState) -> Result<(), Exception> {
    if state.cr4().contains(Cr4::OSXSAVE) {
        Ok(())
    } else {
        Err(Exception::invalid_opcode())
    }
}

/// Checks for a pending x87 exception, as waiting instructions do. Returns `Ok(true)` if FERR# was
/// asserted, because CR0.NE is clear; the processor then waits for the handler of IRQ 13, and the
/// instruction must be tried again.
///
/// # Errors
///
/// #MF with CR0.NE.
pub(crate) fn x87_error_pending(
    state: &mut CpuState,
    environment: &mut dyn Environment,
) -> Result<bool, Exception> {
    let status = Registers::of(state, environment).u16(offset::FSW);
    if status & FSW_SUMMARY == 0 {
        return Ok(false);
    }
    if state.cr0().contains(Cr0::NE) {
        return Err(Exception::new(Vector::FloatingPoint));
    }
    environment.machine(|machine| machine.signal_fpu_error());
    state.end_shadow();
    state.activity = Activity::Halted;
    Ok(true)
}

/// Checks the memory operand's linear address for alignment, then its segment.
///
/// # Errors
/// #GP(0) if the address is not a multiple of `alignment`; the segment fault.
pub(crate) fn aligned_operand(
    state: &CpuState,
    instruction: &Instruction,
    size: u32,
    alignment: u64,
    kind: AccessKind,
) -> Result<LinearAddress, Exception> {
    let address = memory_address(state, instruction);
    let base = state.segment_base(address.segment);
    if !base.wrapping_add(address.offset).is_multiple_of(alignment) {
        return Err(Exception::general_protection(0));
    }
    linear_address(state, address, size, kind)
}

/// Refuses MXCSR values with reserved bits.
///
/// # Errors
///
/// #GP(0) if a reserved bit is set.
pub(crate) fn check_mxcsr(value: u32) -> Result<(), Exception> {
    if value & !MXCSR_MASK == 0 {
        Ok(())
    } else {
        Err(Exception::general_protection(0))
    }
}

/// The value of the x87 control word after an image with `value` was loaded.
pub(crate) fn loaded_control_word(value: u16) -> u16 {
    value & FCW_LOADABLE | FCW_ONE
}

/// (V)LDMXCSR. `vex`: the VEX-encoded form.
///
/// # Errors
///
/// Those of [`require_sse`] or [`require_avx`]; #GP(0) for a reserved bit; the fault of the read.
pub fn load_mxcsr(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
    vex: bool,
) -> Result<Outcome, Exception> {
    require_vector(state, vex)?;
    let address = memory_address(state, instruction);
    let value = read_value(state, environment, address, 4)? as u32;
    check_mxcsr(value)?;
    Registers::of(state, environment).set_u32(offset::MXCSR, value);
    Ok(Outcome::Next)
}

/// (V)STMXCSR. `vex`: the VEX-encoded form.
///
/// # Errors
///
/// Those of [`require_sse`] or [`require_avx`]; the fault of the write.
pub fn store_mxcsr(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
    vex: bool,
) -> Result<Outcome, Exception> {
    require_vector(state, vex)?;
    let address = memory_address(state, instruction);
    let value = Registers::of(state, environment).u32(offset::MXCSR);
    write_value(state, environment, address, 4, u64::from(value))?;
    Ok(Outcome::Next)
}

/// Checks [`require_sse`] or, for VEX encodings, [`require_avx`].
///
/// # Errors
///
/// Those of the function that is used.
pub fn require_vector(state: &CpuState, vex: bool) -> Result<(), Exception> {
    if vex {
        require_avx(state)
    } else {
        require_sse(state)
    }
}

/// XGETBV: reads XCR0 into EDX:EAX, or with ECX = 1 those of its components that are in use.
///
/// # Errors
///
/// #UD without CR4.OSXSAVE; #GP(0) for any other register.
pub fn get_extended_control(
    state: &mut CpuState,
    environment: &mut dyn Environment,
) -> Result<Outcome, Exception> {
    require_osxsave(state)?;
    let value = match state.register(Gpr::Rcx) as u32 {
        0 => state.xcr0,
        1 if policy(state).has_in_use_register() => {
            let enabled = state.xcr0;
            let keys = if state.pkru != 0 { component::PKRU } else { 0 };
            let registers = Registers::of(state, environment);
            let mut in_use = registers.in_use();
            // SSE's component is in use if MXCSR is not initial (SDM volume 1, 13.6).
            if registers.u32(offset::MXCSR) != MXCSR_INITIAL {
                in_use |= component::SSE;
            }
            (in_use | keys) & enabled
        }
        _ => return Err(Exception::general_protection(0)),
    };
    state.gpr[Gpr::Rax as usize] = value & 0xffff_ffff;
    state.gpr[Gpr::Rdx as usize] = value >> 32;
    Ok(Outcome::Next)
}

/// XSETBV: writes EDX:EAX to XCR0.
///
/// # Errors
///
/// #UD without CR4.OSXSAVE; #GP(0) above CPL 0, for any register except XCR0, and for values that
/// CPUID does
/// not offer, that lack x87, or that contain AVX without SSE, only a part of AVX-512, or AVX-512
/// without AVX.
pub fn set_extended_control(state: &mut CpuState) -> Result<Outcome, Exception> {
    require_osxsave(state)?;
    require_cpl0(state)?;
    let value = state.register(Gpr::Rax) & 0xffff_ffff | state.register(Gpr::Rdx) << 32;
    let has = |components: u64| value & components == components;
    let is_part = value & component::AVX_512 != 0 && !has(component::AVX_512 | component::AVX)
        || has(component::AVX) && !has(component::SSE);
    if state.register(Gpr::Rcx) as u32 != 0
        || value & !policy(state).xcr0_mask() != 0
        || value & component::X87 == 0
        || is_part
    {
        return Err(Exception::general_protection(0));
    }
    state.xcr0 = value;
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests;
