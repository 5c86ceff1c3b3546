//! What the machine knows of a debugger: whether it is stopped for it, and what the session waits for.

use super::line::{DebugLine, Outgoing};
use super::memory::Addresses;
use super::packets::Packets;
use super::registers::Width;
use gdbstub::stub::state_machine::GdbStubStateMachine;
use gdbstub::target::Target;
use tollgate_monitor::{VcpuStop, Watched};

/// The machine's side of a line to a debugger.
pub struct Debugger<T: Target> {
    pub(super) line: Option<DebugLine>,
    pub(super) stub: Option<GdbStubStateMachine<'static, T, Outgoing>>,
    pub(super) packets: Packets,
    pub(super) width: Width,
    /// Whether the machine is stopped for the debugger, or waits for one.
    pub(super) holds: bool,
    /// Whether the guest's clocks stand still for that reason.
    pub(crate) has_stopped_clocks: bool,
    pub(super) addresses: Addresses,
    /// Whether the debugger wants one instruction to be executed.
    pub(super) is_stepping: bool,
    pub(super) wants_quit: bool,
    /// Whether the debugger has let the machine run, and the machine has not noticed that yet.
    pub(super) has_let_go: bool,
    /// Why the processor stopped in an instruction that was executed alone.
    pub(super) stop: Option<VcpuStop>,
}

/// What survives a restart of the machine.
pub struct DebuggerPast<T: Target>(pub(super) Debugger<T>, pub(super) Watched);

impl<T: Target> Default for Debugger<T> {
    fn default() -> Self {
        Self {
            line: None,
            stub: None,
            packets: Packets::default(),
            width: Width::default(),
            holds: false,
            has_stopped_clocks: false,
            addresses: Addresses::default(),
            is_stepping: false,
            wants_quit: false,
            has_let_go: false,
            stop: None,
        }
    }
}

impl<T: Target> Debugger<T> {
    pub(super) const fn width(&self) -> Width {
        self.width
    }

    /// Whether the machine is stopped for the debugger.
    pub(crate) const fn holds(&self) -> bool {
        self.holds
    }

    /// Returns whether the debugger has let the machine run since the last call. It also runs then if it
    /// was paused by other means.
    pub(crate) const fn take_let_go(&mut self) -> bool {
        std::mem::replace(&mut self.has_let_go, false)
    }

    /// Takes the reason for which the processor stopped in an instruction that was executed alone.
    pub(crate) const fn take_stop(&mut self) -> Option<VcpuStop> {
        self.stop.take()
    }
}
