//! Runs one instruction alone, with all checks, and with each device access made exactly once.
//!
//! An instruction that the translator copies is not emulated here: its memory operand is read into
//! the bounce buffer, the guest's own instruction runs once with the buffer as its operand, and the
//! buffer is written back. All pages are checked before the first byte moves.

use crate::execution::out_of_line;
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::execution::x87_errors::is_error_pending;
use crate::memory::guest_view::Target;
use crate::translated::Translated;
use crate::translated::processor::Processor;
use iced_x86::Instruction;
use std::sync::atomic::Ordering;
use tollgate_emulate::operand::{
    check_alignment, linear_address, memory_address, probe_linear, read_linear, write_linear,
};
use tollgate_engine::abi::sites::{BlockId, SiteKind};
use tollgate_engine::engine::out_of_line::InstructionPlace;
use tollgate_engine::engine::run::Exit;
use tollgate_engine::policy::instruction_kind::{Effects, Executor};
use tollgate_engine::policy::memory_operand::MemoryUse;
use tollgate_engine::policy::out_of_line::{MOST_BOUNCED, OutOfLine, Traits};
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{Exception, LinearAddress};

/// Offset of operands in the bounce buffer, without the low six bits, which are those of the linear
/// address.
const BOUNCE_START: usize = 64;

/// How the run of a single instruction ended.
pub(crate) enum Ended {
    Completed,
    /// The instruction raised this exception and had no effect.
    Faulted(Exception),
}

