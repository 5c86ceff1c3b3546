//! Copy-translation of one block.
//!
//! A worked example. The guest's 32-bit flat code
//!
//! ```text
//! mov eax, [ebx+8]
//! ```
//!
//! becomes (with the registers of 32-bit guests in their namesakes, but ESP in R12:
//! see [`crate::abi::register_map`])
//!
//! ```text
//! lea   r8d, [rbx+8]             ; linear address
//! lea   r9, [r8+3]               ; its last byte
//! shrx  r10, r8, r15             ; page numbers: the low bits of R15 are 12
//! shrx  r9, r9, r15
//! lea   r9, [r9+r10]             ; TLB slot, odd if the access straddles pages
//! mov   r10, rcx
//! mov   rcx, [r14+r9*8]          ; host minus linear address, or 0
//! jrcxz miss                     ; branches without touching flags
//! lea   r9, [rcx+r8]             ; host address
//! mov   rcx, r10
//! mov   eax, [r9]                ; the guest's own instruction
//! ```
//!
//! Rules that every sequence keeps:
//! - Arithmetic flags change only in the guest's own instruction.
//! - Guest registers are found through the register map, whoever needs them. ESP's home
//!   holds ESP minus a folded adjustment.
//! - R8 to R11 are scratch. Address computations use R8 for the linear address, R9 for
//!   the host address and R10 for what lived in RCX while JRCXZ tests that; R11 carries
//!   a value past them. Then come the instruction's own operands (`operands`,
//!   `placement`).
//! - Until its last host instruction a sequence can be started again; [`Mark`]s say,
//!   for any host address, which guest instruction that is and which registers must
//!   be put back first.

mod branch;
pub mod copy;
mod far;
mod flags;
mod interrupt;
mod length;
#[cfg(test)]
mod long_tests;
mod memory;
mod operands;
mod placement;
mod redirected;
mod segments;
mod slot;
mod stack;
mod string;
mod stub;
mod system_call;
#[cfg(test)]
mod tests;
mod undefined;
mod x87;

use crate::abi::at;
use crate::abi::completion::{Completion, X87Note};
use crate::abi::host::Host;
use crate::abi::host::*;
use crate::abi::immediate::Immediate;
use crate::abi::link_layout::{BranchTable, FamilyId};
use crate::abi::marks::{Mark, Restore, Shadow};
use crate::abi::register_map::{ACCUMULATOR, COUNT, DATA, RegisterMap};
use crate::abi::sites::{BlockId, MAX_SITES, Site, SiteKind, pack_site};
use crate::emit::assembler::{Assembler, Mem, Patch, Width};
use crate::policy::allow_list::{Features, Treatment, as_offered, treatment};
use crate::policy::instruction_kind::Helper;
use crate::policy::mode::{Mode, ModeFlags};
use crate::policy::virtual_interrupts::VirtualInterrupts;
use iced_x86::{Decoder, DecoderError, DecoderOptions, Instruction, Mnemonic};
use length::{MAX_INSTRUCTION_LENGTH, is_too_long};
use segments::is_segment_move;
use stub::Stub;
use tollgate_x86::Vector;

/// Guest instructions in one block at most.
const MAX_INSTRUCTIONS: usize = 64;
/// What to translate.
pub struct Request<'a> {
    /// Guest bytes from the first instruction to the end of its page, as far as a block can
    /// reach, or a few bytes into the next page if `straddles`.
    pub bytes: &'a [u8],
    /// Only the first instruction, which crosses into the next page.
    pub straddles: bool,
    /// EIP of the first byte.
    pub rip: u64,
    /// Linear address of the first byte.
    pub linear: u64,
    /// Mode word.
    pub mode: &'a Mode,
    /// Number of the mode word.
    pub mode_id: u32,
    /// Where the mode's indirect branches find their targets.
    pub branch_table: BranchTable,
    /// The mode's family, in which far transfers look for their targets.
    pub family: FamilyId,
    /// Number that the block will have.
    pub block: BlockId,
}

