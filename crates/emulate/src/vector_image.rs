//! FXSAVE, FXRSTOR, XSAVE, XSAVEOPT, XSAVEC, XSAVES, XRSTOR, XRSTORS (SDM volume 1, 10.5 and 13.7
//! to 13.12).
//!
//! 64-bit code reaches sixteen XMM and YMM registers, other code eight. The eight bytes of each x87
//! pointer are stored and loaded unchanged: an offset and a selector from 16- and 32-bit code, an
//! offset of 64 bits from 64-bit code. So the forms with REX.W do the same as those without, and
//! nothing is lost when a 64-bit operating system saves a 32-bit program.
//!
//! There are no supervisor components, so XSAVES and XRSTORS do the same as XSAVEC and XRSTOR of a
//! compacted image.

use crate::Outcome;
use crate::cpuid::{PKRU_BYTES, Vendor, policy};
use crate::memory_access::{
    SegmentedAddress, current_privilege, linear_address, probe_linear, read_linear, write_linear,
};
use crate::operand::{memory_address, require_cpl0};
use crate::page_access::set_key_rights;
use crate::vector_state::{
    MXCSR_INITIAL, MXCSR_MASK, Registers, ST_SIZE, aligned_operand, check_mxcsr, component,
    loaded_control_word, offset, require_x87, require_xsave,
};
use iced_x86::{CpuidFeature, Instruction};
use std::ops::Range;
use tollgate_platform::Environment;
use tollgate_x86::paging::AccessKind;
use tollgate_x86::state::XSAVE_SIZE;
use tollgate_x86::xsave::{COMPACTED, EXTENDED, EXTENDED_REGION, Extended, XCOMP_BV};
use tollgate_x86::{CpuState, Exception, Gpr, LinearAddress};

/// Number of bytes that FXSAVE and FXRSTOR address.
const FXSAVE_SIZE: usize = 512;
/// Parts of the area, by their contents.
const X87_CONTROL: Range<usize> = 0..offset::MXCSR;
const MXCSR_AND_MASK: Range<usize> = offset::MXCSR..offset::ST;
const X87_REGISTERS: Range<usize> = offset::ST..offset::XMM;
/// Bytes of the header that must be zero in standard format.
const HEADER_RESERVED: Range<usize> = XCOMP_BV..offset::HEADER + 24;

/// The number of bytes of vector registers that the running code can access.
fn reachable(state: &CpuState) -> usize {
    if state.is_64_bit() { 16 * 16 } else { 8 * 16 }
}

fn xmm_registers(state: &CpuState) -> Range<usize> {
    offset::XMM..offset::XMM + reachable(state)
}

/// The x87 instruction and operand pointers and the opcode.
const POINTERS: Range<usize> = offset::FOP..offset::MXCSR;

/// Whether images contain zeros for the x87 pointers. AMD's processors save the pointers only while
/// an unmasked exception is pending; those that always restore them, as CPUID reports to guests,
/// otherwise store zeros (APM volume 2, 11.4.4; volume 3, CPUID Fn8000_0008_EBX\[RstrFpErrPtrs\]).
/// FNSTENV and FNSAVE always store them.
fn hides_pointers(state: &CpuState) -> bool {
    const ERROR_SUMMARY: u8 = 0x80;
    policy(state).vendor() == Vendor::Amd && state.vector.0[offset::FSW] & ERROR_SUMMARY == 0
}

/// Calls `write`, which writes parts of the area to an image, while the area contains what the
/// guest may read: MXCSR_MASK, and this XSTATE_BV and XCOMP_BV. Then restores the area's own
/// format.
fn with_image(
    state: &mut CpuState,
    header: [u64; 2],
    write: impl FnOnce(&CpuState) -> Result<(), Exception>,
) -> Result<(), Exception> {
    const MASK: Range<usize> = offset::MXCSR_MASK..offset::ST;
    const HEADER: Range<usize> = offset::HEADER..XCOMP_BV + 8;
    let hides_pointers = hides_pointers(state);
    let area = &mut state.vector.0;
    let mut resting = ([0; MASK.end - MASK.start], [0; HEADER.end - HEADER.start]);
    let mut pointers = [0; POINTERS.end - POINTERS.start];
    resting.0.copy_from_slice(&area[MASK]);
    resting.1.copy_from_slice(&area[HEADER]);
    pointers.copy_from_slice(&area[POINTERS]);
    if hides_pointers {
        area[POINTERS].fill(0);
    }
    area[MASK].copy_from_slice(&MXCSR_MASK.to_le_bytes());
    area[offset::HEADER..XCOMP_BV].copy_from_slice(&header[0].to_le_bytes());
    area[XCOMP_BV..XCOMP_BV + 8].copy_from_slice(&header[1].to_le_bytes());
    let result = write(state);
    let area = &mut state.vector.0;
    area[MASK].copy_from_slice(&resting.0);
    area[HEADER].copy_from_slice(&resting.1);
    area[POINTERS].copy_from_slice(&pointers);
    result
}

