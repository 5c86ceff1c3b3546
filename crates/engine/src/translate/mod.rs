//! The translator of one block: from guest instructions to host code.
//!
//! A worked example. The guest's 32-bit flat code
//!
//! ```text
//! mov eax, [ebx+8]
//! ```
//!
//! becomes the following host code (the registers of 32-bit guests are in their namesakes, except
//! ESP in R12 and ECX in R10: see [`crate::abi::register_map`])
//!
//! ```text
//! lea   r8d, [rbx+8]             ; linear address
//! shrx  r9, r8, r15              ; page numbers: the low bits of R15 are 12
//! lea   rcx, [r8+3]              ; its last byte
//! shrx  rcx, rcx, r15
//! lea   r9, [r9+rcx]             ; TLB slot, odd if the access straddles pages
//! mov   rcx, [r14+r9*8]          ; host minus linear address, or 0
//! jrcxz miss                     ; branches without touching flags
//! mov   eax, [rcx+r8]            ; the guest's own instruction
//! ```
//!
//! Every sequence obeys these rules:
//! - Arithmetic flags change only in the guest's own instruction.
//! - Guest registers are always found through the register map. ESP's home holds ESP minus a folded
//!   adjustment.
//! - R8, R9, R11 and RCX are scratch registers. A look-up leaves the linear address in R8 and the
//!   distance from there to the host address in RCX; if the code needs a pointer, R9 has the sum.
//!   R11 carries a value across look-ups. After the look-up, the instruction's own operands use
//!   scratch registers (`operands`, `placement`).
//! - Until its last host instruction a sequence can be started again. For any host address, the
//!   [state map](crate::abi::state_map::StateEntry) says which guest instruction the sequence belongs to, and
//!   which registers must be put back first.

mod base_registers;
mod bits;
mod branch;
mod control;
pub mod copy;
mod count;
#[cfg(test)]
mod direct_tests;
mod dispatch;
mod encoding_facts;
mod far;
mod fast_path;
mod flags;
mod held_register_rules;
mod interrupt;
#[cfg(test)]
mod long_tests;
mod look_up_plan;
mod noted_instructions;
mod redirected_interrupts;
mod segments;
mod stack;
mod stack_all;
mod string;
mod system_call;
#[cfg(test)]
mod tests;
mod verbatim;
mod x87;

use self::encoding_facts::KnownEncodings;
use self::look_up_plan::{Ahead, BETWEEN_CHECKPOINTS};
use self::noted_instructions::NotedInstructions;
use crate::abi::context_displacements as at;
use crate::abi::host::*;
use crate::abi::link_layout::{BranchTable, FamilyId, ModeId};
use crate::abi::register_map::{ACCUMULATOR, COUNT, DATA, RegisterMap};
use crate::abi::sites::{BlockId, SiteKind};
use crate::abi::state_map::{Restore, Source};
use crate::decode::length::MAX_INSTRUCTION_LENGTH;
use crate::decode::undefined::{Lengths, Undecoded};
use crate::emit::assembler::{Mem, Width};
use crate::emit::emitter::{Emitter, Target};
use crate::emit::shared_look_up::has_windows;
use crate::emit::tables::{EmittedTables, Tables};
use crate::policy::access::AccessUnavailable;
use crate::policy::allow_list::{Features, as_offered};
use crate::policy::breakpoints::{Breakpoints, Place};
use crate::policy::memory_operand::memory_use;
use crate::policy::mode::{Mode, ModeFlags};
use crate::policy::virtual_interrupts::VirtualInterrupts;
use crate::preemption::{Checkpoints, GivenUp};
use crate::requests::Requests;
use iced_x86::{CpuidFeature, Decoder, Instruction, Mnemonic, OpKind};
use std::sync::Arc;
use tollgate_exits::latency::InterruptibleWork;
use tollgate_x86::{Gpr, Vector};

