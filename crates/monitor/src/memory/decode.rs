//! Fetches and decodes the instruction at CS:EIP.

use crate::execution::runner::Runner;
use crate::execution::running::Running;
use crate::memory::guest_view::GuestView;
use tollgate_engine::policy::allow_list::Features;
use tollgate_engine::policy::mode::Mode;
use tollgate_engine::policy::out_of_line::{LONGEST_INSTRUCTION, OutOfLine};
use tollgate_platform::Platform;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::{CpuState, Exception, PhysicalAddress};

impl<R: Runner, P: Platform> Running<'_, R, P> {
    /// Fetches and decodes the instruction at CS:EIP.
    pub(crate) fn decode_current(&mut self) -> Result<OutOfLine, Exception> {
        self.view.decode(self.runner.state(), self.features)
    }
}

impl GuestView {
    /// Fetches and decodes the instruction at CS:EIP. Its second page is looked up only if the
    /// bytes in the first page do not make a whole instruction.
    ///
    /// # Errors
    /// The exception that the fetch raises.
    pub(crate) fn decode(
        &mut self,
        state: &CpuState,
        features: &Features,
    ) -> Result<OutOfLine, Exception> {
        let rip = state.rip;
        let mode = &Mode::of(state);
        let place = self.place(state, rip, false)?;
        let mut bytes = [0xff; LONGEST_INSTRUCTION];
        let in_page =
            (PAGE_SIZE - place.physical % PAGE_SIZE).min(LONGEST_INSTRUCTION as u64) as usize;
        let physical = PhysicalAddress(place.physical);
        self.memory.read(physical, &mut bytes[..in_page]);
        let instruction = OutOfLine::decode(&bytes[..in_page], rip, mode, features);
        if !instruction.helper.instruction.is_invalid() || in_page == LONGEST_INSTRUCTION {
            return Ok(instruction);
        }
        if let Some(next) = self.place(state, rip, true)?.next_page {
            let next = PhysicalAddress(next << 12);
            self.memory.read(next, &mut bytes[in_page..]);
        }
        Ok(OutOfLine::decode(&bytes, rip, mode, features))
    }
}
