//! Instructions whose routine is called from translated code: [`crate::gate::leaf`].

use super::{Flow, Translator};
use crate::abi::at;
use crate::abi::host::*;
use crate::policy::leaf::Leaf;
use iced_x86::Instruction;

impl Translator {
    /// The leaf that an instruction is here.
    pub(super) fn leaf(&self, instruction: &Instruction) -> Option<Leaf> {
        Leaf::of(instruction, &self.emit.mode, self.emit.map)
    }

    /// CPUID.
    pub(super) fn identify(&mut self, instruction: &Instruction) -> Flow {
        match self.leaf(instruction) {
            Some(leaf) => self.call_leaf(instruction, leaf),
            None => self.helper(instruction),
        }
    }

    /// Names the exit, for what the routine cannot do, and calls the routine. What it needs
    /// beside the key, such as a selector, is in R8. The stack pointer's home holds it whole.
    pub(super) fn call_leaf(&mut self, instruction: &Instruction, leaf: Leaf) -> Flow {
        self.emit.make_room();
        self.emit.flush_esp_first();
        let kind = self.emit.helper_kind(instruction);
        if let Some(key) = leaf.key(self.mode_id) {
            let next = self.emit.next_rip as u32;
            self.emit.assembler.mov_imm64(R9, key);
            self.emit.assembler.mov_imm32(RCX, next);
        }
        let behind = self.emit.assembler.lea_rip(R11);
        self.emit.name_exit(kind);
        let routine = self.emit.field(at::leaf_routine(leaf.routine()));
        let assembler = &mut self.emit.assembler;
        assembler.jmp_memory(routine);
        let position = assembler.position();
        assembler.patch_rel32(behind, position);
        Flow::Next
    }
}