/// FXSAVE. Memory after the registers that the code can access does not change.
///
/// # Errors
///
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
    Registers::of(state, environment);
    with_image(state, [0; 2], |state| {
        let reachable = &state.vector.0[..xmm_registers(state).end];
        write_linear(
            state,
            environment,
            area,
            reachable,
            current_privilege(state),
        )
    })?;
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

/// FXRSTOR: loads the x87 and SSE registers from an image.
///
/// # Errors
///
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

/// The requested-feature bitmap: EDX:EAX and XCR0. IA32_XSS contains no component.
fn requested(state: &CpuState) -> u64 {
    (state.register(Gpr::Rax) & 0xffff_ffff | state.register(Gpr::Rdx) << 32) & state.xcr0
}

/// Which instruction stores or loads an image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Imaging {
    /// XSAVE and XRSTOR.
    Plain,
    /// XSAVEOPT, which omits components in their initial configuration. (It may also omit
    /// unmodified ones; this one does not.)
    Optimized,
    /// XSAVEC: the compacted format, without initial components.
    Compacted,
    /// XSAVES and XRSTORS: the compacted format, including supervisor components, of which there
    /// are none.
    Supervisor,
}

/// The places of an image's extended components: the offset of each in [`EXTENDED`], if the image
/// has it.
#[derive(Clone, Copy)]
struct Format {
    parts: [Option<usize>; EXTENDED.len()],
    /// The offset of PKRU, which is not part of the area of the vector registers.
    keys: Option<usize>,
}

impl Format {
    /// The standard format, with the offsets that this processor's CPUID reports.
    fn standard(state: &CpuState) -> Self {
        let policy = policy(state);
        Self {
            parts: std::array::from_fn(|index| Some(policy.component_offset(index))),
            keys: Some(policy.keys_offset()),
        }
    }

    /// The compacted format with these components (SDM volume 1, 13.4.3).
    fn compacted(components: u64) -> Self {
        let mut next = EXTENDED_REGION;
        let parts = EXTENDED.map(|part| {
            let is_there = components & part.bit != 0;
            is_there.then(|| {
                next += part.size;
                next - part.size
            })
        });
        // PKRU has the highest number.
        let keys = (components & component::PKRU != 0).then_some(next);
        Self { parts, keys }
    }

    /// The offset of a component.
    fn place(self, index: usize) -> Option<usize> {
        self.parts.get(index).copied().flatten()
    }

    /// The place of PKRU, if it is among these components. Its bytes are not part of the vector
    /// registers, so they are accessed separately.
    fn keys(self, components: u64) -> Option<Part> {
        let at = self.keys.filter(|_| components & component::PKRU != 0)?;
        Some(Part {
            bytes: 0..PKRU_BYTES as usize,
            at,
        })
    }
}

/// A range of bytes in the state, and its offset in the image.
#[derive(Clone, Debug)]
struct Part {
    bytes: Range<usize>,
    at: usize,
}

impl Part {
    /// A part with the same offset in both: of the legacy region and the header.
    fn same(bytes: Range<usize>) -> Self {
        Self {
            at: bytes.start,
            bytes,
        }
    }

    /// Whether `next` follows this part immediately, in the area and in the image.
    fn goes_on_with(&self, next: &Self) -> bool {
        self.bytes.end == next.bytes.start && self.at + self.bytes.len() == next.at
    }

    /// Its linear address: only requested parts are accessed, and only these can fault.
    fn address(
        &self,
        state: &CpuState,
        area: SegmentedAddress,
        kind: AccessKind,
    ) -> Result<LinearAddress, Exception> {
        let address = area.offset(self.at as u64);
        linear_address(state, address, self.bytes.len() as u32, kind)
    }
}

