//! Contents for the x87 and vector registers.

use super::filling;
use tollgate_emulate::cpuid::policy_of;
use tollgate_x86::CpuModel;
use tollgate_x86::state::VectorState;

/// A state in which all registers are in use, with settings that differ from every default.
pub fn vectors(seed: u32) -> VectorState {
    let mut state = VectorState::initial();
    for (at, byte) in state.0.iter_mut().enumerate() {
        if (32..512).contains(&at) || at >= 576 {
            *byte = filling(seed.wrapping_mul(4096).wrapping_add(at as u32));
        }
    }
    // Registers have 10 bytes in places of 16. The memory after XMM15 is not compared.
    for register in 0..8 {
        state.0[32 + 16 * register + 10..48 + 16 * register].fill(0);
    }
    state.0[416..512].fill(0);
    // FCW: precision 53 bits, rounding up. FSW: TOP is 4. Four registers are valid.
    state.0[0..2].copy_from_slice(&0x0a7f_u16.to_le_bytes());
    state.0[2..4].copy_from_slice(&0x2000_u16.to_le_bytes());
    state.0[4] = 0xf0;
    // The fields FOP, FIP, FCS, FDP and FDS.
    state.0[6..8].copy_from_slice(&0x05f3_u16.to_le_bytes());
    state.0[8..14].copy_from_slice(&[0x78, 0x56, 0x34, 0x12, 0x10, 0]);
    state.0[16..22].copy_from_slice(&[0xdc, 0xfe, 0xba, 0x98, 0x18, 0]);
    // MXCSR: rounding down.
    state.0[24..28].copy_from_slice(&0x3f80_u32.to_le_bytes());
    state.0[512] = policy_of(CpuModel::Host).xcr0_mask() as u8;
    state
}
