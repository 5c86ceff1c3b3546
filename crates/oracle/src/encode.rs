//! Random encodings of one instruction, and random bytes.

use crate::layout::{CODE_END, CODE_START, WINDOW, World};
use iced_x86::{
    Code, ConstantOffsets, Decoder, EncodingKind, Instruction, MandatoryPrefix, Mnemonic,
    OpCodeTableKind, OpKind, Register,
};
use tollgate_emulate::cpuid::{Vendor, policy_of};
use tollgate_engine::decode::intel_amd_differences::Decoding;
use tollgate_test_support::Random;
use tollgate_x86::CpuModel;

/// The bytes of one instruction, and what they mean.
#[derive(Clone, Debug)]
pub struct Encoded {
    /// The encoded instruction.
    pub bytes: Vec<u8>,
    /// The instruction, decoded at its address.
    pub instruction: Instruction,
    /// The places of its constants.
    pub constants: ConstantOffsets,
}

/// How the host's processor decodes instructions; a guest's processor is of the same maker.
pub fn host_decoding() -> Decoding {
    match policy_of(CpuModel::Host).vendor() {
        Vendor::Amd => Decoding::Amd,
        Vendor::Intel | Vendor::Other => Decoding::Intel,
    }
}

/// The instruction pointer for an offset in the window.
pub fn rip_of(world: World, at: u16) -> u64 {
    match world {
        World::Flat32 | World::Long64 | World::High64 => world.window() + u64::from(at),
        _ => u64::from(at),
    }
}

/// Decodes the first instruction in `bytes`; the rest is ignored.
pub fn decode(world: World, at: u16, bytes: &[u8]) -> Option<Encoded> {
    let ip = rip_of(world, at);
    let decoding = host_decoding();
    let mut decoder = Decoder::with_ip(world.bitness(), bytes, ip, decoding.options());
    let mut instruction = decoder.decode();
    decoding.refine(&mut instruction, bytes);
    if instruction.is_invalid() {
        return None;
    }
    Some(Encoded {
        bytes: bytes[..instruction.len()].to_vec(),
        constants: decoder.get_constant_offsets(&instruction),
        instruction,
    })
}

/// Whether the instruction exists in this world's code at all.
pub fn exists(code: Code, world: World) -> bool {
    let op = code.op_code();
    // 0F 0D is a prefetch on AMD's processors; with a register operand it raises #UD.
    let is_prefetch_on_amd = matches!(
        code,
        Code::Reservednop_rm16_r16_0F0D
            | Code::Reservednop_rm32_r32_0F0D
            | Code::Reservednop_rm64_r64_0F0D
    );
    if is_prefetch_on_amd && host_decoding() == Decoding::Amd {
        return false;
    }
    let is_amd = host_decoding() == Decoding::Amd;
    let mode = match world.bitness() {
        16 => op.mode16() && (!is_amd || op.amd_decoder16()),
        64 if is_amd => op.mode64() && op.amd_decoder64(),
        64 => op.mode64() && op.intel_decoder64(),
        _ => op.mode32() && (!is_amd || op.amd_decoder32()),
    };
    mode && op.is_instruction() && !op.fwait()
}

fn opcode_prefix(bytes: &mut Vec<u8>, table: OpCodeTableKind) {
    match table {
        OpCodeTableKind::T0F => bytes.push(0x0f),
        OpCodeTableKind::T0F38 => bytes.extend([0x0f, 0x38]),
        OpCodeTableKind::T0F3A => bytes.extend([0x0f, 0x3a]),
        _ => {}
    }
}

fn table_number(table: OpCodeTableKind) -> u8 {
    match table {
        OpCodeTableKind::T0F => 1,
        OpCodeTableKind::T0F38 => 2,
        OpCodeTableKind::T0F3A => 3,
        OpCodeTableKind::MAP5 => 5,
        OpCodeTableKind::MAP6 => 6,
        OpCodeTableKind::MAP8 => 8,
        OpCodeTableKind::MAP9 => 9,
        OpCodeTableKind::MAP10 => 10,
        _ => 0,
    }
}

