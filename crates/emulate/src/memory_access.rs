//! Memory accesses of the running program: segment rights and limits (SDM volume 3, 5.3 to 5.5),
//! alignment, and linear addresses. Paging is the task of the [`Environment`].

use crate::canonical::require_canonical_range;
use tollgate_platform::Environment;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{
    CpuState, Cr0, Exception, Flags, LinearAddress, Segment, SegmentRegister, Vector,
};

/// A memory address as an instruction specifies it, before segmentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SegmentedAddress {
    /// The segment register of the access.
    pub segment: SegmentRegister,
    /// Offset in the segment, already truncated to the address size.
    pub offset: u64,
}

impl SegmentedAddress {
    /// The address `bytes` higher. Offsets inside one operand do not wrap at 64 KiB: the limit
    /// check stops them first.
    pub const fn offset(self, bytes: u64) -> Self {
        Self {
            offset: self.offset.wrapping_add(bytes),
            ..self
        }
    }
}

/// The privilege of the data accesses that the running program makes.
pub fn current_privilege(state: &CpuState) -> Privilege {
    Privilege::of_cpl(state.cpl())
}

/// Mask of the linear addresses that the running program forms: 32 bits unless it is 64-bit code,
/// also in compatibility mode.
pub fn linear_mask(state: &CpuState) -> u64 {
    if state.is_64_bit() {
        u64::MAX
    } else {
        0xffff_ffff
    }
}

/// Mask of the linear addresses that the processor forms itself, for descriptor tables and the TSS:
/// in IA-32e mode 64 bits, whatever code runs.
pub fn system_mask(state: &CpuState) -> u64 {
    if state.is_long_mode() {
        u64::MAX
    } else {
        0xffff_ffff
    }
}

/// The fault for a violation of a segment: #SS for the stack, otherwise #GP.
fn segment_fault(segment: SegmentRegister, error_code: u32) -> Exception {
    if segment == SegmentRegister::Ss {
        Exception::stack_fault(error_code)
    } else {
        Exception::general_protection(error_code)
    }
}

/// Whether an access of `size` bytes is inside the segment; offsets beyond 4 GiB never are.
pub fn is_inside(segment: &Segment, offset: u64, size: u32) -> bool {
    u32::try_from(offset).is_ok_and(|offset| size == 0 || segment.contains(offset, size))
}

/// Checks rights and limit of an access through a segment register, and returns its linear address
/// (SDM volume 3, 5.3 and 5.5). In 64-bit code, segments have neither rights nor limits, but
/// addresses must be canonical (SDM volume 1, 3.3.7.1).
///
/// # Errors
///
/// #SS(0) through SS, otherwise #GP(0): for an unusable register, a write to read-only data or to
/// code, a
/// read of execute-only code, an offset outside the limit, or a non-canonical address.
pub fn linear_address(
    state: &CpuState,
    address: SegmentedAddress,
    size: u32,
    kind: AccessKind,
) -> Result<LinearAddress, Exception> {
    let segment = state.segment(address.segment);
    if state.is_64_bit() {
        let linear = state
            .segment_base(address.segment)
            .wrapping_add(address.offset);
        require_canonical_range(linear, u64::from(size), segment_fault(address.segment, 0))?;
        return Ok(LinearAddress(linear));
    }
    // Real and V86 mode have no segment types: code may be written there.
    let allowed = segment.is_usable()
        && (state.has_real_mode_segments()
            || match kind {
                AccessKind::Read => segment.attributes.is_readable(),
                AccessKind::Write => segment.attributes.is_writable_data(),
                AccessKind::Fetch => segment.attributes.is_code(),
            });
    if !allowed || !is_inside(segment, address.offset, size) {
        return Err(segment_fault(address.segment, 0));
    }
    let linear = segment.base.wrapping_add(address.offset) & linear_mask(state);
    Ok(LinearAddress(linear))
}

/// Raises #AC(0) for a misaligned access at CPL 3 with CR0.AM and EFLAGS.AC set (SDM volume 3, 6.15
/// "Alignment Check"). `alignment` is a power of two.
///
/// # Errors
///
/// #AC(0) for a misaligned address.
pub fn check_alignment(
    state: &CpuState,
    address: LinearAddress,
    alignment: u32,
    privilege: Privilege,
) -> Result<(), Exception> {
    if privilege == Privilege::User
        && state.cr0().contains(Cr0::AM)
        && state.flags().contains(Flags::AC)
        && address.0 & u64::from(alignment.saturating_sub(1)) != 0
    {
        return Err(Exception::new(Vector::AlignmentCheck));
    }
    Ok(())
}

