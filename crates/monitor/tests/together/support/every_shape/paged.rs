//! Paging for 32-bit guests with direct memory access, which maps all memory to its own address.

use super::put;
use tollgate_x86::CpuState;

const DIRECTORY: u32 = 0x3_8000;
/// An entry for one page of 4 MiB, accessed and dirty: for level 3, or global.
const FOR_PROGRAMS: u32 = 0xe7;
const FOR_KERNELS: u32 = 0x1e3;

pub fn prepare_state(state: &mut CpuState) {
    state.cr3 = DIRECTORY.into();
    // CR4: PSE and PGE.
    state.cr4 |= 0x90;
    state.cr0 |= 1 << 31;
}

pub fn put_tables(memory: &mut [u8], is_program: bool) {
    let entry = match is_program {
        true => FOR_PROGRAMS,
        false => FOR_KERNELS,
    };
    put(memory, DIRECTORY, &[0; 0x1000]);
    put(memory, DIRECTORY, &entry.to_le_bytes());
}
