//! Single string instructions; repeated ones are the monitor's.

use super::{Flow, OddSegment, Translator};
use crate::assembler::host::*;
use crate::assembler::{Host, Mem, Width};
use crate::block::Restore;
use crate::context::at;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use tollgate_x86::SegmentRegister;

/// What a string instruction does with one element.
struct Shape {
    width: Width,
    /// Uses [ESI].
    source: bool,
    /// Uses [ES:EDI].
    destination: bool,
    /// Compares instead of moving.
    compares: bool,
}

fn shape(mnemonic: Mnemonic) -> Shape {
    use Mnemonic::*;
    let width = match mnemonic {
        Movsb | Lodsb | Stosb | Scasb | Cmpsb => Width::Byte,
        Movsw | Lodsw | Stosw | Scasw | Cmpsw => Width::Word,
        _ => Width::Dword,
    };
    Shape {
        width,
        source: matches!(
            mnemonic,
            Movsb | Movsw | Movsd | Lodsb | Lodsw | Lodsd | Cmpsb | Cmpsw | Cmpsd
        ),
        destination: !matches!(mnemonic, Lodsb | Lodsw | Lodsd),
        compares: matches!(mnemonic, Scasb | Scasw | Scasd | Cmpsb | Cmpsw | Cmpsd),
    }
}

fn is_narrow(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|index| {
        matches!(
            instruction.op_kind(index),
            OpKind::MemorySegSI | OpKind::MemoryESDI
        )
    })
}

impl Translator {
    pub(super) fn string(&mut self, instruction: &Instruction) -> Flow {
        if instruction.has_rep_prefix() || instruction.has_repne_prefix() {
            return self.helper(instruction);
        }
        match self.single_string(instruction) {
            Ok(()) => Flow::Next,
            Err(OddSegment) => self.helper(instruction),
        }
    }

    fn single_string(&mut self, instruction: &Instruction) -> Result<(), OddSegment> {
        let shape = shape(instruction.mnemonic());
        let narrow = is_narrow(instruction);
        let source = match instruction.segment_prefix() {
            Register::ES => SegmentRegister::Es,
            Register::CS => SegmentRegister::Cs,
            Register::SS => SegmentRegister::Ss,
            Register::FS => SegmentRegister::Fs,
            Register::GS => SegmentRegister::Gs,
            _ => SegmentRegister::Ds,
        };
        let operand = Mem::base(R9, 0);
        if shape.source {
            self.pointer_to_r8(RSI, narrow);
            self.access(source, shape.width.bytes(), false)?;
            self.assembler.load(shape.width, R11, operand);
        }
        if shape.destination {
            self.pointer_to_r8(RDI, narrow);
            self.access(SegmentRegister::Es, shape.width.bytes(), !shape.compares)?;
        }
        self.make_room();
        // The pointers advance before the last instruction, which commits; marks put
        // them back until then.
        let mut restore = Restore::NONE;
        if shape.source && shape.destination {
            self.assembler.mov(R8, RSI);
            self.assembler.mov(R10, RDI);
            restore = Restore::one(RSI.0, R8.0).and(RDI.0, R10.0);
            self.mark(restore);
            self.advance_with(RSI, &shape, narrow, None);
            self.advance_with(RDI, &shape, narrow, None);
        } else {
            let pointer = if shape.source { RSI } else { RDI };
            self.assembler.mov(R10, pointer);
            restore = restore.and(pointer.0, R10.0);
            self.mark(restore);
            self.advance_with(pointer, &shape, narrow, Some(R8));
        }
        match (shape.source, shape.destination) {
            (true, true) if shape.compares => self.assembler.compare(shape.width, R11, operand),
            (false, _) if shape.compares => self.assembler.compare(shape.width, RAX, operand),
            (true, true) => self.assembler.store(shape.width, operand, R11),
            (false, _) => self.assembler.store(shape.width, operand, RAX),
            (true, false) => match shape.width {
                Width::Byte => self.assembler.load8_keep(RAX, operand),
                Width::Word => self.assembler.load16_keep(RAX, operand),
                _ => self.assembler.load(shape.width, RAX, operand),
            },
        }
        Ok(())
    }

    fn pointer_to_r8(&mut self, pointer: Host, narrow: bool) {
        if narrow {
            self.assembler.movzx16(R8, pointer);
        } else {
            self.assembler.mov32(R8, pointer);
        }
    }

    /// Adds the element size times the direction to a pointer. With `scratch` it holds
    /// the direction; without, the stack-free way through memory operands is used.
    fn advance_with(&mut self, pointer: Host, shape: &Shape, narrow: bool, scratch: Option<Host>) {
        let scale = shape.width.bytes() as u8;
        match scratch {
            Some(scratch) => {
                self.assembler
                    .load(Width::Qword, scratch, Mem::base(R15, at::DIRECTION));
                if narrow {
                    self.assembler
                        .lea32(scratch, Mem::indexed(pointer, scratch, scale, 0));
                    self.assembler.mov16(pointer, scratch);
                } else {
                    self.assembler
                        .lea32(pointer, Mem::indexed(pointer, scratch, scale, 0));
                }
            }
            None => {
                // All four scratch registers are taken: R8 and R10 keep the old pointers,
                // R9 the address, R11 the value. The pointer itself takes the direction
                // and adds its old value, which R8 or R10 has.
                let old = if pointer == RSI { R8 } else { R10 };
                self.assembler
                    .load(Width::Qword, pointer, Mem::base(R15, at::DIRECTION));
                self.assembler
                    .lea32(pointer, Mem::indexed(old, pointer, scale, 0));
                if narrow {
                    self.keep_upper_half(pointer, old);
                }
            }
        }
    }

    /// Gives `pointer` the upper half of `old`, without a scratch register or flags.
    fn keep_upper_half(&mut self, pointer: Host, old: Host) {
        // pointer.low is the result; store it aside in the context, rebuild, and load.
        self.assembler
            .store(Width::Dword, Mem::base(R15, at::EXIT_VALUE), pointer);
        self.assembler.mov(pointer, old);
        self.assembler
            .load16_keep(pointer, Mem::base(R15, at::EXIT_VALUE));
    }
}
