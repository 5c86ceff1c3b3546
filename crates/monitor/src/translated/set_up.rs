//! How a processor whose code runs by copy-translation is made: its engine, its context, and the
//! monitor's functions that translated code calls.

use crate::execution::instruction_cache::InstructionExperiment;
use crate::execution::runner::Runner;
use crate::memory::access_policy::{Accounts, MemoryAccess, UserCode};
use crate::memory::faulting_sites::FaultingSites;
use crate::memory::space_switch::SpaceSwitch;
use crate::memory::windows::Comparing;
use crate::translated::memos::fault_deliveries::FaultDeliveries;
use crate::translated::memos::known_tables::FastPathsKnown;
use crate::translated::native::Native;
use crate::translated::{PendingLink, Translated, memos, misses};
use std::io;
use std::sync::Arc;
use tollgate_emulate::cpuid::{Vendor, policy};
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::gate;
use tollgate_engine::policy::access::Access;
use tollgate_engine::policy::allow_list::Features;
use tollgate_engine::requests::Requests;
use tollgate_engine::signals::CodeRange;
use tollgate_engine::{Context, Engine};
use tollgate_memory::GuestMemory;
use tollgate_x86::CpuState;

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
            user_code: UserCode::default(),
            space_switch: SpaceSwitch::default(),
            requests: Arc::clone(requests),
            half_filled: None,
            half_compared: false,
            half_foreseen: false,
            comparing: Comparing::default(),
            work_left: None,
            instructions: InstructionExperiment::default(),
            faulting_sites: FaultingSites::default(),
            program_access: Access::Checked,
            native: Native::default(),
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
