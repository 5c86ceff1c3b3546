//! The verifier: a second, independent check of emitted code.
//!
//! It decodes the host code from scratch, follows control through the block once, in the order of
//! addresses, and notes for each register where its value comes from (`values`). It allows nothing
//! except
//! - what the allow-list copies ([`crate::policy::allow_list::copying`]): on registers that are not
//!   the translator's, and in memory only through a host address that a look-up of at least this
//!   size has yielded, for stores a look-up for stores;
//! - the translator's own accesses (`memory`): the steps of a look-up, each on the result of the
//!   step before, and fields of the context, as far as
//!   [`crate::abi::context_displacements::fields`] lists them for that use; and
//! - the ways to continue (`flow`): branches forward to an instruction of the block, jumps through
//!   an entry whose tag was compared or through the slot of a link, and the exit path after an exit
//!   was named.
//!
//! Take the look-up of [`crate::translate`]'s example: at `mov eax,[rcx+r8]` the verifier knows
//! that this is guest memory, since RCX is what the slot held for 4 bytes at that R8, and RCX is
//! not zero, because JRCXZ did not branch.
//!
//! What is written into the code later is verified too (`patches`): where links lead, and which
//! bytes are immediate operands that may be replaced.
//!
//! The register map says which registers are the translator's.

mod flow;
mod memory;
mod patches;
mod registers;
#[cfg(test)]
mod tests;
mod values;

use crate::abi::immediate::Immediate;
use crate::abi::link_layout::{BranchTable, FamilyId};
use crate::abi::register_map::{Home, RegisterMap};
use crate::abi::signal_completion::{Completion, CompletionKind};
use crate::abi::sites::{BlockId, LinkPlace, NO_AFTER, Site, SiteKind};
use crate::policy::instruction_kind::Helper;
use crate::policy::mode::{Mode, ModeFlags};
use iced_x86::{
    Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpKind, Register,
};
pub use patches::{is_link_distance, verify_patched};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;
use std::ops::Range;
use values::{Kind, Number, Numbers, State, Value};

/// A rule that one instruction breaks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The offset of the instruction in the code.
    pub offset: usize,
    /// The instruction as text.
    pub instruction: String,
    /// The rule that the instruction breaks.
    pub rule: &'static str,
}

/// A block's code and everything that is known about it.
#[derive(Clone, Copy)]
pub struct Subject<'a> {
    /// The host code.
    pub code: &'a [u8],
    /// The block's sites, by number.
    pub sites: &'a [Site],
    /// The instructions that the monitor executes, as the sites number them.
    pub helpers: &'a [Helper],
    /// Immediate operands that can be replaced.
    pub immediates: &'a [Immediate],
    /// Host code that completes a guest instruction in several steps.
    pub completions: &'a [Completion],
    /// The mode of the guest's code.
    pub mode: &'a Mode,
    /// The number of the mode.
    pub mode_id: u32,
    /// Where the mode's indirect branches find their targets.
    pub branch_table: BranchTable,
    /// The mode's family.
    pub family: FamilyId,
    /// The number of the block.
    pub block: BlockId,
    /// Where the guest's registers live.
    pub map: &'a RegisterMap,
}

/// Checks one block's code as it was emitted, before any link is made.
pub fn verify(subject: &Subject<'_>) -> Vec<Finding> {
    Walk::new(subject, &|_| false).run()
}

/// The text of a rule.
type Rule = &'static str;

/// Where control continues after an instruction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Control continues at the next instruction.
    Falls,
    /// Control does not continue at the next instruction.
    Stops,
}

/// A look-up for a store, as it was where its slot was not empty: the test of the store returns
/// there, and must be the test of this look-up.
#[derive(Clone, Copy, PartialEq, Eq)]
struct StoreLookUp {
    linear: Number,
    slot: Number,
    of: Number,
    size: u32,
}

/// One pass over a block.
struct Walk<'a> {
    subject: &'a Subject<'a>,
    /// Whether another block begins at an offset from this block's start.
    is_block: &'a dyn Fn(i64) -> bool,
    numbers: Numbers,
    info: InstructionInfoFactory,
    /// What is known at the targets of branches, by offset.
    waiting: BTreeMap<u64, State>,
    /// The offsets at which the monitor enters the block, and whether the monitor has loaded the
    /// vector registers there if they were loaded when guest code was left.
    entries: BTreeMap<u64, bool>,
    /// Look-ups for stores, by the offset after their branch.
    store_look_ups: FxHashMap<u64, StoreLookUp>,
    /// The offset at which each value of R11 was last used as a pointer, by the value's number.
    last_uses: FxHashMap<Number, u64>,
    /// The result of a shared look-up that R11 holds where the monitor enters, and must hold again
    /// on each entry, by offset.
    windows: FxHashMap<u64, Number>,
    /// The addresses that are known to lie in common parts where the monitor enters, by offset.
    common_at: FxHashMap<u64, Vec<(Number, i64)>>,
    /// Offsets at which the monitor enters without the value that R11 must hold there, with that
    /// value's number.
    lost_windows: Vec<(u64, Number)>,
    /// The exits whose site number the code has stored so far.
    named: FxHashSet<usize>,
    /// The 32-bit distances of direct branches: where each is, and where it leads.
    distances: FxHashMap<u32, i64>,
    /// The immediate operands of copies: where each is, and its number of bytes.
    immediates: FxHashMap<u32, u8>,
    findings: Vec<Finding>,
}

