//! FXSAVE, FXRSTOR, XSAVE, XSAVEOPT, XRSTOR (SDM volume 1, 10.5 and 13.7 to 13.9).
//!
//! 64-bit code reaches sixteen XMM and YMM registers, other code eight. The eight bytes of
//! each x87 pointer are stored and loaded as they are held: an offset and a selector from
//! 16- and 32-bit code, an offset of 64 bits from 64-bit code. So the forms with REX.W do
//! what those without do, and nothing is lost when a 64-bit system saves a 32-bit program.
//!
//! Only the standard format: compaction is not offered.

use crate::Outcome;
use crate::cpuid::{Vendor, policy};
use crate::memory_access::{
    SegmentedAddress, current_privilege, linear_address, probe_linear, read_linear, write_linear,
};
use crate::operand::memory_address;
use crate::vector_state::{
    MXCSR_MASK, Registers, ST_SIZE, aligned_operand, check_mxcsr, component, loaded_control_word,
    offset, require_x87, require_xsave,
};
use iced_x86::Instruction;
use std::ops::Range;
use tollgate_platform::Environment;
use tollgate_x86::paging::AccessKind;
use tollgate_x86::state::XSAVE_SIZE;
use tollgate_x86::{CpuState, Exception, Gpr, LinearAddress};

/// Bytes that FXSAVE and FXRSTOR address.
const FXSAVE_SIZE: usize = 512;
/// Parts of the area, by what they hold.
const X87_CONTROL: Range<usize> = 0..offset::MXCSR;
const MXCSR_AND_MASK: Range<usize> = offset::MXCSR..offset::ST;
const X87_REGISTERS: Range<usize> = offset::ST..offset::XMM;
/// Header bytes that must be zero in standard format, relative to the header.
const HEADER_RESERVED: Range<usize> = 8..24;
const HEADER_END: usize = offset::AVX;

/// Bytes of the vector registers that the running code reaches.
fn reachable(state: &CpuState) -> usize {
    if state.is_64_bit() { 16 * 16 } else { 8 * 16 }
}

fn xmm_registers(state: &CpuState) -> Range<usize> {
    offset::XMM..offset::XMM + reachable(state)
}

fn ymm_upper_halves(state: &CpuState) -> Range<usize> {
    offset::AVX..offset::AVX + reachable(state)
}

/// The area as the guest may read it.
fn guest_image(state: &mut CpuState, environment: &mut dyn Environment) -> [u8; XSAVE_SIZE] {
    let registers = Registers::of(state, environment);
    let mut image = *registers.0;
    image[offset::MXCSR_MASK..offset::ST].copy_from_slice(&MXCSR_MASK.to_le_bytes());
    image
}

/// FXSAVE. What lies behind the reachable registers stays as it is.
///
/// # Errors
/// #NM, #GP(0) for misalignment, the fault of the write.
pub fn fxsave(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_x87(state)?;
    let size = FXSAVE_SIZE as u32;
    let area = aligned_operand(state, instruction, size, 16, AccessKind::Write)?;
    probe_linear(state, environment, area, size, current_privilege(state))?;
    let image = guest_image(state, environment);
    let privilege = current_privilege(state);
    let reachable = &image[..xmm_registers(state).end];
    write_linear(state, environment, area, reachable, privilege)?;
    Ok(Outcome::Next)
}

/// Copies the x87 part of an image into the registers.
fn load_x87(registers: &mut Registers<'_>, image: &[u8]) {
    registers.0[X87_CONTROL].copy_from_slice(&image[X87_CONTROL]);
    let control = registers.u16(offset::FCW);
    registers.set_u16(offset::FCW, loaded_control_word(control));
    for (index, slot) in image[X87_REGISTERS].chunks(16).enumerate() {
        registers.set_st(index, &slot[..ST_SIZE]);
    }
    registers.update_error_summary();
}

