//! BT, BTS, BTR and BTC of a bit string in memory, whose bit number is in a register and may have
//! any value (SDM volume 1, 3.1.1.9 "Bit(BitBase, BitOffset)").
//!
//! The bit number says which operand, before or after the address, contains the bit. That operand
//! is looked up. The bit is then tested in a copy of the operand in a register, by the form of the
//! instruction for registers, which takes the number modulo the operand's size. `bts [rbx],rax`:
//!
//! ```text
//! mov  r8, rbx
//! mov  ecx, 6
//! sarx r9, rax, rcx        ; which operand
//! lea  r8, [r8+r9*8]
//! ...                      ; look-up of 8 bytes for a store: host address in r9
//! mov  r8, [r9]
//! bts  r8, rax             ; CF
//! mov  [r9], r8
//! ```
//!
//! With BTS the flag changes before the store. There is no boundary between the two: a request to
//! leave guest code lets both run. The look-up has verified that the store is allowed. Code that
//! reaches its other operands directly looks this operand up too, because its load comes first but
//! must fault as a store.

use super::copy::uses_stack_pointer_register;
use super::{Flow, Translator};
use crate::abi::host::*;
use crate::abi::state_map::Restore;
use crate::emit::assembler::{Mem, Width};
use crate::emit::effective_address::Offset;
use crate::emit::look_up::OddSegment;
use crate::emit::named_operands::name_of;
use crate::emit::named_operands::segment_of;
use crate::policy::mode::SegmentClass;
use iced_x86::{Code, Instruction, Mnemonic, OpKind, Register};

/// Whether the instruction works on a bit string in memory with the bit number in a register.
pub(super) fn is_bit_string(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory && instruction.op1_kind() == OpKind::Register
}

/// The form of the instruction for two registers.
fn register_form(mnemonic: Mnemonic, width: Width) -> Code {
    use Mnemonic::{Btc, Btr, Bts};
    match (mnemonic, width) {
        (Bts, Width::Qword) => Code::Bts_rm64_r64,
        (Bts, Width::Dword) => Code::Bts_rm32_r32,
        (Bts, _) => Code::Bts_rm16_r16,
        (Btr, Width::Qword) => Code::Btr_rm64_r64,
        (Btr, Width::Dword) => Code::Btr_rm32_r32,
        (Btr, _) => Code::Btr_rm16_r16,
        (Btc, Width::Qword) => Code::Btc_rm64_r64,
        (Btc, Width::Dword) => Code::Btc_rm32_r32,
        (Btc, _) => Code::Btc_rm16_r16,
        (_, Width::Qword) => Code::Bt_rm64_r64,
        (_, Width::Dword) => Code::Bt_rm32_r32,
        _ => Code::Bt_rm16_r16,
    }
}

impl Translator {
    /// Translates an instruction on a bit string. The monitor executes the instruction if the
    /// string is in an unusual segment, or if the address is not of the code's size and could wrap.
    pub(super) fn bit_string(&mut self, instruction: &Instruction) -> Flow {
        match self.looked_up_bit(instruction) {
            Ok(()) => Flow::Next,
            Err(OddSegment) => self.helper(instruction),
        }
    }

    fn looked_up_bit(&mut self, instruction: &Instruction) -> Result<(), OddSegment> {
        let number = instruction.op1_register();
        let (width, bits, log) = match number.size() {
            2 => (Width::Word, 16, 4),
            4 => (Width::Dword, 32, 5),
            _ => (Width::Qword, 64, 6),
        };
        let changes = instruction.mnemonic() != Mnemonic::Bt;
        let segment = segment_of(instruction.memory_segment());
        let size = match (instruction.memory_base(), instruction.memory_index()) {
            (Register::None, Register::None) => instruction.memory_displ_size() as usize,
            (Register::None, index) => index.size(),
            (base, _) => base.size(),
        };
        let is_own_size = size == if self.emit.is_64_bit() { 8 } else { 4 };
        if self.emit.mode.segment(segment, changes) == SegmentClass::Odd || !is_own_size {
            return Err(OddSegment);
        }
        if uses_stack_pointer_register(instruction) {
            self.emit.flush_esp_first();
        }
        self.emit.effective_address(instruction);
        let number_in = self.emit.value(number, R11);
        let assembler = &mut self.emit.assembler;
        let signed = match width {
            Width::Qword => number_in,
            // The significant bits of the number are moved to the upper end.
            _ => {
                assembler.rorx(R9, number_in, bits);
                R9
            }
        };
        assembler.mov_imm32(RCX, u32::from(64 - bits + log));
        assembler.sarx(R9, signed, RCX);
        let operand = Mem::indexed(R8, R9, width.bytes() as u8, 0);
        match self.emit.is_64_bit() {
            true => self.emit.assembler.lea64(R8, operand),
            false => self.emit.assembler.lea32(R8, operand),
        }
        self.emit
            .access(segment, Offset::Wide, width.bytes(), changes)?;
        self.emit.make_room();
        let assembler = &mut self.emit.assembler;
        assembler.load(width, R8, Mem::base(R9, 0));
        let code = register_form(instruction.mnemonic(), width);
        let named = |host| name_of(host, number);
        let test = Instruction::with2(code, named(R8), named(number_in)).map_err(|_| OddSegment)?;
        assembler.instruction(&test).map_err(|_| OddSegment)?;
        if changes {
            self.emit.note_state(Restore::UNDIVIDED);
            let operand = Mem::base(R9, 0);
            self.emit.assembler.store(width, operand, R8);
        }
        Ok(())
    }
}
