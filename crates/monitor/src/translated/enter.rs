//! Enters translated code and returns from it: copy-translation as a [`Runner`].

use crate::execution::runner::{Exit, Extent, Runner};
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::memory::addresses::code_address;
use crate::memory::guest_view::GuestView;
use crate::translated::devices::device_fast_path;
use crate::translated::misses::Environment;
use crate::translated::resume::Resume;
use crate::translated::translated_exit::TranslatedExit;
use crate::translated::{PendingLink, Translated};
use iced_x86::Instruction;
use std::collections::BTreeSet;
use tollgate_emulate::interrupt::{Event, Planned, TripleFault};
use tollgate_engine::abi::context::NO_PASS;
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::abi::vector_registers;
use tollgate_engine::engine::Engine;
use tollgate_engine::engine::run::{self, Entry};
use tollgate_engine::engine::written_code::Moment;
use tollgate_engine::policy::access::Access;
use tollgate_engine::policy::breakpoints::Place;
use tollgate_engine::policy::instruction_kind::{Effects, Helper};
use tollgate_exits::{ExitKind, Ledger};
use tollgate_memory::GuestMemory;
use tollgate_memory::gate::CodeWrite;
use tollgate_platform::Platform;
use tollgate_x86::{CpuState, Exception, Flags, Vector};

// Leaving and entering guest code takes only a few hundred instructions. Without the forced
// inlining below, it would take a seventh longer.
impl Runner for Translated {
    type Entry = Entry;
    type Exit = TranslatedExit;
    type Derived = Engine;

    #[inline]
    fn state(&self) -> &CpuState {
        &self.context.cpu
    }

    #[inline]
    fn state_mut(&mut self) -> &mut CpuState {
        &mut self.context.cpu
    }

    #[inline]
    fn state_and_derived(&mut self) -> (&mut CpuState, &mut Engine) {
        (&mut self.context.cpu, &mut self.engine)
    }

    #[inline]
    fn registers_changed(&mut self) {
        self.context.scatter_flags();
    }

    fn vectors_changed(&mut self) {
        vector_registers::sanitize(&mut self.context.cpu.vector);
        self.context.scatter_x87_pointers();
    }

    fn state_replaced(&mut self) {
        self.context.scatter_flags();
        self.context.scatter_x87_pointers();
        self.forget_level_changes();
        self.forget_fast_paths();
    }

    fn has_left_mode(&self) -> bool {
        self.mode_of_state() != *self.engine.mode(self.mode)
    }

    fn control_changed(&mut self, view: &mut GuestView) {
        self.form_mode(view);
    }

    fn set_time_stamp_offset(&mut self, offset: u64) {
        self.context.counters.time_stamp_offset = offset;
    }

    #[inline(always)]
    fn goes_on_with_work<P: Platform>(vcpu: &mut Running<'_, Self, P>) -> bool {
        vcpu.runner.work_left.is_some() && vcpu.go_on_with_work()
    }

    fn slept(&mut self, nanoseconds: u64) {
        self.accounts.slept(nanoseconds);
    }

    #[inline]
    fn interrupt_waits(&mut self, waits: bool) {
        // Guest code must also be left when it returns to the place where the monitor's work
        // stopped.
        let waits = waits || self.work_left.is_some();
        self.context.hot.interrupt_request = if waits { Flags::IF.bits() } else { 0 };
    }

    fn code_written(&mut self, write: CodeWrite, memory: &mut GuestMemory) {
        self.retire_code(write, Moment::After, memory);
    }

    fn set_breakpoints(&mut self, addresses: &BTreeSet<u64>, memory: &mut GuestMemory) {
        self.engine.set_breakpoints(addresses, memory);
    }

    fn may_have_breakpoint(&self) -> bool {
        let breakpoints = self.engine.breakpoints();
        let cpu = &self.context.cpu;
        let mode = self.engine.mode(self.mode);
        !breakpoints.is_empty()
            && breakpoints.may_be_at(Place {
                linear: code_address(cpu),
                relocates: mode.is_relocatable_at(cpu.rip),
            })
    }

    fn translations_changed(&mut self) {
        self.resume = None;
    }

    #[inline]
    fn start_anew(&mut self) {
        self.resume = None;
        self.link = PendingLink::None;
    }

