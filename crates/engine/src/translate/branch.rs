//! Near control transfers, which end a block, except conditional branches that are not taken.

use super::stack::Pushed;
use super::{Flow, Translator};
use crate::abi::context_displacements as at;
use crate::abi::host::Host;
use crate::abi::host::*;
use crate::abi::link_layout::{
    ENTRY_BYTES, ENTRY_NEGATED_SLIDE, ENTRY_SLIDE, ENTRY_TARGET, INDEX_TURN, choices, from_links,
};
use crate::abi::register_map::COUNT;
use crate::abi::sites::SiteKind;
use crate::abi::state_map::Restore;
use crate::emit::assembler::{Mem, Width};
use crate::policy::mode::ModeFlags;
use iced_x86::{Code, ConditionCode, Instruction, Mnemonic, OpKind, Register};
use tollgate_tlb::long_tlb::LONG_ROOT_DISPLACEMENT;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::{Gpr, Vector};

/// Operand width of a near branch, to which EIP is truncated.
fn branch_width(instruction: &Instruction) -> Width {
    match instruction.code() {
        Code::Call_rel16 | Code::Call_rm16 | Code::Jmp_rm16 | Code::Retnw | Code::Retnw_imm16 => {
            Width::Word
        }
        Code::Call_rel32_64
        | Code::Call_rm64
        | Code::Jmp_rel8_64
        | Code::Jmp_rel32_64
        | Code::Jmp_rm64
        | Code::Retnq
        | Code::Retnq_imm16 => Width::Qword,
        _ => Width::Dword,
    }
}

fn condition_bits(condition: ConditionCode) -> u8 {
    match condition {
        ConditionCode::o => 0,
        ConditionCode::no => 1,
        ConditionCode::b => 2,
        ConditionCode::ae => 3,
        ConditionCode::e => 4,
        ConditionCode::ne => 5,
        ConditionCode::be => 6,
        ConditionCode::a => 7,
        ConditionCode::s => 8,
        ConditionCode::ns => 9,
        ConditionCode::p => 10,
        ConditionCode::np => 11,
        ConditionCode::l => 12,
        ConditionCode::ge => 13,
        ConditionCode::le => 14,
        _ => 15,
    }
}

/// Maximum number of link slots that one instruction needs.
const MOST_SLOTS: usize = 3;

impl Translator {
    /// The target of a direct branch. `None` if the target is beyond the code segment's limit or
    /// not canonical, so that the branch itself faults.
    fn direct_target(&self, instruction: &Instruction) -> Option<u64> {
        let target = instruction.near_branch_target();
        let is_reachable = if self.emit.is_64_bit() {
            is_canonical(target)
        } else {
            !self.is_beyond_limit(target)
        };
        is_reachable.then_some(target)
    }

    /// Whether an indirect target of this width can be beyond the code segment's limit.
    fn may_pass_limit(&self, width: Width) -> bool {
        let highest = if width == Width::Word {
            0xffff
        } else {
            u32::MAX
        };
        !self.emit.is_64_bit() && self.emit.mode.code_limit < highest
    }

    /// Makes the site that raises #GP(0) at this instruction if the branch is taken.
    fn fault_site(&mut self) -> usize {
        self.emit.new_site(
            SiteKind::Fault(Vector::GeneralProtection),
            self.emit.rip,
            self.emit.esp_at_start,
            0,
        )
    }

