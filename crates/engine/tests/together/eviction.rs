//! Tests of what the code cache keeps when it is full: blocks whose pages are in use.

use crate::support::mode;
use std::sync::Arc;
use tollgate_engine::Engine;
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::abi::sites::{BlockId, LinkPlace, SiteKind};
use tollgate_engine::blocks::links::Dependence;
use tollgate_engine::engine::written_code::Moment;
use tollgate_engine::engine::{CodeAddress, LookUp};
use tollgate_engine::policy::allow_list::Features;
use tollgate_engine::preemption::Interruptible;
use tollgate_engine::requests::Requests;
use tollgate_memory::GuestMemory;
use tollgate_memory::gate::CodeWrite;
use tollgate_x86::PhysicalAddress;

/// The size in bytes of the smallest cache.
const CACHE: usize = 1 << 20;
const RAM: u64 = 64 << 20;
/// The physical address to which linear address 0 leads: above the hole below 1 MiB.
const PHYSICAL: u64 = 1 << 20;
const PAGE: u64 = 0x1000;
/// The distance in bytes between the starts of a page's blocks.
const APART: u64 = 256;

struct Setup {
    engine: Engine,
    memory: GuestMemory,
    mode: ModeId,
    /// The requests that stop the engine's work.
    requests: Arc<Requests>,
    /// How often making room has stopped for a request.
    stopped: usize,
    /// Whether code is written each time making room stops.
    writes: bool,
}

/// The length in bytes of a block that was not cut short.
const LENGTH: u32 = 125;

fn place(address: u64) -> CodeAddress {
    CodeAddress {
        physical: PHYSICAL + address,
        next_page: None,
        rip: address,
        linear: address,
        global: true,
        link_address: None,
    }
}

impl Setup {
    /// Fills every page with code: loads, and a branch to the next block of the page or, from the
    /// last block, to the next page.
    fn new() -> Self {
        let mut memory = GuestMemory::new(RAM).unwrap();
        let mut engine = Engine::new(CACHE, Features::new(|_| true), true).unwrap();
        let mode = engine.intern(mode::Guest::of("flat32", "90").mode, &mut memory);
        // mov eax,[ebx+N*256], which share no look-up; then jmp to the next block.
        let mut code: Vec<u8> = (0..20)
            .flat_map(|offset| [0x8b, 0x83, 0, offset, 0, 0])
            .collect();
        code.push(0xe9);
        let behind = code.len() as u64 + 4;
        code.extend(((APART - behind) as u32).to_le_bytes());
        for address in (PHYSICAL..RAM).step_by(APART as usize) {
            memory.write(PhysicalAddress(address), &code);
        }
        Self {
            engine,
            memory,
            mode,
            requests: Arc::default(),
            stopped: 0,
            writes: false,
        }
    }

    /// A setup in which a request comes at every checkpoint of the engine's work whose number is a
    /// multiple of `every`.
    fn stopping(every: u64) -> Self {
        let mut setup = Self::new();
        let checkpoints = setup.requests.checkpoints();
        checkpoints.set_interruptible(Interruptible::Restart);
        checkpoints.force(every);
        checkpoints.begin(0, true);
        setup.engine.stop_for(Arc::clone(&setup.requests));
        setup
    }

    /// Translates the block at a place, however often that stops.
    fn translate(&mut self, place: &CodeAddress) -> BlockId {
        let mut given_up = false;
        loop {
            self.requests.take();
            match self.engine.translate(place, self.mode, &mut self.memory) {
                LookUp::Block(id) => return id,
                // The translation of the block itself gives up once.
                LookUp::Stopped if !given_up => given_up = true,
                LookUp::Stopped => self.stopped += 1,
                other => panic!("the code lies in RAM: {other:?}"),
            }
            if self.writes {
                // Writes to the first block of some page.
                let page = PHYSICAL / PAGE + 16 + self.stopped as u64 * 7 % 400;
                let (memory, after) = (&mut self.memory, Moment::After);
                self.engine.code_written(
                    CodeWrite {
                        page,
                        first: 0,
                        last: 63,
                    },
                    after,
                    memory,
                );
            }
        }
    }

    /// Lets control reach an address, and continue in the blocks after it if the first was cut
    /// short. Returns the first block and whether it was there before.
    fn run(&mut self, address: u64) -> (BlockId, bool) {
        let first = self.come_to(address);
        let mut last = (address, first.0);
        loop {
            let length = (self.engine.block(last.1)).map_or(LENGTH, |it| it.guest_length.into());
            let next = last.0 + u64::from(length);
            if next >= address + u64::from(LENGTH) {
                break;
            }
            last = (next, self.come_to(next).0);
        }
        match self.engine.find(&place(address), self.mode) {
            Some(_) => first,
            // Translating the other blocks may have evicted the first.
            None => self.come_to(address),
        }
    }

    /// Lets control reach an address, as the monitor does. Returns the block and whether it was
    /// there before.
    fn come_to(&mut self, address: u64) -> (BlockId, bool) {
        let place = place(address);
        let found = self.engine.find(&place, self.mode);
        let id = found.unwrap_or_else(|| self.translate(&place));
        let page = place.linear >> 12;
        let dependence = Dependence {
            page,
            last_page: page,
            global: place.global,
            is_kept: !place.global,
        };
        self.engine.meet(id, &place, &dependence);
        (id, found.is_some())
    }

