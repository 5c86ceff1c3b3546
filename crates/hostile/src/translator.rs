//! Hostile input for the translator: random bytes as guest code, in the real monitor, with the
//! verifier enabled.
//!
//! The first bytes of an input select the mode, control registers, segments and general registers
//! (see `guest.rs`); the rest is code. A stray access of emitted code is detected: most addresses
//! that it could reach by mistake are unmapped, and there are canaries.

pub mod agreement;
pub mod forged;
mod guest;
mod platform;

use crate::canary;
use crate::confined::as_processor;
use crate::host_state::HostState;
use crate::input::Input;
use guest::Guest;
use platform::Noise;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_memory::GuestMemory;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_x86::{CpuState, Flags};

/// Size of guest RAM in bytes.
const RAM_BYTES: u64 = 4 << 20;
/// Size of the code cache in bytes: the minimum, so that it is emptied often.
const CODE_CACHE_BYTES: usize = 1 << 20;

/// Runs a guest until it stops, for about a millisecond at most.
///
/// # Panics
///
/// Panics if the monitor breaks a promise.
pub fn run(data: &[u8]) {
    canary::place();
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
    let stop = as_processor(|| {
        let host = HostState::now();
        let stop = vcpu.run(&mut noise);
        assert_eq!(HostState::now(), host, "the host's own settings");
        stop
    });
    canary::check();
    match stop {
        VcpuStop::Requested(_) | VcpuStop::TripleFault(_) => {}
        // A host fault in copied code that is not explained by a guest fault is an error of the
        // monitor.
        VcpuStop::NotImplemented(why) => assert!(!why.contains("host signal"), "{why}"),
    }
    check_state(vcpu.state(), &vcpu.dump());
}

/// Checks that no register holds a value that is impossible for a 32-bit guest.
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

/// Programs for each mode with instructions of each kind.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut seeds = Vec::new();
    for mode in 0..guest::MODES.len() as u8 {
        for (index, (name, code)) in guest::PROGRAMS.into_iter().enumerate() {
            // Every second one counts its instructions.
            let counted = (usize::from(mode) + index) % 2 == 1;
            let name = format!("{}-{name}", guest::MODES[usize::from(mode)]);
            seeds.push((name, guest::seed(mode, counted, code)));
        }
    }
    seeds
}
