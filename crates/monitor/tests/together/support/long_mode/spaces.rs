//! Address spaces beside the first one, with page tables of their own.

use super::{Bench, CODE_64, Computer, DATA_0, STACK, as_user};
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::StopRequest;
use tollgate_x86::{Attributes, PhysicalAddress, Segment, SegmentRegister, Selector};

/// Page tables of the spaces, a MiB for each.
const TABLES: u64 = 0x80_0000;
/// Bytes of a page.
pub const PAGE: u64 = 0x1000;

/// The page tables of a space.
pub fn table(space: u64) -> u64 {
    TABLES + space * 0x10_0000
}

/// Maps `pages` one behind the other at `linear` in a space.
pub fn map(memory: &mut GuestMemory, space: u64, linear: u64, pages: &[u64]) {
    for (index, &page) in pages.iter().enumerate() {
        let entry = entry(memory, space, linear + index as u64 * PAGE);
        memory.write_u64(entry, page | 7);
    }
}

/// The entry in the last table that maps `linear` in a space.
pub fn entry(memory: &mut GuestMemory, space: u64, linear: u64) -> PhysicalAddress {
    let next = PhysicalAddress(table(space) + 0xf_f000);
    let mut at = table(space);
    for shift in [39, 30, 21] {
        let entry = PhysicalAddress(at + (linear >> shift & 511) * 8);
        let mut value = memory.read_u64(entry);
        if value & 1 == 0 {
            let used = memory.read_u64(next) + 1;
            memory.write_u64(next, used);
            value = (table(space) + used * PAGE) | 7;
            memory.write_u64(entry, value);
        }
        at = value & !0xfff;
    }
    PhysicalAddress(at + (linear >> 12 & 511) * 8)
}

/// Nothing is mapped at `linear` any more.
pub fn unmap(memory: &mut GuestMemory, space: u64, linear: u64) {
    let entry = entry(memory, space, linear);
    memory.write_u64(entry, 0);
}

/// Makes a space that has what every space has: the first table of the support's, without what
/// it maps high.
pub fn make_empty_space(memory: &mut GuestMemory, space: u64) {
    memory.write_u64(PhysicalAddress(table(space)), 0x2007);
}

/// Runs the guest until it writes port F4h.
pub fn run_to_end(vcpu: &mut Computer<Bench>) {
    let stop = vcpu.run();
    let ended = matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_)));
    assert!(ended, "{stop:?}\n{}", vcpu.dump());
}

/// Runs the program at `linear` until it ends, at level 3 with the usual stack.
pub fn start(vcpu: &mut Computer<Bench>, linear: u64) {
    vcpu.change_state(|cpu| {
        as_user(cpu);
        cpu.gpr[4] = STACK;
        cpu.rip = linear;
    });
    run_to_end(vcpu);
}

/// Runs what lies at an address for the guest's kernel, with this in RDI; the segments are
/// afterwards as they were before.
pub fn run_kernel(vcpu: &mut Computer<Bench>, rip: u64, rdi: u64) {
    let segments = vcpu.state().segments;
    vcpu.change_state(|cpu| {
        for register in SegmentRegister::ALL {
            let (selector, attributes) = match register {
                SegmentRegister::Cs => (CODE_64, 0xa09b),
                _ => (DATA_0, 0xc093),
            };
            *cpu.segment_mut(register) = Segment {
                base: 0,
                limit: u32::MAX,
                selector: Selector(selector),
                attributes: Attributes::from_bits_retain(attributes),
            };
        }
        cpu.gpr[7] = rdi;
        cpu.rip = rip;
    });
    run_to_end(vcpu);
    vcpu.change_state(|cpu| cpu.segments = segments);
}
