//! From a host address to the exact state of the guest: everything of the engine that a signal
//! handler uses.
//!
//! A handler may use this module only if it interrupted guest code, or a routine that guest code
//! calls, on the engine's own thread. So the engine changes nothing in the meantime.

use crate::abi::context::Context;
use crate::abi::register_map::RegisterMap;
use crate::abi::signal_completion::{Completion, X87Note};
use crate::abi::sites::BlockId;
use crate::abi::state_map::{Restore, Shadow};
use crate::blocks::table::BlockTable;
use crate::gate::interrupted_string::{Interrupted, Stage};
use crate::gate::{fast_path, store_check};

/// The exact state of the guest at a host address.
#[derive(Clone, Copy, Debug)]
pub struct GuestPosition {
    /// EIP of the instruction that has not completed.
    pub rip: u64,
    /// What is added to R12 to get ESP; the sum wraps at 16 bits on 16-bit stacks.
    pub esp: i32,
    /// The registers to put back before anything else.
    pub restore: Restore,
    /// What must still be noted about the previous instruction's x87 pointers.
    pub x87_note: Option<X87Note>,
    /// What must still be done for the previous instruction.
    pub completion: Option<Completion>,
    /// Whether the instruction holds interrupts off until it has completed.
    pub shadowed: Shadow,
    /// The block that contains the host address.
    pub block: BlockId,
    /// Where the guest's registers live in this block.
    pub map: &'static RegisterMap,
    /// Whether the block holds one instruction and returns to the monitor after it.
    pub single: bool,
    /// For a repeated string instruction: where its routine was interrupted.
    pub string: Option<Interrupted>,
}

/// The site at which the current instruction at a host address in the code cache may leave: its
/// block and its number (see [`crate::blocks::block::Block::site_at`]). When an access that is not
/// looked up faults, the site says which instruction to execute out of line.
pub fn site_at(blocks: &BlockTable, pc: u64) -> Option<(BlockId, usize)> {
    let (id, block, offset) = blocks.at_host_address(pc)?;
    Some((id, block.site_at(offset)?))
}

impl GuestPosition {
    /// The position at a host address in the code cache, while the context's slide is `code_slide`.
    pub fn at(blocks: &BlockTable, pc: u64, code_slide: u64) -> Option<Self> {
        let (id, block, offset) = blocks.at_host_address(pc)?;
        let entry = block.state_at(offset)?;
        let relocation = block.relocation(code_slide);
        let x87_note = block.x87_note_at(offset).map(|note| note.moved(relocation));
        Some(Self {
            rip: relocation.rip(entry.rip),
            esp: entry.esp,
            restore: entry.restore,
            x87_note,
            completion: block.completion_at(offset).copied(),
            shadowed: entry.shadowed,
            block: id,
            map: blocks.map_of(block),
            single: block.is_single(),
            string: None,
        })
    }

    /// The position while the store of a site is tested for code (see [`crate::gate::store_check`]).
    pub fn of_store(blocks: &BlockTable, packed: u32, code_slide: u64) -> Option<Self> {
        Self::of_site(blocks, packed, code_slide)
    }

    /// The position while a site's string instruction is executed (see [`crate::gate::string`]).
    pub fn of_string(
        blocks: &BlockTable,
        packed: u32,
        code_slide: u64,
        string: Interrupted,
    ) -> Option<Self> {
        Some(Self {
            restore: match string.stage {
                Stage::Undivided => Restore::UNDIVIDED,
                Stage::Between | Stage::Running => Restore::NONE,
            },
            string: Some(string),
            ..Self::of_site(blocks, packed, code_slide)?
        })
    }

    /// The position while a site's fast path runs, which is no boundary of guest instructions (see
    /// [`crate::gate::fast_path`]).
    pub fn of_fast_path(blocks: &BlockTable, packed: u32, code_slide: u64) -> Option<Self> {
        Some(Self {
            restore: Restore::UNDIVIDED,
            ..Self::of_site(blocks, packed, code_slide)?
        })
    }

    /// The position before the instruction of a site.
    fn of_site(blocks: &BlockTable, packed: u32, code_slide: u64) -> Option<Self> {
        let (id, block, _, site) = blocks.site(packed, code_slide)?;
        Some(Self {
            rip: site.rip,
            esp: site.esp,
            restore: Restore::NONE,
            x87_note: None,
            completion: None,
            shadowed: site.shadowed,
            block: id,
            map: blocks.map_of(block),
            single: block.is_single(),
            string: None,
        })
    }

    /// The position of a thread that a signal interrupted at `pc`, in guest code or in a routine
    /// that guest code calls.
    ///
    /// # Safety
    /// The context is the interrupted thread's. Its `blocks` is null, or what
    /// [`crate::Engine::attach`] stored there for an engine that still lives.
    pub unsafe fn of_interrupted(context: *const Context, pc: u64) -> Option<Self> {
        // SAFETY: the caller guarantees this for the context. The thread was interrupted in guest
        // code, where it holds no reference to the table, and no other thread changes the table.
        let (blocks, site, code_slide) = unsafe {
            let blocks = (*context).blocks.cast::<BlockTable>().as_ref()?;
            (
                blocks,
                (*context).hot.exit_site,
                (*context).registers.code_slide,
            )
        };
        if store_check::is_here(pc) {
            Self::of_store(blocks, site, code_slide)
        } else if fast_path::is_here(pc) {
            Self::of_fast_path(blocks, site, code_slide)
        } else if let Some(string) = Interrupted::at(pc) {
            Self::of_string(blocks, site, code_slide, string)
        } else {
            Self::at(blocks, pc, code_slide)
        }
    }
}
