//! Pending x87 errors: they raise #MF or, with CR0.NE clear, the PC's interrupt 13 (SDM volume 1,
//! 8.7 and appendix D).
//!
//! The host raises SIGFPE where the guest's processor would test for a pending error. With CR0.NE
//! clear the guest's processor then stops before the instruction until an interrupt arrives, which
//! the machine derives from the FERR# line. The interrupt's handler writes port F0h, and from then
//! until the error is cleared the processor ignores the error: in that time instructions are run
//! alone, and those that would wait for the error are run with the error hidden from the host.

use crate::execution::runner::Runner;
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use iced_x86::Mnemonic;
use tollgate_engine::policy::out_of_line::Traits;
use tollgate_platform::Platform;
use tollgate_x86::state::Activity;
use tollgate_x86::{CpuState, Cr0, Exception, Vector};

/// Offsets of the control word and the status word in the state image.
const FCW: usize = 0;
const FSW: usize = 2;
/// Offset of XSTATE_BV, whose bit 0 is set unless the x87 is in its initial state.
const HEADER: usize = 512;
const ALL_MASKED: u16 = 0x3f;
/// Bits of FSW: the six exceptions and the stack fault; the error summary; busy.
const EXCEPTIONS: u16 = 0x7f;
const ERROR_SUMMARY: u16 = 0x80;
const BUSY: u16 = 0x8000;

/// The state that was hidden from the host: the control word and the exceptions.
pub(crate) struct Hidden {
    control: u16,
    exceptions: u16,
    mnemonic: Mnemonic,
}

fn word(cpu: &CpuState, at: usize) -> u16 {
    u16::from_le_bytes([cpu.vector.0[at], cpu.vector.0[at + 1]])
}

/// Whether an unmasked x87 error is pending. The vector registers must not be live.
pub(crate) fn is_error_pending(cpu: &CpuState) -> bool {
    let in_use = cpu.vector.0[HEADER] & 1 != 0;
    in_use && word(cpu, FSW) & ERROR_SUMMARY != 0
}

impl<R: Runner, P: Platform> Running<'_, R, P> {
    fn x87_word(&self, at: usize) -> u16 {
        word(self.runner.state(), at)
    }

    fn set_x87_word(&mut self, at: usize, value: u16) {
        self.runner.state_mut().vector.0[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }

    /// Reports the pending x87 error before the instruction at CS:EIP, because that instruction
    /// waits for the x87 (SDM volume 1, 8.7).
    pub(crate) fn report_x87_error(&mut self) -> Result<(), VcpuStop> {
        if self.runner.state().cr0().contains(Cr0::NE) {
            return self.raise(Exception::new(Vector::FloatingPoint));
        }
        self.platform.signal_fpu_error();
        self.runner.state_mut().end_shadow();
        self.runner.state_mut().activity = Activity::Halted;
        self.due.events = true;
        self.runner.start_anew();
        Ok(())
    }

    /// Whether the machine makes the processor ignore a pending error. Must be asked after writes
    /// to ports, and for as long as the answer is yes.
    pub(crate) fn follow_ignored_x87_error(&mut self) {
        if self.platform.ignores_fpu_error() && !is_error_pending(self.runner.state()) {
            self.platform.fpu_error_cleared();
        }
        self.non_register.ignores_x87_error = self.platform.ignores_fpu_error();
    }

    /// Hides the error from the host if the next instruction would wait for it.
    pub(crate) fn hide_x87_error(&mut self) -> Option<Hidden> {
        let instruction = self.decode_current().ok()?;
        let waits = instruction.traits.contains(Traits::WAITS_FOR_X87);
        if !is_error_pending(self.runner.state()) || !waits {
            return None;
        }
        let (control, status) = (self.x87_word(FCW), self.x87_word(FSW));
        self.set_x87_word(FCW, control | ALL_MASKED);
        self.set_x87_word(FSW, status & !(EXCEPTIONS | ERROR_SUMMARY | BUSY));
        Some(Hidden {
            control,
            exceptions: status & EXCEPTIONS,
            mnemonic: instruction.helper.instruction.mnemonic(),
        })
    }

    /// Restores the hidden error, unless the instruction has loaded another state.
    pub(crate) fn unhide_x87_error(&mut self, hidden: &Hidden) {
        let loads_state = matches!(hidden.mnemonic, Mnemonic::Fldenv | Mnemonic::Frstor);
        if self.work.has_completed() && loads_state {
            return;
        }
        if !(self.work.has_completed() && hidden.mnemonic == Mnemonic::Fldcw) {
            self.set_x87_word(FCW, hidden.control);
        }
        let mut status = self.x87_word(FSW) | hidden.exceptions;
        if status & !self.x87_word(FCW) & ALL_MASKED != 0 {
            status |= ERROR_SUMMARY | BUSY;
        }
        self.set_x87_word(FSW, status);
    }
}
