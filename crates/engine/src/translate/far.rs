//! Far CALL, JMP and RET of real and V86 mode. In flat code of protected mode and in 64-bit code,
//! fast paths execute them ([`crate::gate::far_fast_path`]).
//!
//! In real and V86 mode a far transfer loads CS with only a selector and a base (SDM volume 3,
//! 21.1.1). The base is part of the mode word, so the target is code of another mode, but of the
//! same family. A target that the instruction names is linked through a slot, as any target in
//! another page is. Other targets are looked up in a table by selector and IP:
//!
//! ```text
//! call far [bx]
//! mov   r11d, [r9]               ; selector and IP as they lie in memory
//! ...                            ; look-up of the stack: R11 survives
//! mov   [r9], r8d                ; CS and IP of the next instruction: the call is complete
//! shrx  r9, r11, r15             ; entry: linear address of the target, nearly
//! lea   r9d, [r9+r11]
//! movzx r9d, r9w
//! lea   r9, [r9+r9]
//! mov   r8, family               ; the tag is compared as that of indirect branches
//! mov   rcx, [r13+r9*8+far]
//! lea   rcx, [rcx+r11]
//! lea   rcx, [rcx+r8]
//! jrcxz hit
//! ...                            ; exit with R11
//! hit:
//! ...                            ; CS's selector and base into the context
//! jmp   [r13+r9*8+far+8]
//! ```
//!
//! When R11 holds the target and the instruction has done everything else, the state map says that
//! the instruction is complete, with CS and EIP in R11. Stores to CS in the context have no effect
//! until the next block begins; a signal handler that interrupts before then repeats them.
//!
//! Unusual cases exit to the monitor: protected mode, offsets beyond FFFFh, a code segment unlike
//! those that real mode makes, and a stack that wraps.

use super::{Flow, Translator};
use crate::abi::context_displacements as at;
use crate::abi::far_pointer::FarPointer;
use crate::abi::host::Host;
use crate::abi::host::*;
use crate::abi::link_layout::{FAR_TABLE_OFFSET, far_tag_base, from_links};
use crate::abi::memos::known_code::FarTransfer;
use crate::abi::sites::SiteKind;
use crate::abi::state_map::Restore;
use crate::emit::assembler::{Mem, Width};
use crate::emit::look_up::OddSegment;
use crate::policy::fast_path::FastInstruction;
use crate::policy::mode::{ModeFlags, SegmentClass};
use iced_x86::{Code, Instruction};
use tollgate_x86::{Segment, SegmentRegister};

/// The host register that holds the packed far pointer to a transfer's target (see [`FarPointer`]).
pub(super) const FAR_POINTER: Host = R11;

/// The highest offset of real-mode code, and the limit of V86-mode segments.
const HIGHEST_OFFSET: u32 = 0xffff;

impl Translator {
    /// Translates a far CALL, JMP or RET.
    pub(super) fn far(&mut self, instruction: &Instruction) -> Flow {
        use Width::{Dword, Word};
        if let Some(fast_path @ FastInstruction::Far(transfer)) = self.fast_path(instruction) {
            return match self.far_by_fast_path(instruction, fast_path, transfer) {
                Ok(()) => Flow::End,
                Err(OddSegment) => self.moves_on(instruction),
            };
        }
        if !self.may_load_code_segment() || self.emit.next_rip > u64::from(HIGHEST_OFFSET) {
            return self.moves_on(instruction);
        }
        let released = match instruction.op_count() {
            1 => i32::from(instruction.immediate16()),
            _ => 0,
        };
        let result = match instruction.code() {
            Code::Jmp_ptr1616 | Code::Jmp_ptr1632 => self.far_direct(instruction, None),
            Code::Call_ptr1616 => self.far_direct(instruction, Some(Word)),
            Code::Call_ptr1632 => self.far_direct(instruction, Some(Dword)),
            Code::Jmp_m1616 => self.far_indirect(instruction, Word, false),
            Code::Jmp_m1632 => self.far_indirect(instruction, Dword, false),
            Code::Call_m1616 => self.far_indirect(instruction, Word, true),
            Code::Call_m1632 => self.far_indirect(instruction, Dword, true),
            Code::Retfw | Code::Retfw_imm16 => self.far_return(Word, released),
            Code::Retfd | Code::Retfd_imm16 => self.far_return(Dword, released),
            _ => Err(OddSegment),
        };
        match result {
            Ok(()) => Flow::End,
            Err(OddSegment) => self.moves_on(instruction),
        }
    }

