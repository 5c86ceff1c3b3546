//! String instructions: inline code for single ones, and calls of routines for repeated ones
//! ([`crate::gate::string`]). The monitor executes those that have no routine.

use super::{Flow, Translator};
use crate::abi::context_displacements as at;
use crate::abi::host::Host;
use crate::abi::host::*;
use crate::abi::register_map::{ACCUMULATOR, Home};
use crate::abi::state_map::{Restore, Source};
use crate::abi::strings::Reach as RoutineReach;
use crate::emit::assembler::{Mem, Width};
use crate::emit::effective_address::Offset;
use crate::emit::guest_operand_form::Reach;
use crate::emit::look_up::OddSegment;
use crate::emit::named_operands::segment_of;
use crate::policy::string_routine::{source_segment, string_routine};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use tollgate_x86::{Gpr, SegmentRegister};

/// Number of the pointer ESI.
const ESI: u8 = Gpr::Rsi as u8;
const EDI: u8 = Gpr::Rdi as u8;

/// What a string instruction does with one element.
struct Shape {
    width: Width,
    /// The instruction uses [ESI].
    source: bool,
    /// The instruction uses `[ES:EDI]`.
    destination: bool,
    /// The instruction compares instead of moving.
    compares: bool,
}

fn shape(mnemonic: Mnemonic) -> Shape {
    use Mnemonic::*;
    let width = match mnemonic {
        Movsb | Lodsb | Stosb | Scasb | Cmpsb => Width::Byte,
        Movsw | Lodsw | Stosw | Scasw | Cmpsw => Width::Word,
        Movsq | Lodsq | Stosq | Scasq | Cmpsq => Width::Qword,
        _ => Width::Dword,
    };
    Shape {
        width,
        source: matches!(
            mnemonic,
            Movsb
                | Movsw
                | Movsd
                | Movsq
                | Lodsb
                | Lodsw
                | Lodsd
                | Lodsq
                | Cmpsb
                | Cmpsw
                | Cmpsd
                | Cmpsq
        ),
        destination: !matches!(mnemonic, Lodsb | Lodsw | Lodsd | Lodsq),
        compares: matches!(
            mnemonic,
            Scasb | Scasw | Scasd | Scasq | Cmpsb | Cmpsw | Cmpsd | Cmpsq
        ),
    }
}

/// Size of the pointers, which is the address size.
fn pointer_width(instruction: &Instruction) -> Width {
    let kinds = (0..instruction.op_count()).map(|index| instruction.op_kind(index));
    for kind in kinds {
        match kind {
            OpKind::MemorySegSI | OpKind::MemoryESDI => return Width::Word,
            OpKind::MemorySegRSI | OpKind::MemoryESRDI => return Width::Qword,
            _ => {}
        }
    }
    Width::Dword
}

impl Translator {
    pub(super) fn string(&mut self, instruction: &Instruction) -> Flow {
        if instruction.has_rep_prefix() || instruction.has_repne_prefix() {
            return self.repeated_string(instruction);
        }
        match self.single_string(instruction) {
            Ok(()) => Flow::Next,
            Err(OddSegment) => self.helper(instruction),
        }
    }

    /// Emits the call of a routine. The exit is named first, for cases that the routine cannot
    /// handle.
    fn repeated_string(&mut self, instruction: &Instruction) -> Flow {
        let routine = string_routine(instruction, &self.emit.mode, self.emit.map);
        let Some(routine) = routine else {
            return self.helper(instruction);
        };
        self.emit.flush_esp_first();
        let kind = self.emit.helper_kind(instruction);
        let behind = self.emit.assembler.lea_rip(R11);
        if routine.reach() == RoutineReach::Words {
            let base = self
                .emit
                .field(at::segment_base(source_segment(instruction)));
            self.emit.assembler.load(Width::Qword, R8, base);
        }
        self.emit.name_exit(kind);
        let routine = self.emit.field(at::string_routine(routine));
        let assembler = &mut self.emit.assembler;
        assembler.jmp_memory(routine);
        let position = assembler.position();
        assembler.patch_rel32(behind, position);
        Flow::Next
    }

