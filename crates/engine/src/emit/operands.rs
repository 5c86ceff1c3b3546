//! Register operands: how guest registers are read and written, and how the registers of a copied
//! instruction get to their places and back home.
//!
//! A register that must be elsewhere while its instruction runs (`placement` decides which, and
//! where) is brought there before the instruction and taken home after it. Until the instruction
//! has run, the state map says which homes hold something else. After it, the state map says that
//! the instruction is complete and which registers are still away, until they are home too. So
//! nothing is done twice and nothing is lost, wherever a signal arrives.

use super::emitter::Emitter;
use super::named_operands::{guest_number, name_of};
use super::placement::{Operand, Placement};
use crate::abi::context_displacements as at;
use crate::abi::host::Host;
use crate::abi::register_map::Home;
use crate::abi::state_map::{Restore, Source};
use crate::emit::assembler::{Mem, Width};
use iced_x86::{Instruction, OpKind, Register};

impl Emitter {
    /// The slot of a guest register.
    pub(crate) fn slot(&self, guest: u8) -> Mem {
        self.field(at::slot(guest))
    }

    /// The register from which a guest register's value can be read: its home, a scratch register
    /// that holds it, or `scratch`, into which the value is then loaded.
    pub(crate) fn value(&mut self, register: Register, scratch: Host) -> Host {
        let guest = guest_number(register).unwrap_or(0);
        match self.map.home(guest) {
            Home::Host(host) => host,
            Home::Slot => self.slot_value(guest, scratch),
        }
    }

    /// The register from which the value of a guest register can be read for an address, as with
    /// [`Emitter::value`]. If the code is not 64-bit code, only 32 bits are loaded from a slot.
    pub(crate) fn address_value(&mut self, register: Register, scratch: Host) -> Host {
        let guest = guest_number(register).unwrap_or(0);
        match self.map.home(guest) {
            Home::Slot if !self.is_64_bit() => {
                self.assembler.load(Width::Dword, scratch, self.slot(guest));
                scratch
            }
            _ => self.value(register, scratch),
        }
    }

    /// Emits `register := from`, of a word, a doubleword or a quadword, in one host instruction.
    /// Doublewords in 64-bit code are not supported here.
    pub(crate) fn set_register(&mut self, register: Register, from: Host, width: Width) {
        let guest = guest_number(register).unwrap_or(0);
        match self.map.home(guest) {
            Home::Host(host) if width == Width::Word => self.assembler.mov16(host, from),
            Home::Host(host) if width == Width::Qword => self.assembler.mov(host, from),
            Home::Host(host) => self.assembler.mov32(host, from),
            Home::Slot => self.assembler.store(width, self.slot(guest), from),
        }
    }

    /// Names the places of the register operands in the copy of an instruction.
    pub(crate) fn rename_operands(&self, placement: &Placement, copy: &mut Instruction) {
        for index in 0..copy.op_count() {
            if copy.op_kind(index) != OpKind::Register {
                continue;
            }
            let register = copy.op_register(index);
            let Some(guest) = guest_number(register) else {
                continue;
            };
            let operand = placement.operands.iter().find(|o| o.guest == guest);
            let host = match (operand, self.map.home(guest)) {
                (Some(operand), _) => operand.place,
                (None, Home::Host(home)) => home,
                (None, Home::Slot) => continue,
            };
            copy.set_op_register(index, name_of(host, register));
        }
    }

    /// Brings the registers to their places before the instruction.
    pub(crate) fn bring_operands(&mut self, placement: &Placement) {
        if self.slot_mask != 0 {
            self.make_room();
        }
        let mut saved = Restore::NONE;
        for borrowed in &placement.borrowed {
            match borrowed.saved {
                Source::Host(scratch) => self.assembler.mov(scratch, borrowed.host),
                Source::Slot => {
                    let slot = self.slot(borrowed.guest);
                    self.assembler.store(Width::Qword, slot, borrowed.host);
                }
            }
            saved = saved.and(borrowed.guest, borrowed.saved);
        }
        if saved != Restore::NONE {
            self.note_state(saved);
        }
        for operand in &placement.operands {
            if let Home::Host(home) = operand.home
                && home != operand.place
                && (operand.read || placement.displaces(operand))
            {
                self.assembler.mov(operand.place, home);
            }
        }
        let displaced = placement.displaced();
        if displaced != saved {
            self.note_state(displaced);
        }
        for operand in &placement.operands {
            let is_held = self.held.holder(operand.guest) == Some(operand.place);
            if operand.home == Home::Slot && operand.read && !is_held {
                let slot = self.slot(operand.guest);
                self.assembler.load(Width::Qword, operand.place, slot);
                if self.held.may_hold(operand.place) {
                    self.held.hold(operand.place, operand.guest, false);
                }
            }
        }
    }

    /// Takes the registers home after the instruction, which is complete. Values that scratch
    /// registers may hold stay there.
    pub(crate) fn take_operands_home(&mut self, placement: &Placement) {
        let displaced = placement.displaced();
        let mut restore = displaced;
        let mut stays = 0_u16;
        for operand in placement.changed() {
            if operand.home == Home::Slot && self.held.may_hold(operand.place) {
                self.held.hold(operand.place, operand.guest, true);
                stays |= 1 << operand.guest;
            } else {
                restore = restore.and(operand.guest, Source::Host(operand.place));
            }
        }
        if restore == Restore::NONE && stays == 0 {
            return;
        }
        self.note_state_as(self.next_rip, self.esp, restore);
        if restore == Restore::NONE {
            return;
        }
        if self.slot_mask != 0 {
            self.make_room();
        }
        let goes_home = |operand: &&Operand| stays >> operand.guest & 1 == 0;
        for operand in placement.changed().filter(goes_home) {
            match operand.home {
                Home::Host(home) => self.assembler.mov(home, operand.place),
                Home::Slot => {
                    let slot = self.slot(operand.guest);
                    self.assembler.store(Width::Qword, slot, operand.place);
                }
            }
        }
        self.note_state_as(self.next_rip, self.esp, displaced);
        self.end_displacement(placement);
        self.note_state_as(self.next_rip, self.esp, Restore::NONE);
    }

    /// Reverses [`Emitter::bring_operands`], because the instruction is not run after all.
    pub(crate) fn abandon_operands(&mut self, placement: &Placement) {
        self.note_state(placement.displaced());
        self.end_displacement(placement);
        self.note_state(Restore::NONE);
    }

    /// Moves the values of guest registers back into those of their homes that were used as places.
    pub(crate) fn end_displacement(&mut self, placement: &Placement) {
        for operand in &placement.operands {
            if let Home::Host(home) = operand.home
                && placement.displaces(operand)
            {
                self.assembler.mov(home, operand.place);
            }
        }
        for borrowed in &placement.borrowed {
            match borrowed.saved {
                Source::Host(scratch) => self.assembler.mov(borrowed.host, scratch),
                Source::Slot => {
                    let slot = self.slot(borrowed.guest);
                    self.assembler.load(Width::Qword, borrowed.host, slot);
                }
            }
        }
    }
}
