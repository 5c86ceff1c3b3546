//! Where relocatable code runs: the distance from its link addresses to the guest's addresses.
//!
//! A relocatable block is translated once, wherever the guest maps its page. The block's tables and
//! code name *link addresses* which the engine has chosen (see
//! [`crate::blocks::link_pages`]). While such code runs,
//! [`KeptRegisters::code_slide`](crate::abi::context::groups::KeptRegisters::code_slide) holds the
//! *slide*: the distance from the link address to the address at which the guest runs the code.
//!
//! Everything that is read from a block's tables passes through [`Relocation`] before it has a
//! meaning for the guest: the instruction pointers of state maps and sites, and the instructions
//! that the monitor executes.

use iced_x86::{Instruction, OpKind};

/// Turns link addresses, which a block's tables contain, into the guest's addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Relocation {
    slide: u64,
    /// The bits that an instruction pointer has.
    mask: u64,
}

impl Relocation {
    /// The relocation of a block whose tables contain the guest's addresses.
    pub const NONE: Self = Self {
        slide: 0,
        mask: u64::MAX,
    };

    /// The relocation of a relocatable block with this slide. Instruction pointers have the bits in
    /// `mask`: 64, or 32 outside 64-bit code.
    pub const fn new(slide: u64, mask: u64) -> Self {
        Self { slide, mask }
    }

    /// The guest's instruction pointer for a link address.
    pub const fn rip(self, link_address: u64) -> u64 {
        link_address.wrapping_add(self.slide) & self.mask
    }

    /// The link address for a guest's instruction pointer.
    pub const fn link_address(self, rip: u64) -> u64 {
        rip.wrapping_sub(self.slide) & self.mask
    }

    /// An instruction at the guest's address, from the instruction that was decoded at its link
    /// address: everything that depends on the address is adjusted.
    pub fn instruction(self, link_address: &Instruction) -> Instruction {
        let mut instruction = *link_address;
        if self == Self::NONE {
            return instruction;
        }
        instruction.set_ip(self.rip(link_address.ip()));
        match link_address.op0_kind() {
            OpKind::NearBranch32 => {
                instruction.set_near_branch32(self.rip(link_address.near_branch64()) as u32);
            }
            OpKind::NearBranch64 => {
                instruction.set_near_branch64(self.rip(link_address.near_branch64()))
            }
            _ => {}
        }
        if link_address.is_ip_rel_memory_operand() {
            let target = link_address
                .ip_rel_memory_address()
                .wrapping_add(self.slide);
            // An address relative to EIP has 32 bits.
            let mask = match link_address.memory_base() {
                iced_x86::Register::EIP => 0xffff_ffff,
                _ => u64::MAX,
            };
            instruction.set_memory_displacement64(target & mask);
        }
        instruction
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    const HOME: u64 = 0x2345_6789;

    fn decoded(bits: u32, bytes: &[u8], rip: u64) -> Instruction {
        Decoder::with_ip(bits, bytes, rip, DecoderOptions::NONE).decode()
    }

    /// Everything that the decoder knows of an instruction, including its address.
    fn text(instruction: &Instruction) -> String {
        format!(
            "{:x} {:x} {:x} {:x} {instruction}",
            instruction.ip(),
            instruction.next_ip(),
            instruction.near_branch_target(),
            instruction.memory_displacement64(),
        )
    }

    #[test]
    fn an_instruction_is_relocated_to_what_decoding_it_there_gives() {
        let long: &[&[u8]] = &[
            &[0x8b, 0x05, 0x80, 0xff, 0xff, 0xff], // mov eax,[rip-80h]
            &[0x67, 0x8b, 0x05, 0x80, 0xff, 0xff, 0x7f], // mov eax,[eip+7fffff80h]
            &[0xe8, 0x00, 0x00, 0x00, 0x80],       // call back by 2 GiB
            &[0x74, 0x7f],                         // je
            &[0xe2, 0x80],                         // loop
            &[0xff, 0x15, 0x00, 0x00, 0x00, 0x40], // call [rip+40000000h]
            &[0xf3, 0xa4],                         // rep movsb
        ];
        for rip in [0x7f12_3456_789a, 0x8000_0000] {
            for bytes in long {
                let link_address = decoded(64, bytes, HOME);
                let moved = Relocation::new(rip - HOME, u64::MAX).instruction(&link_address);
                assert_eq!(text(&moved), text(&decoded(64, bytes, rip)));
            }
        }
        let narrow: &[&[u8]] = &[
            &[0xe8, 0x00, 0x00, 0x00, 0x80],
            &[0x75, 0x80],
            &[0x8b, 0x05, 0x80, 0xff, 0xff, 0xff], // mov eax,[ffffff80h]
        ];
        for rip in [0x1234_5678_u64, 0xf765_4321] {
            for bytes in narrow {
                let link_address = decoded(32, bytes, HOME);
                let slide = rip.wrapping_sub(HOME);
                let moved = Relocation::new(slide, 0xffff_ffff).instruction(&link_address);
                assert_eq!(text(&moved), text(&decoded(32, bytes, rip)));
            }
        }
    }
}
