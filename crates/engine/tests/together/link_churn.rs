//! Links through slots are listed at their target for as long as they lead there: neither targets
//! that change nor sources that come and go make the lists grow.

use crate::support::mode;
use tollgate_engine::Engine;
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::abi::sites::{BlockId, LinkPlace, SiteKind};
use tollgate_engine::blocks::links::Dependence;
use tollgate_engine::engine::written_code::Moment;
use tollgate_engine::engine::{CodeAddress, LookUp};
use tollgate_engine::policy::allow_list::Features;
use tollgate_memory::GuestMemory;
use tollgate_memory::gate::CodeWrite;
use tollgate_x86::PhysicalAddress;

const SOURCE: u64 = 0x1000;
const TARGETS: u64 = 0x3000;
/// The number of retired versions of a source that keep their links, plus the active one.
const VERSIONS: usize = 5;

struct Setup {
    engine: Engine,
    memory: GuestMemory,
    mode: ModeId,
}

impl Setup {
    fn new() -> Self {
        let mut memory = GuestMemory::new(1 << 20).unwrap();
        let mut engine = Engine::new(1 << 20, Features::new(|_| true), true).unwrap();
        let mode = mode::Guest::of("flat32", "90").mode;
        let mode = engine.intern(mode, &mut memory);
        // jmp to the first target, in another page.
        let distance = (TARGETS - SOURCE - 5) as u32;
        memory.write(PhysicalAddress(SOURCE), &[0xe9]);
        memory.write(PhysicalAddress(SOURCE + 1), &distance.to_le_bytes());
        Self {
            engine,
            memory,
            mode,
        }
    }

    fn translate(&mut self, physical: u64) -> BlockId {
        let place = CodeAddress {
            physical,
            next_page: None,
            rip: physical,
            linear: physical,
            global: false,
            link_address: None,
        };
        match self.engine.translate(&place, self.mode, &mut self.memory) {
            LookUp::Block(id) => id,
            other => panic!("the code lies in RAM: {other:?}"),
        }
    }

    fn link(&mut self, from: BlockId, to: BlockId) {
        let sites = self.engine.block(from).unwrap().sites();
        let is_slot = |kind| matches!(kind, SiteKind::Link(LinkPlace::Slot { .. }));
        let site = sites.iter().position(|site| is_slot(site.kind)).unwrap();
        let dependence = Dependence {
            page: TARGETS >> 12,
            last_page: TARGETS >> 12,
            global: false,
            is_kept: true,
        };
        self.engine.link_slot(from, site, to, dependence);
    }

    fn incoming(&self, block: BlockId) -> usize {
        self.engine.links_to(block).count()
    }
}

#[test]
fn a_link_is_listed_at_its_last_target_alone() {
    let mut setup = Setup::new();
    let source = setup.translate(SOURCE);
    let targets: Vec<BlockId> = (0..64)
        .map(|index| setup.translate(TARGETS + index * 64))
        .collect();
    for round in 0..1000 {
        let target = targets[round % targets.len()];
        setup.link(source, target);
        assert_eq!(setup.incoming(target), 1);
        let all: usize = targets.iter().map(|&target| setup.incoming(target)).sum();
        assert_eq!(all, 1, "round {round}");
        assert_eq!(setup.engine.links_of(source).count(), 1);
    }
}

#[test]
fn sources_that_come_and_go_are_not_listed_for_good() {
    let mut setup = Setup::new();
    let target = setup.translate(TARGETS);
    for round in 0..1000_u32 {
        // The code before the jump differs each time, so that no old version matches.
        let page = SOURCE >> 12;
        let memory = &mut setup.memory;
        setup.engine.code_written(
            CodeWrite {
                page,
                first: 0,
                last: 0xff,
            },
            Moment::Before,
            memory,
        );
        let source = SOURCE + 0x10;
        let distance = (TARGETS - source - 12) as u32;
        memory.write(
            PhysicalAddress(source),
            &[0x0f, 0xba, 0xe0, round as u8 & 31],
        );
        memory.write(
            PhysicalAddress(source + 4),
            &[0x8d, 0x5b, (round >> 5) as u8, 0xe9],
        );
        memory.write(PhysicalAddress(source + 8), &distance.to_le_bytes());
        let source = setup.translate(source);
        setup.link(source, target);
        setup.link(source, target);
        assert!(setup.incoming(target) <= VERSIONS, "round {round}");
    }
    // No link leads to a target that has died.
    let memory = &mut setup.memory;
    let page = TARGETS >> 12;
    setup.engine.code_written(
        CodeWrite {
            page,
            first: 0,
            last: 0xff,
        },
        Moment::Before,
        memory,
    );
    let again = setup.translate(TARGETS);
    assert_eq!(setup.incoming(again), 0);
}
