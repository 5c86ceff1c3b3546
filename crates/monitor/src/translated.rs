//! Copy-translation as a [`Runner`]: the engine with its context, and the place where guest code
//! resumes.
//!
//! `enter.rs` enters translated code, and `find_block.rs` finds the block to enter. `exits.rs` has
//! one function for each kind of exit site, `host_faults.rs` one for each kind of signal.
//! `slow_path.rs` runs single instructions out of line.

mod deliveries;
mod device_fast_path;
mod device_memory;
mod device_memory_notes;
mod device_strings;
mod display_reach;
mod enter;
mod exits;
mod fast_path_calls;
mod fast_paths;
mod fault_deliveries;
mod fault_order;
mod find_block;
mod guarded_pages;
mod host_faults;
mod instruction_search;
mod interrupted_work;
mod known_code_segments;
mod level_change;
mod look_ahead;
mod masked_vector_accesses;
mod misses;
mod mode_changes;
mod slow_path;
mod space_loads;
mod stores_to_code;
mod tlb_memory;
mod window_faults;

pub use enter::TranslatedExit;

use crate::execution::instruction_cache::InstructionCache;
use crate::execution::runner::Runner;
use crate::memory::faulting_sites::FaultingSites;
use crate::memory::memory_access::{Accounts, MemoryAccess};
use crate::memory::space_switch::SpaceSwitch;
use crate::memory::windows::Comparing;
use enter::Resume;
use fast_paths::FastPathsKnown;
use fault_deliveries::FaultDeliveries;
use guarded_pages::GuardedPages;
use interrupted_work::WorkLeft;
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

/// A link to be made once the target's block is known.
#[derive(Clone, Copy)]
pub(crate) enum PendingLink {
    None,
    From {
        block: BlockId,
        site: usize,
        generation: u64,
        /// The target is the code without windows (see [`Mode::windowless`]).
        ///
        /// [`Mode::windowless`]: tollgate_engine::policy::mode::Mode::windowless
        windowless: bool,
    },
    Indirect,
    Far,
    /// The handler of an exception, which is looked for like the target of an indirect branch.
    Handler,
}

/// A processor whose code runs by copy-translation.
pub struct Translated {
    pub(crate) context: Box<Context>,
    pub(crate) engine: Box<Engine>,
    pub(crate) mode: ModeId,
    /// Base of CS when `mode` was formed: guest code may change it.
    pub(crate) code_base: u64,
    /// When the numbers of modes in what is known of level changes were given out.
    pub(crate) level_changes_epoch: u64,
    /// What leaves know.
    pub(crate) fast_paths_known: FastPathsKnown,
    pub(crate) resume: Option<Resume>,
    pub(crate) link: PendingLink,
    /// How exceptions were delivered.
    pub(crate) fault_deliveries: FaultDeliveries,
    /// Where masked operands are accessed that lie beside what must not be.
    pub(crate) guarded: Option<GuardedPages>,
    /// Which spaces' programs reach memory directly.
    pub(crate) accounts: Box<Accounts>,
    /// What was chosen for them, whether or not the process has a place for shadow windows.
    pub(crate) memory_access: MemoryAccess,
    /// What was chosen for their anchors, whether or not this machine has any.
    pub(crate) uses_anchors: bool,
    /// How known spaces are loaded.
    pub(crate) space_switch: SpaceSwitch,
    /// Requests to this processor.
    pub(crate) requests: Arc<Requests>,
    /// Filling the windows of the space whose tables begin here has stopped half-way.
    pub(crate) half_filled: Option<u64>,
    /// Comparing a window has stopped half-way: the next time it is done to the end.
    pub(crate) half_compared: bool,
    /// Looking code up ahead of control has stopped half-way: likewise.
    pub(crate) half_foreseen: bool,
    /// How far that comparison has come.
    pub(crate) comparing: Comparing,
    /// A section that stopped for an interrupt.
    pub(crate) work_left: Option<WorkLeft>,
    /// Where instructions come from that the monitor emulates.
    pub(crate) instructions: Box<InstructionCache>,
    /// Which instructions' direct accesses fault too often.
    pub(crate) faulting_sites: FaultingSites,
    /// How they do in the loaded space.
    pub(crate) program_access: Access,
    _range: CodeRange,
}

impl Translated {
    /// A processor in `state`; translated code is left at `requests`. With
    /// `verify_code` every block passes the verifier before it can run.
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
        context.fast_paths.function = fast_path_calls::serve;
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
