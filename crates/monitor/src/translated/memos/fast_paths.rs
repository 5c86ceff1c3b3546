//! Stores memos of instructions that the monitor has executed, where fast paths find them
//! ([`tollgate_engine::gate::fast_path`]), and handles the exit of a fast path that has changed the
//! mode.

use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::translated::processor::Processor;
use crate::translated::{PendingLink, Translated};
use iced_x86::Instruction;
use tollgate_emulate::cpuid;
use tollgate_emulate::operand::next_rip;
use tollgate_engine::abi::descriptors::known_descriptor;
use tollgate_engine::abi::fast_paths::DONE_RETURN;
use tollgate_engine::abi::memos::cpuid_answer::CpuidAnswers;
use tollgate_engine::abi::memos::device_access::DeviceAccess;
use tollgate_engine::abi::memos::segment_load::SegmentLoad;
use tollgate_engine::abi::memos::{CodeAfter, Memo};
use tollgate_engine::abi::sites::SiteKind;
use tollgate_engine::policy::fast_path::FastInstruction;
use tollgate_engine::policy::instruction_kind::{Effects, Helper};
use tollgate_engine::policy::mode::Mode;
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::local_apic_msrs::APIC_BASE;
use tollgate_x86::{Flags, Gpr, Watched};

/// The number of IA32_EFER.
const EFER: u32 = 0xc000_0080;

impl Processor<'_> {
    /// Stores a memo of an instruction that the monitor has executed, if a fast path can execute
    /// it. `asked` are EAX and ECX before it.
    pub(crate) fn remember_for_fast_path(&mut self, helper: &Helper, asked: [u32; 2]) {
        if helper.kind.effects.contains(Effects::LOADS_DATA_SEGMENT) {
            self.remember_segment_load(&helper.instruction);
        } else if helper.kind.exit == ExitKind::Cpuid {
            self.runner.remember_cpuid(asked);
        }
    }

    /// Stores a memo of a load of a segment register that the monitor has executed, if fast paths
    /// can execute it.
    fn remember_segment_load(&mut self, instruction: &Instruction) {
        let from = self.runner.mode;
        let before = *self.runner.engine.mode(from);
        let map = self.runner.engine.map_of(&before);
        let Some(fast_path @ FastInstruction::LoadSegment { register, .. }) =
            FastInstruction::of(instruction, &before, map)
        else {
            return;
        };
        let cpu = &self.runner.context.cpu;
        let segment = *cpu.segment(register);
        let known = match segment.selector.is_null() {
            true => Some(Watched::NONE),
            false => known_descriptor(cpu, &segment).filter(|known| known.place != 0),
        };
        let family = self.runner.engine.family(from);
        let (Some(key), Some(descriptor)) = (fast_path.key(from.0, family), known) else {
            return;
        };
        let key = key | u64::from(segment.selector.0);
        let mut load = SegmentLoad {
            key,
            descriptor,
            segment,
            ..SegmentLoad::NONE
        };
        let mut after = before;
        after.segments[register as usize] = Mode::of(cpu).segments[register as usize];
        if after != before {
            let Some(to) = self.intern_for_memo(after) else {
                return;
            };
            load.then = CodeAfter::of(self.runner.engine.branch_table(to), to);
        }
        if descriptor == Watched::NONE || self.makes_readable(descriptor.place) {
            self.runner.context.fast_paths.segment_loads.note(load);
            self.runner.fast_paths_known.segment_loads = true;
        }
    }
}