impl<P: Platform> Running<'_, Translated, P> {
    /// Runs the instruction at CS:EIP, which is one of this block, out of line. Returns false if an
    /// exception was raised or no work is left to do after the instruction.
    pub(crate) fn slow_step(&mut self, block: BlockId) -> Result<bool, VcpuStop> {
        self.runner.resume = None;
        let instruction = match self.processor().out_of_line(block) {
            Ok(instruction) => instruction,
            Err(exception) => return self.raise(exception).map(|()| false),
        };
        let found = (self.processor()).find_again(&instruction.helper.instruction);
        let instruction = found.unwrap_or(instruction);
        let helper = &instruction.helper;
        if helper.kind.executor == Executor::Near {
            return self.near_step(&helper.instruction);
        }
        if instruction
            .traits
            .contains(Traits::COPIED | Traits::WAITS_FOR_X87)
            && is_error_pending(&self.runner.context.cpu)
        {
            return self.report_x87_error().map(|()| false);
        }
        match instruction.bounced() {
            Some(memory) => match self.bounce(block, &instruction, memory)? {
                Ended::Completed => Ok(true),
                Ended::Faulted(exception) => self.raise(exception).map(|()| false),
            },
            None => {
                // Emulated instructions that arrive here are string instructions that the
                // translator could not inline, or instructions that run out of line only this time.
                let rip = self.runner.context.cpu.rip;
                let falls_through = self.emulate(helper)?;
                let repeats = helper.kind.effects.contains(Effects::REPEATS);
                Ok(falls_through && repeats && self.runner.context.cpu.rip != rip)
            }
        }
    }

    /// Executes an instruction of [`crate::execution::out_of_line`]. Returns false if the
    /// instruction raised an exception.
    fn near_step(&mut self, instruction: &Instruction) -> Result<bool, VcpuStop> {
        let place = self.place();
        let (state, mut environment) = self.parts();
        let result = out_of_line::execute(state, &mut environment, instruction);
        let touched_device = environment.touched_device;
        let kind = match (touched_device, environment.wrote_device) {
            (false, _) => ExitKind::SlowAccess,
            (true, false) => ExitKind::MmioRead,
            (true, true) => ExitKind::MmioWrite,
        };
        self.follow_access(touched_device);
        if let Err(exception) = result {
            return self.raise(exception).map(|()| false);
        }
        self.ledger.count(kind, place);
        Ok(true)
    }

    /// Runs a copied instruction on the bounce buffer. No x87 error that the instruction would wait
    /// for is pending.
    fn bounce(
        &mut self,
        block: BlockId,
        noted: &OutOfLine,
        memory: MemoryUse,
    ) -> Result<Ended, VcpuStop> {
        let instruction = &noted.helper.instruction;
        if noted.traits.contains(Traits::SUPPRESSES_FAULTS) {
            // For an instruction with a mask, the host checks the alignment, too.
            if let Some(ended) = self.bounce_beside_fault(block, noted, memory)? {
                return Ok(ended);
            }
        } else if let Some(exception) = self.runner.misalignment(noted) {
            // A fault of the alignment has priority over faults of the limit and of pages.
            return Ok(Ended::Faulted(exception));
        }
        let size = memory.size as usize;
        let kind = if memory.write {
            AccessKind::Write
        } else {
            AccessKind::Read
        };
        let address = memory_address(&self.runner.context.cpu, instruction);
        if memory.read
            && memory.write
            && let Err(exception) = linear_address(
                &self.runner.context.cpu,
                address,
                memory.size,
                AccessKind::Read,
            )
        {
            return Ok(Ended::Faulted(exception));
        }
        let linear = match linear_address(&self.runner.context.cpu, address, memory.size, kind) {
            Ok(linear) => linear,
            Err(exception) => return Ok(Ended::Faulted(exception)),
        };
        let privilege = Privilege::of_cpl(self.runner.context.cpu.cpl());
        let checked = noted.checked_alignment;
        if let Err(exception) =
            check_alignment(&self.runner.context.cpu, linear, checked, privilege)
        {
            return Ok(Ended::Faulted(exception));
        }
        match self
            .view
            .resolve(&self.runner.context.cpu, linear, kind, privilege)
        {
            Err(exception) => return Ok(Ended::Faulted(exception)),
            Ok(Target::Device(_)) if !memory.write => self.count(ExitKind::MmioRead),
            Ok(Target::Device(_)) => self.count(ExitKind::MmioWrite),
            Ok(Target::Code(_)) => self.count(ExitKind::CodeWrite),
            Ok(Target::Ram(_)) => self.count(ExitKind::SlowAccess),
        }
        let start = BOUNCE_START + (linear.0 % 64) as usize;
        let mut data = [0; MOST_BOUNCED];
        if let Err(exception) = self.check_and_read(linear, &mut data[..size], memory, privilege) {
            return Ok(Ended::Faulted(exception));
        }
        self.runner.context.bounce.0[start..start + size].copy_from_slice(&data[..size]);
        self.runner.context.hot.bounce_pointer =
            self.runner.context.bounce.0.as_ptr() as u64 + start as u64;
        let rip = self.runner.context.cpu.rip;
        if let Some(exception) = self.run_bounced(block)? {
            return Ok(Ended::Faulted(exception));
        }
        if noted.traits.contains(Traits::X87) && self.runner.context.x87.instruction == rip {
            self.runner.context.note_x87_operand(linear.0);
        }
        if memory.write && !self.runner.store_was_suppressed(noted) {
            data[..size].copy_from_slice(&self.runner.context.bounce.0[start..start + size]);
            let (state, mut environment) = self.parts();
            // The pages were checked above, and nothing has changed the translations since.
            let _ = write_linear(state, &mut environment, linear, &data[..size], privilege);
            let touched_device = environment.touched_device;
            self.follow_access(touched_device);
        }
        Ok(Ended::Completed)
    }

    fn check_and_read(
        &mut self,
        linear: LinearAddress,
        data: &mut [u8],
        memory: MemoryUse,
        privilege: Privilege,
    ) -> Result<(), Exception> {
        let (state, mut environment) = self.parts();
        let size = data.len() as u32;
        let mut result = Ok(());
        if memory.write {
            result = probe_linear(state, &mut environment, linear, size, privilege);
        }
        if memory.read && result.is_ok() {
            result = read_linear(state, &mut environment, linear, data, privilege);
        }
        let touched_device = environment.touched_device;
        self.follow_access(touched_device);
        result
    }

    /// Follows an access: an access to a device's registers may have changed what is due.
    fn follow_access(&mut self, touched_device: bool) {
        if touched_device {
            self.due.events = true;
            self.arm_timer();
        }
    }

    /// Runs the current instruction once on the bounce buffer, to its end even if requests to leave
    /// arrive. The instruction must not begin again, because its operand has already been read,
    /// perhaps from a device's register that reading changes.
    pub(crate) fn run_bounced(&mut self, block: BlockId) -> Result<Option<Exception>, VcpuStop> {
        let eip = self.runner.context.cpu.rip;
        let place = self.runner.instruction_place(block);
        let block = match self.runner.engine.bounced_by(place) {
            Some(bouncing) => bouncing,
            None => {
                let mode = self.runner.engine.mode(self.runner.mode).bounce();
                let mode = self.processor().intern_temporary(mode);
                let Some(bouncing) = self.find_block(mode)? else {
                    return Ok(None);
                };
                self.runner.engine.note_bounced(place, bouncing);
                bouncing
            }
        };
        let mut offset = 0;
        let mut requested = false;
        loop {
            let Some(entry) = self.runner.entry_of(block, offset, 0) else {
                return Ok(None);
            };
            requested |= self.pending.swap(0, Ordering::SeqCst) != 0;
            match self.runner.enter_raw(&entry) {
                Exit::NotEntered => continue,
                Exit::Signal => {
                    self.runner.context.gather_flags();
                    if self.runner.context.signal.signal != 0 {
                        self.runner.restore_request(requested);
                        self.count(ExitKind::HostFault);
                        self.runner.context.cpu.rip = eip;
                        return Ok(self.runner.fault_of_bounced());
                    }
                    requested = true;
                    if self.runner.context.signal.rip != eip {
                        self.runner.context.cpu.rip = self.runner.context.signal.rip;
                        break;
                    }
                    if self.runner.context.vectors.were_live != 0 {
                        self.runner.context.vectors.load = 1;
                    }
                }
                Exit::Site(packed) => {
                    self.runner.context.gather_flags();
                    let found = self
                        .runner
                        .engine
                        .site(packed, self.runner.context.registers.code_slide);
                    match found.map(|(_, _, site)| site) {
                        Some(site) if site.kind == SiteKind::VectorLoad => {
                            self.runner.context.vectors.load = 1;
                            offset = site.retry;
                        }
                        Some(site) if site.kind == SiteKind::Continue => {
                            self.runner.context.cpu.rip = site.rip;
                            break;
                        }
                        _ => {
                            self.runner.restore_request(requested);
                            return Ok(Some(Exception::invalid_opcode()));
                        }
                    }
                }
            }
        }
        self.runner.restore_request(requested);
        Ok(None)
    }
}

impl Processor<'_> {
    /// The facts about the instruction at CS:EIP, which is one of this block, that an exit needs.
    pub(crate) fn out_of_line(&mut self, block: BlockId) -> Result<OutOfLine, Exception> {
        let place = self.runner.instruction_place(block);
        match self.runner.engine.out_of_line(place, &self.view.memory) {
            Some(instruction) => Ok(instruction),
            None => self.decode_current(),
        }
    }
}

impl Translated {
    /// The place of the instruction at CS:RIP, which is one of this block.
    pub(crate) fn instruction_place(&self, block: BlockId) -> InstructionPlace {
        InstructionPlace {
            block,
            rip: self.context.cpu.rip,
            code_slide: self.context.registers.code_slide,
        }
    }

    /// Makes a request to leave guest code again, if one arrived.
    fn restore_request(&mut self, requested: bool) {
        if requested {
            self.requests.store(1, Ordering::SeqCst);
        }
    }
}
