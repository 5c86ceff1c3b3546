//! A vCPU while it runs in a machine: borrows of the vCPU's parts and of the machine's platform.

use crate::execution::current_instruction::InstructionInWork;
use crate::execution::due_work::Due;
use crate::execution::emulation_environment::EmulationEnvironment;
use crate::execution::interruptible_work;
use crate::execution::non_register_state::NonRegisterState;
use crate::execution::runner::Runner;
use crate::execution::timed_platform::Metered;
use crate::execution::watched::Watched;
use crate::host::alarm::Alarm;
use crate::memory::addresses::code_address;
use crate::memory::guest_view::GuestView;
use crate::memory::program_names::ProgramNames;
use std::sync::Arc;
use tollgate_engine::policy::allow_list::Features;
use tollgate_engine::requests::Requests;
use tollgate_exits::ExitKind;
use tollgate_exits::blame::Place;
use tollgate_exits::latency::InterruptibleWork;
use tollgate_exits::ledger::Ledger;
use tollgate_platform::Platform;
use tollgate_x86::CpuState;

/// Supervisor code at or above this address is taken for the kernel, which has the same addresses
/// in all spaces. 64-bit kernels use the upper half of the canonical addresses, 32-bit kernels the
/// upper quarter or half of 4 GiB.
const KERNEL_HALF: u64 = 1 << 31;

/// The parts of a [`Vcpu`](crate::Vcpu), which are described there, and the platform of the
/// machine.
pub struct Running<'a, R, P> {
    pub(crate) runner: &'a mut R,
    pub(crate) platform: &'a mut P,
    pub(crate) view: &'a mut GuestView,
    pub(crate) ledger: &'a mut Ledger,
    pub(crate) features: &'a Features,
    pub(crate) non_register: &'a mut NonRegisterState,
    pub(crate) due: &'a mut Due,
    pub(crate) work: &'a mut InstructionInWork,
    pub(crate) pending: &'a Arc<Requests>,
    pub(crate) alarm: &'a mut Alarm,
    pub(crate) programs: &'a mut ProgramNames,
    pub(crate) watched: &'a mut Watched,
}

impl<R: Runner, P: Platform> Running<'_, R, P> {
    /// The linear address of the instruction at CS:EIP, and its address space.
    #[inline]
    pub(crate) fn place(&self) -> Place {
        let cpu = self.runner.state();
        let linear = code_address(cpu);
        Place {
            linear,
            space: cpu.address_space(),
            is_kernel: cpu.cpl() < 3 && linear >= KERNEL_HALF,
        }
    }

    /// Records that a piece of the monitor's interruptible work begins.
    #[inline]
    pub(crate) fn begin_work(&mut self) -> u64 {
        interruptible_work::begin(self.ledger, self.runner.state(), self.pending)
    }

    /// Records that the piece of work has ended.
    #[inline]
    pub(crate) fn end_work(&mut self, work: InterruptibleWork, begin: u64) {
        interruptible_work::end(self.ledger, self.pending, work, begin);
    }

    /// Counts an exit of the instruction at CS:EIP.
    #[inline]
    pub(crate) fn count(&mut self, kind: ExitKind) {
        let place = self.place();
        self.ledger.count(kind, place);
        if self.ledger.is_sampling() && !place.is_kernel && self.programs.is_due(place.space) {
            self.look_for_program(place.space);
        }
    }

    #[cold]
    fn look_for_program(&mut self, space: u64) {
        let (cpu, memory) = (self.runner.state(), &self.view.memory);
        if cpu.cpl() == 3 {
            self.ledger.aside(|| self.programs.look(space, cpu, memory));
        }
    }

    /// The processor's registers as text.
    pub fn dump(&self) -> String {
        crate::execution::state_dump::dump(self.runner.state())
    }

    /// Borrows all parts that an emulated instruction needs.
    pub(crate) fn parts(&mut self) -> (&mut CpuState, EmulationEnvironment<'_>) {
        let (state, derived) = self.runner.state_and_derived();
        (
            state,
            EmulationEnvironment {
                view: self.view,
                platform: Metered {
                    machine: self.platform,
                    ledger: self.ledger,
                },
                derived,
                pending: self.pending,
                work: None,
                touched_device: false,
                wrote_device: false,
                breakpoint_hits: &mut self.non_register.breakpoint_hits,
                watched: self.watched,
            },
        )
    }
}
