//! The processor's state when a 32-bit guest is entered.

use super::BootError;
use super::image::write;
use super::layout::DESCRIPTOR_TABLE;
use tollgate_memory::GuestMemory;
use tollgate_x86::state::TableRegister;
use tollgate_x86::{CpuState, Cr0, Descriptor, SegmentRegister, Selector};

/// Selector of the flat 32-bit code segment (__BOOT_CS in Linux's terms).
const CODE_SELECTOR: Selector = Selector(0x10);
/// Selector of the flat 32-bit data segment (__BOOT_DS).
const DATA_SELECTOR: Selector = Selector(0x18);
/// 4 GiB, execute and read, accessed.
const CODE: Descriptor = Descriptor(0x00cf_9b00_0000_ffff);
/// 4 GiB, read and write, accessed.
const DATA: Descriptor = Descriptor(0x00cf_9300_0000_ffff);

/// Flat 32-bit protected mode without paging, interrupts off, entered at `entry`.
/// Writes the descriptor table that the segment registers came from.
pub fn protected_mode(memory: &mut GuestMemory, entry: u32) -> Result<CpuState, BootError> {
    let table = [0, 0, CODE.0, DATA.0];
    let bytes: Vec<u8> = table.iter().flat_map(|entry| entry.to_le_bytes()).collect();
    write(memory, DESCRIPTOR_TABLE, &bytes)?;

    let mut state = CpuState::at_reset();
    state.cr0 = (Cr0::PE | Cr0::ET).bits();
    state.gdtr = TableRegister {
        base: DESCRIPTOR_TABLE,
        limit: (bytes.len() - 1) as u16,
    };
    for register in SegmentRegister::ALL {
        *state.segment_mut(register) = if register == SegmentRegister::Cs {
            CODE.segment(CODE_SELECTOR)
        } else {
            DATA.segment(DATA_SELECTOR)
        };
    }
    state.rip = u64::from(entry);
    Ok(state)
}
