//! A vCPU while it runs in a machine: its parts and the machine's platform, borrowed.

use crate::alarm::Alarm;
use crate::due::Due;
use crate::guest_view::{GuestView, code_address};
use crate::instruction_in_work::InstructionInWork;
use crate::latches::Latches;
use crate::metered::Metered;
use crate::surroundings::Surroundings;
use crate::translated::Translated;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use tollgate_engine::policy::allow_list::Features;
use tollgate_exits::ExitKind;
use tollgate_exits::blame::Place;
use tollgate_exits::ledger::Ledger;
use tollgate_platform::Platform;
use tollgate_x86::CpuState;

/// The parts of a [`Vcpu`](crate::Vcpu), which are described there, and the platform.
pub(crate) struct Running<'a, P> {
    pub runner: &'a mut Translated,
    pub platform: &'a mut P,
    pub view: &'a mut GuestView,
    pub ledger: &'a mut Ledger,
    pub features: &'a Features,
    pub latches: &'a mut Latches,
    pub due: &'a mut Due,
    pub work: &'a mut InstructionInWork,
    pub pending: &'a Arc<AtomicU32>,
    pub alarm: &'a mut Alarm,
}

impl<P: Platform> Running<'_, P> {
    /// Linear address and address space of the instruction at CS:EIP.
    #[inline]
    pub fn place(&self) -> Place {
        let cpu = &self.runner.context.cpu;
        Place {
            linear: code_address(cpu),
            space: cpu.address_space(),
        }
    }

    /// Counts an exit of the instruction at CS:EIP.
    #[inline]
    pub fn count(&mut self, kind: ExitKind) {
        let place = self.place();
        self.ledger.count(kind, place);
    }

    /// The registers as text.
    pub fn dump(&self) -> String {
        crate::state_dump::dump(&self.runner.context.cpu)
    }

    /// Borrows everything an emulated instruction needs.
    pub fn parts(&mut self) -> (&mut CpuState, Surroundings<'_>) {
        (
            &mut self.runner.context.cpu,
            Surroundings {
                view: self.view,
                platform: Metered {
                    machine: self.platform,
                    ledger: self.ledger,
                },
                links: self.runner.engine.links_mut(),
                pending: self.pending,
                touched_device: false,
                breakpoint_hits: &mut self.latches.breakpoint_hits,
            },
        )
    }
}
