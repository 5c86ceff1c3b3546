//! The additional state of guests in IA-32e mode: page tables, 64-bit gates, and registers R8 to
//! R15.

use super::{HANDLER, Scene, put};
use tollgate_x86::CpuState;

/// Address of the interrupt table: 256 gates of 16 bytes.
const INTERRUPT_TABLE: u32 = 0x6000;
const DESCRIPTOR_TABLE: u32 = 0x4800;
const TASK_STATE: u32 = 0x4900;
/// Addresses of the page tables: PML4, the identity mapping, and the mapping of code elsewhere.
const PAGE_TABLES: u32 = 0x3_8000;
/// A second address of the first MiB of memory.
const HIGH: u64 = 0xffff_8880_0000_0000;
/// A third address of the first MiB, in a part that an anchor leads to.
const COMMON: u64 = 0xaa << 39;
/// The bits of an entry: present, writable, for every privilege, accessed and dirty, so that a walk
/// sets none.
const PAGE: u64 = 0x67;
/// Address of the entry for system calls, in the INT3s that follow the code.
const SYSTEM_CALL: u64 = 0x1040;

/// Descriptors: 10h and 18h are the supervisor's, 20h, 28h and 30h the user's, in the order that
/// SYSCALL and SYSRET need.
const DESCRIPTORS: [u64; 10] = [
    0,
    0,
    0x00af_9b00_0000_ffff,
    0x00cf_9300_0000_ffff,
    0x00cf_fb00_0000_ffff,
    0x00cf_f300_0000_ffff,
    0x00af_fb00_0000_ffff,
    0x0000_8b00_0000_0067 | (TASK_STATE as u64) << 16,
    0,
    0x00cf_9b00_0000_ffff,
];

/// The distance at which code that lies at `rip`, outside the identity mapping, is mapped a second
/// time.
pub fn distance_elsewhere(rip: u64) -> u64 {
    if rip >> 32 == 0 { 1 << 30 } else { 1 << 39 }
}

/// Sets up the state for `code`, if this is another segment than the one in `state`, with 64 bits,
/// or with 32 bits in compatibility mode. All data segments are flat, except that FS and GS have a
/// base in 64-bit code.
pub fn prepare_state(state: &mut CpuState, code: Option<tollgate_x86::Segment>) {
    // CR0: PG, WP. CR4: PAE, OSFXSR, OSXMMEXCPT, FSGSBASE, OSXSAVE. EFER: SCE, LME, LMA.
    state.cr0 |= 0x8001_0000;
    state.cr3 = PAGE_TABLES.into();
    state.cr4 |= 0x5_0620;
    state.efer = 0x501;
    if let Some(code) = code {
        *state.segment_mut(tollgate_x86::SegmentRegister::Cs) = code;
    }
    if state.is_64_bit() {
        state.segments[4].base = 0x1_0000;
        state.segments[5].base = 0x1_0000;
    }
    state.idtr.base = INTERRUPT_TABLE.into();
    state.idtr.limit = 0xfff;
    state.gdtr.base = DESCRIPTOR_TABLE.into();
    state.gdtr.limit = 8 * DESCRIPTORS.len() as u16 - 1;
    state.tr.base = TASK_STATE.into();
    state.tr.selector.0 = 0x38;
    state.star = 0x0020_0010 << 32;
    state.lstar = SYSTEM_CALL;
    state.cstar = SYSTEM_CALL;
    state.sfmask = 0x700;
    state.kernel_gs_base = HIGH;
}

/// Sets the registers R8 to R15: addresses of both halves, and a counter.
pub fn set_registers(state: &mut CpuState, scene: Scene) {
    let addresses: [u64; 8] = match scene {
        Scene::Data | Scene::Trapping => [
            HIGH + 0x2_4040,
            2,
            HIGH + 0x2_5080,
            0x1234_5678_9abc_def0,
            0x2_6010,
            0x2_7018,
            HIGH + 0x2_8020,
            0x8000_0000_0000_0001,
        ],
        Scene::Straddling => [
            HIGH + 0x2_3ffd,
            1,
            0x2_4fff,
            0x7fff_ffff_ffff,
            0x7fff_ffff_fffc,
            HIGH + 0x2_7ffe,
            u64::MAX - 2,
            0x8000_0000_0000,
        ],
        Scene::BesideCode => [
            HIGH + 0x1c48,
            1,
            HIGH + 0x1020,
            0x1d40,
            0x1d80,
            HIGH + 0x1034,
            0x1dc0,
            u64::MAX,
        ],
        Scene::Device => [
            HIGH + 0xa_0200,
            4,
            0xa_0240,
            HIGH + 0xa_0280,
            0xa_02c0,
            HIGH + 0xa_0300,
            0xa_0340,
            0xa_0380,
        ],
    };
    state.gpr[8..].copy_from_slice(&addresses);
}

