//! The differences that are not errors, each with the manual's reason.

use crate::case::{Case, Input, Outcome};
use crate::encode::{Encoded, host_decoding};
use crate::families::is_svm;
use crate::images::{self, Uncompared};
use crate::layout::{USER_CODE64, WINDOW, WINDOW_BYTES};
use iced_x86::{EncodingKind, Instruction, Mnemonic, OpKind, Register, RflagsBits};
use std::ops::Range;
use tollgate_emulate::cpuid::Vendor;
use tollgate_engine::decode::intel_amd_differences::Decoding;
use tollgate_x86::SegmentRegister;
use tollgate_x86::state::XSAVE_SIZE;
use tollgate_x86::xsave::{OPMASK, ZMM_16_TO_31, ZMM_HIGH};

/// Converts iced-x86's set of flags to bits of EFLAGS.
fn eflags(bits: u32) -> u32 {
    [
        (RflagsBits::OF, 0x800),
        (RflagsBits::SF, 0x80),
        (RflagsBits::ZF, 0x40),
        (RflagsBits::AF, 0x10),
        (RflagsBits::CF, 1),
        (RflagsBits::PF, 4),
    ]
    .into_iter()
    .filter(|(bit, _)| bits & bit != 0)
    .fold(0, |flags, (_, flag)| flags | flag)
}

/// Size of an operand in bits.
fn operand_bits(instruction: &Instruction) -> u32 {
    match instruction.op0_kind() {
        OpKind::Register => instruction.op0_register().size() as u32 * 8,
        _ => instruction.memory_size().size() as u32 * 8,
    }
}

/// The count of a shift or rotation.
fn shift_count(instruction: &Instruction, input: &Input) -> u32 {
    let last = instruction.op_count() - 1;
    let mask = if operand_bits(instruction) == 64 {
        63
    } else {
        31
    };
    mask & match instruction.op_kind(last) {
        OpKind::Register if instruction.op_register(last) == Register::CL => input.gpr[1] as u32,
        OpKind::Immediate8 => u32::from(instruction.immediate8()),
        _ => 1,
    }
}

/// Flags that the manual leaves undefined after one instruction that completed (SDM volume 2,
/// "Flags affected" of each instruction).
pub fn undefined_flags(instruction: &Instruction, input: &Input) -> u32 {
    use Mnemonic as M;
    let (overflow, auxiliary, carry) = (0x800, 0x10, 1);
    match instruction.mnemonic() {
        M::Shl | M::Sal | M::Shr | M::Sar => match shift_count(instruction, input) {
            0 => 0,
            1 => auxiliary,
            count if count >= operand_bits(instruction) && instruction.mnemonic() != M::Sar => {
                auxiliary | overflow | carry
            }
            _ => auxiliary | overflow,
        },
        M::Rol | M::Ror | M::Rcl | M::Rcr => match shift_count(instruction, input) {
            0 | 1 => 0,
            _ => overflow,
        },
        M::Shld | M::Shrd => match shift_count(instruction, input) {
            0 => 0,
            1 => auxiliary,
            count if count > operand_bits(instruction) => 0x8d5,
            _ => auxiliary | overflow,
        },
        _ => eflags(instruction.rflags_undefined()),
    }
}

/// The flags of `outcome` that are compared.
pub fn compared_flags(code: &[Encoded], input: &Input, outcome: &Outcome) -> u32 {
    let all = 0x3f_7fd5;
    match code {
        [one] if outcome.completed() => all & !undefined_flags(&one.instruction, input),
        // A division that faults also leaves them undefined; other faults do not change them.
        [one] if outcome.vector == 0 => all & !undefined_flags(&one.instruction, input),
        [_] => all,
        _ => code
            .iter()
            .filter(|one| one.instruction.ip() != outcome.rip || outcome.vector == 0)
            .fold(all, |flags, one| {
                flags & !eflags(one.instruction.rflags_undefined())
            }),
    }
}

/// The part of a selector that is compared. The host's kernel returns to user code with IRET, which
/// replaces a null selector's privilege level by zero (SDM volume 2, IRET).
pub fn compared_selector(selector: u16) -> u16 {
    if selector & !3 == 0 { 0 } else { selector }
}