    fn single_string(&mut self, instruction: &Instruction) -> Result<(), OddSegment> {
        let shape = shape(instruction.mnemonic());
        let pointers = pointer_width(instruction);
        let source = segment_of(instruction.segment_prefix());
        let size = shape.width.bytes();
        if shape.source {
            let offset = self.pointer_to_r8(Register::ESI, pointers);
            self.emit.access_sum(source, offset, size, false)?;
        }
        if shape.destination {
            if shape.source {
                let element = Reach::Sum.mem();
                self.emit.assembler.load(shape.width, R11, element);
            }
            let offset = self.pointer_to_r8(Register::EDI, pointers);
            let es = SegmentRegister::Es;
            self.emit.access_sum(es, offset, size, !shape.compares)?;
        }
        match (self.emit.map.home(ESI), self.emit.map.home(EDI)) {
            (Home::Host(source), Home::Host(destination)) if !self.emit.may_fault() => {
                self.advance_undivided([source, destination], &shape, pointers);
                self.element(&shape, Reach::Sum);
            }
            (Home::Host(source), Home::Host(destination)) => {
                self.emit.point(Reach::Sum);
                self.emit.make_room();
                self.advance_before(source, destination, &shape, pointers);
                self.element(&shape, Reach::Pointer);
            }
            _ => {
                self.emit.point(Reach::Sum);
                self.emit.make_room();
                self.advance_behind(&shape, pointers);
            }
        }
        Ok(())
    }

    /// Advances pointers in host registers before the last host instruction. The changes and that
    /// instruction are undivided, because none of them can fault. R9 is free, and R11 too unless it
    /// holds an element.
    fn advance_undivided(&mut self, homes: [Host; 2], shape: &Shape, pointers: Width) {
        self.begin_undivided();
        let direction = self.emit.field(at::DIRECTION);
        let scale = shape.width.bytes() as u8;
        let used = [shape.source, shape.destination];
        let used = homes.into_iter().zip(used).filter(|&(_, used)| used);
        for (number, (home, _)) in used.enumerate() {
            let assembler = &mut self.emit.assembler;
            if number == 0 || pointers == Width::Word {
                assembler.load(Width::Qword, R9, direction);
            }
            let moved = Mem::indexed(home, R9, scale, 0);
            match pointers {
                Width::Word => {
                    assembler.lea32(R9, moved);
                    assembler.mov16(home, R9);
                }
                Width::Qword => assembler.lea64(home, moved),
                _ => assembler.lea32(home, moved),
            }
        }
    }

    /// Emits the last host instruction of the sequence, which works on the element at `reach`. If
    /// there is another element, at ESI, it is in R11.
    fn element(&mut self, shape: &Shape, reach: Reach) {
        let operand = reach.mem();
        let value = if shape.source { R11 } else { ACCUMULATOR };
        match (shape.destination, shape.width) {
            (true, width) if shape.compares => self.emit.assembler.compare(width, value, operand),
            (true, width) => self.emit.assembler.store(width, operand, value),
            (false, Width::Byte) => self.emit.assembler.load8_keep(ACCUMULATOR, operand),
            (false, Width::Word) => self.emit.assembler.load16_keep(ACCUMULATOR, operand),
            (false, width) => self.emit.assembler.load(width, ACCUMULATOR, operand),
        }
    }

    /// Advances pointers in host registers before the last host instruction, which may fault and
    /// which commits. Until then the state map says where the old pointers are.
    fn advance_before(&mut self, source: Host, destination: Host, shape: &Shape, pointers: Width) {
        if shape.source && shape.destination && pointers == Width::Word {
            self.advance_words(source, destination, shape);
            return;
        }
        if shape.source && shape.destination {
            // In 64-bit code the pointer is the linear address. If a fault occurs where there is no
            // shadow window, the fault's handler reads the address from R8, so the access that may
            // fault has its pointer in R8.
            self.emit.assembler.mov(RCX, source);
            self.emit.assembler.mov(R8, destination);
            self.emit
                .note_state(Restore::one(ESI, RCX).and(EDI, Source::Host(R8)));
            self.advance_from(source, RCX, shape, pointers);
            self.advance_from(destination, R8, shape, pointers);
            return;
        }
        let (guest, pointer) = if shape.source {
            (ESI, source)
        } else {
            (EDI, destination)
        };
        self.emit.assembler.mov(RCX, pointer);
        self.emit.note_state(Restore::one(guest, RCX));
        // R8 keeps the linear address for the handler of a fault where there is no shadow window.
        self.advance(pointer, R11, shape, pointers);
    }

