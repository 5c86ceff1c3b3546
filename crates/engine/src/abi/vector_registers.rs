//! The save area of the guest's x87, SSE and AVX registers.

use tollgate_x86::state::VectorState;

/// Components that the guest may enable: x87, SSE, AVX.
const COMPONENTS: u8 = 7;

/// Makes an area safe for XRSTOR: what the guest wrote through state images must not
/// raise #GP in the monitor (SDM volume 1, 13.8.1).
pub fn sanitize(state: &mut VectorState) {
    let header = &mut state.0[512..576];
    header[0] &= COMPONENTS;
    header[1..].fill(0);
    let mxcsr = u32::from_le_bytes([state.0[24], state.0[25], state.0[26], state.0[27]]) & 0xffff;
    state.0[24..28].copy_from_slice(&mxcsr.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reserved_bits_are_cleared() {
        let mut state = VectorState::initial();
        state.0[26] = 1;
        state.0[513] = 0xff;
        state.0[560] = 1;
        sanitize(&mut state);
        assert_eq!(state, VectorState::initial());
    }
}
