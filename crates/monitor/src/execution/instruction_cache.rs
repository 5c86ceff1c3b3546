//! Where the monitor gets the instruction that caused an exit: the choices of an experiment, its
//! decode cache, and counts.
//!
//! This follows "Instruction caching for bhyve": a monitor that learns only that an instruction has
//! exited must, at each exit, walk the guest's page tables to the instruction, find its page, fetch
//! it and decode it. A decode cache saves that work. An entry is valid until
//! the guest writes to what the entry was read from: the bytes of the instruction, and the
//! page-table entries on the way to them. All these lines are marked as code in the
//! [map](tollgate_memory::code_map::CodeMap), so that a store to one of them exits before it
//! changes memory.
//!
//! This monitor does not need the decode cache: it decoded each instruction when it translated it.

mod decode_cache;

use decode_cache::{DecodeCache, Dropped, Found, Source};
use serde::{Deserialize, Serialize};
use tollgate_engine::policy::out_of_line::OutOfLine;
use tollgate_exits::steps::Steps;
use tollgate_memory::GuestMemory;
use tollgate_memory::code_map::line_mask;
use tollgate_memory::gate::CodeWrite;
use tollgate_x86::paging::PagingRegisters;

pub(crate) use decode_cache::{Found as FoundInstruction, Holds, Source as ReadFrom};

/// The source of the instructions that the monitor emulates.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum InstructionSource {
    /// The monitor takes the decoded instruction from its site, as with `Site`, and translated code
    /// executes without an exit what it can.
    #[default]
    #[serde(rename = "fast-path", alias = "leaf")]
    FastPath,
    /// The translator has decoded the instruction once, for its place in the block. The instruction
    /// always exits.
    Site,
    /// At each exit the monitor walks to the instruction, fetches it and decodes it.
    Off,
    /// The monitor looks in the decode cache by linear address and address space.
    On,
    /// The monitor walks the tables to the physical address, and looks in the decode cache by that.
    Physical,
}

impl InstructionSource {
    /// Whether exits find their instruction from its address alone, as in a monitor that traps and
    /// emulates.
    pub fn finds_anew(self) -> bool {
        matches!(self, Self::Off | Self::On | Self::Physical)
    }
}

/// Counts of how exits found the instructions that they emulated.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InstructionCounts {
    /// Emulated instructions that the monitor had to find from their address.
    pub found_anew: u64,
    /// Instructions that were found in the decode cache.
    pub hits: u64,
    /// Instructions that were not in the decode cache.
    pub missed_new: u64,
    /// Instructions whose entry was void, because the guest had written to what the entry was read
    /// from.
    pub missed_void: u64,
    /// Instructions that were walked to, fetched and decoded, without a decode cache.
    pub walked: u64,
    /// Walks that found a fault, or an instruction other than the one that had exited. A processor
    /// may still use the older translation after a change of the tables.
    pub disagreed: u64,
    /// Entries that became void by a write to the code.
    pub dropped_code: u64,
    /// Entries that became void by a write to a page table.
    pub dropped_tables: u64,
    /// Entries that were replaced because their set was full.
    pub dropped_full: u64,
    /// Entries that were dropped because the choice or the numbering of modes changed.
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

/// The key of a cached instruction.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Key {
    /// The instruction's linear address, the registers that decide how it is translated, and the
    /// mode.
    Linear {
        linear: u64,
        paging: PagingRegisters,
        mode: u32,
    },
    /// The instruction's physical address, and the mode.
    Physical { physical: u64, mode: u32 },
}

/// A cached instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub instruction: OutOfLine,
    /// The number of the physical page in which the instruction ends, if it begins in another page.
    pub second_page: Option<u64>,
}

/// The choice of the instruction source, and what the experiment has found.
#[derive(Default)]
pub(crate) struct InstructionExperiment {
    source: InstructionSource,
    /// How exits find their instruction again. With a source that takes the instruction from its
    /// site, as the default does, there is no search.
    pub search: Option<Box<InstructionSearch>>,
    /// The results of all searches so far.
    pub results: Box<SearchResults>,
}

/// What searches have counted and timed.
#[derive(Default)]
pub(crate) struct SearchResults {
    pub counts: InstructionCounts,
    pub steps: Steps,
}

