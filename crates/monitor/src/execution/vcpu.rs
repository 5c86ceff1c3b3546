//! One virtual processor: its parts and its public interface.

use crate::execution::current_instruction::InstructionInWork;
use crate::execution::due_work::Due;
use crate::execution::non_register_state::NonRegisterState;
use crate::execution::runner::Runner;
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::execution::watched::Watched;
use crate::host::alarm::Alarm;
use crate::host::facts;
use crate::host::kick::Kick;
use crate::memory::guest_view::GuestView;
use crate::memory::program_names::ProgramNames;
use crate::memory::translations::Translations;
use crate::memory::watched_pages::WatchedPages;
use crate::translated::Translated;
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use tollgate_emulate::cpuid::Vendor;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_engine::decode::intel_amd_differences::Decoding;
use tollgate_engine::engine::{CodeCacheUse, TranslatedBlock};
use tollgate_engine::policy::allow_list::Features;
use tollgate_engine::requests::Requests;
use tollgate_engine::signals;
use tollgate_engine::stored::StoredTranslations;
use tollgate_engine::stored::key::Key;
use tollgate_exits::ExitCounts;
use tollgate_exits::ledger::{Detail, Ledger};
use tollgate_exits::steps::{StepCost, Steps};
use tollgate_memory::GuestMemory;
use tollgate_platform::Platform;
use tollgate_x86::CpuState;

/// One virtual processor with its memory. The machine around it belongs to the caller, and is
/// borrowed for the time that the processor runs. A [`Runner`] runs the processor's code.
pub struct Vcpu<R: Runner = Translated> {
    pub(crate) runner: R,
    pub(crate) view: GuestView,
    ledger: Ledger,
    pub(crate) features: Features,
    pub(crate) non_register: NonRegisterState,
    pub(crate) due: Due,
    pub(crate) work: InstructionInWork,
    /// The word that other threads and signals set to make the vCPU look for work at the next
    /// boundary.
    pub(crate) pending: Arc<Requests>,
    alarm: Alarm,
    kick: Kick,
    programs: ProgramNames,
    watched: Watched,
    /// The breakpoints that the runner knows.
    breakpoints: BTreeSet<u64>,
}

/// The instructions that a guest on this processor may use, and how the processor's maker decodes
/// them.
pub(crate) fn features_of(state: &CpuState) -> Features {
    let policy = tollgate_emulate::cpuid::policy(state);
    Features::new(|feature| policy.offers(feature))
        .with_narrow_selectors(policy.vendor() == Vendor::Intel)
        .with_decoding(match policy.vendor() {
            Vendor::Amd => Decoding::Amd,
            Vendor::Intel | Vendor::Other => Decoding::Intel,
        })
        .with_lahf_in_64_bit_code(policy.offers_lahf_in_64_bit_code())
}

impl Vcpu {
    /// A vCPU that starts in `state` and whose code runs by copy-translation.
    ///
    /// # Errors
    /// The host refused memory, signals or executable mappings.
    pub fn new(
        state: CpuState,
        memory: GuestMemory,
        code_cache_bytes: usize,
        verify_code: bool,
    ) -> io::Result<Self> {
        Self::with_runner(memory, features_of(&state), |features, requests| {
            let features = features.clone();
            Translated::new(state, features, code_cache_bytes, verify_code, requests)
        })
    }

    /// Moves guest registers to the homes that `map` gives them. At first the homes are those of
    /// [`RegisterMap::LEGACY`]. Drops all translations; must not be called while `run` runs.
    pub fn set_register_map(&mut self, map: &'static RegisterMap) {
        self.runner
            .change_engine(&mut self.view.memory, |engine, memory| {
                engine.set_register_map(map, memory);
            });
    }

    /// Makes `run` check all data that is derived from the guest's page tables against what a
    /// processor may have cached, and panic if anything else is used or kept. The check is slow.
    /// Must be called before the first run.
    pub fn set_verify_shadow(&mut self, verifies: bool) {
        self.view.translations.set_checks(verifies);
    }

    /// For tests: makes a request at every checkpoint of interruptible work whose number is a
    /// multiple of `every`.
    pub fn force_requests(&mut self, every: u64) {
        self.pending.checkpoints().force(every);
    }