/// Bytes that may encode this instruction.
fn attempt(code: Code, world: World, random: &mut Random) -> Vec<u8> {
    let op = code.op_code();
    let mut bytes = Vec::with_capacity(32);
    if random.one_in(5) {
        bytes.push(random.pick(&[0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65]));
    }
    let bitness = world.bitness();
    let other_address = match op.address_size() {
        0 => random.one_in(5),
        size => size != bitness,
    };
    if other_address {
        bytes.push(0x67);
    }
    let mandatory = match op.mandatory_prefix() {
        MandatoryPrefix::P66 => 1,
        MandatoryPrefix::PF3 => 2,
        MandatoryPrefix::PF2 => 3,
        _ => 0u8,
    };
    let opcode = op.op_code();
    // The bits REX.R, X and B.
    let extension = if bitness == 64 && random.one_in(2) {
        random.byte() & 7
    } else {
        0
    };
    match op.encoding() {
        EncodingKind::VEX | EncodingKind::XOP | EncodingKind::EVEX => {
            let w = match op.w() {
                0 if op.is_wig() || op.is_wig32() => random.byte() & 1,
                w => w as u8,
            };
            let l = if op.is_lig() {
                random.byte() & 1
            } else {
                op.l() as u8
            };
            let v = if random.one_in(2) {
                15
            } else {
                random.byte() & 15
            };
            let map = table_number(op.table());
            match op.encoding() {
                EncodingKind::EVEX => {
                    // Broadcast or rounding, and the mask.
                    let mut low = random.byte() & 0x17;
                    // The zeroing bit.
                    if random.one_in(3) {
                        low |= 0x80;
                    }
                    // The fifth bits of registers, both inverted.
                    let (mut high_register, mut high_source) = (0, 8);
                    if bitness == 64 && random.one_in(3) {
                        high_register = 0x10;
                    }
                    if bitness == 64 && random.one_in(3) {
                        high_source = 0;
                    }
                    bytes.extend([
                        0x62,
                        (0xf0 ^ extension << 5 ^ high_register) | map,
                        w << 7 | v << 3 | 4 | mandatory,
                        l << 5 | high_source | low,
                    ]);
                }
                EncodingKind::XOP => {
                    bytes.extend([
                        0x8f,
                        0xe0 ^ extension << 5 | map,
                        w << 7 | v << 3 | l << 2 | mandatory,
                    ]);
                }
                _ if map == 1 && w == 0 && random.one_in(2) => {
                    bytes.extend([
                        0xc5,
                        0x80 ^ extension << 5 & 0x80 | v << 3 | l << 2 | mandatory,
                    ]);
                }
                _ => bytes.extend([
                    0xc4,
                    0xe0 ^ extension << 5 | map,
                    w << 7 | v << 3 | l << 2 | mandatory,
                ]),
            }
        }
        _ => {
            let other_operand = match op.operand_size() {
                0 => mandatory == 0 && random.one_in(12),
                size => size != bitness.min(32) && size != 64,
            };
            if other_operand {
                bytes.push(0x66);
            }
            if random.one_in(if op.can_use_lock_prefix() { 4 } else { 100 }) {
                bytes.push(0xf0);
            }
            if op.can_use_rep_prefix() && random.one_in(2) {
                bytes.push(0xf3);
            } else if op.can_use_repne_prefix() && random.one_in(2) {
                bytes.push(0xf2);
            }
            match mandatory {
                1 => bytes.push(0x66),
                2 => bytes.push(0xf3),
                3 => bytes.push(0xf2),
                _ if random.one_in(60) => bytes.push(random.pick(&[0xf2, 0xf3])),
                _ => {}
            }
            if op.encoding() == EncodingKind::D3NOW {
                bytes.push(0x0f);
            }
            if bitness == 64 {
                let wide = (op.operand_size() == 64 && !op.default_op_size64()) || op.w() == 1;
                let w = random.one_in(16) != wide;
                if w || extension != 0 || random.one_in(4) {
                    bytes.push(0x40 | u8::from(w) << 3 | extension);
                }
            }
            opcode_prefix(&mut bytes, op.table());
        }
    }
    if op.encoding() == EncodingKind::D3NOW {
        bytes.push(0xc0 | random.byte() & 0x3f);
        bytes.push(opcode as u8);
        return bytes;
    }
    let in_opcode = if random.one_in(2) {
        random.byte() & 7
    } else {
        0
    };
    if op.op_code_len() == 2 {
        bytes.push((opcode >> 8) as u8);
    }
    bytes.push(opcode as u8 | in_opcode);
    if op.op_code_len() == 1 {
        let mut modrm = random.byte() & 0x3f
            | match random.below(8) {
                0..=2 => 0xc0,
                3 | 4 => 0x40,
                5 => 0x80,
                _ => 0,
            };
        if op.group_index() >= 0 {
            modrm = modrm & 0xc7 | (op.group_index() as u8) << 3;
        }
        if op.rm_group_index() >= 0 {
            modrm = modrm & 0xf8 | op.rm_group_index() as u8;
        }
        bytes.push(modrm);
    }
    for _ in 0..14 {
        bytes.push(random.byte());
    }
    bytes
}

