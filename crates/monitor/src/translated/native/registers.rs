//! The registers of a program, between the processor's state and the process that runs it.

use tollgate_native::{Selectors, UserState};
use tollgate_x86::flags::Flags;
use tollgate_x86::xsave::{EXTENDED, EXTENDED_REGION, HEADER, component};
use tollgate_x86::{CpuState, Cr0, Cr4, SegmentRegister};

/// The flags that must be clear so that a program can run natively. Linux sets RF in what it returns
/// to after a fault, and it matters to breakpoints only, with which no program runs natively.
const CLEAR: Flags = Flags::TF
    .union(Flags::IOPL)
    .union(Flags::VM)
    .union(Flags::VIF)
    .union(Flags::VIP);
/// Whether the registers are such that the program behaves on the host's processor as it would on
/// the guest's: it has the segments that Linux gives to 64-bit programs, and what the guest's kernel
/// has enabled is what the host's kernel has.
pub(in crate::translated) fn can_run(cpu: &CpuState) -> bool {
    let selector = |register: SegmentRegister| cpu.segment(register).selector.0;
    let expected = Selectors::default();
    let has_segments = cpu.is_64_bit()
        && selector(SegmentRegister::Cs) == expected.cs
        && selector(SegmentRegister::Ss) == expected.ss
        && [
            SegmentRegister::Ds,
            SegmentRegister::Es,
            SegmentRegister::Fs,
            SegmentRegister::Gs,
        ]
        .into_iter()
        .all(|register| selector(register) == 0);
    let flags = Flags::from_bits_retain(cpu.flags);
    let has_flags = flags.contains(Flags::IF) && !flags.intersects(CLEAR);
    let enabled = Cr4::OSFXSR | Cr4::OSXMMEXCPT | Cr4::OSXSAVE;
    let has_registers = !cpu.cr0().intersects(Cr0::TS | Cr0::EM)
        && cpu.cr0().contains(Cr0::PG | Cr0::NE)
        && cpu.cr4().contains(enabled)
        && cpu.xcr0 & component::AVX != 0;
    has_segments && has_flags && has_registers && !cpu.has_breakpoints()
}

/// The registers to load.
pub(in crate::translated) fn to_program(cpu: &CpuState) -> UserState {
    UserState {
        gpr: cpu.gpr,
        rip: cpu.rip,
        rflags: cpu.flags & !Flags::RF.bits(),
        fs_base: cpu.segment(SegmentRegister::Fs).base,
        gs_base: cpu.segment(SegmentRegister::Gs).base,
        selectors: Selectors::default(),
    }
}

/// Takes over the registers that a program has left with.
pub(in crate::translated) fn from_program(cpu: &mut CpuState, state: &UserState) {
    cpu.gpr = state.gpr;
    cpu.rip = state.rip;
    cpu.flags = state.rflags;
    cpu.segment_mut(SegmentRegister::Fs).base = state.fs_base;
    cpu.segment_mut(SegmentRegister::Gs).base = state.gs_base;
}

/// The host's offsets of the components of the extended region in an area of the standard format.
#[derive(Clone, Copy, Debug)]
pub(in crate::translated) struct HostOffsets([usize; EXTENDED.len()]);

impl HostOffsets {
    /// Those of this processor (SDM volume 1, 13.2: CPUID leaf 0Dh).
    pub(in crate::translated) fn of_host() -> Self {
        Self(EXTENDED.map(|extended| {
            let number = extended.bit.trailing_zeros();
            std::arch::x86_64::__cpuid_count(0xd, number).ebx as usize
        }))
    }
}

/// Stores the vector registers in a signal frame's area. Components that the guest has not enabled
/// get their initial values.
pub(in crate::translated) fn store_vectors(cpu: &CpuState, offsets: HostOffsets, area: &mut [u8]) {
    let from = &cpu.vector.0;
    // What follows the registers in the first 512 bytes is the kernel's own.
    const MXCSR_MASK: std::ops::Range<usize> = 28..32;
    let host_mask: [u8; 4] = area[MXCSR_MASK].try_into().unwrap_or_default();
    area[..416].copy_from_slice(&from[..416]);
    area[MXCSR_MASK].copy_from_slice(&host_mask);
    let mut in_use = cpu.vector.in_use() & (cpu.xcr0 | component::X87 | component::SSE);
    for (extended, offset) in EXTENDED.into_iter().zip(offsets.0) {
        if in_use & extended.bit == 0 {
            continue;
        }
        match area.get_mut(offset..offset + extended.size) {
            Some(place) => {
                place.copy_from_slice(&from[extended.start..extended.start + extended.size]);
            }
            None => in_use &= !extended.bit,
        }
    }
    // PKRU and others that are not the guest's stay as they are.
    let others = !component::ALL;
    let header: [u8; 8] = area[HEADER..HEADER + 8].try_into().unwrap_or_default();
    let header = u64::from_le_bytes(header) & others | in_use;
    area[HEADER..HEADER + 8].copy_from_slice(&header.to_le_bytes());
}

/// Loads the vector registers from a signal frame's area.
pub(in crate::translated) fn load_vectors(cpu: &mut CpuState, offsets: HostOffsets, area: &[u8]) {
    let header: [u8; 8] = area[HEADER..HEADER + 8].try_into().unwrap_or_default();
    let mut in_use = u64::from_le_bytes(header) & component::ALL;
    let to = &mut cpu.vector;
    to.0[..416].copy_from_slice(&area[..416]);
    to.0[28..32].fill(0);
    for (extended, offset) in EXTENDED.into_iter().zip(offsets.0) {
        let place = &mut to.0[extended.start..extended.start + extended.size];
        match area.get(offset..offset + extended.size) {
            Some(from) if in_use & extended.bit != 0 => place.copy_from_slice(from),
            _ => {
                place.fill(0);
                in_use &= !extended.bit;
            }
        }
    }
    let ended = (component::X87 | component::SSE) & !in_use;
    to.0[HEADER..EXTENDED_REGION].fill(0);
    to.0[HEADER] = in_use as u8;
    to.initialize(ended);
}
