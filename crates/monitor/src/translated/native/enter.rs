//! Runs a program natively, and does what it has left for.

use super::faults::Reached;
use super::left_for_pages::Awaited;
use super::processes::{Program, locked};
use super::registers::{
    HostOffsets, can_run, from_program, load_vectors, store_vectors, to_program,
};
use crate::execution::runner::{Extent, Runner};
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::memory::windows::WindowsOf;
use crate::translated::Translated;
use std::sync::OnceLock;
use std::time::Instant;
use tollgate_emulate::descriptor_table::{accessed_segment, read_descriptor};
use tollgate_emulate::segments::load_segment;
use tollgate_engine::policy::access::Access;
use tollgate_exits::ExitKind;
use tollgate_exits::ledger::OtherProcess;
use tollgate_native::{Exit, Selectors, nanoseconds_used};
use tollgate_platform::Platform;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::AccessKind;
use tollgate_x86::{Exception, LinearAddress, PhysicalAddress, SegmentRegister, Selector};

/// Error-code bits of a page fault.
const WRITE: u32 = 1 << 1;
const FETCH: u32 = 1 << 4;

/// Entries of a program between two whose time is measured.
const ENTRIES_BETWEEN_MEASURED: u64 = 8;

/// Where this processor stores the vector registers in a signal frame.
fn host_offsets() -> HostOffsets {
    static OFFSETS: OnceLock<HostOffsets> = OnceLock::new();
    *OFFSETS.get_or_init(HostOffsets::of_host)
}

