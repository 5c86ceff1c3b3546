//! What the decode cache of instructions keeps, under which keys, and what a write drops: with the
//! lines of a real memory, without a guest.

use super::*;
use tollgate_engine::policy::allow_list::Features;
use tollgate_engine::policy::mode::{Mode, Modes};
use tollgate_test_support::Random;
use tollgate_x86::{Attributes, CpuState, SegmentRegister};

const MEMORY: u64 = 4 << 20;
/// The bits of CR3 that are no part of the tables' address: PWT and PCD, the process-context
/// identifier, and the bit by which a load keeps cached translations.
const CR3_FLAGS: [u64; 4] = [1 << 3, 1 << 4, 0x7ff, 1 << 63];

/// `in al,dx`, decoded at this address.
fn known(rip: u64) -> Known {
    let mode = Mode::of(&CpuState::at_reset());
    Known {
        instruction: OutOfLine::decode(&[0xec], rip, &mode, &Features::new(|_| true)),
        second_page: None,
    }
}

fn source(page: u64, lines: u64, holds: Holds) -> Source {
    Source { page, lines, holds }
}

/// The registers of a processor with four-level paging and this CR3.
fn paging(cr3: u64) -> PagingRegisters {
    let mut state = CpuState::at_reset();
    (state.cr0, state.cr4, state.efer, state.cr3) = (0x8001_0031, 0xa0, 0x500, cr3);
    PagingRegisters::of(&state).steering()
}

fn linear(linear: u64, cr3: u64, mode: u32) -> Key {
    Key::Linear {
        linear,
        paging: paging(cr3),
        mode,
    }
}

struct Table {
    known: KnownInstructions,
    memory: GuestMemory,
    counts: InstructionCounts,
}

impl Table {
    fn new() -> Self {
        Self {
            known: KnownInstructions::default(),
            memory: GuestMemory::new(MEMORY).unwrap(),
            counts: InstructionCounts::default(),
        }
    }

    fn enter(&mut self, key: Key, rip: u64, sources: &[Source]) {
        let Self {
            known: table,
            memory,
            counts,
        } = self;
        table.enter(key, known(rip), sources, memory, counts);
    }

    /// The address at which the instruction of a key was decoded.
    fn found(&self, key: &Key) -> Option<u64> {
        match self.known.look_up(key) {
            Found::Hit(known) => Some(known.instruction.helper.instruction.ip()),
            Found::Void | Found::Nothing => None,
        }
    }

    /// Follows a write of these bytes of a page.
    fn write(&mut self, page: u64, first: u16, last: u16) {
        let write = CodeWrite { page, first, last };
        self.known.written(write, &self.memory, &mut self.counts);
    }

    fn held(&self, page: u64) -> u64 {
        self.memory.code().held(page)
    }
}

#[test]
fn one_linear_address_has_an_entry_for_each_address_space_and_mode() {
    let mut table = Table::new();
    let keys = [(0x1000, 1), (0x2000, 1), (0x1000, 2)].map(|(cr3, mode)| linear(7, cr3, mode));
    let keys = [
        &keys[..],
        &[Key::Physical {
            physical: 7,
            mode: 1,
        }],
    ]
    .concat();
    for (rip, key) in keys.iter().enumerate() {
        assert_eq!(table.found(key), None);
        table.enter(*key, rip as u64, &[source(5, 1, Holds::Code)]);
    }
    for (rip, key) in keys.iter().enumerate() {
        assert_eq!(table.found(key), Some(rip as u64), "{key:?}");
    }
    table.write(5, 0, 0);
    assert!(keys.iter().all(|key| table.found(key).is_none()));
    assert_eq!((table.counts.dropped_code, table.held(5)), (4, 0));
}

#[test]
fn the_flags_in_cr3_are_no_part_of_the_key() {
    let mut table = Table::new();
    table.enter(linear(7, 0x1000, 1), 1, &[source(5, 1, Holds::Code)]);
    for flags in CR3_FLAGS {
        let key = linear(7, 0x1000 | flags, 1);
        assert_eq!(table.found(&key), Some(1), "{flags:#x}");
    }
    assert_eq!(table.found(&linear(7, 0x2000, 1)), None);
}

#[test]
fn the_size_of_code_is_part_of_the_key_because_it_is_part_of_the_mode() {
    let mut modes = Modes::default();
    let mut narrow = CpuState::at_reset();
    // The bit PE selects protected mode.
    narrow.cr0 |= 1;
    let mut wide = narrow.clone();
    // The bit D of the code segment: operands and addresses of 32 bits.
    let code = wide.segment_mut(SegmentRegister::Cs);
    code.attributes |= Attributes::from_bits_retain(0x4000);
    let [narrow, wide] = [narrow, wide].map(|state| modes.intern(Mode::of(&state)).0);
    assert_ne!(linear(7, 0x1000, narrow), linear(7, 0x1000, wide));
}

#[test]
fn a_write_to_a_page_table_on_the_way_drops_the_entry_and_releases_its_lines() {
    let mut table = Table::new();
    // Eight bytes at 0x40 of the tables, and two bytes of code at 0x80.
    let way = [
        source(20, line_mask(0x40, 8), Holds::Tables),
        source(21, line_mask(0x40, 8), Holds::Tables),
        source(30, line_mask(0x80, 2), Holds::Code),
    ];
    let (key, other) = (linear(0x3080, 0x1000, 1), linear(0x4000, 0x1000, 1));
    table.enter(key, 1, &way);
    table.enter(other, 2, &[way[0], source(31, 1, Holds::Code)]);
    // Other lines of the same pages.
    table.write(21, 0x80, 0xfff);
    table.write(30, 0, 0x7f);
    assert_eq!(table.found(&key), Some(1));
    table.write(21, 0x47, 0x47);
    assert_eq!((table.found(&key), table.found(&other)), (None, Some(2)));
    assert_eq!(
        (table.counts.dropped_tables, table.counts.dropped_code),
        (1, 0)
    );
    // The table that the other entry was reached by is still watched.
    assert_eq!((table.held(21), table.held(20)), (0, line_mask(0x40, 8)));
    table.write(20, 0x40, 0x40);
    assert_eq!((table.found(&other), table.held(20)), (None, 0));
}