/// The number of the `size` bytes that lie below the end of the linear address space.
fn before_wrap(mask: u64, address: LinearAddress, size: usize) -> usize {
    let room = mask.wrapping_sub(address.0);
    // `room` is the number of bytes after the first one.
    usize::try_from(room).map_or(size, |room| size.min(room.saturating_add(1)))
}

/// Reads at a linear address; wraps after the address `mask`.
///
/// # Errors
///
/// The page fault of the access.
pub(crate) fn read_wrapping(
    state: &CpuState,
    environment: &mut dyn Environment,
    mask: u64,
    address: LinearAddress,
    data: &mut [u8],
    privilege: Privilege,
) -> Result<(), Exception> {
    let (low, high) = data.split_at_mut(before_wrap(mask, address, data.len()));
    environment.read(state, address, low, privilege)?;
    if !high.is_empty() {
        environment.read(state, LinearAddress(0), high, privilege)?;
    }
    Ok(())
}

/// Writes at a linear address; wraps after the address `mask`.
///
/// # Errors
///
/// The page fault of the access; nothing was written then.
pub(crate) fn write_wrapping(
    state: &CpuState,
    environment: &mut dyn Environment,
    mask: u64,
    address: LinearAddress,
    data: &[u8],
    privilege: Privilege,
) -> Result<(), Exception> {
    let (low, high) = data.split_at(before_wrap(mask, address, data.len()));
    if !high.is_empty() {
        environment.probe_write(state, address, low.len() as u32, privilege)?;
        environment.write(state, LinearAddress(0), high, privilege)?;
    }
    environment.write(state, address, low, privilege)
}

/// Checks that `size` bytes at a linear address could be written; wraps after the address `mask`.
///
/// # Errors
///
/// The page fault of the access.
pub(crate) fn probe_wrapping(
    state: &CpuState,
    environment: &mut dyn Environment,
    mask: u64,
    address: LinearAddress,
    size: u32,
    privilege: Privilege,
) -> Result<(), Exception> {
    let low = before_wrap(mask, address, size as usize) as u32;
    environment.probe_write(state, address, low, privilege)?;
    if low < size {
        environment.probe_write(state, LinearAddress(0), size - low, privilege)?;
    }
    Ok(())
}

/// Reads at a linear address; wraps at the end of the program's linear address space.
///
/// # Errors
///
/// The page fault of the access.
pub fn read_linear(
    state: &CpuState,
    environment: &mut dyn Environment,
    address: LinearAddress,
    data: &mut [u8],
    privilege: Privilege,
) -> Result<(), Exception> {
    let mask = linear_mask(state);
    read_wrapping(state, environment, mask, address, data, privilege)
}

/// Writes at a linear address; wraps at the end of the program's linear address space.
///
/// # Errors
///
/// The page fault of the access; nothing was written then.
pub fn write_linear(
    state: &CpuState,
    environment: &mut dyn Environment,
    address: LinearAddress,
    data: &[u8],
    privilege: Privilege,
) -> Result<(), Exception> {
    let mask = linear_mask(state);
    write_wrapping(state, environment, mask, address, data, privilege)
}

/// Checks that `size` bytes at a linear address could be written.
///
/// # Errors
///
/// The page fault of the access.
pub fn probe_linear(
    state: &CpuState,
    environment: &mut dyn Environment,
    address: LinearAddress,
    size: u32,
    privilege: Privilege,
) -> Result<(), Exception> {
    let mask = linear_mask(state);
    probe_wrapping(state, environment, mask, address, size, privilege)
}

/// The linear address of `size` bytes at `offset` of a descriptor table or TSS.
///
/// # Errors
/// #GP(0) if it is not canonical in IA-32e mode.
fn system_address(
    state: &CpuState,
    base: u64,
    offset: u64,
    size: usize,
) -> Result<LinearAddress, Exception> {
    let linear = base.wrapping_add(offset) & system_mask(state);
    if state.is_long_mode() {
        require_canonical_range(linear, size as u64, Exception::general_protection(0))?;
    }
    Ok(LinearAddress(linear))
}

/// Reads from a descriptor table or TSS that starts at linear address `base`, at supervisor
/// privilege whatever the CPL is.
///
/// # Errors
///
/// The page fault of the access; #GP(0) for a non-canonical address.
pub fn read_system(
    state: &CpuState,
    environment: &mut dyn Environment,
    base: u64,
    offset: u64,
    data: &mut [u8],
) -> Result<(), Exception> {
    let address = system_address(state, base, offset, data.len())?;
    let mask = system_mask(state);
    let supervisor = Privilege::System;
    read_wrapping(state, environment, mask, address, data, supervisor)
}

