//! A small assembler for the fixed sequences around copied instructions.
//!
//! It has only the instructions that the translator needs between guest instructions, most of which
//! leave the flags alone; iced-x86 encodes the guest's own instructions. All code is
//! position-independent until [`Assembler::patch_rel32`].

use crate::abi::host::Host;
use iced_x86::{Encoder, Instruction};

/// A host memory operand: `[base + index * scale + displacement]`.
///
/// The operand is packed into one number, which stays in a register of the translator: fields that
/// are stored one by one and then loaded together would make the processor wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mem(u64);

impl Mem {
    /// Lowest bit of the base register's field, which is above the displacement. The fields of base
    /// and index each have a bit that says that the register exists, and above it the register's
    /// number; the scale follows the index.
    const BASE: u32 = 32;
    const INDEX: u32 = 40;
    const SCALE: u32 = 48;
    /// The bit that says that the operand's segment is GS.
    const GS: u32 = 56;

    /// Makes the sum of those parts that exist: a base register; an index register, never RSP, with
    /// its scale 1, 2, 4 or 8; and the displacement.
    #[inline]
    pub const fn new(base: Option<Host>, index: Option<(Host, u8)>, displacement: i32) -> Self {
        let mut number = displacement as u32 as u64;
        if let Some(base) = base {
            number |= ((base.0 as u64) << 1 | 1) << Self::BASE;
        }
        if let Some((index, scale)) = index {
            number |= ((index.0 as u64) << 1 | 1) << Self::INDEX;
            number |= (scale as u64) << Self::SCALE;
        }
        Self(number)
    }

    /// `[base + displacement]`.
    #[inline]
    pub const fn base(base: Host, displacement: i32) -> Self {
        Self::new(Some(base), None, displacement)
    }

    /// `[index * scale]`.
    #[inline]
    pub const fn scaled(index: Host, scale: u8) -> Self {
        Self::new(None, Some((index, scale)), 0)
    }

    /// `[base + index * scale + displacement]`.
    #[inline]
    pub const fn indexed(base: Host, index: Host, scale: u8, displacement: i32) -> Self {
        Self::new(Some(base), Some((index, scale)), displacement)
    }

    /// The operand with a GS prefix.
    #[inline]
    pub const fn by_gs(self) -> Self {
        Self(self.0 | 1 << Self::GS)
    }

    /// The base register, if there is one.
    #[inline]
    pub const fn base_register(self) -> Option<Host> {
        match self.has(Self::BASE) {
            true => Some(Host(self.number(Self::BASE))),
            false => None,
        }
    }

    /// The index register and its scale, if there is one.
    #[inline]
    pub const fn index(self) -> Option<(Host, u8)> {
        match self.has(Self::INDEX) {
            true => Some((
                Host(self.number(Self::INDEX)),
                (self.0 >> Self::SCALE) as u8,
            )),
            false => None,
        }
    }

    /// The displacement of the operand.
    #[inline]
    pub const fn displacement(self) -> i32 {
        self.0 as i32
    }

    const fn has(self, register: u32) -> bool {
        self.0 >> register & 1 != 0
    }

    /// The number of a register, or 0 if there is none.
    #[inline]
    const fn number(self, register: u32) -> u8 {
        (self.0 >> (register + 1)) as u8 & 0x1f
    }
}

/// Operand size of the few instructions that exist in several sizes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Width {
    /// 8 bits.
    Byte,
    /// 16 bits.
    Word,
    /// 32 bits.
    Dword,
    /// 64 bits.
    Qword,
}

impl Width {
    /// The size in bytes.
    pub const fn bytes(self) -> u32 {
        match self {
            Width::Byte => 1,
            Width::Word => 2,
            Width::Dword => 4,
            Width::Qword => 8,
        }
    }
}

/// The position of a distance that is filled in later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patch(pub usize);

/// A branch of two bytes, which reaches 127 bytes and whose distance is filled in later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShortBranch {
    /// Position of the next instruction.
    end: usize,
}

impl ShortBranch {
    /// Position of the next instruction, from which the distance counts.
    pub(super) const fn end(self) -> usize {
        self.end
    }

    /// Whether a later position is in reach.
    pub(super) const fn reaches(self, target: usize) -> bool {
        target <= self.end + i8::MAX as usize
    }