/// How exits find an instruction from its address alone.
pub(crate) enum InstructionSearch {
    /// By a walk, a fetch and decoding.
    Walk,
    /// In a decode cache by linear address, or by a walk.
    ByLinearAddress(KnownInstructions),
    /// By a walk, and then in a decode cache by physical address.
    ByPhysicalAddress(KnownInstructions),
}

impl InstructionSearch {
    /// The search of a source, if the source has one.
    fn of(source: InstructionSource) -> Option<Self> {
        match source {
            InstructionSource::FastPath | InstructionSource::Site => None,
            InstructionSource::Off => Some(Self::Walk),
            InstructionSource::On => Some(Self::ByLinearAddress(KnownInstructions::default())),
            InstructionSource::Physical => {
                Some(Self::ByPhysicalAddress(KnownInstructions::default()))
            }
        }
    }

    /// The decode cache, if the search has one.
    fn known(&mut self) -> Option<&mut KnownInstructions> {
        match self {
            Self::Walk => None,
            Self::ByLinearAddress(known) | Self::ByPhysicalAddress(known) => Some(known),
        }
    }
}

impl InstructionExperiment {
    pub fn source(&self) -> InstructionSource {
        self.source
    }

    /// Changes the source of instructions, and forgets all entries.
    pub fn set_source(&mut self, source: InstructionSource, memory: &GuestMemory) {
        let counts = &mut self.results.counts;
        if let Some(known) = self.search.as_mut().and_then(|search| search.known()) {
            known.clear(memory, counts);
        }
        self.source = source;
        self.search = InstructionSearch::of(source).map(Box::new);
    }

    /// Follows a write. Returns whether lines of its page were released because no entry depends on
    /// them any more.
    pub fn written(&mut self, write: CodeWrite, memory: &GuestMemory) -> bool {
        let counts = &mut self.results.counts;
        let known = self.search.as_mut().and_then(|search| search.known());
        known.is_some_and(|known| known.written(write, memory, counts))
    }
}

/// The decode cache.
#[derive(Default)]
pub(crate) struct KnownInstructions {
    decode_cache: DecodeCache<Key, Known>,
    /// The epoch of the mode numbers in the keys.
    mode_epoch: u64,
}

impl KnownInstructions {
    /// Forgets all entries, and releases the lines that they were read from.
    fn clear(&mut self, memory: &GuestMemory, counts: &mut InstructionCounts) {
        let release = |page| memory.code().release(page, u64::MAX);
        counts.dropped_all += self.decode_cache.clear(release);
    }

    /// Follows the numbering of modes: entries with mode numbers of another epoch are forgotten.
    pub fn follow_modes(
        &mut self,
        epoch: u64,
        memory: &GuestMemory,
        counts: &mut InstructionCounts,
    ) {
        if epoch != self.mode_epoch {
            self.clear(memory, counts);
            self.mode_epoch = epoch;
        }
    }

    /// Looks an instruction up, without counting the look-up.
    pub fn look_up(&self, key: &Key) -> Found<Known> {
        self.decode_cache.look_up(key)
    }

    /// Adds an instruction to the decode cache. From now on the lines of `sources` are marked as
    /// code, so stores to their pages must be tested for code.
    pub fn enter(
        &mut self,
        key: Key,
        known: Known,
        sources: &[Source],
        memory: &GuestMemory,
        counts: &mut InstructionCounts,
    ) {
        for source in sources {
            memory.code().hold(source.page, source.lines);
        }
        counts.dropped_full += u64::from(self.decode_cache.enter(key, known, sources));
        if self.decode_cache.is_crowded() {
            let release = |page, lines: u64| memory.code().release(page, !lines);
            self.decode_cache.collect(release);
        }
    }

    /// Follows a write, as [`InstructionExperiment::written`] says.
    fn written(
        &mut self,
        write: CodeWrite,
        memory: &GuestMemory,
        counts: &mut InstructionCounts,
    ) -> bool {
        let CodeWrite { page, first, last } = write;
        let held = memory.code().held(page);
        let lines = line_mask(first.into(), u64::from(last.saturating_sub(first)) + 1);
        if held & lines == 0 {
            return false;
        }
        let mut dropped = Dropped::default();
        let kept = self.decode_cache.write(page, lines, &mut dropped);
        counts.dropped_code += dropped.code;
        counts.dropped_tables += dropped.tables;
        memory.code().release(page, !kept);
        true
    }
}

#[cfg(test)]
#[path = "instruction_cache_tests.rs"]
mod tests;
