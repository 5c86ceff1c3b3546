//! The MSRs of the machine-check architecture (SDM volume 3, 16.3; APM volume 2, 9.3). No error is
//! ever reported: the registers hold what an operating system writes, as far as the maker's
//! processors accept it.

use crate::cpuid::Vendor;
use tollgate_x86::machine_check::{BANKS, MachineCheck};

/// IA32_P5_MC_ADDR and IA32_P5_MC_TYPE, introduced by the Pentium and kept by later processors.
const PENTIUM_ADDRESS: u32 = 0;
const PENTIUM_TYPE: u32 = 1;
/// IA32_MCG_CAP, which cannot be written.
const CAPABILITIES: u32 = 0x179;
/// The MSR number of IA32_MCG_STATUS.
const STATUS: u32 = 0x17a;
/// The MSR number of IA32_MCG_CTL.
const CONTROL: u32 = 0x17b;
/// The MSR number of IA32_MC0_CTL; each bank has four registers.
const FIRST_OF_BANKS: u32 = 0x400;
const LAST_OF_BANKS: u32 = FIRST_OF_BANKS + 4 * BANKS as u32 - 1;

/// The value of IA32_MCG_CAP: the number of banks, and that IA32_MCG_CTL exists (bit 8).
const OFFERED: u64 = BANKS as u64 | 1 << 8;
/// The bits that IA32_MCG_STATUS implements: RIPV, EIPV, MCIP.
const STATUS_BITS: u64 = 7;

/// A register of a bank, in the order of the MSR numbers.
enum BankRegister {
    Control,
    Status,
    Address,
    Miscellaneous,
}

/// The bank and register with this MSR number; `None` if it belongs to no bank.
fn of_bank(msr: u32) -> Option<(usize, BankRegister)> {
    if !(FIRST_OF_BANKS..=LAST_OF_BANKS).contains(&msr) {
        return None;
    }
    let offset = msr - FIRST_OF_BANKS;
    let register = match offset % 4 {
        0 => BankRegister::Control,
        1 => BankRegister::Status,
        2 => BankRegister::Address,
        _ => BankRegister::Miscellaneous,
    };
    Some(((offset / 4) as usize, register))
}

/// The value of the machine-check register with this MSR number; `None` for other MSRs.
pub fn read(registers: &MachineCheck, msr: u32) -> Option<u64> {
    match msr {
        PENTIUM_ADDRESS | PENTIUM_TYPE => return Some(0),
        CAPABILITIES => return Some(OFFERED),
        STATUS => return Some(registers.status),
        CONTROL => return Some(registers.control),
        _ => {}
    }
    let (bank, register) = of_bank(msr)?;
    let bank = &registers.banks[bank];
    Some(match register {
        BankRegister::Control => bank.control,
        BankRegister::Status => bank.status,
        BankRegister::Address => bank.address,
        BankRegister::Miscellaneous => bank.miscellaneous,
    })
}

/// Writes the machine-check register with this MSR number, and returns whether the value is
/// accepted; `None` for other MSRs.
pub fn write(registers: &mut MachineCheck, vendor: Vendor, msr: u32, value: u64) -> Option<bool> {
    match msr {
        // Like the banks' status registers, these can only be cleared.
        PENTIUM_ADDRESS | PENTIUM_TYPE => return Some(value == 0),
        CAPABILITIES => return Some(false),
        STATUS => {
            // Intel's processors refuse reserved bits, AMD's ignore them.
            let is_taken = value & !STATUS_BITS == 0 || vendor == Vendor::Amd;
            if is_taken {
                registers.status = value & STATUS_BITS;
            }
            return Some(is_taken);
        }
        CONTROL => {
            registers.control = value;
            return Some(true);
        }
        _ => {}
    }
    let (bank, register) = of_bank(msr)?;
    Some(write_bank(registers, vendor, bank, &register, value))
}

