//! The emitter: the code of the block that is being translated, with the tables that belong to it.
//!
//! This is the lowest layer of the emission of code: the state of the block, and the methods that
//! all others need. The files in `emitter` are the parts of the state, which know nothing of the
//! emitter. The files around it (look-ups, operands, islands, stubs) add methods and use no names
//! of one another except types that are below the emitter too.

pub(crate) mod checked;
pub(crate) mod exit_code;
pub(crate) mod held;
pub(crate) mod look_up_form;
pub(crate) mod seam;
pub(crate) mod shared_look_up_range;
pub(crate) mod stub_record;

use self::checked::Checked;
use self::exit_code::{ExitCode, RESUME_AFTER};
use self::held::Held;
use self::look_up_form::{KEPT_SIZES, LookUpForm};
use self::seam::Seam;
use self::shared_look_up_range::{Planned, Window};
use self::stub_record::Stub;
use crate::abi::context_displacements as at;
use crate::abi::fast_paths::FastPath;
use crate::abi::host::*;
use crate::abi::immediate::Immediate;
use crate::abi::register_map::RegisterMap;
use crate::abi::signal_completion::{Completion, X87Note};
use crate::abi::sites::{BlockId, MAX_SITES, Site, SiteKind};
use crate::abi::state_map::{Restore, Shadow, StateEntry};
use crate::emit::assembler::{Assembler, Mem, Patch, ShortBranch, Width};
use crate::emit::host_code_count_patches::HostCodeCounts;
use crate::emit::tables::EmittedTables;
use crate::policy::access::AccessUnavailable;
use crate::policy::instruction_kind::Helper;
use crate::policy::mode::{Mode, ModeFlags};
use crate::policy::virtual_interrupts::Transition;
use iced_x86::Instruction;

/// The properties of a block that its code depends on.
pub(crate) struct Target<'a> {
    /// The mode in which the block runs.
    pub(crate) mode: Mode,
    /// The host registers in which the guest's registers live.
    pub(crate) map: &'static RegisterMap,
    /// The number that the block will have.
    pub(crate) block: BlockId,
    /// Linear page of the block's first instruction.
    pub(crate) linear_page: u64,
    /// The block is relocatable: its addresses are link addresses (see [`crate::abi::relocation`]).
    pub(crate) relocates: bool,
    /// Slots that the block may use for links.
    pub(crate) slots: &'a [u32],
    /// The form in which an exit of a sensitive instruction reaches the monitor.
    pub(crate) transition: Transition,
}

