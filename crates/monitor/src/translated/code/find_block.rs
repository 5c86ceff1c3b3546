//! Finds the block for CS:EIP: fetches the code, finds or translates the block, and links it.

use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::memory::guest_view::GuestView;
use crate::translated::processor::Processor;
use crate::translated::work_left::Work;
use crate::translated::{PendingLink, Translated};
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::blocks::links::Dependence;
use tollgate_engine::engine::{CodeAddress, LookUp, ReachedBy};
use tollgate_exits::latency::InterruptibleWork;
use tollgate_platform::Platform;
use tollgate_x86::{Exception, PhysicalAddress};

impl<P: Platform> Running<'_, Translated, P> {
    /// The block at CS:EIP, which is translated if necessary. `None` means that an exception was
    /// raised instead.
    pub(crate) fn find_block(&mut self, mode: ModeId) -> Result<Option<BlockId>, VcpuStop> {
        let rip = self.runner.context.cpu.rip;
        let place = match self.view.place(&self.runner.context.cpu, rip, false) {
            Ok(place) => place,
            Err(exception) => return self.raise(exception).map(|()| None),
        };
        self.processor().bring_stored(place.physical);
        let by = match self.runner.link {
            PendingLink::From {
                block,
                site,
                generation,
                ..
            } if generation == self.runner.engine.generation() => ReachedBy::Link(block, site),
            _ => ReachedBy::Other,
        };
        let link_address = self.runner.engine.link_address(&place, mode, by);
        let mut place = CodeAddress {
            link_address,
            ..place
        };
        let near_end = place.physical % 4096 > 4096 - 16;
        let mut found = self.runner.engine.find(&place, mode);
        if found.is_none() && near_end {
            if let Ok(with_next) = self.view.place(&self.runner.context.cpu, rip, true) {
                place = CodeAddress {
                    link_address,
                    ..with_next
                };
            }
            found = self.runner.engine.find(&place, mode);
        }
        while found.is_none() && self.processor().bring_missing(place.physical) {
            found = self.runner.engine.find(&place, mode);
        }
        let block = match found {
            Some(block) => block,
            None => match self.processor().revive_or_translate(&place, mode) {
                LookUp::Block(block) => block,
                LookUp::Unavailable(unavailable) => {
                    return Err(self.not_implemented(&unavailable.to_string()));
                }
                // The instruction begins again after the interrupt handler.
                LookUp::Stopped => return Ok(None),
                LookUp::NeedsNextPage => {
                    // The limit may end with this page; a fault of the limit has priority over one
                    // of the next page.
                    let in_page = 4096 - place.linear % 4096;
                    let cpu = &self.runner.context.cpu;
                    if !cpu.is_64_bit() && rip + in_page > u64::from(cpu.cs().limit) {
                        let fault = Exception::general_protection(0);
                        return self.raise(fault).map(|()| None);
                    }
                    let result = self.view.place(&self.runner.context.cpu, rip, true);
                    return match result {
                        Err(exception) => self.raise(exception).map(|()| None),
                        Ok(_) => Ok(None),
                    };
                }
            },
        };
        match self.processor().dependence(block, &place) {
            Some(dependence) => {
                if self.runner.engine.meet(block, &place, &dependence) {
                    self.processor().foresee(block);
                }
                self.runner.make_link(block, place.rip, dependence);
            }
            None => self.runner.link = PendingLink::None,
        }
        Ok(Some(block))
    }
}

impl Processor<'_> {
    /// Takes blocks of a physical page from stored translations, if there are any, where control
    /// first comes to the page.
    fn bring_stored(&mut self, physical: u64) {
        let (engine, memory) = (&mut self.runner.engine, &mut self.view.memory);
        if engine.looks_for_stored(physical >> 12)
            && (self.ledger).translate(|| engine.bring_stored(physical, memory))
        {
            self.view.watch_for_code(physical >> 12);
        }
    }

    /// Takes more blocks from stored translations, if there are any for this place. Returns whether
    /// there are.
    fn bring_missing(&mut self, physical: u64) -> bool {
        let (engine, memory) = (&mut self.runner.engine, &mut self.view.memory);
        let is_found = engine.has_more_stored(physical >> 12)
            && (self.ledger).translate(|| engine.bring_missing(physical, memory));
        if is_found {
            self.view.watch_for_code(physical >> 12);
        }
        is_found
    }

    /// Makes the inactive block at a place active again, or translates it. If that stops, the rest
    /// of the work is noted.
    pub(in crate::translated) fn revive_or_translate(
        &mut self,
        place: &CodeAddress,
        mode: ModeId,
    ) -> LookUp {
        let (engine, memory) = (&mut self.runner.engine, &mut self.view.memory);
        let revived = engine.revive(place, mode, memory);
        let result = match revived {
            Some(block) => LookUp::Block(block),
            None => {
                let begin = self.begin_work();
                let (engine, memory) = (&mut self.runner.engine, &mut self.view.memory);
                let result = self
                    .ledger
                    .translate(|| engine.translate(place, mode, memory));
                self.end_work(InterruptibleWork::Translate, begin);
                if self.runner.requests.checkpoints().has_stopped() && mode == self.runner.mode {
                    let length = match result {
                        LookUp::Block(block) => self.runner.engine.block(block),
                        _ => None,
                    };
                    let length = length.map_or(0, |block| block.guest_length);
                    let next = place.rip.wrapping_add(length.into());
                    self.leave_work(Work::Translate { next });
                }
                result
            }
        };
        for page in [Some(place.physical >> 12), place.next_page] {
            let Some(page) = page else { continue };
            if self.view.memory.code().page_has_code(page) {
                self.view.watch_for_code(page);
            }
        }
        result
    }

    /// The pages on which links to a block depend that control has reached at `place`.
    fn dependence(&mut self, block: BlockId, place: &CodeAddress) -> Option<Dependence> {
        let page = place.linear >> 12;
        let of_first = Dependence {
            page,
            last_page: page,
            global: place.global,
            is_kept: !place.global,
        };
        if self.runner.engine.block(block)?.key().second_page == u64::MAX {
            return Some(of_first);
        }
        let cpu = &self.runner.context.cpu;
        self.view.with_next_page(cpu, of_first)
    }
}

impl Translated {
    /// Makes the link that the last exit asked for, now that its target is known.
    fn make_link(&mut self, block: BlockId, rip: u64, dependence: Dependence) {
        let link = std::mem::replace(&mut self.link, PendingLink::None);
        if matches!(link, PendingLink::None) || !self.engine.is_worth_linking(block) {
            return;
        }
        match link {
            PendingLink::None => {}
            PendingLink::Indirect | PendingLink::Handler => {
                self.engine.link_indirect(block, rip, dependence)
            }
            PendingLink::Far => self.engine.link_far(block, dependence),
            PendingLink::From {
                block: from,
                site,
                generation,
                ..
            } => {
                if generation == self.engine.generation() {
                    self.engine.link_direct(from, site, block);
                    self.engine.link_slot(from, site, block, dependence);
                }
            }
        }
    }
}

impl GuestView {
    /// From now on tests every store to a physical page for code.
    pub(in crate::translated) fn watch_for_code(&mut self, page: u64) {
        if !self.memory.code().is_watched(page)
            && let Some(host) = self.memory.ram().host_page(page)
        {
            self.memory.code().watch(page);
            let physical = PhysicalAddress(page << 12);
            self.translations.protect(physical, host as u64);
        }
    }
}
