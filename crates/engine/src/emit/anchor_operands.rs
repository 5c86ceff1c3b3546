//! Operands of programs in common parts, which the [anchor] of the address space reaches.
//!
//! The host's GS base is the anchor. A register that holds an address is checked once, by a load
//! that faults if the address is not in a common part. From then on the block knows the result, as
//! long as the register changes by constants only ([`Checked`]):
//!
//! ```text
//! mov rax,[rbx+8]         sarx  rcx, rbx, r15              ; the page
//!                         movzx ecx, byte [rcx+7FFFF000h]  ; faults unless its part is common
//!                         mov   rax, gs:[rbx+8]
//! mov [rbx+16],rax        mov   gs:[rbx+16], rax
//! ```
//!
//! An instruction whose address turns out to be in another part uses the distance of that part from
//! then on ([`super::direct`]).
//!
//! That a register was checked is known only to the code that follows the check. An exit that
//! returns to the place after its instruction may have skipped the check, so a check in such an
//! instruction counts for this instruction only.
//!
//! [anchor]: tollgate_tlb::shadow_windows::anchors

use super::emitter::Emitter;
use super::emitter::checked::CODE_SLIDE;
use super::emitter::look_up_form::LookUpForm;
use super::guest_operand_form::Reach;
use super::guest_operand_form::is_near;
use super::named_operands::is_x87;
use super::named_operands::{near_register, segment_of};
use crate::abi::host::*;
use crate::abi::register_map::Home;
use crate::emit::assembler::{Mem, Width};
use crate::policy::access::Access;
use crate::policy::mode::SegmentClass;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use tollgate_tlb::shadow_windows::BESIDE_WINDOW;
use tollgate_tlb::shadow_windows::anchors::CHECK_DISPLACEMENT;
use tollgate_x86::Gpr;

/// Number of the stack pointer.
const STACK: u8 = Gpr::Rsp as u8;
impl Emitter {
    /// Lets the next instruction reach its operand through the anchor if `uses` is set and the mode
    /// permits it.
    pub(crate) fn use_anchor(&mut self, uses: bool) {
        let is_direct = self.look_up == LookUpForm::Direct;
        self.is_anchored = uses && is_direct && self.mode.access == Access::Anchored;
    }

    /// Notes that an instruction begins.
    pub(super) fn begin_checks(&mut self) {
        self.checked.new = 0;
    }

    /// Notes that an instruction ends. If the monitor may continue after it (`returns_behind`),
    /// what the instruction checked is forgotten.
    pub(super) fn end_checks(&mut self, returns_behind: bool) {
        if returns_behind {
            let new = self.checked.new;
            self.checked.forget(new);
        }
    }

    /// Forgets what is known of registers.
    pub(crate) fn forget_checks(&mut self) {
        self.checked.known = 0;
    }

    /// Whether any register is known to be checked.
    pub(crate) fn has_checks(&self) -> bool {
        self.checked.known != 0
    }

    /// Whether a guest register is known to be checked.
    pub(crate) fn is_checked(&self, guest: u8) -> bool {
        self.checked.distance(guest).is_some()
    }

    /// Notes that the value in the stack pointer's home changes by `change`.
    pub(super) fn shift_stack_check(&mut self, change: i32) {
        self.checked.shift(STACK, change);
    }

    /// Notes what an instruction does to registers. `changed` is the set of registers that it may
    /// change; `None` stands for any registers. `change` is the constant that it adds to one
    /// register.
    pub(crate) fn follow_checks(
        &mut self,
        instruction: &Instruction,
        changed: Option<u16>,
        change: Option<(u8, i32)>,
    ) {
        let Some(changed) = changed else {
            return self.forget_checks();
        };
        if changed == 0 {
            return;
        }
        let lives_in_register = |guest: u8| matches!(self.map.home(guest), Home::Host(_));
        if let Some((guest, change)) = change
            && lives_in_register(guest)
        {
            return self.checked.shift(guest, change);
        }
        if let Some((to, from)) = moved(instruction)
            && lives_in_register(to)
            && lives_in_register(from)
            && self.is_checked(from)
        {
            return self.checked.copy(to, from);
        }
        self.checked.forget(changed.into());
    }

