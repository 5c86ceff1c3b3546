//! SYSCALL, SYSRET, SYSENTER and SYSEXIT without an exit, if everything is as it was when the
//! monitor last executed one (see [`crate::abi::memos::level_change`]).
//!
//! These instructions read no memory and can fault only for reasons that are checked first. Unusual
//! cases exit to the monitor, which then executes the whole instruction. The stores that follow
//! belong together, which the state map says. After them the instruction is complete and its target
//! is in R8. Control goes there by an indirect branch through the table of the target's mode:
//!
//! ```text
//! mov   r8, [r15+change.from]     ; SYSENTER
//! lea   rcx, [r8+mode+1]
//! jrcxz known
//! ...                             ; exit
//! known:
//! mov   qword ptr [r15+flag], 0   ; from here on undivided
//! mov   r12d, [r15+sysenter_esp]
//! ...                             ; CS, SS, the software TLB
//! mov   r8d, [r15+sysenter_eip]   ; from here on complete
//! ```

use super::{Flow, Translator};
use crate::abi::context_displacements as at;
use crate::abi::flags::InterruptFlag;
use crate::abi::flags::SYSTEM_FLAGS;
use crate::abi::host::*;
use crate::abi::link_layout::{ENTRY_TARGET, from_links};
use crate::abi::memos::level_change::{LevelChange, LevelChangeKind, from_mode};
use crate::abi::register_map::{ACCUMULATOR, COUNT, DATA};
use crate::abi::sites::SiteKind;
use crate::abi::state_map::Restore;
use crate::abi::x87_pointers::X87_FRESH;
use crate::emit::assembler::{Mem, Width};
use crate::policy::mode::ModeFlags;
use iced_x86::{Instruction, Mnemonic};
use std::mem::offset_of;
use tollgate_x86::flags::Flags;
use tollgate_x86::{Gpr, SegmentRegister, Watched};

impl Translator {
    /// Translates SYSCALL, SYSRET, SYSENTER or SYSEXIT.
    pub(super) fn change_level(&mut self, instruction: &Instruction) -> Flow {
        let flags = self.emit.mode.flags;
        let is_level_0 = flags.contains(ModeFlags::KERNEL);
        let is_long = flags.contains(ModeFlags::LONG);
        let is_protected = flags.contains(ModeFlags::PROTECTED);
        if self.emit.mode.is_watched() || !is_protected || is_long != self.emit.is_64_bit() {
            return self.moves_on(instruction);
        }
        match instruction.mnemonic() {
            Mnemonic::Syscall if is_long => self.syscall(instruction),
            Mnemonic::Sysretq if is_long && is_level_0 => self.sysret(instruction),
            Mnemonic::Sysenter if !is_long => self.sysenter(instruction),
            Mnemonic::Sysexit if !is_long && is_level_0 => self.sysexit(instruction),
            _ => self.moves_on(instruction),
        }
    }

    fn change_field(&self, kind: LevelChangeKind, offset: usize) -> Mem {
        self.emit.field(at::level_change(kind) + offset as i32)
    }

    /// Emits an exit that is taken unless the result of the change is known for this mode. The
    /// instruction has had no effect yet.
    pub(super) fn demand_known(&mut self, kind: LevelChangeKind, leave: SiteKind) {
        let from = self.change_field(kind, offset_of!(LevelChange, from));
        self.emit.assembler.load(Width::Qword, R8, from);
        let known = from_mode(self.mode_id).wrapping_neg() as i32;
        self.emit.leave_unless_zero(leave, Mem::base(R8, known));
    }

    /// Notes that the effects of the instruction begin here and must not be divided.
    pub(super) fn begin_undivided(&mut self) {
        self.emit.make_room();
        self.emit.note_state(Restore::UNDIVIDED);
    }

    /// Clears all bits of EFLAGS except the arithmetic flags, IF and DF.
    pub(super) fn clear_system_flags(&mut self) {
        for field in [at::register::FLAGS, at::SYSTEM_FLAGS] {
            self.emit
                .assembler
                .store_imm(Width::Qword, self.emit.field(field), 0);
        }
    }

