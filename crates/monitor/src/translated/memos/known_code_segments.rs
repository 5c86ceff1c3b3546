//! Stores which code segments far transfers may enter, for the fast path that makes far transfers
//! without the monitor ([`tollgate_engine::gate::far_fast_path`]).

use crate::memory::addresses::view_of;
use crate::translated::memos::deliveries::is_flat;
use crate::translated::processor::Processor;
use iced_x86::Instruction;
use tollgate_engine::abi::context::groups::Changed;
use tollgate_engine::abi::descriptors::KnownDescriptors;
use tollgate_engine::abi::memos::known_code::{FarTransfer, KEY_TRANSFER, KnownCode};
use tollgate_engine::abi::memos::{CodeAfter, Memo};
use tollgate_engine::policy::fast_path::FastInstruction;
use tollgate_engine::policy::mode::{Mode, ModeFlags};
use tollgate_x86::paging::Privilege;
use tollgate_x86::{LinearAddress, Watched};

impl Processor<'_> {
    /// Stores a memo of the code segment that a far JMP, CALL or RET has just entered in the
    /// monitor.
    pub(crate) fn remember_code(&mut self, instruction: &Instruction) {
        let Some((mut code, to)) = self.known_code(instruction) else {
            return;
        };
        let from = self.runner.mode;
        let Some(to) = self.intern_for_memo(to) else {
            return;
        };
        if from != to {
            code.changed = Changed::MODE.bits() as u32;
        }
        code.then = CodeAfter::of(self.runner.engine.branch_table(to), to);
        self.runner.context.fast_paths.known_codes.note(code);
    }

    /// The code segment that was just entered, and the mode of its code.
    fn known_code(&mut self, instruction: &Instruction) -> Option<(KnownCode, Mode)> {
        let from = *self.runner.engine.mode(self.runner.mode);
        let map = self.runner.engine.map_of(&from);
        let fast_path = FastInstruction::of(instruction, &from, map)?;
        let FastInstruction::Far(FarTransfer { long, user, .. }) = fast_path else {
            return None;
        };
        let cpu = &self.runner.context.cpu;
        let to = self.runner.mode_of_state();
        let level = if user { 3 } else { 0 };
        let is_user = to.flags.contains(ModeFlags::USER);
        if cpu.cpl() != level || is_user != user || cpu.is_64_bit() != long || to.is_watched() {
            return None;
        }
        // Whatever has entered this segment, a far transfer of this level may enter it by the
        // selector in CS (SDM volume 3, 5.8.1).
        let code = *cpu.cs();
        let known = KnownDescriptors::of(cpu).code;
        if known == Watched::NEVER || !long && !is_flat(&code) || !self.makes_readable(known.place)
        {
            return None;
        }
        let cpu = &self.runner.context.cpu;
        let word = self.view.read_table(cpu, LinearAddress(known.place))?;
        let family = self.runner.engine.family(self.runner.mode);
        let key = fast_path.key(self.runner.mode.0, family)? & !KEY_TRANSFER;
        let memo = KnownCode {
            key: key | u64::from(code.selector.0),
            gdt_base: cpu.gdtr.base,
            descriptor: Watched::all(known.place, word),
            known,
            tlb: (self.view.translations).table(cpu, view_of(Privilege::Supervisor)),
            gdt_limit: cpu.gdtr.limit,
            code,
            ..KnownCode::NONE
        };
        known.matches(word).then_some((memo, to))
    }
}
