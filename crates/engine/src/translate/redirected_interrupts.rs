//! INT n of V86 code that CR4.VME redirects to the program's own vector table.
//!
//! The bit of the vector in the TSS's redirection bitmap, and then the vector, are read with the
//! rights of the supervisor, in the supervisor's view of the software TLB. The bitmap is read each
//! time, since writes to it are not noticed. The TSS's base and limit change only with the
//! monitor's knowledge; the monitor stores them in the context.
//!
//! ```text
//! ...                       ; image of the flags, kept in the context
//! mov  r8, [r15+limit]      ; is there a bitmap?
//! mov  r8, [r15+base]
//! ...                       ; look-up of the TSS's word 66h
//! mov  r11w, [r9]           ; offset of the I/O bitmap; the vector's byte: inside the TSS?
//! ...                       ; look-up of the vector's byte: the bit clear?
//! ...                       ; look-up of the vector
//! mov  r11d, [r9]           ; CS and IP
//! ...                       ; frame and branch as in real mode
//! ```

use super::Translator;
use super::far::FAR_POINTER;
use crate::abi::context_displacements as at;
use crate::abi::descriptors::BITMAP_OFFSET;
use crate::abi::flags::InterruptFlag;
use crate::abi::host::*;
use crate::abi::sites::SiteKind;
use crate::abi::state_map::Restore;
use crate::emit::assembler::{Mem, Width};
use crate::emit::look_up::OddSegment;
use iced_x86::Instruction;
use tollgate_x86::SegmentRegister;

/// Size in bytes of the redirection bitmap, which lies below the I/O permission bitmap.
const REDIRECTION_BITMAP_SIZE: i32 = 32;

impl Translator {
    /// Translates INT n of V86 mode with CR4.VME: methods 5 and 6 of table 20-2 (SDM volume 3), if
    /// the vector's bit is clear. The monitor executes the instruction otherwise.
    pub(super) fn redirected_interrupt(
        &mut self,
        instruction: &Instruction,
    ) -> Result<(), OddSegment> {
        let flag = self.emit.mode.interrupt_flag().ok_or(OddSegment)?;
        let vector = i32::from(instruction.immediate8());
        let kind = self.emit.helper_kind(instruction);
        let SiteKind::Helper(helper) = kind else {
            return Err(OddSegment);
        };
        self.flags_image(flag);
        self.keep(R11, 0);
        if flag == InterruptFlag::Real {
            let disabled = self.emit.field(at::WORK[1]);
            self.emit.assembler.store_imm(Width::Qword, disabled, 0);
        }
        self.demand_redirection(kind, helper, vector);
        self.emit.assembler.mov_imm32(R8, 4 * vector as u32);
        self.emit.look_up_system(4, helper);
        self.emit
            .assembler
            .load(Width::Dword, FAR_POINTER, Mem::base(R9, 0));
        self.emit.stack_frame(-6, 6, true)?;
        let target = Restore::NONE.with_segment(SegmentRegister::Cs, FAR_POINTER);
        self.store_frame(Width::Word, flag, target);
        self.far_jump();
        Ok(())
    }

    /// Emits an exit that is taken unless the TSS contains the redirection bitmap and the vector's
    /// bit in it is clear.
    fn demand_redirection(&mut self, kind: SiteKind, helper: u16, vector: i32) {
        let (base, limit) = (
            self.emit.field(at::TASK_BASE),
            self.emit.field(at::TASK_LIMIT),
        );
        self.emit.assembler.load(Width::Qword, R8, limit);
        self.emit.leave_if_zero(kind, Mem::base(R8, 0));
        self.emit.assembler.load(Width::Qword, R8, base);
        self.emit.assembler.lea32(R8, Mem::base(R8, BITMAP_OFFSET));
        self.emit.look_up_system(2, helper);
        self.emit.assembler.load(Width::Word, R11, Mem::base(R9, 0));
        self.emit.make_room();
        // Neither the byte's offset nor the difference between the limit and the offset is
        // negative, so their upper halves are zero.
        let offset = vector / 8 - REDIRECTION_BITMAP_SIZE;
        self.emit.assembler.lea64(R8, Mem::base(R11, offset));
        self.emit.assembler.mov(R9, R8);
        self.emit.assembler.not(R9);
        self.emit.assembler.load(Width::Qword, RCX, limit);
        self.emit.assembler.lea64(R9, Mem::indexed(R9, RCX, 1, 1));
        self.emit.assembler.rorx(R9, R9, 32);
        self.emit.assembler.mov32(R9, R9);
        self.emit.assembler.rorx(RCX, R8, 32);
        self.emit.assembler.mov32(RCX, RCX);
        self.emit.assembler.lea64(R9, Mem::indexed(R9, RCX, 1, 0));
        self.emit.leave_unless_zero(kind, Mem::base(R9, 0));
        self.emit.assembler.load(Width::Qword, R9, base);
        self.emit.assembler.lea32(R8, Mem::indexed(R8, R9, 1, 0));
        self.emit.look_up_system(1, helper);
        self.emit.assembler.load(Width::Byte, R11, Mem::base(R9, 0));
        self.emit.assembler.mov_imm32(R9, 1 << (vector % 8));
        self.emit.assembler.pext(R8, R11, R9);
        self.emit.leave_unless_zero(kind, Mem::base(R8, 0));
    }
}