    /// Emits the call of a fast path for a far transfer. The target is passed in R8 and RCX. R11
    /// passes the return address of a CALL, or the number that a RET adds to the stack pointer.
    fn far_by_fast_path(
        &mut self,
        instruction: &Instruction,
        fast_path: FastInstruction,
        transfer: FarTransfer,
    ) -> Result<(), OddSegment> {
        let bytes = u32::from(transfer.size);
        let width = match transfer.size {
            8 => Width::Qword,
            _ => Width::Dword,
        };
        self.emit.make_room();
        self.emit.flush_esp_first();
        let kind = self.emit.helper_kind(instruction);
        let is_direct = matches!(instruction.code(), Code::Jmp_ptr1632 | Code::Call_ptr1632);
        if is_direct {
            let selector = instruction.far_branch_selector();
            (self.emit.assembler).mov_imm32(R8, instruction.far_branch32());
            self.emit.assembler.mov_imm32(RCX, u32::from(selector));
        } else {
            if transfer.returns {
                self.emit.stack_operand(0, 2 * bytes, false)?;
            } else {
                self.emit.far_pointer_operand(instruction, bytes + 2)?;
            }
            self.emit.make_room();
            self.emit.assembler.load(width, R8, Mem::base(R9, 0));
            let next = Mem::base(R9, bytes as i32);
            self.emit.assembler.lea64(R9, next);
            self.emit.assembler.load(Width::Word, RCX, Mem::base(R9, 0));
        }
        if transfer.calls {
            let next = self.emit.next_rip;
            // Of the 64 bits, only the part that is pushed matters.
            self.emit.code_address(R11, R11, next, Width::Qword);
        } else if transfer.returns {
            let released = match instruction.op_count() {
                1 => u32::from(instruction.immediate16()),
                _ => 0,
            };
            self.emit.assembler.mov_imm32(R11, 2 * bytes + released);
        }
        if let Some(key) = fast_path.key(self.mode_id, self.family) {
            self.emit.assembler.mov_imm64(R9, key);
        }
        let (rip, esp) = (self.emit.rip, self.emit.esp_at_start);
        let site = self.emit.new_site(kind, rip, esp, 0);
        self.emit.name_site(site);
        let routine = self.emit.field(at::fast_path_routine(fast_path.routine()));
        self.emit.assembler.jmp_memory(routine);
        Ok(())
    }

    /// Whether a load of CS in this mode changes only its selector and base, because a code segment
    /// as real mode or V86 mode loads it (though perhaps with a larger limit) remains one.
    pub(super) fn may_load_code_segment(&self) -> bool {
        let mode = &self.emit.mode;
        let limit_stays = if mode.flags.contains(ModeFlags::VIRTUAL_8086) {
            mode.code_limit == HIGHEST_OFFSET
        } else {
            mode.code_limit >= HIGHEST_OFFSET
        };
        mode.has_real_mode_segments()
            && limit_stays
            && !(mode.flags).intersects(ModeFlags::SINGLE | ModeFlags::CODE32)
            && mode.segments[SegmentRegister::Cs as usize].is_limited()
    }

