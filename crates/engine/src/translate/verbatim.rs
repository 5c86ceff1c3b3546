//! Copies that keep the guest's bytes, without using the general encoder.
//!
//! Most copied instructions name registers that live in their namesakes, or ECX, and memory through
//! RCX and R8 at most. Their bytes stay as they are, except for the memory operand and for ECX,
//! which lives in R10:
//!
//! ```text
//! guest     48 03 4c 88 10        add rcx,[rax+rcx*4+10h]
//! copy      4e 03 14 01           add r10,[rcx+r8]
//! ```
//!
//! The encoder makes all other copies (those with other opcode maps, 16-bit code, and prefixes that
//! mean something else in 64-bit mode or nothing).

use crate::abi::host::Host;
use crate::abi::register_map::COUNT;
use crate::emit::guest_operand_form::Reach;
use crate::emit::named_operands::Named;
use iced_x86::{EncodingKind, Instruction, MandatoryPrefix, OpCodeOperandKind, OpKind, Register};
use tollgate_x86::Gpr;

/// The bytes of a copy.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Copied {
    bytes: [u8; 24],
    length: usize,
}

impl Copied {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn push(&mut self, byte: u8) {
        self.bytes[self.length] = byte;
        self.length += 1;
    }

    fn extend(&mut self, bytes: &[u8]) -> Option<()> {
        let room = self.bytes.get_mut(self.length..self.length + bytes.len())?;
        room.copy_from_slice(bytes);
        self.length += bytes.len();
        Some(())
    }
}

/// Whether a one-byte opcode has a ModRM byte and at most an immediate operand, and means the same
/// in 32-bit and 64-bit code.
fn has_plain_modrm(opcode: u8) -> bool {
    match opcode {
        // ADD, OR, ADC, SBB, AND, SUB, XOR and CMP with r/m.
        0x00..=0x3f => opcode & 7 < 4,
        // The forms of these with immediates; TEST, XCHG, MOV.
        0x80 | 0x81 | 0x83..=0x8b => true,
        // IMUL; shifts; MOV of immediates; TEST, NOT, NEG, MUL, DIV; INC and DEC.
        0x69 | 0x6b | 0xc0 | 0xc1 | 0xc6 | 0xc7 | 0xd0..=0xd3 | 0xf6 | 0xf7 | 0xfe | 0xff => true,
        _ => false,
    }
}

/// Whether a one-byte opcode has no ModRM byte and only registers and immediates as operands.
fn has_no_modrm(opcode: u8) -> bool {
    match opcode {
        // Operations on the accumulator and an immediate.
        0x00..=0x3f => matches!(opcode & 7, 4 | 5),
        // CBW, CWD and their relatives; TEST; MOV of immediates; CMC, CLC, STC.
        0x98 | 0x99 | 0xa8 | 0xa9 | 0xb0..=0xbf | 0xf5 | 0xf8 | 0xf9 => true,
        _ => false,
    }
}

/// Length in bytes of SIB and displacement after a ModRM byte with 32-bit or 64-bit addressing.
fn behind_modrm(modrm: u8, next: Option<&u8>) -> Option<usize> {
    let (mode, rm) = (modrm >> 6, modrm & 7);
    if mode == 3 {
        return Some(0);
    }
    let sib = usize::from(rm == 4);
    let no_base = match rm {
        4 => next? & 7 == 5,
        _ => rm == 5,
    };
    Some(
        sib + match mode {
            0 if no_base => 4,
            0 => 0,
            1 => 1,
            _ => 4,
        },
    )
}

/// The fields of an encoding that name registers.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Fields {
    /// The field `reg` of ModRM.
    reg: bool,
    /// The field `rm` of ModRM.
    rm: bool,
    /// The low bits of the opcode.
    opcode: bool,
}

