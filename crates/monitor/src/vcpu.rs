//! The vCPU and its loop.

use crate::due::Due;
use crate::guest_view::{GuestView, code_address, view_of};
use crate::host;
use crate::host_timer::HostTimer;
use crate::instruction_in_work::InstructionInWork;
use crate::kick::Kick;
use crate::latches::Latches;
use crate::metered::Metered;
use crate::surroundings::Surroundings;
use crate::translations::Translations;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_emulate::cpuid::Vendor;
use tollgate_engine::abi::context::{NO_PASS, SITE_NONE, SITE_SIGNAL};
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::decode::maker::Decoding;
use tollgate_engine::engine::written::Moment;
use tollgate_engine::engine::{EngineCounts, TranslatedBlock};
use tollgate_engine::gate;
use tollgate_engine::policy::allow_list::Features;
use tollgate_engine::policy::mode::{Mode, ModeFlags};
use tollgate_engine::policy::virtual_interrupts::VirtualInterrupts;
use tollgate_engine::signals::{self, CodeRange};
use tollgate_engine::{Context, Engine};
use tollgate_exits::blame::Place;
use tollgate_exits::ledger::{Detail, Ledger};
use tollgate_exits::{ExitCounts, ExitKind};
use tollgate_memory::GuestMemory;
use tollgate_platform::{GuestTime, Platform, StopRequest};
use tollgate_x86::paging::Privilege;
use tollgate_x86::state::Activity;
use tollgate_x86::{CpuState, Exception, Flags, Gpr, Space, TranslationChange, Vector};

/// Shortest setting of the host timer, in nanoseconds. A guest that asks for interrupts
/// faster than signals can be taken must still get on between two of them.
const SHORTEST_TIMER: u64 = 20_000;

/// Why [`Vcpu::run`] returned.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VcpuStop {
    /// The machine asked for it.
    Requested(StopRequest),
    /// The processor shut down; the registers before the first exception.
    TripleFault(String),
    /// The guest did something legal that this version cannot do.
    NotImplemented(String),
}

/// Which part of a vCPU's code runs next, inside a block.
#[derive(Clone, Copy)]
pub(crate) struct Resume {
    pub block: BlockId,
    pub offset: u32,
    /// ESP's home must hold ESP minus this.
    pub esp: i32,
    /// Void if the engine's generation differs.
    pub generation: u64,
    /// The code there expects the vector registers as they were at the exit.
    pub vectors: bool,
    /// [`Context::store_pass`] for this entry.
    pub store_pass: u64,
}

/// A link to be made once the target's block is known.
#[derive(Clone, Copy)]
pub(crate) enum PendingLink {
    None,
    From {
        block: BlockId,
        site: usize,
        generation: u64,
    },
    Indirect,
    Far,
}

/// One virtual processor with its memory and the machine around it.
pub struct Vcpu<P: Platform> {
    pub(crate) context: Box<Context>,
    pub(crate) engine: Box<Engine>,
    pub(crate) view: GuestView,
    pub(crate) platform: P,
    pub(crate) ledger: Ledger,
    pub(crate) mode: ModeId,
    /// Base of CS when `mode` was formed: guest code may change it.
    code_base: u64,
    /// When the numbers of modes in what is known of level changes were given out.
    pub(crate) level_changes_epoch: u64,
    pub(crate) resume: Option<Resume>,
    pub(crate) link: PendingLink,
    pub(crate) info: iced_x86::InstructionInfoFactory,
    pub(crate) features: Features,
    /// The guest registers that live in the context's slots while guest code runs.
    slot_mask: u16,
    /// EFLAGS.RF is set for the instruction at hand, which may have completed.
    pub(crate) resume_flag_unsettled: bool,
    pub(crate) latches: Latches,
    pub(crate) due: Due,
    pub(crate) work: InstructionInWork,
    armed: Option<GuestTime>,
    timer: Option<HostTimer>,
    kick: Kick,
    _range: CodeRange,
}