/// Writes to a descriptor table or TSS, see [`read_system`].
///
/// # Errors
///
/// Those of [`read_system`]; nothing was written then.
pub fn write_system(
    state: &CpuState,
    environment: &mut dyn Environment,
    base: u64,
    offset: u64,
    data: &[u8],
) -> Result<(), Exception> {
    let address = system_address(state, base, offset, data.len())?;
    let mask = system_mask(state);
    let supervisor = Privilege::System;
    write_wrapping(state, environment, mask, address, data, supervisor)
}

/// Checks that [`write_system`] of `size` bytes would not fault.
///
/// # Errors
///
/// Those of [`write_system`].
pub fn probe_system(
    state: &CpuState,
    environment: &mut dyn Environment,
    base: u64,
    offset: u64,
    size: u32,
) -> Result<(), Exception> {
    let address = system_address(state, base, offset, size as usize)?;
    let mask = system_mask(state);
    let supervisor = Privilege::System;
    probe_wrapping(state, environment, mask, address, size, supervisor)
}

/// Reads memory through a segment register at the current privilege. Sizes 2, 4 and 8 are checked
/// for alignment.
///
/// # Errors
///
/// A segment fault, #AC, or a page fault.
pub fn read_memory(
    state: &CpuState,
    environment: &mut dyn Environment,
    address: SegmentedAddress,
    data: &mut [u8],
) -> Result<(), Exception> {
    let size = data.len() as u32;
    let linear = linear_address(state, address, size, AccessKind::Read)?;
    let privilege = current_privilege(state);
    if matches!(size, 2 | 4 | 8) {
        check_alignment(state, linear, size, privilege)?;
    }
    read_linear(state, environment, linear, data, privilege)
}

/// Writes memory through a segment register at the current privilege. Sizes 2, 4 and 8 are checked
/// for alignment.
///
/// # Errors
///
/// A segment fault, #AC, or a page fault; nothing was written then.
pub fn write_memory(
    state: &CpuState,
    environment: &mut dyn Environment,
    address: SegmentedAddress,
    data: &[u8],
) -> Result<(), Exception> {
    let size = data.len() as u32;
    let linear = linear_address(state, address, size, AccessKind::Write)?;
    let privilege = current_privilege(state);
    if matches!(size, 2 | 4 | 8) {
        check_alignment(state, linear, size, privilege)?;
    }
    write_linear(state, environment, linear, data, privilege)
}

/// Reads a little-endian value of 1, 2, 4 or 8 bytes through a segment register.
///
/// # Errors
///
/// Those of [`read_memory`].
pub fn read_value(
    state: &CpuState,
    environment: &mut dyn Environment,
    address: SegmentedAddress,
    size: u32,
) -> Result<u64, Exception> {
    let mut bytes = [0; 8];
    let used = (size as usize).min(8);
    read_memory(state, environment, address, &mut bytes[..used])?;
    Ok(u64::from_le_bytes(bytes))
}

