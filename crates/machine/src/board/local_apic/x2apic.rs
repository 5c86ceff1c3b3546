//! x2APIC mode: the registers as MSRs (SDM volume 3, 11.12).
//!
//! A register at offset `xy0h` of the page is MSR 8xyh. The two halves of the interrupt command
//! register are one 64-bit MSR, the destination format register does not exist, and SELF IPI exists
//! only in this mode. Accesses that set the error status in xAPIC mode, to reserved registers or of
//! reserved bits, cause #GP.

use super::{
    APIC_ID, ClockSource, FIRST_LEGAL_VECTOR, LocalApic, SPURIOUS_WRITABLE, error, lvt, register,
};
use tollgate_x86::local_apic_msrs::{APIC_BASE_ENABLE, APIC_BASE_X2APIC, X2APIC_FIRST};

/// The logical identifier of the processor with identifier 0: processor 0 of cluster 0 (SDM volume
/// 3, 11.12.10.2).
pub(super) const LOGICAL_ID: u32 = 1;
/// The destination that addresses all processors.
const ALL: u32 = u32::MAX;

/// Bits of the interrupt command register that software may write (SDM volume 3, figure 11-28).
const COMMAND_WRITABLE: u64 = 0xffff_ffff_000c_cfff;
/// A bit of the same register that is ignored: the delivery status. It exists only in xAPIC mode,
/// but systems write back what they have read.
const COMMAND_IGNORED: u64 = 1 << 12;
/// Bits of the divide configuration register.
const DIVIDE_WRITABLE: u32 = 0b1011;

/// Whether IA32_APIC_BASE may change from one mode to another (SDM volume 3, figure 11-27). Both
/// values contain only the bits `APIC_BASE_ENABLE` and `APIC_BASE_X2APIC`.
pub(super) fn may_change_mode(from: u64, to: u64) -> bool {
    const DISABLED: u64 = 0;
    const XAPIC: u64 = APIC_BASE_ENABLE;
    const X2APIC: u64 = APIC_BASE_ENABLE | APIC_BASE_X2APIC;
    match to {
        DISABLED => true,
        XAPIC => from != X2APIC,
        X2APIC => from != DISABLED,
        _ => false,
    }
}

/// Whether the destination of an interrupt command is this processor.
pub(super) fn is_own(destination: u32, is_logical: bool) -> bool {
    match is_logical {
        _ if destination == ALL => true,
        true => destination >> 16 == 0 && destination & LOGICAL_ID != 0,
        false => destination == u32::from(APIC_ID),
    }
}

/// Returns the offset of the register of an MSR, or `None` after the last one.
fn offset(index: u32) -> Option<u16> {
    let number = index.checked_sub(X2APIC_FIRST)?;
    (number <= 0x3f).then_some((number << 4) as u16)
}

impl LocalApic {
    /// Reads a register in x2APIC mode. Returns `None` if the read causes #GP.
    pub fn msr_read(&mut self, index: u32, clock: &impl ClockSource) -> Option<u64> {
        if !self.is_x2apic() {
            return None;
        }
        let offset = offset(index)?;
        let value = match offset {
            register::ID => APIC_ID.into(),
            register::LOGICAL_DESTINATION => LOGICAL_ID,
            register::COMMAND_LOW => return Some(self.command),
            register::VERSION
            | register::TASK_PRIORITY
            | register::PROCESSOR_PRIORITY
            | register::SPURIOUS_VECTOR
            | register::IN_SERVICE..=register::ERROR_STATUS
            | register::LVT_TIMER..=register::LVT_ERROR
            | register::INITIAL_COUNT
            | register::CURRENT_COUNT
            | register::DIVIDE => self.register(offset, clock),
            _ => return None,
        };
        Some(value.into())
    }

    /// Whether writing this value to a register in x2APIC mode merely changes the APIC's state: it
    /// causes no #GP and sends no NMI and no INIT.
    pub fn is_near_msr(&self, index: u32, value: u64) -> bool {
        self.is_x2apic()
            && offset(index).is_some_and(|offset| match offset {
                register::SELF_INTERRUPT => may_write(offset, value),
                register::COMMAND_HIGH => false,
                _ => self.is_near(offset, value as u32) && may_write(offset, value),
            })
    }

    /// Writes a register in x2APIC mode. Returns `None` if the write causes #GP, and otherwise the
    /// result of [`LocalApic::write`].
    pub fn msr_write(
        &mut self,
        index: u32,
        value: u64,
        clock: &impl ClockSource,
    ) -> Option<Option<u8>> {
        let offset = offset(index).filter(|_| self.is_x2apic())?;
        if !may_write(offset, value) {
            return None;
        }
        match offset {
            register::COMMAND_LOW => {
                self.command = value & COMMAND_WRITABLE;
                self.send_command();
            }
            register::SELF_INTERRUPT => self.interrupt_itself(value as u8),
            _ => return Some(self.write(offset, &(value as u32).to_le_bytes(), clock)),
        }
        Some(None)
    }

    fn interrupt_itself(&mut self, vector: u8) {
        if vector < FIRST_LEGAL_VECTOR {
            self.raise_error(error::SEND_ILLEGAL_VECTOR);
        } else {
            self.accept_fixed(vector, false);
        }
    }
}

/// Whether a register can be written, and the value sets no reserved bits of it.
fn may_write(offset: u16, value: u64) -> bool {
    let bits = match offset {
        register::COMMAND_LOW => return value & !(COMMAND_WRITABLE | COMMAND_IGNORED) == 0,
        register::TASK_PRIORITY | register::SELF_INTERRUPT => 0xff,
        register::END_OF_INTERRUPT | register::ERROR_STATUS => 0,
        register::SPURIOUS_VECTOR => SPURIOUS_WRITABLE,
        register::LVT_TIMER..=register::LVT_ERROR => {
            let entry = usize::from((offset - register::LVT_TIMER) / 16);
            lvt::WRITABLE[entry] | lvt::STATUS
        }
        register::INITIAL_COUNT => u32::MAX,
        register::DIVIDE => DIVIDE_WRITABLE,
        _ => return false,
    };
    value & !u64::from(bits) == 0
}

#[cfg(test)]
mod tests;
