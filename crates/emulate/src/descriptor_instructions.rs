//! Instructions about descriptor tables and the machine status word: LGDT, LIDT, SGDT,
//! SIDT, LLDT, SLDT, LTR, STR, SMSW, LMSW, LAR, LSL, VERR, VERW, ARPL (SDM volume 2).

use crate::Outcome;
use crate::canonical::require_canonical;
use crate::descriptor_table::{TableEntry, read_descriptor, read_upper_half, set_type_bits};
use crate::operand::{
    memory_address, read_memory, read_operand, require_cpl0, require_protected_mode, write_memory,
    write_operand, write_register,
};

use iced_x86::{Code, Instruction, Mnemonic};
use tollgate_platform::Environment;
use tollgate_x86::descriptor::system_type;
use tollgate_x86::state::TableRegister;
use tollgate_x86::{Attributes, CpuState, Cr0, Cr4, Exception, Flags, Segment, Selector};

/// The busy bit in a TSS descriptor's type.
const BUSY: Attributes = Attributes::from_bits_retain(2);

/// #GP(0) at CPL 1 to 3 if CR4.UMIP hides the system registers.
fn require_disclosure(state: &CpuState) -> Result<(), Exception> {
    if state.cr4().contains(Cr4::UMIP) {
        require_cpl0(state)
    } else {
        Ok(())
    }
}

/// LGDT and LIDT. The 16-bit forms load 24 bits of the base, those of 64-bit code all 64 bits.
///
/// # Errors
///
/// #GP(0) above CPL 0 and for a non-canonical base; the faults of the memory operand.
pub fn load_table_register(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_cpl0(state)?;
    let address = memory_address(state, instruction);
    let (bytes, base_mask) = match instruction.code() {
        Code::Lgdt_m1632_16 | Code::Lidt_m1632_16 => (6, 0x00ff_ffff),
        Code::Lgdt_m1632 | Code::Lidt_m1632 => (6, 0xffff_ffff),
        Code::Lgdt_m1664 | Code::Lidt_m1664 if state.is_64_bit() => (10, u64::MAX),
        _ => return Err(Exception::invalid_opcode()),
    };
    let mut image = [0; 10];
    read_memory(state, environment, address, &mut image[..bytes])?;
    let [limit_low, limit_high, base @ ..] = image;
    let table = TableRegister {
        base: u64::from_le_bytes(base) & base_mask,
        limit: u16::from_le_bytes([limit_low, limit_high]),
    };
    require_canonical(table.base)?;
    if instruction.mnemonic() == Mnemonic::Lgdt {
        state.gdtr = table;
    } else {
        state.idtr = table;
    }
    Ok(Outcome::Next)
}

/// SGDT and SIDT. Both operand sizes store 32 bits of the base; 64-bit code stores all 64.
///
/// # Errors
///
/// #GP(0) above CPL 0 with UMIP; the faults of the memory operand.
pub fn store_table_register(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_disclosure(state)?;
    let table = if instruction.mnemonic() == Mnemonic::Sgdt {
        state.gdtr
    } else {
        state.idtr
    };
    let mut image = [0; 10];
    image[..2].copy_from_slice(&table.limit.to_le_bytes());
    image[2..].copy_from_slice(&table.base.to_le_bytes());
    let bytes = if state.is_64_bit() { 10 } else { 6 };
    let address = memory_address(state, instruction);
    write_memory(state, environment, address, &image[..bytes])?;
    Ok(Outcome::Next)
}

/// The descriptor that LLDT or LTR selects: it must be in the GDT, its type is not checked.
fn global_descriptor(
    state: &CpuState,
    environment: &mut dyn Environment,
    selector: Selector,
) -> Result<TableEntry, Exception> {
    let refused = Exception::general_protection(selector.error_code());
    if selector.is_local() {
        return Err(refused);
    }
    read_descriptor(state, environment, selector)?.ok_or(refused)
}

/// The segment that LDTR or TR will hold. In IA-32e mode its base has 64 bits and the descriptor
/// takes 16 bytes.
///
/// # Errors
///
/// #GP(selector) if the descriptor is not completely inside the table, or for a non-canonical base.
fn system_segment(
    state: &CpuState,
    environment: &mut dyn Environment,
    entry: &TableEntry,
) -> Result<Segment, Exception> {
    let mut segment = entry.descriptor.segment(entry.selector);
    if state.is_long_mode() {
        let upper = read_upper_half(state, environment, entry)?;
        segment.base |= u64::from(upper) << 32;
        let refused = Exception::general_protection(entry.selector.error_code());
        require_canonical(segment.base).map_err(|_| refused)?;
    }
    Ok(segment)
}

