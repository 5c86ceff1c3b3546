//! The parts of a stored state image that may differ between processors, each with the manual's
//! reason.

use crate::encode::host_decoding;
use iced_x86::{Instruction, Mnemonic};
use std::ops::Range;
use tollgate_emulate::cpuid::policy_of;
use tollgate_engine::decode::intel_amd_differences::Decoding;
use tollgate_x86::CpuModel;
use tollgate_x86::state::XSAVE_SIZE;
use tollgate_x86::xsave::{EXTENDED, EXTENDED_REGION, component};

/// Bytes of memory, and those of their bits that are not compared.
pub type Uncompared = (Range<usize>, u8);

/// Offsets in an XSAVE area (SDM volume 1, tables 10-2 and 13-1).
mod at {
    pub const TAGS: usize = 4;
    /// The third byte of MXCSR_MASK.
    pub const MXCSR_MASK_BITS_16_TO_23: usize = 30;
    pub const XSTATE_BV: usize = 512;
}

/// A state component: its bit in XSTATE_BV and its parts in the image.
struct Component {
    bit: u8,
    parts: [Range<usize>; 2],
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}

/// The components of `vector` that are in their initial configuration (SDM volume 1, 13.6). The
/// image is compacted or not, and contains the components `requested`.
fn initial_components(
    vector: &[u8; XSAVE_SIZE],
    is_compacted: bool,
    requested: u64,
) -> Vec<Component> {
    let mut found = Vec::new();
    let mut add = |is_initial: bool, bit: u64, parts: [Range<usize>; 2]| {
        if is_initial {
            let bit = bit as u8;
            found.push(Component { bit, parts });
        }
    };
    let control_to_tags = &vector[..=at::TAGS];
    let x87 = control_to_tags == [0x7f, 0x03, 0, 0, 0] && is_zero(&vector[32..160]);
    add(x87, component::X87, [0..24, 32..160]);
    if is_compacted {
        // MXCSR belongs to SSE's registers (SDM volume 1, 13.10).
        let sse = is_zero(&vector[160..416]) && vector[24..28] == 0x1f80u32.to_le_bytes();
        add(sse, component::SSE, [24..32, 160..416]);
    } else {
        add(is_zero(&vector[160..416]), component::SSE, [0..0, 160..416]);
    }
    let mut next = EXTENDED_REGION;
    for (index, part) in EXTENDED.iter().enumerate() {
        let place = match is_compacted {
            true => next,
            false => policy_of(CpuModel::Host).component_offset(index),
        };
        if requested & part.bit != 0 {
            next += part.size;
        }
        let is_initial = is_zero(&vector[part.start..part.start + part.size]);
        let place = place..place + part.size;
        add(
            is_initial && requested & part.bit != 0,
            part.bit,
            [0..0, place],
        );
    }
    found
}

/// The parts that are not compared of the image of `vector` that `instruction` stores, as offsets
/// from its start:
///
/// - the x87's last instruction and operand pointers, which processors update by different rules
///   (SDM volume 1, 8.1.8: FDP only with an unmasked exception, FCS and FDS as zero; APM volume 2,
///   11.4.4: only with a pending exception);
/// - bit 17 of MXCSR_MASK on AMD's processors: the mode of misaligned SSE operands (APM volume 1,
///   4.2.2), which no guest is offered;
/// - whether a component in its initial configuration is in use, which is the implementation's
///   choice (SDM volume 1, 13.6), and whether XSAVEOPT and XSAVEC, which omit components that are
///   not in use (13.9), store it.
///
/// `requested` are the components that EDX and EAX request.
pub fn uncompared(
    instruction: &Instruction,
    vector: &[u8; XSAVE_SIZE],
    requested: u64,
) -> Vec<Uncompared> {
    use Mnemonic as M;
    let mut is_compacted = false;
    let (extended, optimized) = match instruction.mnemonic() {
        M::Fnstenv | M::Fnsave => {
            let pointers = match instruction.memory_size().size() {
                28 | 108 => 12..28,
                _ => 6..14,
            };
            return vec![(pointers, 0xff)];
        }
        M::Fxsave | M::Fxsave64 => (false, false),
        M::Xsave | M::Xsave64 => (true, false),
        M::Xsaveopt | M::Xsaveopt64 => (true, true),
        M::Xsavec | M::Xsavec64 => {
            is_compacted = true;
            (true, true)
        }
        _ => return Vec::new(),
    };
    let mut found: Vec<Uncompared> = vec![(6..24, 0xff)];
    if host_decoding() == Decoding::Amd {
        let byte = at::MXCSR_MASK_BITS_16_TO_23;
        found.push((byte..byte + 1, 1 << 1));
    }
    if extended {
        for component in initial_components(vector, is_compacted, requested) {
            found.push((at::XSTATE_BV..at::XSTATE_BV + 1, component.bit));
            if optimized {
                let parts = component.parts.into_iter();
                found.extend(parts.map(|part| (part, 0xff)));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions};

    fn bits(code: &[u8], vector: &[u8; XSAVE_SIZE], offset: usize) -> u8 {
        let instruction = Decoder::new(64, code, DecoderOptions::NONE).decode();
        uncompared(&instruction, vector, 7)
            .iter()
            .filter(|(range, _)| range.contains(&offset))
            .fold(0, |bits, (_, more)| bits | more)
    }

    const XSAVE: [u8; 3] = [0x0f, 0xae, 0x20];
    const XSAVEOPT: [u8; 3] = [0x0f, 0xae, 0x30];

    #[test]
    fn a_component_is_told_as_in_use_unless_it_is_initial() {
        let mut vector = [0; XSAVE_SIZE];
        vector[..2].copy_from_slice(&[0x7f, 0x03]);
        assert_eq!(bits(&XSAVE, &vector, 512), 7);
        vector[0] = 0x7e;
        assert_eq!(bits(&XSAVE, &vector, 512), 6);
        vector[415] = 1;
        assert_eq!(bits(&XSAVE, &vector, 512), 4);
        vector[576] = 1;
        assert_eq!(bits(&XSAVE, &vector, 512), 0);
    }

    #[test]
    fn xsaveopt_alone_may_leave_out_what_is_initial() {
        let mut vector = [0; XSAVE_SIZE];
        assert_eq!(bits(&XSAVE, &vector, 160), 0);
        assert_eq!(bits(&XSAVEOPT, &vector, 160), 0xff);
        // FCW differs from its value after FNINIT, so the x87 state is in use.
        assert_eq!(bits(&XSAVEOPT, &vector, 32), 0);
        vector[160] = 1;
        assert_eq!(bits(&XSAVEOPT, &vector, 160), 0);
        assert_eq!(bits(&XSAVEOPT, &vector, 24), 0);
    }
}
