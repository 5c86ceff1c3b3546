//! The registers of the machine-check architecture (SDM volume 3, chapter 16; APM volume 2,
//! chapter 9): where a processor reports errors of its own parts.
//!
//! This processor has the banks that systems expect, and never an error to report.

use serde::{Deserialize, Serialize};

/// How many banks of error-reporting registers there are; QEMU's processors have as many.
pub const BANKS: usize = 10;

/// One bank of error-reporting registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(C)]
pub struct Bank {
    /// MCi_CTL: which errors of the bank are signalled.
    pub control: u64,
    /// MCi_STATUS.
    pub status: u64,
    /// MCi_ADDR.
    pub address: u64,
    /// MCi_MISC.
    pub miscellaneous: u64,
}

/// The machine-check registers of a processor.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(C)]
pub struct MachineCheck {
    /// MCG_STATUS.
    pub status: u64,
    /// MCG_CTL: which banks are enabled.
    pub control: u64,
    /// The banks.
    pub banks: [Bank; BANKS],
    /// AMD's HWCR.McStatusWrEn: the banks' status registers take any value.
    pub takes_any_status: bool,
}

impl MachineCheck {
    /// The state after power-up: everything enabled, and no error.
    pub const fn at_reset() -> Self {
        let bank = Bank {
            control: u64::MAX,
            status: 0,
            address: 0,
            miscellaneous: 0,
        };
        Self {
            status: 0,
            control: u64::MAX,
            banks: [bank; BANKS],
            takes_any_status: false,
        }
    }
}
