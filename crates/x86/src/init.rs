//! The effect of INIT on a processor. On a PC, the keyboard controller, port 92h and a shutdown
//! pulse this line.

use crate::registers::Cr0;
use crate::state::CpuState;

impl CpuState {
    /// The processor after INIT: the state after a reset, except for what SDM volume 3, table 9-1
    /// says to keep: x87 and vector registers, XCR0, the time-stamp counter and the other
    /// model-specific registers, CR0.CD and CR0.NW. EFER is cleared (APM volume 2, table 14-1). The
    /// A20 gate is not part of the processor, so its state is kept.
    #[must_use]
    pub fn after_init(&self) -> Self {
        let reset = Self::at_reset();
        let cached = (Cr0::CD | Cr0::NW).bits();
        Self {
            cr0: reset.cr0 & !cached | self.cr0 & cached,
            xcr0: self.xcr0,
            sysenter_cs: self.sysenter_cs,
            sysenter_esp: self.sysenter_esp,
            sysenter_eip: self.sysenter_eip,
            star: self.star,
            lstar: self.lstar,
            cstar: self.cstar,
            sfmask: self.sfmask,
            kernel_gs_base: self.kernel_gs_base,
            tsc_aux: self.tsc_aux,
            pat: self.pat,
            misc_enable: self.misc_enable,
            memory_types: self.memory_types.clone(),
            machine_check: self.machine_check.clone(),
            debugged: self.debugged,
            tsc_offset: self.tsc_offset,
            a20_mask: self.a20_mask,
            pkru: self.pkru,
            pkrs: self.pkrs,
            model: self.model,
            added_features: self.added_features,
            paravirtual: self.paravirtual,
            vector: self.vector.clone(),
            ..reset
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registers::Efer;

    #[test]
    fn init_keeps_msrs_and_vector_registers_and_resets_the_rest() {
        let mut state = CpuState::at_reset();
        state.gpr[0] = 5;
        state.rip = 0x1234;
        state.cr0 = 0x8000_0011;
        state.cr3 = 0x7000;
        state.efer = Efer::LME.bits();
        state.lstar = 0x77;
        state.tsc_offset = 9;
        state.memory_types.default_type = 0xc06;
        state.machine_check.status = 4;
        state.vector.0[32] = 0xaa;
        state.nmi_blocked = true;
        state.a20_mask = !(1 << 20);
        let after = state.after_init();
        assert_eq!((after.rip, after.cs().base), (0xfff0, 0xffff_0000));
        assert_eq!((after.cr0, after.cr3, after.efer), (0x10, 0, 0));
        assert_eq!((after.gpr[0], after.nmi_blocked), (0, false));
        assert_eq!((after.lstar, after.tsc_offset), (0x77, 9));
        assert_eq!(after.memory_types, state.memory_types);
        assert_eq!(after.machine_check, state.machine_check);
        assert_eq!((after.vector.0[32], after.a20_mask), (0xaa, !(1 << 20)));
    }
}
