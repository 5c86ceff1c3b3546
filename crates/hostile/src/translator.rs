//! Random bytes as guest code, in the real monitor, with the verifier on.
//!
//! The first bytes of an input choose the mode, control registers, segments and general
//! registers (see `guest.rs`); the rest is code. A stray access of emitted code does not
//! go unseen: what it could reach by mistake is mostly unmapped, and there are canaries.

pub mod agreement;
mod guest;
mod platform;

use crate::canary;
use crate::host_state::HostState;
use crate::input::Input;
use guest::Guest;
use platform::Noise;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_memory::GuestMemory;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_x86::{CpuState, Flags};

/// Bytes of guest RAM.
const RAM_BYTES: u64 = 4 << 20;
/// Bytes of the code cache: the smallest, so that it is emptied often.
const CODE_CACHE_BYTES: usize = 1 << 20;

/// Runs a guest until it stops, for about a millisecond at most.
///
/// # Panics
/// The monitor broke a promise.
pub fn run(data: &[u8]) {
    canary::place();
    let host = HostState::now();
    let mut input = Input::new(data);
    let guest = Guest::of(&mut input);
    let mut memory = GuestMemory::new(RAM_BYTES).expect("guest memory");
    let state = guest.prepare(input.rest(), &mut memory);
    let mut noise = Noise::new(guest.noise);
    let mut vcpu = Vcpu::new(state, memory, CODE_CACHE_BYTES, true).expect("a vCPU");
    if guest.spilled {
        vcpu.set_register_map(&RegisterMap::SPILLED);
    }
    vcpu.set_counts_instructions(guest.counted);
    let stop = vcpu.run(&mut noise);
    assert_eq!(HostState::now(), host, "the host's own settings");
    canary::check();
    match stop {
        VcpuStop::Requested(_) | VcpuStop::TripleFault(_) => {}
        // A host fault in copied code that no guest fault explains is a bug of ours.
        VcpuStop::NotImplemented(why) => assert!(!why.contains("host signal"), "{why}"),
    }
    check_state(vcpu.state(), &vcpu.dump());
}

/// No register holds what a 32-bit guest's cannot.
fn check_state(state: &CpuState, dump: &str) {
    for (number, value) in state.gpr.iter().enumerate() {
        assert!(*value >> 32 == 0, "register {number} is {value:#x}\n{dump}");
    }
    assert!(state.rip >> 32 == 0, "EIP is {:#x}", state.rip);
    assert_eq!(state.flags & !Flags::ALL.bits(), 0, "EFLAGS");
    for segment in state.segments {
        assert!(segment.base >> 32 == 0, "{segment:?}");
    }
}

/// Each mode with a little of each kind of instruction.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for mode in 0..guest::MODES.len() as u8 {
        for (index, (name, code)) in guest::PROGRAMS.into_iter().enumerate() {
            // Every other one counts its instructions.
            let counted = (usize::from(mode) + index) % 2 == 1;
            let name = format!("{}-{name}", guest::MODES[usize::from(mode)]);
            seeds.push((name, guest::seed(mode, counted, code)));
        }
    }
    seeds
}
