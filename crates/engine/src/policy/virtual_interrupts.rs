//! How instructions that read or change the interrupt flag are run: the choices that the experiment
//! `vif` compares.
//!
//! The mechanism follows D. Butterfield, "A Proposal for 80386 VM86 Performance Enhancements". CLI,
//! STI, PUSHF, POPF, IRET and INT n are the *sensitive instructions*: each is an exit, or is
//! executed in translated code on a virtual interrupt flag (VIF). With a virtual interrupt request
//! (VIR) in addition to it, only setting the flag while an interrupt waits needs the monitor.

use serde::{Deserialize, Serialize};

/// How an exit of a sensitive instruction reaches the monitor.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transition {
    /// It reaches the monitor by a call, as every other exit does.
    #[default]
    Call,
    /// A privileged instruction is run at user level: the host's general protection fault arrives
    /// as SIGSEGV. This is the 80386's own mechanism with a trap gate.
    Trap,
    /// An undefined instruction, which arrives as SIGILL, leads out, and a signal's return leads
    /// back: the host's kernel saves and loads the whole context of the processor
    /// twice, as a task switch to the monitor and one back do. This represents a task gate. A
    /// hypervisor under the host may intercept undefined instructions itself.
    Task,
}

/// CLI: its fault at user level is the exit of [`Transition::Trap`].
pub const TRAP: [u8; 1] = [0xfa];
/// UD2: its fault is the exit of [`Transition::Task`].
pub const TASK_SWITCH: [u8; 2] = [0x0f, 0x0b];

/// Which parts of the mechanism are switched on. The guest computes the same with any choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VirtualInterrupts {
    /// Whether sensitive instructions run in translated code on a flag of the guest's own;
    /// otherwise each is an exit of its kind.
    pub flag: bool,
    /// Whether setting the flag exits only while an interrupt waits; otherwise each change of the
    /// flag from 0 to 1 exits. Has no effect without `flag`.
    pub request: bool,
    /// How the remaining exits reach the monitor.
    pub transition: Transition,
}

impl Default for VirtualInterrupts {
    fn default() -> Self {
        Self {
            flag: true,
            request: true,
            transition: Transition::Call,
        }
    }
}