/// Why a block could not be translated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TranslateError {
    /// The first instruction goes on in the next page: ask again with its bytes.
    NeedsNextPage,
}

/// The result: code at offset 0 in [`Translator::code`], and its tables.
pub struct Translation {
    /// Ordered by host offset.
    pub marks: Box<[Mark]>,
    /// Ways out.
    pub sites: Box<[Site]>,
    /// Instructions for the monitor.
    pub helpers: Box<[Helper]>,
    /// Operands that can be replaced.
    pub immediates: Box<[Immediate]>,
    /// Ordered by host offset.
    pub x87_notes: Box<[X87Note]>,
    /// Ordered by host offset.
    pub completions: Box<[Completion]>,
    /// Bytes of guest code.
    pub guest_length: u32,
}

/// A segment that emitted code cannot use: the instruction goes out of line.
struct OddSegment;

/// Translates blocks; holds the buffers and the state of the block in work.
pub struct Translator {
    assembler: Assembler,
    /// The map of the block in work.
    map: &'static RegisterMap,
    /// The map of all code that is not 64-bit code.
    legacy_map: &'static RegisterMap,
    features: Features,
    /// How the sensitive instructions are run.
    pub(crate) virtual_interrupts: VirtualInterrupts,
    /// Each instruction counts itself when it begins.
    pub(crate) counts_instructions: bool,
    info: iced_x86::InstructionInfoFactory,
    mode: Mode,
    mode_id: u32,
    branch_table: BranchTable,
    family: FamilyId,
    block: BlockId,
    marks: Vec<Mark>,
    sites: Vec<Site>,
    helpers: Vec<Helper>,
    immediates: Vec<Immediate>,
    x87_notes: Vec<X87Note>,
    completions: Vec<Completion>,
    stubs: Vec<Stub>,
    /// Short branches that wait for an island: (patch, index into `stubs`).
    misses: Vec<(Patch, usize)>,
    /// EIP of the current instruction and of the next.
    rip: u64,
    next_rip: u64,
    /// Where the current instruction's host code starts.
    start: usize,
    /// Guest ESP is its home plus this.
    esp: i32,
    /// `esp` when the current instruction began.
    esp_at_start: i32,
    /// The vector registers are known to be loaded.
    vectors_loaded: bool,
    /// Linear page of the block; direct links may only stay in it.
    linear_page: u64,
    slots: Vec<u32>,
    /// Slots that this block has taken from `slots`.
    slots_used: usize,
    first_site_of_instruction: usize,
    /// Bytes that follow the current instruction's look-up where no island may stand, if
    /// they are more than usual.
    room_behind_access: usize,
    /// The current instruction stands behind one that holds interrupts off.
    shadowed: Shadow,
    /// The current instruction holds interrupts off until the next has completed.
    casts_shadow: Shadow,
    /// The next instruction is going to be in this block.
    has_successor: bool,
    /// Bytes of the current instruction.
    raw: [u8; 16],
    /// Their offset in the guest's code.
    position: usize,
}

/// What the translation of one instruction means for the block.
#[derive(PartialEq, Eq)]
enum Flow {
    /// Go on with the next instruction.
    Next,
    /// The block is complete.
    End,
}

