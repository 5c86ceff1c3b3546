//! Copy-translation as a [`Runner`]: the engine with its context, and the place where guest code
//! resumes.
//!
//! [`Runner`]: crate::execution::runner::Runner
//!
//! `set_up.rs` makes the processor, and `enter.rs` enters translated code. `exits.rs` has one function for each kind of exit site,
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
mod native;
mod pending_link;
mod processor;
mod resume;
mod set_up;
mod slow_path;
mod translated_exit;
mod work_left;

pub use native::NativeCounts;
pub use translated_exit::TranslatedExit;

use crate::execution::instruction_cache::InstructionExperiment;
use crate::memory::access_policy::{Accounts, MemoryAccess, UserCode};
use crate::memory::faulting_sites::FaultingSites;
use crate::memory::space_switch::SpaceSwitch;
use crate::memory::windows::Comparing;
use faults::guarded_pages::GuardedPages;
use memos::fault_deliveries::FaultDeliveries;
use memos::known_tables::FastPathsKnown;
use native::Native;
use pending_link::PendingLink;
use resume::Resume;
use std::sync::Arc;
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::policy::access::Access;
use tollgate_engine::requests::Requests;
use tollgate_engine::signals::CodeRange;
use tollgate_engine::{Context, Engine};
use work_left::WorkLeft;

/// A processor whose code runs by copy-translation.
pub struct Translated {
    pub(crate) context: Box<Context>,
    pub(crate) engine: Box<Engine>,
    pub(crate) mode: ModeId,
    /// The base of CS when `mode` was computed. Guest code may change the base.
    pub(crate) code_base: u64,
    /// The value of [`Engine::mode_epoch`] when the memos of level changes were made. If it differs
    /// now, they name numbers of modes that mean something else, and are dropped.
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
    /// The setting for how programs run, whether or not the host can run them natively.
    pub(crate) user_code: UserCode,
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
    pub(crate) instructions: InstructionExperiment,
    /// The instructions whose direct accesses fault too often.
    pub(crate) faulting_sites: FaultingSites,
    /// How programs of the loaded space access memory.
    pub(crate) program_access: Access,
    /// What is known of programs that run natively.
    pub(crate) native: Native,
    _range: CodeRange,
}
