//! Handles the signals that take guest code out: a request to leave, or a host fault in copied
//! code, which becomes an exception of the guest.

use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::execution::x87_errors::is_error_pending;
use crate::translated::Translated;
use crate::translated::processor::Processor;
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::policy::out_of_line::Traits;
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::{Exception, Vector};

/// The si_code of a SIGFPE for an integer division.
const FPE_INTDIV: i32 = 1;

impl<P: Platform> Running<'_, Translated, P> {
    /// Handles a signal that took guest code out: a request to leave, or a host fault.
    pub(crate) fn signal_exit(&mut self) -> Result<(), VcpuStop> {
        let signal = self.runner.context.signal;
        let block = BlockId(self.runner.context.hot.exit_value as u32);
        let resume_flag = self.resume_flag();
        self.runner.context.gather_flags();
        self.follow_mode(block);
        self.runner.context.cpu.rip = signal.rip;
        self.keep_resume_flag(resume_flag);
        self.runner.set_stack_pointer(block, signal.esp);
        self.continue_shadow(signal.shadowed);
        if signal.signal == 0 {
            self.count(ExitKind::Interrupted);
            self.program_ran();
            if signal.between_iterations {
                self.set_resume_flag_between_iterations();
            }
            return Ok(());
        }
        if signal.signal == libc::SIGSEGV && self.view.translations.is_check(signal.address) {
            // The address is not canonical, or the offset is beyond the limit: the instruction is
            // run with every check.
            if self.slow_step(block)? {
                self.completed()?;
            }
            return Ok(());
        }
        if signal.signal == libc::SIGSEGV && self.window_fault(block, &signal)? {
            return Ok(());
        }
        self.count(ExitKind::HostFault);
        if signal.signal == libc::SIGFPE
            && signal.code != FPE_INTDIV
            && self.processor().is_x87_error(block)
        {
            return self.report_x87_error();
        }
        let exception = self.runner.host_fault_exception();
        match exception {
            Some(exception) => self.raise(exception),
            None => Err(VcpuStop::NotImplemented(format!(
                "guest code caused host signal {} (code {}, address {:#x}) that no guest fault explains\n{}",
                signal.signal,
                signal.code,
                signal.address,
                self.dump()
            ))),
        }
    }
}

impl Processor<'_> {
    /// Whether the host's floating-point fault comes from the x87. An x87 error may be pending
    /// while an SSE instruction raises its own; the instruction shows which of the two it is.
    fn is_x87_error(&mut self, block: BlockId) -> bool {
        is_error_pending(&self.runner.context.cpu)
            && match self.out_of_line(block) {
                Ok(instruction) => instruction.traits.contains(Traits::WAITS_FOR_X87),
                Err(_) => true,
            }
    }
}

impl Translated {
    /// The exception of [`Translated::host_fault_exception`], or #GP(0) if the host's fault explains
    /// none.
    pub(crate) fn fault_of_bounced(&self) -> Option<Exception> {
        self.host_fault_exception()
            .or(Some(Exception::general_protection(0)))
    }

    /// The guest exception that a host fault in copied code stands for.
    fn host_fault_exception(&self) -> Option<Exception> {
        let signal = self.context.signal;
        match signal.signal {
            libc::SIGFPE if signal.code == FPE_INTDIV => Some(Exception::new(Vector::DivideError)),
            libc::SIGFPE => {
                let mxcsr = &self.context.cpu.vector.0[24..28];
                let mxcsr = u32::from_le_bytes([mxcsr[0], mxcsr[1], mxcsr[2], mxcsr[3]]);
                let unmasked = mxcsr & 0x3f & !(mxcsr >> 7);
                if unmasked != 0
                    && !self
                        .context
                        .cpu
                        .cr4()
                        .contains(tollgate_x86::Cr4::OSXMMEXCPT)
                {
                    return Some(Exception::invalid_opcode());
                }
                Some(Exception::new(Vector::SimdFloatingPoint))
            }
            // Copied code accesses memory only after checks. What is left is the alignment that SSE
            // instructions demand (SDM volume 1, 11.8.2.1).
            libc::SIGSEGV if signal.address == 0 => Some(Exception::general_protection(0)),
            libc::SIGILL => Some(Exception::invalid_opcode()),
            _ => None,
        }
    }
}
