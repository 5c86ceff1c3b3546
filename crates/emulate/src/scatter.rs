//! AVX-512's gathers and scatters: one access for each lane whose mask bit is set, lane by lane
//! (SDM volume 2, VPGATHERDD and VPSCATTERDD). The bit is cleared once the lane is done, so that an
//! instruction that faulted resumes with the next lane.

use crate::Outcome;
use crate::cpuid::policy;
use crate::memory_access::{SegmentedAddress, read_memory, write_memory};
use crate::operand::{address_size, memory_address, size_mask};
use crate::vector_state::{Registers, VECTOR_SIZE, require_avx_512};
use iced_x86::{Instruction, Mnemonic, Register};
use tollgate_platform::Environment;
use tollgate_x86::{CpuState, Exception};

/// Sizes in bytes of an element and of an index; `None` for other instructions.
fn sizes(mnemonic: Mnemonic) -> Option<(usize, usize)> {
    use Mnemonic::*;
    Some(match mnemonic {
        Vpgatherdd | Vgatherdps | Vpscatterdd | Vscatterdps => (4, 4),
        Vpgatherdq | Vgatherdpd | Vpscatterdq | Vscatterdpd => (8, 4),
        Vpgatherqd | Vgatherqps | Vpscatterqd | Vscatterqps => (4, 8),
        Vpgatherqq | Vgatherqpd | Vpscatterqq | Vscatterqpd => (8, 8),
        _ => return None,
    })
}

/// The decoded operands of such an instruction.
struct Lanes {
    /// Size of an element in bytes.
    size: usize,
    /// Number of elements.
    count: usize,
    /// Number of the vector register that is loaded or stored.
    vector: usize,
    /// Number of the mask register.
    mask: usize,
    /// The address of each element.
    addresses: [SegmentedAddress; VECTOR_SIZE / 4],
}

impl Lanes {
    /// Decodes the operands.
    ///
    /// # Errors
    ///
    /// #UD if the instruction is not available, #NM.
    fn of(
        state: &mut CpuState,
        environment: &mut dyn Environment,
        instruction: &Instruction,
        vector: Register,
    ) -> Result<Self, Exception> {
        let policy = policy(state);
        let features = instruction.cpuid_features();
        let offered = features.iter().all(|feature| policy.offers(*feature));
        let mask = instruction.op_mask();
        let sizes = sizes(instruction.mnemonic()).filter(|_| offered && mask.is_k());
        let Some((size, index_size)) = sizes else {
            return Err(Exception::invalid_opcode());
        };
        require_avx_512(state)?;
        let index = instruction.memory_index();
        let count = (vector.size() / size).min(index.size() / index_size);
        let indexes = Registers::of(state, environment).zmm(index.number());
        // The base without the vector indexes, which `memory_address` takes as zero.
        let base = memory_address(state, instruction);
        let offset_mask = size_mask(address_size(state, instruction));
        let scale = i64::from(instruction.memory_index_scale());
        let addresses = std::array::from_fn(|lane| {
            let raw = indexes.get(lane * index_size..(lane + 1) * index_size);
            let index = match *raw.unwrap_or_default() {
                [a, b, c, d] => i64::from(i32::from_le_bytes([a, b, c, d])),
                [a, b, c, d, e, f, g, h] => i64::from_le_bytes([a, b, c, d, e, f, g, h]),
                _ => 0,
            };
            let moved = index.wrapping_mul(scale) as u64;
            SegmentedAddress {
                offset: base.offset.wrapping_add(moved) & offset_mask,
                ..base
            }
        });
        Ok(Self {
            size,
            count,
            vector: vector.number(),
            mask: mask.number(),
            addresses,
        })
    }

    /// The bytes of a lane in its vector register.
    fn element(&self, lane: usize) -> std::ops::Range<usize> {
        lane * self.size..(lane + 1) * self.size
    }
}

/// VPGATHERxx and VGATHERxPx with a mask register.
///
/// # Errors
///
/// #UD, #NM, or the fault of an element; the elements before it have been loaded.
pub fn gather(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let target = instruction.op0_register();
    if target.number() == instruction.memory_index().number() {
        return Err(Exception::invalid_opcode());
    }
    let lanes = Lanes::of(state, environment, instruction, target)?;
    let registers = Registers::of(state, environment);
    let (mut result, mut mask) = (registers.zmm(lanes.vector), registers.opmask(lanes.mask));
    let before = mask;
    for lane in 0..lanes.count {
        if mask & 1 << lane == 0 {
            continue;
        }
        let bytes = &mut result[lanes.element(lane)];
        if let Err(fault) = read_memory(state, environment, lanes.addresses[lane], bytes) {
            if mask != before {
                // A destination that is written is zero above the vector's length.
                let length = target.size().max(instruction.memory_index().size());
                result[length..].fill(0);
            }
            let mut registers = Registers::of(state, environment);
            registers.set_zmm(lanes.vector, &result);
            registers.set_opmask(lanes.mask, mask);
            return Err(fault);
        }
        mask &= !(1 << lane);
    }
    result[lanes.count * lanes.size..].fill(0);
    let mut registers = Registers::of(state, environment);
    registers.set_zmm(lanes.vector, &result);
    registers.set_opmask(lanes.mask, 0);
    Ok(Outcome::Next)
}

/// VPSCATTERxx and VSCATTERxPx.
///
/// # Errors
/// #UD, #NM, or the fault of an element; the elements before it have been stored.
pub fn scatter(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let lanes = Lanes::of(state, environment, instruction, instruction.op1_register())?;
    let registers = Registers::of(state, environment);
    let (source, mut mask) = (registers.zmm(lanes.vector), registers.opmask(lanes.mask));
    for lane in 0..lanes.count {
        if mask & 1 << lane == 0 {
            continue;
        }
        let bytes = &source[lanes.element(lane)];
        if let Err(fault) = write_memory(state, environment, lanes.addresses[lane], bytes) {
            Registers::of(state, environment).set_opmask(lanes.mask, mask);
            return Err(fault);
        }
        mask &= !(1 << lane);
    }
    Registers::of(state, environment).set_opmask(lanes.mask, 0);
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests;
