//! Handles exits: one function for each way out of translated code ([`SiteKind`]). The function
//! also determines the *kind* as which the exit is counted: the instructions that the monitor
//! executes share one function and have many kinds.

use crate::execution::hypercall;
use crate::execution::resume_flag::is_before_instruction;
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::memory::guest_view::{Inline, InlineAccess};
use crate::translated::devices::device_memory_notes::Missed;
use crate::translated::resume::Resume;
use crate::translated::{PendingLink, Translated};
use iced_x86::Instruction;
use tollgate_emulate::operand::{next_rip, system_mask};
use tollgate_engine::abi::context::NO_PASS;
use tollgate_engine::abi::far_pointer::FarPointer;
use tollgate_engine::abi::fast_paths::{DONE_CALL, DONE_CALL_DUE, DONE_DEVICE};
use tollgate_engine::abi::sites::{BlockId, LinkPlace, Site, SiteKind};
use tollgate_engine::engine::run::adjust_stack_pointer;
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::canonical::{is_canonical, is_canonical_range};
use tollgate_x86::{Exception, Flags, Gpr, LinearAddress, SegmentRegister};

impl<P: Platform> Running<'_, Translated, P> {
    /// Handles an exit through a site of a block.
    pub(crate) fn site_exit(&mut self, packed: u32) -> Result<(), VcpuStop> {
        match self.runner.context.fast_paths.done {
            0 | DONE_CALL | DONE_CALL_DUE => {}
            DONE_DEVICE => return self.device_done_exit(packed),
            _ => return self.fast_path_done_exit(),
        }
        let Some((block, index, site)) = self
            .runner
            .engine
            .site(packed, self.runner.context.registers.code_slide)
        else {
            unreachable!("an exit names a site of a live block, and nothing was dropped since");
        };
        let resume_flag = self.resume_flag();
        self.runner.context.gather_flags();
        self.follow_mode(block);
        self.runner.context.cpu.rip = site.rip;
        if is_before_instruction(site.kind) {
            self.keep_resume_flag(resume_flag);
        }
        if site.kind != SiteKind::Indirect {
            self.runner.set_stack_pointer(block, site.esp);
        }
        self.continue_shadow(site.shadowed);
        match site.kind {
            SiteKind::Link(place) => self.link_exit(block, index, &site, place),
            SiteKind::Indirect => self.indirect_exit(block, &site, resume_flag),
            SiteKind::Far => self.far_exit(),
            SiteKind::LevelChanged => self.level_changed_exit(resume_flag),
            SiteKind::Memory { size, write } => self.memory_exit(block, &site, packed, size, write),
            SiteKind::SystemRead { helper, .. } => self.system_read_exit(block, &site, helper),
            SiteKind::Slow => self.slow_exit(block, &site),
            SiteKind::Helper(helper) => self.helper_exit(block, &site, helper),
            SiteKind::VectorLoad => {
                self.count(ExitKind::VectorLoad);
                self.runner.resume_at(block, site.retry, site.esp, true);
                Ok(())
            }
            SiteKind::Continue => self.completed(),
            SiteKind::Fault(vector) => self.raise(Exception::new(vector)),
        }
    }

    fn link_exit(
        &mut self,
        block: BlockId,
        index: usize,
        site: &Site,
        place: LinkPlace,
    ) -> Result<(), VcpuStop> {
        let miss = match place {
            LinkPlace::Direct { windowless, .. } => windowless,
            LinkPlace::Slot { .. } => None,
        };
        if let Some(miss) = miss
            && let Some(kind) = self.processor().fill_window(miss)
        {
            self.count(kind);
            let vectors = self.runner.context.vectors.were_live != 0;
            self.runner
                .resume_at(block, site.retry, site.after_esp, vectors);
            return Ok(());
        }
        self.count(ExitKind::LinkMiss);
        self.runner.link = PendingLink::From {
            block,
            site: index,
            generation: self.runner.engine.generation(),
            windowless: miss.is_some(),
        };
        self.completed()
    }

    fn indirect_exit(
        &mut self,
        block: BlockId,
        site: &Site,
        resume_flag: bool,
    ) -> Result<(), VcpuStop> {
        let cpu = &self.runner.context.cpu;
        let (target, reachable) = if cpu.is_64_bit() {
            let target = self.runner.context.hot.exit_value;
            (target, is_canonical(target))
        } else {
            let target = self.runner.context.hot.exit_value & 0xffff_ffff;
            (target, target <= u64::from(cpu.cs().limit))
        };
        if !reachable {
            // The branch itself faults, so its change of the stack pointer is undone.
            self.runner.set_stack_pointer(block, site.esp);
            return self.raise(Exception::general_protection(0));
        }
        self.count(ExitKind::IndirectMiss);
        self.runner.context.cpu.rip = target;
        // An IRET may have loaded RF for the target.
        self.keep_resume_flag(resume_flag);
        if self.resume_flag() {
            self.work.load_resume_flag();
        }
        self.runner.link = PendingLink::Indirect;
        self.completed()
    }

    /// Completes a change of the privilege level of which only RIP is missing.
    fn level_changed_exit(&mut self, resume_flag: bool) -> Result<(), VcpuStop> {
        self.count(ExitKind::IndirectMiss);
        self.runner.context.cpu.rip = self.runner.context.hot.exit_value;
        if resume_flag {
            // IRET has loaded RF for the target.
            self.runner.context.cpu.flags |= Flags::RF.bits();
            self.work.load_resume_flag();
        }
        self.due.mode = true;
        self.runner.link = PendingLink::Indirect;
        self.completed()
    }

    /// Completes a far transfer of real or V86 mode of which only CS and IP are missing.
    fn far_exit(&mut self) -> Result<(), VcpuStop> {
        self.count(ExitKind::IndirectMiss);
        let pointer = FarPointer::unpack(self.runner.context.hot.exit_value as u32);
        let cpu = &mut self.runner.context.cpu;
        cpu.load_real_mode_segment(SegmentRegister::Cs, pointer.selector);
        cpu.rip = u64::from(pointer.ip);
        self.due.mode = true;
        self.runner.link = PendingLink::Far;
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
        let cpu = &self.runner.context.cpu;
        let linear = LinearAddress(self.runner.context.hot.exit_value & system_mask(cpu));
        if cpu.is_long_mode() && !is_canonical_range(linear.0, u64::from(size)) {
            return self.slow_exit(block, site);
        }
        let Some(access) = InlineAccess::of(site.kind, cpu.cpl()) else {
            unreachable!("the site is one of a memory access");
        };
        let vectors = self.runner.context.vectors.were_live != 0;
        let inline = self.view.allow(&self.runner.context, linear, access);
        match inline {
            Ok(Inline::Yes) => {
                self.count(if write {
                    ExitKind::TlbMissWrite
                } else {
                    ExitKind::TlbMissRead
                });
                self.runner.resume_at(block, site.retry, site.esp, vectors);
                Ok(())
            }
            Ok(Inline::Code(physical)) => self.code_page_exit(block, site, packed, physical, size),
            Ok(Inline::No) => self.slow_exit(block, site),
            Err(fault) => match self.processor().fault_of_operand(block, linear, fault) {
                Some(exception) => self.raise(exception),
                None => self.slow_exit(block, site),
            },
        }
    }

    /// Handles a load with the rights of the supervisor that the software TLB has missed. If the
    /// software TLB can never hold the page, the monitor executes the instruction.
    fn system_read_exit(
        &mut self,
        block: BlockId,
        site: &Site,
        helper: u16,
    ) -> Result<(), VcpuStop> {
        let cpu = &self.runner.context.cpu;
        let linear = LinearAddress(self.runner.context.hot.exit_value & system_mask(cpu));
        let Some(access) = InlineAccess::of(site.kind, cpu.cpl()) else {
            unreachable!("the site is one of a memory access");
        };
        let vectors = self.runner.context.vectors.were_live != 0;
        match self.view.allow(&self.runner.context, linear, access) {
            Ok(Inline::Yes) => {
                self.count(ExitKind::TlbMissRead);
                self.runner.resume_at(block, site.retry, site.esp, vectors);
                Ok(())
            }
            _ => self.helper_exit(block, site, helper),
        }
    }

    /// Runs the site's instruction out of line.
    fn slow_exit(&mut self, block: BlockId, site: &Site) -> Result<(), VcpuStop> {
        let vectors = self.runner.context.vectors.were_live != 0;
        let generation = self.runner.engine.generation();
        let before = self.runner.context.cpu.rip;
        let context = &self.runner.context;
        let (exit_site, exit_value) = (context.hot.exit_site, context.hot.exit_value);
        let window = self.runner.context.registers.window;
        let completed = self.slow_step(block)?;
        self.runner.context.registers.window = window;
        if !completed {
            return Ok(());
        }
        if let SiteKind::Memory {
            size: 1 | 2 | 4 | 8,
            write,
        } = site.kind
            && generation == self.runner.engine.generation()
            && !self.due.mode
            && self.runner.engine.has_fast_paths()
        {
            let missed = Missed {
                site: exit_site,
                linear: LinearAddress(exit_value),
                writes: write,
            };
            self.note_device_access(block, site, missed);
        }
        // If control fell through to the next instruction and the block still exists, guest code
        // resumes there.
        let fell_through = site.after != 0 && self.runner.context.cpu.rip != before;
        if fell_through && generation == self.runner.engine.generation() && !self.due.mode {
            self.runner
                .resume_at(block, site.after, site.after_esp, vectors);
        }
        self.completed()
    }

    fn helper_exit(&mut self, block: BlockId, site: &Site, helper: u16) -> Result<(), VcpuStop> {
        let code_slide = self.runner.context.registers.code_slide;
        let Some(helper) = self.runner.engine.helper(block, helper, code_slide) else {
            unreachable!("a helper site names an instruction of its block");
        };
        match std::mem::take(&mut self.runner.context.fast_paths.done) {
            DONE_CALL => {
                self.count(ExitKind::Interrupted);
                return self.called_fast_path_exit(block, site, &helper.instruction);
            }
            DONE_CALL_DUE => {
                self.arm_timer();
                self.due.events = true;
                return self.called_fast_path_exit(block, site, &helper.instruction);
            }
            _ => {}
        }
        let is_null = hypercall::is_null(&self.runner.context.cpu, helper.kind.executor);
        if is_null && !self.work.traps() {
            self.null_hypercall(block, site, &helper.instruction);
            return Ok(());
        }
        let of = |register: Gpr| self.runner.context.cpu.gpr[register as usize] as u32;
        let asked = [Gpr::Rax, Gpr::Rcx].map(of);
        let found = self.processor().find_again(&helper.instruction);
        let helper = found.map_or(helper, |found| found.helper);
        let elements = self.before_string(&helper);
        let falls_through = self.emulate(&helper)?;
        if falls_through {
            self.note_string(elements);
            self.processor().remember_for_fast_path(&helper, asked);
        }
        if falls_through && !self.due.mode && site.after != 0 {
            self.runner
                .resume_at(block, site.after, site.after_esp, false);
        }
        Ok(())
    }

    /// Handles the exit after a fast path's function has executed the instruction, when the monitor
    /// has work to do after it.
    fn called_fast_path_exit(
        &mut self,
        block: BlockId,
        site: &Site,
        instruction: &Instruction,
    ) -> Result<(), VcpuStop> {
        let cpu = &mut self.runner.context.cpu;
        if cpu.shadow_rip == cpu.rip {
            cpu.end_shadow();
        }
        cpu.rip = next_rip(cpu, instruction);
        if site.after != 0 {
            self.runner
                .resume_at(block, site.after, site.after_esp, false);
        }
        self.completed()
    }

    /// Counts the null hypercall, and resumes after it. The caller has made sure that no debug trap
    /// is due here.
    fn null_hypercall(&mut self, block: BlockId, site: &Site, call: &Instruction) {
        self.count(ExitKind::NullHypercall);
        let cpu = &mut self.runner.context.cpu;
        cpu.rip = next_rip(cpu, call);
        cpu.flags &= !Flags::RF.bits();
        self.work.complete();
        if site.after != 0 {
            self.runner
                .resume_at(block, site.after, site.after_esp, false);
        }
    }
}

impl Translated {
    /// Adds `by` to the stack pointer: the adjustment that emitted code of this block has folded into
    /// displacements where guest code was left.
    pub(crate) fn set_stack_pointer(&mut self, block: BlockId, by: i32) {
        if by != 0 {
            let mask = self.engine.stack_mask(block);
            let rsp = &mut self.context.cpu.gpr[Gpr::Rsp as usize];
            *rsp = adjust_stack_pointer(*rsp, by, mask);
        }
    }

    /// Sets the place inside a block where guest code resumes, unless something intervenes.
    pub(crate) fn resume_at(&mut self, block: BlockId, offset: u32, esp: i32, vectors: bool) {
        let generation = self.engine.generation();
        self.resume = Some(Resume {
            block,
            offset,
            esp,
            generation,
            vectors,
            store_pass: NO_PASS,
            code_slide: self.context.registers.code_slide,
        });
    }
}