/// Whether the instruction accesses memory in several steps, or with one access for all lanes.
fn has_several_accesses(instruction: &Instruction) -> bool {
    use Mnemonic as M;
    instruction.is_save_restore_instruction()
        || matches!(
            instruction.mnemonic(),
            M::Fnsave
                | M::Frstor
                | M::Fnstenv
                | M::Fldenv
                | M::Vmaskmovps
                | M::Vmaskmovpd
                | M::Vpmaskmovd
                | M::Vpmaskmovq
                | M::Maskmovq
                | M::Maskmovdqu
                | M::Vmaskmovdqu
        )
}

/// Whether the values of CR2 count as equal. The manual does not say which byte of a page is
/// accessed first by images and masked moves; nor which operand is accessed first by CMPS, PUSHA
/// and similar instructions if several pages fault (SDM volume 2, their "Operation").
pub fn same_fault_address(code: &[Encoded], expected: &Outcome, got: &Outcome) -> bool {
    use Mnemonic as M;
    // Images of several fields may wrap inside 64 KiB, field by field.
    let distance = expected.cr2.abs_diff(got.cr2) & 0xffff;
    // With the components that are enabled here (SDM volume 1, 13.2).
    let image = std::arch::x86_64::__cpuid_count(0xd, 0).ebx;
    let near = distance.min(0x1_0000 - distance) < u64::from(image).max(XSAVE_SIZE as u64);
    code.iter().any(|one| match one.instruction.mnemonic() {
        M::Cmpsb
        | M::Cmpsw
        | M::Cmpsd
        | M::Cmpsq
        | M::Pusha
        | M::Pushad
        | M::Popa
        | M::Popad
        | M::Enter => true,
        // So may the two accesses of an 80-bit operand.
        M::Fld | M::Fstp | M::Fbld | M::Fbstp => near,
        _ => near && has_several_accesses(&one.instruction),
    })
}

/// The bits of a page fault's error code that are compared. If [`same_fault_address`] does not
/// determine the page, whether it was present is not determined either.
pub fn compared_error(code: &[Encoded], outcome: &Outcome) -> u32 {
    let several = code
        .iter()
        .any(|one| has_several_accesses(&one.instruction));
    // The host's kernel reports to programs that all of the kernel's half is present.
    let hidden = outcome.cr2 >= 0x7fff_ffff_f000;
    if (several || hidden) && outcome.vector == 14 {
        !1
    } else {
        !0
    }
}

/// Whether an access across 4 GiB in a segment without a lower limit may or may not violate the
/// limit: SDM volume 3, 5.3, "When the effective limit is FFFFFFFFH".
pub fn crosses_four_gibibytes(expected: &Outcome, got: &Outcome) -> bool {
    let at_the_end = |outcome: &Outcome| {
        // The last offset lies just below a base: zero, or the window.
        let next = [0, WINDOW as u32]
            .map(|base| (outcome.cr2 as u32).wrapping_sub(base).wrapping_add(0x1000));
        outcome.vector == 14 && next.into_iter().any(|distance| distance < 0x2000)
    };
    let limit = |outcome: &Outcome| matches!(outcome.vector, 12 | 13) && outcome.error == 0;
    if expected.selectors[1] == USER_CODE64 {
        return false;
    }
    at_the_end(expected) && limit(got) || limit(expected) && at_the_end(got)
}

/// In 64-bit code, AMD's processors also raise #GP if the offset in FS or GS is not canonical but
/// its sum with the base is. According to the manuals only the sum matters (SDM volume 1, 3.3.7.1;
/// APM volume 2, 4.5.3), and the guest behaves accordingly.
fn demands_canonical_offset(code: &[Encoded], expected: &Outcome, got: &Outcome) -> bool {
    host_decoding() == Decoding::Amd
        && expected.selectors[1] == USER_CODE64
        && (expected.vector, got.vector) == (13, 14)
        && expected.rip == got.rip
        && code.iter().any(|one| {
            one.instruction.ip() == expected.rip
                && matches!(
                    one.instruction.memory_segment(),
                    Register::FS | Register::GS
                )
        })
}

