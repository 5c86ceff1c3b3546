//! Notes for fast paths what an instruction does with device memory, when the instruction has been
//! executed out of line for the first time.

use crate::execution::running::Running;
use crate::translated::Translated;
use crate::translated::devices::call_state::kind_of;
use crate::translated::devices::device_strings;
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use tollgate_emulate::operand::system_mask;
use tollgate_engine::abi::memos::device_access::{
    DeviceAccess, FORM_ADVANCES_16, FORM_ADVANCES_32, FORM_ADVANCES_64, FORM_HIGH_BYTE,
    FORM_TO_REGISTER, NO_REGISTER,
};
use tollgate_engine::abi::sites::{BlockId, Site};
use tollgate_engine::engine::device_page::DisplayAddress;
use tollgate_engine::engine::out_of_line::InstructionPlace;
use tollgate_engine::policy::instruction_kind::{Effects, Helper};
use tollgate_engine::policy::mode::ModeFlags;
use tollgate_platform::{DISPLAY_WINDOW, Platform};
use tollgate_x86::paging::{Keeping, Privilege};
use tollgate_x86::{LinearAddress, Operation, PhysicalAddress};

/// An access that missed in the software TLB and was then made out of line.
#[derive(Clone, Copy)]
pub(crate) struct Missed {
    /// The site as the exit named it.
    pub(crate) site: u32,
    /// The linear address as the exit gave it.
    pub(crate) linear: LinearAddress,
    pub(crate) writes: bool,
}

/// The operation of an instruction that fast paths can execute.
fn operation(mnemonic: Mnemonic) -> Option<Operation> {
    use Mnemonic::*;
    Some(match mnemonic {
        Mov | Movnti | Stosb | Stosw | Stosd | Stosq | Lodsb | Lodsw | Lodsd | Lodsq => {
            Operation::Move
        }
        Movzx => Operation::MoveZeroExtended,
        Movsx | Movsxd => Operation::MoveSignExtended,
        Xchg => Operation::Exchange,
        Add => Operation::Add,
        Or => Operation::Or,
        Adc => Operation::AddWithCarry,
        Sbb => Operation::SubtractWithBorrow,
        And => Operation::And,
        Sub => Operation::Subtract,
        Xor => Operation::Xor,
        Cmp => Operation::Compare,
        Test => Operation::Test,
        Inc => Operation::Increment,
        Dec => Operation::Decrement,
        Not => Operation::Not,
        Neg => Operation::Negate,
        Rol => Operation::RotateLeft,
        Ror => Operation::RotateRight,
        Rcl => Operation::RotateLeftThroughCarry,
        Rcr => Operation::RotateRightThroughCarry,
        Shl | Sal => Operation::ShiftLeft,
        Shr => Operation::ShiftRight,
        Sar => Operation::ShiftRightArithmetic,
        // With a register as bit offset, these instructions may access memory outside the operand.
        Bt => Operation::TestBit,
        Bts => Operation::SetBit,
        Btr => Operation::ResetBit,
        Btc => Operation::ComplementBit,
        _ => return None,
    })
}

/// How the pointer of an operand advances. `None` means that the operand is not in memory.
fn form_of_memory(kind: OpKind) -> Option<u8> {
    match kind {
        OpKind::Memory => Some(0),
        OpKind::MemorySegSI | OpKind::MemoryESDI => Some(FORM_ADVANCES_16),
        OpKind::MemorySegESI | OpKind::MemoryESEDI => Some(FORM_ADVANCES_32),
        OpKind::MemorySegRSI | OpKind::MemoryESRDI => Some(FORM_ADVANCES_64),
        _ => None,
    }
}

/// What an instruction does with its operand in device memory, if fast paths can execute the
/// instruction, in the format of the context's entries but without addresses.
fn described(instruction: &Instruction) -> Option<DeviceAccess> {
    if is_string_of_two(instruction) {
        return Some(DeviceAccess {
            operation: Operation::String,
            ..DeviceAccess::NONE
        });
    }
    let operation = operation(instruction.mnemonic())?;
    let size = instruction.memory_size().size();
    if !matches!(size, 1 | 2 | 4 | 8)
        || instruction.has_rep_prefix()
        || instruction.has_repne_prefix()
        || instruction.op_count() > 2
    {
        return None;
    }
    let mut access = DeviceAccess {
        operation,
        size: size as u8,
        register_size: size as u8,
        ..DeviceAccess::NONE
    };
    let mut is_in_memory = false;
    for index in 0..instruction.op_count() {
        let kind = instruction.op_kind(index);
        if let Some(form) = form_of_memory(kind) {
            access.form |= form;
            is_in_memory = true;
        } else if kind == OpKind::Register {
            note_register(&mut access, instruction.op_register(index))?;
            // XCHG treats its two operands in the same way.
            if index == 0 && operation != Operation::Exchange {
                access.form |= FORM_TO_REGISTER;
            }
        } else {
            access.constant = instruction.try_immediate(index).ok()? as i32;
        }
    }
    let is_bit = matches!(
        operation,
        Operation::TestBit | Operation::SetBit | Operation::ResetBit | Operation::ComplementBit
    );
    let is_done = is_in_memory && !(is_bit && access.register != NO_REGISTER);
    is_done.then_some(access)
}

