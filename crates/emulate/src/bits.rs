//! BT, BTS, BTR and BTC on registers and on memory, where a register offset can select a bit far
//! from the operand (SDM volume 1, 3.1.1.9 "Bit(BitBase, BitOffset)").

use crate::Outcome;
use crate::memory_access::{
    check_alignment, current_privilege, linear_address, probe_linear, read_linear, write_linear,
};
use crate::operand::{
    address_size, memory_address, operand_size, read_operand, read_register, size_mask,
    write_operand,
};
use iced_x86::{Instruction, Mnemonic, OpKind};
use tollgate_platform::Environment;
use tollgate_x86::paging::AccessKind;
use tollgate_x86::{CpuState, Exception, Flags};

/// BT, BTS, BTR and BTC. Only CF changes. Since there is only one processor, LOCK needs no extra
/// work.
///
/// # Errors
///
/// The fault of the memory access; for BTS, BTR and BTC that of a write.
pub fn test_bit(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let size = operand_size(instruction, 0);
    let bits = u64::from(size) * 8;
    let mnemonic = instruction.mnemonic();
    let change = |value: u64, bit: u64| match mnemonic {
        Mnemonic::Bts => value | 1 << bit,
        Mnemonic::Btr => value & !(1 << bit),
        Mnemonic::Btc => value ^ 1 << bit,
        _ => value,
    };
    let set = if instruction.op0_kind() == OpKind::Register {
        let offset = read_operand(state, environment, instruction, 1)? % bits;
        let value = read_operand(state, environment, instruction, 0)?;
        if mnemonic != Mnemonic::Bt {
            write_operand(state, environment, instruction, 0, change(value, offset))?;
        }
        value >> offset & 1 != 0
    } else {
        let mut address = memory_address(state, instruction);
        let offset = if instruction.op1_kind() == OpKind::Register {
            // The bit offset is signed: its upper part selects an operand, its lower part a bit in
            // it.
            let raw = read_register(state, instruction.op1_register());
            let shift = 64 - bits;
            let signed = (raw << shift) as i64 >> shift;
            let operands = signed.div_euclid(bits as i64);
            let moved = operands.wrapping_mul(i64::from(size)) as u64;
            let mask = size_mask(address_size(state, instruction));
            address.offset = address.offset.wrapping_add(moved) & mask;
            raw % bits
        } else {
            u64::from(instruction.immediate8()) % bits
        };
        let kind = if mnemonic == Mnemonic::Bt {
            AccessKind::Read
        } else {
            AccessKind::Write
        };
        let linear = linear_address(state, address, size, kind)?;
        let privilege = current_privilege(state);
        check_alignment(state, linear, size, privilege)?;
        if kind == AccessKind::Write {
            probe_linear(state, environment, linear, size, privilege)?;
        }
        let mut bytes = [0; 8];
        let used = (size as usize).min(8);
        read_linear(state, environment, linear, &mut bytes[..used], privilege)?;
        let value = u64::from_le_bytes(bytes);
        if kind == AccessKind::Write {
            let changed = change(value, offset).to_le_bytes();
            write_linear(state, environment, linear, &changed[..used], privilege)?;
        }
        value >> offset & 1 != 0
    };
    let mut flags = state.flags();
    flags.set(Flags::CF, set);
    state.set_flags(flags);
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{long_mode, protected_mode, real_mode, run};

    #[test]
    fn a_register_offset_reaches_bytes_on_both_sides() {
        let (mut state, mut environment) = protected_mode(0);
        for (offset, byte, bit) in [(0i32, 0x9000, 0), (100, 0x900c, 4), (-1, 0x8fff, 7)] {
            (state.gpr[0], state.gpr[1]) = (0x9000, u64::from(offset as u32));
            // bts [eax], ecx
            run(&mut state, &mut environment, &[0x0f, 0xab, 0x08]).unwrap();
            assert_eq!(environment.ram[byte], 1 << bit);
            assert!(!state.flags().contains(Flags::CF));
            // lock btr [eax], ecx
            run(&mut state, &mut environment, &[0xf0, 0x0f, 0xb3, 0x08]).unwrap();
            assert_eq!(environment.ram[byte], 0);
            assert!(state.flags().contains(Flags::CF));
        }
    }

    #[test]
    fn addresses_wrap_at_the_address_size() {
        let (mut state, mut environment) = real_mode();
        environment.put(0x3000 + 0xfffe, &[0, 0x80]);
        (state.gpr[3], state.gpr[1]) = (0, 0xffff);
        // bt [bx], cx: bit -1
        run(&mut state, &mut environment, &[0x0f, 0xa3, 0x0f]).unwrap();
        assert!(state.flags().contains(Flags::CF));
    }

    #[test]
    fn an_immediate_offset_stays_in_the_operand() {
        let (mut state, mut environment) = protected_mode(0);
        state.gpr[0] = 0x9000;
        // btc dword [eax], 33
        run(&mut state, &mut environment, &[0x0f, 0xba, 0x38, 33]).unwrap();
        assert_eq!(environment.u32(0x9000), 2);
    }

    #[test]
    fn testing_reads_and_changing_needs_a_writable_page() {
        let (mut state, mut environment) = protected_mode(0);
        environment.read_only.push(0x9000..0xa000);
        (state.gpr[0], state.gpr[1]) = (0x9000, 3);
        assert!(run(&mut state, &mut environment, &[0x0f, 0xa3, 0x08]).is_ok());
        let fault = run(&mut state, &mut environment, &[0x0f, 0xbb, 0x08]).unwrap_err();
        assert_eq!(fault.error_code, 3);
    }

    #[test]
    fn registers_take_the_offset_modulo_their_size_and_keep_other_flags() {
        let (mut state, mut environment) = protected_mode(0);
        (state.gpr[0], state.gpr[1]) = (0, 37);
        state.flags |= (Flags::ZF | Flags::OF | Flags::CF).bits();
        // bts eax, ecx
        run(&mut state, &mut environment, &[0x0f, 0xab, 0xc8]).unwrap();
        assert_eq!(state.gpr[0], 32);
        assert_eq!(state.flags(), Flags::ZF | Flags::OF);
    }

    #[test]
    fn a_64_bit_offset_reaches_farther_than_4_gib() {
        let (mut state, mut environment) = long_mode(3);
        // Selects bit 3 of the byte at 9000h, from a base far above it.
        state.gpr[0] = 0x6000_0000_9000;
        state.gpr[9] = 0u64.wrapping_sub(0x6000_0000_0000 * 8 - 3);
        // bts [rax], r9
        run(&mut state, &mut environment, &[0x4c, 0x0f, 0xab, 0x08]).unwrap();
        assert_eq!(environment.ram[0x9000], 8);
        assert!(!state.flags().contains(Flags::CF));
    }
}
