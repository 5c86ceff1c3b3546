//! The registers of a program, between the processor's state and the process that runs it.

use std::ops::Range;
use tollgate_native::{Selectors, SpaceProcess, UserState};
use tollgate_x86::breakpoints::Debugged;
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
    let is_debugged = cpu.has_breakpoints() || cpu.debugged != Debugged::default();
    has_segments && has_flags && has_registers && !is_debugged
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

/// The bytes of the legacy region with registers. What follows them is the kernel's own, and so are four
/// bytes among them, the bits that MXCSR may have (SDM volume 1, 13.4.1).
const LEGACY: Range<usize> = 0..416;
const MXCSR_MASK: Range<usize> = 28..32;

fn header(process: &SpaceProcess) -> u64 {
    let mut header = [0; 8];
    process.read_vectors(HEADER, &mut header);
    u64::from_le_bytes(header)
}

/// Hands the vector registers to a process. Components that the guest has not enabled get their initial
/// values.
pub(in crate::translated) fn store_vectors(
    cpu: &CpuState,
    offsets: HostOffsets,
    process: &mut SpaceProcess,
) {
    let from = &cpu.vector.0;
    process.write_vectors(0, &from[..MXCSR_MASK.start]);
    process.write_vectors(MXCSR_MASK.end, &from[MXCSR_MASK.end..LEGACY.end]);
    let components = process.vector_components();
    let in_use = cpu.vector.in_use() & (cpu.xcr0 | component::X87 | component::SSE) & components;
    for (extended, offset) in EXTENDED.into_iter().zip(offsets.0) {
        if in_use & extended.bit != 0 {
            process.write_vectors(offset, &from[extended.range()]);
        }
    }
    // PKRU and others that are not the guest's stay as they are.
    let header = header(process) & !component::ALL | in_use;
    process.write_vectors(HEADER, &header.to_le_bytes());
}

/// Takes over the vector registers that a program has left with.
pub(in crate::translated) fn load_vectors(
    cpu: &mut CpuState,
    offsets: HostOffsets,
    process: &SpaceProcess,
) {
    let in_use = header(process) & component::ALL & process.vector_components();
    let to = &mut cpu.vector;
    process.read_vectors(0, &mut to.0[LEGACY]);
    to.0[MXCSR_MASK].fill(0);
    for (extended, offset) in EXTENDED.into_iter().zip(offsets.0) {
        let place = &mut to.0[extended.range()];
        match in_use & extended.bit != 0 {
            true => process.read_vectors(offset, place),
            false => place.fill(0),
        }
    }
    let ended = (component::X87 | component::SSE) & !in_use;
    to.0[HEADER..EXTENDED_REGION].fill(0);
    to.0[HEADER] = in_use as u8;
    to.initialize(ended);
}
