//! What happens at an exit: one function for each way out of translated code
//! ([`SiteKind`]). Its *kind* is found on the way and says what it counts as: the
//! instructions that the monitor executes share one function and have many kinds.

use crate::guest_view::Inline;
use crate::hypercall;
use crate::near;
use crate::resume_flag::is_before_instruction;
use crate::vcpu::{PendingLink, Resume, Vcpu, VcpuStop, adjust_stack_pointer};
use crate::x87_errors::waits_for_x87;
use tollgate_emulate::Outcome;
use tollgate_emulate::operand::system_mask;
use tollgate_engine::abi::at;
use tollgate_engine::abi::context::NO_PASS;
use tollgate_engine::abi::far_pointer::FarPointer;
use tollgate_engine::abi::sites::{BlockId, Site, SiteKind};
use tollgate_engine::abi::vector_registers;
use tollgate_engine::policy::instruction_kind::{Effects, Executor, Helper};
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::canonical::{is_canonical, is_canonical_range};
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::state::Activity;
use tollgate_x86::{Exception, Flags, Gpr, LinearAddress, SegmentRegister, Vector};

/// si_code of a SIGFPE for an integer division.
const FPE_INTDIV: i32 = 1;

impl<P: Platform> Vcpu<P> {
    fn set_stack_pointer(&mut self, block: BlockId, by: i32) {
        if by != 0 {
            let mask = self.engine.stack_mask(block);
            let rsp = &mut self.context.cpu.gpr[Gpr::Rsp as usize];
            *rsp = adjust_stack_pointer(*rsp, by, mask);
        }
    }

    /// An exit through a block's site.
    pub(crate) fn site_exit(&mut self, packed: u32) -> Result<(), VcpuStop> {
        let Some((block, index, site)) = self.engine.site(packed) else {
            unreachable!("exits name sites of live blocks: nothing was dropped since");
        };
        let resume_flag = self.resume_flag();
        self.context.gather_flags();
        self.follow_mode(block);
        self.context.cpu.rip = site.rip;
        if is_before_instruction(site.kind) {
            self.keep_resume_flag(resume_flag);
        }
        if site.kind != SiteKind::Indirect {
            self.set_stack_pointer(block, site.esp);
        }
        self.continue_shadow(site.shadowed);
        match site.kind {
            SiteKind::Link(_) => self.link_exit(block, index),
            SiteKind::Indirect => self.indirect_exit(block, &site),
            SiteKind::Far => self.far_exit(),
            SiteKind::LevelChanged => self.level_changed_exit(),
            SiteKind::Memory { size, write } => self.memory_exit(block, &site, packed, size, write),
            SiteKind::SystemRead { size, helper } => {
                self.system_read_exit(block, &site, size, helper)
            }
            SiteKind::Slow => self.slow_exit(block, &site),
            SiteKind::Helper(helper) => self.helper_exit(block, &site, helper),
            SiteKind::VectorLoad => {
                self.count(ExitKind::VectorLoad);
                self.resume_at(block, site.retry, site.esp, true);
                Ok(())
            }
            SiteKind::Continue => self.completed(),
            SiteKind::Fault(vector) => self.raise(Exception::new(vector)),
        }
    }

    /// Goes on inside a block, unless something intervenes.
    pub(crate) fn resume_at(&mut self, block: BlockId, offset: u32, esp: i32, vectors: bool) {
        let generation = self.engine.generation();
        self.resume = Some(Resume {
            block,
            offset,
            esp,
            generation,
            vectors,
            store_pass: NO_PASS,
        });
    }

    fn link_exit(&mut self, block: BlockId, site: usize) -> Result<(), VcpuStop> {
        self.count(ExitKind::LinkMiss);
        self.link = PendingLink::From {
            block,
            site,
            generation: self.engine.generation(),
        };
        self.completed()
    }

    fn indirect_exit(&mut self, block: BlockId, site: &Site) -> Result<(), VcpuStop> {
        let cpu = &self.context.cpu;
        let (target, reachable) = if cpu.is_64_bit() {
            let target = self.context.exit_value;
            (target, is_canonical(target))
        } else {
            let target = self.context.exit_value & 0xffff_ffff;
            (target, target <= u64::from(cpu.cs().limit))
        };
        if !reachable {
            // The branch itself faults: undo it.
            self.set_stack_pointer(block, site.esp);
            return self.raise(Exception::general_protection(0));
        }
        self.count(ExitKind::IndirectMiss);
        self.context.cpu.rip = target;
        self.link = PendingLink::Indirect;
        self.completed()
    }

