//! Handles stores of guest code to pages that hold translated code.
//!
//! The code that was translated from the bytes about to be written is retired first. Then the store
//! runs inline: its site may pass the test once, because the line may hold other code, which the
//! store does not touch. If no code was translated from these bytes, stores to the page are from
//! then on tested byte by byte, so that the next store next to code does not exit.
//!
//! If the store is in a block that it writes to, the store runs as a block of its own, and the
//! guest continues with a look-up. Only an instruction that writes to its own bytes is run on the
//! bounce buffer.

use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::translated::Translated;
use crate::translated::resume::Resume;
use tollgate_engine::abi::context::NO_PASS;
use tollgate_engine::abi::sites::{BlockId, Site, SiteKind, pack_site};
use tollgate_engine::blocks::block::Block;
use tollgate_engine::engine::written_code::Moment;
use tollgate_exits::ExitKind;
use tollgate_memory::GuestMemory;
use tollgate_memory::code_map::line_mask;
use tollgate_memory::gate::CodeWrite;
use tollgate_platform::Platform;
use tollgate_x86::PhysicalAddress;

/// The value that [`tollgate_engine::abi::context::groups::StoreTest::pass`] must have for a site.
fn pass_of(packed: u32) -> u64 {
    u64::from(packed).wrapping_neg()
}

impl<P: Platform> Running<'_, Translated, P> {
    /// Handles a store of `size` bytes at `physical`, in one page, which holds code.
    pub(crate) fn code_page_exit(
        &mut self,
        block: BlockId,
        site: &Site,
        packed: u32,
        physical: PhysicalAddress,
        size: u8,
    ) -> Result<(), VcpuStop> {
        let vectors = self.runner.context.vectors.were_live != 0;
        if !self.view.memory.code().contains(physical, u64::from(size)) {
            self.count(ExitKind::TlbMissWrite);
            self.runner.resume_at(block, site.retry, site.esp, vectors);
            return Ok(());
        }
        // The walk may have set bits in a page table that shares its page with code.
        self.view.apply_changes(self.runner);
        let memory = &mut self.view.memory;
        let was_code = self.runner.retire_bytes(physical, size, memory);
        if !was_code {
            let page = physical.page();
            let memory = &self.view.memory;
            let held = memory.code().held(page);
            if held & line_mask(physical.page_offset(), size.into()) == 0 {
                self.runner.engine.tell_bytes_apart(page, memory);
            }
        }
        if self.runner.engine.is_active(block) {
            self.count(ExitKind::CodeWrite);
            self.runner.resume_at(block, site.retry, site.esp, vectors);
            self.runner.let_pass(packed);
            return Ok(());
        }
        let mode = self.runner.engine.mode(self.runner.mode).single();
        let mode = self.processor().intern_temporary(mode);
        let Some(alone) = self.find_block(mode)? else {
            return Ok(());
        };
        let Some(packed) = self.runner.store_site(alone, physical, size) else {
            if self.slow_step(alone)? {
                self.completed()?;
            }
            return Ok(());
        };
        self.count(ExitKind::CodeWrite);
        self.runner.resume_at(alone, 0, 0, vectors);
        self.runner.let_pass(packed);
        Ok(())
    }
}

impl Translated {
    /// Retires the code that was made from these bytes. Returns whether there was any.
    fn retire_bytes(
        &mut self,
        physical: PhysicalAddress,
        size: u8,
        memory: &mut GuestMemory,
    ) -> bool {
        let first = physical.page_offset() as u16;
        let write = CodeWrite {
            page: physical.page(),
            first,
            last: first + u16::from(size) - 1,
        };
        self.retire_code(write, Moment::Before, memory)
    }

    /// The site of a block's store, unless the store writes to bytes that the block was made from.
    fn store_site(&self, id: BlockId, physical: PhysicalAddress, size: u8) -> Option<u32> {
        let block = self.engine.block(id)?;
        let start = block.key().physical;
        let end = start + u64::from(block.guest_length);
        let is_apart = physical.0 >= end || physical.0 + u64::from(size) <= start;
        if !is_apart || block.key().second_page != u64::MAX {
            return None;
        }
        let is_store = |site: &Site| matches!(site.kind, SiteKind::Memory { write: true, .. });
        Some(pack_site(
            id,
            block.sites().iter().position(|site| is_store(&site))?,
        ))
    }

    fn let_pass(&mut self, packed: u32) {
        if let Some(resume) = &mut self.resume {
            resume.store_pass = pass_of(packed);
        }
    }

    /// The place where an instruction that runs alone resumes with a store that may pass.
    pub(crate) fn take_passing_store(&mut self) -> Option<Resume> {
        let resume = self.resume.take()?;
        let block = self.engine.block(resume.block);
        let is_single = block.is_some_and(Block::is_single);
        let holds = resume.store_pass != NO_PASS && resume.generation == self.engine.generation();
        (is_single && holds).then_some(resume)
    }
}