impl<'a> Walk<'a> {
    fn new(subject: &'a Subject<'a>, is_block: &'a dyn Fn(i64) -> bool) -> Self {
        let mut entries = BTreeMap::from([(0, false)]);
        for site in subject.sites {
            if site.kind.comes_back() {
                entries.entry(u64::from(site.retry)).or_insert(true);
            }
            if site.after != NO_AFTER {
                let reloads = !matches!(site.kind, SiteKind::Helper(_));
                *entries.entry(u64::from(site.after)).or_insert(true) &= reloads;
            }
        }
        Self {
            subject,
            is_block,
            numbers: Numbers::default(),
            info: InstructionInfoFactory::new(),
            waiting: BTreeMap::new(),
            entries,
            store_look_ups: FxHashMap::default(),
            last_uses: FxHashMap::default(),
            windows: FxHashMap::default(),
            common_at: FxHashMap::default(),
            lost_windows: Vec::new(),
            named: FxHashSet::default(),
            distances: FxHashMap::default(),
            immediates: FxHashMap::default(),
            findings: Vec::new(),
        }
    }

    fn run(mut self) -> Vec<Finding> {
        let mut decoder = Decoder::with_ip(64, self.subject.code, 0, DecoderOptions::NONE);
        // What is known if the previous instruction continues here.
        let mut flow: Option<State> = None;
        while decoder.can_decode() {
            let offset = decoder.position() as u64;
            let instruction = decoder.decode();
            let mut state = self.state_at(offset, flow.take());
            let named = state.named.take();
            let next = match self.step(&instruction, &mut state, named) {
                Ok(next) => next,
                Err(rule) => {
                    self.find(offset, instruction.to_string(), rule);
                    state.forget_values(&mut self.numbers);
                    Next::Falls
                }
            };
            let constants = decoder.get_constant_offsets(&instruction);
            self.note_constants(offset, &instruction, &constants);
            self.refuse_between(offset, offset + 1..instruction.next_ip());
            flow = (next == Next::Falls).then_some(state);
        }
        let end = self.subject.code.len() as u64;
        if flow.is_some() {
            self.find(end, String::new(), "control leaves the block");
        }
        self.refuse_between(end, end..u64::MAX);
        self.check_tables();
        self.check_windows();
        self.findings
    }

    fn find(&mut self, offset: u64, instruction: String, rule: Rule) {
        self.findings.push(Finding {
            offset: offset as usize,
            instruction,
            rule,
        });
    }

    /// What is known at an offset; `flow` is what is known after the previous instruction, if that
    /// continues here.
    fn state_at(&mut self, offset: u64, flow: Option<State>) -> State {
        let mut state = flow;
        if let Some(branched) = self.waiting.remove(&offset) {
            match &mut state {
                Some(state) => state.merge(&branched, &mut self.numbers),
                None => state = Some(branched),
            }
        }
        let entry = self.entries.remove(&offset);
        match state {
            Some(mut state) => {
                if let Some(keeps_vectors) = entry {
                    let kept = self.common_at_entry(offset, &state.common);
                    let known = state.clone();
                    let before = known.registers;
                    let window = before[11];
                    state.forget_values(&mut self.numbers);
                    self.keep_common(&known, &mut state, kept);
                    if matches!(window.kind, Kind::Checked { .. } | Kind::WindowDelta { .. }) {
                        // The monitor enters with R11 as exits leave it: see `check_windows`.
                        state.registers[11] = window;
                        self.windows.insert(offset, window.number);
                    }
                    if let Kind::WindowDelta { of } = window.kind {
                        self.keep_distances(&before, &mut state, of.0);
                    }
                    state.vectors &= keeps_vectors;
                }
                state
            }
            None => State::unknown(&mut self.numbers),
        }
    }

    /// Selects from `here`, the addresses that lie in common parts if control comes from the code
    /// before, those that also do so if the monitor enters. After an instruction, these are the
    /// addresses that were known at the instruction's start too, since the instruction may have
    /// been executed in another way.
    fn common_at_entry(&mut self, offset: u64, here: &[(Number, i64)]) -> Vec<(Number, i64)> {
        let mut kept = here.to_vec();
        for site in self.subject.sites {
            if site.after != NO_AFTER && u64::from(site.after) == offset {
                let start = self.common_at.get(&u64::from(site.retry));
                kept.retain(|it| start.is_some_and(|start| start.contains(it)));
            }
        }
        self.common_at.insert(offset, kept.clone());
        kept
    }