/// Whether a masked operand reaches beyond the canonical addresses with lanes that the mask excludes.
/// The manual does not say whether these count (SDM volume 2, 2.8, "Exception classification of EVEX
/// instructions"); some of Intel's processors raise #GP or #SS for them, and the guest does not.
fn masked_lanes_are_not_canonical(code: &[Encoded], expected: &Outcome, got: &Outcome) -> bool {
    matches!((expected.vector, got.vector), (12 | 13, 14))
        && code.iter().any(|one| {
            let instruction = &one.instruction;
            instruction.ip() == expected.rip
                && instruction.encoding() == EncodingKind::EVEX
                && instruction.op_mask() != Register::None
        })
}

/// Whether two outcomes are both correct because an exception may precede another one of the same
/// class (SDM volume 3, table 6-2, note 1: within a class the order differs between processors), or
/// because the manual does not determine the access.
pub fn either_is_right(code: &[Encoded], expected: &Outcome, got: &Outcome) -> bool {
    use Mnemonic as M;
    let access_fault = |outcome: &Outcome| matches!(outcome.vector, 12..=14);
    let pending = |outcome: &Outcome| outcome.vector_state[2] & 0x80 != 0;
    // Another fault of the same access; equal faults are compared.
    let other_fault = access_fault(expected) && access_fault(got) && expected.vector != got.vector;
    if demands_canonical_offset(code, expected, got)
        || host_decoding() != Decoding::Amd && masked_lanes_are_not_canonical(code, expected, got)
    {
        return true;
    }
    code.iter().any(|one| match one.instruction.mnemonic() {
        // With an unmasked exception nothing is stored; the manual does not say whether the
        // destination is checked before.
        M::Fst | M::Fstp | M::Fist | M::Fistp | M::Fisttp | M::Fbstp => {
            // An FNINIT after it would hide that an exception is pending.
            let hidden = code.len() > 1;
            let not_stored = (pending(expected) || hidden)
                && access_fault(got)
                && got.rip == one.instruction.ip()
                && expected.rip != got.rip;
            not_stored || other_fault
        }
        // These are the two accesses of an 80-bit operand.
        M::Fld | M::Fbld => other_fault,
        // The target's limit and the stack's. In 64-bit code, the manual checks the target first
        // (SDM volume 2, CALL); Intel's processors push first.
        M::Call if expected.selectors[1] == USER_CODE64 => other_fault,
        M::Call => other_fault && expected.vector != 14 && got.vector != 14,
        // Bytes that are not selected may fault or not, and in any order (SDM volume 2, MASKMOVDQU:
        // "implementation dependent").
        M::Maskmovq | M::Maskmovdqu | M::Vmaskmovdqu => access_fault(expected),
        // Whether the host has set EFER.SVME is not known to programs ([`is_svm`]).
        _ if is_svm(&one.instruction) => expected.vector == 6 && got.vector == 13,
        // The exceptions of the value and those of the store.
        M::Vcvtps2ph => expected.vector == 19 && access_fault(got),
        M::Cmpsb | M::Cmpsw | M::Cmpsd | M::Cmpsq => other_fault,
        M::Bound => expected.vector == 5 && access_fault(got),
        // Header, alignment, limits and pages of an image are checked piece by piece.
        _ if has_several_accesses(&one.instruction) => other_fault,
        _ => false,
    })
}

/// Changes `got` to another valid outcome: a processor may make the transition to MMX state, or
/// note SIMD exceptions in MXCSR, before the operand faults. The manual (SDM volume 1, 9.5.1 and
/// 11.5) does not determine the order, and the instruction runs again with the same result.
pub fn done_before_the_fault(code: &[Encoded], expected: &Outcome, got: &mut [u8]) {
    if !matches!(expected.vector, 12..=14) {
        return;
    }
    let mmx = code.iter().any(|one| {
        (0..one.instruction.op_count()).any(|index| one.instruction.op_register(index).is_mm())
    });
    if mmx && expected.vector_state[3] & 0x38 == 0 {
        let top = usize::from(got[3] >> 3 & 7);
        got[3] &= !0x38;
        got[4] = expected.vector_state[4];
        got[32..160].rotate_right(top * 16);
    }
    let converts = |one: &Encoded| one.instruction.mnemonic() == Mnemonic::Vcvtps2ph;
    if code.iter().any(converts) {
        got[24] = expected.vector_state[24];
    }
}