    /// Loads CS, SS and the software TLB, and makes INT n and IRET exit. Clobbers R11.
    pub(super) fn load_level(&mut self, kind: LevelChangeKind) {
        let moves = [
            (SegmentRegister::Cs, offset_of!(LevelChange, code)),
            (SegmentRegister::Ss, offset_of!(LevelChange, stack)),
        ];
        for (register, offset) in moves {
            for half in [0, 8] {
                let from = self.change_field(kind, offset + half);
                let to = self
                    .emit
                    .field(at::segment_register(register) + half as i32);
                self.emit.assembler.load(Width::Qword, R11, from);
                self.emit.assembler.store(Width::Qword, to, R11);
            }
        }
        // The monitor has not examined the descriptor of this CS.
        for (offset, value) in [
            (offset_of!(Watched, mask), Watched::NEVER.mask),
            (offset_of!(Watched, value), Watched::NEVER.value),
        ] {
            let field = self.emit.field(at::CODE_DESCRIPTOR + offset as i32);
            self.emit
                .assembler
                .store_imm(Width::Qword, field, value as i32);
        }
        let tlb = self.emit.map.tlb;
        let from = self.change_field(kind, offset_of!(LevelChange, tlb));
        self.emit.assembler.load(Width::Qword, tlb, from);
        self.emit
            .assembler
            .store(Width::Qword, self.emit.field(at::TLB), tlb);
        self.emit
            .assembler
            .store_imm(Width::Dword, self.emit.field(at::LEVEL_CHANGED), 1);
    }

    fn syscall(&mut self, instruction: &Instruction) -> Flow {
        let kind = LevelChangeKind::Syscall;
        let leave = self.level_change_exit(instruction);
        self.demand_known(kind, leave);
        self.demand_no_virtual_flags(leave);
        self.flags_image(InterruptFlag::Real);
        self.begin_undivided();
        let image = self.emit.slot(Gpr::R11 as u8);
        self.emit.assembler.store(Width::Qword, image, R11);
        self.count_progress(R11);
        let next_rip = self.emit.next_rip;
        self.emit.code_address(COUNT, COUNT, next_rip, Width::Qword);
        self.load_level(kind);
        // The change is known only if IA32_FMASK clears all flags.
        self.clear_system_flags();
        self.emit
            .assembler
            .store_imm(Width::Qword, self.emit.field(at::INTERRUPT_FLAG), 0);
        self.emit
            .assembler
            .store_imm(Width::Qword, self.emit.field(at::DIRECTION), 1);
        self.emit.assembler.mov_imm32(R8, 1);
        self.emit.assembler.add8(R8, 0);
        let target = self.emit.field(at::register::LSTAR);
        self.emit.assembler.load(Width::Qword, R8, target);
        self.branch_to_level(kind)
    }

    fn sysret(&mut self, instruction: &Instruction) -> Flow {
        let kind = LevelChangeKind::Sysret;
        let leave = self.level_change_exit(instruction);
        self.demand_known(kind, leave);
        self.demand_canonical(COUNT);
        let image = self.emit.slot(Gpr::R11 as u8);
        self.emit.assembler.load(Width::Qword, R11, image);
        self.emit
            .assembler
            .mov_imm32(R9, SYSTEM_FLAGS.bits() as u32);
        self.emit.assembler.pext(R8, R11, R9);
        self.emit.leave_unless_zero(leave, Mem::base(R8, 0));
        self.demand_no_request(leave, InterruptFlag::Real);
        self.begin_undivided();
        self.clear_system_flags();
        self.emit.assembler.mov(RCX, ACCUMULATOR);
        let done = (self.emit.rip, 0, Restore::UNDIVIDED);
        self.load_flags(Some(InterruptFlag::Real), done);
        self.emit.assembler.mov(ACCUMULATOR, RCX);
        self.load_level(kind);
        self.emit.assembler.mov(R8, COUNT);
        self.branch_to_level(kind)
    }

    fn sysenter(&mut self, instruction: &Instruction) -> Flow {
        let kind = LevelChangeKind::Sysenter;
        let leave = self.level_change_exit(instruction);
        self.demand_known(kind, leave);
        self.demand_no_virtual_flags(leave);
        self.demand_no_x87_note(leave);
        self.begin_undivided();
        self.emit
            .assembler
            .store_imm(Width::Qword, self.emit.field(at::INTERRUPT_FLAG), 0);
        let stack = self.emit.field(at::register::SYSENTER_ESP);
        self.emit
            .assembler
            .load(Width::Dword, self.emit.map.stack(), stack);
        self.load_level(kind);
        let target = self.emit.field(at::register::SYSENTER_EIP);
        self.emit.assembler.load(Width::Dword, R8, target);
        self.branch_to_level(kind)
    }

