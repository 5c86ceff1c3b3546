//! The save area of the guest's x87, SSE, AVX and AVX-512 registers, and how the host's
//! instructions for it are used.

use crate::abi::context::Context;
use tollgate_x86::state::VectorState;
use tollgate_x86::xsave::{COMPACTED, HEADER, XCOMP_BV, component};

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

impl Context {
    /// Sets which components guest code may use: they are loaded and saved together.
    pub fn set_vector_components(&mut self, components: u64) {
        self.vectors.components = components & component::ALL | ALWAYS;
    }

    /// Gives the header the form that the way in needs, if that is going to load the vector
    /// registers, and notes XSTATE_BV. The fast path that loads the registers later does the same.
    pub(crate) fn prepare_vector_load(&mut self) {
        if self.vectors.load == 0 {
            return;
        }
        let area = &mut self.cpu.vector.0;
        area[HEADER] &= self.vectors.components as u8;
        if self.vectors.compacts != 0 {
            let format = COMPACTED | self.vectors.components;
            area[XCOMP_BV..XCOMP_BV + 8].copy_from_slice(&format.to_le_bytes());
        }
        self.vectors.before = self.cpu.vector.in_use();
    }

    /// Clears what the saved area must not keep while guest code is outside. XSAVEC has not touched
    /// the bytes of components that became initial since they were loaded.
    pub(crate) fn settle_vector_area(&mut self) {
        let state = &mut self.cpu.vector;
        state.0[XCOMP_BV..XCOMP_BV + 8].fill(0);
        // MXCSR_MASK is the host's, not the guest's, and is not always stored.
        state.0[28..32].fill(0);
        let ended = self.vectors.before & !state.in_use();
        if ended != 0 {
            state.initialize(ended);
        }
    }
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