    /// Adapts the branch to code of `length` bytes that was inserted at `position`.
    pub(super) const fn move_on(&mut self, position: usize, length: usize) {
        if self.end > position {
            self.end += length;
        }
    }
}

/// The first bytes of an instruction, at most 8: up to ModRM, SIB and an 8-bit displacement.
#[derive(Clone, Copy, Default)]
struct Head {
    /// The bytes, the first one in the low bits.
    bytes: u64,
    length: u32,
}

impl Head {
    /// The prefix for 16-bit operands.
    const OPERAND_SIZE: Head = Head {
        bytes: 0x66,
        length: 1,
    };

    fn of_width(width: Width) -> Self {
        match width {
            Width::Word => Self::OPERAND_SIZE,
            _ => Self::default(),
        }
    }

    fn byte(self, byte: u8) -> Self {
        Self {
            bytes: self.bytes | u64::from(byte) << (self.length * 8),
            length: self.length + 1,
        }
    }

    fn opcode(self, bytes: &[u8]) -> Self {
        bytes.iter().fold(self, |head, &byte| head.byte(byte))
    }

    /// Appends a REX prefix if one is needed.
    fn rex(self, wide: bool, reg: u8, index: u8, base: u8, force: bool) -> Self {
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | (index >> 3) << 1 | base >> 3;
        if rex != 0x40 || force {
            self.byte(rex)
        } else {
            self
        }
    }
}

/// A short sequence that is assembled once and then copied. Bytes that differ from copy to copy are
/// patched in the copy.
#[derive(Clone, Copy, Debug)]
pub struct Kept {
    bytes: [u8; Self::MOST],
    length: u8,
}

impl Kept {
    /// Maximum length in bytes. It is small, so that always all bytes can be copied, whatever the
    /// length.
    const MOST: usize = 32;

    /// Keeps the code that `emit` emits.
    ///
    /// # Panics
    /// The code is longer than 32 bytes: a bug in the translator.
    pub fn new(emit: impl FnOnce(&mut Assembler)) -> Self {
        let mut assembler = Assembler::new();
        emit(&mut assembler);
        let code = assembler.code();
        let mut bytes = [0; Self::MOST];
        bytes[..code.len()].copy_from_slice(code);
        Self {
            bytes,
            length: code.len() as u8,
        }
    }
}

/// A buffer of code under construction.
pub struct Assembler {
    bytes: Vec<u8>,
    encoder: Encoder,
}

impl Default for Assembler {
    fn default() -> Self {
        Self::new()
    }
}

impl Assembler {
    /// Makes an empty buffer.
    pub fn new() -> Self {
        Self {
            bytes: Vec::with_capacity(4096),
            encoder: Encoder::new(64),
        }
    }

    /// Empties the buffer for the next block.
    pub fn clear(&mut self) {
        self.bytes.clear();
    }

    /// Length of the code so far, which is the offset of the next instruction.
    pub fn position(&self) -> usize {
        self.bytes.len()
    }

    /// The code that was assembled so far.
    pub fn code(&self) -> &[u8] {
        &self.bytes
    }

    /// Drops all code after `position`.
    pub fn truncate(&mut self, position: usize) {
        self.bytes.truncate(position);
    }

    /// Encodes an instruction for 64-bit mode.
    ///
    /// # Errors
    /// No such encoding exists; the error has iced-x86's reason.
    pub fn instruction(&mut self, instruction: &Instruction) -> Result<(), iced_x86::IcedError> {
        let before = self.bytes.len();
        self.encoder.set_buffer(std::mem::take(&mut self.bytes));
        let result = self.encoder.encode(instruction, 0);
        self.bytes = self.encoder.take_buffer();
        if let Err(error) = result {
            self.bytes.truncate(before);
            return Err(error);
        }
        Ok(())
    }

    fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    fn imm32(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Appends the bytes of a head.
    fn append(&mut self, head: Head) {
        let end = self.bytes.len() + head.length as usize;
        self.bytes.extend_from_slice(&head.bytes.to_le_bytes());
        self.bytes.truncate(end);
    }

    fn rex(&mut self, wide: bool, reg: u8, index: u8, base: u8, force: bool) {
        self.append(Head::default().rex(wide, reg, index, base, force));
    }

    fn modrm_mem(&mut self, head: Head, reg: u8, mem: Mem) {
        let reg = (reg & 7) << 3;
        let Some(base) = mem.base_register() else {
            // An operand without a base has a SIB byte with base 101 and mod 00: a 32-bit
            // displacement and perhaps an index.
            let (index, scale) = mem
                .index()
                .map_or((4, 0), |(r, s)| (r.0 & 7, s.trailing_zeros() as u8));
            self.append(head.byte(reg | 4).byte(scale << 6 | index << 3 | 5));
            self.imm32(mem.displacement());
            return;
        };
        let small = i8::try_from(mem.displacement()).is_ok();
        let mode: u8 = match (mem.displacement(), small) {
            (0, _) if base.0 & 7 != 5 => 0,
            (_, true) => 1,
            _ => 2,
        };
        let mut head = if let Some((index, scale)) = mem.index() {
            head.byte(mode << 6 | reg | 4)
                .byte((scale.trailing_zeros() as u8) << 6 | (index.0 & 7) << 3 | base.0 & 7)
        } else if base.0 & 7 == 4 {
            head.byte(mode << 6 | reg | 4).byte(0x24)
        } else {
            head.byte(mode << 6 | reg | base.0 & 7)
        };
        if mode == 1 {
            head = head.byte(mem.displacement() as u8);
        }
        self.append(head);
        if mode == 2 {
            self.imm32(mem.displacement());
        }
    }

    /// The prefix for the operand's segment, which comes before all other prefixes.
    #[inline]
    fn segment(&mut self, mem: Mem) {
        if mem.has(Mem::GS) {
            self.byte(0x65);
        }
    }

    /// Appends an instruction with the register `reg` and a memory operand, after the prefixes in
    /// `head`.
    fn op_mem_behind(&mut self, head: Head, wide: bool, opcode: &[u8], reg: u8, mem: Mem) {
        self.segment(mem);
        let (index, base) = (mem.number(Mem::INDEX), mem.number(Mem::BASE));
        let head = head.rex(wide, reg, index, base, false);
        self.modrm_mem(head.opcode(opcode), reg, mem);
    }

    #[inline]
    fn op_mem(&mut self, wide: bool, opcode: &[u8], reg: u8, mem: Mem) {
        self.op_mem_behind(Head::default(), wide, opcode, reg, mem);
    }

    /// Appends an instruction with a byte register and a memory operand.
    fn op_mem_byte(&mut self, opcode: u8, reg: u8, mem: Mem) {
        self.segment(mem);
        let (index, base) = (mem.number(Mem::INDEX), mem.number(Mem::BASE));
        let head = Head::default().rex(false, reg, index, base, reg >= 4);
        self.modrm_mem(head.byte(opcode), reg, mem);
    }

    fn op_reg_behind(&mut self, head: Head, wide: bool, opcode: &[u8], reg: u8, rm: u8) {
        let head = head.rex(wide, reg, 0, rm, false).opcode(opcode);
        self.append(head.byte(0xc0 | (reg & 7) << 3 | rm & 7));
    }

    fn op_reg(&mut self, wide: bool, opcode: &[u8], reg: u8, rm: u8) {
        self.op_reg_behind(Head::default(), wide, opcode, reg, rm);
    }

    /// `mov to, from` (64 bits).
    pub fn mov(&mut self, to: Host, from: Host) {
        self.op_reg(true, &[0x89], from.0, to.0);
    }

    /// `mov to, from` (32 bits, upper half cleared).
    pub fn mov32(&mut self, to: Host, from: Host) {
        self.op_reg(false, &[0x89], from.0, to.0);
    }

    /// `mov to, from` (16 bits, upper bits kept).
    pub fn mov16(&mut self, to: Host, from: Host) {
        self.op_reg_behind(Head::OPERAND_SIZE, false, &[0x89], from.0, to.0);
    }

    /// `movzx to, from` from 16 bits.
    pub fn movzx16(&mut self, to: Host, from: Host) {
        self.op_reg(false, &[0x0f, 0xb7], to.0, from.0);
    }

    /// `movzx to, from` from the low 8 bits.
    pub fn movzx8(&mut self, to: Host, from: Host) {
        let head = Head::default().rex(false, to.0, 0, from.0, from.0 >= 4);
        let head = head.opcode(&[0x0f, 0xb6]);
        self.append(head.byte(0xc0 | (to.0 & 7) << 3 | from.0 & 7));
    }

    /// `mov to, value` (32 bits, upper half cleared).
    pub fn mov_imm32(&mut self, to: Host, value: u32) {
        self.rex(false, 0, 0, to.0, false);
        self.byte(0xb8 | to.0 & 7);
        self.imm32(value as i32);
    }

    /// `mov to, value` (64 bits).
    pub fn mov_imm64(&mut self, to: Host, value: u64) {
        self.rex(true, 0, 0, to.0, false);
        self.byte(0xb8 | to.0 & 7);
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// `mov to, value` (64 bits), in the shortest form.
    pub fn mov_value(&mut self, to: Host, value: u64) {
        if let Ok(value) = u32::try_from(value) {
            self.mov_imm32(to, value);
        } else if let Ok(value) = i32::try_from(value as i64) {
            self.rex(true, 0, 0, to.0, false);
            self.byte(0xc7);
            self.byte(0xc0 | to.0 & 7);
            self.imm32(value);
        } else {
            self.mov_imm64(to, value);
        }
    }

    /// `mov to, [mem]`; byte and word forms zero-extend.
    #[inline]
    pub fn load(&mut self, width: Width, to: Host, mem: Mem) {
        match width {
            Width::Byte => self.op_mem(false, &[0x0f, 0xb6], to.0, mem),
            Width::Word => self.op_mem(false, &[0x0f, 0xb7], to.0, mem),
            Width::Dword => self.op_mem(false, &[0x8b], to.0, mem),
            Width::Qword => self.op_mem(true, &[0x8b], to.0, mem),
        }
    }

    /// `mov to, [mem]` (16 bits, upper bits kept).
    #[inline]
    pub fn load16_keep(&mut self, to: Host, mem: Mem) {
        self.op_mem_behind(Head::OPERAND_SIZE, false, &[0x8b], to.0, mem);
    }

    /// `mov to, [mem]` (low 8 bits, upper bits kept).
    #[inline]
    pub fn load8_keep(&mut self, to: Host, mem: Mem) {
        self.op_mem_byte(0x8a, to.0, mem);
    }

    /// `mov [mem], from`.
    #[inline]
    pub fn store(&mut self, width: Width, mem: Mem, from: Host) {
        match width {
            Width::Byte => self.op_mem_byte(0x88, from.0, mem),
            Width::Word => {
                self.op_mem_behind(Head::OPERAND_SIZE, false, &[0x89], from.0, mem);
            }
            Width::Dword => self.op_mem(false, &[0x89], from.0, mem),
            Width::Qword => self.op_mem(true, &[0x89], from.0, mem),
        }
    }

    /// `mov [mem], value`; the qword form sign-extends.
    #[inline]
    pub fn store_imm(&mut self, width: Width, mem: Mem, value: i32) {
        let opcode = if width == Width::Byte { 0xc6 } else { 0xc7 };
        let head = Head::of_width(width);
        self.op_mem_behind(head, width == Width::Qword, &[opcode], 0, mem);
        match width {
            Width::Byte => self.byte(value as u8),
            Width::Word => self.bytes.extend_from_slice(&(value as i16).to_le_bytes()),
            _ => self.imm32(value),
        }
    }

    /// `cmp register, [mem]`: sets the arithmetic flags. The byte form needs a register whose low
    /// byte can be named (not AH to DH).
    #[inline]
    pub fn compare(&mut self, width: Width, register: Host, mem: Mem) {
        if width == Width::Byte {
            return self.op_mem_byte(0x3a, register.0, mem);
        }
        let head = Head::of_width(width);
        self.op_mem_behind(head, width == Width::Qword, &[0x3b], register.0, mem);
    }

    /// `lea to, [mem]` with a 32-bit result (upper half cleared).
    #[inline]
    pub fn lea32(&mut self, to: Host, mem: Mem) {
        self.op_mem(false, &[0x8d], to.0, mem);
    }

    /// `lea to, [mem]` with a 64-bit result.
    #[inline]
    pub fn lea64(&mut self, to: Host, mem: Mem) {
        self.op_mem(true, &[0x8d], to.0, mem);
    }

    /// `lea to, [rip + distance]`; the distance is patched later.
    pub fn lea_rip(&mut self, to: Host) -> Patch {
        self.rex(true, to.0, 0, 0, false);
        self.byte(0x8d);
        self.byte((to.0 & 7) << 3 | 5);
        self.imm32(0);
        Patch(self.position() - 4)
    }

    /// `not register` (64 bits): touches no flags.
    pub fn not(&mut self, register: Host) {
        self.op_reg(true, &[0xf7], 2, register.0);
    }

    /// `shrx to, from, count` (64 bits): BMI2, touches no flags.
    pub fn shrx(&mut self, to: Host, from: Host, count: Host) {
        self.shift(3, to, from, count);
    }

    /// `sarx to, from, count` (64 bits): BMI2, touches no flags.
    pub fn sarx(&mut self, to: Host, from: Host, count: Host) {
        self.shift(2, to, from, count);
    }

    /// `pext to, from, mask` (64 bits): BMI2, touches no flags.
    pub fn pext(&mut self, to: Host, from: Host, mask: Host) {
        self.gather_or_scatter(2, to, from, mask);
    }

    /// `pdep to, from, mask` (64 bits): BMI2, touches no flags.
    pub fn pdep(&mut self, to: Host, from: Host, mask: Host) {
        self.gather_or_scatter(3, to, from, mask);
    }

    fn gather_or_scatter(&mut self, prefix: u8, to: Host, from: Host, mask: Host) {
        let r = u8::from(to.0 < 8) << 7;
        let b = u8::from(mask.0 < 8) << 5;
        self.bytes.extend_from_slice(&[
            0xc4,
            r | 0x40 | b | 2,
            0x80 | (!from.0 & 15) << 3 | prefix,
            0xf5,
            0xc0 | (to.0 & 7) << 3 | mask.0 & 7,
        ]);
    }

    /// `lahf`.
    pub fn lahf(&mut self) {
        self.byte(0x9f);
    }

    /// `sahf`.
    pub fn sahf(&mut self) {
        self.byte(0x9e);
    }

    /// `seto al`.
    pub fn seto_al(&mut self) {
        self.bytes.extend_from_slice(&[0x0f, 0x90, 0xc0]);
    }

    /// `add register, value` (low 8 bits): sets the arithmetic flags.
    pub fn add8(&mut self, register: Host, value: i8) {
        self.rex(false, 0, 0, register.0, register.0 >= 4);
        self.bytes
            .extend_from_slice(&[0x80, 0xc0 | register.0 & 7, value as u8]);
    }

    /// VEX.LZ.`prefix`.0F38.W1 F7 /r, count in vvvv.
    fn shift(&mut self, prefix: u8, to: Host, from: Host, count: Host) {
        let r = u8::from(to.0 < 8) << 7;
        let b = u8::from(from.0 < 8) << 5;
        let head = Head::default()
            .opcode(&[0xc4, r | 0x40 | b | 2])
            .opcode(&[0x80 | (!count.0 & 15) << 3 | prefix, 0xf7]);
        self.append(head.byte(0xc0 | (to.0 & 7) << 3 | from.0 & 7));
    }

    /// `rorx to, from, bits` (64 bits): BMI2, touches no flags.
    pub fn rorx(&mut self, to: Host, from: Host, bits: u8) {
        let r = u8::from(to.0 < 8) << 7;
        let b = u8::from(from.0 < 8) << 5;
        let head = Head::default().opcode(&[0xc4, r | 0x40 | b | 3, 0xfb, 0xf0]);
        let head = head.byte(0xc0 | (to.0 & 7) << 3 | from.0 & 7);
        self.append(head.byte(bits));
    }

    /// `jrcxz` forward, which has no near form: [`Emitter::skip_if_zero`] and the islands of misses
    /// ensure that it reaches its target.
    ///
    /// [`Emitter::skip_if_zero`]: super::emitter::Emitter::skip_if_zero
    pub(crate) fn jrcxz(&mut self) -> ShortBranch {
        self.bytes.extend_from_slice(&[0xe3, 0]);
        ShortBranch {
            end: self.position(),
        }
    }

    /// `jmp short` forward.
    #[cfg(test)]
    pub(crate) fn jmp_short(&mut self) -> ShortBranch {
        self.bytes.extend_from_slice(&[0xeb, 0]);
        ShortBranch {
            end: self.position(),
        }
    }

    /// `jmp rel32`; patched with [`Assembler::patch_rel32`].
    pub fn jmp(&mut self) -> Patch {
        self.bytes.extend_from_slice(&[0xe9, 0, 0, 0, 0]);
        Patch(self.position() - 4)
    }

    /// `jcc rel32`; `condition` is the low four bits of the opcode.
    pub fn jcc(&mut self, condition: u8) -> Patch {
        self.bytes
            .extend_from_slice(&[0x0f, 0x80 | condition & 15, 0, 0, 0, 0]);
        Patch(self.position() - 4)
    }

    /// `jmp register`.
    #[cfg(test)]
    pub fn jmp_register(&mut self, register: Host) {
        self.rex(false, 4, 0, register.0, false);
        self.byte(0xff);
        self.byte(0xe0 | register.0 & 7);
    }

    /// `jmp [mem]`.
    #[inline]
    pub fn jmp_memory(&mut self, mem: Mem) {
        self.op_mem(false, &[0xff], 4, mem);
    }

    /// `rdtsc`.
    pub fn rdtsc(&mut self) {
        self.bytes.extend_from_slice(&[0x0f, 0x31]);
    }

    /// Appends the given bytes of an instruction.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Appends a kept sequence.
    #[inline]
    pub fn kept(&mut self, sequence: &Kept) {
        let end = self.bytes.len() + usize::from(sequence.length);
        self.bytes.extend_from_slice(&sequence.bytes);
        self.bytes.truncate(end);
    }

    /// LFENCE.
    pub fn lfence(&mut self) {
        self.bytes.extend_from_slice(&[0x0f, 0xae, 0xe8]);
    }

    /// Inserts a short jump over `count` jumps of 5 bytes each, and these jumps, whose distances
    /// are patched later. The code after `position` moves.
    ///
    /// # Panics
    /// The jumps are longer than a short jump reaches.
    pub fn insert_jumps(&mut self, position: usize, count: usize) {
        const JUMP: [u8; 5] = [0xe9, 0, 0, 0, 0];
        let jumps = count * JUMP.len();
        let over = i8::try_from(jumps).expect("the jumps fit into a short jump's reach");
        let end = self.bytes.len();
        self.bytes.resize(end + 2 + jumps, 0);
        self.bytes.copy_within(position..end, position + 2 + jumps);
        let inserted = &mut self.bytes[position..position + 2 + jumps];
        inserted[..2].copy_from_slice(&[0xeb, over as u8]);
        for jump in inserted[2..].chunks_exact_mut(JUMP.len()) {
            jump.copy_from_slice(&JUMP);
        }
    }

    /// Writes a 32-bit immediate or displacement.
    pub fn patch_imm32(&mut self, place: usize, value: u32) {
        self.bytes[place..place + 4].copy_from_slice(&value.to_le_bytes());
    }

    /// Makes a 32-bit distance lead to `target`.
    pub fn patch_rel32(&mut self, patch: Patch, target: usize) {
        let distance = target as i64 - (patch.0 as i64 + 4);
        self.patch_imm32(patch.0, distance as u32);
    }

    /// Makes a short branch lead to `target`, which must be [in reach](ShortBranch::reaches).
    ///
    /// # Panics
    /// The target is out of reach.
    pub(super) fn patch_rel8(&mut self, branch: ShortBranch, target: usize) {
        assert!(branch.reaches(target), "short branch out of reach");
        self.bytes[branch.end - 1] = (target - branch.end) as u8;
    }

    /// Makes a short branch lead to the current position.
    #[cfg(test)]
    pub(crate) fn patch_rel8_here(&mut self, branch: ShortBranch) {
        self.patch_rel8(branch, self.position());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::host::*;
    use iced_x86::{Decoder, DecoderOptions, Formatter, IntelFormatter};

    fn listing(emit: impl FnOnce(&mut Assembler)) -> String {
        let mut assembler = Assembler::new();
        emit(&mut assembler);
        let mut decoder = Decoder::with_ip(64, assembler.code(), 0, DecoderOptions::NONE);
        let mut formatter = IntelFormatter::new();
        let mut lines = Vec::new();
        while decoder.can_decode() {
            let mut text = String::new();
            formatter.format(&decoder.decode(), &mut text);
            lines.push(text);
        }
        lines.join("; ")
    }

    #[test]
    fn encodings_decode_to_what_was_asked_for() {
        assert_eq!(listing(|a| a.mov(R11, RCX)), "mov r11,rcx");
        assert_eq!(listing(|a| a.mov32(RSI, R9)), "mov esi,r9d");
        assert_eq!(listing(|a| a.mov16(R12, R8)), "mov r12w,r8w");
        assert_eq!(listing(|a| a.movzx16(R8, R8)), "movzx r8d,r8w");
        assert_eq!(listing(|a| a.movzx8(R8, RAX)), "movzx r8d,al");
        assert_eq!(listing(|a| a.movzx8(R8, RSI)), "movzx r8d,sil");
        assert_eq!(
            listing(|a| a.lea32(R8, Mem::base(R12, -4))),
            "lea r8d,[r12-4]"
        );
        assert_eq!(
            listing(|a| a.lea32(R8, Mem::indexed(R13, RDI, 4, 300))),
            "lea r8d,[r13+rdi*4+12Ch]"
        );
        assert_eq!(
            listing(|a| a.lea64(R9, Mem::indexed(RCX, R8, 1, 0))),
            "lea r9,[rcx+r8]"
        );
        assert_eq!(
            listing(|a| a.lea32(R8, Mem::new(None, Some((RSI, 8)), 16))),
            "lea r8d,[rsi*8+10h]"
        );
        assert_eq!(listing(|a| a.shrx(R9, R8, R15)), "shrx r9,r8,r15");
        assert_eq!(listing(|a| a.shrx(RCX, RDX, R15)), "shrx rcx,rdx,r15");
        assert_eq!(listing(|a| a.sarx(R11, R8, R14)), "sarx r11,r8,r14");
        assert_eq!(listing(|a| a.mov_value(R8, 5)), "mov r8d,5");
        assert_eq!(
            listing(|a| a.mov_value(R8, u64::MAX - 1)),
            "mov r8,0FFFFFFFFFFFFFFFEh"
        );
        assert_eq!(
            listing(|a| a.mov_value(RAX, 0x1_0000_0000)),
            "mov rax,100000000h"
        );
        assert_eq!(listing(|a| a.rorx(RCX, R9, 32)), "rorx rcx,r9,20h");
        assert_eq!(listing(|a| a.not(R9)), "not r9");
        assert_eq!(listing(|a| a.pext(R8, R11, R9)), "pext r8,r11,r9");
        assert_eq!(listing(|a| a.pext(RCX, R11, RDX)), "pext rcx,r11,rdx");
        assert_eq!(listing(|a| a.pdep(R8, R8, R9)), "pdep r8,r8,r9");
        assert_eq!(listing(|a| a.pdep(RCX, R11, RDX)), "pdep rcx,r11,rdx");
        assert_eq!(listing(|a| a.add8(R8, 0x7f)), "add r8b,7Fh");
        assert_eq!(listing(|a| a.lahf()), "lahf");
        assert_eq!(listing(|a| a.seto_al()), "seto al");
        assert_eq!(listing(|a| a.sahf()), "sahf");
        assert_eq!(
            listing(|a| a.load(Width::Qword, RCX, Mem::indexed(R14, R9, 8, 0x100_0000))),
            "mov rcx,[r14+r9*8+1000000h]"
        );
        assert_eq!(
            listing(|a| a.store(Width::Byte, Mem::base(R9, 0), RSI)),
            "mov [r9],sil"
        );
        assert_eq!(
            listing(|a| a.store_imm(Width::Dword, Mem::base(R9, 0), -1)),
            "mov dword ptr [r9],0FFFFFFFFh"
        );
        assert_eq!(
            listing(|a| a.jmp_memory(Mem::indexed(R13, R9, 8, 8))),
            "jmp qword ptr [r13+r9*8+8]"
        );
        assert_eq!(
            listing(|a| a.compare(Width::Byte, RAX, Mem::base(R9, 0))),
            "cmp al,[r9]"
        );
        assert_eq!(
            listing(|a| a.compare(Width::Word, R11, Mem::base(R9, 0))),
            "cmp r11w,[r9]"
        );
        assert_eq!(listing(|a| a.jmp_register(R8)), "jmp r8");
        assert_eq!(
            listing(|a| a.load8_keep(RAX, Mem::base(R9, 0))),
            "mov al,[r9]"
        );
    }
}