/// Makes registers that point to the first MiB point to its address in a part that an anchor leads
/// to.
pub fn point_to_common_part(state: &mut CpuState) {
    let bases = state.segments[4..].iter_mut().map(|it| &mut it.base);
    for value in state.gpr.iter_mut().chain(bases) {
        if (0x1000..0x10_0000).contains(value) {
            *value += COMMON;
        }
    }
}

/// Writes what far returns find after their new RIP: CS, flags, RSP and SS.
pub fn put_frame(memory: &mut [u8], at: u32) {
    for (index, value) in [SYSTEM_CALL, 0x10, 2, 0x7f00, 0x18].into_iter().enumerate() {
        put(memory, at + 8 * index as u32, &value.to_le_bytes());
    }
}

/// Makes a gate lead to a handler in 64-bit code.
pub fn put_gate(memory: &mut [u8], vector: u32, handler: u32) {
    let gate = u64::from(handler) | 0x10 << 16 | 0xee00 << 32;
    let at = INTERRUPT_TABLE + 16 * vector;
    put(memory, at, &gate.to_le_bytes());
    put(memory, at + 8, &[0; 8]);
}

/// Writes the tables of the processor. `code` is the linear address of the physical page 1000h.
pub fn put_tables(memory: &mut [u8], code: u64) {
    put(memory, HANDLER, &super::EXIT);
    for vector in 0..256 {
        put_gate(memory, vector, HANDLER);
    }
    let mut entry = |table: u32, index: u64, value: u64| {
        put(memory, table + 8 * index as u32, &value.to_le_bytes());
    };
    for (index, descriptor) in DESCRIPTORS.into_iter().enumerate() {
        entry(DESCRIPTOR_TABLE, index as u64, descriptor);
    }
    for index in 0..7 * 512 {
        entry(PAGE_TABLES, index, 0);
    }
    let table = |number: u32| u64::from(PAGE_TABLES + 0x1000 * number) | PAGE;
    for root in [0, HIGH >> 39 & 511, COMMON >> 39] {
        entry(PAGE_TABLES, root, table(1));
    }
    entry(PAGE_TABLES + 0x1000, 0, table(2));
    entry(PAGE_TABLES + 0x2000, 0, table(3));
    for page in 0..256 {
        entry(PAGE_TABLES + 0x3000, page, page << 12 | PAGE);
    }
    if code > 0xf_ffff {
        if code >> 39 == 0 {
            // The mapping of the code, in addition to the identity mapping.
            entry(PAGE_TABLES + 0x1000, code >> 30 & 511, table(5));
        } else {
            entry(PAGE_TABLES, code >> 39 & 511, table(4));
        }
        entry(PAGE_TABLES + 0x4000, code >> 30 & 511, table(5));
        let again = code.wrapping_add(distance_elsewhere(code));
        if again >> 39 == 0 {
            entry(PAGE_TABLES + 0x1000, again >> 30 & 511, table(5));
        } else if code < again {
            entry(PAGE_TABLES, again >> 39 & 511, table(4));
        }
        entry(PAGE_TABLES + 0x5000, code >> 21 & 511, table(6));
        for page in 0..2 {
            let value = (0x1000 * (page + 1)) | PAGE;
            entry(PAGE_TABLES + 0x6000, (code >> 12 & 511) + page, value);
        }
    }
    put(memory, TASK_STATE, &[0; 0x68]);
    // RSP0, which is not aligned.
    put(memory, TASK_STATE + 4, &0x2f00_u64.to_le_bytes());
    put(memory, TASK_STATE + 0x66, &[0x68, 0]);
}