impl<P: Platform> Running<'_, Translated, P> {
    /// Runs the program at CS:RIP natively until it leaves, and does what it has left for. Programs of
    /// the loaded space run natively. Returns false if the code there must be translated.
    pub(in crate::translated) fn run_natively(&mut self) -> Result<bool, VcpuStop> {
        let cpu = &self.runner.context.cpu;
        if cpu.cpl() != 3 || !can_run(cpu) {
            return Ok(false);
        }
        let rip = cpu.rip;
        if self.runner.resume.is_some() || self.runner.native.left_at.is_translated(rip) {
            // Translated code is in the middle of an instruction, or has it to itself.
            return Ok(false);
        }
        if !self.processor().has_code(LinearAddress(rip)) {
            let Ok(place) = self.view.place(&self.runner.context.cpu, rip, false) else {
                // The fault is raised on the way to translated code.
                return Ok(false);
            };
            if !(self.processor()).prepare_native(LinearAddress(rip), place.physical >> 12) {
                self.runner.native.counts.translated += 1;
                return Ok(false);
            }
        }
        if self.runner.program_access != Access::PartlyNative {
            // The space is another one than that which had earned to run natively.
            return Ok(true);
        }
        let space = self.view.translations.window_space();
        let Some(program) = self.runner.native.processes.of(space).cloned() else {
            return Ok(false);
        };
        let prices = self.runner.native.prices;
        if (self.runner.accounts).enters_native(|| locked(&program).work(), prices) {
            self.processor().follow_access_choice();
            // The mode is formed again first.
            return Ok(true);
        }
        self.map_awaited();
        self.runner.start_anew();
        let Some((exit, selectors)) = self.enter_program(&mut locked(&program)) else {
            return Ok(false);
        };
        if let Err(exception) = self.follow_segments(selectors) {
            self.begin_instruction();
            return self.raise(exception).map(|()| true);
        }
        self.settle_native(exit)?;
        Ok(true)
    }

    /// Follows loads of segment registers and far transfers of a program, which it has made with the
    /// host's descriptors.
    ///
    /// # Errors
    /// The guest has no such descriptor.
    fn follow_segments(&mut self, now: Selectors) -> Result<(), Exception> {
        let before = Selectors::default();
        if now == before {
            return Ok(());
        }
        self.due.mode = true;
        let (cpu, mut environment) = self.parts();
        let loaded = [
            (SegmentRegister::Ss, now.ss, before.ss),
            (SegmentRegister::Ds, now.ds, before.ds),
            (SegmentRegister::Es, now.es, before.es),
            (SegmentRegister::Fs, now.fs, before.fs),
            (SegmentRegister::Gs, now.gs, before.gs),
        ];
        for (register, selector, _) in loaded.into_iter().filter(|it| it.1 != it.2) {
            let base = cpu.segment(register).base;
            load_segment(cpu, &mut environment, register, Selector(selector))?;
            if matches!(register, SegmentRegister::Fs | SegmentRegister::Gs) {
                cpu.segment_mut(register).base = base;
            }
        }
        if now.cs != before.cs {
            let selector = Selector(now.cs);
            let refused = Exception::general_protection(selector.error_code());
            let entry = read_descriptor(cpu, &mut environment, selector)?.ok_or(refused)?;
            let segment = accessed_segment(cpu, &mut environment, entry)?;
            *cpu.segment_mut(SegmentRegister::Cs) = segment;
        }
        Ok(())
    }

    /// Hands the registers to the process of the loaded space, and takes them back when the program
    /// has left. `None` means that the process does not take these registers.
    fn enter_program(&mut self, program: &mut Program) -> Option<(Exit, Selectors)> {
        let Program {
            process, entries, ..
        } = program;
        let offsets = host_offsets();
        let cpu = &self.runner.context.cpu;
        let mut state = to_program(cpu);
        store_vectors(cpu, offsets, process);
        self.runner.native.counts.entries += 1;
        *entries += 1;
        self.ledger.guest_runs_in(OtherProcess {
            number: process.number(),
            processor_time: nanoseconds_used,
        });
        let measured = entries
            .is_multiple_of(ENTRIES_BETWEEN_MEASURED)
            .then(Instant::now);
        self.ledger.enter_guest();
        let exit = process.run_until(&mut state, self.pending);
        self.ledger.leave_guest();
        let exit = exit.ok()?;
        if let Some(begun) = measured
            && matches!(exit, Exit::SystemCall(_))
        {
            let took = begun.elapsed().as_nanos() as u64;
            self.runner.native.prices.note(took);
        }
        if matches!(exit, Exit::MappingFailed(_) | Exit::Died(_)) {
            return Some((exit, Selectors::default()));
        }
        let cpu = &mut self.runner.context.cpu;
        from_program(cpu, &state);
        load_vectors(cpu, offsets, process);
        self.runner.registers_changed();
        self.runner.vectors_changed();
        Some((exit, state.selectors))
    }

    fn settle_native(&mut self, exit: Exit) -> Result<(), VcpuStop> {
        self.begin_instruction();
        match exit {
            Exit::Kicked => {
                self.runner.native.counts.kicks += 1;
                self.count(ExitKind::Interrupted);
                self.program_ran();
                Ok(())
            }
            Exit::SystemCall(_) => {
                self.runner.native.counts.system_calls += 1;
                self.runner.context.counters.progress += 1;
                self.execute_current()
            }
            Exit::PageFault {
                address,
                error_code,
            } => {
                self.runner.native.counts.page_faults += 1;
                self.count(ExitKind::NativeFault);
                let kind = match error_code {
                    code if code & FETCH != 0 => AccessKind::Fetch,
                    code if code & WRITE != 0 => AccessKind::Write,
                    _ => AccessKind::Read,
                };
                self.native_page_fault(LinearAddress(address), kind)
            }
            Exit::Exception { vector, .. } => {
                self.runner.native.counts.exceptions += 1;
                self.native_exception(vector)
            }
            Exit::MappingFailed(_) => {
                // The program has not run. At least one instruction of it runs now.
                self.runner.native.counts.deaths += 1;
                self.processor().end_program();
                self.step_translated()
            }
            Exit::Died(_) => {
                // Its registers are lost, and what it has done since it was entered cannot be done
                // again: the guest's kernel ends the program.
                self.runner.native.counts.deaths += 1;
                self.processor().end_program();
                self.raise(Exception::general_protection(0))
            }
        }
    }

    /// Does what the guest's processor would do after an exception of the host's.
    fn native_exception(&mut self, vector: u8) -> Result<(), VcpuStop> {
        match vector {
            // The program has set TF itself, and the instruction that follows has completed.
            1 if self.work.traps() => return self.completed(),
            // RIP is that of the instruction after INT1 or INT3, which has one byte. A hypervisor
            // below the host may report INT1 with its own address.
            1 | 3 => {
                let rip = self.runner.context.cpu.rip;
                self.runner.context.cpu.rip = rip.wrapping_sub(1);
                if vector == 1 && !self.is_at_int1() {
                    self.runner.context.cpu.rip = rip;
                }
                self.begin_instruction();
            }
            _ => {}
        }
        self.step_translated()
    }

    /// Whether the byte at CS:RIP is INT1.
    fn is_at_int1(&mut self) -> bool {
        const INT1: u8 = 0xf1;
        let cpu = &self.runner.context.cpu;
        let mut byte = [0];
        let place = self.view.place(cpu, cpu.rip, false);
        place.is_ok_and(|it| {
            let at = PhysicalAddress(it.physical);
            self.view.memory.read(at, &mut byte) && byte == [INT1]
        })
    }

    /// Runs the instruction at RIP translated, with every check that its exit would make.
    pub(super) fn step_translated(&mut self) -> Result<(), VcpuStop> {
        self.runner.native.counts.steps += 1;
        self.count(ExitKind::NativeStep);
        match Translated::entry(self, Extent::One)? {
            Some(entry) => self.enter(entry),
            None => Ok(()),
        }
    }

    /// Handles an access of a program that the host has refused: maps the page, or does what the
    /// guest's processor would do.
    fn native_page_fault(
        &mut self,
        linear: LinearAddress,
        kind: AccessKind,
    ) -> Result<(), VcpuStop> {
        let rip = self.runner.context.cpu.rip;
        let is_page_of_rip = rip / PAGE_SIZE == linear.0 / PAGE_SIZE;
        // A page cannot be executed and stored to at the same time.
        let stores_to_itself = is_page_of_rip && kind == AccessKind::Write;
        if self.runner.native.left_at.again(rip, stores_to_itself) {
            return Ok(());
        }
        match self.processor().reach_natively(linear, kind) {
            Ok(Reached::Mapped) => {
                self.note_page();
                Ok(())
            }
            Ok(Reached::Translated) if is_page_of_rip => Ok(()),
            // The instruction begins in a page that runs natively, and ends in one that does not.
            Ok(Reached::Translated | Reached::Not) => self.step_translated(),
            Err(exception) => {
                self.note_page();
                let space = self.view.translations.window_space();
                self.runner.native.awaited = Some(Awaited {
                    space,
                    rip,
                    linear,
                    kind,
                });
                self.raise(exception)
            }
        }
    }

    /// Counts a page that the loaded space's program gets.
    fn note_page(&mut self) {
        let space = self.view.translations.window_space();
        if let Some(program) = self.runner.native.processes.of(space) {
            locked(program).pages += 1;
        }
    }

    /// Maps the page that the guest's kernel was asked for by a page fault, if the program is about to
    /// access it again.
    fn map_awaited(&mut self) {
        let Some(awaited) = self.runner.native.awaited else {
            return;
        };
        let cpu = &self.runner.context.cpu;
        if awaited.space != self.view.translations.window_space() {
            return;
        }
        self.runner.native.awaited = None;
        let access = (awaited.linear, awaited.kind);
        if awaited.rip == cpu.rip && self.view.accessed(cpu, access, WindowsOf::Native).is_some() {
            // What cannot be mapped is reported by the access itself.
            let _ = (self.processor()).reach_natively(awaited.linear, awaited.kind);
        }
    }
}
