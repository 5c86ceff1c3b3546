//! Instructions with an operand at DS:SI or DS:DI that mean the same in 16-, 32- and 64-bit code.

use super::GuestMode;
use tollgate_test_support::Random;

/// The pointer register of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    Source,
    Destination,
}

/// The body of a program that is being built.
pub struct Code {
    mode: GuestMode,
    pub bytes: Vec<u8>,
}

impl Code {
    pub fn new(mode: GuestMode) -> Self {
        Self {
            mode,
            bytes: Vec::new(),
        }
    }

    /// Adds bytes that mean the same in all modes.
    pub fn plain(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// Adds the prefix that makes the operand of an instruction this wide, in bytes, if one is
    /// needed.
    pub fn width(mut self, size: u8) -> Self {
        let usual = if self.mode.is_narrow() { 2 } else { 4 };
        match size {
            8 => self.bytes.push(0x48),
            2 | 4 if size != usual => self.bytes.push(0x66),
            _ => {}
        }
        self
    }

    /// Adds an instruction with a memory operand of `size` bytes. `opcode` is the one for bytes,
    /// the others have bit 0 set. `field` is the register field of the ModR/M byte, and `distance`
    /// is the operand's distance from the pointer.
    pub fn memory(self, size: u8, opcode: &[u8], field: u8, at: At, distance: i8) -> Self {
        let mut this = self.width(size);
        let (last, first) = opcode.split_last().expect("an opcode");
        this.bytes.extend(first);
        this = this.memory_exact(last | u8::from(size > 1), field, at);
        this.bytes.push(distance as u8);
        this
    }

    /// Adds the last byte of an opcode, and the ModR/M byte of an operand with a distance.
    fn memory_exact(mut self, opcode: u8, field: u8, at: At) -> Self {
        let base = match (self.mode.is_narrow(), at) {
            (true, At::Source) => 4,
            (true, At::Destination) => 5,
            (false, At::Source) => 6,
            (false, At::Destination) => 7,
        };
        self.bytes.extend([opcode, 0x40 | field << 3 | base]);
        self
    }

    /// Adds an instruction without operands, of bytes or wider elements.
    pub fn string(self, size: u8, opcode: u8) -> Self {
        let mut this = self.width(size);
        this.bytes.push(opcode | u8::from(size > 1));
        this
    }
}

/// Adds a random instruction that fast paths can execute, with an operand near SI or DI. Its other
/// operands leave RCX, RSP and both pointers alone.
pub fn any_instruction(code: Code, random: &mut Random) -> Code {
    let sizes: &[u8] = match code.mode.is_long() {
        true => &[1, 2, 4, 8],
        false => &[1, 2, 4],
    };
    let size = random.pick(sizes);
    let wide: &[u8] = &[0, 2, 3, 5];
    let register = match size {
        1 => random.pick(&[0, 2, 3, 4, 6, 7]),
        _ => random.pick(wide),
    };
    let at = random.pick(&[At::Source, At::Destination]);
    let distance = random.byte() as i8;
    let operation = random.below(8) as u8;
    let immediate = |code: Code, random: &mut Random| {
        let bytes = random.next_u32().to_le_bytes();
        code.plain(&bytes[..usize::from(size.min(4))])
    };
    match random.below(16) {
        // ADD, OR, ADC, SBB, AND, SUB, XOR, CMP: to memory, from memory, and with a constant.
        0..=2 => code.memory(size, &[operation << 3], register, at, distance),
        3..=4 => code.memory(size, &[operation << 3 | 2], register, at, distance),
        5 => immediate(code.memory(size, &[0x80], operation, at, distance), random),
        // MOV and XCHG.
        6 => code.memory(size, &[0x88], register, at, distance),
        7 => code.memory(size, &[0x8a], register, at, distance),
        8 => code.memory(size, &[0x86], register, at, distance),
        9 => immediate(code.memory(size, &[0xc6], 0, at, distance), random),
        // TEST, INC, DEC, NOT, NEG.
        10 => code.memory(size, &[0x84], register, at, distance),
        11 => code.memory(size, &[0xfe], random.below(2) as u8, at, distance),
        12 => match random.pick(&[0, 2, 3]) {
            0 => immediate(code.memory(size, &[0xf6], 0, at, distance), random),
            field => code.memory(size, &[0xf6], field, at, distance),
        },
        // MOVZX and MOVSX to words.
        13 => {
            let opcode = random.pick(&[0xb6, 0xb7, 0xbe, 0xbf]);
            let mut code = code
                .plain(&[0x0f])
                .memory_exact(opcode, random.pick(wide), at);
            code.bytes.push(distance as u8);
            code
        }
        // Shifts by one, by CL and by a constant.
        14 => {
            let field = random.pick(&[0, 1, 2, 3, 4, 5, 7]);
            match random.below(3) {
                0 => code.memory(size, &[0xd0], field, at, distance),
                1 => code.memory(size, &[0xd2], field, at, distance),
                _ => (code.memory(size, &[0xc0], field, at, distance)).plain(&[random.byte()]),
            }
        }
        // BT, BTS, BTR, BTC of a constant.
        _ => {
            let mut code = code
                .plain(&[0x0f])
                .memory_exact(0xba, 4 + random.below(4) as u8, at);
            code.bytes.push(distance as u8);
            code.plain(&[random.byte()])
        }
    }
}
