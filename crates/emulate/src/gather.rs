//! Vector instructions, VEX-encoded and older, that access memory element by element: AVX2 gathers,
//! masked moves, MASKMOVQ and MASKMOVDQU (SDM volume 2). Masked-out elements never fault.

use crate::Outcome;
use crate::cpuid::{CpuidPolicy, Vendor, policy};
use crate::memory_access::{
    SegmentedAddress, current_privilege, linear_address, probe_linear, read_memory, write_memory,
};
use crate::operand::{address_size, memory_address, size_mask};
use crate::vector_state::{
    Registers, VECTOR_SIZE, require_avx, require_mmx, require_vector, x87_error_pending,
};
use iced_x86::{Code, EncodingKind, Instruction, Mnemonic, OpKind, Register};
use tollgate_platform::Environment;
use tollgate_x86::paging::AccessKind;
use tollgate_x86::{CpuState, Exception, Gpr};

/// Fails with #UD unless the instruction is VEX-encoded and all features that it needs are offered;
/// then fails as [`require_avx`] does.
fn require_vex(state: &CpuState, instruction: &Instruction) -> Result<(), Exception> {
    let offered = instruction
        .cpuid_features()
        .iter()
        .all(|feature| policy(state).offers(*feature));
    if instruction.code().encoding() != EncodingKind::VEX || !offered {
        return Err(Exception::invalid_opcode());
    }
    require_avx(state)
}

/// Whether the top bit of an element in `mask` is set.
fn is_selected(mask: &[u8], index: usize, size: usize) -> bool {
    mask.get((index + 1) * size - 1)
        .is_some_and(|byte| byte & 0x80 != 0)
}

/// Fills every mask element within the vector's length with its sign, and the rest with zero.
fn extend_signs(mask: &mut [u8; VECTOR_SIZE], length: usize, size: usize) {
    mask[length..].fill(0);
    for element in 0..length / size {
        let sign = if is_selected(mask, element, size) {
            0xff
        } else {
            0
        };
        mask[element * size..(element + 1) * size].fill(sign);
    }
}

/// Sizes in bytes of the elements and indexes of a gather.
fn gather_sizes(mnemonic: Mnemonic) -> Option<(usize, usize)> {
    Some(match mnemonic {
        Mnemonic::Vpgatherdd | Mnemonic::Vgatherdps => (4, 4),
        Mnemonic::Vpgatherdq | Mnemonic::Vgatherdpd => (8, 4),
        Mnemonic::Vpgatherqd | Mnemonic::Vgatherqps => (4, 8),
        Mnemonic::Vpgatherqq | Mnemonic::Vgatherqpd => (8, 8),
        _ => return None,
    })
}

/// VPGATHERxx and VGATHERxPx. After a fault, the destination contains the elements that were
/// loaded, and their mask elements are clear, so that the instruction can resume. The other mask
/// elements are then filled with their signs, and mask and destination are zero beyond the vector's
/// length (SDM volume 2, VPGATHERDD, "Operation"); AMD's processors leave all of that unchanged.
///
/// # Errors
///
/// #UD, #NM, or the fault of an element.
pub fn gather(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_vex(state, instruction)?;
    let Some((size, index_size)) = gather_sizes(instruction.mnemonic()) else {
        return Err(Exception::invalid_opcode());
    };
    let target = instruction.op0_register();
    let index_register = instruction.memory_index();
    let mask_register = instruction.op2_register();
    let [to, from, masked] = [target, index_register, mask_register].map(Register::number);
    if to == from || to == masked || from == masked {
        return Err(Exception::invalid_opcode());
    }
    let count = (target.size() / size).min(index_register.size() / index_size);
    let registers = Registers::of(state, environment);
    let indexes = registers.ymm(from);
    let (mut result, mut mask) = (registers.zmm(to), registers.zmm(masked));
    let length = mask_register.size().max(index_register.size());
    let changes_early = policy(state).vendor() != Vendor::Amd;
    if changes_early {
        extend_signs(&mut mask, length, size);
    }
    // The base without the vector indexes, which `memory_address` takes as zero.
    let base = memory_address(state, instruction);
    let offset_mask = size_mask(address_size(state, instruction));
    let scale = i64::from(instruction.memory_index_scale());
    let mut loaded_any = false;
    for element in 0..count {
        let range = element * size..(element + 1) * size;
        if is_selected(&mask, element, size) {
            let raw = &indexes[element * index_size..(element + 1) * index_size];
            let mut wide = [if raw[index_size - 1] & 0x80 != 0 {
                0xff
            } else {
                0
            }; 8];
            wide[..index_size].copy_from_slice(raw);
            let moved = i64::from_le_bytes(wide).wrapping_mul(scale) as u64;
            let address = SegmentedAddress {
                offset: base.offset.wrapping_add(moved) & offset_mask,
                ..base
            };
            let loaded = &mut result[range.clone()];
            let mut bytes = [0; 8];
            if let Err(fault) = read_memory(state, environment, address, &mut bytes[..size]) {
                let mut registers = Registers::of(state, environment);
                registers.set_zmm(to, &result);
                registers.set_zmm(masked, &mask);
                return Err(fault);
            }
            loaded.copy_from_slice(&bytes[..size]);
            if changes_early && !loaded_any {
                // A destination that is written is zero above the vector's length.
                loaded_any = true;
                result[length..].fill(0);
            }
        }
        mask[range].fill(0);
    }
    result[count * size..].fill(0);
    let mut registers = Registers::of(state, environment);
    registers.set_zmm(to, &result);
    registers.set_zmm(masked, &[0; VECTOR_SIZE]);
    Ok(Outcome::Next)
}

