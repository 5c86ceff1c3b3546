//! Which repeated string instructions have a routine that executes them without an exit.

use crate::abi::register_map::RegisterMap;
use crate::abi::strings::{Reach, StringRoutine};
use crate::policy::mode::{Mode, ModeFlags, SegmentClass};
use iced_x86::{Instruction, Mnemonic, OpKind, Register};
use tollgate_x86::SegmentRegister;

/// The number of an instruction's operation.
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
        Lodsb => (6, 0),
        Lodsw => (6, 1),
        Lodsd => (6, 2),
        Lodsq => (6, 3),
        _ => return None,
    };
    let while_not_equal = instruction.has_repne_prefix();
    match group {
        // With F2h these instructions repeat as with F3h, but the manuals do not define that.
        0 | 1 | 6 if while_not_equal => None,
        0 | 1 | 6 => Some(4 * group + width),
        _ => Some(4 * (group + usize::from(while_not_equal)) + width),
    }
}

/// The routine that executes a repeated string instruction in code of a mode.
///
/// `None` if the instruction is not repeated or the monitor executes it. The monitor executes
/// instructions with addresses of 16 bits in segments of less than 64 KiB or in IA-32e mode, and
/// instructions with larger addresses in segments that are not flat or of another size than the
/// code's.
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
    let reach = reach(instruction, mode)?;
    let is_reached = |segment, write| match (reach, mode.segment(segment, write)) {
        (_, SegmentClass::Flat) => true,
        (Reach::Words, class) => matches!(class, SegmentClass::Based | SegmentClass::Limited64K),
        _ => false,
    };
    let source = source_segment(instruction);
    // FS and GS have a base even in modes in which no other segment has one.
    let has_base = matches!(source, SegmentRegister::Fs | SegmentRegister::Gs);
    if has_base && reach != Reach::Words
        || !is_reached(source, false)
        || !is_reached(SegmentRegister::Es, true)
    {
        return None;
    }
    Some(StringRoutine::of(reach, operation))
}

/// How an instruction reaches its operands, by the size of their addresses.
fn reach(instruction: &Instruction, mode: &Mode) -> Option<Reach> {
    use OpKind::*;
    let is_long = mode.flags.contains(ModeFlags::LONG);
    let of_code = match mode.flags.contains(ModeFlags::CODE64) {
        true => Reach::Long,
        false if is_long => Reach::Compatible,
        false => Reach::Flat,
    };
    let mut pointers = (0..instruction.op_count())
        .map(|index| instruction.op_kind(index))
        .filter(|kind| *kind != Register);
    let reach = match pointers.next()? {
        MemorySegSI | MemoryESDI if !is_long => Reach::Words,
        MemorySegESI | MemoryESEDI if of_code != Reach::Long => of_code,
        MemorySegRSI | MemoryESRDI => of_code,
        _ => return None,
    };
    // Wide addresses in 16-bit code, by a prefix, are excluded.
    let is_wide = mode.flags.contains(ModeFlags::CODE32) || of_code == Reach::Long;
    (reach == Reach::Words || is_wide).then_some(reach)
}

/// The segment of the source operand; without such an operand the result means nothing.
pub fn source_segment(instruction: &Instruction) -> SegmentRegister {
    match instruction.segment_prefix() {
        Register::ES => SegmentRegister::Es,
        Register::CS => SegmentRegister::Cs,
        Register::SS => SegmentRegister::Ss,
        Register::FS => SegmentRegister::Fs,
        Register::GS => SegmentRegister::Gs,
        _ => SegmentRegister::Ds,
    }
}