    /// A change of the privilege level is done but for RIP.
    fn level_changed_exit(&mut self) -> Result<(), VcpuStop> {
        self.count(ExitKind::IndirectMiss);
        self.context.cpu.rip = self.context.exit_value;
        self.due.mode = true;
        self.link = PendingLink::Indirect;
        self.completed()
    }

    /// A far transfer of real or V86 mode is done but for CS and IP.
    fn far_exit(&mut self) -> Result<(), VcpuStop> {
        self.count(ExitKind::IndirectMiss);
        let pointer = FarPointer::unpack(self.context.exit_value as u32);
        let cpu = &mut self.context.cpu;
        cpu.load_real_mode_segment(SegmentRegister::Cs, pointer.selector);
        cpu.rip = u64::from(pointer.ip);
        self.due.mode = true;
        self.link = PendingLink::Far;
        self.completed()
    }

    fn memory_exit(
        &mut self,
        block: BlockId,
        site: &Site,
        packed: u32,
        size: u8,
        write: bool,
    ) -> Result<(), VcpuStop> {
        let cpu = &self.context.cpu;
        let linear = LinearAddress(self.context.exit_value & system_mask(cpu));
        if cpu.is_long_mode() && !is_canonical_range(linear.0, u64::from(size)) {
            return self.slow_exit(block, site);
        }
        let privilege = Privilege::of_cpl(self.context.cpu.cpl());
        let kind = if write {
            AccessKind::Write
        } else {
            AccessKind::Read
        };
        let vectors = self.context.vectors_were_live != 0;
        let tested = write && at::code_store(size).is_some();
        let inline = self.view.make_inline(
            &self.context.cpu,
            linear,
            u32::from(size),
            kind,
            tested,
            privilege,
        );
        match inline {
            Ok(Inline::Yes) => {
                self.count(if write {
                    ExitKind::TlbMissWrite
                } else {
                    ExitKind::TlbMissRead
                });
                self.resume_at(block, site.retry, site.esp, vectors);
                Ok(())
            }
            Ok(Inline::Code(physical)) => self.code_page_exit(block, site, packed, physical, size),
            Ok(Inline::No) => self.slow_exit(block, site),
            // Loads and stores of its own, in an order of their own.
            Err(_) if self.is_done_by_monitor() => self.slow_exit(block, site),
            Err(exception) => {
                let exception = self.first_fault(linear, exception);
                self.raise(exception)
            }
        }
    }

    /// A load with the rights of the supervisor was not in the software TLB. If it never
    /// will be, the monitor does the instruction.
    fn system_read_exit(
        &mut self,
        block: BlockId,
        site: &Site,
        size: u8,
        helper: u16,
    ) -> Result<(), VcpuStop> {
        let cpu = &self.context.cpu;
        let linear = LinearAddress(self.context.exit_value & system_mask(cpu));
        let (kind, privilege) = (AccessKind::Read, Privilege::Supervisor);
        let vectors = self.context.vectors_were_live != 0;
        let size = u32::from(size);
        match (self.view).make_inline(cpu, linear, size, kind, false, privilege) {
            Ok(Inline::Yes) => {
                self.count(ExitKind::TlbMissRead);
                self.resume_at(block, site.retry, site.esp, vectors);
                Ok(())
            }
            _ => self.helper_exit(block, site, helper),
        }
    }

    /// Runs the site's instruction out of line.
    fn slow_exit(&mut self, block: BlockId, site: &Site) -> Result<(), VcpuStop> {
        let vectors = self.context.vectors_were_live != 0;
        let generation = self.engine.generation();
        let before = self.context.cpu.rip;
        let completed = self.slow_step()?;
        if !completed {
            return Ok(());
        }
        // Fell through to the next instruction, and the block still stands?
        let fell_through = site.after != 0 && self.context.cpu.rip != before;
        if fell_through && generation == self.engine.generation() && !self.due.mode {
            self.resume_at(block, site.after, site.after_esp, vectors);
        }
        self.completed()
    }

