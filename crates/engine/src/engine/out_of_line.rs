//! Guest instructions that the monitor executes out of line, as they are kept with their blocks.
//!
//! An instruction is decoded when it is first executed out of line, from the guest code that its
//! block was made from, and kept with the block. It is forgotten when the block dies or its code is
//! written.

use super::Engine;
use crate::abi::sites::BlockId;
use crate::blocks::block::{Block, Noted};
use crate::policy::mode::Mode;
use crate::policy::out_of_line::{LONGEST_INSTRUCTION, OutOfLine, Traits};
use iced_x86::Instruction;
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// Reads the guest's code at `rip` of an active block, so memory still holds what the block was
/// made from. Returns `None` if the block has no code there.
fn code_at(
    block: &Block,
    mode: &Mode,
    rip: u64,
    memory: &GuestMemory,
) -> Option<[u8; LONGEST_INSTRUCTION]> {
    let offset = mode.wrap(rip.wrapping_sub(block.rip()));
    if offset >= u64::from(block.guest_length) {
        return None;
    }
    let key = block.key();
    // Where there is no memory the bus reads as FFh.
    let mut bytes = [0xff; LONGEST_INSTRUCTION];
    let physical = PhysicalAddress(key.physical + offset);
    let in_page = (PAGE_SIZE - physical.page_offset()).min(bytes.len() as u64) as usize;
    let (first, second) = bytes.split_at_mut(in_page);
    memory.read(physical, first);
    if key.second_page != u64::MAX {
        memory.read(PhysicalAddress(key.second_page << 12), second);
    }
    Some(bytes)
}

impl Engine {
    /// The instruction at `rip` of an active block, for its execution out of line; the context's
    /// slide is `code_slide`. `None` if the block has no code there.
    pub fn out_of_line(
        &mut self,
        id: BlockId,
        (rip, code_slide): (u64, u64),
        memory: &GuestMemory,
    ) -> Option<OutOfLine> {
        let relocation = self.block(id)?.relocation(code_slide);
        let noted = self.noted(id, relocation.link_address(rip), memory)?;
        Some(noted.instruction.moved(relocation))
    }

    /// The decoded instruction at `rip`, if it has been executed out of line before.
    pub fn known_out_of_line(
        &self,
        id: BlockId,
        (rip, code_slide): (u64, u64),
    ) -> Option<Instruction> {
        let block = self.block(id)?;
        let relocation = block.relocation(code_slide);
        let link_address = relocation.link_address(rip);
        let noted = block
            .noted()
            .iter()
            .find(|noted| noted.rip == link_address)?;
        Some(relocation.instruction(&noted.instruction.helper.instruction))
    }

    /// The traits of the instruction at `rip` and the alignment that it requires, in bytes.
    pub fn out_of_line_traits(
        &mut self,
        id: BlockId,
        (rip, code_slide): (u64, u64),
        memory: &GuestMemory,
    ) -> Option<(Traits, u32)> {
        let link_address = self.block(id)?.relocation(code_slide).link_address(rip);
        let noted = self.noted(id, link_address, memory)?;
        let instruction = &noted.instruction;
        Some((instruction.traits, instruction.required_alignment))
    }

    /// What is kept with a block about its instruction at the link address `link_address`.
    fn noted(&mut self, id: BlockId, link_address: u64, memory: &GuestMemory) -> Option<&Noted> {
        let block = self.block(id)?;
        let place = block
            .noted()
            .iter()
            .position(|noted| noted.rip == link_address);
        let place = match place {
            Some(place) => place,
            None => {
                let mode = self.mode(block.key().mode);
                let bytes = code_at(block, mode, link_address, memory)?;
                let found =
                    OutOfLine::decode(&bytes, link_address, mode, self.translator.features());
                self.counts.decoded_at_exits += 1;
                let block = self.blocks.get_mut(id)?;
                block.note(Noted {
                    rip: link_address,
                    instruction: found,
                    bounced_by: None,
                });
                block.noted().len() - 1
            }
        };
        self.block(id)?.noted().get(place)
    }

    /// The block that [`Engine::note_bounced`] noted, if it can still be run at `rip`.
    pub fn bounced_by(&self, id: BlockId, rip: u64, code_slide: u64) -> Option<BlockId> {
        let block = self.block(id)?;
        let link_address = block.relocation(code_slide).link_address(rip);
        let noted = block
            .noted()
            .iter()
            .find(|noted| noted.rip == link_address)?;
        let (by, generation) = noted.bounced_by?;
        let holds = generation == self.generation && self.block(by)?.rip() == rip;
        holds.then_some(by)
    }

    /// Notes which block runs an instruction on the bounce buffer; the instruction has been
    /// executed out of line before.
    pub fn note_bounced(&mut self, id: BlockId, (rip, code_slide): (u64, u64), by: BlockId) {
        let generation = self.generation;
        let Some(block) = self.blocks.get_mut(id) else {
            return;
        };
        let link_address = block.relocation(code_slide).link_address(rip);
        let noted = block
            .noted_mut()
            .iter_mut()
            .find(|noted| noted.rip == link_address);
        if let Some(noted) = noted {
            noted.bounced_by = Some((by, generation));
        }
    }
}