/// Emits the code of a block and collects its tables.
pub(crate) struct Emitter {
    pub(crate) assembler: Assembler,
    /// The register map of the current block.
    pub(crate) map: &'static RegisterMap,
    /// The guest registers that live in slots, one bit each.
    pub(crate) slot_mask: u16,
    pub(crate) info: iced_x86::InstructionInfoFactory,
    pub(crate) mode: Mode,
    /// The way in which the mode's code reaches memory.
    pub(super) look_up: LookUpForm,
    /// For each access size: the code that finds the slot in the long software TLB, if it was
    /// already assembled. Every register map has context and software TLB in the same registers.
    pub(super) long_slots: [Vec<u8>; KEPT_SIZES],
    /// The code of exits.
    pub(super) exit_code: ExitCode,
    pub(super) block: BlockId,
    pub(super) state_map: Vec<StateEntry>,
    pub(super) sites: Vec<Site>,
    pub(super) helpers: Vec<Helper>,
    pub(super) immediates: Vec<Immediate>,
    pub(super) x87_notes: Vec<X87Note>,
    pub(super) completions: Vec<Completion>,
    pub(super) stubs: Vec<Stub>,
    /// Short branches that wait for an island, each with the index of its stub in `stubs`.
    pub(super) misses: Vec<(ShortBranch, usize)>,
    /// Short branches over code that follows them, in the order in which they were emitted.
    pub(super) skips: Vec<ShortBranch>,
    /// Near branches in code that is skipped by short branches, while that code is being emitted.
    pub(super) jumps_across: Vec<Patch>,
    /// A branch to code of the same instruction that is not emitted yet.
    pub(crate) far_branch: Option<Patch>,
    /// EIP of the current instruction; `next_rip` is that of the next one.
    pub(crate) rip: u64,
    pub(crate) next_rip: u64,
    /// Position at which the current instruction's host code starts.
    pub(crate) start: usize,
    /// Positions of the current instruction's counters, if its host instructions are counted.
    pub(crate) counts: Option<HostCodeCounts>,
    /// The guest's ESP is the value in its home plus this adjustment.
    pub(crate) esp: i32,
    /// Value of `esp` when the current instruction began.
    pub(crate) esp_at_start: i32,
    /// The active shared look-up, whose result is in R11 (see `window`).
    pub(crate) window: Option<Window>,
    /// The current instruction may use and make shared look-ups.
    pub(super) uses_windows: bool,
    /// The shared look-up that the current instruction should make.
    pub(super) planned: Option<Planned>,
    /// The vector registers are known to be loaded.
    pub(crate) vectors_loaded: bool,
    /// The block is relocatable: addresses of its code are link addresses.
    pub(crate) relocates: bool,
    /// Linear page of the block, which direct links must not leave.
    pub(super) linear_page: u64,
    pub(super) slots: Vec<u32>,
    /// Number of slots that the block has taken from `slots`.
    pub(super) slots_used: usize,
    pub(super) first_site_of_instruction: usize,
    /// The current instruction reaches its operand through the anchor.
    pub(super) is_anchored: bool,
    /// The registers that the block's code has checked for the anchor.
    pub(super) checked: Checked,
    /// The guest registers that scratch registers hold.
    pub(super) held: Held,
    /// The last place where an island can be inserted, if short branches wait for one.
    pub(super) seam: Option<Seam>,
    /// The interrupt shadow in which the current instruction executes.
    pub(crate) shadowed: Shadow,
    /// The interrupt shadow that the current instruction casts until the next one has completed.
    pub(crate) casts_shadow: Shadow,
    /// The form in which an exit of a sensitive instruction reaches the monitor.
    pub(super) transition: Transition,
}

impl Emitter {
    /// Makes an emitter without code.
    pub(crate) fn new() -> Self {
        Self {
            assembler: Assembler::new(),
            map: &RegisterMap::LEGACY,
            slot_mask: RegisterMap::LEGACY.slot_mask(),
            info: iced_x86::InstructionInfoFactory::new(),
            mode: Mode::of(&tollgate_x86::CpuState::at_reset()),
            look_up: LookUpForm::Flat,
            long_slots: [const { Vec::new() }; KEPT_SIZES],
            exit_code: ExitCode::new(),
            block: BlockId(0),
            state_map: Vec::new(),
            sites: Vec::new(),
            helpers: Vec::new(),
            immediates: Vec::new(),
            x87_notes: Vec::new(),
            completions: Vec::new(),
            stubs: Vec::new(),
            misses: Vec::new(),
            skips: Vec::new(),
            jumps_across: Vec::new(),
            far_branch: None,
            rip: 0,
            next_rip: 0,
            start: 0,
            counts: None,
            esp: 0,
            esp_at_start: 0,
            window: None,
            uses_windows: false,
            planned: None,
            vectors_loaded: false,
            relocates: false,
            linear_page: 0,
            slots: Vec::new(),
            slots_used: 0,
            first_site_of_instruction: 0,
            is_anchored: false,
            checked: Checked::default(),
            held: Held::default(),
            seam: None,
            shadowed: Shadow::None,
            casts_shadow: Shadow::None,
            transition: Transition::default(),
        }
    }

