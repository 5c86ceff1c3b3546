//! What a host program expects of the processor whenever its own code runs: the guest's
//! values must not have stayed.

use std::arch::asm;

/// Bits of MXCSR that are settings; the others record what has happened.
const MXCSR_SETTINGS: u32 = 0xffc0;
/// EFLAGS that change how later instructions work: TF, DF, NT, AC.
const STEERING_FLAGS: u64 = 1 << 8 | 1 << 10 | 1 << 14 | 1 << 18;

/// The processor's settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostState {
    mxcsr: u32,
    x87_control: u16,
    /// Every x87 register is empty, as the ABI has it at a call.
    x87_tags: u16,
    flags: u64,
}

impl HostState {
    /// As they are now.
    pub fn now() -> Self {
        let (mut mxcsr, mut environment, mut flags) = (0u32, [0u16; 14], 0u64);
        // SAFETY: stores 4 bytes and 28 bytes into variables that have as many, and reads
        // the flags through a stack that the compiler lets this use. FNSTENV masks all
        // exceptions, so the control word is loaded again.
        unsafe {
            asm!(
                "stmxcsr [{mxcsr}]",
                "fnstenv [{environment}]",
                "fldcw word ptr [{environment}]",
                "pushfq",
                "pop {flags}",
                mxcsr = in(reg) &raw mut mxcsr,
                environment = in(reg) &raw mut environment,
                flags = inout(reg) flags,
            );
        }
        Self {
            mxcsr: mxcsr & MXCSR_SETTINGS,
            x87_control: environment[0],
            x87_tags: environment[4],
            flags: flags & STEERING_FLAGS,
        }
    }
}