    /// The cost of finding the instructions that exits emulated, step by step.
    pub fn instruction_steps(&self) -> impl Iterator<Item = StepCost> {
        self.runner.instructions.results.steps.costs()
    }

    /// Restarts the measurement of these steps.
    pub fn reset_instruction_steps(&mut self) {
        self.runner.instructions.results.steps = Steps::default();
    }

    /// Starts or stops counting guest instructions, which slows the guest. Drops all translations;
    /// must not be called while `run` runs.
    pub fn set_counts_instructions(&mut self, counts: bool) {
        self.runner
            .change_engine(&mut self.view.memory, |engine, memory| {
                engine.set_counts_instructions(counts, memory);
            });
    }

    /// Sets whether deliveries of faults and interrupts are repeated where that is known to be
    /// correct, which is the default. For tests, which compare with deliveries through the tables
    /// alone.
    pub fn set_repeats_deliveries(&mut self, repeats: bool) {
        self.runner.fault_deliveries.enabled = repeats;
    }

    /// Takes blocks from stored translations from now on. Returns false if this vCPU has run
    /// already. Must not be called while `run` runs, and before it only after all settings.
    pub fn use_stored_translations(&mut self, stored: StoredTranslations) -> bool {
        let mut is_used = false;
        (self.runner).change_engine(&mut self.view.memory, |engine, memory| {
            is_used = engine.use_stored(stored, memory);
        });
        is_used
    }

    /// Describes the translations, so that another vCPU [can use
    /// them](Self::use_stored_translations); see [`Engine::store`].
    pub fn store_translations(&self, identity: u64, key: Option<Key>) -> Option<Vec<u8>> {
        let memory = &self.view.memory;
        self.runner.engine.store(identity, key, memory)
    }

    /// The blocks of translated code as they are in the host's memory now.
    pub fn translated_blocks(&self) -> impl Iterator<Item = TranslatedBlock> {
        self.runner.engine.blocks()
    }

    /// The range of host addresses at which guest code runs.
    pub fn code_range(&self) -> std::ops::Range<u64> {
        self.runner.engine.code_range()
    }

    /// How full the code cache is.
    pub fn code_cache(&self) -> CodeCacheUse {
        self.runner.engine.code_cache()
    }
}

impl<R: Runner> Vcpu<R> {
    /// A vCPU whose code is run by the runner that `make_runner` makes. `make_runner` receives the
    /// instructions that the guest may use, and the word that is not 0 while an exit is requested.
    ///
    /// # Errors
    /// The host refused memory or signals, or `make_runner` failed.
    pub fn with_runner(
        memory: GuestMemory,
        features: Features,
        make_runner: impl FnOnce(&Features, &Arc<Requests>) -> io::Result<R>,
    ) -> io::Result<Self> {
        signals::install()?;
        let pending = Arc::new(Requests::default());
        Ok(Self {
            runner: make_runner(&features, &pending)?,
            view: GuestView {
                memory,
                translations: Translations::new()?,
                missed: None,
            },
            ledger: Ledger::new(facts::thread_time, Detail::default()),
            features,
            non_register: NonRegisterState::default(),
            due: Due::ALL,
            work: InstructionInWork::default(),
            pending,
            alarm: Alarm::default(),
            kick: Kick::default(),
            programs: ProgramNames::default(),
            watched: Watched::default(),
            breakpoints: BTreeSet::new(),
        })
    }

    /// Combines the vCPU with the machine that it runs in.
    pub(crate) fn running<'a, P: Platform>(&'a mut self, platform: &'a mut P) -> Running<'a, R, P> {
        Running {
            runner: &mut self.runner,
            platform,
            view: &mut self.view,
            ledger: &mut self.ledger,
            features: &self.features,
            non_register: &mut self.non_register,
            due: &mut self.due,
            work: &mut self.work,
            pending: &self.pending,
            alarm: &mut self.alarm,
            programs: &mut self.programs,
            watched: &mut self.watched,
        }
    }

