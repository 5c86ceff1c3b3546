//! Random registers and memory for given instructions: operands lie in the window, branches lead to
//! an INT3, selectors name segments that both sides have.

use crate::case::{Fill, Input, components};
use crate::encode::{Encoded, instruction_size, rip_of};
use crate::exclusions::loads_segment;
use crate::layout::{
    CODE_END, CODE_START, LOCALS, PAGE, STACK_START, USER_CODE, USER_CODE64, USER_DATA, WINDOW,
    World, local_selector,
};
use crate::local_descriptors::has_locals;
pub use crate::values::interesting;
use crate::values::interesting64;
use crate::values::{data, vector_state};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use tollgate_test_support::Random;
use tollgate_x86::SegmentRegister;
use tollgate_x86::xsave::{self, COMPACTED, HEADER, XCOMP_BV};

const EAX: usize = 0;
const ECX: usize = 1;
const EDX: usize = 2;
const EBX: usize = 3;
const ESP: usize = 4;
const EBP: usize = 5;
const ESI: usize = 6;
const EDI: usize = 7;

/// An offset in the window for an operand of `size` bytes: inside a page, at its start or end,
/// across two pages, or aligned.
pub fn operand_target(random: &mut Random, size: usize) -> u16 {
    // Pages whose start is a boundary of interest, for operands before or after it.
    let boundary = random.pick(&[4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16]) * PAGE;
    let writable = random.pick(&[4, 7, 8, 10, 13, 15]) * PAGE;
    let target = match random.below(8) {
        0 => boundary.wrapping_sub(random.below(size.max(1) + 2)),
        1 => boundary,
        2 => boundary.wrapping_sub(size),
        3 => writable + random.below(PAGE),
        4 => writable + random.below(PAGE - 64),
        _ => writable + (random.below(PAGE - 128) & !63),
    };
    target as u16
}

/// The segment register that iced-x86 names.
pub fn segment_register(register: Register) -> SegmentRegister {
    match register {
        Register::ES => SegmentRegister::Es,
        Register::CS => SegmentRegister::Cs,
        Register::SS => SegmentRegister::Ss,
        Register::FS => SegmentRegister::Fs,
        Register::GS => SegmentRegister::Gs,
        _ => SegmentRegister::Ds,
    }
}

/// An integer with the width of a general register.
fn number(world: World, random: &mut Random) -> u64 {
    if world.is_long() {
        interesting64(random)
    } else {
        u64::from(interesting(random))
    }
}

/// A linear address at one of the boundaries of the canonical addresses.
fn edge(random: &mut Random, size: usize) -> u64 {
    let end = random.pick(&[0x8000_0000_0000, 0xffff_8000_0000_0000, 0]);
    u64::wrapping_sub(end, random.below(size.max(1) + 2) as u64)
}

/// A stack or frame pointer of 16- or 32-bit code at the address where it wraps, or close to it.
fn stack_wrap(world: World, random: &mut Random) -> u64 {
    let wrap = if world.has_narrow_stack() || random.one_in(4) {
        0x1_0000
    } else {
        0x1_0000_0000
    };
    let pointer = wrap + random.below(64) as u64 - 32;
    pointer
        & if world.has_narrow_stack() {
            0xffff
        } else {
            0xffff_ffff
        }
}

/// An EIP where there is an INT3, or sometimes one where there is none.
fn landing(world: World, at: u16, random: &mut Random) -> u64 {
    if random.one_in(16) {
        return number(world, random);
    }
    loop {
        let offset = CODE_START + random.below(usize::from(CODE_END - CODE_START)) as u16;
        if !(i32::from(at) - 16..i32::from(at) + 64).contains(&i32::from(offset)) {
            return rip_of(world, offset);
        }
    }
}

/// A selector that has the same meaning on both sides.
fn selector(random: &mut Random) -> u16 {
    if !has_locals() {
        return random.pick(&[0, 3, USER_CODE, USER_DATA]);
    }
    match random.below(5) {
        0 => random.below(4) as u16,
        1 => random.pick(&[USER_CODE, USER_DATA, USER_CODE64, 0x28, 0x2a]),
        2 => local_selector(random.below(LOCALS.len() + 2)) & !(random.below(4) as u16),
        _ => local_selector(random.below(LOCALS.len())),
    }
}

