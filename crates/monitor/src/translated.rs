//! Copy-translation as a [`Runner`]: the engine with its context, and the place where guest code
//! resumes.
//!
//! `enter.rs` enters translated code. `exits.rs` has one function for each kind of exit site,
//! `misses.rs` fills the software TLB, and `slow_path.rs` runs single instructions out of line.
//! The rest is in folders: `code` finds the block to enter, `faults` has one function for each kind
//! of signal, `devices` executes instructions with operands in device memory, and `memos` stores
//! what fast paths compare with.

mod code;
mod devices;
mod enter;
mod exits;
mod faults;
mod interrupted_work;
mod memos;
mod misses;
mod slow_path;

pub use enter::TranslatedExit;

use crate::execution::instruction_cache::InstructionCache;
use crate::execution::runner::Runner;
use crate::memory::faulting_sites::FaultingSites;
use crate::memory::memory_access::{Accounts, MemoryAccess};
use crate::memory::space_switch::SpaceSwitch;
use crate::memory::windows::Comparing;
use enter::Resume;
use faults::guarded_pages::GuardedPages;
use interrupted_work::WorkLeft;
use memos::fast_paths::FastPathsKnown;
use memos::fault_deliveries::FaultDeliveries;
use std::io;
use std::sync::Arc;
use tollgate_emulate::cpuid::{Vendor, policy};
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::gate;
use tollgate_engine::policy::access::Access;
use tollgate_engine::policy::allow_list::Features;
use tollgate_engine::requests::Requests;
use tollgate_engine::signals::CodeRange;
use tollgate_engine::{Context, Engine};
use tollgate_memory::GuestMemory;
use tollgate_x86::CpuState;

/// A link that will be made once the target's block is known.
#[derive(Clone, Copy)]
pub(crate) enum PendingLink {
    None,
    From {
        block: BlockId,
        site: usize,
        generation: u64,
        /// Whether the target is the code without shared look-ups (see [`Mode::windowless`]).
        ///
        /// [`Mode::windowless`]: tollgate_engine::policy::mode::Mode::windowless
        windowless: bool,
    },
    Indirect,
    Far,
    /// The handler of an exception, which is looked up as the target of an indirect branch is.
    Handler,
}

/// A processor whose code runs by copy-translation.
pub struct Translated {
    pub(crate) context: Box<Context>,
    pub(crate) engine: Box<Engine>,
    pub(crate) mode: ModeId,
    /// The base of CS when `mode` was computed. Guest code may change the base.
    pub(crate) code_base: u64,
    /// The epoch of the mode numbers in the memos of level changes.
    pub(crate) level_changes_epoch: u64,
    /// Which tables of memos for fast paths have entries.
    pub(crate) fast_paths_known: FastPathsKnown,
    pub(crate) resume: Option<Resume>,
    pub(crate) link: PendingLink,
    /// Memos of deliveries of exceptions.
    pub(crate) fault_deliveries: FaultDeliveries,
    /// Host pages for masked operands that lie next to memory that must not be accessed.
    pub(crate) guarded: Option<GuardedPages>,
    /// The accounts that decide which spaces' programs access memory directly.
    pub(crate) accounts: Box<Accounts>,
    /// The setting for these accounts, whether or not the process has room for shadow windows.
    pub(crate) memory_access: MemoryAccess,
    /// The setting for anchors, whether or not this machine has any.
    pub(crate) uses_anchors: bool,
    /// How known spaces are loaded.
    pub(crate) space_switch: SpaceSwitch,
    /// The requests to this processor.
    pub(crate) requests: Arc<Requests>,
    /// The root of the page tables of the space whose windows were not completely filled because
    /// the work stopped.
    pub(crate) half_filled: Option<u64>,
    /// Whether comparing a window has stopped halfway; if so, the next comparison is done to its
    /// end.
    pub(crate) half_compared: bool,
    /// Whether looking up code ahead of control has stopped halfway; if so, the next time it is
    /// done to its end.
    pub(crate) half_foreseen: bool,
    /// The progress of comparing a window.
    pub(crate) comparing: Comparing,
    /// The work that stopped for an interrupt.
    pub(crate) work_left: Option<WorkLeft>,
    /// The source of the instructions that the monitor emulates.
    pub(crate) instructions: Box<InstructionCache>,
    /// The instructions whose direct accesses fault too often.
    pub(crate) faulting_sites: FaultingSites,
    /// How programs of the loaded space access memory.
    pub(crate) program_access: Access,
    _range: CodeRange,
}

impl Translated {
    /// A processor in `state`, whose translated code is left when there are `requests`. With
    /// `verify_code`, every block must pass the verifier before it runs.
    ///
    /// # Errors
    /// The host refused memory, signals or executable mappings.
    pub(crate) fn new(
        state: CpuState,
        features: Features,
        code_cache_bytes: usize,
        verify_code: bool,
        requests: &Arc<Requests>,
    ) -> io::Result<Self> {
        let mut engine = Box::new(Engine::new(code_cache_bytes, features, verify_code)?);
        engine.stop_for(Arc::clone(requests));
        let range = CodeRange::register(engine.code_range())?;
        let mut context = Context::new(state, gate::addresses(), &raw const ***requests);
        context.fast_paths.function = memos::fast_path_calls::serve;
        context.fast_paths.miss_function = misses::fill;
        context.set_vector_components(policy(&context.cpu).xcr0_mask());
        let shows_each = policy(&context.cpu).vendor() == Vendor::Amd;
        context.strings.shows_each = u64::from(shows_each);
        engine.attach(&mut context);
        Ok(Self {
            context,
            engine,
            mode: ModeId(0),
            code_base: 0,
            level_changes_epoch: 0,
            fast_paths_known: FastPathsKnown::default(),
            resume: None,
            link: PendingLink::None,
            fault_deliveries: FaultDeliveries::default(),
            guarded: None,
            accounts: Box::new(Accounts::new(MemoryAccess::Checked, false)),
            memory_access: MemoryAccess::Checked,
            uses_anchors: true,
            space_switch: SpaceSwitch::default(),
            requests: Arc::clone(requests),
            half_filled: None,
            half_compared: false,
            half_foreseen: false,
            comparing: Comparing::default(),
            work_left: None,
            instructions: Box::default(),
            faulting_sites: FaultingSites::default(),
            program_access: Access::Checked,
            _range: range,
        })
    }

    /// Changes the engine in a way that drops all translations.
    pub(crate) fn change_engine(
        &mut self,
        memory: &mut GuestMemory,
        change: impl FnOnce(&mut Engine, &mut GuestMemory),
    ) {
        change(&mut self.engine, memory);
        self.start_anew();
    }
}
