//! Additional address spaces, with page tables of their own.

use super::{Bench, CODE_64, Computer, DATA_0, STACK, as_user};
use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::StopRequest;
use tollgate_x86::{Attributes, PhysicalAddress, Segment, SegmentRegister, Selector};

/// Address of the page tables of the spaces, with one MiB for each space.
const TABLES: u64 = 0x80_0000;
/// Size of a page in bytes.
pub const PAGE: u64 = 0x1000;

/// Address of the page tables of a space.
pub fn table(space: u64) -> u64 {
    TABLES + space * 0x10_0000
}

/// Maps `pages` one after the other at `linear` in a space.
pub fn map(memory: &mut GuestMemory, space: u64, linear: u64, pages: &[u64]) {
    for (index, &page) in pages.iter().enumerate() {
        let entry = entry(memory, space, linear + index as u64 * PAGE);
        memory.write_u64(entry, page | 7);
    }
}

/// The address of the entry of the last table that maps `linear` in a space.
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

/// Removes the mapping of `linear`.
pub fn unmap(memory: &mut GuestMemory, space: u64, linear: u64) {
    let entry = entry(memory, space, linear);
    memory.write_u64(entry, 0);
}

/// Makes a space with the mappings that every space has: those of the first table, without the high
/// ones.
pub fn make_empty_space(memory: &mut GuestMemory, space: u64) {
    memory.write_u64(PhysicalAddress(table(space)), 0x2007);
}

/// Runs the guest until it writes to port F4h.
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

/// Runs the code at an address as the guest's kernel, with a value in RDI; restores the segments
/// afterwards.
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