impl<P: Platform> Vcpu<P> {
    /// A vCPU that starts in `state`.
    ///
    /// # Errors
    /// The host refused memory, signals or executable mappings.
    pub fn new(
        state: CpuState,
        memory: GuestMemory,
        platform: P,
        code_cache_bytes: usize,
        verify_code: bool,
    ) -> io::Result<Self> {
        signals::install()?;
        let policy = tollgate_emulate::cpuid::policy(&state);
        let features = Features::new(|feature| policy.offers(feature))
            .with_narrow_selectors(policy.vendor() == Vendor::Intel)
            .with_decoding(match policy.vendor() {
                Vendor::Amd => Decoding::Amd,
                Vendor::Intel | Vendor::Other => Decoding::Intel,
            })
            .with_lahf_in_64_bit_code(policy.offers_lahf_in_64_bit_code());
        let engine = Box::new(Engine::new(
            code_cache_bytes,
            features.clone(),
            verify_code,
        )?);
        let range = CodeRange::register(engine.code_range())?;
        let mut context = Context::new(state, gate::addresses());
        engine.attach(&mut context);
        Ok(Self {
            context,
            view: GuestView {
                memory,
                translations: Translations::new()?,
            },
            engine,
            platform,
            ledger: Ledger::new(host::thread_time, Detail::default()),
            mode: ModeId(0),
            code_base: 0,
            level_changes_epoch: 0,
            resume: None,
            link: PendingLink::None,
            info: iced_x86::InstructionInfoFactory::new(),
            features,
            slot_mask: 0,
            resume_flag_unsettled: false,
            latches: Latches::default(),
            due: Due::ALL,
            work: InstructionInWork::default(),
            armed: None,
            timer: None,
            kick: Kick::default(),
            _range: range,
        })
    }

    /// Has guest registers live elsewhere than [`RegisterMap::LEGACY`] says. Drops all
    /// translations; not to be called while `run` runs.
    pub fn set_register_map(&mut self, map: &'static RegisterMap) {
        self.engine.set_register_map(map, &mut self.view.memory);
        self.slot_mask = map.slot_mask();
        self.resume = None;
        self.link = PendingLink::None;
    }

    /// How the sensitive instructions are run.
    pub fn virtual_interrupts(&self) -> VirtualInterrupts {
        self.engine.virtual_interrupts()
    }

    /// Has the sensitive instructions run otherwise from now on. Drops all translations;
    /// not to be called while `run` runs.
    pub fn set_virtual_interrupts(&mut self, choice: VirtualInterrupts) {
        self.engine
            .set_virtual_interrupts(choice, &mut self.view.memory);
        self.resume = None;
        self.link = PendingLink::None;
    }

    /// Has guest instructions be counted from now on, or not. Slows the guest. Drops all
    /// translations; not to be called while `run` runs.
    pub fn set_counts_instructions(&mut self, counts: bool) {
        self.engine
            .set_counts_instructions(counts, &mut self.view.memory);
        self.resume = None;
        self.link = PendingLink::None;
    }

    /// Guest instructions begun so far; `None` if they are not counted. One that is begun
    /// again, because it faulted or a signal struck in it, counts again; a repeated string
    /// instruction counts once each time that it begins.
    pub fn instructions(&self) -> Option<u64> {
        let counts = self.engine.counts_instructions();
        counts.then_some(self.context.instructions)
    }

    /// The processor's registers, exact whenever `run` does not run.
    pub fn state(&self) -> &CpuState {
        &self.context.cpu
    }

    /// The machine.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// The machine.
    pub fn platform_mut(&mut self) -> &mut P {
        &mut self.platform
    }

    /// Guest memory.
    pub fn memory_mut(&mut self) -> &mut GuestMemory {
        &mut self.view.memory
    }

    /// Exits so far.
    pub fn exit_counts(&self) -> &ExitCounts {
        self.ledger.counts()
    }

    /// Exits, their costs, and where the time went.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// Starts the books anew, in more or less detail.
    pub fn set_ledger_detail(&mut self, detail: Detail) {
        self.ledger = Ledger::new(host::thread_time, detail);
    }

