//! Operands: registers of every size, effective addresses, immediates.
//!
//! The functions of [`crate::memory_access`] are re-exported here, so that the code of an
//! instruction finds everything about its operands in one place.

use iced_x86::{Instruction, OpKind, Register};
use tollgate_platform::Environment;
use tollgate_x86::{Attributes, CpuState, Exception, SegmentRegister};

pub use crate::memory_access::{
    SegmentedAddress, check_alignment, current_privilege, is_inside, linear_address, linear_mask,
    probe_linear, read_linear, read_memory, read_system, read_value, system_mask, write_linear,
    write_memory, write_system, write_value,
};

/// Fails with #GP(0) unless the CPL is 0 (real mode counts as 0, V86 mode as 3).
///
/// # Errors
///
/// #GP(0) at another CPL.
pub fn require_cpl0(state: &CpuState) -> Result<(), Exception> {
    if state.cpl() == 0 {
        Ok(())
    } else {
        Err(Exception::general_protection(0))
    }
}

/// Fails with #UD in real mode and V86 mode.
///
/// # Errors
///
/// #UD in these modes.
pub fn require_protected_mode(state: &CpuState) -> Result<(), Exception> {
    if state.has_real_mode_segments() {
        Err(Exception::invalid_opcode())
    } else {
        Ok(())
    }
}

/// Fails with #UD outside 64-bit mode.
///
/// # Errors
///
/// #UD in other modes.
pub fn require_64_bit_mode(state: &CpuState) -> Result<(), Exception> {
    if state.is_64_bit() {
        Ok(())
    } else {
        Err(Exception::invalid_opcode())
    }
}

/// The offset of the next instruction: RIP or EIP. Only a branch with 16-bit operands truncates it
/// to IP; code that runs past FFFFh in a 64 KiB segment exceeds the segment's limit.
pub fn next_rip(state: &CpuState, instruction: &Instruction) -> u64 {
    let next = instruction.ip().wrapping_add(instruction.len() as u64);
    next & linear_mask(state)
}

/// A mask of the low `size` (1, 2, 4 or 8) bytes.
pub const fn size_mask(size: u32) -> u64 {
    match size {
        1 => 0xff,
        2 => 0xffff,
        4 => 0xffff_ffff,
        _ => u64::MAX,
    }
}

/// The segment register that iced's `register` stands for.
pub const fn segment_register(register: Register) -> Option<SegmentRegister> {
    Some(match register {
        Register::ES => SegmentRegister::Es,
        Register::CS => SegmentRegister::Cs,
        Register::SS => SegmentRegister::Ss,
        Register::DS => SegmentRegister::Ds,
        Register::FS => SegmentRegister::Fs,
        Register::GS => SegmentRegister::Gs,
        _ => return None,
    })
}

/// Whether this is AH, CH, DH or BH.
fn is_high_byte(register: Register) -> bool {
    matches!(
        register,
        Register::AH | Register::CH | Register::DH | Register::BH
    )
}

/// Reads a general register of any size, zero-extended, or the selector of a segment register. Any
/// other register reads as zero.
pub fn read_register(state: &CpuState, register: Register) -> u64 {
    if let Some(segment) = segment_register(register) {
        return u64::from(state.segment(segment).selector.0);
    }
    let full = register.full_register();
    if !full.is_gpr64() {
        return 0;
    }
    let value = state.gpr[full.number() & 15];
    if is_high_byte(register) {
        (value >> 8) & 0xff
    } else {
        value & size_mask(register.size() as u32)
    }
}

/// Writes a general register. 8- and 16-bit writes keep the other bits, 32-bit writes
/// clear the upper half. Other registers are ignored.
pub fn write_register(state: &mut CpuState, register: Register, value: u64) {
    let full = register.full_register();
    if !full.is_gpr64() {
        return;
    }
    let place = &mut state.gpr[full.number() & 15];
    *place = if is_high_byte(register) {
        (*place & !0xff00) | ((value & 0xff) << 8)
    } else {
        match register.size() {
            1 => (*place & !0xff) | (value & 0xff),
            2 => (*place & !0xffff) | (value & 0xffff),
            4 => value & 0xffff_ffff,
            _ => value,
        }
    };
}