    /// Runs the guest in the machine `platform`, on the calling thread, until the guest or the
    /// machine stops. `platform` must be the same machine each time.
    pub fn run<P: Platform>(&mut self, platform: &mut P) -> VcpuStop {
        if let Err(error) = self.alarm.start(Arc::clone(&self.pending)) {
            // Without the host timer the guest's timers would not fire, so not running is better.
            return VcpuStop::NotImplemented(format!(
                "the host refused a timer: {error} (is its limit of queued signals reached?)"
            ));
        }
        self.follow_watched();
        self.kick.arm(Arc::clone(&self.pending));
        self.pending.forget();
        self.pending.store(1, Ordering::SeqCst);
        self.ledger.start();
        let stop = self.running(platform).run_until_stop();
        tollgate_native::leave_seat();
        self.ledger.stop();
        self.alarm.stop();
        self.kick.disarm();
        stop
    }

    /// Follows changes of what a debugger watches. A debugger takes everything away at each stop, and
    /// sets it again before the guest continues, so only what has changed when guest code runs counts.
    pub(crate) fn follow_watched(&mut self) {
        if self.watched.code != self.breakpoints {
            self.breakpoints.clone_from(&self.watched.code);
            let memory = &mut self.view.memory;
            self.runner.set_breakpoints(&self.breakpoints, memory);
        }
        let pages = WatchedPages::of(&self.watched.memory);
        if pages != self.view.translations.watched_pages {
            self.view.translations.set_watched_pages(pages);
            self.forget_translations();
        }
    }

    /// The processor's registers. They are exact whenever `run` does not run.
    pub fn state(&self) -> &CpuState {
        self.runner.state()
    }

    /// The part of a saved state that [`Vcpu::state`] lacks. It is exact whenever `run` does not
    /// run.
    pub fn non_register_state(&self) -> NonRegisterState {
        self.non_register
    }

    /// Restores saved state that is in no register. Must not be called while `run` runs.
    pub fn set_non_register_state(&mut self, state: NonRegisterState) {
        self.non_register = state;
        self.due.events = true;
    }

    /// The guest's memory.
    pub fn memory_mut(&mut self) -> &mut GuestMemory {
        &mut self.view.memory
    }

    /// Counts of the exits so far.
    pub fn exit_counts(&self) -> &ExitCounts {
        self.ledger.counts()
    }

    /// The ledger: exits, their costs, and where the time went.
    pub fn ledger(&self) -> &Ledger {
        &self.ledger
    }

    /// The names of the programs in address spaces, as far as they are known: CR3 and the names,
    /// the newest first.
    pub fn program_names(&self) -> impl Iterator<Item = (u64, String)> {
        self.programs.all()
    }

    /// Starts an empty ledger with this level of detail.
    pub fn set_ledger_detail(&mut self, detail: Detail) {
        self.ledger = Ledger::new(facts::thread_time, detail);
    }

    /// Takes the ledger, and starts an empty one.
    pub fn take_ledger(&mut self) -> Ledger {
        std::mem::replace(
            &mut self.ledger,
            Ledger::new(facts::thread_time, Detail::default()),
        )
    }

    /// Continues a ledger that another vCPU has begun.
    pub fn continue_ledger(&mut self, ledger: Ledger) {
        self.ledger = ledger;
    }

    /// The processor's registers as text.
    pub fn dump(&self) -> String {
        crate::execution::state_dump::dump(self.state())
    }

    /// Changes what a debugger outside of the machine watches. Must not be called while `run` runs.
    pub fn watch(&mut self, change: impl FnOnce(&mut Watched)) {
        change(&mut self.watched);
        let debugged = self.watched.debugged();
        if self.runner.state().debugged != debugged {
            self.change_state(|state| state.debugged = debugged);
        }
    }

    /// Must be called after guest time was stopped or started: the offset of the time-stamp counter
    /// is then computed again.
    pub fn clock_changed(&mut self) {
        self.due.clock = true;
        self.due.mode = true;
    }

    /// A handle by which other threads interrupt the vCPU.
    pub fn kick(&self) -> Kick {
        self.kick.clone()
    }
}

impl<R: Runner> Drop for Vcpu<R> {
    fn drop(&mut self) {
        self.kick.disarm();
    }
}