/// LLDT: loads the local descriptor table register.
///
/// # Errors
///
/// #UD in real and V86 mode; #GP(0) above CPL 0; #GP(selector) unless the selector names an LDT in
/// the GDT;
/// #NP(selector); the faults of the operand; a page fault.
pub fn load_local_table(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_protected_mode(state)?;
    require_cpl0(state)?;
    let selector = Selector(read_operand(state, environment, instruction, 0)? as u16);
    if !selector.is_local() && selector.is_null() {
        state.ldtr = Segment::null(selector);
        return Ok(Outcome::Next);
    }
    let entry = global_descriptor(state, environment, selector)?;
    if entry.system_type() != Some(system_type::LDT) {
        return Err(Exception::general_protection(selector.error_code()));
    }
    if !entry.is_present() {
        return Err(Exception::segment_not_present(selector.error_code()));
    }
    state.ldtr = system_segment(state, environment, &entry)?;
    Ok(Outcome::Next)
}

/// LTR: loads the task register, and marks the TSS busy in the GDT.
///
/// # Errors
///
/// #UD in real and V86 mode; #GP(0) above CPL 0; #GP(selector) unless the selector names an
/// available TSS
/// in the GDT; #NP(selector); the faults of the operand; a page fault.
pub fn load_task_register(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_protected_mode(state)?;
    require_cpl0(state)?;
    let selector = Selector(read_operand(state, environment, instruction, 0)? as u16);
    let mut entry = global_descriptor(state, environment, selector)?;
    let is_task = match entry.system_type() {
        Some(system_type::TSS32_AVAILABLE) => true,
        Some(system_type::TSS16_AVAILABLE) => !state.is_long_mode(),
        _ => false,
    };
    if !is_task {
        return Err(Exception::general_protection(selector.error_code()));
    }
    if !entry.is_present() {
        return Err(Exception::segment_not_present(selector.error_code()));
    }
    let mut segment = system_segment(state, environment, &entry)?;
    set_type_bits(state, environment, &mut entry, BUSY)?;
    segment.attributes |= BUSY;
    state.tr = segment;
    Ok(Outcome::Next)
}

/// SLDT and STR. A memory operand receives 16 bits; a 32- or 64-bit register is zero-extended.
///
/// # Errors
///
/// #UD in real and V86 mode; #GP(0) above CPL 0 with UMIP; the faults of the operand.
pub fn store_selector(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_protected_mode(state)?;
    require_disclosure(state)?;
    let selector = if instruction.mnemonic() == Mnemonic::Sldt {
        state.ldtr.selector
    } else {
        state.tr.selector
    };
    write_operand(state, environment, instruction, 0, u64::from(selector.0))?;
    Ok(Outcome::Next)
}

/// SMSW. A 32- or 64-bit register receives all of CR0.
///
/// # Errors
///
/// #GP(0) above CPL 0 with UMIP; the faults of the operand.
pub fn store_status_word(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_disclosure(state)?;
    let value = state.cr0;
    write_operand(state, environment, instruction, 0, value)?;
    Ok(Outcome::Next)
}

/// LMSW: loads PE (which it can only set), MP, EM and TS.
///
/// # Errors
///
/// #GP(0) above CPL 0; the faults of the operand.
pub fn load_status_word(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_cpl0(state)?;
    let value = read_operand(state, environment, instruction, 0)?;
    let loaded = (Cr0::PE | Cr0::MP | Cr0::EM | Cr0::TS).bits();
    let kept = state.cr0 & Cr0::PE.bits();
    state.cr0 = (state.cr0 & !loaded) | (value & loaded) | kept;
    Ok(Outcome::Next)
}

fn set_zero_flag(state: &mut CpuState, is_set: bool) {
    let mut flags = state.flags();
    flags.set(Flags::ZF, is_set);
    state.set_flags(flags);
}