/// The address size in bytes of the instruction's memory operand: 2, 4 or 8. Without a memory
/// operand, that of the current code.
pub fn address_size(state: &CpuState, instruction: &Instruction) -> u32 {
    for kind in instruction.op_kinds() {
        match kind {
            OpKind::Memory => {
                let base = instruction.memory_base();
                if base != Register::None && !base.is_ip() {
                    return base.size() as u32;
                }
                let index = instruction.memory_index();
                if index.is_gpr() {
                    return index.size() as u32;
                }
                return match instruction.memory_displ_size() {
                    2 => 2,
                    8 => 8,
                    _ => 4,
                };
            }
            OpKind::MemorySegSI
            | OpKind::MemorySegDI
            | OpKind::MemoryESDI
            | OpKind::MemorySegESI
            | OpKind::MemorySegEDI
            | OpKind::MemoryESEDI
            | OpKind::MemorySegRSI
            | OpKind::MemorySegRDI
            | OpKind::MemoryESRDI => {
                return match kind {
                    OpKind::MemorySegSI | OpKind::MemorySegDI | OpKind::MemoryESDI => 2,
                    OpKind::MemorySegESI | OpKind::MemorySegEDI | OpKind::MemoryESEDI => 4,
                    _ => 8,
                };
            }
            _ => {}
        }
    }
    if state.is_64_bit() {
        8
    } else if state.cs().is_big() {
        4
    } else {
        2
    }
}

/// The segment register of the instruction's memory operand. In 64-bit code, prefixes for ES, CS,
/// SS or DS are ignored; SS only matters in that addresses formed with RSP or RBP raise #SS.
pub fn memory_segment(state: &CpuState, instruction: &Instruction) -> SegmentRegister {
    let named = segment_register(instruction.memory_segment()).unwrap_or(SegmentRegister::Ds);
    if !state.is_64_bit() || matches!(named, SegmentRegister::Fs | SegmentRegister::Gs) {
        return named;
    }
    match instruction.memory_base() {
        Register::RSP | Register::RBP | Register::ESP | Register::EBP => SegmentRegister::Ss,
        _ => SegmentRegister::Ds,
    }
}

/// The instruction's `Memory` operand: segment and effective address, truncated to the address
/// size. Vector indexes (gathers) count as zero.
pub fn memory_address(state: &CpuState, instruction: &Instruction) -> SegmentedAddress {
    let base = instruction.memory_base();
    let index = instruction.memory_index();
    let mut offset = instruction.memory_displacement64();
    // iced has already added RIP to RIP-relative displacements.
    if base != Register::None && !base.is_ip() {
        offset = offset.wrapping_add(read_register(state, base));
    }
    if index.is_gpr() {
        let scale = u64::from(instruction.memory_index_scale());
        offset = offset.wrapping_add(read_register(state, index).wrapping_mul(scale));
    }
    SegmentedAddress {
        segment: memory_segment(state, instruction),
        offset: offset & size_mask(address_size(state, instruction)),
    }
}

/// The second of two adjacent operands in memory, `size` bytes after the first: the selector of a
/// far pointer, or the upper of two bounds. Its address wraps as the instruction's addresses do;
/// the bytes within one operand do not wrap.
pub fn behind_first(
    state: &CpuState,
    instruction: &Instruction,
    first: SegmentedAddress,
    size: u32,
) -> SegmentedAddress {
    SegmentedAddress {
        offset: first.offset.wrapping_add(u64::from(size))
            & size_mask(address_size(state, instruction)),
        ..first
    }
}