impl<P: Platform> Running<'_, Translated, P> {
    /// Handles the exit of a fast path that has made the access to a device of this site's
    /// instruction, after which the monitor must check what is due. This exit is not counted.
    pub(crate) fn device_done_exit(&mut self, packed: u32) -> Result<(), VcpuStop> {
        self.runner.context.fast_paths.done = 0;
        let code_slide = self.runner.context.registers.code_slide;
        let found = self.runner.engine.site(packed, code_slide);
        let Some((block, _, site)) = found else {
            unreachable!("a fast path names a site of a live block, and nothing was dropped since");
        };
        let next = match site.kind {
            SiteKind::Helper(helper) => {
                let Some(helper) = self.runner.engine.helper(block, helper, code_slide) else {
                    unreachable!("a helper site names an instruction of its block");
                };
                next_rip(&self.runner.context.cpu, &helper.instruction)
            }
            _ => self.runner.context.devices.accesses[DeviceAccess::number(packed)].next_rip,
        };
        self.runner.context.gather_flags();
        self.follow_mode(block);
        self.runner.context.cpu.rip = site.rip;
        self.runner.set_stack_pointer(block, site.esp);
        let cpu = &mut self.runner.context.cpu;
        if cpu.shadow_rip == site.rip {
            cpu.end_shadow();
        }
        cpu.rip = next;
        self.arm_timer();
        self.due.events = true;
        if !self.due.mode && site.after != 0 {
            self.runner
                .resume_at(block, site.after, site.after_esp, false);
        }
        self.completed()
    }

    /// Handles the exit of a fast path that has executed its instruction, when translated code does
    /// not know the block that follows in the present mode.
    pub(crate) fn fast_path_done_exit(&mut self) -> Result<(), VcpuStop> {
        let resume_flag = self.resume_flag();
        let context = &mut self.runner.context;
        let done = std::mem::take(&mut context.fast_paths.done);
        context.gather_flags();
        context.cpu.rip = match context.cpu.is_64_bit() {
            true => context.hot.exit_value,
            false => context.hot.exit_value & 0xffff_ffff,
        };
        let changed = std::mem::take(&mut context.transfers.changed);
        self.follow_returned_flag(changed);
        self.count(ExitKind::IndirectMiss);
        if done == DONE_RETURN && resume_flag {
            // IRET has loaded RF for the target.
            self.runner.context.cpu.flags |= Flags::RF.bits();
            self.work.load_resume_flag();
        }
        self.due.mode = true;
        // Fast paths lead to V86 code through the table of far transfers.
        self.runner.link = match self.runner.context.cpu.is_virtual_8086() {
            true => PendingLink::Far,
            false => PendingLink::Indirect,
        };
        self.completed()
    }
}

impl Translated {
    /// Stores a memo of CPUID, which the monitor has executed with these values of EAX and ECX.
    fn remember_cpuid(&mut self, [leaf, subleaf]: [u32; 2]) {
        let cpu = &self.context.cpu;
        if cpu.is_long_mode() != cpu.is_64_bit() {
            return;
        }
        let of = |register: Gpr| self.context.cpu.gpr[register as usize] as u32;
        let registers = [Gpr::Rax, Gpr::Rbx, Gpr::Rcx, Gpr::Rdx].map(of);
        let answers = &mut self.context.fast_paths.cpuid_answers;
        answers.note(leaf, subleaf, cpuid::may_have_subleaves(leaf), registers);
        self.fast_paths_known.cpuid = true;
    }

    /// Forgets memos after an instruction that may change what they depend on.
    pub(crate) fn forget_fast_paths_after(&mut self, helper: &Helper) {
        // CPUID depends on only these two of the model-specific registers.
        let number = self.context.cpu.gpr[Gpr::Rcx as usize] as u32;
        let shows = helper.kind.exit != ExitKind::Msr || matches!(number, APIC_BASE | EFER);
        if shows && helper.kind.effects.contains(Effects::CHANGES_LEVEL_CHANGES) {
            self.forget_cpuid();
        }
    }

    /// Forgets all memos, because anything that they depend on may have changed.
    pub(crate) fn forget_fast_paths(&mut self) {
        self.forget_cpuid();
        self.forget_segment_loads();
    }

    fn forget_cpuid(&mut self) {
        if std::mem::take(&mut self.fast_paths_known.cpuid) {
            self.context.fast_paths.cpuid_answers = CpuidAnswers::NONE;
        }
    }

    /// Forgets memos of segment loads, because the descriptor table or the numbering of modes may
    /// have changed.
    pub(crate) fn forget_segment_loads(&mut self) {
        if std::mem::take(&mut self.fast_paths_known.segment_loads) {
            self.context.fast_paths.segment_loads.forget();
        }
    }
}