    /// Emits a transfer to a constant target: a CALL with operands of the width `call`, or a JMP if
    /// that is `None`.
    fn far_direct(
        &mut self,
        instruction: &Instruction,
        call: Option<Width>,
    ) -> Result<(), OddSegment> {
        let offset = match instruction.code() {
            Code::Jmp_ptr1616 | Code::Call_ptr1616 => u32::from(instruction.far_branch16()),
            _ => instruction.far_branch32(),
        };
        let selector = instruction.far_branch_selector();
        let ip = u16::try_from(offset).map_err(|_| OddSegment)?;
        let pointer = FarPointer { selector, ip };
        self.emit.assembler.mov_imm32(FAR_POINTER, pointer.packed());
        if let Some(width) = call {
            self.push_far_return(width)?;
        }
        self.begin_far_jump();
        let base = self.emit.field(at::segment_base(SegmentRegister::Cs));
        self.emit
            .assembler
            .store_imm(Width::Qword, base, i32::from(selector) << 4);
        let place = self.emit.field(at::segment_selector(SegmentRegister::Cs));
        let value = self.code_attributes() | i32::from(selector);
        self.emit.assembler.store_imm(Width::Dword, place, value);
        self.emit.link_far_jump(u64::from(ip));
        Ok(())
    }

    fn far_indirect(
        &mut self,
        instruction: &Instruction,
        width: Width,
        is_call: bool,
    ) -> Result<(), OddSegment> {
        let stack = self.emit.mode.segment(SegmentRegister::Ss, true);
        if is_call && stack == SegmentClass::Odd {
            return Err(OddSegment);
        }
        self.emit
            .far_pointer_operand(instruction, width.bytes() + 2)?;
        match width {
            Width::Word => self
                .emit
                .assembler
                .load(Width::Dword, FAR_POINTER, Mem::base(R9, 0)),
            _ => {
                self.emit
                    .assembler
                    .load(Width::Dword, FAR_POINTER, Mem::base(R9, 0));
                self.emit.assembler.lea64(R9, Mem::base(R9, 4));
                self.emit.assembler.load(Width::Word, R8, Mem::base(R9, 0));
                self.join_far_pointer(R8);
            }
        }
        if is_call {
            self.push_far_return(width)?;
        }
        self.far_jump();
        Ok(())
    }

    fn far_return(&mut self, width: Width, released: i32) -> Result<(), OddSegment> {
        let bytes = 2 * width.bytes();
        self.emit.stack_frame(0, bytes, false)?;
        if width == Width::Word {
            self.emit
                .assembler
                .load(Width::Dword, FAR_POINTER, Mem::base(R9, 0));
        } else {
            self.emit
                .assembler
                .load(Width::Qword, FAR_POINTER, Mem::base(R9, 0));
            self.emit.assembler.rorx(R8, FAR_POINTER, 32);
            self.emit.assembler.movzx16(R8, R8);
            self.emit.assembler.mov32(FAR_POINTER, FAR_POINTER);
            self.join_far_pointer(R8);
        }
        self.emit.esp = self.emit.esp.wrapping_add(bytes as i32 + released);
        self.far_jump();
        Ok(())
    }

    /// Pushes CS and the next instruction's IP in one store. After the store the call is complete
    /// except for the transfer.
    fn push_far_return(&mut self, width: Width) -> Result<(), OddSegment> {
        let bytes = 2 * width.bytes();
        self.emit.stack_frame(-(bytes as i32), bytes, true)?;
        self.far_return_address(R8, width);
        let frame = match width {
            Width::Word => Width::Dword,
            _ => Width::Qword,
        };
        self.emit.assembler.store(frame, Mem::base(R9, 0), R8);
        self.emit.esp = self.emit.esp.wrapping_sub(bytes as i32);
        Ok(())
    }

    /// Computes, in `to`, CS above the next instruction's IP, each of `width`. The selector is
    /// loaded from the context, because the mode does not determine it.
    fn far_return_address(&mut self, to: Host, width: Width) {
        let selector = self.emit.field(at::segment_selector(SegmentRegister::Cs));
        self.emit.assembler.load(Width::Word, to, selector);
        let bits = 8 * width.bytes() as u8;
        self.emit.assembler.rorx(to, to, 64 - bits);
        self.emit
            .assembler
            .lea64(to, Mem::base(to, self.emit.next_rip as i32));
    }

