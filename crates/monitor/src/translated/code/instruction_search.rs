//! Finds the instruction that caused an exit from its address alone, as a monitor that traps and
//! emulates must: by a walk of the page tables, or in the dictionary of
//! [`crate::execution::instruction_cache`].
//!
//! The exit's place in its block identifies the instruction too, and both must agree. If they do
//! not, the guest changed the tables after the instruction was fetched, and the fetched instruction
//! is executed.

use crate::execution::instruction_cache::InstructionSource;
use crate::execution::instruction_cache::{FoundInstruction, Holds, Key, Known, ReadFrom};
use crate::execution::running::Running;
use crate::memory::addresses::code_address;
use crate::translated::Translated;
use tollgate_emulate::operand::linear_mask;
use tollgate_engine::abi::relocation::Relocation;
use tollgate_engine::policy::instruction_kind::Helper;
use tollgate_engine::policy::out_of_line::{LONGEST_INSTRUCTION, OutOfLine};
use tollgate_exits::steps::{Step, Stopwatch};
use tollgate_memory::GuestMemory;
use tollgate_memory::code_map::line_mask;
use tollgate_platform::Platform;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{AccessKind, PageTableMemory, PagingRegisters, Privilege};
use tollgate_x86::{LinearAddress, PhysicalAddress};

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