    pub(super) fn jmp(&mut self, instruction: &Instruction) -> Flow {
        match instruction.op0_kind() {
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                let Some(target) = self.direct_target(instruction) else {
                    let site = self.fault_site();
                    self.emit.emit_exit(site);
                    return Flow::End;
                };
                self.emit.flush_esp_first();
                self.emit.link_jump(target);
                Flow::End
            }
            OpKind::FarBranch16 | OpKind::FarBranch32 => self.far(instruction),
            _ if instruction.is_jmp_far_indirect() => self.far(instruction),
            _ => {
                let target = self.free_for_target();
                if !self.load_target(instruction, target) {
                    return self.slow_end();
                }
                self.indirect_branch(target, false);
                Flow::End
            }
        }
    }

    /// The register in which an indirect branch that needs no other registers holds its target.
    /// That is R8, where [`Translator::indirect_branch`] expects the target, unless a 16-bit stack
    /// pointer must be updated first, which uses R8.
    fn free_for_target(&self) -> Host {
        match self.emit.mode.flags.contains(ModeFlags::STACK32) {
            true => R8,
            false => R11,
        }
    }

    /// Lets the monitor execute the instruction, before anything is stored, if a 32-bit target is
    /// beyond the code segment's limit. Uses R9 and RCX.
    fn demand_within_limit(&mut self, target: Host) {
        self.emit.make_room();
        // Computes limit - target, whose upper half is zero exactly if it is not negative.
        self.emit.assembler.mov(R9, target);
        self.emit.assembler.not(R9);
        (self.emit.assembler).mov_imm32(RCX, self.emit.mode.code_limit);
        (self.emit.assembler).lea64(R9, Mem::indexed(R9, RCX, 1, 1));
        self.emit.assembler.rorx(R9, R9, 32);
        self.emit.assembler.mov32(RCX, R9);
        let fits = self.emit.skip_if_zero();
        self.emit.exit(SiteKind::Slow);
        self.emit.land(fits);
        self.emit.note_state(Restore::NONE);
    }

    /// Lets the monitor execute the whole instruction out of line and ends the block, because the
    /// instruction moves control.
    fn slow_end(&mut self) -> Flow {
        self.emit.exit(SiteKind::Slow);
        Flow::End
    }

    /// Loads the target of an indirect branch. Returns false if emitted code cannot use the
    /// operand's segment.
    fn load_target(&mut self, instruction: &Instruction, to: Host) -> bool {
        let width = branch_width(instruction);
        if instruction.op0_kind() == OpKind::Register {
            let register = instruction.op0_register();
            if register.full_register32() == Register::ESP {
                self.emit.flush_esp_first();
            }
            let value = self.emit.value(register, to);
            if width == Width::Word {
                self.emit.assembler.movzx16(to, value);
            } else if value != to || to == R8 && !self.emit.is_64_bit() {
                // A slot holds 64 bits, and a value in R8 is used without truncation.
                self.emit.mov_pointer(to, value);
            }
            return true;
        }
        let bytes = width.bytes();
        let Ok(reach) = self.emit.reach_memory_operand(instruction, bytes, false) else {
            return false;
        };
        self.emit.assembler.load(width, to, reach.mem());
        true
    }

    /// Emits a load that faults if the address is not canonical, so that the monitor executes the
    /// instruction. Leaves the address in R8 and uses RCX.
    pub(super) fn demand_canonical(&mut self, address: Host) {
        let tlb = self.emit.map.tlb;
        if address != R8 {
            self.emit.mov_pointer(R8, address);
        }
        self.emit.assembler.sarx(RCX, R8, tlb);
        let root = Mem::indexed(tlb, RCX, 8, LONG_ROOT_DISPLACEMENT);
        self.emit.assembler.load(Width::Qword, RCX, root);
    }

    pub(super) fn call(&mut self, instruction: &Instruction) -> Flow {
        let width = branch_width(instruction);
        match instruction.op0_kind() {
            OpKind::NearBranch16 | OpKind::NearBranch32 | OpKind::NearBranch64 => {
                // The push must fault before the target does.
                let Some(target) = self.direct_target(instruction) else {
                    return self.slow_end();
                };
                if self.push(Pushed::NextRip, width).is_err() {
                    return self.slow_end();
                }
                // No host instruction after the store can fail, so the call is complete.
                self.emit
                    .note_state_as(target, self.emit.esp, Restore::NONE);
                self.emit.flush_esp();
                self.emit.note_state_as(target, 0, Restore::NONE);
                self.emit.link_jump(target);
                Flow::End
            }
            OpKind::FarBranch16 | OpKind::FarBranch32 => self.far(instruction),
            _ if instruction.is_call_far_indirect() => self.far(instruction),
            _ => {
                // The push either has a look-up of its own, which needs R8, or is in range of the active
                // shared look-up, whose result occupies R11. In the first case the shared look-up is
                // ended here, so that the instruction finds the same state when it is started again
                // after a miss of the push's look-up.
                let bytes = width.bytes();
                let target = match self.emit.is_in_stack_window(-(bytes as i32), bytes, true) {
                    true => R8,
                    false => {
                        self.emit.end_window();
                        R11
                    }
                };
                if !self.load_target(instruction, target) {
                    return self.slow_end();
                }
                if self.emit.is_64_bit() {
                    self.demand_canonical(target);
                } else if self.may_pass_limit(width) {
                    self.demand_within_limit(target);
                }
                if self.push(Pushed::NextRip, width).is_err() {
                    return self.slow_end();
                }
                self.indirect_branch(target, true);
                Flow::End
            }
        }
    }

    pub(super) fn ret(&mut self, instruction: &Instruction) -> Flow {
        let width = branch_width(instruction);
        let Ok(reach) = self.emit.reach_stack_operand(0, width.bytes(), false) else {
            return self.slow_end();
        };
        let target = self.free_for_target();
        self.emit.assembler.load(width, target, reach.mem());
        let extra = if instruction.op_count() == 1 {
            i32::from(instruction.immediate16())
        } else {
            0
        };
        self.emit.esp = self.emit.esp.wrapping_add(width.bytes() as i32 + extra);
        self.indirect_branch(target, false);
        Flow::End
    }

    /// Applies the folded adjustment to ESP's home while the instruction can still be started
    /// again: the state map undoes the adjustment.
    fn rollback_flush(&mut self) {
        let undo = self.emit.esp_at_start.wrapping_sub(self.emit.esp);
        self.emit.flush_esp();
        self.emit.esp_at_start = undo;
        self.emit.note_state(Restore::NONE);
    }

    /// Branches to the EIP in `target` through the hash table. `target` is R11, or R8 if nothing
    /// uses R8 before the branch. A call that has stored its return address (`is_called`) cannot be
    /// started again, because the store may have overwritten the memory that the target was loaded
    /// from. The state map then says that the call is complete.
    pub(super) fn indirect_branch(&mut self, target: Host, is_called: bool) {
        if is_called {
            self.emit
                .note_state_as(self.emit.rip, self.emit.esp, Restore::NONE.with_eip(target));
        }
        self.rollback_flush();
        if is_called {
            self.emit
                .note_state_as(self.emit.rip, 0, Restore::NONE.with_eip(target));
        }
        self.emit.make_room();
        if target != R8 {
            self.emit.mov_pointer(R8, target);
        }
        self.note_state_of_branch(is_called, Restore::NONE);
        if self.emit.mode.flags.contains(ModeFlags::SINGLE) {
            self.indirect_exit();
            return;
        }
        self.index_of_target();
        self.emit.assembler.lea64(R9, Mem::scaled(R9, 4));
        // The entry holds the negated tag, so the sum is zero if the entry belongs to this target.
        let is_shared = self.branch_table.is_shared();
        if is_shared {
            self.emit
                .assembler
                .mov_imm64(R11, (u64::from(self.mode_id) << 32) + 1);
        }
        let links = self.emit.map.links;
        let choices = choices(self.branch_table);
        let hits = choices.map(|table| {
            let tag = Mem::indexed(links, R9, 8, from_links(table));
            self.emit.assembler.load(Width::Qword, RCX, tag);
            if is_shared {
                self.emit.assembler.lea64(RCX, Mem::indexed(RCX, R8, 1, 0));
                self.emit.assembler.lea64(RCX, Mem::indexed(RCX, R11, 1, 0));
            } else {
                self.emit.assembler.lea64(RCX, Mem::indexed(RCX, R8, 1, 1));
            }
            self.emit.skip_if_zero()
        });
        let [first_hit, second_hit] = hits;
        self.note_state_of_branch(is_called, Restore::NONE);
        self.indirect_exit();
        self.emit.land(second_hit);
        self.note_state_of_branch(is_called, Restore::NONE);
        let next = Mem::base(R9, ENTRY_BYTES / 8);
        self.emit.assembler.lea64(R9, next);
        self.emit.land(first_hit);
        self.note_state_of_branch(is_called, Restore::NONE);
        let [first, _] = choices;
        let entry = |part| Mem::indexed(links, R9, 8, from_links(first + part));
        if self.emit.mode.is_relocatable() {
            self.load_code_slide(entry);
        }
        self.emit.assembler.jmp_memory(entry(ENTRY_TARGET));
    }

    /// Computes the index of the entry in which the target in R8 is looked for first in R9 (see
    /// [`crate::abi::link_layout::first_choice`]).
    pub(super) fn index_of_target(&mut self) {
        let links = self.emit.map.links;
        self.emit.assembler.rorx(R9, R8, INDEX_TURN);
        self.emit.assembler.shrx(R9, R9, links);
    }

    /// Makes the slide of an indirect branch's target the current slide. `entry` gives the place of
    /// a part of the target's entry, and the target is in R8. After that the branch is complete:
    /// the slide no longer belongs to this block, so the state map must not depend on it.
    ///
    /// Most branches lead to code with the same slide. So the slide is compared first and not
    /// stored again, because the processor predicts the outcome of a comparison. After a store, the
    /// next use of the slide, which is often the address of the next branch's pointer, would have
    /// to wait for the load from this entry. In a program that calls functions of shared libraries,
    /// all calls and returns would form one chain of such loads.
    pub(super) fn load_code_slide(&mut self, entry: impl Fn(i32) -> Mem) {
        let place = self.emit.field(at::CODE_SLIDE);
        let assembler = &mut self.emit.assembler;
        assembler.load(Width::Qword, R11, place);
        assembler.load(Width::Qword, RCX, entry(ENTRY_NEGATED_SLIDE));
        assembler.lea64(RCX, Mem::indexed(RCX, R11, 1, 0));
        let same = self.emit.skip_if_zero();
        let assembler = &mut self.emit.assembler;
        assembler.load(Width::Qword, R11, entry(ENTRY_SLIDE));
        assembler.store(Width::Qword, place, R11);
        self.emit.land(same);
        let done = Restore::NONE.with_eip(R8);
        self.emit.note_state_as(self.emit.rip, 0, done);
    }

    /// Makes the state-map entry for a place in an indirect branch whose target is in R8. A call is
    /// complete at that place.
    fn note_state_of_branch(&mut self, is_called: bool, restore: Restore) {
        if is_called {
            self.emit
                .note_state_as(self.emit.rip, 0, restore.with_eip(R8));
        } else {
            self.emit.note_state(restore);
        }
    }

    /// Emits the exit with the target in R8. The site's ESP undoes the branch if the target turns
    /// out to be beyond the limit.
    fn indirect_exit(&mut self) {
        self.emit
            .assembler
            .store(Width::Qword, self.emit.field(at::EXIT_VALUE), R8);
        let site = self
            .emit
            .new_site(SiteKind::Indirect, self.emit.rip, self.emit.esp_at_start, 0);
        self.emit.emit_exit(site);
    }

    pub(super) fn jcc(&mut self, instruction: &Instruction) -> Flow {
        self.emit.flush_esp_first();
        let branch = self
            .emit
            .assembler
            .jcc(condition_bits(instruction.condition_code()));
        self.taken(branch, instruction);
        if self.emit.has_slots(MOST_SLOTS) {
            self.emit.make_room();
            return Flow::Next;
        }
        self.emit.link_jump(self.emit.next_rip);
        Flow::End
    }

    /// Sets where a 32-bit branch leads if it is taken.
    fn taken(&mut self, branch: crate::emit::assembler::Patch, instruction: &Instruction) {
        match self.direct_target(instruction) {
            Some(target) => self.emit.link_branch(branch, target),
            None => {
                let site = self.fault_site();
                self.emit.fault_branch(branch, site);
            }
        }
    }

    pub(super) fn jcxz(&mut self, instruction: &Instruction) -> Flow {
        self.emit.flush_esp_first();
        let width = count_width(instruction);
        match width {
            Width::Word => self.emit.assembler.movzx16(RCX, COUNT),
            Width::Qword => self.emit.assembler.mov(RCX, COUNT),
            _ => self.emit.assembler.mov32(RCX, COUNT),
        }
        let zero = self.emit.skip_if_zero();
        let onward = self.emit.jmp_across();
        self.emit.land(zero);
        let branch = self.emit.assembler.jmp();
        self.taken(branch, instruction);
        let onward = self.emit.jump_across(onward);
        self.emit.link_branch(onward, self.emit.next_rip);
        Flow::End
    }

    /// LOOP, LOOPE and LOOPNE change the count but not the flags.
    pub(super) fn loop_instruction(&mut self, instruction: &Instruction) -> Flow {
        self.emit.flush_esp_first();
        let Some(target) = self.direct_target(instruction) else {
            return self.slow_end();
        };
        let width = count_width(instruction);
        // `count` is the register that holds the whole new ECX; RCX has the part of it that is
        // tested.
        let count = match width {
            Width::Word => {
                self.emit.assembler.lea32(R8, Mem::base(COUNT, -1));
                self.emit.assembler.mov32(R11, COUNT);
                self.emit.assembler.mov16(R11, R8);
                self.emit.assembler.movzx16(RCX, R11);
                R11
            }
            Width::Qword => {
                self.emit.assembler.lea64(RCX, Mem::base(COUNT, -1));
                RCX
            }
            _ => {
                self.emit.assembler.lea32(RCX, Mem::base(COUNT, -1));
                RCX
            }
        };
        let condition = match instruction.mnemonic() {
            Mnemonic::Loope => Some(4),
            Mnemonic::Loopne => Some(5),
            _ => None,
        };
        if condition.is_some() {
            self.emit.assembler.mov(R8, COUNT);
        }
        let zero = self.emit.skip_if_zero();
        self.emit.assembler.mov(COUNT, count);
        // Until a conditional branch was decided, the instruction is not complete.
        let branch = condition.map(|condition| {
            self.emit.note_state(Restore::one(Gpr::Rcx as u8, R8));
            self.emit.jcc_across(condition)
        });
        // If there is a condition that does not hold, control falls through to the onward jump.
        let (branch, onward) = match branch {
            Some(branch) => {
                self.emit
                    .note_state_as(self.emit.next_rip, 0, Restore::NONE);
                (branch, Some(self.emit.jmp_across()))
            }
            None => {
                self.emit.note_state_as(target, 0, Restore::NONE);
                (self.emit.jmp_across(), None)
            }
        };
        self.emit.land(zero);
        self.emit.note_state(Restore::NONE);
        self.emit.assembler.mov(COUNT, count);
        self.emit
            .note_state_as(self.emit.next_rip, 0, Restore::NONE);
        let finished = self.emit.assembler.jmp();
        let branch = self.emit.jump_across(branch);
        self.emit.link_branch(branch, target);
        self.emit.link_branch(finished, self.emit.next_rip);
        if let Some(onward) = onward {
            let onward = self.emit.jump_across(onward);
            self.emit.link_branch(onward, self.emit.next_rip);
        }
        Flow::End
    }
}

/// Size of the counting register, which is the address size.
fn count_width(instruction: &Instruction) -> Width {
    use Code::*;
    match instruction.code() {
        Jcxz_rel8_16 | Jcxz_rel8_32 | Loop_rel8_16_CX | Loop_rel8_32_CX | Loope_rel8_16_CX
        | Loope_rel8_32_CX | Loopne_rel8_16_CX | Loopne_rel8_32_CX => Width::Word,
        Jrcxz_rel8_16 | Jrcxz_rel8_64 | Loop_rel8_16_RCX | Loop_rel8_64_RCX | Loope_rel8_16_RCX
        | Loope_rel8_64_RCX | Loopne_rel8_16_RCX | Loopne_rel8_64_RCX => Width::Qword,
        _ => Width::Dword,
    }
}