    /// Makes a packed far pointer in [`FAR_POINTER`] from its 32-bit offset and the selector in
    /// another register, whose other bits are zero. An offset beyond FFFFh exits to the monitor.
    /// Uses R9 and RCX.
    pub(super) fn join_far_pointer(&mut self, selector: Host) {
        self.emit.make_room();
        // offset - low half of offset = not(low half) + offset + 1
        self.emit.assembler.movzx16(R9, FAR_POINTER);
        self.emit.assembler.not(R9);
        self.emit
            .assembler
            .lea64(R9, Mem::indexed(R9, FAR_POINTER, 1, 1));
        self.emit.assembler.mov(RCX, R9);
        let fits = self.emit.skip_if_zero();
        self.emit.exit(SiteKind::Slow);
        self.emit.land(fits);
        self.emit.note_state(Restore::NONE);
        self.emit.assembler.rorx(selector, selector, 48);
        self.emit
            .assembler
            .lea64(FAR_POINTER, Mem::indexed(FAR_POINTER, selector, 1, 0));
    }

    /// Begins the last part of a far transfer. From here on the instruction is complete, except for
    /// CS and EIP, which [`FAR_POINTER`] holds, and for the folded adjustment of ESP, which is
    /// applied here. Uses R8.
    fn begin_far_jump(&mut self) {
        let done = Restore::NONE.with_segment(SegmentRegister::Cs, FAR_POINTER);
        self.emit.note_state_as(self.emit.rip, self.emit.esp, done);
        self.emit.flush_esp();
        self.emit.note_state_as(self.emit.rip, 0, done);
        self.emit.make_room();
    }

    /// Ends a far transfer of real or V86 mode (see [`Translator::may_load_code_segment`]) to the
    /// packed far pointer in [`FAR_POINTER`]. The instruction must have done everything except
    /// loading CS and EIP and applying ESP's folded adjustment. The flags survive.
    pub(super) fn far_jump(&mut self) {
        let done = Restore::NONE.with_segment(SegmentRegister::Cs, FAR_POINTER);
        self.begin_far_jump();
        let context = self.emit.map.context;
        self.emit.assembler.shrx(R9, FAR_POINTER, context);
        self.emit
            .assembler
            .lea32(R9, Mem::indexed(R9, FAR_POINTER, 1, 0));
        self.emit.assembler.movzx16(R9, R9);
        self.emit.assembler.lea64(R9, Mem::indexed(R9, R9, 1, 0));
        self.emit.assembler.mov_imm64(R8, far_tag_base(self.family));
        self.emit.make_room();
        let links = self.emit.map.links;
        let tag = Mem::indexed(links, R9, 8, from_links(FAR_TABLE_OFFSET));
        self.emit.assembler.load(Width::Qword, RCX, tag);
        self.emit
            .assembler
            .lea64(RCX, Mem::indexed(RCX, FAR_POINTER, 1, 0));
        self.emit.assembler.lea64(RCX, Mem::indexed(RCX, R8, 1, 0));
        let hit = self.emit.skip_if_zero();
        self.emit.note_state_as(self.emit.rip, 0, done);
        self.emit
            .assembler
            .store(Width::Qword, self.emit.field(at::EXIT_VALUE), FAR_POINTER);
        let site = self.emit.new_site(SiteKind::Far, self.emit.rip, 0, 0);
        self.emit.emit_exit(site);
        self.emit.land(hit);
        self.emit.note_state_as(self.emit.rip, 0, done);
        self.emit.make_room();
        self.emit.assembler.rorx(RCX, FAR_POINTER, 16);
        self.emit.assembler.movzx16(RCX, RCX);
        self.store_segment_base(SegmentRegister::Cs, RCX);
        let attributes = self.code_attributes();
        self.emit.assembler.lea32(RCX, Mem::base(RCX, attributes));
        let place = self.emit.field(at::segment_selector(SegmentRegister::Cs));
        self.emit.assembler.store(Width::Dword, place, RCX);
        self.emit.assembler.jmp_memory(Mem::indexed(
            links,
            R9,
            8,
            from_links(FAR_TABLE_OFFSET + 8),
        ));
    }

    /// The attributes of a segment as this mode loads it, in the bits above a selector.
    fn code_attributes(&self) -> i32 {
        let level = if self.emit.mode.flags.contains(ModeFlags::VIRTUAL_8086) {
            3
        } else {
            0
        };
        i32::from(Segment::real_mode(0, level).attributes.bits()) << 16
    }
}