fn mxcsr_of(image: &[u8]) -> u32 {
    let mut bytes = [0; 4];
    bytes.copy_from_slice(&image[offset::MXCSR..offset::MXCSR + 4]);
    u32::from_le_bytes(bytes)
}

/// FXRSTOR.
///
/// # Errors
/// #NM, #GP(0) for misalignment or a reserved MXCSR bit, the fault of the read.
pub fn fxrstor(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_x87(state)?;
    let size = FXSAVE_SIZE as u32;
    let area = aligned_operand(state, instruction, size, 16, AccessKind::Read)?;
    let mut image = [0; FXSAVE_SIZE];
    let privilege = current_privilege(state);
    read_linear(state, environment, area, &mut image, privilege)?;
    check_mxcsr(mxcsr_of(&image))?;
    let xmm_registers = xmm_registers(state);
    let mut registers = Registers::of(state, environment);
    load_x87(&mut registers, &image);
    registers.set_u32(offset::MXCSR, mxcsr_of(&image));
    registers.0[xmm_registers.clone()].copy_from_slice(&image[xmm_registers]);
    registers.set_in_use(component::X87 | component::SSE, true);
    Ok(Outcome::Next)
}

/// The requested-feature bitmap: EDX:EAX and XCR0.
fn requested(state: &CpuState) -> u64 {
    (state.register(Gpr::Rax) & 0xffff_ffff | state.register(Gpr::Rdx) << 32) & state.xcr0
}

/// Linear address of a part of the area: only what is asked for is accessed, and only
/// that can fault.
fn part_address(
    state: &CpuState,
    area: SegmentedAddress,
    part: &Range<usize>,
    kind: AccessKind,
) -> Result<LinearAddress, Exception> {
    linear_address(
        state,
        area.offset(part.start as u64),
        part.len() as u32,
        kind,
    )
}

/// The parts of the area that requested components stand in, whether in use or not. AMD's
/// processors touch the legacy region even if nothing of it is asked for.
fn touched(state: &CpuState, components: u64) -> Vec<Range<usize>> {
    let always_begins = policy(state).vendor() == Vendor::Amd;
    let mut parts = Vec::with_capacity(3);
    if components & (component::X87 | component::SSE) != 0 {
        parts.push(0..FXSAVE_SIZE);
    } else if components & component::AVX != 0 || always_begins {
        parts.push(MXCSR_AND_MASK);
    }
    parts.push(offset::HEADER..HEADER_END);
    if components & component::AVX != 0 {
        parts.push(HEADER_END..XSAVE_SIZE);
    }
    parts
}

/// XSAVE and, with `skip_initial`, XSAVEOPT, which leaves out components in their
/// initial state. (It may also leave out unmodified ones; this one does not.)
///
/// # Errors
/// #UD, #NM, #GP(0) for misalignment, the fault of the write.
pub fn xsave(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
    skip_initial: bool,
) -> Result<Outcome, Exception> {
    require_xsave(state)?;
    let components = requested(state);
    aligned_operand(state, instruction, 1, 64, AccessKind::Write)?;
    let area = memory_address(state, instruction);
    let privilege = current_privilege(state);
    for part in touched(state, components) {
        let linear = part_address(state, area, &part, AccessKind::Write)?;
        probe_linear(state, environment, linear, part.len() as u32, privilege)?;
    }
    let bitmap_part = offset::HEADER..offset::HEADER + 8;
    let header = part_address(state, area, &bitmap_part, AccessKind::Write)?;
    let mut old = [0; 8];
    read_linear(state, environment, header, &mut old, privilege)?;

    let mut image = guest_image(state, environment);
    let in_use = u64::from(image[offset::HEADER]) & components;
    let saved = if skip_initial { in_use } else { components };
    let bitmap = u64::from_le_bytes(old) & !components | in_use;
    image[offset::HEADER..offset::HEADER + 8].copy_from_slice(&bitmap.to_le_bytes());

    let mut parts = Vec::with_capacity(6);
    if saved & component::X87 != 0 {
        parts.extend([X87_CONTROL, X87_REGISTERS]);
    }
    if saved & component::SSE != 0 {
        parts.push(xmm_registers(state));
    }
    if saved & component::AVX != 0 {
        parts.push(ymm_upper_halves(state));
    }
    if components & (component::SSE | component::AVX) != 0 {
        parts.push(MXCSR_AND_MASK);
    }
    parts.push(bitmap_part);
    for part in parts {
        let linear = part_address(state, area, &part, AccessKind::Write)?;
        write_linear(state, environment, linear, &image[part], privilege)?;
    }
    Ok(Outcome::Next)
}