    fn sysexit(&mut self, instruction: &Instruction) -> Flow {
        let kind = LevelChangeKind::Sysexit;
        let leave = self.level_change_exit(instruction);
        self.demand_known(kind, leave);
        // The monitor determined the target's mode for IOPL and AC being clear.
        let system_flags = self.emit.field(at::SYSTEM_FLAGS);
        self.emit.assembler.load(Width::Qword, R8, system_flags);
        self.emit.leave_unless_zero(leave, Mem::base(R8, 0));
        self.demand_no_x87_note(leave);
        self.begin_undivided();
        self.emit.assembler.mov32(self.emit.map.stack(), COUNT);
        self.load_level(kind);
        self.emit.assembler.mov32(R8, DATA);
        self.branch_to_level(kind)
    }

    /// The kind of exit of these instructions, which is taken before they have any effect.
    fn level_change_exit(&mut self, instruction: &Instruction) -> SiteKind {
        self.emit.flush_esp_first();
        self.emit.helper_kind(instruction)
    }

    /// Emits an exit that is taken if VIF or VIP is set, because the modes of programs do not show
    /// these flags.
    fn demand_no_virtual_flags(&mut self, leave: SiteKind) {
        let virtual_flags = Flags::VIF | Flags::VIP;
        self.demand_clear(
            leave,
            (at::SYSTEM_FLAGS, Width::Qword),
            virtual_flags.bits() as u32,
        );
    }

    /// Emits an exit that is taken if the segments of the last x87 instruction were not noted yet,
    /// because they are about to change.
    fn demand_no_x87_note(&mut self, leave: SiteKind) {
        self.demand_clear(leave, (at::X87_OPCODE, Width::Dword), X87_FRESH);
    }

    /// Emits an exit that is taken if one of these bits of a field is set.
    fn demand_clear(&mut self, leave: SiteKind, (field, width): (i32, Width), bits: u32) {
        let field = self.emit.field(field);
        self.emit.assembler.load(width, R8, field);
        self.emit.assembler.mov_imm32(R9, bits);
        self.emit.assembler.pext(R8, R8, R9);
        self.emit.leave_unless_zero(leave, Mem::base(R8, 0));
    }

    /// Emits the branch to R8 in the mode of the new level. The instruction is complete except for
    /// this branch.
    pub(super) fn branch_to_level(&mut self, kind: LevelChangeKind) -> Flow {
        self.note_state_at_target(Restore::NONE);
        let links = self.emit.map.links;
        let table = self.change_field(kind, offset_of!(LevelChange, then.table));
        self.emit.assembler.load(Width::Qword, R11, table);
        self.index_of_target();
        self.emit.assembler.lea64(R9, Mem::indexed(R11, R9, 4, 0));
        let tag = self.change_field(kind, offset_of!(LevelChange, then.tag));
        self.emit.assembler.load(Width::Qword, R11, tag);
        self.emit.assembler.lea64(R11, Mem::indexed(R11, R8, 1, 0));
        let entry = |part| Mem::indexed(links, R9, 8, from_links(part));
        self.emit.assembler.load(Width::Qword, RCX, entry(0));
        self.emit.assembler.lea64(RCX, Mem::indexed(RCX, R11, 1, 0));
        let hit = self.emit.skip_if_zero();
        self.note_state_at_target(Restore::NONE);
        self.emit
            .assembler
            .store(Width::Qword, self.emit.field(at::EXIT_VALUE), R8);
        let site = self
            .emit
            .new_site(SiteKind::LevelChanged, self.emit.rip, 0, 0);
        self.emit.emit_exit(site);
        self.emit.land(hit);
        self.note_state_at_target(Restore::NONE);
        if kind.leads_to_program() {
            self.load_code_slide(entry);
        }
        self.emit.assembler.jmp_memory(entry(ENTRY_TARGET));
        Flow::End
    }

    fn note_state_at_target(&mut self, restore: Restore) {
        self.emit
            .note_state_as(self.emit.rip, 0, restore.with_eip(R8));
    }
}
