//! The choice of the function that translates an instruction.

use super::bits::is_bit_string;
use super::look_up_plan::{changed_registers, constant_change};
use super::segments::is_segment_move;
use super::{Flow, Translator};
use crate::abi::context_displacements as at;
use crate::abi::sites::SiteKind;
use crate::emit::assembler::Width;
use crate::emit::emitter::shared_look_up_range::Planned;
use crate::policy::allow_list::{Treatment, treatment};
use crate::policy::fast_path::FastInstruction;
use crate::policy::mode::ModeFlags;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};

impl Translator {
    /// Translates an instruction, which should make the shared look-up `planned`.
    pub(super) fn instruction(
        &mut self,
        instruction: &Instruction,
        planned: Option<Planned>,
    ) -> Flow {
        if self.emit.mode.flags.contains(ModeFlags::BOUNCE) {
            return self.copy_bounced(instruction);
        }
        self.emit.make_room();
        if self.emit.always_looks_up() {
            self.emit.end_window();
        } else if self.emit.window.is_some() || planned.is_some() {
            match self.may_use_windows(instruction) {
                true => self.emit.use_windows(planned),
                false => self.emit.end_window(),
            }
        } else {
            self.emit.end_window();
        }
        let flow = self.by_mnemonic(instruction);
        self.follow_base(instruction);
        self.follow_checks(instruction);
        flow
    }

    /// Notes what the instruction that was just translated does to registers that were checked.
    fn follow_checks(&mut self, instruction: &Instruction) {
        if !self.emit.has_checks() {
            return;
        }
        let changed = match self.may_use_windows(instruction) {
            true => changed_registers(instruction),
            // The monitor may execute the instruction.
            false => None,
        };
        let change = constant_change(instruction, 8);
        self.emit.follow_checks(instruction, changed, change);
    }

    /// Notes what the instruction that was just translated does to the register that the shared
    /// look-up is near.
    fn follow_base(&mut self, instruction: &Instruction) {
        let Some(base) = self.emit.window_base() else {
            return;
        };
        let is_kept =
            changed_registers(instruction).is_some_and(|changed| changed & 1 << base == 0);
        if is_kept {
            return;
        }
        let size = if self.emit.is_64_bit() { 8 } else { 4 };
        let change = constant_change(instruction, size);
        let change = change.filter(|(register, _)| *register == base);
        self.emit
            .move_window(base, change.map(|(_, change)| change));
    }

    fn by_mnemonic(&mut self, instruction: &Instruction) -> Flow {
        use Mnemonic::*;
        // The instruction has reached the end of this list before.
        if self.known.is_copied(instruction) {
            return self.copy(instruction);
        }
        match instruction.mnemonic() {
            Mov if is_segment_move(instruction) => self.move_segment(instruction),
            Mov if instruction.op1_register().is_cr() => self.move_from_control(instruction),
            Lds | Les | Lfs | Lgs | Lss => self.load_far_pointer(instruction),
            Push => self.push_instruction(instruction),
            Pop => self.pop_instruction(instruction),
            Leave => self.leave_instruction(instruction),
            Pusha | Pushad => self.push_all(instruction),
            Popa | Popad => self.pop_all(instruction),
            Call => self.call(instruction),
            Ret => self.ret(instruction),
            Jmp => self.jmp(instruction),
            Jcxz | Jecxz | Jrcxz => self.jcxz(instruction),
            Loop | Loope | Loopne => self.loop_instruction(instruction),
            _ if instruction.is_jcc_short_or_near() => self.jcc(instruction),
            Lea => self.lea(instruction),
            Xlatb => self.xlat(instruction),
            Cli | Sti | Pushf | Pushfd | Pushfq | Popf | Popfd | Popfq => {
                self.sensitive(instruction)
            }
            Cld => self.set_direction(1),
            Std => self.set_direction(-1),
            Movsb | Movsw | Movsd | Movsq | Lodsb | Lodsw | Lodsd | Lodsq | Stosb | Stosw
            | Stosd | Stosq | Scasb | Scasw | Scasd | Scasq | Cmpsb | Cmpsw | Cmpsd | Cmpsq
                if instruction.is_string_instruction() =>
            {
                self.string(instruction)
            }
            Rdtsc | Rdtscp => self.time_stamp(instruction),
            Rdpid if self.features.allow(instruction) => self.processor_number(instruction),
            Int => self.software_interrupt(instruction),
            Iret | Iretd | Iretq => self.interrupt_return(instruction),
            Retf => self.far(instruction),
            Int3 => self.interrupt_by_fast_path(instruction),
            Int1 | Sysexitq | Hlt => self.moves_on(instruction),
            Sysenter | Sysexit => self.change_level(instruction),
            Syscall | Sysret | Sysretq if self.emit.mode.flags.contains(ModeFlags::LONG) => {
                self.change_level(instruction)
            }
            Bt | Btc | Btr | Bts if is_bit_string(instruction) => self.bit_string(instruction),
            Cpuid => self.identify(instruction),
            Clts | Wbinvd | Wbnoinvd | Invd if self.changes_nothing(instruction) => Flow::Next,
            Sldt | Str | Smsw => self.store_system_register(instruction),
            Mov | Invlpg | Rdmsr | Wrmsr | Lgdt | Lidt | Sgdt | Sidt | Lmsw | Lldt | Lar | Lsl
            | Verr | Verw | Xgetbv | Clac | Stac | Rdpkru
                if matches!(self.fast_path(instruction), Some(FastInstruction::Call(..))) =>
            {
                self.call_function(instruction)
            }
            In | Out => self.access_port(instruction),
            Swapgs if self.swaps_gs() => self.swap_gs(),
            Rdfsbase | Rdgsbase | Wrfsbase | Wrgsbase => self.access_base(instruction),
            _ => self.by_allow_list(instruction),
        }
    }