impl Translator {
    /// A translator for guests that are offered `features`.
    pub fn new(features: Features) -> Self {
        Self {
            assembler: Assembler::new(),
            map: &RegisterMap::LEGACY,
            legacy_map: &RegisterMap::LEGACY,
            features,
            virtual_interrupts: VirtualInterrupts::default(),
            counts_instructions: false,
            info: iced_x86::InstructionInfoFactory::new(),
            mode: Mode::of(&tollgate_x86::CpuState::at_reset()),
            mode_id: 0,
            branch_table: BranchTable::Shared,
            family: FamilyId(0),
            block: BlockId(0),
            marks: Vec::new(),
            sites: Vec::new(),
            helpers: Vec::new(),
            immediates: Vec::new(),
            x87_notes: Vec::new(),
            completions: Vec::new(),
            stubs: Vec::new(),
            misses: Vec::new(),
            rip: 0,
            next_rip: 0,
            start: 0,
            esp: 0,
            esp_at_start: 0,
            vectors_loaded: false,
            linear_page: 0,
            slots: Vec::new(),
            slots_used: 0,
            first_site_of_instruction: 0,
            room_behind_access: 0,
            shadowed: Shadow::None,
            casts_shadow: Shadow::None,
            has_successor: false,
            raw: [0; 16],
            position: 0,
        }
    }

