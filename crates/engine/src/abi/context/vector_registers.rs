//! Prepares the save area of the vector registers for the way into guest code, and settles it after.

use super::Context;
use crate::abi::vector_registers::ALWAYS;
use tollgate_x86::xsave::{COMPACTED, HEADER, XCOMP_BV, component};

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