    /// Reaches the operand at `displacement` from the value of the host register `base` through the
    /// anchor. The host register is the home of `holder` or was loaded from there.
    fn reach_checked(&mut self, holder: Option<u8>, base: Host, displacement: i32) -> Reach {
        let known = holder.and_then(|holder| self.checked.distance(holder));
        let is_known = known.is_some_and(|distance| {
            let sum = i64::from(distance) + i64::from(displacement);
            sum.unsigned_abs() < BESIDE_WINDOW
        });
        if !is_known {
            self.make_room();
            self.assembler.sarx(RCX, base, self.map.context);
            let check = Mem::base(RCX, CHECK_DISPLACEMENT);
            self.assembler.load(Width::Byte, RCX, check);
            holder.into_iter().for_each(|it| self.checked.add(it));
        }
        Reach::Anchored { base, displacement }
    }

    /// Reaches the operand at this distance from the stack pointer's home through the anchor.
    pub(super) fn reach_stack_anchored(&mut self, displacement: i32) -> Reach {
        self.reach_checked(Some(STACK), self.map.stack(), displacement)
    }

    /// Reaches the instruction's memory operand through the anchor. `None` if it must be reached in
    /// another way.
    pub(super) fn reach_operand_anchored(
        &mut self,
        instruction: &Instruction,
        write: bool,
    ) -> Option<Reach> {
        let displacement = instruction.memory_displacement64() as i64;
        let (base, index) = (instruction.memory_base(), instruction.memory_index());
        let segment = segment_of(instruction.memory_segment());
        // The notes of x87 instructions take the operand's address from R8.
        let is_x87 = is_x87(instruction);
        match self.mode.segment(segment, write) {
            SegmentClass::Flat if base == Register::RIP && self.relocates && !is_x87 => {
                let link = self.load_code_slide(displacement)?;
                Some(self.reach_checked(Some(CODE_SLIDE), R8, link))
            }
            SegmentClass::Flat
                if index == Register::None && matches!(base, Register::RIP | Register::None) =>
            {
                None
            }
            SegmentClass::Flat => {
                if let Some((guest, displacement)) = near_register(instruction, true)
                    && !is_x87
                    && is_near(displacement.into())
                {
                    if guest == STACK {
                        let displacement = self.esp.checked_add(displacement)?;
                        return Some(self.reach_stack_anchored(displacement));
                    }
                    let base = self.value(base, R8);
                    return Some(self.reach_checked(Some(guest), base, displacement));
                }
                self.effective_address(instruction);
                Some(self.reach_checked(None, R8, 0))
            }
            SegmentClass::Based
                if index == Register::None
                    && !is_x87
                    && (base == Register::None || base.is_gpr64())
                    && base != Register::RSP
                    && is_near(displacement) =>
            {
                self.add_to_segment_base(segment, base);
                Some(self.reach_checked(None, R8, displacement as i32))
            }
            _ => None,
        }
    }

    /// Reaches the same operand by the distance of its part, for code that needs the whole host
    /// address. R8 gets the linear address.
    pub(super) fn leave_anchor(&mut self, base: Host, displacement: i32) -> Reach {
        if base != R8 || displacement != 0 {
            self.assembler.lea64(R8, Mem::base(base, displacement));
        }
        self.load_window_delta(RCX, R8);
        Reach::Sum
    }
}

/// The registers, target and source, of a 64-bit move between two registers other than the stack
/// pointer.
fn moved(instruction: &Instruction) -> Option<(u8, u8)> {
    let is_register = |index| {
        let register = instruction.op_register(index);
        instruction.op_kind(index) == OpKind::Register
            && register.is_gpr64()
            && register != Register::RSP
    };
    let is_move = instruction.mnemonic() == Mnemonic::Mov && is_register(0) && is_register(1);
    let number = |index| instruction.op_register(index).number() as u8;
    is_move.then(|| (number(0), number(1)))
}