/// The first AMD family whose masked moves access one operand, as Intel's do.
const ONE_OPERAND: u32 = 0x1a;

/// Whether the address of each element of a masked move wraps separately at the address size.
pub(crate) fn wraps_each_element(policy: &CpuidPolicy) -> bool {
    policy.vendor() == Vendor::Amd && policy.family() < ONE_OPERAND
}

/// VMASKMOVPS, VMASKMOVPD, VPMASKMOVD and VPMASKMOVQ, as loads and stores. On AMD's processors
/// before family 1Ah, the address of each element wraps at the address size; other processors
/// access one operand of contiguous bytes.
///
/// # Errors
///
/// #UD, #NM, or the fault of an element; nothing was stored then.
pub fn masked_move(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    require_vex(state, instruction)?;
    let size = match instruction.mnemonic() {
        Mnemonic::Vmaskmovps | Mnemonic::Vpmaskmovd => 4,
        Mnemonic::Vmaskmovpd | Mnemonic::Vpmaskmovq => 8,
        _ => return Err(Exception::invalid_opcode()),
    };
    let mask_register = instruction.op1_register();
    let count = mask_register.size() / size;
    let base = memory_address(state, instruction);
    let wrap = if wraps_each_element(policy(state)) {
        size_mask(address_size(state, instruction))
    } else {
        u64::MAX
    };
    let place = |element: usize| SegmentedAddress {
        offset: base.offset.wrapping_add((element * size) as u64) & wrap,
        ..base
    };
    let registers = Registers::of(state, environment);
    let mask = registers.ymm(mask_register.number());
    let selected = |element: &usize| is_selected(&mask, *element, size);
    if instruction.op0_kind() == OpKind::Register {
        let mut result = [0; 32];
        for element in (0..count).filter(selected) {
            let bytes = &mut result[element * size..(element + 1) * size];
            read_memory(state, environment, place(element), bytes)?;
        }
        let number = instruction.op0_register().number();
        Registers::of(state, environment).set_ymm(number, &result);
    } else {
        let source = registers.ymm(instruction.op2_register().number());
        for element in (0..count).filter(selected) {
            probe(state, environment, place(element), size)?;
        }
        for element in (0..count).filter(selected) {
            let bytes = &source[element * size..(element + 1) * size];
            write_memory(state, environment, place(element), bytes)?;
        }
    }
    Ok(Outcome::Next)
}

/// Checks that a write would succeed.
fn probe(
    state: &CpuState,
    environment: &mut dyn Environment,
    address: SegmentedAddress,
    size: usize,
) -> Result<(), Exception> {
    let linear = linear_address(state, address, size as u32, AccessKind::Write)?;
    let privilege = current_privilege(state);
    probe_linear(state, environment, linear, size as u32, privilege)
}

/// MASKMOVQ, MASKMOVDQU and VMASKMOVDQU: store the selected bytes at DS:DI (or in another segment).
/// If no byte is selected, no memory is accessed.
///
/// # Errors
///
/// #UD, #NM, #MF (MASKMOVQ), or the fault of a byte; nothing was stored then.
pub fn masked_bytes(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let is_mmx = instruction.code() == Code::Maskmovq_rDI_mm_mm;
    if is_mmx {
        require_mmx(state)?;
        if x87_error_pending(state, environment)? {
            return Ok(Outcome::Repeat);
        }
    } else {
        require_vector(state, instruction.code().encoding() == EncodingKind::VEX)?;
    }
    let mask = size_mask(match instruction.op0_kind() {
        OpKind::MemorySegDI => 2,
        OpKind::MemorySegRDI => 8,
        _ => 4,
    });
    let base = SegmentedAddress {
        segment: crate::operand::memory_segment(state, instruction),
        offset: state.register(Gpr::Rdi) & mask,
    };
    let (source, selector) = (instruction.op1_register(), instruction.op2_register());
    let (mut bytes, mut select) = ([0; 16], [0; 16]);
    let count = if is_mmx { 8 } else { 16 };
    let registers = Registers::of(state, environment);
    if is_mmx {
        bytes[..8].copy_from_slice(&registers.mm(source.number()));
        select[..8].copy_from_slice(&registers.mm(selector.number()));
    } else {
        bytes.copy_from_slice(&registers.ymm(source.number())[..16]);
        select.copy_from_slice(&registers.ymm(selector.number())[..16]);
    }
    let chosen: Vec<usize> = (0..count).filter(|at| select[*at] & 0x80 != 0).collect();
    let place = |at: usize| SegmentedAddress {
        offset: base.offset.wrapping_add(at as u64) & mask,
        ..base
    };
    for at in &chosen {
        probe(state, environment, place(*at), 1)?;
    }
    for at in &chosen {
        write_memory(state, environment, place(*at), &bytes[*at..=*at])?;
    }
    if is_mmx {
        Registers::of(state, environment).enter_mmx();
    }
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests;