/// The fields that name ECX or a part of it; `None` if ECX is named in another way.
fn fields_of_count(instruction: &Instruction, named: &Named) -> Option<Fields> {
    use OpCodeOperandKind as Kind;
    let mut fields = Fields {
        reg: false,
        rm: false,
        opcode: false,
    };
    if named.registers >> Gpr::Rcx as u8 & 1 == 0 {
        return Some(fields);
    }
    for index in 0..instruction.op_count() {
        let is_count = instruction.op_kind(index) == OpKind::Register
            && instruction.op_register(index).full_register() == Register::RCX;
        if !is_count {
            continue;
        }
        match instruction.op_code().op_kind(index) {
            Kind::r8_reg | Kind::r16_reg | Kind::r32_reg | Kind::r64_reg => fields.reg = true,
            Kind::r8_or_mem
            | Kind::r16_or_mem
            | Kind::r32_or_mem
            | Kind::r64_or_mem
            | Kind::r16_rm
            | Kind::r32_rm
            | Kind::r64_rm => {
                fields.rm = true;
            }
            Kind::r8_opcode | Kind::r16_opcode | Kind::r32_opcode | Kind::r64_opcode => {
                fields.opcode = true
            }
            _ => return None,
        }
    }
    Some(fields)
}

/// The bits of a REX prefix that extend ModRM's `reg`, SIB's `index` and ModRM's `rm`.
const REX_R: u8 = 0x44;
const REX_X: u8 = 0x42;
const REX_B: u8 = 0x41;

/// The bytes that follow a ModRM byte: a SIB byte and a displacement, if they exist.
#[derive(Clone, Copy, Default)]
struct Behind {
    bytes: [u8; 5],
    length: usize,
}

impl Behind {
    fn of_sib(sib: u8) -> Self {
        let mut behind = Self::default();
        behind.push(&[sib]);
        behind
    }

    fn push(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }
}

impl Behind {
    /// Appends a displacement in its shortest form. For zero that is no displacement, if it
    /// `may_be_none`. Returns the upper bits of ModRM that select the form.
    fn push_displacement(&mut self, displacement: i32, may_be_none: bool) -> u8 {
        match i8::try_from(displacement) {
            Ok(0) if may_be_none => 0,
            Ok(_) => {
                self.push(&displacement.to_le_bytes()[..1]);
                0x40
            }
            Err(_) => {
                self.push(&displacement.to_le_bytes());
                0x80
            }
        }
    }
}

/// The REX bits, the ModRM byte without `reg`, and the bytes that follow for [`Reach::Anchored`].
fn anchored(base: Host, displacement: i32) -> (u8, u8, Behind) {
    let mut behind = Behind::default();
    let rm = base.0 & 7;
    if rm == 4 {
        // This SIB byte has that base and no index.
        behind.push(&[0x24]);
    }
    let mode = behind.push_displacement(displacement, rm != 5);
    (if base.0 < 8 { 0 } else { REX_B }, mode | rm, behind)
}

/// The REX bits, the ModRM byte without `reg`, and the bytes that follow for [`Reach::Near`].
fn near(delta: Host, base: Option<Host>, displacement: i32) -> (u8, u8, Behind) {
    let mut behind = Behind::default();
    let mut rex = if delta.0 < 8 { 0 } else { REX_B };
    let rm = match base {
        // In the SIB byte the base register is `delta`, the index is `base`, and the scale is 1.
        Some(base) => {
            behind.push(&[(base.0 & 7) << 3 | delta.0 & 7]);
            rex |= if base.0 < 8 { 0 } else { REX_X };
            4
        }
        None => delta.0 & 7,
    };
    let mode = behind.push_displacement(displacement, true);
    (rex, mode | rm, behind)
}

