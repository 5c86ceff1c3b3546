//! Finds the instruction that caused an exit from its address alone, as a monitor that traps and
//! emulates must: by a walk of the page tables, or in the dictionary of
//! [`crate::execution::instruction_cache`].
//!
//! The exit's place in its block identifies the instruction too, and both must agree. If they do
//! not, the guest changed the tables after the instruction was fetched, and the fetched instruction
//! is executed.
//!
//! This is the experiment `icache`. Exits ask for it in one place, [`Processor::find_again`], and by
//! default nothing is searched.

use crate::execution::instruction_cache::{
    FoundInstruction, Holds, InstructionCounts, InstructionSearch, Key, Known, KnownInstructions,
    ReadFrom, SearchResults,
};
use crate::memory::addresses::code_address;
use crate::memory::guest_view::GuestView;
use crate::translated::Translated;
use crate::translated::processor::Processor;
use iced_x86::Instruction;
use tollgate_emulate::operand::linear_mask;
use tollgate_engine::Engine;
use tollgate_engine::abi::link_layout::ModeId;
use tollgate_engine::abi::relocation::Relocation;
use tollgate_engine::policy::out_of_line::{LONGEST_INSTRUCTION, OutOfLine};
use tollgate_exits::steps::{Step, Steps, Stopwatch};
use tollgate_memory::GuestMemory;
use tollgate_memory::code_map::line_mask;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{AccessKind, PageTableMemory, PagingRegisters, Privilege};
use tollgate_x86::{CpuState, LinearAddress, PhysicalAddress};

/// The most places that an instruction is read from: the page-table entries of two walks, and two
/// pages of code.
const MOST_SOURCES: usize = 2 * 4 + 2;

/// The places that an instruction was read from.
#[derive(Default)]
struct Sources {
    list: Vec<ReadFrom>,
}

impl Sources {
    fn add(&mut self, physical: PhysicalAddress, length: u64, holds: Holds) {
        let lines = line_mask(physical.page_offset(), length);
        if self.list.is_empty() {
            self.list.reserve(MOST_SOURCES);
        }
        self.list.push(ReadFrom {
            page: physical.page(),
            lines,
            holds,
        });
    }
}

/// The guest's page tables, with a note of the entries that are read.
struct NotedTables<'a> {
    memory: &'a mut GuestMemory,
    sources: &'a mut Sources,
}

impl PageTableMemory for NotedTables<'_> {
    fn read_u32(&mut self, address: PhysicalAddress) -> u32 {
        self.sources.add(address, 4, Holds::Tables);
        self.memory.read_u32(address)
    }

    fn read_u64(&mut self, address: PhysicalAddress) -> u64 {
        self.sources.add(address, 8, Holds::Tables);
        self.memory.read_u64(address)
    }

    fn set_bits(&mut self, address: PhysicalAddress, bits: u32) {
        PageTableMemory::set_bits(self.memory, address, bits);
    }
}

impl Processor<'_> {
    /// The instruction at CS:RIP, which the monitor is about to execute, if the experiment
    /// `icache` demands that exits find their instruction again. By default the result is `None`:
    /// the exit takes `noted`, the instruction according to its place in the block.
    #[inline]
    pub(in crate::translated) fn find_again(&mut self, noted: &Instruction) -> Option<OutOfLine> {
        match self.runner.instructions.search {
            None => None,
            Some(_) => self.search(noted),
        }
    }

    #[cold]
    fn search(&mut self, noted: &Instruction) -> Option<OutOfLine> {
        let Translated {
            instructions,
            engine,
            context,
            mode,
            ..
        } = &mut *self.runner;
        let search = instructions.search.as_mut()?;
        let SearchResults { counts, steps } = &mut *instructions.results;
        counts.found_anew += 1;
        let mut finder = Finder {
            stopwatch: steps.begin(),
            steps,
            counts,
            cpu: &context.cpu,
            mode: *mode,
            engine,
            view: self.view,
        };
        let found = finder.find(search);
        let agrees = |found: &OutOfLine| found.helper.instruction == *noted;
        let agreed = found.filter(agrees);
        counts.disagreed += u64::from(agreed.is_none());
        agreed
    }
}

/// Finds the instruction at CS:RIP from its address.
struct Finder<'a> {
    stopwatch: Stopwatch,
    steps: &'a mut Steps,
    counts: &'a mut InstructionCounts,
    cpu: &'a CpuState,
    mode: ModeId,
    engine: &'a Engine,
    view: &'a mut GuestView,
}

