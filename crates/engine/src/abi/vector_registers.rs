//! The save area of the guest's x87, SSE, AVX and AVX-512 registers, and how the host's
//! instructions for it are used.

use tollgate_x86::state::VectorState;
use tollgate_x86::xsave::{HEADER, component};

/// The components that every host and every guest has: x87, SSE and AVX.
pub const ALWAYS: u64 = component::X87 | component::SSE | component::AVX;

/// Makes an area safe for XRSTOR: what the guest wrote through state images must not raise #GP in
/// the monitor (SDM volume 1, 13.8.1).
pub fn sanitize(state: &mut VectorState) {
    let header = &mut state.0[HEADER..HEADER + 64];
    header[0] &= component::ALL as u8;
    header[1..].fill(0);
    let mxcsr = u32::from_le_bytes([state.0[24], state.0[25], state.0[26], state.0[27]]) & 0xffff;
    state.0[24..28].copy_from_slice(&mxcsr.to_le_bytes());
}

/// Whether the host has XSAVEC, which skips components in their initial configuration. A host
/// without XSAVEC has no AVX-512 (SDM volume 1, 13.2).
pub fn host_compacts() -> bool {
    std::arch::is_x86_feature_detected!("xsavec")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bits_are_cleared() {
        let mut state = VectorState::initial();
        state.0[26] = 1;
        state.0[512] = 0xff;
        state.0[513] = 0xff;
        state.0[520] = 1;
        state.0[560] = 1;
        sanitize(&mut state);
        assert_eq!(state.in_use(), component::ALL);
        state.0[512] = 3;
        assert_eq!(state, VectorState::initial());
    }
}
