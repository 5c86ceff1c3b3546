//! x2APIC mode: the registers as MSRs (SDM volume 3, 11.12).
//!
//! A register at offset `xy0h` of the page is MSR 8xyh. The two halves of the interrupt command
//! register are one MSR of 64 bits, the destination format register does not exist, and SELF IPI
//! exists in this mode alone. What would be an error status in xAPIC mode (an access to a reserved
//! register, reserved bits) is #GP.

use super::{
    APIC_ID, ClockSource, FIRST_LEGAL_VECTOR, LocalApic, SPURIOUS_WRITABLE, error, lvt, register,
};
use tollgate_x86::local_apic_msrs::{APIC_BASE_ENABLE, APIC_BASE_X2APIC, X2APIC_FIRST};

/// Logical identifier of the processor whose identifier is 0: processor 0 of cluster 0
/// (SDM volume 3, 11.12.10.2).
pub(super) const LOGICAL_ID: u32 = 1;
/// Destination of all processors.
const ALL: u32 = u32::MAX;

/// Bits of the interrupt command register that software may write (SDM volume 3, figure 11-28).
const COMMAND_WRITABLE: u64 = 0xffff_ffff_000c_cfff;
/// The same: delivery status, which is ignored. It exists in xAPIC mode only, but systems write
/// back what they have read.
const COMMAND_IGNORED: u64 = 1 << 12;
/// Bits of the divide configuration register.
const DIVIDE_WRITABLE: u32 = 0b1011;

/// Whether IA32_APIC_BASE may change from one mode to another (SDM volume 3, figure 11-27). Both
/// are `APIC_BASE_ENABLE` and `APIC_BASE_X2APIC` alone.
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

/// Whether the destination of an interrupt command names this processor.
pub(super) fn is_own(destination: u32, is_logical: bool) -> bool {
    match is_logical {
        _ if destination == ALL => true,
        true => destination >> 16 == 0 && destination & LOGICAL_ID != 0,
        false => destination == u32::from(APIC_ID),
    }
}

/// Offset of the register that is this MSR. `None`: beyond the last.
fn offset(index: u32) -> Option<u16> {
    let number = index.checked_sub(X2APIC_FIRST)?;
    (number <= 0x3f).then_some((number << 4) as u16)
}

impl LocalApic {
    /// Reads a register in x2APIC mode. `None`: #GP.
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

    /// Whether writing this value to a register in x2APIC mode is no more than a change of the
    /// APIC's state: it is not refused, and sends no NMI and no INIT.
    pub fn is_near_msr(&self, index: u32, value: u64) -> bool {
        self.is_x2apic()
            && offset(index).is_some_and(|offset| match offset {
                register::SELF_INTERRUPT => may_write(offset, value),
                register::COMMAND_HIGH => false,
                _ => self.is_near(offset, value as u32) && may_write(offset, value),
            })
    }

    /// Writes a register in x2APIC mode. `None`: #GP. Otherwise as [`LocalApic::write`].
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

/// Whether a register can be written, and has all bits of this value.
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
