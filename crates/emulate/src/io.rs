//! IN, OUT, INS, OUTS and the permission to use ports (SDM volume 1, chapter 19).

use crate::Outcome;
use crate::memory_access::{
    SegmentedAddress, check_alignment, current_privilege, linear_address, probe_linear,
    read_memory, read_system, write_linear,
};
use crate::operand::{read_register, size_mask, write_register};
use crate::string_pointers::Pointers;
use iced_x86::{Instruction, OpKind, Register};
use tollgate_platform::Environment;
use tollgate_x86::descriptor::{TSS_IO_MAP_BASE, system_type};
use tollgate_x86::paging::AccessKind;
use tollgate_x86::{CpuState, Exception, Gpr, SegmentRegister};

/// Checks that the running program may use `size` ports from `port` on (SDM volume 1, 19.5.2): by
/// IOPL, or else by the TSS's bitmap; in V86 mode always by the bitmap.
///
/// # Errors
///
/// #GP(0), or a page fault of the TSS.
pub fn check_permission(
    state: &CpuState,
    environment: &mut dyn Environment,
    port: u16,
    size: u32,
) -> Result<(), Exception> {
    let by_level = !state.is_virtual_8086() && state.cpl() <= state.flags().iopl();
    if !state.is_protected() || by_level {
        return Ok(());
    }
    let refused = Exception::general_protection(0);
    let task = &state.tr;
    let kind = task.attributes.kind();
    let limit = u64::from(task.limit);
    if !task.is_usable()
        || !matches!(kind, system_type::TSS32_AVAILABLE | system_type::TSS32_BUSY)
        || limit < TSS_IO_MAP_BASE + 1
    {
        return Err(refused);
    }
    let mut read_u16 = |offset: u64| {
        let mut word = [0; 2];
        read_system(state, environment, task.base, offset, &mut word)?;
        Ok::<u16, Exception>(u16::from_le_bytes(word))
    };
    let bitmap = u64::from(read_u16(TSS_IO_MAP_BASE)?);
    let byte = bitmap + u64::from(port / 8);
    // Two bytes are always read, so that they contain all ports of one access.
    if byte + 1 > limit {
        return Err(refused);
    }
    let bits = u32::from(read_u16(byte)?) >> (port % 8);
    if bits & ((1 << size) - 1) == 0 {
        Ok(())
    } else {
        Err(refused)
    }
}

/// The port that an operand names: an immediate byte or DX.
fn port_of(state: &CpuState, instruction: &Instruction, operand: u32) -> u16 {
    if instruction.op_kind(operand) == OpKind::Register {
        read_register(state, Register::DX) as u16
    } else {
        u16::from(instruction.immediate8())
    }
}

/// IN AL/AX/EAX, imm8 or DX.
///
/// # Errors
///
/// Those of [`check_permission`].
pub fn input(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let register = instruction.op0_register();
    let size = register.size() as u32;
    let port = port_of(state, instruction, 1);
    check_permission(state, environment, port, size)?;
    let value = environment.port_read(state, port, size as u8);
    write_register(state, register, u64::from(value) & size_mask(size));
    Ok(Outcome::Next)
}

/// OUT imm8 or DX, AL/AX/EAX.
///
/// # Errors
///
/// Those of [`check_permission`].
pub fn output(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let register = instruction.op1_register();
    let size = register.size() as u32;
    let port = port_of(state, instruction, 0);
    check_permission(state, environment, port, size)?;
    let value = read_register(state, register) as u32;
    environment.port_write(state, port, size as u8, value);
    Ok(Outcome::Next)
}