    /// Where guest registers live in code that is not 64-bit code;
    /// [`RegisterMap::LEGACY`] at first.
    pub fn register_map(&self) -> &'static RegisterMap {
        self.legacy_map
    }

    /// Where guest registers live in code of this mode.
    pub fn map_of(&self, mode: &Mode) -> &'static RegisterMap {
        if mode.flags.contains(ModeFlags::CODE64) {
            &RegisterMap::LONG
        } else {
            self.legacy_map
        }
    }

    /// Has guest registers live elsewhere in all that is translated from now on, but for
    /// 64-bit code.
    pub fn set_register_map(&mut self, map: &'static RegisterMap) {
        self.legacy_map = map;
    }

    /// Has the sensitive instructions run otherwise in all that is translated from now on.
    pub fn set_virtual_interrupts(&mut self, choice: VirtualInterrupts) {
        self.virtual_interrupts = choice;
    }

    /// The block's code is 64-bit code.
    fn is_64_bit(&self) -> bool {
        self.mode.flags.contains(ModeFlags::CODE64)
    }

    /// `to := mem`'s offset, of the stack pointer's size if that is not 16 bits.
    fn lea_stack(&mut self, to: Host, mem: Mem) {
        if self.is_64_bit() {
            self.assembler.lea64(to, mem);
        } else {
            self.assembler.lea32(to, mem);
        }
    }

    /// `to := from`, of a 32-bit address or of a 64-bit one in 64-bit code.
    fn mov_pointer(&mut self, to: Host, from: Host) {
        if self.is_64_bit() {
            self.assembler.mov(to, from);
        } else {
            self.assembler.mov32(to, from);
        }
    }

    /// A field of the context.
    fn field(&self, displacement: i32) -> Mem {
        Mem::base(self.map.context, displacement)
    }

    /// The code of the last translation.
    pub fn code(&self) -> &[u8] {
        self.assembler.code()
    }

    /// Guest bytes of one block at most.
    pub const MOST_BYTES: usize = MAX_INSTRUCTIONS * MAX_INSTRUCTION_LENGTH + 16;

    /// How many link slots a block may need; [`Translator::translate`] takes as many.
    pub const SLOTS_PER_BLOCK: usize = 4;

    /// Translates one block. `slots` are free link slots, at least
    /// [`Translator::SLOTS_PER_BLOCK`]; those used appear in the sites.
    ///
    /// # Errors
    /// The first instruction needs bytes of the next page.
    pub fn translate(
        &mut self,
        request: &Request<'_>,
        slots: &[u32],
    ) -> Result<Translation, TranslateError> {
        self.reset(request, slots);
        let mut decoder = Decoder::with_ip(
            self.mode.bitness(),
            request.bytes,
            request.rip,
            DecoderOptions::NONE,
        );
        let mut count = 0;
        let mut looked_at = 0;
        loop {
            let position = decoder.position();
            self.next_rip = self.mode.wrap(request.rip.wrapping_add(position as u64));
            let single = self.mode.flags.contains(ModeFlags::SINGLE) || request.straddles;
            let full = count >= MAX_INSTRUCTIONS || self.sites.len() + 16 > MAX_SITES;
            if single && count > 0 || full || !decoder.can_decode() {
                self.end_with_link();
                break;
            }
            let instruction = as_offered(decoder.decode(), |feature| self.features.offers(feature));
            let remaining = request.bytes.len() - position;
            let truncated = instruction.is_invalid()
                && self.is_truncated(decoder.last_error(), &request.bytes[position..]);
            looked_at = if truncated {
                (position + MAX_INSTRUCTION_LENGTH).min(request.bytes.len())
            } else {
                decoder.position()
            };
            if truncated && remaining < MAX_INSTRUCTION_LENGTH {
                if count > 0 {
                    self.end_with_link();
                    break;
                }
                return Err(TranslateError::NeedsNextPage);
            }
            let length = instruction.len() as u64;
            let last = self
                .mode
                .wrap(self.next_rip.wrapping_add(length.max(1) - 1));
            let too_long = truncated
                || instruction.is_invalid()
                    && is_too_long(self.mode.bitness(), &request.bytes[position..]);
            let beyond_limit = self.is_beyond_limit(last) || last < self.next_rip;
            if too_long || beyond_limit {
                if count > 0 {
                    self.end_with_link();
                } else {
                    self.begin(self.next_rip, self.next_rip);
                    self.exit(SiteKind::Fault(Vector::GeneralProtection));
                }
                break;
            }
            let next_rip = self.mode.wrap(self.next_rip.wrapping_add(length));
            self.has_successor = !single
                && self.may_cast_shadow(&instruction)
                && self.can_begin(&request.bytes[decoder.position()..], next_rip);
            // One that needs its successor in its block is not the last of a full one.
            let is_last = count + 1 >= MAX_INSTRUCTIONS || self.sites.len() + 32 > MAX_SITES;
            if self.has_successor && is_last {
                self.end_with_link();
                break;
            }
            self.begin(self.next_rip, next_rip);
            self.count_instruction();
            count += 1;
            self.position = position;
            let length = instruction.len().min(15);
            self.raw = [0; 16];
            self.raw[..length].copy_from_slice(&request.bytes[position..position + length]);
            let flow = self.instruction(&instruction);
            self.finish_instruction(&flow);
            if flow == Flow::End {
                break;
            }
        }
        let guest_length = looked_at as u32;
        self.emit_stubs();
        Ok(Translation {
            marks: self.marks.as_slice().into(),
            sites: self.sites.as_slice().into(),
            helpers: self.helpers.as_slice().into(),
            immediates: self.immediates.as_slice().into(),
            x87_notes: self.x87_notes.as_slice().into(),
            completions: self.completions.as_slice().into(),
            guest_length: guest_length.max(1),
        })
    }

    /// Whether bytes that do not decode are the beginning of an instruction that goes on.
    fn is_truncated(&self, error: DecoderError, bytes: &[u8]) -> bool {
        let bits = self.mode.bitness();
        if error == DecoderError::NoMoreBytes {
            !undefined::is_complete(bits, bytes)
        } else {
            undefined::is_cut_off(bits, bytes)
        }
    }

    /// Whether an offset lies beyond the code segment's limit; 64-bit code has none.
    fn is_beyond_limit(&self, rip: u64) -> bool {
        !self.mode.flags.contains(ModeFlags::CODE64) && rip > u64::from(self.mode.code_limit)
    }

    fn reset(&mut self, request: &Request<'_>, slots: &[u32]) {
        self.assembler.clear();
        self.mode = *request.mode;
        self.map = self.map_of(request.mode);
        self.mode_id = request.mode_id;
        self.branch_table = request.branch_table;
        self.family = request.family;
        self.block = request.block;
        self.marks.clear();
        self.sites.clear();
        self.helpers.clear();
        self.immediates.clear();
        self.x87_notes.clear();
        self.completions.clear();
        self.shadowed = Shadow::None;
        self.casts_shadow = Shadow::None;
        self.stubs.clear();
        self.misses.clear();
        self.esp = 0;
        self.vectors_loaded = false;
        self.linear_page = request.linear >> 12;
        self.slots.clear();
        self.slots.extend_from_slice(slots);
        self.slots_used = 0;
    }

    fn begin(&mut self, rip: u64, next_rip: u64) {
        self.rip = rip;
        self.next_rip = next_rip;
        self.start = self.assembler.position();
        self.esp_at_start = self.esp;
        self.first_site_of_instruction = self.sites.len();
        self.room_behind_access = 0;
        self.shadowed = std::mem::take(&mut self.casts_shadow);
        self.mark(Restore::NONE);
    }

    /// Counts the current instruction, if that is wanted: before its own code, so that what
    /// starts that again does not count twice. An instruction run on a bounced operand was
    /// counted when it began.
    fn count_instruction(&mut self) {
        if !self.counts_instructions || self.mode.flags.contains(ModeFlags::BOUNCE) {
            return;
        }
        let counter = self.field(at::INSTRUCTIONS);
        self.assembler.load(Width::Qword, R8, counter);
        self.assembler.lea64(R8, Mem::base(R8, 1));
        self.assembler.store(Width::Qword, counter, R8);
        self.start = self.assembler.position();
    }

    /// Tells the instruction's sites where the next instruction begins. Behind one that
    /// ends the block nothing does: stubs stand there.
    fn finish_instruction(&mut self, flow: &Flow) {
        let after = match flow {
            Flow::Next => self.assembler.position() as u32,
            Flow::End => 0,
        };
        for site in &mut self.sites[self.first_site_of_instruction..] {
            if site.after == RESUME_AFTER {
                site.after = after;
                site.after_esp = self.esp;
            }
        }
    }

    /// Marks the current position: the current instruction has not completed.
    fn mark(&mut self, restore: Restore) {
        self.mark_as(self.rip, self.esp_at_start, restore);
    }

    /// Marks the current position with another instruction.
    fn mark_as(&mut self, rip: u64, esp: i32, restore: Restore) {
        let is_done = restore.eip().is_some() || restore.segment().is_some();
        let shadowed = match rip == self.rip && !is_done {
            true => self.shadowed,
            false => Shadow::None,
        };
        self.push_mark(rip, esp, restore, shadowed);
    }

    fn push_mark(&mut self, rip: u64, esp: i32, restore: Restore, shadowed: Shadow) {
        let mark = Mark {
            host: self.assembler.position() as u32,
            rip,
            esp,
            restore,
            shadowed,
        };
        match self.marks.last_mut() {
            Some(last) if last.host == mark.host => *last = mark,
            Some(last)
                if Mark {
                    host: last.host,
                    ..mark
                } == *last => {}
            _ => self.marks.push(mark),
        }
    }

    fn new_site(&mut self, kind: SiteKind, rip: u64, esp: i32, after: u32) -> usize {
        self.sites.push(Site {
            kind,
            rip,
            esp,
            retry: self.start as u32,
            after,
            after_esp: 0,
            shadowed: match is_done(kind) {
                true => Shadow::None,
                false => self.shadowed,
            },
        });
        self.sites.len() - 1
    }

    /// Leaves for the monitor here, unconditionally, at the current instruction.
    fn exit(&mut self, kind: SiteKind) {
        let site = self.new_site(kind, self.rip, self.esp_at_start, 0);
        self.emit_exit(site);
    }

    fn emit_exit(&mut self, site: usize) {
        if self.is_sensitive_exit(site) {
            return self.emit_sensitive_exit(site);
        }
        let packed = pack_site(self.block, site);
        self.assembler
            .store_imm(Width::Dword, self.field(at::EXIT_SITE), packed as i32);
        self.assembler.jmp_memory(self.field(at::EXIT_ENTRY));
    }

    /// Lets the monitor execute the current instruction and come back behind it.
    fn helper(&mut self, instruction: &Instruction) -> Flow {
        let index = self.helpers.len() as u16;
        self.helpers.push(Helper::new(*instruction));
        self.leave_and_return(SiteKind::Helper(index));
        Flow::Next
    }

    /// Lets the monitor do the current instruction with every check.
    fn slow(&mut self) -> Flow {
        self.leave_and_return(SiteKind::Slow);
        Flow::Next
    }

    fn leave_and_return(&mut self, kind: SiteKind) {
        let site = self.new_site(kind, self.rip, self.esp_at_start, RESUME_AFTER);
        self.emit_exit(site);
        // The monitor puts the whole ESP into its home and does not keep vectors loaded.
        self.esp = 0;
        self.vectors_loaded = false;
    }

    /// Brings the folded adjustment into ESP's home; only flag-free instructions.
    fn flush_esp(&mut self) {
        if self.esp == 0 {
            return;
        }
        let stack = self.map.stack();
        if self.mode.flags.contains(ModeFlags::STACK32) {
            self.lea_stack(stack, Mem::base(stack, self.esp));
        } else {
            self.assembler.lea32(R8, Mem::base(stack, self.esp));
            self.assembler.mov16(stack, R8);
        }
        self.esp = 0;
    }

    /// As [`Translator::flush_esp`], before the instruction's own work begins: the
    /// instruction can be started again from here on.
    fn flush_esp_first(&mut self) {
        if self.esp != 0 {
            self.flush_esp();
            self.esp_at_start = 0;
            self.start = self.assembler.position();
            self.mark(Restore::NONE);
        }
    }

    /// Ends the block because the next instruction belongs to another.
    fn end_with_link(&mut self) {
        self.flush_esp();
        let target = self.next_rip;
        self.begin(target, target);
        if self.mode.flags.contains(ModeFlags::SINGLE) {
            self.exit(SiteKind::Continue);
        } else {
            self.link_jump(target);
        }
    }

    fn instruction(&mut self, instruction: &Instruction) -> Flow {
        use Mnemonic::*;
        if self.mode.flags.contains(ModeFlags::BOUNCE) {
            return self.copy_bounced(instruction);
        }
        self.make_room();
        match instruction.mnemonic() {
            Mov if is_segment_move(instruction) => self.move_segment(instruction),
            Lds | Les | Lfs | Lgs | Lss => self.load_far_pointer(instruction),
            Push => self.push_instruction(instruction),
            Pop => self.pop_instruction(instruction),
            Leave => self.leave_instruction(instruction),
            Call => self.call(instruction),
            Ret => self.ret(instruction),
            Jmp => self.jmp(instruction),
            Jcxz | Jecxz | Jrcxz => self.jcxz(instruction),
            Loop | Loope | Loopne => self.loop_instruction(instruction),
            _ if instruction.is_jcc_short_or_near() => self.jcc(instruction),
            Lea => self.lea(instruction),
            Xlatb => self.xlat(instruction),
            Cli | Sti | Pushf | Pushfd | Pushfq | Popf | Popfd | Popfq => {
                self.sensitive(instruction)
            }
            Cld => self.set_direction(1),
            Std => self.set_direction(-1),
            Movsb | Movsw | Movsd | Movsq | Lodsb | Lodsw | Lodsd | Lodsq | Stosb | Stosw
            | Stosd | Stosq | Scasb | Scasw | Scasd | Scasq | Cmpsb | Cmpsw | Cmpsd | Cmpsq
                if instruction.is_string_instruction() =>
            {
                self.string(instruction)
            }
            Rdtsc | Rdtscp => self.time_stamp(instruction),
            Int => self.software_interrupt(instruction),
            Iret | Iretd | Iretq => self.interrupt_return(instruction),
            Retf => self.far(instruction),
            Int1 | Int3 | Sysexitq | Hlt => self.moves_on(instruction),
            Sysenter | Sysexit => self.change_level(instruction),
            Syscall | Sysret | Sysretq if self.mode.flags.contains(ModeFlags::LONG) => {
                self.change_level(instruction)
            }
            Swapgs if self.swaps_gs() => self.swap_gs(),
            _ => self.by_allow_list(instruction),
        }
    }

    /// Lets the monitor execute an instruction after which control always moves on: nothing
    /// follows in this block.
    fn moves_on(&mut self, instruction: &Instruction) -> Flow {
        let index = self.helpers.len() as u16;
        self.helpers.push(Helper::new(*instruction));
        self.exit(SiteKind::Helper(index));
        Flow::End
    }

    fn by_allow_list(&mut self, instruction: &Instruction) -> Flow {
        match treatment(instruction, &self.mode, &self.features) {
            Treatment::Copy => self.copy(instruction),
            Treatment::CopyVector => {
                self.require_vectors();
                self.make_room_for_note();
                let flow = self.copy(instruction);
                if flow == Flow::Next {
                    self.note_x87(instruction);
                }
                flow
            }
            Treatment::Nothing => Flow::Next,
            Treatment::Raise(vector) => {
                self.exit(SiteKind::Fault(vector));
                Flow::End
            }
            Treatment::Helper => self.helper(instruction),
        }
    }

    fn set_direction(&mut self, direction: i32) -> Flow {
        self.assembler
            .store_imm(Width::Qword, self.field(at::DIRECTION), direction);
        Flow::Next
    }

    /// RDTSC and RDTSCP with the guest's offset added, without flags.
    fn time_stamp(&mut self, instruction: &Instruction) -> Flow {
        if self.mode.flags.contains(ModeFlags::TIME_STAMP_DISABLED) {
            return self.helper(instruction);
        }
        let names_processor = instruction.mnemonic() == Mnemonic::Rdtscp;
        if names_processor {
            // It waits for all before it, loads too.
            self.assembler.lfence();
        }
        // The first write to EAX is by RDTSC itself; an interruption behind it starts
        // the instruction again, which reads a later time: nobody can tell.
        self.assembler.rdtsc();
        self.assembler.rorx(DATA, DATA, 32);
        self.assembler
            .lea64(ACCUMULATOR, Mem::indexed(ACCUMULATOR, DATA, 1, 0));
        self.assembler
            .load(Width::Qword, R8, self.field(at::TIME_STAMP_OFFSET));
        self.assembler
            .lea64(R8, Mem::indexed(ACCUMULATOR, R8, 1, 0));
        self.assembler.rorx(DATA, R8, 32);
        self.assembler.mov32(DATA, DATA);
        self.assembler.mov32(ACCUMULATOR, R8);
        if names_processor {
            let processor = self.field(at::register::TSC_AUX);
            self.assembler.load(Width::Dword, COUNT, processor);
        }
        Flow::Next
    }

    /// Makes sure that the guest's vector registers are in the host's.
    fn require_vectors(&mut self) {
        if self.vectors_loaded {
            return;
        }
        self.free_rcx();
        self.assembler
            .load(Width::Dword, RCX, self.field(at::VECTORS_OFF));
        let loaded = self.assembler.jrcxz();
        self.return_rcx();
        let site = self.new_site(SiteKind::VectorLoad, self.rip, self.esp_at_start, 0);
        self.emit_exit(site);
        self.assembler.patch_rel8_here(loaded);
        self.mark(self.rcx_freed());
        self.return_rcx();
        self.vectors_loaded = true;
    }
}

/// Whether the instruction has completed where a site of this kind leaves.
fn is_done(kind: SiteKind) -> bool {
    matches!(
        kind,
        SiteKind::Link(_) | SiteKind::Indirect | SiteKind::Far | SiteKind::Continue
    )
}

/// Placeholder for `Site::after` until the instruction is complete.
const RESUME_AFTER: u32 = u32::MAX;
