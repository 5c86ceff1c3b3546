//! Executes string instructions with an operand in display memory that is not RAM without an exit:
//! single ones whose look-up missed, and repeated ones that the routine of
//! [`tollgate_engine::gate::string`] cannot continue.
//!
//! The crate `emulate` executes them as it does after an exit, but with a memory that refuses
//! everything except RAM and display memory ([`super::display_reach`]). A refusal is an exception
//! that never reaches the guest: the exit is taken, with as many iterations done as the registers
//! show, and continues from there. What interrupts a repeated instruction is handled in the same
//! way. A refused iteration has loaded one byte at most, and loads that byte again.

use crate::translated::devices::call_state::{flags, put_flags, slot};
use crate::translated::devices::display_reach::Reach;
use crate::translated::misses::Environment as FastPathEnvironment;
use iced_x86::{Instruction, OpKind};
use tollgate_emulate::Outcome;
use tollgate_emulate::operand::{address_size, memory_segment, size_mask, system_mask};
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_engine::abi::sites::{Site, SiteKind};
use tollgate_engine::engine::out_of_line::InstructionPlace;
use tollgate_engine::{Context, Engine};
use tollgate_platform::Platform;
use tollgate_x86::{CpuState, Flags, Gpr, LinearAddress};

/// The general registers that string instructions use.
const REGISTERS: [Gpr; 4] = [Gpr::Rax, Gpr::Rcx, Gpr::Rsi, Gpr::Rdi];

/// Whether an instruction is a string instruction that accesses no port.
pub(in crate::translated) fn is_done(instruction: &Instruction) -> bool {
    let mut kinds = (0..instruction.op_count()).map(|index| instruction.op_kind(index));
    let is_port = (0..instruction.op_count()).any(|index| {
        instruction.op_kind(index) == OpKind::Register
            && instruction.op_register(index) == iced_x86::Register::DX
    });
    let is_string = kinds.any(|kind| is_source(kind) || is_destination(kind));
    is_string && !is_port && instruction.is_string_instruction()
}

fn is_source(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::MemorySegSI | OpKind::MemorySegESI | OpKind::MemorySegRSI
    )
}

fn is_destination(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::MemoryESDI | OpKind::MemoryESEDI | OpKind::MemoryESRDI
    )
}

/// The linear addresses of the next elements that a repeated string instruction will access.
pub(in crate::translated) fn elements(
    cpu: &CpuState,
    instruction: &Instruction,
) -> [Option<LinearAddress>; 2] {
    let mask = size_mask(address_size(cpu, instruction));
    if cpu.gpr[Gpr::Rcx as usize] & mask == 0 {
        // The instruction accesses no memory, so its caller must not access any either.
        return [None; 2];
    }
    let has = |is: fn(OpKind) -> bool| {
        (0..instruction.op_count()).any(|index| is(instruction.op_kind(index)))
    };
    let at = |segment, register: Gpr| {
        let offset = cpu.gpr[register as usize] & mask;
        LinearAddress(cpu.segment_base(segment).wrapping_add(offset) & system_mask(cpu))
    };
    [
        has(is_source).then(|| at(memory_segment(cpu, instruction), Gpr::Rsi)),
        has(is_destination).then(|| at(tollgate_x86::SegmentRegister::Es, Gpr::Rdi)),
    ]
}

/// Executes the string instruction of the named site. Returns whether more work is due, or `None`
/// if the instruction was not or not completely executed.
pub(in crate::translated) fn access<P: Platform>(
    context: &mut Context,
    machine: &mut P,
) -> Option<bool> {
    let window = machine.near_display()?.0;
    // SAFETY: guest code called this function, and only guest code may use what its environment
    // points to.
    let (view, engine) = unsafe {
        let environment = context
            .fast_paths
            .environment
            .cast::<FastPathEnvironment>()
            .as_ref()?;
        (&mut *environment.view, &*environment.engine)
    };
    let (site, instruction) = instruction(context, engine)?;
    let (rip, kept) = (context.cpu.rip, context.cpu.flags);
    for register in REGISTERS {
        context.cpu.gpr[register as usize] = *slot(context, register);
    }
    let moved = Flags::ARITHMETIC | Flags::DF;
    let direction = match context.hot.direction < 0 {
        true => Flags::DF.bits(),
        false => 0,
    };
    context.cpu.flags = kept & !moved.bits() | flags(context) | direction;
    context.cpu.rip = site.rip;
    let mut reach = Reach::new(view, machine, context.hot.pending, window);
    let result = tollgate_emulate::execute(&mut context.cpu, &mut reach, &instruction);
    let (is_due, accesses) = (reach.is_due, reach.accesses);
    put_flags(context, context.cpu.flags);
    (context.cpu.rip, context.cpu.flags) = (rip, kept);
    for register in REGISTERS {
        *slot(context, register) = context.cpu.gpr[register as usize];
    }
    let is_done = result == Ok(Outcome::Next);
    if is_done && (accesses.has_loaded || accesses.has_stored) {
        let routine = match accesses.has_stored {
            true => FastPath::MmioWrite,
            false => FastPath::MmioRead,
        };
        context.fast_paths.counts[routine as usize] += 1;
    }
    is_done.then_some(is_due)
}

/// The string instruction of the named site.
fn instruction(context: &Context, engine: &Engine) -> Option<(Site, Instruction)> {
    let code_slide = context.registers.code_slide;
    let (block, _, site) = engine.site(context.hot.exit_site, code_slide)?;
    let instruction = match site.kind {
        SiteKind::Helper(helper) => engine.helper(block, helper, code_slide)?.instruction,
        _ => engine.known_out_of_line(InstructionPlace {
            block,
            rip: site.rip,
            code_slide,
        })?,
    };
    is_done(&instruction).then_some((site, instruction))
}