impl Finder<'_> {
    /// The instruction, from the dictionary or from memory. `None` means that its fetch faults.
    fn find(&mut self, search: &mut InstructionSearch) -> Option<OutOfLine> {
        match search {
            InstructionSearch::Walk => {
                self.counts.walked += 1;
                let mut sources = Sources::default();
                let first = self.walk_to_code(0, &mut sources)?;
                let known = self.fetch_and_decode(first, &mut sources)?;
                Some(known.instruction)
            }
            InstructionSearch::ByLinearAddress(known) => {
                self.follow_modes(known);
                self.find_by_linear_address(known)
            }
            InstructionSearch::ByPhysicalAddress(known) => {
                self.follow_modes(known);
                self.find_by_physical_address(known)
            }
        }
    }

    fn follow_modes(&mut self, known: &mut KnownInstructions) {
        let epoch = self.engine.mode_epoch();
        known.follow_modes(epoch, &self.view.memory, self.counts);
    }

    fn find_by_linear_address(&mut self, dictionary: &mut KnownInstructions) -> Option<OutOfLine> {
        let key = Key::Linear {
            linear: code_address(self.cpu),
            paging: PagingRegisters::of(self.cpu).steering(),
            mode: self.mode.0,
        };
        let found = dictionary.look_up(&key);
        self.end(Step::LookUp);
        if let FoundInstruction::Hit(known) = found {
            self.counts.hits += 1;
            return Some(self.at_rip(known.instruction));
        }
        self.count_miss(&found);
        let mut sources = Sources::default();
        let first = self.walk_to_code(0, &mut sources)?;
        let known = self.fetch_and_decode(first, &mut sources)?;
        self.enter(dictionary, key, known, &sources);
        Some(known.instruction)
    }

    fn find_by_physical_address(
        &mut self,
        dictionary: &mut KnownInstructions,
    ) -> Option<OutOfLine> {
        // The way to the code is walked each time, so its page-table entries need not be watched.
        let mut walked = Sources::default();
        let first = self.walk_to_code(0, &mut walked)?;
        let key = Key::Physical {
            physical: first.0,
            mode: self.mode.0,
        };
        let found = dictionary.look_up(&key);
        self.end(Step::LookUp);
        if let FoundInstruction::Hit(known) = found {
            let second = match known.second_page {
                Some(_) => {
                    let in_first = PAGE_SIZE - first.page_offset();
                    let next = self.walk_to_code(in_first, &mut walked)?;
                    Some(next.page())
                }
                None => None,
            };
            if second == known.second_page {
                self.counts.hits += 1;
                return Some(self.at_rip(known.instruction));
            }
        }
        self.count_miss(&found);
        let mut sources = Sources::default();
        let known = self.fetch_and_decode(first, &mut sources)?;
        sources.list.retain(|source| source.holds == Holds::Code);
        self.enter(dictionary, key, known, &sources);
        Some(known.instruction)
    }

    fn end(&mut self, step: Step) {
        self.steps.end(step, &mut self.stopwatch);
    }

    fn count_miss(&mut self, found: &FoundInstruction<Known>) {
        match found {
            FoundInstruction::Void => self.counts.missed_void += 1,
            _ => self.counts.missed_new += 1,
        }
    }

    /// Moves an instruction of the dictionary, which may have been decoded at another RIP, to the
    /// present one.
    fn at_rip(&self, instruction: OutOfLine) -> OutOfLine {
        let mask = match self.cpu.is_64_bit() {
            true => u64::MAX,
            false => 0xffff_ffff,
        };
        let delta = (self.cpu.rip).wrapping_sub(instruction.helper.instruction.ip());
        match delta {
            0 => instruction,
            _ => instruction.moved(Relocation::new(delta, mask)),
        }
    }

    /// Walks to the code `ahead` bytes after CS:RIP. `None` means that the walk faults.
    fn walk_to_code(&mut self, ahead: u64, sources: &mut Sources) -> Option<PhysicalAddress> {
        let cpu = self.cpu;
        let linear = LinearAddress(code_address(cpu).wrapping_add(ahead) & linear_mask(cpu));
        let privilege = Privilege::of_cpl(cpu.cpl());
        let mut tables = NotedTables {
            memory: &mut self.view.memory,
            sources,
        };
        let registers = PagingRegisters::of(cpu);
        let found = registers.walk(&mut tables, linear, AccessKind::Fetch, privilege);
        self.end(Step::Walk);
        found.ok().map(|found| found.physical)
    }

    /// Fetches and decodes the instruction at CS:RIP, which begins at `first`. `None` means that
    /// its second page cannot be fetched from.
    fn fetch_and_decode(&mut self, first: PhysicalAddress, sources: &mut Sources) -> Option<Known> {
        let mut bytes = [0xff; LONGEST_INSTRUCTION];
        let in_page = (PAGE_SIZE - first.page_offset()).min(bytes.len() as u64) as usize;
        let is_ram = self.view.memory.ram().host_page(first.page()).is_some();
        self.end(Step::Map);
        if is_ram {
            self.view.memory.read(first, &mut bytes[..in_page]);
        }
        self.end(Step::Fetch);
        let mut second_page = None;
        let mut instruction = self.decode(&bytes[..in_page]);
        if instruction.helper.instruction.is_invalid() && in_page < bytes.len() {
            self.end(Step::Decode);
            let next = self.walk_to_code(in_page as u64, sources)?;
            self.view.memory.read(next, &mut bytes[in_page..]);
            self.end(Step::Fetch);
            instruction = self.decode(&bytes);
            let rest = instruction.helper.instruction.len().saturating_sub(in_page);
            sources.add(next, rest.max(1) as u64, Holds::Code);
            second_page = Some(next.page());
        }
        self.end(Step::Decode);
        let length = instruction.helper.instruction.len().clamp(1, in_page);
        sources.add(first, length as u64, Holds::Code);
        Some(Known {
            instruction,
            second_page,
        })
    }

    fn decode(&self, bytes: &[u8]) -> OutOfLine {
        let mode = self.engine.mode(self.mode);
        OutOfLine::decode(bytes, self.cpu.rip, mode, self.engine.features())
    }

    /// Adds an instruction to the dictionary, and watches all places that the instruction was read
    /// from.
    fn enter(
        &mut self,
        dictionary: &mut KnownInstructions,
        key: Key,
        known: Known,
        sources: &Sources,
    ) {
        dictionary.enter(key, known, &sources.list, &self.view.memory, self.counts);
        for source in &sources.list {
            self.view.watch_for_code(source.page);
        }
        self.end(Step::Note);
    }
}
