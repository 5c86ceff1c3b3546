//! Descriptors in the GDT and LDT, and the checks that loading them makes
//! (SDM volume 3, 3.4.5 and chapter 5).
//!
//! Tables are read and written at supervisor privilege whatever the CPL is.

use crate::operand::{linear_mask, read_linear, write_linear};
use tollgate_platform::Environment;
use tollgate_x86::paging::Privilege;
use tollgate_x86::{Attributes, CpuState, Descriptor, Exception, LinearAddress, Segment, Selector};

/// A descriptor and where it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableEntry {
    /// The selector that named it.
    pub selector: Selector,
    /// What the table held.
    pub descriptor: Descriptor,
    /// Linear address of its eight bytes.
    pub address: LinearAddress,
}

impl TableEntry {
    /// Access rights.
    pub const fn attributes(&self) -> Attributes {
        self.descriptor.attributes()
    }

    /// Whether the descriptor's present bit is set.
    pub const fn is_present(&self) -> bool {
        self.attributes().contains(Attributes::PRESENT)
    }

    /// For system descriptors: the type; `None` for code and data.
    pub const fn system_type(&self) -> Option<u8> {
        if self.attributes().contains(Attributes::NOT_SYSTEM) {
            None
        } else {
            Some(self.attributes().kind())
        }
    }
}

/// Reads the descriptor that a selector names. `None`: the selector is null or lies
/// outside its table, or the LDT is not usable.
///
/// # Errors
/// The page fault of the table's memory.
pub fn read_descriptor(
    state: &CpuState,
    environment: &mut dyn Environment,
    selector: Selector,
) -> Result<Option<TableEntry>, Exception> {
    let (base, limit) = if selector.is_local() {
        if !state.ldtr.is_usable() {
            return Ok(None);
        }
        (state.ldtr.base, state.ldtr.limit)
    } else {
        (state.gdtr.base, u32::from(state.gdtr.limit))
    };
    let offset = u32::from(selector.table_offset());
    if selector.is_null() || offset + 7 > limit {
        return Ok(None);
    }
    let address = LinearAddress(base.wrapping_add(u64::from(offset)) & linear_mask(state));
    let mut bytes = [0; 8];
    read_linear(
        state,
        environment,
        address,
        &mut bytes,
        Privilege::Supervisor,
    )?;
    Ok(Some(TableEntry {
        selector,
        descriptor: Descriptor(u64::from_le_bytes(bytes)),
        address,
    }))
}

/// ORs `bits` into the type bits of a descriptor in its table, if they are not set yet.
/// Accessed bits (1) and TSS busy bits (2) go this way.
///
/// # Errors
/// The page fault of the table's memory.
pub fn set_type_bits(
    state: &CpuState,
    environment: &mut dyn Environment,
    entry: &mut TableEntry,
    bits: Attributes,
) -> Result<(), Exception> {
    let updated = entry.descriptor.0 | u64::from(bits.bits()) << 40;
    if updated != entry.descriptor.0 {
        let byte = [(updated >> 40) as u8];
        let address = LinearAddress(entry.address.0.wrapping_add(5) & linear_mask(state));
        write_linear(state, environment, address, &byte, Privilege::Supervisor)?;
        entry.descriptor = Descriptor(updated);
    }
    Ok(())
}

/// Sets a code or data descriptor's accessed bit and gives the segment that the register
/// will hold.
///
/// # Errors
/// The page fault of the table's memory.
pub fn accessed_segment(
    state: &CpuState,
    environment: &mut dyn Environment,
    mut entry: TableEntry,
) -> Result<Segment, Exception> {
    set_type_bits(state, environment, &mut entry, Attributes::ACCESSED)?;
    Ok(entry.descriptor.segment(entry.selector))
}

/// What DS, ES, FS or GS will hold after loading `selector` in protected mode
/// (SDM volume 2, MOV).
///
/// # Errors
/// #GP(selector): outside the table, not readable, or too privileged; #NP(selector);
/// page fault of the table.
pub fn data_segment(
    state: &CpuState,
    environment: &mut dyn Environment,
    selector: Selector,
) -> Result<Segment, Exception> {
    if selector.is_null() {
        return Ok(Segment::null(selector));
    }
    let refused = Exception::general_protection(selector.error_code());
    let entry = read_descriptor(state, environment, selector)?.ok_or(refused)?;
    let attributes = entry.attributes();
    let needed = attributes.dpl();
    let too_privileged = selector.rpl() > needed || state.cpl() > needed;
    if !attributes.is_readable() || (!attributes.is_conforming() && too_privileged) {
        return Err(refused);
    }
    if !entry.is_present() {
        return Err(Exception::segment_not_present(selector.error_code()));
    }
    accessed_segment(state, environment, entry)
}

/// What SS will hold after loading `selector` for use at privilege level `privilege`.
///
/// `refused` makes the exception for a selector or descriptor that will not do: #GP for
/// instructions that load SS, #TS for stacks that come from a TSS. `external` (0 or 1) is
/// the EXT bit of all error codes.
///
/// # Errors
/// `refused(selector)`: null, outside the table, RPL or DPL not equal to `privilege`, not
/// writable data; #SS(selector) if not present; page fault of the table.
pub fn stack_segment(
    state: &CpuState,
    environment: &mut dyn Environment,
    selector: Selector,
    privilege: u8,
    refused: fn(u32) -> Exception,
    external: u32,
) -> Result<Segment, Exception> {
    let error_code = selector.error_code() | external;
    let entry =
        read_descriptor(state, environment, selector)?.ok_or_else(|| refused(error_code))?;
    let attributes = entry.attributes();
    if selector.rpl() != privilege
        || attributes.dpl() != privilege
        || !attributes.is_writable_data()
    {
        return Err(refused(error_code));
    }
    if !entry.is_present() {
        return Err(Exception::stack_fault(error_code));
    }
    accessed_segment(state, environment, entry)
}

/// The same segment as CS will hold it: its RPL replaced by the new CPL.
pub const fn with_rpl(segment: Segment, cpl: u8) -> Segment {
    Segment {
        selector: Selector(segment.selector.0 & !3 | cpl as u16 & 3),
        ..segment
    }
}