/// Calls `access` with the parts in order; adjacent ones are combined if they are adjacent in both
/// the area and the image.
fn in_runs(
    parts: impl IntoIterator<Item = Part>,
    mut access: impl FnMut(Part) -> Result<(), Exception>,
) -> Result<(), Exception> {
    let mut run: Option<Part> = None;
    for part in parts {
        match &mut run {
            Some(run) if run.goes_on_with(&part) => run.bytes.end = part.bytes.end,
            _ => {
                if let Some(run) = run.replace(part) {
                    access(run)?;
                }
            }
        }
    }
    run.map_or(Ok(()), access)
}

/// Like [`in_runs`]; but if an access fails, all are made separately, to find the fault of the
/// first part that has one.
fn in_runs_or_parts(
    parts: impl Iterator<Item = Part> + Clone,
    mut access: impl FnMut(Part) -> Result<(), Exception>,
) -> Result<(), Exception> {
    in_runs(parts.clone(), &mut access).or_else(|_| {
        for part in parts {
            access(part)?;
        }
        Ok(())
    })
}

/// The bytes of an extended component that the running code can access: outside 64-bit mode eight
/// registers of each kind, and none of ZMM16 to ZMM31 (SDM volume 1, 13.5.4).
fn reachable_part(state: &CpuState, part: &Extended) -> Range<usize> {
    let size = if state.is_64_bit() || part.bit == component::OPMASK {
        part.size
    } else if part.bit == component::ZMM_16_TO_31 {
        0
    } else {
        part.size / 2
    };
    part.start..part.start + size
}

/// The accessible parts of these extended components, and their places in the image.
fn extended_parts(
    state: &CpuState,
    format: Format,
    components: u64,
) -> impl Iterator<Item = Part> + Clone + use<> {
    let reached = EXTENDED.map(|part| reachable_part(state, &part));
    whole_parts(format, components)
        .map(move |part| {
            let index = EXTENDED.iter().position(|it| it.start == part.bytes.start);
            let bytes = index.map_or(part.bytes.clone(), |index| reached[index].clone());
            Part { bytes, at: part.at }
        })
        .filter(|part| !part.bytes.is_empty())
}

/// The parts of the area that contain requested components, whether or not these are in use and all
/// of their registers are accessible. AMD's processors access the legacy region even if nothing in
/// it is requested.
fn touched(
    state: &CpuState,
    format: Format,
    components: u64,
) -> impl Iterator<Item = Part> + Clone {
    let always_begins = policy(state).vendor() == Vendor::Amd;
    let legacy = if components & (component::X87 | component::SSE) != 0 {
        Some(0..FXSAVE_SIZE)
    } else if components & component::AVX != 0 || always_begins {
        Some(MXCSR_AND_MASK)
    } else {
        None
    };
    let header = Part::same(offset::HEADER..EXTENDED_REGION);
    let legacy = legacy.map(Part::same).into_iter();
    legacy
        .chain([header])
        .chain(whole_parts(format, components))
        .chain(format.keys(components))
}

/// These extended components as a whole, and their places in the image.
fn whole_parts(format: Format, components: u64) -> impl Iterator<Item = Part> + Clone {
    EXTENDED
        .into_iter()
        .enumerate()
        .filter_map(move |(index, part)| {
            let at = format.place(index)?;
            let bytes = part.start..part.start + part.size;
            (components & part.bit != 0).then_some(Part { bytes, at })
        })
}

fn word(image: &[u8], at: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&image[at..at + 8]);
    u64::from_le_bytes(bytes)
}

/// Fails unless the instruction is offered and permitted.
///
/// # Errors
///
/// #UD, #NM; #GP(0) for the supervisor's instructions above CPL 0.
fn require_imaging(state: &CpuState, imaging: Imaging) -> Result<(), Exception> {
    let feature = match imaging {
        Imaging::Plain => CpuidFeature::XSAVE,
        Imaging::Optimized => CpuidFeature::XSAVEOPT,
        Imaging::Compacted => CpuidFeature::XSAVEC,
        Imaging::Supervisor => CpuidFeature::XSAVES,
    };
    if !policy(state).offers(feature) {
        return Err(Exception::invalid_opcode());
    }
    require_xsave(state)?;
    match imaging {
        Imaging::Supervisor => require_cpl0(state),
        _ => Ok(()),
    }
}

