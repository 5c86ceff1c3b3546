//! The processes that run programs: one for each address space that is kept.

use super::code_pages::Refused;
use crate::memory::native_prices::NativeWork;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tollgate_native::{Instruction, Settings, SpaceProcess};
use tollgate_tlb::shadow_windows::native::{NativeSpace, Rights, SharedNativeSpace};
use tollgate_tlb::{SPACES, SpaceNumber};

/// The processes that run programs, by space.
#[derive(Default)]
pub(in crate::translated) struct Processes {
    of_spaces: [Option<Arc<Mutex<Program>>>; SPACES],
    /// Why no process can be started, once it was tried.
    pub(in crate::translated) refused: Option<String>,
    /// Whether the next process is made already, or in the making.
    is_prepared: bool,
}

/// How processes are made. CPUID is left to run, and pages that hold it are translated: the kernel would set
/// whether it faults at each switch between two tasks, and in a virtual machine that may be an exit.
fn settings() -> Settings {
    Settings {
        time_stamp_counter: Instruction::Faults,
        ..Settings::default()
    }
}

/// A process that runs the programs of one space.
pub(in crate::translated) struct Program {
    pub(in crate::translated) process: SpaceProcess,
    /// The file of guest RAM that the process has.
    ram: RawFd,
    /// How often programs were entered, and how often a page was missing.
    pub(in crate::translated) entries: u64,
    pub(in crate::translated) pages: u64,
}

impl std::fmt::Debug for Program {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "process {}", self.process.number())
    }
}

impl Program {
    fn start(ram: BorrowedFd<'_>) -> io::Result<Self> {
        let process = SpaceProcess::start(ram, settings())?;
        Ok(Self {
            process,
            ram: ram.as_raw_fd(),
            entries: 0,
            pages: 0,
        })
    }

    /// What the process has done since it was started.
    pub(in crate::translated) fn work(&self) -> NativeWork {
        let time = self.process.processor_time();
        NativeWork {
            ran: u64::try_from(time.as_nanos()).unwrap_or(u64::MAX),
            entries: self.entries,
            pages: self.pages,
        }
    }
}

impl NativeSpace for Program {
    fn map(&mut self, address: u64, bytes: u64, source: (BorrowedFd<'_>, u64), rights: Rights) {
        let (file, offset) = source;
        debug_assert_eq!(file.as_raw_fd(), self.ram, "the process has no other file");
        let process = &mut self.process;
        process.map(address, bytes, offset, host_rights(rights));
    }

    fn unmap(&mut self, address: u64, bytes: u64) {
        self.process.unmap(address, bytes);
    }

    fn reserved(&self) -> Range<u64> {
        self.process.reserved()
    }

    fn protect(&mut self, address: u64, bytes: u64, rights: Rights) {
        self.process.protect(address, bytes, host_rights(rights));
    }
}

const fn host_rights(rights: Rights) -> tollgate_native::Rights {
    match (rights.writable, rights.executable) {
        (false, false) => tollgate_native::Rights::Read,
        (true, false) => tollgate_native::Rights::ReadWrite,
        (false, true) => tollgate_native::Rights::ReadExecute,
        (true, true) => tollgate_native::Rights::ReadWriteExecute,
    }
}

/// Borrows a program's process. A thread that panicked in the meantime has left it whole.
pub(in crate::translated) fn locked(program: &Mutex<Program>) -> MutexGuard<'_, Program> {
    program.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Processes {
    /// The process of a space.
    pub(in crate::translated) fn of(&self, space: SpaceNumber) -> Option<&Arc<Mutex<Program>>> {
        self.of_spaces[space.index()].as_ref()
    }

    /// Has the next process made in the meantime.
    pub(in crate::translated) fn prepare(&mut self, ram: BorrowedFd<'_>) {
        if !self.is_prepared && self.refused.is_none() {
            self.is_prepared = true;
            tollgate_native::prepare(ram, &settings());
        }
    }

    /// Starts a process for a space that has none, and returns what windows need of it.
    ///
    /// # Errors
    /// The host refused it.
    pub(in crate::translated) fn start(
        &mut self,
        space: SpaceNumber,
        ram: BorrowedFd<'_>,
    ) -> io::Result<(SharedNativeSpace, Refused)> {
        self.is_prepared = false;
        let program = Program::start(ram)?;
        let facts = program.process.facts();
        let refused = Refused {
            descriptor_tables: facts.descriptor_table_reads == Instruction::Faults,
            time_stamp: facts.time_stamp_counter == Instruction::Faults,
            cpuid: facts.cpuid == Instruction::Faults,
        };
        let program = Arc::new(Mutex::new(program));
        self.of_spaces[space.index()] = Some(program.clone());
        Ok((program, refused))
    }

    /// Ends the process of a space.
    pub(in crate::translated) fn end(&mut self, space: SpaceNumber) {
        self.of_spaces[space.index()] = None;
    }

    /// Ends all processes.
    pub(in crate::translated) fn end_all(&mut self) {
        self.of_spaces = Default::default();
    }
}