    /// Takes the books; new ones begin.
    pub fn take_ledger(&mut self) -> Ledger {
        std::mem::replace(
            &mut self.ledger,
            Ledger::new(host::thread_time, Detail::default()),
        )
    }

    /// Goes on with books that were begun elsewhere.
    pub fn continue_ledger(&mut self, ledger: Ledger) {
        self.ledger = ledger;
    }

    /// Where the instruction at CS:EIP lies.
    #[inline]
    pub(crate) fn place(&self) -> Place {
        let cpu = &self.context.cpu;
        Place {
            linear: code_address(cpu),
            space: cpu.address_space(),
        }
    }

    /// Counts an exit of the instruction at CS:EIP.
    #[inline]
    pub(crate) fn count(&mut self, kind: ExitKind) {
        let place = self.place();
        self.ledger.count(kind, place);
    }

    /// Translated code as it lies in the host's memory now.
    pub fn translated_blocks(&self) -> impl Iterator<Item = TranslatedBlock> {
        self.engine.blocks()
    }

    /// The host addresses at which guest code runs.
    pub fn code_range(&self) -> std::ops::Range<u64> {
        self.engine.code_range()
    }

    /// Translation work so far.
    pub fn engine_counts(&self) -> EngineCounts {
        self.engine.counts()
    }

    /// Guest time was stopped or started: offsets must be formed anew.
    pub fn clock_changed(&mut self) {
        self.due.clock = true;
        self.due.mode = true;
    }

    /// A handle for other threads.
    pub fn kick(&self) -> Kick {
        self.kick.clone()
    }

    pub(crate) fn pending(&self) -> &AtomicU32 {
        &self.context.pending
    }

    /// Borrows everything an emulated instruction needs.
    pub(crate) fn parts(&mut self) -> (&mut CpuState, Surroundings<'_>) {
        let context = &mut *self.context;
        (
            &mut context.cpu,
            Surroundings {
                view: &mut self.view,
                platform: Metered {
                    machine: &mut self.platform,
                    ledger: &mut self.ledger,
                },
                links: self.engine.links_mut(),
                pending: &context.pending,
                touched_device: false,
                breakpoint_hits: &mut self.latches.breakpoint_hits,
            },
        )
    }

    /// Runs the guest on the calling thread until it or the machine stops.
    pub fn run(&mut self) -> VcpuStop {
        let context: *mut Context = &mut *self.context;
        match HostTimer::new(context) {
            Ok(timer) => self.timer = Some(timer),
            // Without it the guest's timers would not fire: better no run than that one.
            Err(error) => {
                return VcpuStop::NotImplemented(format!(
                    "the host refused a timer: {error} (is its limit of queued signals reached?)"
                ));
            }
        }
        self.kick.arm(&self.context.pending);
        self.pending().store(1, Ordering::SeqCst);
        self.ledger.start();
        let stop = self.run_until_stop();
        self.ledger.stop();
        self.timer = None;
        self.armed = None;
        self.kick.disarm();
        stop
    }

    fn run_until_stop(&mut self) -> VcpuStop {
        loop {
            if self.pending().load(Ordering::Relaxed) != 0 {
                self.pending().store(0, Ordering::SeqCst);
                self.platform.advance();
                self.ledger.look_at_waiting();
                self.armed = None;
                self.arm_timer();
                self.due.events = true;
            }
            self.apply_changes();
            if self.due.events || self.context.cpu.activity != Activity::Running {
                if let Some(request) = self.platform.take_stop_request() {
                    return VcpuStop::Requested(request);
                }
                match self.next_event() {
                    Ok(true) => continue,
                    Ok(false) => self.due.events = false,
                    Err(stop) => return stop,
                }
            }
            if let Err(stop) = self.step() {
                return stop;
            }
        }
    }