/// The size of an operand in bytes: of its register, its memory access or its immediate.
pub fn operand_size(instruction: &Instruction, operand: u32) -> u32 {
    match instruction.op_kind(operand) {
        OpKind::Register => instruction.op_register(operand).size() as u32,
        OpKind::Immediate8 => 1,
        OpKind::Immediate16 | OpKind::Immediate8to16 => 2,
        OpKind::Immediate32 | OpKind::Immediate8to32 => 4,
        OpKind::Immediate64 | OpKind::Immediate8to64 | OpKind::Immediate32to64 => 8,
        _ => instruction.memory_size().size() as u32,
    }
}

/// Reads a register, memory or immediate operand of up to 8 bytes, zero-extended from its own size
/// (sign-extended immediates are sign-extended to their operand size).
///
/// # Errors
///
/// Those of [`read_memory`], for memory operands.
pub fn read_operand(
    state: &CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
    operand: u32,
) -> Result<u64, Exception> {
    let size = operand_size(instruction, operand);
    match instruction.op_kind(operand) {
        OpKind::Register => Ok(read_register(state, instruction.op_register(operand))),
        OpKind::Memory => {
            let address = memory_address(state, instruction);
            read_value(state, environment, address, size)
        }
        _ => Ok(instruction
            .try_immediate(operand)
            .map_or(0, |value| value & size_mask(size))),
    }
}

/// Writes a register or memory operand.
///
/// # Errors
///
/// Those of [`write_memory`], for memory operands.
pub fn write_operand(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
    operand: u32,
    value: u64,
) -> Result<(), Exception> {
    if instruction.op_kind(operand) == OpKind::Register {
        write_register(state, instruction.op_register(operand), value);
        Ok(())
    } else {
        let size = operand_size(instruction, operand);
        let address = memory_address(state, instruction);
        write_value(state, environment, address, size, value)
    }
}