    fn helper_exit(&mut self, block: BlockId, site: &Site, helper: u16) -> Result<(), VcpuStop> {
        let Some(helper) = self
            .engine
            .block(block)
            .and_then(|block| block.helpers.get(helper as usize).copied())
        else {
            unreachable!("helper sites name instructions of their block");
        };
        let is_null = hypercall::is_null(&self.context.cpu, helper.kind.executor);
        if is_null && !self.work.traps() {
            self.null_hypercall(block, site, &helper.instruction);
            return Ok(());
        }
        let falls_through = self.emulate(&helper)?;
        if falls_through && !self.due.mode && site.after != 0 {
            self.resume_at(block, site.after, site.after_esp, false);
        }
        Ok(())
    }

    /// Executes an instruction in the monitor, or raises its exception. True: control
    /// goes on behind it.
    pub(crate) fn emulate(&mut self, helper: &Helper) -> Result<bool, VcpuStop> {
        let Helper { instruction, kind } = helper;
        let effects = kind.effects;
        let is_null = hypercall::is_null(&self.context.cpu, kind.executor);
        self.count(if is_null {
            ExitKind::NullHypercall
        } else {
            kind.exit
        });
        let before = self.context.cpu.rip;
        let task = self.context.cpu.tr.selector;
        if effects.contains(Effects::ENTERS_HANDLER) {
            self.settle_resume_flag();
        }
        let (state, mut surroundings) = self.parts();
        let result = match kind.executor {
            Executor::Near => near::execute(state, &mut surroundings, instruction),
            Executor::Hypercall => hypercall::execute(state, instruction),
            Executor::Emulate => tollgate_emulate::execute(state, &mut surroundings, instruction),
        };
        let touched_device = surroundings.touched_device;
        if effects.contains(Effects::WRITES_VECTOR_AREA) {
            vector_registers::sanitize(&mut self.context.cpu.vector);
            self.context.scatter_x87_pointers();
        }
        self.context.scatter_flags();
        if kind.exit == ExitKind::FastSystemCall && matches!(result, Ok(Outcome::Jumped)) {
            self.remember_level_change(instruction.mnemonic());
        } else if effects.contains(Effects::CHANGES_LEVEL_CHANGES) {
            self.forget_level_changes();
        }
        self.due.mode |= effects.contains(Effects::CHANGES_MODE);
        if touched_device {
            self.arm_timer();
            self.follow_a20();
            self.follow_ignored_x87_error();
        }
        self.due.events |= touched_device
            || effects.intersects(Effects::CHANGES_MODE | Effects::LETS_INTERRUPTS_IN);
        self.due.clock |= effects.contains(Effects::CHANGES_CLOCK);
        let cpu = &mut self.context.cpu;
        let ended = matches!(
            result,
            Ok(Outcome::Next | Outcome::Jumped | Outcome::Halted)
        );
        if ended && cpu.shadow_rip == before {
            cpu.end_shadow();
        }
        if effects.contains(Effects::RETURNS_FROM_HANDLER) {
            // Even one that faults lets NMIs in again (SDM volume 3, 6.7.1).
            cpu.nmi_blocked = false;
        }
        // LTR, another kind, changes TR without leaving the task.
        let switched = effects.contains(Effects::SWITCHES_TASKS) && self.note_task_switch(task);
        match result {
            Ok(Outcome::Next) => {
                // MOV SS and POP SS put the trap off to the next instruction's.
                let cpu = &self.context.cpu;
                if cpu.shadow_holds_all && cpu.shadow_rip == cpu.rip {
                    self.work.set_traps(false);
                    self.work.complete();
                    return Ok(true);
                }
                self.completed()?;
                Ok(true)
            }
            Ok(Outcome::Jumped) => {
                if switched {
                    self.work.load_resume_flag();
                }
                if effects.contains(Effects::ENTERS_HANDLER) {
                    // The delivery has cleared TF: nothing strikes behind INT n
                    // (SDM volume 3, 17.3.1.4).
                    self.work.set_traps(false);
                }
                if effects.contains(Effects::RAISES_DEBUG) {
                    // A breakpoint that MOV SS put off is part of this very #DB.
                    let hits = std::mem::take(&mut self.latches.breakpoint_hits);
                    if hits != 0 {
                        self.context.cpu.report_debug_conditions(hits);
                    }
                }
                if effects.contains(Effects::RETURNS_FROM_HANDLER) {
                    self.latches.resume_flag_rip = self.context.cpu.rip;
                    self.work.load_resume_flag();
                }
                if effects.contains(Effects::LOOKS_AT_TRAP_FLAG) {
                    // No step into an entry that FMASK keeps them out of, but one behind
                    // SYSRET.
                    let traps = self.context.cpu.flags().contains(Flags::TF);
                    self.work.set_traps(traps);
                }
                self.completed()?;
                Ok(false)
            }
            Ok(Outcome::Halted) => {
                self.context.cpu.activity = Activity::Halted;
                self.completed()?;
                Ok(false)
            }
            Ok(Outcome::Repeat) => {
                if effects.contains(Effects::REPEATS) {
                    self.between_iterations()?;
                }
                Ok(false)
            }
            Err(exception) => {
                if exception.vector == Vector::Debug
                    && effects.contains(Effects::NAMES_DEBUG_REGISTER)
                {
                    tollgate_emulate::control::note_detected_access(&mut self.context.cpu);
                }
                self.raise(exception)?;
                Ok(false)
            }
        }
    }

