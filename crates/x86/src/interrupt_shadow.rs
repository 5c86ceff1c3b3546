//! The interrupt shadow: STI, MOV SS and POP SS hold off interrupts until the next instruction has
//! completed ([`CpuState::shadow_rip`], [`CpuState::shadow_holds_all`]).

use crate::CpuState;

impl CpuState {
    /// Starts the shadow of STI over the instruction at `rip`: maskable interrupts wait until it
    /// has completed (SDM volume 2, STI).
    pub fn begin_interrupt_shadow(&mut self, rip: u64) {
        self.shadow_rip = rip;
        self.shadow_holds_all = false;
    }

    /// Starts the shadow of MOV SS or POP SS over the instruction at `rip` (SDM volume 3, 6.8.3):
    /// NMIs and debug traps wait too. An instruction that is itself in such a shadow starts none.
    pub fn begin_stack_shadow(&mut self, rip: u64) {
        if self.shadow_rip == self.rip && self.shadow_holds_all {
            self.end_shadow();
        } else {
            self.shadow_rip = rip;
            self.shadow_holds_all = true;
        }
    }

    /// Ends the shadow: interrupts are no longer held off.
    pub fn end_shadow(&mut self) {
        self.shadow_rip = u64::MAX;
        self.shadow_holds_all = false;
    }
}
