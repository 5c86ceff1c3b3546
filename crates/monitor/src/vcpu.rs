//! The vCPU and its loop.

use crate::fetch::FetchCache;
use crate::guest_view::{GuestView, view_of};
use crate::host_timer::HostTimer;
use crate::surroundings::Surroundings;
use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use tollgate_emulate::interrupt::{
    DeliveryError, EventSource, Shutdown, deliver, deliver_exception,
};
use tollgate_engine::allow_list::Features;
use tollgate_engine::block::BlockId;
use tollgate_engine::context::{SITE_NONE, SITE_SIGNAL};
use tollgate_engine::engine::{EngineCounts, LookUp};
use tollgate_engine::mode::{Mode, ModeId};
use tollgate_engine::signals::{self, CodeRange};
use tollgate_engine::{Context, Engine};
use tollgate_exits::{ExitCounts, ExitKind};
use tollgate_memory::GuestMemory;
use tollgate_platform::{GuestTime, Platform, StopRequest, TranslationChange};
use tollgate_shadow::SoftwareTlb;
use tollgate_x86::paging::Privilege;
use tollgate_x86::state::Activity;
use tollgate_x86::{CpuState, Exception, Flags, Gpr};

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
    /// R12 must hold ESP minus this.
    pub esp: i32,
    /// Void if the engine's generation differs.
    pub generation: u64,
    /// The code there expects the vector registers as they were at the exit.
    pub vectors: bool,
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
}

/// Lets other threads make a vCPU leave guest code.
#[derive(Clone)]
pub struct Kick {
    target: Arc<Mutex<Option<KickTarget>>>,
}

#[derive(Clone, Copy)]
struct KickTarget {
    process: libc::pid_t,
    thread: libc::pid_t,
    pending: *const AtomicU32,
}

// SAFETY: the pointer is used only under the mutex and only while the vCPU that owns
// the atomic is alive: the vCPU clears the target before it goes away.
unsafe impl Send for KickTarget {}

impl Kick {
    /// Makes the vCPU look for work at its next instruction boundary.
    pub fn kick(&self) {
        let guard = self
            .target
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(target) = *guard {
            // SAFETY: the target is cleared under this mutex before the atomic dies.
            unsafe { (*target.pending).store(1, Ordering::SeqCst) };
            // SAFETY: plain system call; a thread that is gone yields ESRCH.
            unsafe {
                libc::syscall(
                    libc::SYS_tgkill,
                    target.process,
                    target.thread,
                    signals::kick_signal(),
                )
            };
        }
    }
}