    /// Advances both 16-bit pointers before the last host instruction. Their old values go to their
    /// slots to free scratch registers: R9 holds the address, R11 the value.
    fn advance_words(&mut self, source: Host, destination: Host, shape: &Shape) {
        let scale = shape.width.bytes() as u8;
        for (guest, home) in [(ESI, source), (EDI, destination)] {
            let slot = self.emit.slot(guest);
            self.emit.assembler.store(Width::Qword, slot, home);
        }
        self.emit
            .note_state(Restore::NONE.and(ESI, Source::Slot).and(EDI, Source::Slot));
        self.emit
            .assembler
            .load(Width::Qword, R8, self.emit.field(at::DIRECTION));
        for home in [source, destination] {
            self.emit
                .assembler
                .lea32(RCX, Mem::indexed(home, R8, scale, 0));
            self.emit.assembler.mov16(home, RCX);
        }
    }

    /// Computes the pointers' new values in scratch registers, and moves them to their homes after
    /// the host instruction that works on the element. The guest's instruction is complete then:
    /// the state map says where the pointers are.
    fn advance_behind(&mut self, shape: &Shape, size: Width) {
        let both = shape.source && shape.destination;
        let pointers = [(ESI, R8, shape.source), (EDI, RCX, shape.destination)];
        let pointers = pointers.into_iter().filter(|&(.., used)| used);
        // R9 points to the element, so R11 is used for several values in turn.
        if both {
            self.emit
                .assembler
                .store(Width::Qword, self.emit.field(at::EXIT_VALUE), R11);
        }
        let mut restore = Restore::NONE;
        for (guest, place, _) in pointers.clone() {
            match self.emit.map.home(guest) {
                Home::Host(home) => self.emit.assembler.mov(place, home),
                Home::Slot => self
                    .emit
                    .assembler
                    .load(Width::Qword, place, self.emit.slot(guest)),
            }
            self.advance(place, R11, shape, size);
            restore = restore.and(guest, Source::Host(place));
        }
        if both {
            self.emit
                .assembler
                .load(Width::Qword, R11, self.emit.field(at::EXIT_VALUE));
        }
        self.element(shape, Reach::Pointer);
        self.emit
            .note_state_as(self.emit.next_rip, self.emit.esp, restore);
        for (guest, place, _) in pointers {
            match self.emit.map.home(guest) {
                Home::Host(home) => self.emit.assembler.mov(home, place),
                Home::Slot => self
                    .emit
                    .assembler
                    .store(Width::Qword, self.emit.slot(guest), place),
            }
        }
        self.emit
            .note_state_as(self.emit.next_rip, self.emit.esp, Restore::NONE);
    }

    fn pointer_to_r8(&mut self, pointer: Register, pointers: Width) -> Offset {
        let value = self.emit.address_value(pointer, R8);
        if pointers == Width::Word {
            self.emit.assembler.movzx16(R8, value);
            return Offset::Word;
        } else if pointers == Width::Qword {
            self.emit.assembler.mov(R8, value);
        } else if value != R8 {
            self.emit.assembler.mov32(R8, value);
        }
        Offset::Wide
    }

    /// Adds the element size times the direction to a pointer. `scratch` gets the direction.
    fn advance(&mut self, pointer: Host, scratch: Host, shape: &Shape, pointers: Width) {
        let moved = Mem::indexed(pointer, scratch, shape.width.bytes() as u8, 0);
        self.emit
            .assembler
            .load(Width::Qword, scratch, self.emit.field(at::DIRECTION));
        match pointers {
            Width::Word => {
                self.emit.assembler.lea32(scratch, moved);
                self.emit.assembler.mov16(pointer, scratch);
            }
            Width::Qword => self.emit.assembler.lea64(pointer, moved),
            _ => self.emit.assembler.lea32(pointer, moved),
        }
    }

    /// Advances a pointer when all four scratch registers are taken: R8 and RCX keep the old
    /// pointers, R9 the address, R11 the value. The pointer's own register gets the direction, to
    /// which its old value is added.
    fn advance_from(&mut self, pointer: Host, old: Host, shape: &Shape, pointers: Width) {
        let scale = shape.width.bytes() as u8;
        self.emit
            .assembler
            .load(Width::Qword, pointer, self.emit.field(at::DIRECTION));
        let moved = Mem::indexed(old, pointer, scale, 0);
        if pointers == Width::Qword {
            self.emit.assembler.lea64(pointer, moved);
        } else {
            self.emit.assembler.lea32(pointer, moved);
        }
    }
}