/// XSAVE, XSAVEOPT, XSAVEC and XSAVES: store an image.
///
/// # Errors
///
/// #UD, #NM, #GP(0) for misalignment, the fault of the write.
pub fn xsave(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
    imaging: Imaging,
) -> Result<Outcome, Exception> {
    require_imaging(state, imaging)?;
    let components = requested(state);
    let compacts = matches!(imaging, Imaging::Compacted | Imaging::Supervisor);
    let format = match compacts {
        true => Format::compacted(components),
        false => Format::standard(state),
    };
    aligned_operand(state, instruction, 1, 64, AccessKind::Write)?;
    let area = memory_address(state, instruction);
    let privilege = current_privilege(state);
    in_runs_or_parts(touched(state, format, components), |part| {
        let linear = part.address(state, area, AccessKind::Write)?;
        let size = part.bytes.len() as u32;
        probe_linear(state, environment, linear, size, privilege)
    })?;
    let bitmap_part = Part::same(offset::HEADER..offset::HEADER + 8);
    let header = bitmap_part.address(state, area, AccessKind::Write)?;
    let mut old = [0; 8];
    if !compacts {
        read_linear(state, environment, header, &mut old, privilege)?;
    }

    let keys = u64::from(state.pkru);
    let mut registers = Registers::as_saved(state, environment);
    let registers_in_use = registers.in_use();
    let mut in_use = registers_in_use & components;
    if compacts && components & component::SSE != 0 && registers.u32(offset::MXCSR) != MXCSR_INITIAL
    {
        // MXCSR is saved together with SSE's registers (SDM volume 1, 13.10).
        in_use |= component::SSE;
    }
    if keys != 0 {
        in_use |= component::PKRU & components;
    }
    let (bitmap, layout) = match compacts {
        true => (in_use, COMPACTED | components),
        false => (u64::from_le_bytes(old) & !components | in_use, 0),
    };
    let saved = match imaging {
        Imaging::Plain => components,
        _ => in_use,
    };
    registers.initialize(saved & !registers_in_use);
    let with_mxcsr = match compacts {
        true => saved & component::SSE,
        false => components & (component::SSE | component::AVX),
    };
    let legacy = [
        (saved & component::X87, X87_CONTROL),
        (with_mxcsr, MXCSR_AND_MASK),
        (saved & component::X87, X87_REGISTERS),
        (saved & component::SSE, xmm_registers(state)),
    ];
    let legacy = legacy.into_iter().filter(|(is_saved, _)| *is_saved != 0);
    let header = match compacts {
        true => Part::same(offset::HEADER..XCOMP_BV + 8),
        false => bitmap_part,
    };
    let parts = legacy
        .map(|(_, bytes)| Part::same(bytes))
        .chain([header])
        .chain(extended_parts(state, format, saved));
    with_image(state, [bitmap, layout], |state| {
        in_runs(parts, |part| {
            let linear = part.address(state, area, AccessKind::Write)?;
            let bytes = &state.vector.0[part.bytes];
            write_linear(state, environment, linear, bytes, privilege)
        })
    })?;
    if let Some(part) = format.keys(saved) {
        let linear = part.address(state, area, AccessKind::Write)?;
        write_linear(state, environment, linear, &keys.to_le_bytes(), privilege)?;
    }
    Ok(Outcome::Next)
}

/// Gives components their initial contents, except for registers that the code cannot access, which
/// keep a component in use.
fn initialize_reachable(
    registers: &mut Registers<'_>,
    components: u64,
    xmm_registers: &Range<usize>,
    extended: &[Range<usize>; EXTENDED.len()],
) {
    let before = *registers.0;
    registers.initialize(components);
    registers.set_in_use(components, false);
    let all = [(component::SSE, offset::XMM..offset::XMM + 16 * 16)]
        .into_iter()
        .chain(EXTENDED.map(|part| (part.bit, part.start..part.start + part.size)));
    let reached = [xmm_registers].into_iter().chain(extended);
    for ((bit, range), reached) in all.zip(reached) {
        let beyond = reached.end..range.end;
        let kept = &before[beyond.clone()];
        if components & bit != 0 && kept.iter().any(|byte| *byte != 0) {
            registers.0[beyond].copy_from_slice(kept);
            registers.set_in_use(bit, true);
        }
    }
}