    /// Begins a block.
    ///
    /// # Errors
    /// No code exists for the mode's way to access memory.
    pub(crate) fn begin_block(&mut self, target: &Target<'_>) -> Result<(), AccessUnavailable> {
        self.look_up = LookUpForm::of(&target.mode)?;
        self.assembler.clear();
        self.mode = target.mode;
        if !std::ptr::eq(self.map, target.map) {
            self.map = target.map;
            self.slot_mask = target.map.slot_mask();
        }
        self.block = target.block;
        self.transition = target.transition;
        self.state_map.clear();
        self.sites.clear();
        self.helpers.clear();
        self.immediates.clear();
        self.x87_notes.clear();
        self.completions.clear();
        self.shadowed = Shadow::None;
        self.casts_shadow = Shadow::None;
        self.stubs.clear();
        self.misses.clear();
        self.skips.clear();
        self.jumps_across.clear();
        self.far_branch = None;
        self.seam = None;
        self.esp = 0;
        self.end_window();
        self.is_anchored = false;
        self.forget_checks();
        self.held = Held::default();
        self.vectors_loaded = false;
        self.linear_page = target.linear_page;
        self.relocates = target.relocates;
        self.slots.clear();
        self.slots.extend_from_slice(target.slots);
        self.slots_used = 0;
        Ok(())
    }

    /// Emits what remains of the block after its last instruction.
    pub(crate) fn finish_block(&mut self) {
        self.emit_stubs();
    }