#[test]
fn an_instruction_in_two_pages_goes_with_a_write_to_either() {
    let (first, second) = (line_mask(0xffe, 2), line_mask(0, 1));
    for (page, byte) in [(5, 0xfff), (9, 0)] {
        let mut table = Table::new();
        let key = linear(0x1ffe, 0x1000, 1);
        let sources = [
            source(5, first, Holds::Code),
            source(9, second, Holds::Code),
        ];
        table.enter(key, 1, &sources);
        table.write(5, 0, 0xfbf);
        table.write(9, 0x40, 0xfff);
        assert_eq!(table.found(&key), Some(1));
        table.write(page, byte, byte);
        assert_eq!((table.found(&key), table.held(page)), (None, 0));
        assert_eq!(table.counts.dropped_code, 1);
    }
}

#[test]
fn entering_one_key_repeatedly_leaves_one_entry_and_no_line_held_after_it() {
    let mut table = Table::new();
    let key = linear(7, 0x1000, 1);
    for round in 0..100_000 {
        let page = 1 + round % 1000;
        table.enter(key, round, &[source(page, 1, Holds::Code)]);
    }
    assert_eq!(table.found(&key), Some(99_999));
    let mut counts = InstructionCounts::default();
    table.known.clear(&table.memory, &mut counts);
    assert_eq!(counts.dropped_all, 1);
    assert!((0..MEMORY >> 12).all(|page| table.held(page) == 0));
}

#[test]
fn a_change_of_the_choice_and_of_the_modes_numbers_forgets_all() {
    let memory = GuestMemory::new(MEMORY).unwrap();
    let mut experiment = InstructionExperiment::default();
    for source_of in [InstructionSource::On, InstructionSource::Physical] {
        experiment.set_source(source_of, &memory);
        let InstructionExperiment {
            search, results, ..
        } = &mut experiment;
        let table = search.as_mut().and_then(|search| search.known()).unwrap();
        let key = linear(7, 0x1000, 1);
        let sources = [source(5, 1, Holds::Code)];
        table.enter(key, known(1), &sources, &memory, &mut results.counts);
        table.follow_modes(0, &memory, &mut results.counts);
        assert!(matches!(table.look_up(&key), Found::Hit(_)));
        table.follow_modes(1, &memory, &mut results.counts);
        assert!(matches!(table.look_up(&key), Found::Nothing));
        table.enter(key, known(1), &sources, &memory, &mut results.counts);
        assert_eq!(memory.code().held(5), 1);
    }
    experiment.set_source(InstructionSource::Off, &memory);
    assert_eq!(memory.code().held(5), 0);
    assert_eq!(experiment.results.counts.dropped_all, 4);
}

/// The watched pages under stress: whatever is entered and written, an entry that is found was not
/// written to since it was entered, and every line that it was read from is held, so that the next
/// store to the line exits.
#[test]
fn every_line_that_a_valid_entry_was_read_from_is_watched() {
    let mut random = Random::new(0x5712e55);
    for _ in 0..10 {
        let mut table = Table::new();
        let mut entered: Vec<(Key, u64, Vec<Source>, bool)> = Vec::new();
        for rip in 0..5_000 {
            if random.below(3) > 0 {
                let key = match random.below(2) {
                    0 => linear(random.below(500) as u64, 0x1000 << random.below(3), 1),
                    _ => Key::Physical {
                        physical: random.below(500) as u64,
                        mode: random.below(2) as u32,
                    },
                };
                let sources: Vec<_> = (0..1 + random.below(6))
                    .map(|number| {
                        let page = 1 + random.below(60) as u64;
                        let lines = line_mask(random.below(0xff0) as u64, 8);
                        let holds = [Holds::Code, Holds::Tables][usize::from(number > 0)];
                        source(page, lines, holds)
                    })
                    .collect();
                table.enter(key, rip, &sources);
                entered.retain(|entry| entry.0 != key);
                entered.push((key, rip, sources, false));
            } else {
                let page = 1 + random.below(60) as u64;
                let first = random.below(0x1000) as u16;
                let last = (first + random.below(64) as u16).min(0xfff);
                table.write(page, first, last);
                let lines = line_mask(first.into(), u64::from(last - first) + 1);
                for (_, _, sources, is_void) in &mut entered {
                    let hit = |source: &Source| source.page == page && source.lines & lines != 0;
                    *is_void |= sources.iter().any(hit);
                }
            }
        }
        let mut valid = 0;
        for (key, rip, sources, is_void) in &entered {
            let Some(found) = table.found(key) else {
                continue;
            };
            assert!(found == *rip && !is_void, "{key:?}");
            for source in sources {
                assert_eq!(table.held(source.page) & source.lines, source.lines);
            }
            valid += 1;
        }
        let counts = &table.counts;
        assert!(valid > 0 && counts.dropped_code > 0 && counts.dropped_tables > 0);
        table.known.clear(&table.memory, &mut table.counts);
        assert!((0..MEMORY >> 12).all(|page| table.held(page) == 0));
    }
}