    /// Whether the code of an instruction leaves R11 alone, except after the last use of a shared
    /// look-up in a block, and finds the shared look-up as it expects when it resumes after an
    /// exit.
    fn may_use_windows(&mut self, instruction: &Instruction) -> bool {
        use Mnemonic::*;
        if self.known.is_copied(instruction) {
            return true;
        }
        let kind = instruction.op0_kind();
        match instruction.mnemonic() {
            Push | Pop => {
                let register = instruction.op0_register();
                kind != OpKind::Memory
                    && register.full_register() != Register::RSP
                    && !register.is_segment_register()
            }
            Call | Jmp => {
                use OpKind::*;
                let is_far =
                    instruction.is_call_far_indirect() || instruction.is_jmp_far_indirect();
                !is_far && !matches!(kind, NearBranch16 | FarBranch16 | FarBranch32)
            }
            Ret | Lea | Cld | Std | Nop => true,
            Mov if is_segment_move(instruction) => false,
            Leave | Xlatb | Bt | Btc | Btr | Bts => false,
            _ if instruction.is_jcc_short_or_near() => true,
            _ if instruction.is_string_instruction() => false,
            // The note of the operand needs the linear address.
            _ if self.x87_opcode().is_some() => false,
            _ => matches!(
                treatment(instruction, &self.emit.mode, &self.features),
                Treatment::Copy | Treatment::CopyVector | Treatment::Nothing
            ),
        }
    }

    /// Whether an instruction looks up its operand although other instructions reach theirs
    /// directly. The copy of an instruction that changes a bit of a string loads before it stores,
    /// and if it must not store, its fault must be that of a store. The frame of an interrupt
    /// counts as stored from its first value on, so none of the stores may fault. In 16-bit code
    /// all instructions look up their operands except those of [`Self::is_direct_in_16_bit_code`].
    pub(super) fn relies_on_look_up(&mut self, instruction: &Instruction) -> bool {
        use Mnemonic::*;
        match instruction.mnemonic() {
            Bts | Btr | Btc if is_bit_string(instruction) => true,
            Int => true,
            _ => {
                self.emit.mode.is_16_bit_of_32_bit_guest()
                    && !self.is_direct_in_16_bit_code(instruction)
            }
        }
    }

    /// Whether the accesses of an instruction of 16-bit code may be direct. Only copied
    /// instructions, near calls and stack instructions qualify. The others need the look-up, either
    /// before a step that cannot be undone or for its result.
    fn is_direct_in_16_bit_code(&mut self, instruction: &Instruction) -> bool {
        use Mnemonic::*;
        if self.known.is_copied(instruction) {
            return true;
        }
        match instruction.mnemonic() {
            Push | Pop => !instruction.op0_register().is_segment_register(),
            Call | Jmp => {
                use OpKind::{FarBranch16, FarBranch32};
                let is_far = instruction.is_call_far_indirect()
                    || instruction.is_jmp_far_indirect()
                    || matches!(instruction.op0_kind(), FarBranch16 | FarBranch32);
                !is_far
            }
            Ret | Leave | Xlatb => true,
            Mov if is_segment_move(instruction) => false,
            Bt | Btc | Btr | Bts if is_bit_string(instruction) => false,
            _ if instruction.is_string_instruction() => false,
            // The note of the operand needs the linear address.
            _ if self.x87_opcode().is_some() => false,
            _ => matches!(
                treatment(instruction, &self.emit.mode, &self.features),
                Treatment::Copy | Treatment::CopyVector
            ),
        }
    }

    pub(super) fn by_allow_list(&mut self, instruction: &Instruction) -> Flow {
        match treatment(instruction, &self.emit.mode, &self.features) {
            Treatment::Copy => {
                self.known.note_copied(instruction);
                self.copy(instruction)
            }
            Treatment::CopyVector => {
                self.emit.require_vectors();
                self.emit.make_room();
                let flow = self.copy(instruction);
                if flow == Flow::Next {
                    self.note_x87(instruction);
                }
                flow
            }
            Treatment::Nothing => Flow::Next,
            Treatment::Raise(vector) => {
                self.emit.exit(SiteKind::Fault(vector));
                Flow::End
            }
            Treatment::Helper => self.helper(instruction),
        }
    }

    /// Lets the monitor execute the current instruction and return after it.
    pub(super) fn helper(&mut self, instruction: &Instruction) -> Flow {
        let kind = self.emit.add_helper(instruction);
        self.emit.leave_and_return(kind);
        Flow::Next
    }

    /// Lets the monitor execute the current instruction with every check.
    pub(super) fn slow(&mut self) -> Flow {
        self.emit.leave_and_return(SiteKind::Slow);
        Flow::Next
    }

    /// Lets the monitor execute an instruction after which control always moves elsewhere, so that
    /// nothing follows in this block.
    pub(super) fn moves_on(&mut self, instruction: &Instruction) -> Flow {
        let kind = self.emit.add_helper(instruction);
        self.emit.exit(kind);
        Flow::End
    }

    pub(super) fn set_direction(&mut self, direction: i32) -> Flow {
        self.emit
            .assembler
            .store_imm(Width::Qword, self.emit.field(at::DIRECTION), direction);
        Flow::Next
    }
}