    /// Follows what emulated instructions changed: writes of code, and translations.
    pub(crate) fn apply_changes(&mut self) {
        if self.view.memory.has_map_changes() {
            self.follow_map();
        }
        if self.view.memory.has_code_writes() {
            for write in self.view.memory.take_code_writes() {
                self.engine.code_written(
                    write.page,
                    write.first,
                    write.last,
                    Moment::After,
                    &mut self.view.memory,
                );
            }
        }
        let translations = &mut self.view.translations;
        if translations.take_changed(self.engine.links_mut()) {
            self.resume = None;
        }
    }

    /// Forgets what was derived from the page tables and is void now.
    pub(crate) fn change_translations(&mut self, change: TranslationChange) {
        let loaded = Space::loaded(&self.context.cpu);
        let links = self.engine.links_mut();
        self.view.translations.change(loaded, change, links);
    }

    /// Has the host timer fire at the machine's next deadline, if it is not set to fire
    /// earlier already.
    pub(crate) fn arm_timer(&mut self) {
        let Some(deadline) = self.platform.next_deadline() else {
            return;
        };
        if self.armed.is_some_and(|armed| armed <= deadline) {
            return;
        }
        self.armed = Some(deadline);
        let wait = deadline.since(self.platform.now());
        if let Some(timer) = &mut self.timer {
            timer.arm(wait.max(SHORTEST_TIMER));
        }
    }

    /// Runs guest code once and handles the exit.
    fn step(&mut self) -> Result<(), VcpuStop> {
        if self.due.mode {
            self.update_mode();
        }
        let flags = self.context.cpu.flags();
        self.begin_instruction();
        if self.context.cpu.has_breakpoints() && self.meets_code_breakpoint() {
            return self.raise(Exception::new(Vector::Debug));
        }
        let unsettled = std::mem::take(&mut self.resume_flag_unsettled);
        if self.work.is_shadowed() && self.something_waits_for_shadow(flags)
            || unsettled && self.something_waits(flags)
        {
            return self.step_single();
        }
        if self.latches.ignores_x87_error {
            return self.step_ignoring_x87_error();
        }
        let generation = self.engine.generation();
        if let Some(resume) = self.resume.take()
            && resume.generation == generation
            && let Some(target) = self.engine.address(resume.block, resume.offset)
        {
            self.context.load_vectors = u64::from(resume.vectors);
            self.context.store_pass = resume.store_pass;
            return self.enter_at(target, resume.block, resume.esp);
        }
        let Some(block) = self.find_block(self.mode)? else {
            return Ok(());
        };
        let Some(target) = self.engine.address(block, 0) else {
            return Ok(());
        };
        self.enter_at(target, block, 0)
    }

    /// Runs one instruction while a pending x87 error is ignored.
    fn step_ignoring_x87_error(&mut self) -> Result<(), VcpuStop> {
        self.follow_ignored_x87_error();
        let hidden = self.hide_x87_error();
        let result = self.step_single();
        if let Some(hidden) = hidden {
            self.unhide_x87_error(&hidden);
        }
        result
    }

    /// The instruction at CS:EIP begins, or is begun anew.
    pub(crate) fn begin_instruction(&mut self) {
        let cpu = &self.context.cpu;
        let traps = cpu.flags().contains(Flags::TF);
        self.work = InstructionInWork::begin(traps, cpu.shadow_rip == cpu.rip);
    }

    pub(crate) fn update_mode(&mut self) {
        self.due.mode = false;
        let mode = Mode::of(&self.context.cpu);
        self.mode = self.engine.intern(mode, &mut self.view.memory);
        self.forget_old_level_changes();
        self.code_base = self.context.cpu.cs().base;
        let privilege = Privilege::of_cpl(self.context.cpu.cpl());
        self.context.tlb = self
            .view
            .translations
            .table(&self.context.cpu, view_of(privilege));
        self.context.watch_memory(&self.view.memory);
        self.context.note_descriptors();
        if self.due.clock {
            self.due.clock = false;
            self.context.time_stamp_offset = self
                .platform
                .host_time_stamp_offset()
                .wrapping_add(self.context.cpu.tsc_offset);
        }
    }

