//! FNSTENV, FLDENV, FNSAVE and FRSTOR in their four layouts (SDM volume 1, 8.1.10): 16 or 32 bits,
//! with selectors (protected mode) or linear pointers (real and V86 mode).

use crate::Outcome;
use crate::memory_access::{
    check_alignment, current_privilege, linear_address, read_linear, write_linear,
};
use crate::operand::memory_address;
use crate::vector_state::{
    Registers, ST_SIZE, component, loaded_control_word, offset, require_x87, x87_error_pending,
};
use iced_x86::{Code, Instruction};
use tollgate_platform::Environment;
use tollgate_x86::paging::AccessKind;
use tollgate_x86::{CpuState, Exception, LinearAddress};

/// FCW bits that mask the six exceptions.
const ALL_MASKED: u16 = 0x3f;
const FCW_INITIAL: u16 = 0x037f;
/// The implemented bits of the opcode.
const FOP_MASK: u16 = 0x7ff;
const LARGEST_ENVIRONMENT: usize = 28;
const LARGEST_IMAGE: usize = LARGEST_ENVIRONMENT + 8 * ST_SIZE;

/// Which of the four layouts an instruction uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Layout {
    /// Whether fields have 32 bits instead of 16.
    wide: bool,
    /// Whether pointers are linear addresses, without selectors.
    linear: bool,
    /// Whether the code runs in 64-bit mode: the state has pointers of 64 bits, of which the image
    /// contains 32, and no selectors.
    long: bool,
}

impl Layout {
    fn of(state: &CpuState, instruction: &Instruction) -> Self {
        Self {
            wide: !matches!(
                instruction.code(),
                Code::Fnstenv_m14byte
                    | Code::Fstenv_m14byte
                    | Code::Fldenv_m14byte
                    | Code::Fnsave_m94byte
                    | Code::Fsave_m94byte
                    | Code::Frstor_m94byte
            ),
            linear: state.has_real_mode_segments(),
            long: state.is_64_bit(),
        }
    }

    const fn field_size(self) -> usize {
        if self.wide { 4 } else { 2 }
    }

    const fn environment_size(self) -> usize {
        7 * self.field_size()
    }

    /// Writes seven fields to an image.
    fn encode(self, fields: [u32; 7], image: &mut [u8; LARGEST_IMAGE]) {
        let size = self.field_size();
        for (index, field) in fields.into_iter().enumerate() {
            image[index * size..(index + 1) * size].copy_from_slice(&field.to_le_bytes()[..size]);
        }
    }

    /// Reads the seven fields of an image.
    fn decode(self, image: &[u8; LARGEST_IMAGE]) -> [u32; 7] {
        let size = self.field_size();
        std::array::from_fn(|index| {
            let mut bytes = [0; 4];
            bytes[..size].copy_from_slice(&image[index * size..(index + 1) * size]);
            u32::from_le_bytes(bytes)
        })
    }
}

/// The tag of a register that is not empty, from its contents (SDM volume 1, 8.1.7):
/// 0 valid, 1 zero, 2 special.
fn content_tag(register: &[u8]) -> u16 {
    let exponent = u16::from_le_bytes([register[8], register[9]]) & 0x7fff;
    let fraction_is_zero = register[..8].iter().all(|byte| *byte == 0);
    let integer_bit = register[7] & 0x80 != 0;
    match exponent {
        0 if fraction_is_zero => 1,
        0 | 0x7fff => 2,
        _ if integer_bit => 0,
        _ => 2,
    }
}

/// The full tag word; the state only records whether a register is empty.
fn full_tags(registers: &Registers<'_>) -> u16 {
    let abridged = registers.0[offset::TAGS];
    (0..8).fold(0, |tags, physical: usize| {
        let tag = if abridged >> physical & 1 == 0 {
            3
        } else {
            content_tag(registers.st(physical.wrapping_sub(registers.top())))
        };
        tags | tag << (2 * physical)
    })
}

fn abridged_tags(tags: u16) -> u8 {
    (0..8).fold(0, |abridged, physical| {
        let empty = tags >> (2 * physical) & 3 == 3;
        abridged | u8::from(!empty) << physical
    })
}

/// The values of the seven fields to store.
fn fields(registers: &Registers<'_>, layout: Layout) -> [u32; 7] {
    let word = |at: usize| u32::from(registers.u16(at));
    let opcode = u32::from(registers.u16(offset::FOP) & FOP_MASK);
    let (fip, fdp) = (registers.u32(offset::FIP), registers.u32(offset::FDP));
    let (fcs, fds) = if layout.long {
        (0, 0)
    } else {
        (word(offset::FCS), word(offset::FDS))
    };
    // The upper halves of 32-bit fields with 16-bit values are written as ones.
    let upper = if layout.wide { 0xffff_0000 } else { 0 };
    let control = word(offset::FCW) | upper;
    let status = word(offset::FSW) | upper;
    let tags = u32::from(full_tags(registers)) | upper;
    let pointers = if layout.linear {
        let code = fcs.wrapping_shl(4).wrapping_add(fip);
        let data = fds.wrapping_shl(4).wrapping_add(fdp);
        let (low_code, low_data) = (code & 0xffff | upper, data & 0xffff | upper);
        if layout.wide {
            [
                low_code,
                code >> 16 << 12 | opcode,
                low_data,
                data >> 16 << 12,
            ]
        } else {
            let high = |linear: u32| linear >> 16 << 12 & 0xf000;
            [low_code, high(code) | opcode, low_data, high(data)]
        }
    } else if layout.wide {
        [fip, fcs | opcode << 16, fdp, fds | upper]
    } else {
        [fip, fcs, fdp, fds]
    };
    let [code, code_high, data, data_high] = pointers;
    [control, status, tags, code, code_high, data, data_high]
}