/// One virtual processor with its memory and the machine around it.
pub struct Vcpu<P: Platform> {
    pub(crate) context: Box<Context>,
    pub(crate) engine: Box<Engine>,
    pub(crate) view: GuestView,
    pub(crate) platform: P,
    pub(crate) counts: ExitCounts,
    pub(crate) changes: Vec<TranslationChange>,
    pub(crate) fetch: FetchCache,
    pub(crate) mode: ModeId,
    /// The mode word must be formed anew.
    pub(crate) mode_changed: bool,
    pub(crate) resume: Option<Resume>,
    pub(crate) link: PendingLink,
    pub(crate) info: iced_x86::InstructionInfoFactory,
    pub(crate) features: Features,
    /// The offset of the time-stamp counter must be formed anew.
    pub(crate) clock_changed: bool,
    /// The instruction run alone has completed.
    instruction_completed: bool,
    /// EFLAGS.TF was set when the instruction in work began.
    trap_armed: bool,
    /// Instructions completed and exceptions raised at exits: tells `step_one` the end.
    pub(crate) boundaries: u64,
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
        let policy = tollgate_emulate::cpuid::policy();
        let features = Features::new(|feature| policy.offers(feature));
        let engine = Box::new(Engine::new(
            code_cache_bytes,
            features.clone(),
            verify_code,
        )?);
        let range = CodeRange::register(engine.code_range())?;
        let mut context = Context::new(state);
        context.engine = &*engine;
        context.links = engine.links_base();
        Ok(Self {
            context,
            view: GuestView {
                memory,
                tlb: SoftwareTlb::new()?,
            },
            engine,
            platform,
            counts: ExitCounts::default(),
            changes: Vec::new(),
            fetch: FetchCache::default(),
            mode: ModeId(0),
            mode_changed: true,
            resume: None,
            link: PendingLink::None,
            info: iced_x86::InstructionInfoFactory::new(),
            features,
            clock_changed: true,
            instruction_completed: false,
            trap_armed: false,
            boundaries: 0,
            armed: None,
            timer: None,
            kick: Kick {
                target: Arc::default(),
            },
            _range: range,
        })
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
        &self.counts
    }

    /// Translation work so far.
    pub fn engine_counts(&self) -> EngineCounts {
        self.engine.counts()
    }

    /// Guest time was stopped or started: offsets must be formed anew.
    pub fn clock_changed(&mut self) {
        self.clock_changed = true;
        self.mode_changed = true;
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
                platform: &mut self.platform,
                changes: &mut self.changes,
                pending: &context.pending,
                touched_device: false,
            },
        )
    }

    /// Runs the guest on the calling thread until it or the machine stops.
    pub fn run(&mut self) -> VcpuStop {
        let context: *mut Context = &mut *self.context;
        self.timer = HostTimer::new(context).ok();
        // SAFETY: neither call has preconditions.
        let (process, thread) = unsafe { (libc::getpid(), libc::gettid()) };
        let pending: *const AtomicU32 = self.pending();
        *self
            .kick
            .target
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Some(KickTarget {
            process,
            thread,
            pending,
        });
        self.pending().store(1, Ordering::SeqCst);
        let stop = self.run_until_stop();
        self.timer = None;
        self.armed = None;
        *self
            .kick
            .target
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = None;
        stop
    }

    fn run_until_stop(&mut self) -> VcpuStop {
        loop {
            if self.pending().load(Ordering::Relaxed) != 0 {
                self.pending().store(0, Ordering::SeqCst);
                self.platform.advance();
                self.armed = None;
                self.arm_timer();
            }
            if let Some(request) = self.platform.take_stop_request() {
                return VcpuStop::Requested(request);
            }
            self.apply_changes();
            let step = match self.next_event() {
                Ok(true) => continue,
                Ok(false) => self.step(),
                Err(stop) => Err(stop),
            };
            if let Err(stop) = step {
                return stop;
            }
        }
    }

    /// Applies what emulated instructions changed: code writes and translations.
    pub(crate) fn apply_changes(&mut self) {
        if self.view.memory.has_code_writes() {
            for write in self.view.memory.take_code_writes() {
                self.engine
                    .invalidate_lines(write.page, write.lines, &mut self.view.memory);
            }
        }
        if self.changes.is_empty() {
            return;
        }
        for change in std::mem::take(&mut self.changes) {
            match change {
                TranslationChange::AddressSpace => {
                    self.view.tlb.clear_local();
                    self.fetch.clear_local();
                    self.engine.clear_local_links();
                }
                TranslationChange::Everything => {
                    self.view.tlb.clear_all();
                    self.fetch.clear();
                    self.engine.clear_all_links();
                }
                TranslationChange::Page(linear) => {
                    self.view
                        .tlb
                        .clear_page(tollgate_x86::LinearAddress(linear));
                    self.fetch.clear_page(linear >> 12);
                    self.engine.clear_page_links((linear >> 12) as u32);
                }
            }
            // The page that the resumed code was fetched from may lie elsewhere now.
            self.resume = None;
        }
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
            timer.arm(wait);
        }
    }

    /// The machine's A20 gate may have moved: physical addresses then mean something else.
    pub(crate) fn follow_a20(&mut self) {
        let mask = if self.platform.a20_enabled() {
            u64::MAX
        } else {
            !(1 << 20)
        };
        if self.context.cpu.a20_mask != mask {
            self.context.cpu.a20_mask = mask;
            self.changes.push(TranslationChange::Everything);
        }
    }

    /// Delivers what is due at this boundary. True: look again.
    fn next_event(&mut self) -> Result<bool, VcpuStop> {
        if self.platform.take_nmi() {
            self.deliver_event(2, EventSource::External)?;
            return Ok(true);
        }
        let flags = self.context.cpu.flags();
        if flags.contains(Flags::IF)
            && self.context.cpu.shadow_rip != self.context.cpu.rip
            && self.platform.interrupt_pending()
        {
            if let Some(vector) = self.platform.acknowledge_interrupt() {
                self.counts.count(ExitKind::InterruptDelivered);
                self.deliver_event(vector, EventSource::External)?;
            }
            return Ok(true);
        }
        match self.context.cpu.activity {
            Activity::Running => Ok(false),
            Activity::Halted => {
                self.wait();
                Ok(true)
            }
            Activity::Shutdown => Err(VcpuStop::TripleFault(self.dump())),
        }
    }

    pub(crate) fn deliver_event(
        &mut self,
        vector: u8,
        source: EventSource,
    ) -> Result<(), VcpuStop> {
        self.resume = None;
        self.link = PendingLink::None;
        self.mode_changed = true;
        self.context.cpu.shadow_rip = u64::MAX;
        let rip = self.context.cpu.rip;
        let (state, mut surroundings) = self.parts();
        let result = deliver(state, &mut surroundings, vector, source, None, rip);
        match result {
            Ok(()) => {}
            Err(DeliveryError::Exception(exception)) => self.raise(exception)?,
            Err(DeliveryError::NotImplemented(what)) => return Err(self.not_implemented(what)),
        }
        self.context.scatter_flags();
        Ok(())
    }

    /// Delivers an exception of the instruction at the current RIP.
    pub(crate) fn raise(&mut self, exception: Exception) -> Result<(), VcpuStop> {
        self.boundaries = self.boundaries.wrapping_add(1);
        let page_fault = exception.vector == tollgate_x86::Vector::PageFault;
        self.counts.count(if page_fault {
            ExitKind::GuestPageFault
        } else {
            ExitKind::GuestException
        });
        self.resume = None;
        self.link = PendingLink::None;
        self.mode_changed = true;
        self.context.cpu.shadow_rip = u64::MAX;
        let (state, mut surroundings) = self.parts();
        let result = deliver_exception(state, &mut surroundings, exception);
        match result {
            Ok(()) => {
                self.context.scatter_flags();
                Ok(())
            }
            Err(Shutdown::TripleFault) => {
                self.context.cpu.activity = Activity::Shutdown;
                let mut text = format!("first exception: {exception:?}\n");
                text += &self.dump();
                Err(VcpuStop::TripleFault(text))
            }
            Err(Shutdown::NotImplemented(what)) => Err(self.not_implemented(what)),
        }
    }

    pub(crate) fn not_implemented(&self, what: &str) -> VcpuStop {
        let cpu = &self.context.cpu;
        VcpuStop::NotImplemented(format!(
            "the guest needs {what}, which this version does not implement (at {:#06x}:{:#010x})",
            cpu.cs().selector.0,
            cpu.rip
        ))
    }

    /// The registers as text.
    pub fn dump(&self) -> String {
        crate::state_dump::dump(&self.context.cpu)
    }

    /// HLT: sleeps until something may have happened.
    fn wait(&mut self) {
        let timeout = self
            .platform
            .next_deadline()
            .map(|deadline| deadline.since(self.platform.now()));
        let timeout = timeout.unwrap_or(1_000_000_000).clamp(1, 1_000_000_000);
        let time = libc::timespec {
            tv_sec: (timeout / 1_000_000_000) as i64,
            tv_nsec: (timeout % 1_000_000_000) as i64,
        };
        // A kick sets `pending` before its signal arrives, so the futex's own comparison
        // closes the gap between looking and sleeping.
        // SAFETY: the word lives in our context and the timeout is initialised.
        unsafe {
            libc::syscall(
                libc::SYS_futex,
                self.pending().as_ptr(),
                libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG,
                0,
                &time,
            )
        };
        self.pending().store(1, Ordering::SeqCst);
    }

    /// Runs guest code once and handles the exit.
    fn step(&mut self) -> Result<(), VcpuStop> {
        if self.mode_changed {
            self.update_mode();
        }
        let flags = self.context.cpu.flags();
        self.trap_armed = flags.contains(Flags::TF);
        let shadowed = self.context.cpu.shadow_rip == self.context.cpu.rip
            && flags.contains(Flags::IF)
            && self.platform.interrupt_pending();
        if shadowed {
            return self.step_single();
        }
        let generation = self.engine.generation();
        if let Some(resume) = self.resume.take()
            && resume.generation == generation
            && let Some(target) = self.engine.address(resume.block, resume.offset)
        {
            self.context.load_vectors = u64::from(resume.vectors);
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

    /// Runs exactly one instruction: interrupts wait for it.
    fn step_single(&mut self) -> Result<(), VcpuStop> {
        self.counts.count(ExitKind::SingleStep);
        self.resume = None;
        self.link = PendingLink::None;
        let mode = self.engine.mode(self.mode).single();
        let mode = self.intern_temporary(mode);
        let Some(block) = self.find_block(mode)? else {
            return Ok(());
        };
        let Some(target) = self.engine.address(block, 0) else {
            return Ok(());
        };
        self.instruction_completed = false;
        self.context.load_vectors = 1;
        self.enter_at(target, block, 0)?;
        self.resume = None;
        self.link = PendingLink::None;
        if self.instruction_completed {
            self.context.cpu.shadow_rip = u64::MAX;
        }
        Ok(())
    }

    /// Notes whether the trap flag strikes after the instruction at hand.
    pub(crate) fn arm_trap(&mut self) {
        self.trap_armed = self.context.cpu.flags().contains(Flags::TF);
    }

    pub(crate) fn update_mode(&mut self) {
        self.mode_changed = false;
        let mode = Mode::of(&self.context.cpu);
        self.mode = self.engine.intern(mode, &mut self.view.memory);
        let privilege = Privilege::of_cpl(self.context.cpu.cpl());
        self.context.tlb = self.view.tlb.table(view_of(privilege));
        if self.clock_changed {
            self.clock_changed = false;
            self.context.time_stamp_offset = self
                .platform
                .time_stamp()
                .wrapping_sub(host_time_stamp())
                .wrapping_add(self.context.cpu.tsc_offset);
        }
    }

    /// The number of a mode beside the current one, which stays valid or is formed anew.
    pub(crate) fn intern_temporary(&mut self, mode: Mode) -> ModeId {
        let epoch = self.engine.mode_epoch();
        let id = self.engine.intern(mode, &mut self.view.memory);
        if epoch != self.engine.mode_epoch() {
            self.mode_changed = true;
        }
        id
    }

    /// The block at CS:EIP, translated if need be. `None`: an exception was raised
    /// instead.
    pub(crate) fn find_block(&mut self, mode: ModeId) -> Result<Option<BlockId>, VcpuStop> {
        let eip = self.context.cpu.rip as u32;
        let place = match self
            .fetch
            .place(&mut self.view, &self.context.cpu, eip, false)
        {
            Ok(place) => place,
            Err(exception) => return self.raise(exception).map(|()| None),
        };
        let near_end = place.physical % 4096 > 4096 - 16;
        let mut found = self.engine.find(&place, mode);
        let mut place = place;
        if found.is_none() && near_end {
            if let Ok(with_next) = self
                .fetch
                .place(&mut self.view, &self.context.cpu, eip, true)
            {
                place = with_next;
            }
            found = self.engine.find(&place, mode);
        }
        let block = match found {
            Some(block) => block,
            None => match self.translate(&place, mode) {
                LookUp::Block(block) => block,
                LookUp::NeedsNextPage => {
                    let result = self
                        .fetch
                        .place(&mut self.view, &self.context.cpu, eip, true);
                    return match result {
                        Err(exception) => self.raise(exception).map(|()| None),
                        Ok(_) => Ok(None),
                    };
                }
            },
        };
        self.make_link(block, place.linear);
        Ok(Some(block))
    }

    fn translate(&mut self, place: &tollgate_engine::engine::Place, mode: ModeId) -> LookUp {
        let pages = [Some(place.physical >> 12), place.next_page];
        let had_code =
            pages.map(|page| page.is_some_and(|page| self.view.memory.code().page_has_code(page)));
        let result = self.engine.translate(place, mode, &mut self.view.memory);
        for (page, had_code) in pages.into_iter().zip(had_code) {
            let Some(page) = page else { continue };
            if !had_code
                && self.view.memory.code().page_has_code(page)
                && let Some(host) = self.view.memory.ram().host_page(page)
            {
                self.view.tlb.protect_host_page(host as u64);
            }
        }
        result
    }

    /// Makes the link that the last exit asked for, now that its target is known.
    fn make_link(&mut self, block: BlockId, linear: u32) {
        let link = std::mem::replace(&mut self.link, PendingLink::None);
        if matches!(link, PendingLink::None) {
            return;
        }
        let straddles = self
            .engine
            .block(block)
            .is_some_and(|b| b.key.second_page != u64::MAX);
        let Some(dependence) =
            self.fetch
                .dependence(&mut self.view, &self.context.cpu, linear, straddles)
        else {
            return;
        };
        match link {
            PendingLink::None => {}
            PendingLink::Indirect => self.engine.link_indirect(block, dependence),
            PendingLink::From {
                block: from,
                site,
                generation,
            } => {
                if generation == self.engine.generation() {
                    self.engine.link_direct(from, site, block);
                    self.engine.link_slot(from, site, block, dependence);
                }
            }
        }
    }

    /// Enters guest code and handles the exit.
    pub(crate) fn enter_at(
        &mut self,
        target: *const u8,
        block: BlockId,
        esp: i32,
    ) -> Result<(), VcpuStop> {
        self.enter_raw(target, block, esp);
        self.handle_exit()
    }

    /// Enters guest code at `target`, where R12 must hold ESP minus `esp`.
    pub(crate) fn enter_raw(&mut self, target: *const u8, block: BlockId, esp: i32) {
        let true_esp = self.context.cpu.gpr[Gpr::Rsp as usize];
        if esp != 0 {
            let narrow = self.engine.has_narrow_stack(block);
            self.context.cpu.gpr[Gpr::Rsp as usize] =
                adjust_stack_pointer(true_esp, esp.wrapping_neg(), narrow);
        }
        self.context.vectors_were_live = 0;
        self.context.exit_site = SITE_NONE;
        let context: *mut Context = &mut *self.context;
        // SAFETY: the target is an address inside a live block of this context's
        // engine, whose tables were set up by `new` and `update_mode`; the vector area
        // is sanitised whenever an emulated instruction has written it.
        unsafe { tollgate_engine::entry::enter(context, target) };
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

    /// An instruction has completed: the trap flag, if it was set before, strikes.
    pub(crate) fn completed(&mut self) -> Result<(), VcpuStop> {
        self.boundaries = self.boundaries.wrapping_add(1);
        self.instruction_completed = true;
        if !self.trap_armed {
            return Ok(());
        }
        self.trap_armed = false;
        // DR6.BS (SDM volume 3, 17.2.3).
        self.context.cpu.dr[6] |= 1 << 14;
        self.raise(Exception::new(tollgate_x86::Vector::Debug))
    }
}

impl<P: Platform> Drop for Vcpu<P> {
    fn drop(&mut self) {
        *self
            .kick
            .target
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    }
}

/// ESP plus `by`; only the low half on 16-bit stacks.
pub(crate) fn adjust_stack_pointer(esp: u64, by: i32, narrow: bool) -> u64 {
    let moved = u64::from((esp as u32).wrapping_add(by as u32));
    if narrow {
        (esp & 0xffff_0000) | (moved & 0xffff)
    } else {
        moved
    }
}

fn host_time_stamp() -> u64 {
    // SAFETY: RDTSC has no preconditions in user mode on Linux.
    unsafe { core::arch::x86_64::_rdtsc() }
}