/// Attributes of the flat segments that SYSENTER, SYSCALL and their returns load.
pub const fn flat_attributes(is_code: bool, dpl: u8) -> Attributes {
    let kind = if is_code { 0xc09b } else { 0xc093 };
    Attributes::from_bits_retain(kind | ((dpl as u16 & 3) << 5))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{decode, long_mode, protected_mode, real_mode};
    use tollgate_x86::Gpr;

    #[test]
    fn high_byte_registers_are_bits_8_to_15() {
        let (mut state, _) = real_mode();
        state.gpr[Gpr::Rbx as usize] = 0x1122_3344;
        assert_eq!(read_register(&state, Register::BH), 0x33);
        write_register(&mut state, Register::BH, 0x1ff);
        assert_eq!(state.register(Gpr::Rbx), 0x1122_ff44);
        write_register(&mut state, Register::BL, 0);
        write_register(&mut state, Register::BX, 0xabcd);
        assert_eq!(state.register(Gpr::Rbx), 0x1122_abcd);
    }

    #[test]
    fn effective_addresses_wrap_at_the_address_size() {
        let (mut state, _) = real_mode();
        state.gpr[Gpr::Rbx as usize] = 0x1_fff0;
        state.gpr[Gpr::Rsi as usize] = 0x20;
        // MOV AX, [BX+SI+4]
        let instruction = decode(&state, &[0x8b, 0x40, 4]);
        let address = memory_address(&state, &instruction);
        assert_eq!(
            (address.segment, address.offset),
            (SegmentRegister::Ds, 0x14)
        );
        let (mut state, _) = protected_mode(0);
        state.gpr[Gpr::Rbp as usize] = 0xffff_fff0;
        state.gpr[Gpr::Rsi as usize] = 8;
        // MOV EAX, [EBP+ESI*4-4]
        let instruction = decode(&state, &[0x8b, 0x44, 0xb5, 0xfc]);
        let address = memory_address(&state, &instruction);
        assert_eq!(
            (address.segment, address.offset),
            (SegmentRegister::Ss, 0xc)
        );
    }

    #[test]
    fn an_address_of_a_displacement_alone_has_the_size_of_its_displacement() {
        let (state, _) = protected_mode(0);
        // MOV EAX, moffs32 and, with 67h, moffs16.
        let wide = decode(&state, &[0xa1, 0xf0, 0xff, 0xff, 0xff]);
        assert_eq!(memory_address(&state, &wide).offset, 0xffff_fff0);
        let narrow = decode(&state, &[0x67, 0xa1, 0xf0, 0xff]);
        assert_eq!(memory_address(&state, &narrow).offset, 0xfff0);
        assert_eq!(address_size(&state, &narrow), 2);
    }

    #[test]
    fn segment_overrides_are_respected() {
        let (state, _) = protected_mode(0);
        let instruction = decode(&state, &[0x64, 0xa1, 0, 0, 0, 0]);
        assert_eq!(
            memory_address(&state, &instruction).segment,
            SegmentRegister::Fs
        );
    }

    #[test]
    fn the_next_instruction_of_16_bit_code_may_lie_beyond_64_kib() {
        let (mut state, _) = real_mode();
        state.rip = 0xffff;
        let instruction = decode(&state, &[0x90]);
        assert_eq!(next_rip(&state, &instruction), 0x1_0000);
    }

    #[test]
    fn addresses_of_64_bit_code_use_sixteen_registers_or_rip() {
        let (mut state, _) = long_mode(0);
        state.rip = 0xffff_ffff_8000_0000;
        state.gpr[Gpr::R12 as usize] = 0xffff_8000_0000_1000;
        state.gpr[Gpr::R9 as usize] = 0x10;
        // mov rax, [r12+r9*8-4]
        let scaled = decode(&state, &[0x4b, 0x8b, 0x44, 0xcc, 0xfc]);
        assert_eq!(
            memory_address(&state, &scaled).offset,
            0xffff_8000_0000_107c
        );
        // mov rax, [rip-10h] and, with 67h, [eip-10h]
        let relative = decode(&state, &[0x48, 0x8b, 0x05, 0xf0, 0xff, 0xff, 0xff]);
        assert_eq!(
            memory_address(&state, &relative).offset,
            0xffff_ffff_7fff_fff7
        );
        let narrow = decode(&state, &[0x67, 0x48, 0x8b, 0x05, 0xf0, 0xff, 0xff, 0xff]);
        assert_eq!(memory_address(&state, &narrow).offset, 0x7fff_fff8);
        // mov rax, [-10h] is sign-extended, mov rax, moffs64 has all 64 bits.
        let absolute = decode(&state, &[0x48, 0x8b, 0x04, 0x25, 0xf0, 0xff, 0xff, 0xff]);
        assert_eq!(
            memory_address(&state, &absolute).offset,
            0u64.wrapping_sub(16)
        );
        let whole = decode(&state, &[0x48, 0xa1, 8, 7, 6, 5, 4, 3, 2, 1]);
        assert_eq!(memory_address(&state, &whole).offset, 0x0102_0304_0506_0708);
    }

    #[test]
    fn with_67h_addresses_of_64_bit_code_have_32_bits() {
        let (mut state, _) = long_mode(0);
        state.gpr[Gpr::Rbx as usize] = 0xffff_ffff_ffff_fff0;
        // mov eax, [ebx+20h]
        let instruction = decode(&state, &[0x67, 0x8b, 0x43, 0x20]);
        assert_eq!(memory_address(&state, &instruction).offset, 0x10);
    }

    #[test]
    fn prefixes_of_flat_segments_are_ignored_by_64_bit_code() {
        let (state, _) = long_mode(0);
        for (code, segment) in [
            // mov rax, ss:[rax]; mov rax, ds:[rbp]; mov rax, [rsp]; mov rax, fs:[rsp]
            (&[0x36, 0x48, 0x8b, 0x00][..], SegmentRegister::Ds),
            (&[0x3e, 0x48, 0x8b, 0x45, 0], SegmentRegister::Ss),
            (&[0x48, 0x8b, 0x04, 0x24], SegmentRegister::Ss),
            (&[0x64, 0x48, 0x8b, 0x04, 0x24], SegmentRegister::Fs),
        ] {
            let instruction = decode(&state, code);
            assert_eq!(memory_address(&state, &instruction).segment, segment);
        }
    }
}
