//! The state of a whole machine without its RAM: processor, devices and clocks.

use crate::bus::{SavedState, StateError};
use crate::config::Realtime;
use crate::pc::PcState;
use crate::vm::Vm;
use serde::{Deserialize, Serialize};
use std::time::SystemTime;
use tollgate_monitor::non_register_state::NonRegisterState;
use tollgate_x86::CpuState;

/// The version of the layout of [`MachineState`]. Processor and devices have versions of their own.
pub const MACHINE_STATE_VERSION: u32 = 1;
/// The version of the processor's state.
pub const PROCESSOR_STATE_VERSION: u32 = 6;

/// The processor's name in error messages.
const PROCESSOR: &str = "processor";

/// The complete state of a machine, except the contents of its memory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MachineState {
    version: u32,
    processor: SavedState,
    pc: PcState,
}

/// The processor's registers and its non-register state.
#[derive(Serialize, Deserialize)]
struct Processor {
    registers: CpuState,
    non_register: NonRegisterState,
}

impl Vm {
    /// Waits until no device has unfinished work, and returns the machine's state. Must not be
    /// called while [`Vm::run`] runs.
    ///
    /// # Errors
    /// [`StateError::Busy`]: the threads of a device do not finish.
    pub fn save(&mut self) -> Result<MachineState, StateError> {
        let processor = Processor {
            registers: self.vcpu.state().clone(),
            non_register: self.vcpu.non_register_state(),
        };
        Ok(MachineState {
            version: MACHINE_STATE_VERSION,
            processor: SavedState::of(PROCESSOR_STATE_VERSION, &processor),
            pc: self.pc.save()?,
        })
    }

    /// Restores a saved state. The machine's memory must hold the contents of the moment of saving.
    /// Must not be called while [`Vm::run`] runs.
    ///
    /// # Errors
    /// [`StateError`]: a part has a layout that this program cannot read, or belongs to a machine
    /// of another kind. Nothing has changed then.
    pub fn restore(&mut self, state: MachineState) -> Result<(), StateError> {
        if state.version != MACHINE_STATE_VERSION {
            return Err(StateError::Version {
                part: "machine and processor".into(),
                found: state.version,
                expected: MACHINE_STATE_VERSION,
            });
        }
        let processor: Processor = state
            .processor
            .read(PROCESSOR_STATE_VERSION)
            .map_err(|error| error.of_part(PROCESSOR))?;
        let registers = &processor.registers;
        let present = self.vcpu.state();
        if (registers.model, registers.added_features) != (present.model, present.added_features) {
            return Err(StateError::Unreadable {
                part: PROCESSOR.into(),
                why: "the state is that of another model".into(),
            });
        }
        if processor.registers.paravirtual != self.vcpu.state().paravirtual {
            return Err(StateError::Unreadable {
                part: PROCESSOR.into(),
                why: "the state has another paravirtual interface".into(),
            });
        }
        self.pc.restore(state.pc)?;
        self.vcpu
            .change_state(|registers| *registers = processor.registers);
        // The page tables in memory may be others, even where the registers that lead to them are
        // the same.
        self.vcpu.forget_translations();
        self.vcpu.set_non_register_state(processor.non_register);
        self.vcpu.clock_changed();
        Ok(())
    }
    /// Lets the clocks that show the time of day show the host's after a restore, unless the
    /// configuration says that the guest keeps its own.
    pub(crate) fn follow_time_of_day(&mut self) {
        if self.config().realtime == Realtime::Step {
            let base = self.config().rtc_base;
            self.pc.follow_time_of_day(base, SystemTime::now());
        }
    }
}