/// Gives components their initial contents, but for registers out of reach, which keep a
/// component in use.
fn initialize_reachable(registers: &mut Registers<'_>, components: u64, reachable: usize) {
    const ALL: usize = 16 * 16;
    let beyond = |start: usize| start + reachable..start + ALL;
    let (xmm, ymm) = (beyond(offset::XMM), beyond(offset::AVX));
    let kept = (
        registers.0[xmm.clone()].to_vec(),
        registers.0[ymm.clone()].to_vec(),
    );
    registers.initialize(components);
    registers.set_in_use(components, false);
    for (component, range, bytes) in [(component::SSE, xmm, kept.0), (component::AVX, ymm, kept.1)]
    {
        if components & component != 0 && bytes.iter().any(|byte| *byte != 0) {
            registers.0[range].copy_from_slice(&bytes);
            registers.set_in_use(component, true);
        }
    }
}

/// XRSTOR. Requested components that the header does not mark become initial.
///
/// # Errors
/// #UD, #NM; #GP(0) for misalignment, a bad header, a reserved MXCSR bit; the read's fault.
pub fn xrstor(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_xsave(state)?;
    let components = requested(state);
    aligned_operand(state, instruction, 1, 64, AccessKind::Read)?;
    let area = memory_address(state, instruction);
    let mut image = [0; XSAVE_SIZE];
    let privilege = current_privilege(state);
    for part in touched(state, components) {
        let linear = part_address(state, area, &part, AccessKind::Read)?;
        read_linear(state, environment, linear, &mut image[part], privilege)?;
    }

    let header = &image[offset::HEADER..HEADER_END];
    let mut bitmap = [0; 8];
    bitmap.copy_from_slice(&header[..8]);
    let bitmap = u64::from_le_bytes(bitmap);
    let reserved_is_set = header[HEADER_RESERVED].iter().any(|byte| *byte != 0);
    if bitmap & !state.xcr0 != 0 || reserved_is_set {
        return Err(Exception::general_protection(0));
    }
    let loads_mxcsr = components & (component::SSE | component::AVX) != 0;
    if loads_mxcsr {
        check_mxcsr(mxcsr_of(&image))?;
    }

    let reachable = reachable(state);
    let (xmm_registers, ymm_upper_halves) = (xmm_registers(state), ymm_upper_halves(state));
    let mut registers = Registers::of(state, environment);
    let (loaded, initial) = (components & bitmap, components & !bitmap);
    initialize_reachable(&mut registers, initial, reachable);
    registers.set_in_use(loaded, true);
    if loads_mxcsr {
        registers.set_u32(offset::MXCSR, mxcsr_of(&image));
    }
    if loaded & component::X87 != 0 {
        load_x87(&mut registers, &image);
    }
    if loaded & component::SSE != 0 {
        registers.0[xmm_registers.clone()].copy_from_slice(&image[xmm_registers]);
    }
    if loaded & component::AVX != 0 {
        registers.0[ymm_upper_halves.clone()].copy_from_slice(&image[ymm_upper_halves]);
    }
    Ok(Outcome::Next)
}

#[cfg(test)]
mod long_tests;
#[cfg(test)]
mod tests;