    #[inline]
    fn executed<P: Platform>(vcpu: &mut Running<'_, Self, P>, helper: &Helper, jumped: bool) {
        vcpu.runner.forget_fast_paths_after(helper);
        if helper.kind.exit == ExitKind::Cr3Load {
            vcpu.space_loaded();
        }
        if matches!(helper.kind.exit, ExitKind::FastSystemCall | ExitKind::Iret) && jumped {
            vcpu.processor()
                .remember_level_change(helper.instruction.mnemonic());
        } else if helper.kind.exit == ExitKind::FarTransfer && jumped {
            vcpu.processor().remember_code(&helper.instruction);
        } else if helper.kind.effects.contains(Effects::CHANGES_LEVEL_CHANGES)
            && vcpu.runner.may_change_level_changes(helper)
        {
            vcpu.runner.forget_level_changes();
        }
    }

    fn delivered<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        instruction: &Instruction,
        planned: &Planned,
    ) {
        vcpu.processor().remember_delivery(instruction, planned);
    }

    #[inline(always)]
    fn runs_otherwise<P: Platform>(vcpu: &mut Running<'_, Self, P>) -> Result<bool, VcpuStop> {
        if vcpu.runner.program_access != Access::PartlyNative {
            return Ok(false);
        }
        vcpu.run_natively()
    }

    #[inline(always)]
    fn entry<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        extent: Extent,
    ) -> Result<Option<Entry>, VcpuStop> {
        match extent {
            Extent::Free => match vcpu.runner.go_on() {
                Some(entry) => Ok(Some(entry)),
                None => vcpu.begin(false),
            },
            Extent::RestOfOne => match vcpu.runner.go_on() {
                Some(entry) => Ok(Some(entry)),
                None => vcpu.begin(true),
            },
            Extent::One => vcpu.begin_alone(),
        }
    }

    #[inline(always)]
    fn run<P: Platform>(
        &mut self,
        entry: Entry,
        view: &mut GuestView,
        machine: &mut P,
        ledger: &mut Ledger,
    ) -> Exit<TranslatedExit> {
        view.translations.lead_gs(self.gs_target());
        let environment = Environment::new::<P>(self, view, ledger);
        self.context.fast_paths.environment = (&raw const environment).cast_mut().cast();
        device_fast_path::lend(&mut self.context, machine);
        let exit = self.enter_raw(&entry);
        device_fast_path::take_back(&mut self.context);
        self.context.fast_paths.environment = std::ptr::null_mut();
        match exit {
            run::Exit::NotEntered => Exit::Interrupted,
            run::Exit::Signal => Exit::Own(TranslatedExit::Signal),
            run::Exit::Site(packed) => Exit::Own(TranslatedExit::Site(packed)),
        }
    }

    #[inline]
    fn deliver<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        exception: Exception,
    ) -> Result<(), TripleFault> {
        if exception.vector == Vector::PageFault && vcpu.runner.context.cpu.cpl() == 3 {
            vcpu.runner.accounts.page_faulted();
        }
        let event = Event::of_exception(exception, vcpu.runner.context.cpu.rip);
        if vcpu.deliver_as_before(&event, exception) {
            return Ok(());
        }
        let before = vcpu.before_delivery(&event);
        let refusal = vcpu.refusal_of_task(exception);
        let mut planned = Planned::nothing();
        vcpu.deliver_by_tables(exception, &mut planned)?;
        if let Some(before) = before {
            vcpu.processor().note_delivery(&event, &before, &planned);
        }
        if let Some(refusal) = refusal {
            vcpu.processor().remember_refusal(&refusal, &planned);
        }
        Ok(())
    }

    fn deliver_interrupt<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        vector: u8,
    ) -> Result<(), VcpuStop> {
        let event = Event::external(vector, vcpu.runner.context.cpu.rip);
        if vcpu.interrupt_as_before(&event) {
            return Ok(());
        }
        let before = vcpu.before_delivery(&event);
        let mut planned = Planned::nothing();
        vcpu.deliver_event(vector, &mut planned)?;
        if let Some(before) = before {
            vcpu.processor().note_delivery(&event, &before, &planned);
        }
        Ok(())
    }

    #[inline(always)]
    fn settle<P: Platform>(
        vcpu: &mut Running<'_, Self, P>,
        exit: TranslatedExit,
    ) -> Result<(), VcpuStop> {
        match exit {
            TranslatedExit::Signal => vcpu.signal_exit(),
            TranslatedExit::Site(packed) => vcpu.site_exit(packed),
        }
    }
}

