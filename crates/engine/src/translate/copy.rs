//! Copies of instructions that run as they are, except for the places of their operands.

use super::{Flow, Translator, verbatim};
use crate::abi::host::*;
use crate::abi::immediate::Immediate;
use crate::abi::register_map::{ACCUMULATOR, Home};
use crate::abi::sites::SiteKind;
use crate::emit::assembler::{Mem, Width};
use crate::emit::effective_address::Offset;
use crate::emit::guest_operand_form::Reach;
use crate::emit::named_operands::{Named, guest_number};
use crate::policy::memory_operand::memory_use;
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};
use tollgate_x86::{SegmentRegister, Vector};

pub(super) fn uses_stack_pointer_register(instruction: &Instruction) -> bool {
    (0..instruction.op_count()).any(|index| {
        instruction.op_kind(index) == OpKind::Register
            && matches!(
                instruction.op_register(index),
                Register::RSP | Register::ESP | Register::SP | Register::SPL
            )
    })
}

/// An equivalent encoding that exists in 64-bit mode.
fn portable_code(code: Code) -> Code {
    match code {
        Code::Inc_r16 => Code::Inc_rm16,
        Code::Inc_r32 => Code::Inc_rm32,
        Code::Dec_r16 => Code::Dec_rm16,
        Code::Dec_r32 => Code::Dec_rm32,
        Code::Add_rm8_imm8_82 => Code::Add_rm8_imm8,
        Code::Or_rm8_imm8_82 => Code::Or_rm8_imm8,
        Code::Adc_rm8_imm8_82 => Code::Adc_rm8_imm8,
        Code::Sbb_rm8_imm8_82 => Code::Sbb_rm8_imm8,
        Code::And_rm8_imm8_82 => Code::And_rm8_imm8,
        Code::Sub_rm8_imm8_82 => Code::Sub_rm8_imm8,
        Code::Xor_rm8_imm8_82 => Code::Xor_rm8_imm8,
        Code::Cmp_rm8_imm8_82 => Code::Cmp_rm8_imm8,
        other => other,
    }
}

/// The instruction as the host runs it, with its memory operand where `reach` says. Its registers
/// are still the guest's.
pub(super) fn general_copy(instruction: &Instruction, reach: Option<Reach>) -> Instruction {
    let mut copy = *instruction;
    copy.set_code(portable_code(instruction.code()));
    copy.set_has_rep_prefix(false);
    copy.set_has_repne_prefix(false);
    copy.set_segment_prefix(Register::None);
    // While guest code runs, no other thread touches guest RAM, and a signal arrives between two
    // host instructions. So each instruction is atomic without LOCK.
    copy.set_has_lock_prefix(false);
    if let Some(reach) = reach {
        let (base, index, displacement) = reach.operand();
        copy.set_memory_base(base);
        copy.set_memory_index(index);
        copy.set_memory_index_scale(1);
        copy.set_memory_displacement64(i64::from(displacement) as u64);
        copy.set_memory_displ_size(u32::from(displacement != 0));
        if reach.is_by_gs() {
            copy.set_segment_prefix(Register::GS);
        }
    }
    copy
}

impl Translator {
    /// Copies an instruction with its operands rewritten.
    pub(super) fn copy(&mut self, instruction: &Instruction) -> Flow {
        if let Some(flow) = self.moffs(instruction) {
            return flow;
        }
        let named = Named::of(instruction);
        if named.stack_pointer() {
            self.emit.flush_esp_first();
            self.emit
                .move_stack_window(self.stack_pointer_change(instruction));
        }
        let decoding = self.features.decoding();
        let memory = if named.memory {
            let info = &mut self.emit.info;
            self.known.memory_use(instruction, decoding, || {
                memory_use(info, instruction, decoding)
            })
        } else {
            None
        };
        let mut reach = None;
        if let Some(memory) = memory {
            let (size, write) = (memory.size, memory.write);
            let Ok(found) = self.emit.reach_memory_operand(instruction, size, write) else {
                return self.slow();
            };
            reach = Some(self.emit.reach_for(instruction, found));
        }
        let uses_slots = named.registers & self.emit.slot_mask != 0;
        if uses_slots && self.emit.is_64_bit() && self.emit.constant_to_slot(instruction) {
            return Flow::Next;
        }
        let with_slot = match memory {
            None => self.emit.with_slot(instruction, &named),
            Some(_) => None,
        };
        if with_slot.is_none()
            && self.emit.is_at_home(instruction, &named)
            && let raw = &self.raw[..instruction.len().min(self.raw.len())]
            && let bits = self.emit.mode.bitness()
            && let Some(copied) = verbatim::copy_of(instruction, &named, raw, bits, reach)
        {
            // Here too an island of jumps may have to go in, as before instructions whose operands are
            // moved to host registers first.
            if self.emit.slot_mask != 0 {
                self.emit.make_room();
            }
            self.emit.assembler.raw(copied.bytes());
            self.note_immediate(instruction);
            return Flow::Next;
        }
        let named = with_slot.as_ref().map_or(named, Named::of);
        let instruction = with_slot.as_ref().unwrap_or(instruction);
        let Some(placement) = self.emit.place(instruction, &named, reach) else {
            return self.no_encoding();
        };
        self.emit.bring_operands(&placement);
        let mut copy = general_copy(instruction, reach);
        self.emit.rename_operands(&placement, &mut copy);
        if self.emit.assembler.instruction(&copy).is_err() {
            self.emit.abandon_operands(&placement);
            return self.no_encoding();
        }
        self.note_immediate(instruction);
        self.emit.take_operands_home(&placement);
        Flow::Next
    }