/// Writes a little-endian value of 1, 2, 4 or 8 bytes through a segment register.
///
/// # Errors
///
/// Those of [`write_memory`].
pub fn write_value(
    state: &CpuState,
    environment: &mut dyn Environment,
    address: SegmentedAddress,
    size: u32,
    value: u64,
) -> Result<(), Exception> {
    let used = (size as usize).min(8);
    write_memory(state, environment, address, &value.to_le_bytes()[..used])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{
        compatibility_mode, long_mode, protected_mode, real_mode, selector,
    };
    use tollgate_x86::{Attributes, Descriptor, Selector};

    fn at(segment: SegmentRegister, offset: u64) -> SegmentedAddress {
        SegmentedAddress { segment, offset }
    }

    const GP: Exception = Exception::general_protection(0);

    #[test]
    fn a_word_at_offset_ffff_faults_in_real_mode() {
        let (state, mut environment) = real_mode();
        let mut word = [0; 2];
        let ds = at(SegmentRegister::Ds, 0xffff);
        assert_eq!(
            read_memory(&state, &mut environment, ds, &mut word),
            Err(GP)
        );
        let ss = at(SegmentRegister::Ss, 0xffff);
        assert_eq!(
            write_memory(&state, &mut environment, ss, &word),
            Err(Exception::stack_fault(0))
        );
        assert!(read_memory(&state, &mut environment, ds, &mut word[..1]).is_ok());
    }

    #[test]
    fn real_mode_writes_through_cs() {
        let (state, mut environment) = real_mode();
        let cs = at(SegmentRegister::Cs, 4);
        assert!(write_memory(&state, &mut environment, cs, &[7]).is_ok());
        assert_eq!(environment.ram[0x1004], 7);
    }

    #[test]
    fn protected_mode_checks_segment_types() {
        let (mut state, _) = protected_mode(0);
        let cs = at(SegmentRegister::Cs, 0);
        assert!(linear_address(&state, cs, 4, AccessKind::Read).is_ok());
        assert_eq!(linear_address(&state, cs, 4, AccessKind::Write), Err(GP));
        let code = state.segment_mut(SegmentRegister::Cs);
        code.attributes &= !Attributes::WRITABLE_OR_READABLE;
        assert_eq!(linear_address(&state, cs, 4, AccessKind::Read), Err(GP));
        *state.segment_mut(SegmentRegister::Es) =
            Descriptor(crate::test_environment::descriptor(0, 0xfff, 0xf0))
                .segment(Selector(selector::READ_ONLY3));
        let es = at(SegmentRegister::Es, 0xffc);
        assert!(linear_address(&state, es, 4, AccessKind::Read).is_ok());
        assert_eq!(linear_address(&state, es, 4, AccessKind::Write), Err(GP));
        assert_eq!(linear_address(&state, es, 5, AccessKind::Read), Err(GP));
    }

    #[test]
    fn linear_addresses_wrap_at_4_gib() {
        let (mut state, mut environment) = protected_mode(0);
        let ds = state.segment_mut(SegmentRegister::Ds);
        ds.base = 0xffff_f000;
        let address = at(SegmentRegister::Ds, 0x3000);
        assert!(write_value(&state, &mut environment, address, 4, 0x1234).is_ok());
        assert_eq!(environment.u32(0x2000), 0x1234);
        // An access across the end of the address space is checked as a whole before anything is
        // written.
        let seam = at(SegmentRegister::Ds, 0xffe);
        assert!(write_value(&state, &mut environment, seam, 4, u64::MAX).is_err());
        assert_eq!(environment.u32(0), 0);
    }

    #[test]
    fn code_of_64_bits_has_no_limits_or_rights_and_only_the_bases_of_fs_and_gs() {
        let (mut state, _) = long_mode(3);
        for register in SegmentRegister::ALL {
            *state.segment_mut(register) = Segment {
                base: 0x1000,
                selector: state.segment(register).selector,
                attributes: state.segment(register).attributes & !Attributes::PRESENT,
                limit: 0,
            };
        }
        state.segment_mut(SegmentRegister::Cs).attributes |= Attributes::PRESENT;
        for (register, base) in [
            (SegmentRegister::Es, 0),
            (SegmentRegister::Cs, 0),
            (SegmentRegister::Ss, 0),
            (SegmentRegister::Ds, 0),
            (SegmentRegister::Fs, 0x1000),
            (SegmentRegister::Gs, 0x1000),
        ] {
            let address = at(register, 0x7fff_0000_0000);
            let linear = linear_address(&state, address, 8, AccessKind::Write);
            assert_eq!(linear, Ok(LinearAddress(0x7fff_0000_0000 + base)));
        }
    }

    #[test]
    fn every_byte_of_an_access_must_be_canonical() {
        let (state, _) = long_mode(3);
        for (offset, size, allowed) in [
            (0x7fff_ffff_fff8, 8, true),
            (0x7fff_ffff_fff9, 8, false),
            (0xffff_7fff_ffff_ffff, 1, false),
            (0xffff_8000_0000_0000, 64, true),
            (0xffff_ffff_ffff_fffc, 8, true),
        ] {
            let ds = at(SegmentRegister::Ds, offset);
            let linear = linear_address(&state, ds, size, AccessKind::Read);
            assert_eq!(linear.is_ok(), allowed, "{offset:#x}");
            let ss = at(SegmentRegister::Ss, offset);
            let linear = linear_address(&state, ss, size, AccessKind::Read);
            let fault = Exception::stack_fault(0);
            assert_eq!(linear.err(), (!allowed).then_some(fault));
        }
    }

    #[test]
    fn compatibility_code_wraps_at_4_gib_whatever_base_an_msr_gave() {
        let (mut state, _) = compatibility_mode(3);
        let fs = state.segment_mut(SegmentRegister::Fs);
        fs.base = 0x7fff_ffff_f000;
        let address = at(SegmentRegister::Fs, 0x1010);
        let linear = linear_address(&state, address, 4, AccessKind::Read);
        assert_eq!(linear, Ok(LinearAddress(0x10)));
    }

    #[test]
    fn tables_are_read_through_64_bits_from_compatibility_code_too() {
        let (state, mut environment) = compatibility_mode(0);
        let mut bytes = [0; 8];
        let base = 0xffff_8000_0000_0000;
        let fault = read_system(&state, &mut environment, base, 8, &mut bytes).unwrap_err();
        assert_eq!(fault.address, Some(LinearAddress(base + 8)));
        let base = 0x7fff_ffff_fff9;
        assert_eq!(
            read_system(&state, &mut environment, base, 0, &mut bytes),
            Err(GP)
        );
    }
}