impl Translated {
    /// Follows a write: the code made from the bytes that are written is void.
    pub(crate) fn retire_code(
        &mut self,
        write: CodeWrite,
        moment: Moment,
        memory: &mut GuestMemory,
    ) -> bool {
        let was_held = self.instructions.written(write, memory);
        let ran_natively = self.native.code.written(write.page, memory);
        let retired = self.engine.code_written(write, moment, memory);
        if was_held || ran_natively {
            self.engine.clear_lines_without_code(write.page, memory);
        }
        was_held || ran_natively || retired != 0
    }

    /// Enters guest code.
    #[inline]
    pub(crate) fn enter_raw(&mut self, entry: &Entry) -> run::Exit {
        let engine = &raw const *self.engine;
        // SAFETY: the engine is this processor's own; `entry_of` or `handler` has just made the
        // entry: its target is an address inside a live block of this context's engine, whose
        // tables were set up by `new` and `form_mode`; the vector area is sanitised whenever an
        // emulated instruction has written it.
        unsafe { Engine::run(engine, &mut self.context, entry) }
    }

    /// The entry at an offset in a block, with the present slide. The register that holds ESP must
    /// hold ESP minus `esp`. `None` means that the block no longer exists.
    #[inline]
    pub(crate) fn entry_of(&self, block: BlockId, offset: u32, esp: i32) -> Option<Entry> {
        let target = self.engine.address(block, offset)?;
        Some(Entry {
            block,
            target,
            esp,
            code_slide: self.context.registers.code_slide,
        })
    }

    /// The start of a block for the instruction at CS:EIP. `None` means that the block no longer
    /// exists.
    fn start_of(&self, block: BlockId) -> Option<Entry> {
        let mut entry = self.entry_of(block, 0, 0)?;
        if let Some(slide) = self.engine.code_slide(block, self.context.cpu.rip) {
            entry.code_slide = slide;
        }
        Some(entry)
    }

    /// The start of the handler at CS:RIP, if an indirect branch would find the handler.
    fn handler(&self) -> Option<Entry> {
        let rip = self.context.cpu.rip;
        let target = self.engine.branch_target(rip, self.mode)?;
        Some(Entry::of_branch(target))
    }

    /// The place where an exit left off. `None` means that the block no longer exists.
    fn place_of(&self, resume: &Resume) -> Option<Entry> {
        let mut entry = self.entry_of(resume.block, resume.offset, resume.esp)?;
        entry.code_slide = resume.code_slide;
        Some(entry)
    }

    /// The place where the last exit left off, if that place is still valid.
    #[inline(always)]
    fn go_on(&mut self) -> Option<Entry> {
        let resume = self.resume.take()?;
        if resume.generation != self.engine.generation() {
            return None;
        }
        let entry = self.place_of(&resume)?;
        self.context.vectors.load = u64::from(resume.vectors);
        self.context.store_test.pass = resume.store_pass;
        Some(entry)
    }
}

impl<P: Platform> Running<'_, Translated, P> {
    /// The block at CS:EIP, or with `single` a block of its first instruction alone.
    fn begin(&mut self, single: bool) -> Result<Option<Entry>, VcpuStop> {
        if !single
            && matches!(self.runner.link, PendingLink::Handler)
            && let Some(entry) = self.runner.handler()
        {
            self.runner.link = PendingLink::None;
            return Ok(Some(entry));
        }
        let mode = if single {
            let mode = self.runner.engine.mode(self.runner.mode).single();
            self.processor().intern_temporary(mode)
        } else if let PendingLink::From {
            windowless: true, ..
        } = self.runner.link
        {
            let mode = self.runner.engine.mode(self.runner.mode).windowless();
            self.processor().intern_temporary(mode)
        } else {
            self.runner.mode
        };
        let block = self.find_block(mode)?;
        Ok(block.and_then(|block| self.runner.start_of(block)))
    }

    /// The instruction at CS:EIP alone, from its beginning, or from where its store may pass.
    fn begin_alone(&mut self) -> Result<Option<Entry>, VcpuStop> {
        self.runner.link = PendingLink::None;
        let passing = self.runner.take_passing_store();
        let found = match &passing {
            Some(resume) => self.runner.place_of(resume),
            None => self.begin(true)?,
        };
        let Some(entry) = found else {
            return Ok(None);
        };
        self.runner.context.vectors.load = 1;
        self.runner.context.store_test.pass = passing.map_or(NO_PASS, |resume| resume.store_pass);
        Ok(Some(entry))
    }
}