    /// Keeps, like [`Walk::keep_distances`], the distances of registers and slots from the
    /// addresses in `common`.
    fn keep_common(&mut self, before: &State, state: &mut State, common: Vec<(Number, i64)>) {
        let is_kept = |value: &Value| common.iter().any(|(of, _)| *of == value.near.0);
        for guest in 0..self.subject.map.guest_registers {
            let (before, now) = match self.subject.map.home(guest) {
                Home::Host(home) => {
                    let register = usize::from(home.0 & 15);
                    (before.registers[register], &mut state.registers[register])
                }
                Home::Slot => {
                    let slot = usize::from(guest & 15);
                    (before.slots[slot], &mut state.slots[slot])
                }
            };
            if is_kept(&before) {
                now.near = before.near;
            }
        }
        if is_kept(&before.code_slide) {
            state.code_slide.near = before.code_slide.near;
        }
        state.common = common;
    }

    /// Keeps the distances of guest registers from the value `of`. What the monitor may have done
    /// to guest registers, before an instruction or in its place, is what the code before this
    /// offset does, so the distances are still correct.
    fn keep_distances(&self, before: &[Value; 16], state: &mut State, of: Number) {
        for guest in 0..self.subject.map.guest_registers {
            if let Home::Host(home) = self.subject.map.home(guest) {
                let register = usize::from(home.0 & 15);
                if before[register].near.0 == of {
                    state.registers[register].near = before[register].near;
                }
            }
        }
    }

    /// Reports a branch or an entry that leads where no instruction begins.
    fn refuse_between(&mut self, offset: u64, inside: Range<u64>) {
        let branch = self.waiting.range(inside.clone()).next().is_some();
        let entry = self.entries.range(inside.clone()).next().is_some();
        if branch || entry {
            let text = String::new();
            self.find(
                offset,
                text,
                "a branch or an entry leads into an instruction",
            );
            self.waiting.retain(|target, _| !inside.contains(target));
            self.entries.retain(|target, _| !inside.contains(target));
        }
    }

    /// Checks that each exit was named, that each link is a branch to its stub or to a block, and
    /// that each operand that can be replaced is one.
    fn check_tables(&mut self) {
        let subject = self.subject;
        for (index, site) in subject.sites.iter().enumerate() {
            if !self.named.contains(&index) {
                self.find(0, format!("{site:?}"), "exit is not named");
            }
            if let SiteKind::Link(LinkPlace::Direct { distance, stub, .. }) = site.kind {
                let target = self.distances.get(&distance).copied();
                let leads = target
                    .is_some_and(|target| target == i64::from(stub) || (self.is_block)(target));
                if !leads {
                    self.find(
                        0,
                        format!("{site:?}"),
                        "link is not a branch to its stub or to a block",
                    );
                }
            }
        }
        for immediate in subject.immediates {
            if self.immediates.get(&immediate.host) != Some(&immediate.size) {
                let text = format!("{immediate:?}");
                self.find(0, text, "is not the immediate operand of a copy");
            }
        }
    }

    /// Notes that an exit is taken: the monitor enters again with what R11 holds here.
    fn leave(&mut self, site: usize, state: &State) {
        let site = &self.subject.sites[site];
        let comes_back = site.kind.comes_back();
        for offset in [site.retry, site.after].map(u64::from) {
            if let Some(&window) = self.windows.get(&offset)
                && comes_back
                && state.registers[11].number != window
            {
                self.lost_windows.push((offset, window));
            }
        }
    }

    /// Checks that the result of no shared look-up is used after a place that the monitor enters
    /// with another value in R11.
    fn check_windows(&mut self) {
        for (offset, window) in std::mem::take(&mut self.lost_windows) {
            if self
                .last_uses
                .get(&window)
                .is_some_and(|&use_| use_ >= offset)
            {
                self.find(
                    offset,
                    String::new(),
                    "R11 does not hold the shared look-up's result here",
                );
            }
        }
    }

    fn is_long(&self) -> bool {
        self.subject.mode.flags.contains(ModeFlags::LONG)
    }

    /// The size in bytes of the largest frame that a signal handler may complete.
    fn largest_frame(&self) -> u32 {
        let sizes = self.subject.completions.iter().map(|it| match it.kind {
            CompletionKind::Frame { size, .. } => 3 * u32::from(size),
            CompletionKind::Flags { .. } => 0,
        });
        sizes.max().unwrap_or(0)
    }

    /// Checks one instruction and changes the state as the instruction does; `named` is the exit
    /// that the previous instruction has named.
    fn step(
        &mut self,
        instruction: &Instruction,
        state: &mut State,
        named: Option<usize>,
    ) -> Result<Next, Rule> {
        if instruction.is_invalid() {
            return Err("is not an instruction");
        }
        // GS is the loaded space's anchor: see `Walk::access`.
        let is_by_anchor = instruction.segment_prefix() == Register::GS
            && instruction.op_kinds().any(|kind| kind == OpKind::Memory)
            && instruction.mnemonic() != Mnemonic::Lea;
        let prefixed = instruction.has_segment_prefix() && !is_by_anchor
            || instruction.has_lock_prefix()
            || instruction.has_rep_prefix()
            || instruction.has_repne_prefix();
        if prefixed {
            return Err("has a prefix that is not emitted");
        }
        if let Some(next) = self.flow(instruction, state, named)? {
            return Ok(next);
        }
        self.operation(instruction, state)?;
        Ok(Next::Falls)
    }
}