/// The bytes of a copy of `raw`, an instruction of `bits`-bit code with all its registers at home.
/// No operand may be the stack pointer, a high byte or the count of a shift. `named` has the kinds
/// of its operands, and `reach` says how it gets to its memory operand. `None` if the encoder must
/// make the copy.
pub(super) fn copy_of(
    instruction: &Instruction,
    named: &Named,
    raw: &[u8],
    bits: u32,
    reach: Option<Reach>,
) -> Option<Copied> {
    if bits == 16 || instruction.encoding() != EncodingKind::Legacy {
        return None;
    }
    let mut copied = Copied::default();
    if reach.is_some_and(Reach::is_by_gs) {
        copied.push(0x65);
    }
    let mut at = 0;
    let mut repeats = false;
    loop {
        match *raw.get(at)? {
            prefix @ 0x66 => copied.push(prefix),
            prefix @ (0xf2 | 0xf3) if !repeats => {
                repeats = true;
                copied.push(prefix);
            }
            // The address is already formed, and no other thread touches guest memory.
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 | 0xf0 => {}
            _ => break,
        }
        at += 1;
    }
    if at > 1 {
        // Several prefixes, whose order matters, are rare.
        return None;
    }
    let mut rex = 0;
    if bits == 64 && *raw.get(at)? & 0xf0 == 0x40 {
        rex = raw[at];
        at += 1;
    }
    let opcode = at;
    let modrm = match raw[opcode..] {
        [0x0f, 0x38 | 0x3a, ..] => Some(opcode + 3),
        // Conditional moves and SETcc, extending moves, IMUL, shifts of two registers, and
        // computations in SSE registers. The other opcodes have no ModRM byte or other operands.
        [
            0x0f,
            0x10..=0x17
            | 0x28..=0x2f
            | 0x40..=0x6f
            | 0x74..=0x76
            | 0x90..=0x9f
            | 0xa4
            | 0xac
            | 0xaf..=0xb1
            | 0xb6
            | 0xb7
            | 0xba
            | 0xbc..=0xc2
            | 0xc6
            | 0xd0..=0xfe,
            ..,
        ] => Some(opcode + 2),
        [one, ..] if has_plain_modrm(one) => Some(opcode + 1),
        [0x63, ..] if bits == 64 => Some(opcode + 1),
        [one, ..] if has_no_modrm(one) => None,
        _ => return None,
    };
    if repeats {
        let prefix = instruction.op_code().mandatory_prefix();
        if !matches!(prefix, MandatoryPrefix::PF2 | MandatoryPrefix::PF3) {
            return None;
        }
    }
    let operand = match modrm {
        Some(modrm) => Some((modrm, *raw.get(modrm)?)).filter(|(_, byte)| byte >> 6 != 3),
        None => None,
    };
    if operand.is_some() != reach.is_some() {
        return None;
    }
    let count = COUNT.0 & 7;
    let fields = fields_of_count(instruction, named)?;
    if fields.reg {
        rex |= REX_R;
    }
    let Some((memory_at, mut byte)) = operand else {
        if fields.rm || fields.opcode {
            rex |= REX_B;
        }
        if rex != 0 {
            copied.push(rex);
        }
        let first = copied.length;
        copied.extend(&raw[opcode..])?;
        if fields.opcode {
            copied.bytes[first] = copied.bytes[first] & !7 | count;
        }
        if let Some(modrm) = modrm {
            let byte = &mut copied.bytes[first + modrm - opcode];
            if fields.reg {
                *byte = *byte & !0x38 | count << 3;
            }
            if fields.rm {
                *byte = *byte & !7 | count;
            }
        }
        return Some(copied);
    };
    // ModRM, and SIB or a displacement; the upper bits of R9, R11 and R8 are in REX.B and REX.X.
    let (extended, rm, behind) = match reach? {
        Reach::Pointer => (REX_B, 1, Behind::default()),
        // This way is for instructions that are not copied here.
        Reach::LowPointer => return None,
        Reach::Sum => (REX_X, 4, Behind::of_sib(1)),
        Reach::Window(place) => (REX_B, 0x43, Behind::of_sib(place)),
        Reach::Near {
            delta,
            base,
            displacement,
        } => near(delta, base, displacement),
        Reach::Anchored { base, displacement } => anchored(base, displacement),
        Reach::InSegment => (REX_B | REX_X, 4, Behind::of_sib(1)),
    };
    let rex = extended | rex & 0x4c;
    if rex != 0 {
        copied.push(rex);
    }
    if fields.reg {
        byte = byte & !0x38 | count << 3;
    }
    copied.extend(&raw[opcode..memory_at])?;
    copied.push(byte & 0x38 | rm);
    copied.extend(&behind.bytes[..behind.length])?;
    let immediate = memory_at + 1 + behind_modrm(raw[memory_at], raw.get(memory_at + 1))?;
    copied.extend(raw.get(immediate..)?)?;
    Some(copied)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::register_map::RegisterMap;
    use crate::emit::assembler::Assembler;
    use crate::emit::named_operands::{
        guest_number, is_high_byte, name_of, register_operands, uses_count_in_place,
    };
    use crate::policy::allow_list::{Copying, copying};
    use crate::translate::copy::general_copy;
    use iced_x86::{Decoder, DecoderOptions, OpKind, Register};
    use tollgate_test_support::Random;

    fn decoded(bytes: &[u8]) -> String {
        let instruction = Decoder::new(64, bytes, DecoderOptions::NONE).decode();
        assert_eq!(instruction.len(), bytes.len(), "{bytes:x?}");
        instruction.to_string()
    }

    #[test]
    fn it_is_the_instruction_that_the_encoder_makes() {
        let mut random = Random::new(3);
        let mut compared = 0;
        while compared < 100_000 {
            let mut bytes = [0_u8; 16];
            bytes.fill_with(|| random.below(256) as u8);
            if random.below(2) == 0 {
                bytes[1] = 0x0f;
                bytes[0] = [0x66, 0xf2, 0xf3, 0x48, 0x90][random.below(5)];
            }
            if random.below(4) == 0 {
                bytes[0] = 0x0f;
            }
            let bits = [32, 64][random.below(2)];
            let instruction = Decoder::new(bits, &bytes, DecoderOptions::NONE).decode();
            if copying(&instruction) == Copying::Never {
                continue;
            }
            let registers = (0..instruction.op_count()).map(|i| instruction.op_register(i));
            let at_home = registers.into_iter().all(|register| {
                register == Register::None
                    || !is_high_byte(register)
                        && guest_number(register).is_none_or(|guest| guest < 8 && guest != 4)
            }) && !uses_count_in_place(&instruction);
            let memory = (0..instruction.op_count())
                .any(|index| instruction.op_kind(index) == OpKind::Memory);
            let raw = &bytes[..instruction.len()];
            let reach = memory.then(|| {
                [
                    Reach::Pointer,
                    Reach::Sum,
                    Reach::Window(random.below(64) as u8),
                    Reach::Anchored {
                        base: Host(random.below(16) as u8),
                        displacement: [0, 8, -128, 0x1234, -0x1234][random.below(5)],
                    },
                    Reach::InSegment,
                ][random.below(5)]
            });
            let named = Named::of(&instruction);
            let copied = copy_of(&instruction, &named, raw, bits, reach);
            let (true, Some(copied)) = (at_home, copied) else {
                continue;
            };
            let mut assembler = Assembler::new();
            let mut copy = general_copy(&instruction, reach);
            for (index, register) in register_operands(&instruction) {
                if register.full_register() == Register::RCX {
                    copy.set_op_register(index, name_of(COUNT, register));
                }
            }
            let encoded = assembler.instruction(&copy);
            assert!(encoded.is_ok(), "{instruction}");
            assert_eq!(
                decoded(copied.bytes()),
                decoded(assembler.code()),
                "{instruction}, {raw:x?}"
            );
            compared += 1;
        }
        assert!(RegisterMap::LONG.has_namesakes_at_home());
    }
}
