//! Stores which code segments far transfers may enter, for the fast path that makes far transfers
//! without the monitor ([`tollgate_engine::gate::far_fast_path`]).

use crate::memory::addresses::view_of;
use crate::translated::memos::deliveries::place_of;
use crate::translated::processor::Processor;
use iced_x86::Instruction;
use tollgate_engine::abi::context::groups::Changed;
use tollgate_engine::abi::descriptors::KnownDescriptors;
use tollgate_engine::abi::memos::known_code::{FarTransfer, KEY_TRANSFER, KnownCode};
use tollgate_engine::abi::memos::{CodeAfter, Memo};
use tollgate_engine::policy::fast_path::FastInstruction;
use tollgate_engine::policy::mode::{Mode, ModeFlags};
use tollgate_x86::paging::Privilege;
use tollgate_x86::{Attributes, Descriptor, Segment, Selector};

/// The segment that a far transfer at this level enters by a selector whose RPL is the level: flat,
/// present and accessed (SDM volume 3, 5.8.1). The rule is the same for JMP, CALL and RET.
fn code_segment(long: bool, selector: Selector, raw: u64) -> Option<Segment> {
    let mut segment = Descriptor(raw).segment(selector);
    let (attributes, level) = (segment.attributes, selector.rpl());
    let needed = Attributes::PRESENT | Attributes::NOT_SYSTEM | Attributes::ACCESSED;
    let may_enter = match attributes.is_conforming() {
        true => attributes.dpl() <= level,
        false => attributes.dpl() == level,
    };
    if !attributes.contains(needed) || !attributes.is_code() || !may_enter {
        return None;
    }
    let is_big = attributes.contains(Attributes::DEFAULT_BIG);
    if long {
        (segment.base, segment.limit) = (0, u32::MAX);
        return (attributes.is_long_code() && !is_big).then_some(segment);
    }
    (is_big && segment.base == 0 && segment.limit == u32::MAX).then_some(segment)
}

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
        let selector = cpu.cs().selector;
        let family = self.runner.engine.family(self.runner.mode);
        let key =
            fast_path.key(self.runner.mode.0, family)? & !KEY_TRANSFER | u64::from(selector.0);
        let place = place_of(cpu, selector)?;
        let descriptor = self.read_known(place)?;
        let cpu = &self.runner.context.cpu;
        let code = code_segment(long, selector, descriptor)?;
        let supervisor = view_of(Privilege::Supervisor);
        let known = KnownCode {
            key,
            gdt_base: cpu.gdtr.base,
            place,
            descriptor,
            tlb: self.view.translations.table(cpu, supervisor),
            gdt_limit: cpu.gdtr.limit,
            code,
            expected: KnownDescriptors::of(cpu).code,
            ..KnownCode::NONE
        };
        (code == *cpu.cs()).then_some((known, to))
    }
}
