//! The shadow that STI, MOV SS and POP SS cast over the next instruction
//! ([`CpuState::shadow_rip`], [`CpuState::shadow_holds_all`]).

use crate::CpuState;

impl CpuState {
    /// The shadow of STI lies over the instruction at `rip` from now on, where maskable
    /// interrupts wait (SDM volume 2, STI).
    pub fn begin_interrupt_shadow(&mut self, rip: u64) {
        self.shadow_rip = rip;
        self.shadow_holds_all = false;
    }

    /// The shadow of MOV SS or POP SS lies over the instruction at `rip` from now on
    /// (SDM volume 3, 6.8.3), where NMIs and debug traps wait too. An instruction in such
    /// a shadow casts none of its own.
    pub fn begin_stack_shadow(&mut self, rip: u64) {
        if self.shadow_rip == self.rip && self.shadow_holds_all {
            self.end_shadow();
        } else {
            self.shadow_rip = rip;
            self.shadow_holds_all = true;
        }
    }

    /// No shadow lies over any instruction.
    pub fn end_shadow(&mut self) {
        self.shadow_rip = u64::MAX;
        self.shadow_holds_all = false;
    }
}