    /// Runs all blocks of a page and links them. Returns how many were there before.
    fn run_page(&mut self, page: u64) -> usize {
        let mut count = 0;
        for address in (page * PAGE..(page + 1) * PAGE).step_by(APART as usize) {
            let (before, was_there) = self.run(address);
            count += usize::from(was_there);
            let next = address + APART;
            let (to, _) = self.run(next);
            // Translating the next block may have evicted this one.
            if self.engine.find(&place(address), self.mode) != Some(before) {
                continue;
            }
            let block = self.engine.block(before).unwrap();
            if u32::from(block.guest_length) != LENGTH {
                continue;
            }
            let sites = block.sites();
            let is_link = |kind| matches!(kind, SiteKind::Link(_));
            let site = sites.iter().position(|site| is_link(site.kind)).unwrap();
            let page = next / PAGE;
            let dependence = Dependence {
                page,
                last_page: page,
                global: true,
                is_kept: false,
            };
            self.engine.link_direct(before, site, to);
            self.engine.link_slot(before, site, to, dependence);
            self.engine.link_indirect(to, next, dependence);
        }
        count
    }
}

/// The number of blocks of a page.
const BLOCKS: usize = (PAGE / APART) as usize;

#[test]
fn what_is_used_stays_and_what_was_used_once_goes() {
    let mut setup = Setup::new();
    let evicted = uses_some_pages_again_and_again(&mut setup);
    assert!(evicted > 4_000, "{evicted}");
    assert_eq!(setup.stopped, 0);
}

#[test]
fn the_same_stays_if_making_room_stops_at_every_point() {
    // The requests stop translations too, so blocks are shorter.
    for every in [7, 13] {
        let mut setup = Setup::stopping(every);
        let evicted = uses_some_pages_again_and_again(&mut setup);
        assert!(evicted > 2_000, "{evicted}");
        assert!(setup.stopped > 20, "{}", setup.stopped);
    }
}

#[test]
fn code_may_be_written_while_room_is_made() {
    let mut setup = Setup::stopping(5);
    setup.writes = true;
    for page in (16..1616).step_by(2) {
        setup.run_page(page);
        setup.run_page(1);
        let now = setup.engine.code_cache();
        assert!(now.used_bytes <= now.size_bytes);
    }
    assert!(setup.stopped > 20, "{}", setup.stopped);
}

/// Runs some pages in every round, and others once. Returns how many blocks were evicted.
fn uses_some_pages_again_and_again(setup: &mut Setup) -> u64 {
    // The lasting pages stand for the kernel and running programs, the others for hundreds of short
    // processes.
    let lasting = [1, 3, 5, 7];
    for &page in &lasting {
        setup.run_page(page);
    }
    let mut once = (16..(RAM - PHYSICAL) / PAGE - 2).step_by(2);
    let mut evicted = 0;
    for round in 0..400 {
        setup.run_page(once.next().unwrap());
        for &page in &lasting {
            assert_eq!(setup.run_page(page), BLOCKS, "round {round}");
        }
        let now = setup.engine.code_cache();
        assert!(now.used_bytes <= now.size_bytes);
        evicted = now.evicted;
    }
    // Of the pages that ran once, all but the last have been evicted.
    let early = (16..).step_by(2).take(200);
    let mut there = 0;
    for page in early {
        let address = page * PAGE;
        there += usize::from(setup.engine.find(&place(address), setup.mode).is_some());
    }
    assert_eq!(there, 0);
    evicted
}

#[test]
fn more_than_the_cache_holds_may_be_in_use() {
    let mut setup = Setup::new();
    // Some MiB of code are run again and again.
    for round in 0..4 {
        for page in (16..1616).step_by(2) {
            setup.run_page(page);
        }
        let now = setup.engine.code_cache();
        assert!(now.blocks > 500 && now.evicted > 1000 * round);
    }
}

#[test]
fn links_of_blocks_that_moved_lead_to_what_is_there() {
    // The verifier checks each block that has moved. This test checks the block's links: a filled
    // slot leads to the host address of a block.
    let mut setup = Setup::new();
    for page in (16..816).step_by(2) {
        setup.run_page(page);
        setup.run_page(1);
        setup.run_page(2);
        let engine = &mut setup.engine;
        for index in 0..BLOCKS as u64 {
            for page in [1, 2, 3] {
                let address = page * PAGE + index * APART;
                let Some(id) = engine.find(&place(address), setup.mode) else {
                    assert!(page == 3 && index > 0, "{page} {index}");
                    continue;
                };
                let block = engine.block(id).unwrap();
                let mut filled = Vec::new();
                for (site, to) in engine.links_of(id) {
                    let stub = match block.site(usize::from(site)).unwrap().kind {
                        SiteKind::Link(LinkPlace::Slot { slot, stub }) => (slot, block.host + stub),
                        _ => continue,
                    };
                    filled.push((stub, engine.block(to).unwrap().host));
                }
                for ((slot, stub), host) in filled {
                    let distance = engine.links_mut().slot(slot);
                    let leads_to = u64::from(stub).wrapping_add(distance);
                    assert!(distance == 0 || leads_to == u64::from(host));
                }
            }
        }
    }
}
