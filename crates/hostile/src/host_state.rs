//! The processor state that a host program expects whenever its own code runs: the guest's values
//! must not remain.

use std::arch::asm;

/// The settings in MXCSR; its other bits record past exceptions.
const MXCSR_SETTINGS: u32 = 0xffc0;
/// The EFLAGS that change how later instructions work: TF, DF, NT, AC.
const STEERING_FLAGS: u64 = 1 << 8 | 1 << 10 | 1 << 14 | 1 << 18;

/// The processor's settings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostState {
    mxcsr: u32,
    x87_control: u16,
    /// Whether every x87 register is empty, as the ABI requires at a call.
    x87_tags: u16,
    flags: u64,
}

impl HostState {
    /// The present settings.
    pub fn now() -> Self {
        let (mut mxcsr, mut environment, mut flags) = (0u32, [0u16; 14], 0u64);
        // SAFETY: stores 4 bytes and 28 bytes to variables of these sizes, and reads the flags
        // through the stack, which the compiler permits here. FNSTENV masks all exceptions, so the
        // control word is loaded again.
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