/// EFLAGS without TF, AC, VM and IOPL.
fn flags(random: &mut Random) -> u32 {
    let mut flags = 0x202 | random.next_u32() & 0x8d5;
    if random.one_in(3) {
        flags |= 0x400;
    }
    if random.one_in(8) {
        flags |= 0x20_0000;
    }
    if random.one_in(16) {
        flags |= 0x4000;
    }
    flags
}

struct Generator<'a> {
    world: World,
    at: u16,
    input: Input,
    random: &'a mut Random,
}

/// A state for these instructions, the first of which lies at `at`.
pub fn generate(world: World, at: u16, code: &[Encoded], random: &mut Random) -> Input {
    let input = Input {
        gpr: [0; 16],
        flags: flags(random),
        vector: vector_state(random, if world.is_long() { 16 } else { 8 }),
        fill: Fill::Random,
        pokes: Vec::new(),
    };
    let mut generator = Generator {
        world,
        at,
        input,
        random,
    };
    generator.registers();
    for encoded in code.iter().rev() {
        generator.steer(&encoded.instruction);
    }
    generator.input.settle();
    generator.input
}

impl Generator<'_> {
    fn registers(&mut self) {
        for register in 0..if self.world.is_long() { 16 } else { 8 } {
            self.input.gpr[register] = number(self.world, self.random);
        }
        let stack = |random: &mut Random| {
            let offset = if random.one_in(4) {
                (random.below(3) * PAGE + 16).wrapping_sub(random.below(32))
            } else {
                0x200 + random.below(0x1c00)
            };
            u64::from(STACK_START).wrapping_add(offset as u64)
        };
        let base = self.world.base(SegmentRegister::Ss);
        let window = self.world.window();
        let esp = window + stack(self.random);
        self.input.gpr[ESP] = esp.wrapping_sub(base);
        if self.world.is_long() && self.random.one_in(32) {
            self.input.gpr[ESP] = if self.random.one_in(2) {
                edge(self.random, 16).wrapping_add(8)
            } else {
                interesting64(self.random)
            };
        }
        if self.random.one_in(2) {
            self.input.gpr[EBP] = (window + stack(self.random)).wrapping_sub(base);
        }
        for register in [ESP, EBP] {
            if !self.world.is_long() && self.random.one_in(16) {
                self.input.gpr[register] = stack_wrap(self.world, self.random);
            }
        }
        if self.world.has_narrow_stack() {
            // The upper half exists and must not change.
            let upper = u64::from(self.random.next_u32() & 0xffff_0000);
            if self.random.one_in(2) {
                self.input.gpr[ESP] |= upper;
            }
        }
    }

    fn poke(&mut self, offset: u16, bytes: Vec<u8>) {
        let end = usize::from(offset) + bytes.len();
        let code = usize::from(CODE_START)..usize::from(CODE_END);
        if end > 0x1_0000 || (usize::from(offset) < code.end && end > code.start) {
            return;
        }
        self.input.pokes.push((offset, bytes));
    }

    /// Offset in the window of the top of the stack.
    fn stack_top(&self) -> u16 {
        let esp = self.input.gpr[ESP];
        let linear = self.world.base(SegmentRegister::Ss).wrapping_add(esp);
        self.world.offset_of(linear) as u16
    }

    /// The memory format of an instruction pointer or a stack slot.
    fn word(&self, value: u64) -> Vec<u8> {
        let size = if self.world.is_long() { 8 } else { 4 };
        value.to_le_bytes()[..size].to_vec()
    }

    /// The start of the window as addressed with this number of bits.
    fn window_for(&self, bits: u32, segment: SegmentRegister) -> u64 {
        if bits < 64 && self.world.base(segment) == 0 {
            WINDOW
        } else {
            self.world.window()
        }
    }

    fn steer(&mut self, instruction: &Instruction) {
        let mut target = None;
        for operand in 0..instruction.op_count() {
            match instruction.op_kind(operand) {
                OpKind::Memory => target = self.steer_memory(instruction),
                OpKind::MemorySegSI | OpKind::MemorySegESI | OpKind::MemorySegRSI => {
                    let segment = segment_register(instruction.memory_segment());
                    self.point(ESI, segment, instruction);
                }
                OpKind::MemorySegDI | OpKind::MemorySegEDI | OpKind::MemorySegRDI => {
                    let segment = segment_register(instruction.memory_segment());
                    self.point(EDI, segment, instruction);
                }
                OpKind::MemoryESDI | OpKind::MemoryESEDI | OpKind::MemoryESRDI => {
                    self.point(EDI, SegmentRegister::Es, instruction);
                }
                _ => {}
            }
        }
        if instruction.is_string_instruction()
            && (instruction.has_rep_prefix() || instruction.has_repne_prefix())
            && !self.random.one_in(10)
        {
            self.repetition(instruction);
        }
        self.steer_special(instruction, target);
    }

    fn repetition(&mut self, instruction: &Instruction) {
        let count = match self.random.below(4) {
            0 => self.random.below(3),
            1 => self.random.below(40),
            _ => self.random.below(5000),
        } as u64;
        self.input.gpr[ECX] = count;
        // Runs of equal bytes, so that comparing instructions continue.
        if self.random.one_in(2) {
            let byte = self.random.pick(&[0, 0x20, 0xff]);
            let ds = segment_register(instruction.memory_segment());
            for (register, segment) in [(ESI, ds), (EDI, SegmentRegister::Es)] {
                let start = self
                    .world
                    .base(segment)
                    .wrapping_add(self.input.gpr[register]);
                let down = self.input.flags & 0x400 != 0;
                let length = self.random.below(300) as u64;
                let start = if down {
                    start.wrapping_sub(length)
                } else {
                    start
                };
                let offset = self.world.offset_of(start);
                if offset < 0xfe00 {
                    self.poke(offset as u16, vec![byte; length as usize]);
                }
            }
            self.input.gpr[EAX] = u64::from_le_bytes([byte; 8]) & self.world.mask();
        }
    }

    /// Makes a pointer register point to an operand.
    fn point(&mut self, register: usize, segment: SegmentRegister, instruction: &Instruction) {
        if self.random.one_in(24) {
            return;
        }
        let size = instruction_size(instruction);
        let target = operand_target(self.random, size);
        let addressed = |kind: OpKind| {
            matches!(
                kind,
                OpKind::MemorySegRSI | OpKind::MemorySegRDI | OpKind::MemoryESRDI
            )
        };
        let wide = (0..instruction.op_count()).any(|index| addressed(instruction.op_kind(index)));
        let window = self.window_for(if wide { 64 } else { 32 }, segment);
        let mut linear = window + u64::from(target);
        if wide && self.random.one_in(40) {
            linear = edge(self.random, size);
        }
        let pointer = linear.wrapping_sub(self.world.base(segment));
        self.input.gpr[register] = pointer & self.world.mask();
        let bytes = data(self.random, size * 4);
        self.poke(target, bytes);
    }

    fn steer_memory(&mut self, instruction: &Instruction) -> Option<u16> {
        let size = instruction_size(instruction);
        let mut target = operand_target(self.random, size);
        if instruction.is_save_restore_instruction() && !self.random.one_in(6) {
            target = (target & 0xe000).max(0x7000) & !63;
        }
        let segment = segment_register(instruction.memory_segment());
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let bits = if base.is_gpr64() || index.is_gpr64() || base == Register::RIP {
            64
        } else if base.is_gpr16() || index.is_gpr16() {
            16
        } else if base == Register::None && index == Register::None {
            instruction.memory_displ_size() * 8
        } else {
            32
        };
        let mask = match bits {
            16 => 0xffff,
            64 => u64::MAX,
            _ => 0xffff_ffff,
        };
        let mut linear = self.window_for(bits, segment) + u64::from(target);
        if bits == 64 && self.random.one_in(40) {
            linear = edge(self.random, size);
        }
        let displacement = instruction.memory_displacement64();
        if self.random.one_in(24) {
            return None;
        }
        let want = linear.wrapping_sub(self.world.base(segment));
        if instruction.is_vsib() {
            self.vector_index(instruction);
            if base != Register::None {
                self.input.gpr[base.number()] = want.wrapping_sub(displacement) & mask;
            }
            return Some(target);
        }
        let value = |register: Register, input: &Input| {
            if register == Register::None {
                0
            } else {
                input.gpr[register.number()]
            }
        };
        let scale = u64::from(instruction.memory_index_scale());
        if base.is_gpr() && base != index {
            // An index of any size is possible; small ones resemble arrays.
            if index != Register::None && self.random.one_in(2) {
                self.input.gpr[index.number()] = self.random.below(64) as u64;
            }
            let rest = value(index, &self.input)
                .wrapping_mul(scale)
                .wrapping_add(displacement);
            let low = want.wrapping_sub(rest);
            let register = &mut self.input.gpr[base.number()];
            *register = *register & !mask | low & mask;
        } else if base == Register::None && index != Register::None {
            let low = (want.wrapping_sub(displacement) & mask) / scale;
            self.input.gpr[index.number()] = low;
            linear = low.wrapping_mul(scale).wrapping_add(displacement) & mask;
            linear = linear.wrapping_add(self.world.base(segment));
        } else if !base.is_gpr() {
            linear = displacement.wrapping_add(self.world.base(segment));
        } else {
            return None;
        }
        let offset = self.world.offset_of(linear);
        if offset > 0xffff {
            return None;
        }
        let bytes = data(self.random, size.max(1));
        self.poke(offset as u16, bytes);
        Some(offset as u16)
    }

    /// Sets the indexes of gathers and scatters: close to each other, some in other pages.
    fn vector_index(&mut self, instruction: &Instruction) {
        let register = instruction.memory_index();
        let wide = instruction.is_vsib64();
        let width = if wide { 8 } else { 4 };
        for lane in 0..64 / width {
            let range = self.random.pick(&[16, 64, 2000]);
            let index = self.random.below(range) as i64 - (range / 4) as i64;
            let start = xsave::vector_byte(register.number(), lane * width);
            self.input.vector[start..start + width].copy_from_slice(&index.to_le_bytes()[..width]);
        }
    }

    fn steer_special(&mut self, instruction: &Instruction, target: Option<u16>) {
        use Mnemonic as M;
        match instruction.mnemonic() {
            M::Ret => {
                let eip = landing(self.world, self.at, self.random);
                self.poke(self.stack_top(), self.word(eip));
            }
            M::Jmp | M::Call => {
                let eip = landing(self.world, self.at, self.random);
                if instruction.op0_kind() == OpKind::Register {
                    let register = instruction.op0_register();
                    if register.is_gpr() {
                        self.input.gpr[register.full_register().number()] = eip;
                    }
                } else if let Some(target) = target {
                    self.poke(target, self.word(eip));
                }
            }
            M::Popf | M::Popfd | M::Popfq => {
                let value = (self.random.next_u32() & 0xf_fed7) & !0x5_0100;
                self.poke(self.stack_top(), self.word(u64::from(value)));
            }
            M::Bt | M::Bts | M::Btr | M::Btc
                if instruction.op1_kind() == OpKind::Register && self.random.below(4) != 0 =>
            {
                let offset = self.random.below(0x1_0000) as u64;
                let register = instruction.op1_register();
                if instruction.memory_base() != register {
                    self.input.gpr[register.number()] =
                        offset.wrapping_sub(0x8000) & self.world.mask();
                }
            }
            M::Xlatb => {
                let target = operand_target(self.random, 1);
                let segment = segment_register(instruction.memory_segment());
                let al = self.input.gpr[EAX] & 0xff;
                let bits = if instruction.memory_base() == Register::RBX {
                    64
                } else {
                    32
                };
                self.input.gpr[EBX] = (self.window_for(bits, segment) + u64::from(target))
                    .wrapping_sub(self.world.base(segment))
                    .wrapping_sub(al)
                    & self.world.mask();
            }
            M::Div | M::Idiv if self.random.one_in(2) => {
                // These make quotients that fit.
                self.input.gpr[EDX] = self.random.below(3) as u64;
                if instruction.op0_register().is_gpr8() {
                    self.input.gpr[EAX] &= !0xfc00;
                }
            }
            M::Cmpxchg8b | M::Cmpxchg16b if self.random.one_in(2) => {
                if let Some(target) = target {
                    let size = instruction_size(instruction) / 2;
                    let mut value = self.input.gpr[EAX].to_le_bytes()[..size].to_vec();
                    value.extend(&self.input.gpr[EDX].to_le_bytes()[..size]);
                    self.poke(target, value);
                }
            }
            M::Xsave
            | M::Xsave64
            | M::Xrstor
            | M::Xrstor64
            | M::Xsaveopt
            | M::Xsaveopt64
            | M::Xsavec
            | M::Xsavec64 => {
                // These are components that both the guest and the host have.
                self.input.gpr[EAX] = self.random.next_u64() & components();
                self.input.gpr[EDX] = 0;
                self.image(instruction, target);
            }
            M::Fxrstor | M::Fxrstor64 | M::Fldenv | M::Frstor | M::Fxsave | M::Fxsave64 => {
                self.image(instruction, target)
            }
            M::Ldmxcsr | M::Vldmxcsr => {
                if let Some(target) = target {
                    let value = self.random.next_u32() & 0xffff;
                    self.poke(target, value.to_le_bytes().to_vec());
                }
            }
            // Most bases are canonical.
            M::Wrfsbase | M::Wrgsbase if self.random.below(4) != 0 => {
                let register = instruction.op0_register().number();
                self.input.gpr[register] = self.world.window() + 0x1000;
            }
            _ if loads_segment(instruction) => self.segment_load(instruction, target),
            _ => {}
        }
    }

    /// Writes a state image as a program would have stored it, sometimes an invalid one.
    fn image(&mut self, instruction: &Instruction, target: Option<u16>) {
        let Some(target) = target else { return };
        let source = vector_state(self.random, if self.world.is_long() { 16 } else { 8 });
        let bytes = match instruction.mnemonic() {
            Mnemonic::Fldenv | Mnemonic::Frstor => {
                let mut image = data(self.random, 108);
                if !self.random.one_in(4) {
                    image[0..2].copy_from_slice(&source[0..2]);
                }
                image
            }
            mnemonic => {
                let mut image = source.to_vec();
                if matches!(mnemonic, Mnemonic::Xrstor | Mnemonic::Xrstor64) {
                    let present = self.random.next_u64() & components();
                    image[HEADER] = present as u8;
                    if self.random.one_in(2) {
                        let format = COMPACTED | present | self.random.next_u64() & components();
                        image[XCOMP_BV..XCOMP_BV + 8].copy_from_slice(&format.to_le_bytes());
                    }
                    if self.random.one_in(12) {
                        image[528 + self.random.below(48)] = 1;
                    }
                }
                if self.random.one_in(4) {
                    image[0..6].copy_from_slice(&self.random.next_u64().to_le_bytes()[..6]);
                }
                if self.random.one_in(12) {
                    image[26] = 1;
                }
                image
            }
        };
        self.poke(target, bytes);
    }

    fn segment_load(&mut self, instruction: &Instruction, target: Option<u16>) {
        let value = selector(self.random);
        match instruction.mnemonic() {
            Mnemonic::Pop => self.poke(self.stack_top(), value.to_le_bytes().to_vec()),
            Mnemonic::Mov => {
                if instruction.op1_kind() == OpKind::Register {
                    let register = instruction.op1_register().number();
                    self.input.gpr[register] =
                        self.input.gpr[register] & !0xffff | u64::from(value);
                } else if let Some(target) = target {
                    self.poke(target, value.to_le_bytes().to_vec());
                }
            }
            _ => {
                if let Some(target) = target {
                    let offset = (instruction_size(instruction) - 2) as u16;
                    self.poke(target.wrapping_add(offset), value.to_le_bytes().to_vec());
                }
            }
        }
    }
}