    /// A repeated string instruction has done some iterations, but not the last. What comes
    /// now finds RF set (SDM volume 3, 17.3.1.1).
    fn between_iterations(&mut self) -> Result<(), VcpuStop> {
        let cpu = &mut self.context.cpu;
        cpu.flags |= Flags::RF.bits();
        self.latches.resume_flag_rip = cpu.rip;
        if self.work.traps() || self.latches.breakpoint_hits != 0 {
            return self.debug_trap();
        }
        Ok(())
    }

    /// A signal took the guest out: a request to leave, or a host fault.
    pub(crate) fn signal_exit(&mut self) -> Result<(), VcpuStop> {
        let signal = self.context.signal;
        let block = BlockId(self.context.exit_value as u32);
        let resume_flag = self.resume_flag();
        self.context.gather_flags();
        self.follow_mode(block);
        self.context.cpu.rip = signal.rip;
        self.keep_resume_flag(resume_flag);
        self.set_stack_pointer(block, signal.esp);
        self.continue_shadow(signal.shadowed);
        if signal.signal == 0 {
            self.count(ExitKind::Interrupted);
            return Ok(());
        }
        if signal.signal == libc::SIGSEGV && self.view.translations.is_beside_root(signal.address) {
            // The look-up of an address that is not canonical: with every check.
            if self.slow_step()? {
                self.completed()?;
            }
            return Ok(());
        }
        self.count(ExitKind::HostFault);
        if signal.signal == libc::SIGFPE && signal.code != FPE_INTDIV && self.is_x87_error() {
            return self.report_x87_error();
        }
        let exception = self.host_fault_exception();
        match exception {
            Some(exception) => self.raise(exception),
            None => Err(VcpuStop::NotImplemented(format!(
                "guest code caused host signal {} (code {}, address {:#x}) that no guest fault explains\n{}",
                signal.signal,
                signal.code,
                signal.address,
                self.dump()
            ))),
        }
    }

    /// The host's floating-point fault is the x87's. An x87 error may be pending while an
    /// SSE instruction raises its own: the instruction tells which it was.
    fn is_x87_error(&mut self) -> bool {
        self.x87_error_pending()
            && match self.decode_current() {
                Ok(instruction) => waits_for_x87(&instruction),
                Err(_) => true,
            }
    }

    /// As [`Vcpu::host_fault_exception`], with a last resort.
    pub(crate) fn fault_of_bounced(&mut self) -> Option<Exception> {
        self.host_fault_exception()
            .or(Some(Exception::general_protection(0)))
    }

    /// The guest exception behind a host fault in copied code.
    fn host_fault_exception(&mut self) -> Option<Exception> {
        let signal = self.context.signal;
        match signal.signal {
            libc::SIGFPE if signal.code == FPE_INTDIV => Some(Exception::new(Vector::DivideError)),
            libc::SIGFPE => {
                let mxcsr = &self.context.cpu.vector.0[24..28];
                let mxcsr = u32::from_le_bytes([mxcsr[0], mxcsr[1], mxcsr[2], mxcsr[3]]);
                let unmasked = mxcsr & 0x3f & !(mxcsr >> 7);
                if unmasked != 0
                    && !self
                        .context
                        .cpu
                        .cr4()
                        .contains(tollgate_x86::Cr4::OSXMMEXCPT)
                {
                    return Some(Exception::invalid_opcode());
                }
                Some(Exception::new(Vector::SimdFloatingPoint))
            }
            // Copied code reaches memory through checks only; what is left is the
            // alignment that SSE instructions demand (SDM volume 1, 11.8.2.1).
            libc::SIGSEGV if signal.address == 0 => Some(Exception::general_protection(0)),
            libc::SIGILL => Some(Exception::invalid_opcode()),
            _ => None,
        }
    }
}
