//! The registers of the machine-check architecture (SDM volume 3, chapter 16; APM volume 2, chapter
//! 9), in which a processor reports hardware errors.
//!
//! This processor has the banks that operating systems expect, and never reports an error.

use serde::{Deserialize, Serialize};

/// The number of banks of error-reporting registers; QEMU's processors have the same number.
pub const BANKS: usize = 10;

/// One bank of error-reporting registers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[repr(C)]
pub struct Bank {
    /// MCi_CTL: which errors of the bank are signalled.
    pub control: u64,
    /// The bank's register MCi_STATUS.
    pub status: u64,
    /// The bank's register MCi_ADDR.
    pub address: u64,
    /// The bank's register MCi_MISC.
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
    /// All banks of error-reporting registers.
    pub banks: [Bank; BANKS],
    /// AMD's HWCR.McStatusWrEn: the banks' status registers accept any value.
    pub takes_any_status: bool,
}

impl MachineCheck {
    /// The state after power-up: everything is enabled, and no error is recorded.
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