/// INS and REP INS. The destination is checked before the port is read, because reading a port may
/// change the state of its device.
///
/// # Errors
///
/// Those of [`check_permission`] and of the write; a repeated instruction keeps its progress.
pub fn input_string(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let mut pointers = Pointers::of(state, instruction);
    let size = pointers.element_size();
    let port = read_register(state, Register::DX) as u16;
    check_permission(state, environment, port, size)?;
    while pointers.remaining(state) != 0 {
        let address = SegmentedAddress {
            segment: SegmentRegister::Es,
            offset: pointers.offset(state, Gpr::Rdi),
        };
        let linear = linear_address(state, address, size, AccessKind::Write)?;
        let privilege = current_privilege(state);
        check_alignment(state, linear, size, privilege)?;
        probe_linear(state, environment, linear, size, privilege)?;
        let value = environment.port_read(state, port, size as u8);
        let bytes = value.to_le_bytes();
        let used = (size as usize).min(bytes.len());
        write_linear(state, environment, linear, &bytes[..used], privilege)?;
        pointers.advance(state, Gpr::Rdi, 1);
        pointers.count(state, 1);
        if pointers.pauses(state, environment) {
            return Ok(Outcome::Repeat);
        }
    }
    Ok(Outcome::Next)
}

/// OUTS and REP OUTS.
///
/// # Errors
///
/// Those of [`check_permission`] and of the read; a repeated instruction keeps its progress.
pub fn output_string(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let mut pointers = Pointers::of(state, instruction);
    let size = pointers.element_size();
    let port = read_register(state, Register::DX) as u16;
    check_permission(state, environment, port, size)?;
    while pointers.remaining(state) != 0 {
        let address = SegmentedAddress {
            segment: pointers.source_segment(),
            offset: pointers.offset(state, Gpr::Rsi),
        };
        let mut bytes = [0; 4];
        let used = (size as usize).min(bytes.len());
        read_memory(state, environment, address, &mut bytes[..used])?;
        let value = u32::from_le_bytes(bytes);
        environment.port_write(state, port, size as u8, value);
        pointers.advance(state, Gpr::Rsi, 1);
        pointers.count(state, 1);
        if pointers.pauses(state, environment) {
            return Ok(Outcome::Repeat);
        }
    }
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_environment::{
        TSS, TestEnvironment, protected_mode, real_mode, run, virtual_8086_mode,
    };
    use tollgate_x86::{Flags, LinearAddress};

    const GP: Exception = Exception::general_protection(0);
    const IN_AL_DX: [u8; 1] = [0xec];
    const IN_EAX_DX: [u8; 1] = [0xed];

    /// Gives the TSS a bitmap at 80h that refuses all ports, up to port 7FFh.
    fn give_bitmap(state: &mut CpuState, environment: &mut TestEnvironment) {
        environment.put_u16(TSS + 0x66, 0x80);
        environment.put(TSS + 0x80, &[0xff; 0x101]);
        state.tr.limit = 0x180;
    }

    #[test]
    fn in_and_out_move_the_operand_size() {
        let (mut state, mut environment) = real_mode();
        environment.platform.port_value = 0x8765_4321;
        state.gpr[0] = 0xaabb_ccdd;
        run(&mut state, &mut environment, &[0xe4, 0x60]).unwrap();
        assert_eq!(state.gpr[0], 0xaabb_cc21);
        state.gpr[2] = 0x3f8;
        run(&mut state, &mut environment, &IN_EAX_DX).unwrap();
        assert_eq!(state.gpr[0], 0xaabb_4321);
        run(&mut state, &mut environment, &[0x66, 0xed]).unwrap();
        assert_eq!(state.gpr[0], 0x8765_4321);
        run(&mut state, &mut environment, &[0xe6, 0x80]).unwrap();
        run(&mut state, &mut environment, &[0xef]).unwrap();
        assert_eq!(
            environment.platform.port_reads,
            [(0x60, 1), (0x3f8, 2), (0x3f8, 4)]
        );
        assert_eq!(
            environment.platform.port_writes,
            [(0x80, 1, 0x21), (0x3f8, 2, 0x4321)]
        );
    }

    #[test]
    fn iopl_or_every_bit_of_the_bitmap_permits() {
        let (mut state, mut environment) = protected_mode(3);
        state.gpr[2] = 0x3fe;
        assert_eq!(run(&mut state, &mut environment, &IN_AL_DX), Err(GP));
        state.flags |= Flags::IOPL.bits();
        assert!(run(&mut state, &mut environment, &IN_AL_DX).is_ok());
        state.flags &= !Flags::IOPL.bits();
        give_bitmap(&mut state, &mut environment);
        assert_eq!(run(&mut state, &mut environment, &IN_AL_DX), Err(GP));
        // Ports 3FEh to 401h lie in two bytes of the bitmap.
        environment.ram[TSS + 0x80 + 0x7f] = 0x3f;
        assert!(run(&mut state, &mut environment, &IN_AL_DX).is_ok());
        assert_eq!(run(&mut state, &mut environment, &IN_EAX_DX), Err(GP));
        environment.ram[TSS + 0x80 + 0x80] = 0xfc;
        assert!(run(&mut state, &mut environment, &IN_EAX_DX).is_ok());
    }

    #[test]
    fn ports_beyond_the_tss_limit_are_refused() {
        let (mut state, mut environment) = protected_mode(3);
        give_bitmap(&mut state, &mut environment);
        environment.ram[TSS + 0x80..TSS + 0x181].fill(0);
        state.gpr[2] = 0x7ff;
        assert!(run(&mut state, &mut environment, &IN_AL_DX).is_ok());
        state.tr.limit = 0x17f;
        assert_eq!(run(&mut state, &mut environment, &IN_AL_DX), Err(GP));
        state.tr.limit = 0x66;
        assert_eq!(run(&mut state, &mut environment, &IN_AL_DX), Err(GP));
        // A 16-bit TSS has no bitmap.
        state.tr.limit = 0x180;
        state.tr.attributes = tollgate_x86::Attributes::from_bits_retain(0x83);
        assert_eq!(run(&mut state, &mut environment, &IN_AL_DX), Err(GP));
    }

    #[test]
    fn v86_mode_uses_the_bitmap_even_with_iopl_3() {
        let (mut state, mut environment) = virtual_8086_mode(3);
        environment.put_u16(TSS + 0x66, 0x68);
        state.gpr[2] = 0x10;
        assert_eq!(run(&mut state, &mut environment, &IN_AL_DX), Err(GP));
        give_bitmap(&mut state, &mut environment);
        environment.ram[TSS + 0x82] = 0xfe;
        assert!(run(&mut state, &mut environment, &IN_AL_DX).is_ok());
    }

    #[test]
    fn rep_ins_reads_no_port_for_an_element_that_cannot_be_stored() {
        let (mut state, mut environment) = protected_mode(0);
        environment.platform.port_value = 0x1234_5678;
        environment.read_only.push(0x7000..0x8000);
        (state.gpr[1], state.gpr[7]) = (5, 0x6ff8);
        let fault = run(&mut state, &mut environment, &[0xf3, 0x6d]).unwrap_err();
        assert_eq!(fault.address, Some(LinearAddress(0x7000)));
        assert_eq!((state.gpr[1], state.gpr[7]), (3, 0x7000));
        assert_eq!(environment.platform.port_reads.len(), 2);
        assert_eq!(environment.u64(0x6ff8), 0x1234_5678_1234_5678);
    }

    #[test]
    fn rep_outs_stops_for_an_interrupt_and_resumes() {
        let (mut state, mut environment) = real_mode();
        environment.put(0x3000 + 0x10, b"abc");
        (state.gpr[1], state.gpr[2], state.gpr[6]) = (3, 0xe9, 0x10);
        environment.interrupted = true;
        for _ in 0..2 {
            assert_eq!(
                run(&mut state, &mut environment, &[0xf3, 0x6e]),
                Ok(Outcome::Repeat)
            );
            assert_eq!(state.rip, 0);
        }
        assert_eq!(
            run(&mut state, &mut environment, &[0xf3, 0x6e]),
            Ok(Outcome::Next)
        );
        assert_eq!(state.rip, 2);
        let written: Vec<u8> = environment
            .platform
            .port_writes
            .iter()
            .map(|write| write.2 as u8)
            .collect();
        assert_eq!(written, b"abc");
    }

    #[test]
    fn single_ins_does_not_touch_cx() {
        let (mut state, mut environment) = real_mode();
        environment.platform.port_value = 0x5a;
        (state.gpr[1], state.gpr[7]) = (0, 0x20);
        state.flags |= Flags::DF.bits();
        run(&mut state, &mut environment, &[0x6c]).unwrap();
        assert_eq!((state.gpr[1], state.gpr[7]), (0, 0x1f));
        assert_eq!(environment.ram[0x3020], 0x5a);
    }
}