    /// The number that an instruction which names the stack pointer adds to it; `None` if the
    /// number is not known.
    fn stack_pointer_change(&self, instruction: &Instruction) -> Option<i32> {
        let stack = match self.emit.is_64_bit() {
            true => Register::RSP,
            false => Register::ESP,
        };
        let has_constant = || match instruction.op1_kind() {
            OpKind::Immediate8to32
            | OpKind::Immediate8to64
            | OpKind::Immediate32
            | OpKind::Immediate32to64 => i32::try_from(instruction.immediate(1) as i64).ok(),
            _ => None,
        };
        match instruction.mnemonic() {
            Mnemonic::Add if instruction.op0_register() == stack => has_constant(),
            Mnemonic::Sub if instruction.op0_register() == stack => has_constant()?.checked_neg(),
            Mnemonic::Mov if guest_number(instruction.op0_register()) != Some(4) => Some(0),
            Mnemonic::Cmp | Mnemonic::Test => Some(0),
            _ => None,
        }
    }

    /// Lists the immediate operand of the instruction that was just copied, if the copy would be
    /// the same with any other immediate. The immediate is at the end of the instruction in both
    /// codes.
    fn note_immediate(&mut self, instruction: &Instruction) {
        use Mnemonic::*;
        let replaceable = match instruction.mnemonic() {
            // The distance of a shared look-up from its register is computed from such operands,
            // and so is the distance from a checked address.
            Add | Sub if self.moves_window(instruction) => false,
            Mov | Add | Adc | Sub | Sbb | Xor | Cmp | Test | Imul => true,
            // With some operands iced-x86 says that these instructions do not read their
            // destination.
            And | Or => {
                let last = instruction.op_count().saturating_sub(1);
                instruction.op_kind(last) != OpKind::Register
                    && !matches!(instruction.immediate8to32(), 0 | -1)
                    && !matches!(instruction.immediate32(), 0 | u32::MAX)
                    && !matches!(instruction.immediate16(), 0 | u16::MAX)
                    && !matches!(instruction.immediate8(), 0 | u8::MAX)
            }
            _ => false,
        };
        let last = instruction.op_count().saturating_sub(1);
        let size = match instruction.op_kind(last) {
            OpKind::Immediate8 | OpKind::Immediate8to16 | OpKind::Immediate8to32 => 1,
            OpKind::Immediate16 => 2,
            OpKind::Immediate32 => 4,
            _ => return,
        };
        if replaceable {
            self.emit.add_immediate(Immediate {
                guest: (self.position + instruction.len() - size) as u16,
                size: size as u8,
                host: (self.emit.assembler.position() - size) as u32,
            });
        }
    }

    /// Whether the active shared look-up is near the register that the instruction changes, or that
    /// register is known to hold an address near one that was checked.
    fn moves_window(&self, instruction: &Instruction) -> bool {
        let changed = guest_number(instruction.op0_register());
        changed.is_some_and(|changed| {
            self.emit.has_window_near(changed) || self.emit.is_checked(changed)
        })
    }

    /// Every instruction on the allow-list has a 64-bit form. If one without it turned up, the
    /// guest would see #UD rather than something half right.
    fn no_encoding(&mut self) -> Flow {
        self.emit.put_held_back();
        self.emit.exit(SiteKind::Fault(Vector::InvalidOpcode));
        Flow::End
    }

    /// Copies one instruction, whose memory operand is the bounce buffer.
    pub(super) fn copy_bounced(&mut self, instruction: &Instruction) -> Flow {
        use crate::policy::allow_list::{Treatment, treatment};
        match treatment(instruction, &self.emit.mode, &self.features) {
            Treatment::Copy => self.copy(instruction),
            Treatment::CopyVector => {
                self.emit.require_vectors();
                let flow = self.copy(instruction);
                if flow == Flow::Next {
                    // The noted operand address is that of the bounce buffer. The monitor, which
                    // filled the buffer, replaces it by the guest's address.
                    self.note_x87(instruction);
                }
                flow
            }
            _ => {
                self.emit.exit(SiteKind::Slow);
                Flow::End
            }
        }
    }

