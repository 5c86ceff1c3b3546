//! Where the monitor has an instruction from that has exited to be emulated: the choices of an
//! experiment, its dictionary of decoded instructions, and counts.
//!
//! After "Instruction caching for bhyve": a monitor that is told no more than that an instruction
//! has exited walks the guest's page tables to it, finds the page, fetches and decodes it, at each
//! exit. A dictionary of what was decoded spares that. It holds while nothing is written of what an
//! entry was read from: the bytes of the instruction, and the entries of page tables on the way
//! there. All these lines are held as code in the [map](tollgate_memory::code_map::CodeMap), so
//! that a store to one of them exits first.
//!
//! This monitor has no need of it: it has decoded each instruction when it was translated.

mod dictionary;

use dictionary::{Dictionary, Dropped, Found, Source};
use serde::{Deserialize, Serialize};
use tollgate_engine::policy::out_of_line::OutOfLine;
use tollgate_exits::steps::Steps;
use tollgate_memory::GuestMemory;
use tollgate_memory::code_map::line_mask;
use tollgate_x86::paging::PagingRegisters;

pub(crate) use dictionary::{Found as FoundInstruction, Holds, Source as ReadFrom};

/// Where an instruction comes from that the monitor emulates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InstructionSource {
    /// As in `Site`; and translated code does without an exit what it can of it.
    #[default]
    #[serde(rename = "fast-path", alias = "leaf")]
    FastPath,
    /// The translator has decoded it, once for the place in its block. It always exits.
    Site,
    /// It is walked to, fetched and decoded at each exit.
    Off,
    /// The dictionary, by linear address and address space.
    On,
    /// The dictionary, by physical address, to which the tables are walked.
    Physical,
}

impl InstructionSource {
    /// Whether exits find their instruction anew, as a monitor does that traps and emulates.
    pub fn finds_anew(self) -> bool {
        matches!(self, Self::Off | Self::On | Self::Physical)
    }
}

/// How exits found the instructions that they emulate.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InstructionCounts {
    /// Instructions emulated that the monitor had to find anew.
    pub found_anew: u64,
    /// Of them, in the dictionary.
    pub hits: u64,
    /// Not there.
    pub missed_new: u64,
    /// There, but something of what it was read from had been written.
    pub missed_void: u64,
    /// Without a dictionary: walked to, fetched and decoded.
    pub walked: u64,
    /// The walk found a fault or another instruction than the one that has exited, which a
    /// processor may still have known from before a change of the tables.
    pub disagreed: u64,
    /// Entries that were made void by a write to the code.
    pub dropped_code: u64,
    /// By a write to a page table.
    pub dropped_tables: u64,
    /// Entries that had to make room.
    pub dropped_full: u64,
    /// Entries dropped because the choice changed, or the numbers of modes.
    pub dropped_all: u64,
}

impl InstructionCounts {
    /// Each count with its name in statistics.
    pub fn named(&self) -> [(&'static str, u64); 10] {
        [
            ("found-anew", self.found_anew),
            ("hits", self.hits),
            ("missed-new", self.missed_new),
            ("missed-void", self.missed_void),
            ("walked", self.walked),
            ("disagreed", self.disagreed),
            ("dropped-code", self.dropped_code),
            ("dropped-tables", self.dropped_tables),
            ("dropped-full", self.dropped_full),
            ("dropped-all", self.dropped_all),
        ]
    }
}

/// Under what an instruction is entered.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    /// Its linear address, what leads from there to memory, and the mode.
    Linear {
        linear: u64,
        paging: PagingRegisters,
        mode: u32,
    },
    /// Its physical address, and the mode.
    Physical { physical: u64, mode: u32 },
}

/// What is entered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub instruction: OutOfLine,
    /// Number of the physical page in which it ends, if that is another one than where it begins.
    pub second_page: Option<u64>,
}

/// The dictionary, with who watches what it was read from.
#[derive(Default)]
pub(crate) struct InstructionCache {
    source: InstructionSource,
    dictionary: Option<Box<Dictionary<Key, Known>>>,
    pub counts: InstructionCounts,
    pub steps: Steps,
    /// When the numbers of modes in the keys were given out.
    mode_epoch: u64,
}

impl InstructionCache {
    pub fn source(&self) -> InstructionSource {
        self.source
    }

    /// Changes where instructions come from.
    pub fn set_source(&mut self, source: InstructionSource, memory: &GuestMemory) {
        self.clear(memory);
        self.source = source;
        let has_dictionary = matches!(source, InstructionSource::On | InstructionSource::Physical);
        self.dictionary = has_dictionary.then(Box::default);
    }

    /// Forgets all entries.
    fn clear(&mut self, memory: &GuestMemory) {
        if let Some(dictionary) = &mut self.dictionary {
            let release = |page| memory.code().release(page, u64::MAX);
            self.counts.dropped_all += dictionary.clear(release);
        }
    }

    /// The numbers of modes in keys are those of this epoch.
    pub fn follow_modes(&mut self, epoch: u64, memory: &GuestMemory) {
        if epoch != self.mode_epoch {
            self.clear(memory);
            self.mode_epoch = epoch;
        }
    }

    /// Looks for an instruction; counts nothing.
    pub fn look_up(&self, key: &Key) -> Found<Known> {
        match &self.dictionary {
            Some(dictionary) => dictionary.look_up(key),
            None => Found::Nothing,
        }
    }

    /// Enters an instruction. The lines of `sources` are held as code from now on; stores to their
    /// pages must be tested for code.
    pub fn enter(&mut self, key: Key, known: Known, sources: &[Source], memory: &GuestMemory) {
        let Some(dictionary) = &mut self.dictionary else {
            return;
        };
        for source in sources {
            memory.code().hold(source.page, source.lines);
        }
        self.counts.dropped_full += u64::from(dictionary.enter(key, known, sources));
        if dictionary.is_crowded() {
            dictionary.collect(|page, lines| memory.code().release(page, !lines));
        }
    }

    /// Bytes `first..=last` of a physical page are written. Whether lines of the page were held that
    /// need not be any more.
    pub fn written(&mut self, page: u64, (first, last): (u16, u16), memory: &GuestMemory) -> bool {
        let Some(dictionary) = &mut self.dictionary else {
            return false;
        };
        let held = memory.code().held(page);
        let lines = line_mask(first.into(), u64::from(last.saturating_sub(first)) + 1);
        if held & lines == 0 {
            return false;
        }
        let mut dropped = Dropped::default();
        let kept = dictionary.write(page, lines, &mut dropped);
        self.counts.dropped_code += dropped.code;
        self.counts.dropped_tables += dropped.tables;
        memory.code().release(page, !kept);
        true
    }
}
