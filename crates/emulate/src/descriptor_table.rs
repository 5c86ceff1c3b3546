//! Descriptors in the GDT and LDT, and the checks when they are loaded (SDM volume 3, 3.4.5 and
//! chapter 5).
//!
//! Tables are read and written at supervisor privilege, whatever the CPL is.

use crate::operand::{read_system, write_system};
use tollgate_platform::Environment;
use tollgate_x86::{Attributes, CpuState, Descriptor, Exception, LinearAddress, Segment, Selector};

/// A descriptor and its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TableEntry {
    /// The selector that names it.
    pub selector: Selector,
    /// The descriptor in the table.
    pub descriptor: Descriptor,
    /// Linear address of its eight bytes.
    pub address: LinearAddress,
}

impl TableEntry {
    /// The descriptor's access rights.
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

/// Base and limit of the table that a selector refers to; `None` for an unusable LDT.
fn table_of(state: &CpuState, selector: Selector) -> Option<(u64, u32)> {
    if !selector.is_local() {
        Some((state.gdtr.base, u32::from(state.gdtr.limit)))
    } else if state.ldtr.is_usable() {
        Some((state.ldtr.base, state.ldtr.limit))
    } else {
        None
    }
}

/// Reads the descriptor that a selector names. `None` if the selector is null or lies outside its
/// table, or if the LDT is unusable.
///
/// # Errors
///
/// The page fault of the table's memory.
pub fn read_descriptor(
    state: &CpuState,
    environment: &mut dyn Environment,
    selector: Selector,
) -> Result<Option<TableEntry>, Exception> {
    let Some((base, limit)) = table_of(state, selector) else {
        return Ok(None);
    };
    let offset = u32::from(selector.table_offset());
    if selector.is_null() || offset + 7 > limit {
        return Ok(None);
    }
    let mut bytes = [0; 8];
    read_system(state, environment, base, u64::from(offset), &mut bytes)?;
    let address = LinearAddress(base.wrapping_add(u64::from(offset)));
    Ok(Some(TableEntry {
        selector,
        descriptor: Descriptor(u64::from_le_bytes(bytes)),
        address,
    }))
}

/// The upper eight bytes of a system descriptor of IA-32e mode, with bits 32 to 63 of its base or
/// offset (SDM volume 3, 3.5.2 and 5.8.3.1).
///
/// # Errors
///
/// #GP(selector) if they lie outside the table or their type is not zero; a page fault.
pub fn read_upper_half(
    state: &CpuState,
    environment: &mut dyn Environment,
    entry: &TableEntry,
) -> Result<u32, Exception> {
    const TYPE: u64 = 0x1f << 40;
    let refused = Exception::general_protection(entry.selector.error_code());
    let (_, limit) = table_of(state, entry.selector).ok_or(refused)?;
    if u32::from(entry.selector.table_offset()) + 15 > limit {
        return Err(refused);
    }
    let mut bytes = [0; 8];
    read_system(state, environment, entry.address.0, 8, &mut bytes)?;
    let upper = u64::from_le_bytes(bytes);
    if upper & TYPE != 0 {
        return Err(refused);
    }
    Ok(upper as u32)
}

/// Whether the L and D bits permit to enter a code segment: in IA-32e mode they must not both be
/// set.
pub fn has_valid_code_size(state: &CpuState, attributes: Attributes) -> bool {
    !state.is_long_mode() || !attributes.contains(Attributes::LONG | Attributes::DEFAULT_BIG)
}

/// Whether code in this segment would be 64-bit code.
pub fn is_64_bit_code(state: &CpuState, segment: &Segment) -> bool {
    state.is_long_mode() && segment.attributes.is_long_code()
}

/// Sets `bits` in the type of a descriptor in its table, unless they are already set. Used for
/// accessed bits (1) and TSS busy bits (2).
///
/// # Errors
///
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
        write_system(state, environment, entry.address.0, 5, &byte)?;
        entry.descriptor = Descriptor(updated);
    }
    Ok(())
}

/// Sets the accessed bit of a code or data descriptor, and returns the segment that the register
/// will hold.
///
/// # Errors
///
/// The page fault of the table's memory.
pub fn accessed_segment(
    state: &CpuState,
    environment: &mut dyn Environment,
    mut entry: TableEntry,
) -> Result<Segment, Exception> {
    set_type_bits(state, environment, &mut entry, Attributes::ACCESSED)?;
    Ok(entry.descriptor.segment(entry.selector))
}

/// The content of DS, ES, FS or GS after loading `selector` in protected mode (SDM volume 2, MOV).
///
/// # Errors
///
/// #GP(selector) if the descriptor is outside the table, not readable, or too privileged;
/// #NP(selector); a
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

/// The content of SS after loading `selector` for use at privilege level `privilege`.
///
/// `refused` makes the exception for an unsuitable selector or descriptor: #GP for instructions
/// that load SS, #TS for stacks that come from a TSS. `external` (0 or 1) is the EXT bit of all
/// error codes.
///
/// # Errors
///
/// `refused(selector)` if the selector is null or outside the table, if RPL or DPL differ from
/// `privilege`, or if it is not writable data; #SS(selector) if not present; a page fault of the
/// table.
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

/// The segment as CS will hold it: its RPL is replaced by the new CPL.
pub const fn with_rpl(segment: Segment, cpl: u8) -> Segment {
    Segment {
        selector: Selector(segment.selector.0 & !3 | cpl as u16 & 3),
        ..segment
    }
}