    /// `mov al/ax/eax, [offset]` and the reverse move, whose encoding means something else in
    /// 64-bit mode.
    fn moffs(&mut self, instruction: &Instruction) -> Option<Flow> {
        let (width, store) = match instruction.code() {
            Code::Mov_AL_moffs8 => (Width::Byte, false),
            Code::Mov_AX_moffs16 => (Width::Word, false),
            Code::Mov_EAX_moffs32 => (Width::Dword, false),
            Code::Mov_RAX_moffs64 => (Width::Qword, false),
            Code::Mov_moffs8_AL => (Width::Byte, true),
            Code::Mov_moffs16_AX => (Width::Word, true),
            Code::Mov_moffs32_EAX => (Width::Dword, true),
            Code::Mov_moffs64_RAX => (Width::Qword, true),
            _ => return None,
        };
        let reach = self
            .emit
            .reach_memory_operand(instruction, width.bytes(), store);
        let Ok(reach) = reach else {
            return Some(self.slow());
        };
        let operand = reach.mem();
        match (store, width) {
            (true, _) => self.emit.assembler.store(width, operand, ACCUMULATOR),
            (false, Width::Byte) => self.emit.assembler.load8_keep(ACCUMULATOR, operand),
            (false, Width::Word) => self.emit.assembler.load16_keep(ACCUMULATOR, operand),
            (false, _) => self.emit.assembler.load(width, ACCUMULATOR, operand),
        }
        Some(Flow::Next)
    }

    /// LEA accesses no memory: only the address computation is rewritten.
    pub(super) fn lea(&mut self, instruction: &Instruction) -> Flow {
        if instruction.op1_kind() != OpKind::Memory {
            self.emit.exit(SiteKind::Fault(Vector::InvalidOpcode));
            return Flow::End;
        }
        let register = instruction.op0_register();
        if register.full_register32() == Register::ESP {
            // The folded adjustment would otherwise still apply to the result.
            self.emit.flush_esp_first();
            let size = if self.emit.is_64_bit() { 8 } else { 4 };
            let is_sum = register == instruction.memory_base()
                && register.size() == size
                && instruction.memory_index() == Register::None;
            let change = is_sum.then_some(instruction.memory_displacement64() as i32);
            self.emit.move_stack_window(change);
        }
        if self.emit.is_64_bit() {
            return self.long_lea(instruction, register);
        }
        self.emit.effective_address(instruction);
        let width = if register.size() == 2 {
            Width::Word
        } else {
            Width::Dword
        };
        self.emit.set_register(register, R8, width);
        Flow::Next
    }

    fn long_lea(&mut self, instruction: &Instruction, register: Register) -> Flow {
        let width = match register.size() {
            2 => Width::Word,
            4 => Width::Dword,
            _ => Width::Qword,
        };
        let guest = guest_number(register).unwrap_or(0);
        if self.emit.lea_to_holder(instruction, guest, width) {
            return Flow::Next;
        }
        // The upper half is cleared for a doubleword, whether the register lives in a host register
        // or in a slot.
        let (computed, stored) = match width {
            Width::Word => (Width::Qword, Width::Word),
            _ => (width, Width::Qword),
        };
        match self.emit.map.home(guest) {
            Home::Host(home) if width != Width::Word => {
                self.emit
                    .long_effective_address(instruction, home, computed);
            }
            Home::Host(home) => {
                self.emit.long_effective_address(instruction, R8, computed);
                self.emit.assembler.mov16(home, R8);
            }
            Home::Slot => {
                self.emit.long_effective_address(instruction, R8, computed);
                self.emit.assembler.store(stored, self.emit.slot(guest), R8);
            }
        }
        Flow::Next
    }

    /// XLAT loads AL from [EBX + AL].
    pub(super) fn xlat(&mut self, instruction: &Instruction) -> Flow {
        let segment = match instruction.segment_prefix() {
            Register::ES => SegmentRegister::Es,
            Register::CS => SegmentRegister::Cs,
            Register::SS => SegmentRegister::Ss,
            Register::FS => SegmentRegister::Fs,
            Register::GS => SegmentRegister::Gs,
            _ => SegmentRegister::Ds,
        };
        let table = self.emit.value(Register::EBX, R9);
        self.emit.assembler.movzx8(R8, ACCUMULATOR);
        let address = Mem::indexed(R8, table, 1, 0);
        if instruction.memory_base() == Register::RBX {
            self.emit.assembler.lea64(R8, address);
        } else {
            self.emit.assembler.lea32(R8, address);
        }
        let mut offset = Offset::Wide;
        if instruction.memory_base() == Register::BX {
            self.emit.assembler.movzx16(R8, R8);
            offset = Offset::Word;
        }
        if self.emit.access_sum(segment, offset, 1, false).is_err() {
            return self.slow();
        }
        self.emit
            .assembler
            .load8_keep(ACCUMULATOR, Reach::Sum.mem());
        Flow::Next
    }
}