/// A random encoding of `code` for the address `at`; `None` if none was found.
pub fn encode(code: Code, world: World, at: u16, random: &mut Random) -> Option<Encoded> {
    for _ in 0..400 {
        let bytes = attempt(code, world, random);
        let Some(found) = decode(world, at, &bytes) else {
            continue;
        };
        if found.instruction.code() == code && found.bytes.len() <= 15 {
            return refine(found, world, at, random);
        }
    }
    None
}

/// Random bytes that decode to an instruction; `None` if they do not.
pub fn random_bytes(world: World, at: u16, random: &mut Random) -> Option<Encoded> {
    let mut bytes: Vec<u8> = (0..18).map(|_| random.byte()).collect();
    if random.one_in(3) {
        bytes[0] = 0x0f;
    }
    if random.one_in(4) {
        bytes.insert(0, random.pick(&[0x66, 0x67, 0xf2, 0xf3, 0xf0, 0x64, 0x65]));
    }
    let found = decode(world, at, &bytes)?;
    refine(found, world, at, random)
}

fn patch(encoded: &mut Encoded, offset: usize, size: usize, value: u64) {
    encoded.bytes[offset..offset + size].copy_from_slice(&value.to_le_bytes()[..size]);
}

/// Replaces constants by useful ones: displacements without registers that lie in the window,
/// branches to an INT3, shift counts of each class.
fn refine(mut found: Encoded, world: World, at: u16, random: &mut Random) -> Option<Encoded> {
    let instruction = found.instruction;
    let constants = found.constants;
    if instruction.is_jcc_short_or_near()
        || instruction.is_jmp_short_or_near()
        || instruction.is_call_near()
        || instruction.is_loop()
        || instruction.is_loopcc()
        || instruction.is_jcx_short()
    {
        let size = constants.immediate_size();
        let next = i64::from(at) + instruction.len() as i64;
        let target = if size == 1 {
            next + i64::from(random.byte() as i8)
        } else if random.one_in(12) {
            i64::from(random.next_u32() as u16)
        } else {
            i64::from(CODE_START) + random.below(usize::from(CODE_END - CODE_START)) as i64
        };
        // Never to the instructions themselves.
        if (i64::from(at) - 16..i64::from(at) + 64).contains(&target) {
            return None;
        }
        patch(
            &mut found,
            constants.immediate_offset(),
            size,
            (target - next) as u64,
        );
    }
    let bare =
        instruction.memory_base() == Register::None && instruction.memory_index() == Register::None;
    if (0..instruction.op_count()).any(|op| instruction.op_kind(op) == OpKind::Memory)
        && bare
        && constants.has_displacement()
        && !random.one_in(12)
    {
        let segment = crate::inputs::segment_register(instruction.memory_segment());
        let size = constants.displacement_size();
        let target = u64::from(crate::inputs::operand_target(
            random,
            instruction_size(&instruction),
        ));
        // Four bytes reach addresses near the segment's base.
        let base = world.base(segment);
        let window = if size == 8 || base != 0 {
            world.window()
        } else {
            WINDOW
        };
        let value = (window + target).wrapping_sub(base);
        patch(&mut found, constants.displacement_offset(), size, value);
    }
    if instruction.is_ip_rel_memory_operand() && !random.one_in(12) {
        let target = crate::inputs::operand_target(random, instruction_size(&instruction));
        let segment = crate::inputs::segment_register(instruction.memory_segment());
        let linear = (world.window() + u64::from(target)).wrapping_sub(world.base(segment));
        let value = linear.wrapping_sub(instruction.next_ip());
        patch(&mut found, constants.displacement_offset(), 4, value);
    }
    if constants.has_immediate() && constants.immediate_size() <= 4 && random.one_in(2) {
        let (offset, size) = (constants.immediate_offset(), constants.immediate_size());
        let branch = instruction.op_count() > 0
            && matches!(
                instruction.op0_kind(),
                OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64
            );
        if instruction.mnemonic() == Mnemonic::Enter {
            patch(&mut found, offset, size, u64::from(random.byte()));
        } else if !branch {
            let value = u64::from(crate::inputs::interesting(random));
            patch(&mut found, offset, size, value);
        }
    }
    let length = found.bytes.len();
    let again = decode(world, at, &found.bytes)?;
    (again.instruction.code() == instruction.code() && again.bytes.len() == length).then_some(again)
}

/// Size in bytes of the memory operand; 16 if it has no fixed size.
pub fn instruction_size(instruction: &Instruction) -> usize {
    match instruction.memory_size().size() {
        0 => 16,
        size => size,
    }
}