/// Writes a register of a bank, and returns whether the value is accepted.
///
/// The status can be cleared and accepts no other value (SDM volume 3, 16.3.2.2), on AMD's
/// processors unless HWCR.McStatusWrEn is set (APM volume 2, 9.3.2.1). The same is true for Intel's
/// address and miscellaneous registers (16.3.2.3 and 16.3.2.4). AMD's address register holds any
/// value, and its miscellaneous register reads as zero: the bank has no error counter.
fn write_bank(
    registers: &mut MachineCheck,
    vendor: Vendor,
    bank: usize,
    register: &BankRegister,
    value: u64,
) -> bool {
    let takes_any_status = registers.takes_any_status;
    let bank = &mut registers.banks[bank];
    let amd = vendor == Vendor::Amd;
    match register {
        BankRegister::Control => bank.control = value,
        BankRegister::Status if value == 0 || amd && takes_any_status => bank.status = value,
        BankRegister::Address if value == 0 || amd => bank.address = value,
        BankRegister::Miscellaneous if value == 0 || amd => {}
        _ => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAKERS: [Vendor; 2] = [Vendor::Intel, Vendor::Amd];

    fn bank(index: usize, register: u32) -> u32 {
        FIRST_OF_BANKS + 4 * index as u32 + register
    }

    #[test]
    fn there_are_ten_banks_that_report_nothing() {
        let registers = MachineCheck::at_reset();
        assert_eq!(read(&registers, CAPABILITIES), Some(0x10a));
        assert_eq!(read(&registers, STATUS), Some(0));
        for index in 0..BANKS {
            for register in 1..4 {
                assert_eq!(read(&registers, bank(index, register)), Some(0));
            }
        }
        assert_eq!(read(&registers, 0x3ff), None);
        assert_eq!(read(&registers, bank(BANKS, 0)), None);
    }

    #[test]
    fn controls_hold_what_is_written_and_the_capabilities_refuse() {
        for vendor in MAKERS {
            let mut registers = MachineCheck::at_reset();
            assert_eq!(write(&mut registers, vendor, CAPABILITIES, 0), Some(false));
            let controls = (0..BANKS).map(|index| bank(index, 0)).chain([CONTROL]);
            for (msr, value) in controls.zip(0x1234_5678_9abc_0000u64..) {
                assert_eq!(read(&registers, msr), Some(u64::MAX));
                assert_eq!(write(&mut registers, vendor, msr, value), Some(true));
                assert_eq!(read(&registers, msr), Some(value));
            }
        }
    }

    #[test]
    fn a_status_can_only_be_cleared_unless_amds_hwcr_says_otherwise() {
        for vendor in MAKERS {
            let mut registers = MachineCheck::at_reset();
            let status = bank(3, 1);
            assert_eq!(write(&mut registers, vendor, status, 0), Some(true));
            assert_eq!(write(&mut registers, vendor, status, 1 << 63), Some(false));
            registers.takes_any_status = true;
            let taken = write(&mut registers, vendor, status, 1 << 63);
            assert_eq!(taken, Some(vendor == Vendor::Amd));
            let held = if vendor == Vendor::Amd { 1 << 63 } else { 0 };
            assert_eq!(read(&registers, status), Some(held));
        }
    }

    #[test]
    fn intels_address_and_miscellaneous_registers_can_only_be_cleared() {
        for register in [2, 3] {
            let mut registers = MachineCheck::at_reset();
            let msr = bank(9, register);
            assert_eq!(write(&mut registers, Vendor::Intel, msr, 0), Some(true));
            assert_eq!(write(&mut registers, Vendor::Intel, msr, 5), Some(false));
            assert_eq!(write(&mut registers, Vendor::Amd, msr, 5), Some(true));
            let held = if register == 2 { 5 } else { 0 };
            assert_eq!(read(&registers, msr), Some(held));
        }
    }

    #[test]
    fn the_global_status_has_three_bits() {
        for vendor in MAKERS {
            let mut registers = MachineCheck::at_reset();
            assert_eq!(write(&mut registers, vendor, STATUS, 5), Some(true));
            assert_eq!(read(&registers, STATUS), Some(5));
            let taken = write(&mut registers, vendor, STATUS, 0x82);
            assert_eq!(taken, Some(vendor == Vendor::Amd));
            let held = if vendor == Vendor::Amd { 2 } else { 5 };
            assert_eq!(read(&registers, STATUS), Some(held));
        }
    }

    #[test]
    fn the_pentiums_registers_read_as_zero() {
        for msr in [PENTIUM_ADDRESS, PENTIUM_TYPE] {
            let mut registers = MachineCheck::at_reset();
            assert_eq!(read(&registers, msr), Some(0));
            assert_eq!(write(&mut registers, Vendor::Intel, msr, 0), Some(true));
            assert_eq!(write(&mut registers, Vendor::Intel, msr, 1), Some(false));
        }
    }
}