/// Maximum number of guest instructions in one block.
const MAX_INSTRUCTIONS: usize = 64;
/// The guest code to translate, and everything that the translation depends on.
pub struct Request<'a> {
    /// Guest bytes from the first instruction to the end of its page, as far as a block can reach.
    /// If the block `straddles`, they include a few bytes of the next page.
    pub bytes: &'a [u8],
    /// The page has more bytes, which the block may need.
    pub is_cut: bool,
    /// The block consists of the first instruction only, which crosses into the next page.
    pub straddles: bool,
    /// EIP of the first byte.
    pub rip: u64,
    /// Linear address of the first byte.
    pub linear: u64,
    /// Physical address of the first byte.
    pub physical: u64,
    /// The block should be relocatable: `rip` and `linear` are link addresses (see
    /// [`crate::abi::relocation`]).
    pub relocates: bool,
    /// The mode word.
    pub mode: &'a Mode,
    /// Number of the mode word.
    pub mode_id: u32,
    /// The table in which the mode's indirect branches find their targets.
    pub branch_table: BranchTable,
    /// The mode's family, in which far transfers look for their targets.
    pub family: FamilyId,
    /// Number that the block will have.
    pub block: BlockId,
}

/// The reason why a block could not be translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TranslateError {
    /// The block may continue after the bytes that were given: call again with all bytes of the
    /// page.
    NeedsMoreBytes,
    /// The first instruction continues in the next page: call again with that page's bytes.
    NeedsNextPage,
    /// The effect of the first instruction depends on its address in a way that a relocatable block
    /// cannot express.
    NeedsAddress,
    /// Nothing was translated yet, and a request is pending: call again after the request was
    /// served.
    GivenUp,
    /// No code exists for the mode's way to access memory.
    Access(AccessUnavailable),
}

impl From<AccessUnavailable> for TranslateError {
    fn from(unavailable: AccessUnavailable) -> Self {
        Self::Access(unavailable)
    }
}

/// A block that should be translated, by the physical address of its code and its mode.
pub(crate) type Wanted = (u64, ModeId);

/// The result of a translation: the code is at offset 0 in [`Translator::code`].
#[derive(Clone)]
pub struct Translation {
    /// The tables that belong to the code.
    pub tables: Tables,
    /// Length of the guest code in bytes.
    pub guest_length: u32,
}

/// Translates blocks. It holds the buffers and the state of the current block.
pub struct Translator {
    /// The code of the current block and its tables.
    emit: Emitter,
    /// The register map of all code that is not 64-bit code.
    legacy_map: &'static RegisterMap,
    features: Features,
    known: KnownEncodings,
    /// What the current block's instructions reach in memory.
    ahead: Ahead,
    /// The way in which sensitive instructions are run.
    pub(crate) virtual_interrupts: VirtualInterrupts,
    /// Physical addresses of instructions that look up their operands although other instructions
    /// reach theirs directly.
    pub(crate) looked_up: NotedInstructions,
    /// Physical addresses of instructions whose operands were found in parts that are not common.
    pub(crate) by_part: NotedInstructions,
    /// Each instruction counts itself when it begins.
    pub(crate) counts_instructions: bool,
    /// Fast paths execute instructions that the monitor would otherwise execute.
    pub(crate) has_fast_paths: bool,
    /// Breakpoints before which blocks end.
    pub(crate) breakpoints: Breakpoints,
    /// Requests for which a block is ended early, if there are any.
    pub(crate) requests: Option<Arc<Requests>>,
    /// The block that was last given up because of a request.
    given_up: GivenUp<Wanted>,
    /// The block that is being translated, if its translation may be given up when a request arrives.
    may_give_up: Option<Wanted>,
    mode_id: u32,
    branch_table: BranchTable,
    family: FamilyId,
    /// The next instruction will be in the same block.
    has_successor: bool,
    /// Bytes of the current instruction and bytes that follow it.
    raw: [u8; 16],
    /// Offset of these bytes in the guest's code.
    position: usize,
}

/// The first bytes of the guest's code, filled up with zeros after its end.
fn raw_bytes(code: &[u8]) -> [u8; 16] {
    code.first_chunk().copied().unwrap_or_else(|| {
        let mut raw = [0; 16];
        raw[..code.len()].copy_from_slice(code);
        raw
    })
}

/// The consequence of one instruction's translation for the block.
#[derive(PartialEq, Eq)]
enum Flow {
    /// The block continues with the next instruction.
    Next,
    /// The block is complete.
    End,
}

