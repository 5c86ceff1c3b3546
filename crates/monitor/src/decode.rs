//! The instruction at CS:EIP: as it was noted with its block, or fetched and decoded.

use crate::vcpu::Vcpu;
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::policy::out_of_line::{LONGEST_INSTRUCTION, OutOfLine};
use tollgate_platform::Platform;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::{Exception, PhysicalAddress};

impl<P: Platform> Vcpu<P> {
    /// What an exit asks about the instruction at CS:EIP, which is one of this block's.
    pub(crate) fn out_of_line(&mut self, block: BlockId) -> Result<OutOfLine, Exception> {
        let rip = self.context.cpu.rip;
        match self.engine.out_of_line(block, rip, &self.view.memory) {
            Some(instruction) => Ok(instruction),
            None => self.decode_current(),
        }
    }

    /// Fetches and decodes the instruction at CS:EIP.
    pub(crate) fn decode_current(&mut self) -> Result<OutOfLine, Exception> {
        let rip = self.context.cpu.rip;
        let place = self.view.place(&self.context.cpu, rip, false)?;
        let mode = self.engine.mode(self.mode);
        let mut bytes = [0xff; LONGEST_INSTRUCTION];
        let in_page =
            (PAGE_SIZE - place.physical % PAGE_SIZE).min(LONGEST_INSTRUCTION as u64) as usize;
        let physical = PhysicalAddress(place.physical);
        self.view.memory.read(physical, &mut bytes[..in_page]);
        let instruction = OutOfLine::decode(&bytes[..in_page], rip, mode, &self.features);
        if !instruction.helper.instruction.is_invalid() || in_page == LONGEST_INSTRUCTION {
            return Ok(instruction);
        }
        let place = self.view.place(&self.context.cpu, rip, true)?;
        if let Some(next) = place.next_page {
            let next = PhysicalAddress(next << 12);
            self.view.memory.read(next, &mut bytes[in_page..]);
        }
        Ok(OutOfLine::decode(&bytes, rip, mode, &self.features))
    }
}