/// Whether POPA's registers are undefined because the instruction has not completed: processors
/// leave the registers that were popped before the fault.
pub fn popped_before_the_fault(code: &[Encoded], expected: &Outcome) -> bool {
    matches!(expected.vector, 12..=14)
        && code
            .iter()
            .any(|one| matches!(one.instruction.mnemonic(), Mnemonic::Popa | Mnemonic::Popad))
}

/// Linear address of an instruction's memory operand, with the registers in `gpr`.
fn operand_address(case: &Case, instruction: &Instruction, gpr: &[u64; 16]) -> Option<u64> {
    let address = instruction.virtual_address(0, 0, |register, _, _| {
        Some(if register.is_segment_register() {
            case.world.base(crate::inputs::segment_register(register))
        } else if register.is_gpr16() {
            gpr[register.number()] & 0xffff
        } else if register.is_gpr32() {
            gpr[register.number()] & 0xffff_ffff
        } else {
            gpr[register.number() & 15]
        })
    });
    address.map(|address| address & case.world.mask())
}

/// Bytes that an instruction may have written before it faulted: those of PUSHA below the stack
/// pointer, a return address if the target exceeds the limit, and the part of an 80-bit store in an
/// accessible page. The instruction runs again and writes the same.
fn written_before_the_fault(
    case: &Case,
    one: &Encoded,
    expected: &Outcome,
) -> Option<Range<usize>> {
    let instruction = &one.instruction;
    let place = |address: u64| case.world.offset_of(address) as usize;
    match instruction.mnemonic() {
        Mnemonic::Pusha | Mnemonic::Pushad | Mnemonic::Call => {
            let base = case.world.base(SegmentRegister::Ss);
            let top = place(base.wrapping_add(expected.gpr[4])) & 0xffff;
            Some(top.saturating_sub(32)..top)
        }
        Mnemonic::Fbstp | Mnemonic::Fstp => {
            let start = place(operand_address(case, instruction, &expected.gpr)?);
            Some(start..start.saturating_add(10))
        }
        _ => None,
    }
}

/// Bytes of the window that are not compared: those that a faulting instruction may have written,
/// and parts of state images ([`crate::images`]).
pub fn uncompared_memory(
    case: &Case,
    code: &[Encoded],
    input: &Input,
    expected: &Outcome,
) -> Vec<Uncompared> {
    if partly_done(code, expected).is_some() {
        return vec![(0..WINDOW_BYTES, 0xff)];
    }
    if matches!(expected.vector, 12..=14) {
        return code
            .iter()
            .find(|one| one.instruction.ip() == expected.rip)
            .and_then(|one| written_before_the_fault(case, one, expected))
            .map(|range| (range, 0xff))
            .into_iter()
            .collect();
    }
    let [one] = code else { return Vec::new() };
    let Some(address) = operand_address(case, &one.instruction, &input.gpr) else {
        return Vec::new();
    };
    let offset = case.world.offset_of(address) as usize;
    let requested = input.gpr[0] & 0xffff_ffff | input.gpr[2] << 32;
    images::uncompared(&one.instruction, &expected.vector_state, requested)
        .into_iter()
        .map(|(range, bits)| {
            let place = offset.saturating_add(range.start)..offset.saturating_add(range.end);
            (place, bits)
        })
        .collect()
}

/// A gather or scatter with a mask register that faulted, if its partial result is the processor's
/// choice: elements above the one that faults may be done or not (SDM volume 2, VGATHERDPS and
/// VSCATTERDPS, "Description"). The guest behaves as AMD's processors do.
fn partly_done<'a>(code: &'a [Encoded], expected: &Outcome) -> Option<&'a Instruction> {
    let faulted = matches!(expected.vector, 12..=14) && host_decoding() != Decoding::Amd;
    let found = code
        .iter()
        .find(|one| one.instruction.ip() == expected.rip)?;
    let instruction = &found.instruction;
    (faulted && instruction.encoding() == EncodingKind::EVEX && instruction.is_vsib())
        .then_some(instruction)
}