/// Loads the seven fields; ST registers stay in their physical registers.
fn load_fields(registers: &mut Registers<'_>, layout: Layout, fields: [u32; 7]) {
    let [control, status, tags, code, code_high, data, data_high] = fields;
    registers.set_top((status >> 11 & 7) as usize);
    registers.set_u16(offset::FCW, loaded_control_word(control as u16));
    registers.set_u16(offset::FSW, status as u16);
    registers.0[offset::TAGS] = abridged_tags(tags as u16);
    let mut opcode = registers.u16(offset::FOP);
    let (fip, fcs, fdp, fds) = if layout.linear {
        opcode = code_high as u16 & FOP_MASK;
        let high = |field: u32| field >> 12 << 16;
        let (code, data) = (code & 0xffff, data & 0xffff);
        (code | high(code_high), 0, data | high(data_high), 0)
    } else {
        if layout.wide {
            opcode = (code_high >> 16) as u16 & FOP_MASK;
        }
        (code, code_high as u16, data, data_high as u16)
    };
    registers.set_u16(offset::FOP, opcode);
    registers.set_u32(offset::FIP, fip);
    registers.set_u16(offset::FCS, fcs);
    registers.set_u32(offset::FDP, fdp);
    registers.set_u16(offset::FDS, fds);
    if layout.long {
        registers.set_u32(offset::FCS, 0);
        registers.set_u32(offset::FDS, 0);
    }
    registers.update_error_summary();
    registers.set_in_use(component::X87, true);
}

/// The memory operand, after segment and alignment checks.
fn operand(
    state: &CpuState,
    instruction: &Instruction,
    layout: Layout,
    size: usize,
    kind: AccessKind,
) -> Result<LinearAddress, Exception> {
    let address = memory_address(state, instruction);
    let linear = linear_address(state, address, size as u32, kind)?;
    let alignment = layout.field_size() as u32;
    check_alignment(state, linear, alignment, current_privilege(state))?;
    Ok(linear)
}

/// FNSTENV: stores the environment, then masks all exceptions.
///
/// # Errors
///
/// #NM, or the fault of the write.
pub fn store_environment(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_x87(state)?;
    let layout = Layout::of(state, instruction);
    let size = layout.environment_size();
    let linear = operand(state, instruction, layout, size, AccessKind::Write)?;
    let mut image = [0; LARGEST_IMAGE];
    layout.encode(
        fields(&Registers::of(state, environment), layout),
        &mut image,
    );
    let privilege = current_privilege(state);
    write_linear(state, environment, linear, &image[..size], privilege)?;
    let mut registers = Registers::of(state, environment);
    let control = registers.u16(offset::FCW);
    registers.set_u16(offset::FCW, control | ALL_MASKED);
    registers.update_error_summary();
    registers.set_in_use(component::X87, true);
    Ok(Outcome::Next)
}

/// FLDENV: loads the environment.
///
/// # Errors
///
/// #NM, #MF if an exception is pending, or the fault of the read.
pub fn load_environment(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_x87(state)?;
    if x87_error_pending(state, environment)? {
        return Ok(Outcome::Repeat);
    }
    let layout = Layout::of(state, instruction);
    let size = layout.environment_size();
    let linear = operand(state, instruction, layout, size, AccessKind::Read)?;
    let mut image = [0; LARGEST_IMAGE];
    let privilege = current_privilege(state);
    read_linear(state, environment, linear, &mut image[..size], privilege)?;
    let mut registers = Registers::of(state, environment);
    load_fields(&mut registers, layout, layout.decode(&image));
    Ok(Outcome::Next)
}

/// FNSAVE: stores environment and registers, then does FNINIT.
///
/// # Errors
/// #NM, or the fault of the write.
pub fn save(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_x87(state)?;
    let layout = Layout::of(state, instruction);
    let start = layout.environment_size();
    let size = start + 8 * ST_SIZE;
    let linear = operand(state, instruction, layout, size, AccessKind::Write)?;
    let mut image = [0; LARGEST_IMAGE];
    let registers = Registers::of(state, environment);
    layout.encode(fields(&registers, layout), &mut image);
    for index in 0..8 {
        let at = start + index * ST_SIZE;
        image[at..at + ST_SIZE].copy_from_slice(registers.st(index));
    }
    let privilege = current_privilege(state);
    write_linear(state, environment, linear, &image[..size], privilege)?;
    let mut registers = Registers::of(state, environment);
    // FNINIT leaves the contents of the registers, but marks them as empty.
    registers.set_top(0);
    registers.0[..offset::MXCSR].fill(0);
    registers.set_u16(offset::FCW, FCW_INITIAL);
    registers.set_in_use(component::X87, true);
    Ok(Outcome::Next)
}

/// FRSTOR: loads environment and registers.
///
/// # Errors
///
/// #NM, #MF if an exception is pending, or the fault of the read.
pub fn restore(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_x87(state)?;
    if x87_error_pending(state, environment)? {
        return Ok(Outcome::Repeat);
    }
    let layout = Layout::of(state, instruction);
    let start = layout.environment_size();
    let size = start + 8 * ST_SIZE;
    let linear = operand(state, instruction, layout, size, AccessKind::Read)?;
    let mut image = [0; LARGEST_IMAGE];
    let privilege = current_privilege(state);
    read_linear(state, environment, linear, &mut image[..size], privilege)?;
    let mut registers = Registers::of(state, environment);
    load_fields(&mut registers, layout, layout.decode(&image));
    for (index, register) in image[start..size].chunks(ST_SIZE).enumerate() {
        registers.set_st(index, register);
    }
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests;