impl Translator {
    /// Makes a translator for guests that are offered `features`.
    pub fn new(features: Features) -> Self {
        Self {
            emit: Emitter::new(),
            legacy_map: &RegisterMap::LEGACY,
            features,
            known: KnownEncodings::new(),
            ahead: Ahead::default(),
            virtual_interrupts: VirtualInterrupts::default(),
            looked_up: NotedInstructions::default(),
            by_part: NotedInstructions::default(),
            counts_instructions: false,
            has_fast_paths: true,
            breakpoints: Breakpoints::default(),
            requests: None,
            given_up: GivenUp::default(),
            may_give_up: None,
            mode_id: 0,
            branch_table: BranchTable::Shared,
            family: FamilyId(0),
            has_successor: false,
            raw: [0; 16],
            position: 0,
        }
    }

    /// The features that the guest is offered.
    pub fn features(&self) -> &Features {
        &self.features
    }

    /// The host registers of the guest's registers in code that is not 64-bit code; initially
    /// [`RegisterMap::LEGACY`].
    pub fn register_map(&self) -> &'static RegisterMap {
        self.legacy_map
    }

    /// The host registers of the guest's registers in code of this mode.
    pub fn map_of(&self, mode: &Mode) -> &'static RegisterMap {
        if mode.flags.contains(ModeFlags::CODE64) {
            &RegisterMap::LONG
        } else {
            self.legacy_map
        }
    }

    /// Sets the map for all later translations, except those of 64-bit code, which has a map of its
    /// own.
    pub fn set_register_map(&mut self, map: &'static RegisterMap) {
        self.legacy_map = map;
    }

    /// Sets how later translations run the sensitive instructions.
    pub fn set_virtual_interrupts(&mut self, choice: VirtualInterrupts) {
        self.virtual_interrupts = choice;
    }

    /// The code of the last translation.
    pub fn code(&self) -> &[u8] {
        self.emit.assembler.code()
    }

    /// The tables of the last translation.
    pub fn tables(&self) -> EmittedTables<'_> {
        self.emit.tables()
    }

    /// Number of guest bytes that is enough for most blocks.
    pub const MANY_BYTES: usize = 320;

    /// Maximum number of guest bytes of one block.
    pub const MOST_BYTES: usize = MAX_INSTRUCTIONS * MAX_INSTRUCTION_LENGTH + 16;

    /// Maximum number of link slots that a block needs; [`Translator::translate`] takes this number
    /// of slots.
    pub const SLOTS_PER_BLOCK: usize = 8;

    /// Translates one block. `slots` are free link slots, at least [`Translator::SLOTS_PER_BLOCK`].
    /// The slots that the block uses appear in its sites.
    ///
    /// # Errors
    /// The block needs more bytes, or bytes of the next page; or no code exists for the way in
    /// which the mode reaches memory; or the block cannot be relocatable; or it was given up for a
    /// request.
    pub fn translate(
        &mut self,
        request: &Request<'_>,
        slots: &[u32],
    ) -> Result<Translation, TranslateError> {
        let guest_length = self.translate_in_place(request, slots)?;
        Ok(Translation {
            tables: self.tables().into(),
            guest_length,
        })
    }

    /// Translates one block as [`Translator::translate`] does, but leaves the tables in the
    /// translator, where [`Translator::tables`] finds them. Returns the length of the guest code in
    /// bytes.
    ///
    /// # Errors
    /// The same errors as those of [`Translator::translate`].
    pub fn translate_in_place(
        &mut self,
        request: &Request<'_>,
        slots: &[u32],
    ) -> Result<u32, TranslateError> {
        self.begin_block(request, slots)?;
        self.look_ahead(request);
        if self.gives_up() {
            return Err(TranslateError::GivenUp);
        }
        // A block lies in one page, and one that continues into the next page has one instruction.
        let looked_up = self.looked_up.lines_of_page(request.physical);
        let by_part = self.by_part.lines_of_page(request.physical);
        let mut decoder = None;
        let mut count = 0;
        let mut position = 0;
        let mut looked_at = 0;
        let mut instruction = Instruction::default();
        loop {
            self.emit.next_rip = self
                .emit
                .mode
                .wrap(request.rip.wrapping_add(position as u64));
            let single = self.emit.mode.flags.contains(ModeFlags::SINGLE) || request.straddles;
            let full = count >= MAX_INSTRUCTIONS
                || !self.emit.has_room_for_sites(16)
                || count > 0 && count.is_multiple_of(BETWEEN_CHECKPOINTS) && self.stops();
            let ends = !request.is_cut && position == request.bytes.len()
                || count > 0 && self.may_have_breakpoint(request, position);
            if single && count > 0 || full || ends {
                self.end_with_link();
                break;
            }
            // The bytes must be enough for the next instruction and for the one that follows it.
            if request.is_cut && position + 2 * MAX_INSTRUCTION_LENGTH > request.bytes.len() {
                return Err(TranslateError::NeedsMoreBytes);
            }
            let decoding = self.features.decoding();
            let behind = match self.ahead.instruction(count) {
                Some(known) => {
                    instruction = *known;
                    position + known.len()
                }
                None => {
                    let decoder = decoder.get_or_insert_with(|| self.decoder(request, position));
                    decoder.decode_out(&mut instruction);
                    decoder.position()
                }
            };
            decoding.refine(&mut instruction, &request.bytes[position..]);
            as_offered(&mut instruction, |feature| self.features.offers(feature));
            let undecoded = instruction
                .is_invalid()
                .then(|| self.lengths().classify(&request.bytes[position..]));
            looked_at = match undecoded {
                // All bytes that a processor would fetch were needed to classify the instruction.
                Some(_) => (position + MAX_INSTRUCTION_LENGTH).min(request.bytes.len()),
                None => behind,
            };
            if undecoded == Some(Undecoded::CutOff) {
                if count > 0 {
                    self.end_with_link();
                    break;
                }
                return Err(TranslateError::NeedsNextPage);
            }
            if request.relocates && instruction.op0_kind() == OpKind::NearBranch16 {
                // The branch target is the low 16 bits of a sum, which a slide would change.
                if count > 0 {
                    self.end_with_link();
                    break;
                }
                return Err(TranslateError::NeedsAddress);
            }
            let length = instruction.len() as u64;
            let last = self
                .emit
                .mode
                .wrap(self.emit.next_rip.wrapping_add(length.max(1) - 1));
            let too_long = undecoded == Some(Undecoded::TooLong);
            let beyond_limit = self.is_beyond_limit(last) || last < self.emit.next_rip;
            if too_long || beyond_limit {
                if count > 0 {
                    self.end_with_link();
                } else {
                    self.emit.begin(self.emit.next_rip, self.emit.next_rip);
                    self.emit.exit(SiteKind::Fault(Vector::GeneralProtection));
                }
                break;
            }
            let next_rip = self.emit.mode.wrap(self.emit.next_rip.wrapping_add(length));
            self.has_successor = !single
                && self.may_cast_shadow(&instruction)
                && !self.may_have_breakpoint(request, behind)
                && self.can_begin(&request.bytes[behind..], next_rip);
            // An instruction that needs its successor in the same block must not be the last one of
            // a full block.
            let is_last = count + 1 >= MAX_INSTRUCTIONS || !self.emit.has_room_for_sites(32);
            if self.has_successor && is_last {
                self.end_with_link();
                break;
            }
            self.emit.begin(self.emit.next_rip, next_rip);
            self.count_instruction();
            count += 1;
            self.raw = raw_bytes(&request.bytes[position..]);
            if self.emit.mode.access.is_direct() {
                let physical = request.physical + position as u64;
                let always = self.looked_up.contains(looked_up, physical)
                    || self.relies_on_look_up(&instruction);
                self.emit.look_up_always(always);
                let uses_anchor = !self.by_part.contains(by_part, physical);
                self.emit.use_anchor(uses_anchor);
            }
            self.position = position;
            position = behind;
            let window = self.ahead.window(count - 1);
            self.keep_held(&instruction, window.is_some());
            let flow = self.instruction(&instruction, window);
            self.count_host_code();
            self.emit.end(flow == Flow::Next);
            if flow == Flow::End {
                break;
            }
        }
        let guest_length = looked_at as u32;
        self.emit.finish_block();
        Ok(guest_length.max(1))
    }

    fn begin_block(
        &mut self,
        request: &Request<'_>,
        slots: &[u32],
    ) -> Result<(), AccessUnavailable> {
        self.mode_id = request.mode_id;
        self.branch_table = request.branch_table;
        self.family = request.family;
        self.emit.begin_block(&Target {
            mode: *request.mode,
            map: self.map_of(request.mode),
            block: request.block,
            linear_page: request.linear >> 12,
            relocates: request.relocates,
            slots,
            transition: self.virtual_interrupts.transition,
        })
    }

    /// Makes a decoder for the block that begins with the instruction at `position`.
    fn decoder<'a>(&self, request: &Request<'a>, position: usize) -> Decoder<'a> {
        let mut decoder = Decoder::with_ip(
            request.mode.bitness(),
            request.bytes,
            request.rip.wrapping_add(position as u64),
            self.features.decoding().options(),
        );
        // Only a position after the end of the bytes is refused.
        let is_there = decoder.set_position(position);
        debug_assert!(is_there.is_ok());
        decoder
    }

    /// Decodes the block's instructions and plans their shared look-ups.
    fn look_ahead(&mut self, request: &Request<'_>) {
        self.ahead.clear();
        if !has_windows(request.mode) || request.straddles {
            return;
        }
        let decoding = self.features.decoding();
        let decoder = self.decoder(request, 0);
        let (known, info) = (&mut self.known, &mut self.emit.info);
        let memory_use = |instruction: &Instruction| {
            known.memory_use(instruction, decoding, || {
                memory_use(info, instruction, decoding)
            })
        };
        let requests = self.requests.as_deref();
        // Instructions that were not decoded here are decoded when they are translated.
        let stops = || requests.is_some_and(|it| it.stops(InterruptibleWork::Translate));
        let ahead = &mut self.ahead;
        ahead.look(decoder, (request.mode, MAX_INSTRUCTIONS), memory_use, stops);
    }

    /// Whether the instruction at `position` may have a debugger's breakpoint.
    #[inline]
    fn may_have_breakpoint(&self, request: &Request<'_>, position: usize) -> bool {
        !self.breakpoints.is_empty()
            && self.breakpoints.may_be_at(Place {
                linear: request
                    .mode
                    .wrap(request.linear.wrapping_add(position as u64)),
                relocates: request.relocates,
            })
    }

    /// The properties of the mode and the guest that determine the lengths of this block's
    /// instructions.
    pub(super) fn lengths(&self) -> Lengths {
        Lengths {
            bits: self.emit.mode.bitness(),
            decoding: self.features.decoding(),
            has_evex: self.features.offers(CpuidFeature::AVX512F),
        }
    }

    /// Whether a request ends the work at this checkpoint. A block with at least one instruction is
    /// complete in itself, so the guest makes progress.
    pub(crate) fn stops(&self) -> bool {
        let requests = self.requests.as_deref();
        requests.is_some_and(|requests| requests.stops(InterruptibleWork::Translate))
    }

    /// Notes that the translation of a block begins. `wanted` is `None` for a block that is too
    /// short to be given up.
    pub(crate) fn begin(&mut self, wanted: Option<Wanted>) {
        let checkpoints = self.requests.as_deref().map(Requests::checkpoints);
        let may_stop = checkpoints.is_some_and(Checkpoints::may_stop);
        let given_up = &mut self.given_up;
        self.may_give_up = wanted.filter(|it| may_stop && given_up.may_give_up(it));
    }

    /// Gives the block up, with everything that was translated of it, if a request is pending and
    /// the block may be given up. Returns whether it did.
    fn gives_up(&mut self) -> bool {
        let Some(wanted) = self.may_give_up.filter(|_| self.stops()) else {
            return false;
        };
        self.given_up.give_up(wanted);
        true
    }

    /// Gives up a block whose translation is complete, if a request is pending, unless a request
    /// has already cut the block short. Returns whether it did.
    pub(crate) fn gives_up_whole(&mut self) -> bool {
        let checkpoints = self.requests.as_deref().map(Requests::checkpoints);
        !checkpoints.is_some_and(Checkpoints::has_stopped) && self.gives_up()
    }

    /// Whether an offset is beyond the code segment's limit; 64-bit code has no limit.
    fn is_beyond_limit(&self, rip: u64) -> bool {
        !self.emit.mode.flags.contains(ModeFlags::CODE64)
            && rip > u64::from(self.emit.mode.code_limit)
    }

    /// Ends the block, because the next instruction belongs to another block.
    fn end_with_link(&mut self) {
        self.emit.put_held_back_at_end();
        let target = self.emit.next_rip;
        if self.emit.esp != 0 {
            // The last instruction is complete and must not be executed again.
            self.emit
                .note_state_as(target, self.emit.esp, Restore::NONE);
        }
        self.emit.flush_esp();
        self.emit.begin(target, target);
        if self.emit.mode.flags.contains(ModeFlags::SINGLE) {
            self.emit.exit(SiteKind::Continue);
        } else {
            self.emit.link_jump(target);
        }
    }

    /// RDTSC and RDTSCP: adds the guest's offset without changing the flags.
    fn time_stamp(&mut self, instruction: &Instruction) -> Flow {
        if self
            .emit
            .mode
            .flags
            .contains(ModeFlags::TIME_STAMP_DISABLED)
        {
            return self.helper(instruction);
        }
        let names_processor = instruction.mnemonic() == Mnemonic::Rdtscp;
        if names_processor {
            // RDTSCP waits for all earlier instructions, including loads.
            self.emit.assembler.lfence();
        }
        self.count_progress(R8);
        // The last host instruction commits. Until then the state map says how to put back what has
        // changed, and the instruction is started again: it then reads a later time, which the
        // guest cannot notice.
        self.emit.assembler.mov(RCX, ACCUMULATOR);
        self.emit.assembler.mov(R11, DATA);
        let mut saved = Restore::one(Gpr::Rax as u8, RCX).and(Gpr::Rdx as u8, Source::Host(R11));
        if names_processor {
            self.emit.assembler.mov(R9, COUNT);
            saved = saved.and(Gpr::Rcx as u8, Source::Host(R9));
        }
        self.emit.note_state(saved);
        self.emit.assembler.rdtsc();
        self.emit.assembler.rorx(DATA, DATA, 32);
        self.emit
            .assembler
            .lea64(ACCUMULATOR, Mem::indexed(ACCUMULATOR, DATA, 1, 0));
        self.emit
            .assembler
            .load(Width::Qword, R8, self.emit.field(at::TIME_STAMP_OFFSET));
        self.emit
            .assembler
            .lea64(R8, Mem::indexed(ACCUMULATOR, R8, 1, 0));
        self.emit.assembler.rorx(DATA, R8, 32);
        self.emit.assembler.mov32(DATA, DATA);
        if names_processor {
            let processor = self.emit.field(at::register::TSC_AUX);
            self.emit.assembler.load(Width::Dword, COUNT, processor);
        }
        self.emit.assembler.mov32(ACCUMULATOR, R8);
        Flow::Next
    }

    /// Counts a system call or a read of the clock, without changing the flags.
    pub(super) fn count_progress(&mut self, scratch: Host) {
        let count = self.emit.field(at::PROGRESS);
        self.emit.assembler.load(Width::Qword, scratch, count);
        self.emit.assembler.lea64(scratch, Mem::base(scratch, 1));
        self.emit.assembler.store(Width::Qword, count, scratch);
    }

    /// RDPID: loads IA32_TSC_AUX into the whole register (SDM volume 2, RDPID).
    fn processor_number(&mut self, instruction: &Instruction) -> Flow {
        let register = instruction.op0_register();
        if copy::uses_stack_pointer_register(instruction) {
            self.emit.flush_esp_first();
        }
        let processor = self.emit.field(at::register::TSC_AUX);
        self.emit.assembler.load(Width::Dword, R8, processor);
        let width = match register.size() {
            8 => Width::Qword,
            _ => Width::Dword,
        };
        self.emit.set_register(register, R8, width);
        Flow::Next
    }
}
