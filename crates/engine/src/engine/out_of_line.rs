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

/// Where an instruction of a block is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstructionPlace {
    /// The block that the instruction was translated in.
    pub block: BlockId,
    /// The address of the instruction relative to CS.
    pub rip: u64,
    /// The slide of the block's code.
    pub code_slide: u64,
}

impl Engine {
    /// The instruction at a place of an active block, for its execution out of line. `None` if the
    /// block has no code there.
    pub fn out_of_line(
        &mut self,
        place: InstructionPlace,
        memory: &GuestMemory,
    ) -> Option<OutOfLine> {
        let relocation = self.block(place.block)?.relocation(place.code_slide);
        let noted = self.noted(place.block, relocation.link_address(place.rip), memory)?;
        Some(noted.instruction.moved(relocation))
    }

    /// The decoded instruction at a place, if it has been executed out of line before.
    pub fn known_out_of_line(&self, place: InstructionPlace) -> Option<Instruction> {
        let block = self.block(place.block)?;
        let relocation = block.relocation(place.code_slide);
        let link_address = relocation.link_address(place.rip);
        let noted = block
            .noted()
            .iter()
            .find(|noted| noted.rip == link_address)?;
        Some(relocation.instruction(&noted.instruction.helper.instruction))
    }

    /// The traits of the instruction at a place and the alignment that it requires, in bytes.
    pub fn out_of_line_traits(
        &mut self,
        place: InstructionPlace,
        memory: &GuestMemory,
    ) -> Option<(Traits, u32)> {
        let relocation = self.block(place.block)?.relocation(place.code_slide);
        let noted = self.noted(place.block, relocation.link_address(place.rip), memory)?;
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

    /// The block that [`Engine::note_bounced`] noted, if it can still be run at this place.
    pub fn bounced_by(&self, place: InstructionPlace) -> Option<BlockId> {
        let block = self.block(place.block)?;
        let link_address = block.relocation(place.code_slide).link_address(place.rip);
        let noted = block
            .noted()
            .iter()
            .find(|noted| noted.rip == link_address)?;
        let (by, generation) = noted.bounced_by?;
        let holds = generation == self.generation && self.block(by)?.rip() == place.rip;
        holds.then_some(by)
    }

    /// Notes which block runs an instruction on the bounce buffer; the instruction has been
    /// executed out of line before.
    pub fn note_bounced(&mut self, place: InstructionPlace, by: BlockId) {
        let generation = self.generation;
        let Some(block) = self.blocks.get_mut(place.block) else {
            return;
        };
        let link_address = block.relocation(place.code_slide).link_address(place.rip);
        let noted = block
            .noted_mut()
            .iter_mut()
            .find(|noted| noted.rip == link_address);
        if let Some(noted) = noted {
            noted.bounced_by = Some((by, generation));
        }
    }
}