/// XRSTOR and XRSTORS. Requested components that the header does not mark become initial.
///
/// # Errors
///
/// #UD, #NM; #GP(0) for misalignment, an invalid header, or a reserved MXCSR bit; the fault of the
/// read.
pub fn xrstor(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
    imaging: Imaging,
) -> Result<Outcome, Exception> {
    require_imaging(state, imaging)?;
    let components = requested(state);
    aligned_operand(state, instruction, 1, 64, AccessKind::Read)?;
    let area = memory_address(state, instruction);
    let mut image = [0; XSAVE_SIZE];
    let privilege = current_privilege(state);
    let mut read = |state: &CpuState, image: &mut [u8; XSAVE_SIZE], part: Part| {
        let linear = part.address(state, area, AccessKind::Read)?;
        read_linear(
            state,
            environment,
            linear,
            &mut image[part.bytes],
            privilege,
        )
    };
    let header_part = Part::same(offset::HEADER..EXTENDED_REGION);
    let begin = touched(state, Format::compacted(0), components);
    in_runs_or_parts(begin, |part| read(state, &mut image, part))?;
    let (bitmap, layout) = (word(&image, offset::HEADER), word(&image, XCOMP_BV));
    let is_compacted = layout & COMPACTED != 0;
    let may_be_compacted = policy(state).offers(CpuidFeature::XSAVEC);
    let reserved = match is_compacted {
        true => XCOMP_BV + 8..header_part.bytes.end,
        false => HEADER_RESERVED,
    };
    let refused = match is_compacted {
        true => {
            let present = layout & !COMPACTED;
            !may_be_compacted || present & !state.xcr0 != 0 || bitmap & !present != 0
        }
        false => imaging == Imaging::Supervisor || bitmap & !state.xcr0 != 0,
    };
    if refused || image[reserved].iter().any(|byte| *byte != 0) {
        return Err(Exception::general_protection(0));
    }
    let format = match is_compacted {
        true => Format::compacted(layout),
        false => Format::standard(state),
    };
    let (loaded, initial) = (components & bitmap, components & !bitmap);
    let read_too = match is_compacted {
        true => loaded,
        false => components,
    };
    in_runs_or_parts(whole_parts(format, read_too), |part| {
        read(state, &mut image, part)
    })?;
    let mut keys = [0; PKRU_BYTES as usize];
    if let Some(part) = format.keys(loaded) {
        let linear = part.address(state, area, AccessKind::Read)?;
        read_linear(state, environment, linear, &mut keys, privilege)?;
    }
    let mxcsr = match is_compacted {
        true if components & component::SSE == 0 => None,
        true if loaded & component::SSE == 0 => Some(MXCSR_INITIAL),
        false if components & (component::SSE | component::AVX) == 0 => None,
        _ => Some(mxcsr_of(&image)),
    };
    if let Some(value) = mxcsr {
        check_mxcsr(value)?;
    }

    let xmm_registers = xmm_registers(state);
    let reached = EXTENDED.map(|part| reachable_part(state, &part));
    let reaches_all = state.is_64_bit();
    let mut registers = Registers::as_saved(state, environment);
    let in_use = registers.in_use();
    if reaches_all {
        registers.initialize(initial & in_use);
        registers.set_in_use(initial, false);
    } else {
        registers.initialize(!in_use);
        initialize_reachable(&mut registers, initial, &xmm_registers, &reached);
    }
    registers.set_in_use(loaded, true);
    if let Some(value) = mxcsr {
        registers.set_u32(offset::MXCSR, value);
    }
    if loaded & component::X87 != 0 {
        load_x87(&mut registers, &image);
    }
    if loaded & component::SSE != 0 {
        registers.0[xmm_registers.clone()].copy_from_slice(&image[xmm_registers]);
    }
    for (part, bytes) in EXTENDED.iter().zip(reached) {
        if loaded & part.bit != 0 {
            registers.0[bytes.clone()].copy_from_slice(&image[bytes]);
        }
    }
    if components & component::PKRU != 0 {
        let [a, b, c, d, ..] = keys;
        set_key_rights(state, environment, u32::from_le_bytes([a, b, c, d]));
    }
    Ok(Outcome::Next)
}

#[cfg(test)]
mod long_tests;
#[cfg(test)]
mod tests;
