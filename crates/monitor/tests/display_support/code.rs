//! Instructions that mean the same in 16-, 32- and 64-bit code: with an operand at DS:SI or DS:DI.

use super::GuestMode;

/// The pointer of an operand.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    Source,
    Destination,
}

/// A body that is put together.
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

    /// Bytes that mean the same in all modes.
    pub fn plain(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend(bytes);
        self
    }

    /// The prefix that makes an instruction's operand this wide, in bytes, if it needs one.
    pub fn width(mut self, size: u8) -> Self {
        let usual = if self.mode.is_narrow() { 2 } else { 4 };
        match size {
            8 => self.bytes.push(0x48),
            2 | 4 if size != usual => self.bytes.push(0x66),
            _ => {}
        }
        self
    }

    /// An instruction with a memory operand of `size` bytes: its opcode for bytes, of which others have
    /// bit 0 set; the field of its ModR/M byte; the operand's distance from the pointer.
    pub fn memory(self, size: u8, opcode: &[u8], field: u8, at: At, distance: i8) -> Self {
        let mut this = self.width(size);
        let (last, first) = opcode.split_last().expect("an opcode");
        this.bytes.extend(first);
        this.bytes.push(last | u8::from(size > 1));
        let base = match (this.mode.is_narrow(), at) {
            (true, At::Source) => 4,
            (true, At::Destination) => 5,
            (false, At::Source) => 6,
            (false, At::Destination) => 7,
        };
        this.bytes
            .extend([0x40 | field << 3 | base, distance as u8]);
        this
    }

    /// An instruction without operands, of bytes or wider ones.
    pub fn string(self, size: u8, opcode: u8) -> Self {
        let mut this = self.width(size);
        this.bytes.push(opcode | u8::from(size > 1));
        this
    }

    /// The same, repeated.
    pub fn repeated_string(mut self, size: u8, prefix: u8, opcode: u8) -> Self {
        self.bytes.push(prefix);
        self.string(size, opcode)
    }
}