    /// The tables of the block that was finished last.
    pub(crate) fn tables(&self) -> EmittedTables<'_> {
        EmittedTables {
            state_map: &self.state_map,
            sites: &self.sites,
            helpers: &self.helpers,
            immediates: &self.immediates,
            x87_notes: &self.x87_notes,
            completions: &self.completions,
        }
    }

    /// Whether `count` more sites fit into the block.
    pub(crate) fn has_room_for_sites(&self, count: usize) -> bool {
        self.sites.len() + count <= MAX_SITES
    }

    /// Begins the code of an instruction.
    pub(crate) fn begin(&mut self, rip: u64, next_rip: u64) {
        self.rip = rip;
        self.next_rip = next_rip;
        self.start = self.assembler.position();
        self.esp_at_start = self.esp;
        self.first_site_of_instruction = self.sites.len();
        self.shadowed = std::mem::take(&mut self.casts_shadow);
        self.begin_checks();
        self.note_state(Restore::NONE);
    }

    /// Ends the code of an instruction and sets, in its sites, where the next instruction begins.
    /// After an instruction that ends the block (`goes_on` is false) there is no next one, because
    /// stubs follow.
    pub(crate) fn end(&mut self, goes_on: bool) {
        let after = if goes_on {
            self.assembler.position() as u32
        } else {
            0
        };
        let mut returns_behind = false;
        for site in &mut self.sites[self.first_site_of_instruction..] {
            if site.after == RESUME_AFTER {
                site.after = after;
                site.after_esp = self.esp;
                returns_behind = true;
            }
        }
        self.end_checks(returns_behind);
    }

    /// Lists an instruction that the monitor executes.
    pub(crate) fn add_helper(&mut self, instruction: &Instruction) -> SiteKind {
        self.helpers.push(Helper::new(*instruction));
        SiteKind::Helper(self.helpers.len() as u16 - 1)
    }

    /// Lists what remains to be done to complete an instruction in a part of the code.
    pub(crate) fn add_completion(&mut self, completion: Completion) {
        self.completions.push(completion);
    }

    /// Lists the part of the code that notes the pointers of an x87 instruction.
    pub(crate) fn add_x87_note(&mut self, note: X87Note) {
        self.x87_notes.push(note);
    }

    /// Lists an immediate operand that can be replaced.
    pub(crate) fn add_immediate(&mut self, immediate: Immediate) {
        self.immediates.push(immediate);
    }

    /// Whether the block's code is 64-bit code.
    pub(crate) fn is_64_bit(&self) -> bool {
        self.mode.flags.contains(ModeFlags::CODE64)
    }

    /// The context's field at a displacement from the context pointer.
    pub(crate) fn field(&self, displacement: i32) -> Mem {
        Mem::base(self.map.context, displacement)
    }

    /// `to := address of mem`, with the size of the stack pointer, which must not be 16 bits.
    pub(crate) fn lea_stack(&mut self, to: Host, mem: Mem) {
        if self.is_64_bit() {
            self.assembler.lea64(to, mem);
        } else {
            self.assembler.lea32(to, mem);
        }
    }

    /// `to := from`, for an address of 64 bits in 64-bit code and of 32 bits in other code.
    pub(crate) fn mov_pointer(&mut self, to: Host, from: Host) {
        if self.is_64_bit() {
            self.assembler.mov(to, from);
        } else {
            self.assembler.mov32(to, from);
        }
    }

    /// `to := address`, with `width`: an address in the guest's code or at a fixed distance from
    /// it. Uses `scratch`, which may be equal to `to`; only the last host instruction changes `to`.
    pub(crate) fn code_address(&mut self, to: Host, scratch: Host, address: u64, width: Width) {
        let narrow = width != Width::Qword;
        if !self.relocates {
            let mask = if narrow { 0xffff_ffff } else { u64::MAX };
            self.assembler.mov_value(to, address & mask);
            return;
        }
        let delta = self.field(at::CODE_SLIDE);
        if narrow {
            self.assembler.load(Width::Dword, scratch, delta);
            let sum = Mem::base(scratch, address as i32);
            self.assembler.lea32(to, sum);
            return;
        }
        self.assembler.load(Width::Qword, scratch, delta);
        let mut rest = address as i64;
        // Link addresses are small (see `blocks/link_pages.rs`), so two steps are enough.
        while i32::try_from(rest).is_err() {
            let step = i64::from(if rest > 0 { i32::MAX } else { i32::MIN });
            let sum = Mem::base(scratch, step as i32);
            self.assembler.lea64(scratch, sum);
            rest -= step;
        }
        self.assembler.lea64(to, Mem::base(scratch, rest as i32));
    }

    /// Adds the folded adjustment to ESP's home, with instructions that leave the flags alone.
    pub(crate) fn flush_esp(&mut self) {
        if self.esp == 0 {
            return;
        }
        let stack = self.map.stack();
        if self.mode.flags.contains(ModeFlags::STACK32) {
            self.lea_stack(stack, Mem::base(stack, self.esp));
            self.move_stack_window(Some(self.esp));
            self.shift_stack_check(self.esp);
        } else {
            self.assembler.lea32(R8, Mem::base(stack, self.esp));
            self.assembler.mov16(stack, R8);
        }
        self.esp = 0;
    }

    /// Does what [`Emitter::flush_esp`] does, before the instruction's own work begins. From here
    /// on the instruction can be started again.
    pub(crate) fn flush_esp_first(&mut self) {
        if self.esp != 0 {
            self.flush_esp();
            self.esp_at_start = 0;
            self.start = self.assembler.position();
            self.note_state(Restore::NONE);
        }
    }

    /// Emits code that ensures that the guest's vector registers are loaded into the host's. A fast
    /// path loads them. Uses R8 and RCX.
    pub(crate) fn require_vectors(&mut self) {
        if self.vectors_loaded {
            return;
        }
        self.assembler
            .load(Width::Dword, RCX, self.field(at::VECTORS_OFF));
        let loaded = self.skip_if_zero();
        let site = self.new_site(SiteKind::VectorLoad, self.rip, self.esp_at_start, 0);
        let behind = self.assembler.lea_rip(R8);
        self.name_site(site);
        let routine = self.field(at::fast_path_routine(FastPath::Vectors));
        self.assembler.jmp_memory(routine);
        let position = self.assembler.position();
        self.assembler.patch_rel32(behind, position);
        self.land(loaded);
        self.note_state(Restore::NONE);
        self.vectors_loaded = true;
    }
}