impl<P: Platform> Running<'_, Translated, P> {
    /// Finds an instruction that is about to be emulated in the way that the setting demands.
    /// `noted` is the instruction according to its place in the block.
    pub(in crate::translated) fn find_helper(&mut self, noted: Helper) -> Helper {
        if !self.runner.instructions.source().finds_anew() {
            return noted;
        }
        match self.find_instruction() {
            Some(found) if found.helper.instruction == noted.instruction => found.helper,
            _ => {
                self.runner.instructions.counts.disagreed += 1;
                noted
            }
        }
    }

    /// Finds an instruction that is run out of line, in the way that the setting demands.
    pub(in crate::translated) fn find_out_of_line(&mut self, noted: OutOfLine) -> OutOfLine {
        if !self.runner.instructions.source().finds_anew() {
            return noted;
        }
        match self.find_instruction() {
            Some(found) if found.helper.instruction == noted.helper.instruction => found,
            _ => {
                self.runner.instructions.counts.disagreed += 1;
                noted
            }
        }
    }

    /// The instruction at CS:RIP, from the dictionary or from memory. `None` means that its fetch
    /// faults.
    fn find_instruction(&mut self) -> Option<OutOfLine> {
        let epoch = self.runner.engine.mode_epoch();
        self.runner
            .instructions
            .follow_modes(epoch, &self.view.memory);
        self.runner.instructions.counts.found_anew += 1;
        let mut stopwatch = self.runner.instructions.steps.begin();
        match self.runner.instructions.source() {
            InstructionSource::On => self.find_by_linear_address(&mut stopwatch),
            InstructionSource::Physical => self.find_by_physical_address(&mut stopwatch),
            _ => {
                self.runner.instructions.counts.walked += 1;
                let mut sources = Sources::default();
                let first = self.walk_to_code(0, &mut sources, &mut stopwatch)?;
                let known = self.fetch_and_decode(first, &mut sources, &mut stopwatch)?;
                Some(known.instruction)
            }
        }
    }

    fn find_by_linear_address(&mut self, stopwatch: &mut Stopwatch) -> Option<OutOfLine> {
        let cpu = &self.runner.context.cpu;
        let key = Key::Linear {
            linear: code_address(cpu),
            paging: PagingRegisters::of(cpu).steering(),
            mode: self.runner.mode.0,
        };
        let found = self.runner.instructions.look_up(&key);
        self.end(Step::LookUp, stopwatch);
        if let FoundInstruction::Hit(known) = found {
            self.runner.instructions.counts.hits += 1;
            return Some(self.at_rip(known.instruction));
        }
        self.count_miss(&found);
        let mut sources = Sources::default();
        let first = self.walk_to_code(0, &mut sources, stopwatch)?;
        let known = self.fetch_and_decode(first, &mut sources, stopwatch)?;
        self.enter_instruction(key, known, &sources, stopwatch);
        Some(known.instruction)
    }

    fn find_by_physical_address(&mut self, stopwatch: &mut Stopwatch) -> Option<OutOfLine> {
        // The way to the code is walked each time, so its page-table entries need not be watched.
        let mut walked = Sources::default();
        let first = self.walk_to_code(0, &mut walked, stopwatch)?;
        let key = Key::Physical {
            physical: first.0,
            mode: self.runner.mode.0,
        };
        let found = self.runner.instructions.look_up(&key);
        self.end(Step::LookUp, stopwatch);
        if let FoundInstruction::Hit(known) = found {
            let second = match known.second_page {
                Some(_) => {
                    let in_first = PAGE_SIZE - first.page_offset();
                    let next = self.walk_to_code(in_first, &mut walked, stopwatch)?;
                    Some(next.page())
                }
                None => None,
            };
            if second == known.second_page {
                self.runner.instructions.counts.hits += 1;
                return Some(self.at_rip(known.instruction));
            }
        }
        self.count_miss(&found);
        let mut sources = Sources::default();
        let known = self.fetch_and_decode(first, &mut sources, stopwatch)?;
        sources.list.retain(|source| source.holds == Holds::Code);
        self.enter_instruction(key, known, &sources, stopwatch);
        Some(known.instruction)
    }

    fn end(&mut self, step: Step, stopwatch: &mut Stopwatch) {
        self.runner.instructions.steps.end(step, stopwatch);
    }

    fn count_miss(&mut self, found: &FoundInstruction<Known>) {
        let counts = &mut self.runner.instructions.counts;
        match found {
            FoundInstruction::Void => counts.missed_void += 1,
            _ => counts.missed_new += 1,
        }
    }

    /// Moves an instruction of the dictionary, which may have been decoded at another RIP, to the
    /// present one.
    fn at_rip(&self, instruction: OutOfLine) -> OutOfLine {
        let cpu = &self.runner.context.cpu;
        let mask = match cpu.is_64_bit() {
            true => u64::MAX,
            false => 0xffff_ffff,
        };
        let delta = cpu.rip.wrapping_sub(instruction.helper.instruction.ip());
        match delta {
            0 => instruction,
            _ => instruction.moved(Relocation::new(delta, mask)),
        }
    }

    /// Walks to the code `ahead` bytes after CS:RIP. `None` means that the walk faults.
    fn walk_to_code(
        &mut self,
        ahead: u64,
        sources: &mut Sources,
        stopwatch: &mut Stopwatch,
    ) -> Option<PhysicalAddress> {
        let cpu = &self.runner.context.cpu;
        let linear = LinearAddress(code_address(cpu).wrapping_add(ahead) & linear_mask(cpu));
        let privilege = Privilege::of_cpl(cpu.cpl());
        let mut tables = NotedTables {
            memory: &mut self.view.memory,
            sources,
        };
        let registers = PagingRegisters::of(cpu);
        let found = registers.walk(&mut tables, linear, AccessKind::Fetch, privilege);
        self.end(Step::Walk, stopwatch);
        found.ok().map(|found| found.physical)
    }

    /// Fetches and decodes the instruction at CS:RIP, which begins at `first`. `None` means that
    /// its second page cannot be fetched from.
    fn fetch_and_decode(
        &mut self,
        first: PhysicalAddress,
        sources: &mut Sources,
        stopwatch: &mut Stopwatch,
    ) -> Option<Known> {
        let mut bytes = [0xff; LONGEST_INSTRUCTION];
        let in_page = (PAGE_SIZE - first.page_offset()).min(bytes.len() as u64) as usize;
        let is_ram = self.view.memory.ram().host_page(first.page()).is_some();
        self.end(Step::Map, stopwatch);
        if is_ram {
            self.view.memory.read(first, &mut bytes[..in_page]);
        }
        self.end(Step::Fetch, stopwatch);
        let mut second_page = None;
        let mut instruction = self.decode(&bytes[..in_page]);
        if instruction.helper.instruction.is_invalid() && in_page < bytes.len() {
            self.end(Step::Decode, stopwatch);
            let next = self.walk_to_code(in_page as u64, sources, stopwatch)?;
            self.view.memory.read(next, &mut bytes[in_page..]);
            self.end(Step::Fetch, stopwatch);
            instruction = self.decode(&bytes);
            let rest = instruction.helper.instruction.len().saturating_sub(in_page);
            sources.add(next, rest.max(1) as u64, Holds::Code);
            second_page = Some(next.page());
        }
        self.end(Step::Decode, stopwatch);
        let length = instruction.helper.instruction.len().clamp(1, in_page);
        sources.add(first, length as u64, Holds::Code);
        Some(Known {
            instruction,
            second_page,
        })
    }

    fn decode(&self, bytes: &[u8]) -> OutOfLine {
        let mode = self.runner.engine.mode(self.runner.mode);
        OutOfLine::decode(bytes, self.runner.context.cpu.rip, mode, self.features)
    }

    /// Adds an instruction to the dictionary, and watches all places that the instruction was read
    /// from.
    fn enter_instruction(
        &mut self,
        key: Key,
        known: Known,
        sources: &Sources,
        stopwatch: &mut Stopwatch,
    ) {
        let memory = &self.view.memory;
        self.runner
            .instructions
            .enter(key, known, &sources.list, memory);
        for source in &sources.list {
            self.view.watch_for_code(source.page);
        }
        self.end(Step::Note, stopwatch);
    }
}
