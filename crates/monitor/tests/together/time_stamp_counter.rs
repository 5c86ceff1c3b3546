//! Tests the time-stamp counter that translated code reads: it is the host's with one exact offset.

use tollgate_memory::GuestMemory;
use tollgate_monitor::VcpuStop;
use tollgate_platform::{BareMachine, StopRequest};
use tollgate_test_support::{Computer, flat_state};
use tollgate_x86::{CpuState, Gpr, PhysicalAddress};

const CODE: u32 = 0x1_0000;
/// How far the machine's counter is ahead of the host's.
const AHEAD: u64 = 1 << 60;

fn host_counter() -> u64 {
    // SAFETY: RDTSC is available to every process that has not disabled it.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// A machine whose counter is ahead of the host's, and which stops when the guest writes to a port.
#[derive(Default)]
struct Machine {
    stop: Option<StopRequest>,
}

impl BareMachine for Machine {
    fn port_read(&mut self, _port: u16, _size: u8) -> u32 {
        0xff
    }
    fn port_write(&mut self, _port: u16, _size: u8, value: u32) {
        self.stop = Some(StopRequest::DebugExit(value as u8));
    }
    /// Behaves as if the host had run something else for a long time after the counter was read.
    fn time_stamp(&self) -> u64 {
        host_counter().wrapping_add(AHEAD) - (1 << 50)
    }
    fn host_time_stamp_offset(&self) -> u64 {
        AHEAD
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.stop.take()
    }
}

/// Runs RDTSC. Returns EDX:EAX, and the host's counter before and after.
fn read_in_guest(adjust: impl Fn(&mut CpuState)) -> (u64, u64, u64) {
    // rdtsc; out f4h, al
    let code = [0x0f, 0x31, 0xe6, 0xf4];
    let mut memory = GuestMemory::new(2 << 20).unwrap();
    memory.write(PhysicalAddress(CODE.into()), &code);
    let mut state = flat_state(CODE.into());
    adjust(&mut state);
    let mut vcpu = Computer::new(state, memory, Machine::default(), 1 << 20, true).unwrap();
    let before = host_counter();
    let stop = vcpu.run();
    let after = host_counter();
    assert!(
        matches!(stop, VcpuStop::Requested(StopRequest::DebugExit(_))),
        "{stop:?}"
    );
    let [low, high] = [Gpr::Rax, Gpr::Rdx].map(|register| vcpu.state().register(register));
    (before, high << 32 | low & 0xffff_ffff, after)
}

#[test]
fn a_pause_between_two_readings_does_not_set_the_counter_back() {
    let (before, counter, after) = read_in_guest(|_| {});
    assert!((before + AHEAD..=after + AHEAD).contains(&counter));
}

#[test]
fn what_the_guest_has_added_is_in_the_counter() {
    let (before, counter, after) = read_in_guest(|state| state.tsc_offset = 12 << 40);
    let added = AHEAD + (12 << 40);
    assert!((before + added..=after + added).contains(&counter));
}