/// Whether an instruction is MOVS, CMPS or SCAS without a repeat prefix.
fn is_string_of_two(instruction: &Instruction) -> bool {
    let is_load_or_store = operation(instruction.mnemonic()).is_some();
    let is_repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    device_strings::is_done(instruction) && !is_load_or_store && !is_repeated
}

fn note_register(access: &mut DeviceAccess, register: Register) -> Option<()> {
    if !register.is_gpr() || register.full_register() == Register::RSP {
        return None;
    }
    let is_high = matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    );
    if is_high {
        access.form |= FORM_HIGH_BYTE;
    }
    access.register = register.full_register().number() as u8;
    access.register_size = register.size() as u8;
    Some(())
}

impl<P: Platform> Running<'_, Translated, P> {
    /// Notes what the instruction of this site, which accesses memory and was executed out of line,
    /// does. If it accessed a near register of a device, or display memory, fast paths execute it
    /// from now on.
    pub(crate) fn note_device_access(&mut self, block: BlockId, site: &Site, missed: Missed) {
        let writes = missed.writes;
        let linear = LinearAddress(missed.linear.0 & system_mask(&self.runner.context.cpu));
        let is_display = self.is_display(linear, writes);
        let near = match is_display {
            true => None,
            false => self.platform.near_page(),
        };
        let mode = self.runner.engine.mode(self.runner.mode);
        let is_kernel =
            mode.flags.contains(ModeFlags::KERNEL) || !mode.flags.contains(ModeFlags::PROTECTED);
        if !is_display && (near.is_none() || !is_kernel) || mode.is_watched() {
            return;
        }
        // Fast paths expect each guest register in the host register of the same name.
        if !self.runner.engine.map_of(mode).has_namesakes_at_home() {
            return;
        }
        let next_rip = self.runner.context.cpu.rip;
        let place = InstructionPlace {
            block,
            rip: site.rip,
            code_slide: self.runner.context.registers.code_slide,
        };
        let Some(noted) = (self.runner.engine).out_of_line(place, &self.view.memory) else {
            return;
        };
        let Some(described) = described(&noted.helper.instruction) else {
            return;
        };
        // Registers of the local APIC are near only for plain moves.
        let is_simple = described.operation == Operation::Move;
        let is_as_missed = described.stores() == writes || described.operation == Operation::String;
        if !is_as_missed || !is_display && !is_simple {
            return;
        }
        let access = DeviceAccess {
            site: missed.site,
            next_rip,
            ..described
        };
        if is_display {
            let Translated {
                engine, context, ..
            } = self.runner;
            let place = match context.cpu.is_paging() {
                true => DisplayAddress::ByTables,
                false => DisplayAddress::Physical(linear),
            };
            return engine.note_display_access(context, place, block, site, access);
        }
        let kind = kind_of(writes);
        let cpu = &self.runner.context.cpu;
        let Ok(found) = self.view.walk(cpu, linear, kind, Privilege::Supervisor) else {
            return;
        };
        if found.keeping != Keeping::Always {
            return;
        }
        if Some(PhysicalAddress(found.physical.0 & !0xfff)) != near {
            return;
        }
        let Translated {
            engine, context, ..
        } = self.runner;
        (self.view.translations).note_device(linear, &found, engine.as_mut());
        engine.note_device_access(context, linear, &found, block, site, access);
    }

    /// Called before a string instruction is executed for an exit. Returns the addresses of its
    /// next elements, if [`note_string`](Self::note_string) must examine them.
    pub(crate) fn before_string(&self, helper: &Helper) -> [Option<LinearAddress>; 2] {
        let Translated {
            engine, context, ..
        } = &self.runner;
        let is_looked_at = helper.kind.effects.contains(Effects::REPEATS)
            && !engine.knows_display(context)
            && self.platform.near_display().is_some()
            && device_strings::is_done(&helper.instruction);
        match is_looked_at {
            true => device_strings::elements(&context.cpu, &helper.instruction),
            false => [None; 2],
        }
    }

    /// Called after the string instruction was executed. If one of the elements was in display
    /// memory, fast paths execute the instruction from now on.
    pub(crate) fn note_string(&mut self, elements: [Option<LinearAddress>; 2]) {
        let mut elements = elements.into_iter().flatten();
        if elements.any(|linear| self.is_display(linear, false)) {
            let Translated {
                engine, context, ..
            } = self.runner;
            engine.note_display(context);
        }
    }

    /// Whether an access that has just been made was to display memory that may be near.
    fn is_display(&mut self, linear: LinearAddress, writes: bool) -> bool {
        let Some(window) = self.platform.near_display() else {
            return false;
        };
        let cpu = &self.runner.context.cpu;
        let privilege = Privilege::of_cpl(cpu.cpl());
        let found = self.view.walk(cpu, linear, kind_of(writes), privilege);
        let window = window.0..window.0 + DISPLAY_WINDOW;
        // Without paging, address line 20 may change the address.
        found.is_ok_and(|found| {
            window.contains(&found.physical.0) && (cpu.is_paging() || found.physical.0 == linear.0)
        })
    }
}