/// The descriptor that a probing instruction (LAR, LSL, VERR, VERW) names, if it is accessible at
/// the CPL and the selector's RPL.
fn visible_descriptor(
    state: &CpuState,
    environment: &mut dyn Environment,
    selector: Selector,
) -> Result<Option<TableEntry>, Exception> {
    let Some(entry) = read_descriptor(state, environment, selector)? else {
        return Ok(None);
    };
    let attributes = entry.attributes();
    let is_visible = attributes.is_conforming()
        || (attributes.dpl() >= state.cpl() && attributes.dpl() >= selector.rpl());
    Ok(is_visible.then_some(entry))
}

/// What an instruction asks about a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Probe {
    /// LAR: access rights.
    Rights,
    /// LSL: the limit.
    Limit,
    /// VERR: whether the segment is readable.
    Read,
    /// VERW: whether the segment is writable.
    Write,
}

/// The result of a probe. For `None`, ZF is cleared; otherwise it is set, and LAR and LSL load the
/// value.
///
/// # Errors
///
/// #UD in real and V86 mode; a page fault of the table.
pub fn probe(
    state: &CpuState,
    environment: &mut dyn Environment,
    probe: Probe,
    selector: Selector,
) -> Result<Option<u32>, Exception> {
    require_protected_mode(state)?;
    let Some(entry) = visible_descriptor(state, environment, selector)? else {
        return Ok(None);
    };
    let wants_limit = match probe {
        Probe::Read => return Ok(entry.attributes().is_readable().then_some(0)),
        Probe::Write => return Ok(entry.attributes().is_writable_data().then_some(0)),
        Probe::Rights => false,
        Probe::Limit => true,
    };
    let has_it = match entry.system_type() {
        None => true,
        Some(system_type::LDT | system_type::TSS32_AVAILABLE | system_type::TSS32_BUSY) => true,
        Some(system_type::CALL_GATE32) => !wants_limit,
        // IA-32e mode does not have these types.
        Some(_) if state.is_long_mode() => false,
        Some(system_type::TSS16_AVAILABLE | system_type::TSS16_BUSY) => true,
        Some(system_type::CALL_GATE16 | system_type::TASK_GATE) => !wants_limit,
        Some(_) => false,
    };
    Ok(has_it.then(|| match wants_limit {
        true => entry.descriptor.limit(),
        false => (entry.descriptor.0 >> 32) as u32 & 0x00f0_ff00,
    }))
}

/// LAR and LSL: load the access rights or the limit of a descriptor, and set ZF if it is
/// accessible.
///
/// # Errors
///
/// #UD in real and V86 mode; the faults of the source operand; a page fault of the table.
pub fn load_rights_or_limit(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_protected_mode(state)?;
    let what = match instruction.mnemonic() {
        Mnemonic::Lsl => Probe::Limit,
        _ => Probe::Rights,
    };
    let selector = Selector(read_operand(state, environment, instruction, 1)? as u16);
    let value = probe(state, environment, what, selector)?;
    if let Some(value) = value {
        write_register(state, instruction.op0_register(), u64::from(value));
    }
    set_zero_flag(state, value.is_some());
    Ok(Outcome::Next)
}

/// VERR and VERW: set ZF if the running program may read or write the segment.
///
/// # Errors
///
/// #UD in real and V86 mode; the faults of the operand; a page fault of the table.
pub fn verify_segment(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_protected_mode(state)?;
    let what = match instruction.mnemonic() {
        Mnemonic::Verw => Probe::Write,
        _ => Probe::Read,
    };
    let selector = Selector(read_operand(state, environment, instruction, 0)? as u16);
    let is_allowed = probe(state, environment, what, selector)?.is_some();
    set_zero_flag(state, is_allowed);
    Ok(Outcome::Next)
}

/// ARPL: raises the RPL of the destination selector to that of the source, and sets ZF if it did.
///
/// # Errors
///
/// #UD in real and V86 mode; the faults of the operands (the destination must be writable even if
/// it is
/// not changed).
pub fn adjust_requested_privilege(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_protected_mode(state)?;
    let destination = read_operand(state, environment, instruction, 0)?;
    let source = read_operand(state, environment, instruction, 1)?;
    let is_lower = destination & 3 < source & 3;
    if is_lower {
        let adjusted = (destination & !3) | (source & 3);
        write_operand(state, environment, instruction, 0, adjusted)?;
    }
    set_zero_flag(state, is_lower);
    Ok(Outcome::Next)
}

#[cfg(test)]
mod long_tests;
#[cfg(test)]
mod tests;
