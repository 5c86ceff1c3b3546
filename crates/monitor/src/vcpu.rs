//! One virtual processor: its parts, and its public interface.

use crate::due::Due;
use crate::enter::Resume;
use crate::guest_view::{GuestView, code_address};
use crate::host;
use crate::host_timer::HostTimer;
use crate::instruction_in_work::InstructionInWork;
use crate::kick::Kick;
use crate::latches::Latches;
use crate::metered::Metered;
use crate::surroundings::Surroundings;
use crate::translations::Translations;
use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use tollgate_emulate::cpuid::Vendor;
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::decode::maker::Decoding;
use tollgate_engine::engine::written::Moment;
use tollgate_engine::engine::{EngineCounts, TranslatedBlock};
use tollgate_engine::gate;
use tollgate_engine::policy::allow_list::Features;
use tollgate_engine::policy::virtual_interrupts::VirtualInterrupts;
use tollgate_engine::signals::{self, CodeRange};
use tollgate_engine::{Context, Engine};
use tollgate_exits::blame::Place;
use tollgate_exits::ledger::{Detail, Ledger};
use tollgate_exits::{ExitCounts, ExitKind};
use tollgate_memory::GuestMemory;
use tollgate_platform::{GuestTime, Platform, StopRequest};
use tollgate_x86::{CpuState, Space, TranslationChange};

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
    pub(crate) code_base: u64,
    /// When the numbers of modes in what is known of level changes were given out.
    pub(crate) level_changes_epoch: u64,
    pub(crate) resume: Option<Resume>,
    pub(crate) link: PendingLink,
    pub(crate) features: Features,
    pub(crate) latches: Latches,
    pub(crate) due: Due,
    pub(crate) work: InstructionInWork,
    /// What other threads and signals set: look for work at the next boundary.
    pub(crate) pending: Arc<AtomicU32>,
    pub(crate) armed: Option<GuestTime>,
    pub(crate) timer: Option<HostTimer>,
    pub(crate) kick: Kick,
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
        let pending = Arc::new(AtomicU32::new(0));
        let mut context = Context::new(state, gate::addresses(), Arc::as_ptr(&pending));
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
            features,
            latches: Latches::default(),
            due: Due::ALL,
            work: InstructionInWork::default(),
            pending,
            armed: None,
            timer: None,
            kick: Kick::default(),
            _range: range,
        })
    }

    /// Moves guest registers to the homes that `map` gives them; at first these are those of
    /// [`RegisterMap::LEGACY`]. Drops all translations; must not be called while `run` runs.
    pub fn set_register_map(&mut self, map: &'static RegisterMap) {
        self.engine.set_register_map(map, &mut self.view.memory);
        self.resume = None;
        self.link = PendingLink::None;
    }

    /// How the sensitive instructions are run.
    pub fn virtual_interrupts(&self) -> VirtualInterrupts {
        self.engine.virtual_interrupts()
    }

    /// Changes how the sensitive instructions are run. Drops all translations; must not be
    /// called while `run` runs.
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

    /// Starts an empty ledger, in more or less detail.
    pub fn set_ledger_detail(&mut self, detail: Detail) {
        self.ledger = Ledger::new(host::thread_time, detail);
    }

    /// Takes the ledger and starts an empty one.
    pub fn take_ledger(&mut self) -> Ledger {
        std::mem::replace(
            &mut self.ledger,
            Ledger::new(host::thread_time, Detail::default()),
        )
    }

    /// Continues a ledger that another vCPU began.
    pub fn continue_ledger(&mut self, ledger: Ledger) {
        self.ledger = ledger;
    }

    /// Linear address and address space of the instruction at CS:EIP.
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
        &self.pending
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
                pending: &self.pending,
                touched_device: false,
                breakpoint_hits: &mut self.latches.breakpoint_hits,
            },
        )
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
}

impl<P: Platform> Drop for Vcpu<P> {
    fn drop(&mut self) {
        self.kick.disarm();
    }
}
