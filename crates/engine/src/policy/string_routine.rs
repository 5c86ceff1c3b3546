//! Repeated string instructions that guest code executes without an exit: which they are.

use crate::abi::register_map::RegisterMap;
use crate::abi::strings::{OPERATIONS, StringRoutine};
use crate::policy::mode::{Mode, ModeFlags, SegmentClass};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use tollgate_x86::SegmentRegister;

/// The number of an instruction among the operations.
fn operation(instruction: &Instruction) -> Option<usize> {
    use Mnemonic::*;
    let (group, width) = match instruction.mnemonic() {
        Movsb => (0, 0),
        Movsw => (0, 1),
        Movsd => (0, 2),
        Movsq => (0, 3),
        Stosb => (1, 0),
        Stosw => (1, 1),
        Stosd => (1, 2),
        Stosq => (1, 3),
        Cmpsb => (2, 0),
        Cmpsw => (2, 1),
        Cmpsd => (2, 2),
        Cmpsq => (2, 3),
        Scasb => (4, 0),
        Scasw => (4, 1),
        Scasd => (4, 2),
        Scasq => (4, 3),
        _ => return None,
    };
    let while_not_equal = instruction.has_repne_prefix();
    match group {
        // F2h has these repeat like F3h, but the manuals do not define it.
        0 | 1 if while_not_equal => None,
        0 | 1 => Some(4 * group + width),
        _ => Some(4 * (group + usize::from(while_not_equal)) + width),
    }
}

/// The routine that executes a repeated string instruction in code of a mode. `None`: it
/// is not repeated, or one that the monitor executes: with segments that are not flat,
/// with addresses of another size than the code's, or in 16-bit code.
pub fn string_routine(
    instruction: &Instruction,
    mode: &Mode,
    map: &RegisterMap,
) -> Option<StringRoutine> {
    let is_repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
    if !is_repeated || mode.is_watched() || !map.has_namesakes_at_home() {
        return None;
    }
    let operation = operation(instruction)?;
    let is_64_bit = mode.flags.contains(ModeFlags::CODE64);
    let (source, destination) = match is_64_bit {
        true => (OpKind::MemorySegRSI, OpKind::MemoryESRDI),
        false => (OpKind::MemorySegESI, OpKind::MemoryESEDI),
    };
    for index in 0..instruction.op_count() {
        let kind = instruction.op_kind(index);
        if kind != OpKind::Register && kind != source && kind != destination {
            return None;
        }
    }
    // Those of FS and GS have a base even where others have none.
    let is_flat = |segment, write| mode.segment(segment, write) == SegmentClass::Flat;
    let source = match instruction.segment_prefix() {
        Register::FS | Register::GS => return None,
        Register::ES => SegmentRegister::Es,
        Register::CS => SegmentRegister::Cs,
        Register::SS => SegmentRegister::Ss,
        _ => SegmentRegister::Ds,
    };
    if !is_flat(source, false) || !is_flat(SegmentRegister::Es, true) {
        return None;
    }
    let reach = match (mode.flags.contains(ModeFlags::LONG), is_64_bit) {
        (true, true) => 1,
        (true, false) => 2,
        (false, _) => 0,
    };
    Some(StringRoutine(reach * OPERATIONS + operation))
}