    /// Guest code was left in `block`, or on the way out of it: the mode may be another one
    /// than when it was entered, by a far transfer or a change of the privilege level.
    pub(crate) fn follow_mode(&mut self, block: BlockId) {
        let cpu = &self.context.cpu;
        let base = cpu.cs().base;
        let level_changed = std::mem::take(&mut self.context.level_changed) != 0;
        if base == self.code_base && !level_changed {
            return;
        }
        self.due.mode = true;
        let Some(id) = self.engine.block(block).map(|block| block.key.mode) else {
            return;
        };
        let mode = self.engine.mode(id);
        let is_user = cpu.cpl() == 3;
        // Nothing else about the mode can have changed.
        if u64::from(mode.code_base) == base
            && mode.flags.contains(ModeFlags::USER) == is_user
            && !mode.flags.contains(ModeFlags::SINGLE)
        {
            self.mode = id;
            self.code_base = base;
            self.due.mode = false;
        }
    }

    /// The number of a mode beside the current one, which stays valid or is formed anew.
    pub(crate) fn intern_temporary(&mut self, mode: Mode) -> ModeId {
        let epoch = self.engine.mode_epoch();
        let id = self.engine.intern(mode, &mut self.view.memory);
        if epoch != self.engine.mode_epoch() {
            self.due.mode = true;
        }
        id
    }

    /// Enters guest code and handles the exit.
    pub(crate) fn enter_at(
        &mut self,
        target: *const u8,
        block: BlockId,
        esp: i32,
    ) -> Result<(), VcpuStop> {
        self.ledger.enter_guest();
        self.enter_raw(target, block, esp);
        self.ledger.leave_guest();
        self.handle_exit()
    }

    /// Enters guest code at `target`, where ESP's home must hold ESP minus `esp`.
    pub(crate) fn enter_raw(&mut self, target: *const u8, block: BlockId, esp: i32) {
        let true_esp = self.context.cpu.gpr[Gpr::Rsp as usize];
        if esp != 0 {
            let mask = self.engine.stack_mask(block);
            self.context.cpu.gpr[Gpr::Rsp as usize] =
                adjust_stack_pointer(true_esp, esp.wrapping_neg(), mask);
        }
        self.context.vectors_were_live = 0;
        self.context.exit_site = SITE_NONE;
        // 64-bit code has a map of its own, whose slots need no copies.
        let slots = match self.slot_mask {
            0 => 0,
            _ if self.context.cpu.is_64_bit() => 0,
            mask => mask,
        };
        self.context.scatter_registers(slots);
        let context: *mut Context = &mut *self.context;
        // SAFETY: the target is an address inside a live block of this context's
        // engine, whose tables were set up by `new` and `update_mode`; the vector area
        // is sanitised whenever an emulated instruction has written it.
        unsafe { tollgate_engine::gate::entry::enter(context, target) };
        self.context.store_pass = NO_PASS;
        self.context.gather_registers(slots);
        if self.context.vectors_were_live != 0 {
            self.context.gather_x87_pointers();
        }
        if self.context.exit_site == SITE_NONE {
            self.context.cpu.gpr[Gpr::Rsp as usize] = true_esp;
        }
    }

    fn handle_exit(&mut self) -> Result<(), VcpuStop> {
        match self.context.exit_site {
            SITE_NONE => Ok(()),
            SITE_SIGNAL => self.signal_exit(),
            packed => self.site_exit(packed),
        }
    }
}

impl<P: Platform> Drop for Vcpu<P> {
    fn drop(&mut self) {
        self.kick.disarm();
    }
}

/// The stack pointer plus `by`, which changes the bits in `mask`: 64, 32 or 16. The upper
/// half is cleared if it is 32.
pub(crate) fn adjust_stack_pointer(rsp: u64, by: i32, mask: u64) -> u64 {
    let moved = rsp.wrapping_add_signed(i64::from(by)) & mask;
    let kept = if mask == 0xffff { rsp & !mask } else { 0 };
    kept | moved
}