/// Sets the registers in `got` to those of the host's processor if an instruction that loads them from
/// an image has faulted: the manual does not say which components are loaded before a piece of the
/// image is refused (SDM volume 1, 13.8.1).
pub fn partly_restored(code: &[Encoded], expected: &Outcome, got: &mut [u8]) {
    use Mnemonic as M;
    let restores = |one: &Encoded| {
        one.instruction.ip() == expected.rip
            && matches!(
                one.instruction.mnemonic(),
                M::Fxrstor | M::Fxrstor64 | M::Xrstor | M::Xrstor64
            )
    };
    if matches!(expected.vector, 12..=14) && code.iter().any(restores) {
        got.copy_from_slice(&expected.vector_state[..]);
    }
}

/// Sets destination and mask of a gather or scatter that faulted in `got` to those of the host's
/// processor.
pub fn partly_gathered(code: &[Encoded], expected: &Outcome, got: &mut [u8]) {
    let Some(instruction) = partly_done(code, expected) else {
        return;
    };
    let mut accept = |range: Range<usize>| {
        got[range.clone()].copy_from_slice(&expected.vector_state[range]);
    };
    let mask = OPMASK.start + instruction.op_mask().number() * 8;
    accept(mask..mask + 8);
    if instruction.op0_kind() != OpKind::Register {
        return;
    }
    match instruction.op0_register().number() {
        low @ 0..16 => {
            accept(160 + low * 16..176 + low * 16);
            accept(576 + low * 16..592 + low * 16);
            let high = ZMM_HIGH.start + low * 32;
            accept(high..high + 32);
        }
        high => {
            let start = ZMM_16_TO_31.start + (high & 15) * 64;
            accept(start..start + 64);
        }
    }
}

/// Whether a hypervisor determines the exception's instruction pointer. INT1 is a trap (SDM volume
/// 3, 6.15, #DB; APM volume 2, 8.2.2), but KVM on AMD's processors, which intercepts #DB, injects
/// it with the address of INT1 itself.
pub fn hypervisors_address(code: &[Encoded], expected: &Outcome, got: &Outcome) -> bool {
    (expected.vector, got.vector) == (1, 1)
        && has_hypervisor()
        && code.iter().any(|one| {
            let instruction = &one.instruction;
            instruction.mnemonic() == Mnemonic::Int1
                && (instruction.ip(), instruction.next_ip()) == (expected.rip, got.rip)
        })
}

/// Bit 31 of ECX in CPUID's leaf 1: whether the host runs under a hypervisor.
fn has_hypervisor() -> bool {
    std::arch::x86_64::__cpuid(1).ecx & 1 << 31 != 0
}

/// Bytes of the XSAVE area with those x87 pointers that every processor of the host's maker updates
/// in the same way. The instruction pointer: on Intel with each instruction, on AMD only with a
/// pending exception (APM volume 2, 11.4.4). Opcode and operand pointer are never compared, since
/// newer processors update them only with an unmasked exception (SDM volume 1, 8.1.8 and 8.1.9). In
/// 64-bit code (`long`) the instruction pointer has as many bits as addresses; some processors keep
/// the bits that images contain above those. Images in the form without REX.W have 32 bits, and the
/// guest keeps the selector next to them.
pub fn compared_pointers(code: &[Encoded], long: bool) -> Option<Range<usize>> {
    let intel =
        tollgate_emulate::cpuid::policy_of(tollgate_x86::CpuModel::Host).vendor() == Vendor::Intel;
    let narrow = code.iter().any(|one| {
        matches!(
            one.instruction.mnemonic(),
            Mnemonic::Fxrstor | Mnemonic::Xrstor
        )
    });
    intel.then_some(8..if long && !narrow { 14 } else { 12 })
}
