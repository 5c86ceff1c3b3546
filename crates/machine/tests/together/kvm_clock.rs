//! Tests of KVM's clock as a guest reads it in its memory.

use std::io;
use tollgate_machine::config::{Paravirtual, VmConfig};
use tollgate_machine::pc::Pc;
use tollgate_memory::GuestMemory;
use tollgate_platform::Platform;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::paravirtual::kvm;
use tollgate_x86::time_stamp_msrs::TIME_STAMP_ADJUST;

const PLACE: u64 = 0x5040;

fn machine(paravirtual: Paravirtual) -> (Pc, GuestMemory) {
    let memory = GuestMemory::new(2 << 20).unwrap();
    let config = VmConfig {
        paravirtual,
        ..VmConfig::default()
    };
    (
        Pc::new(&config, memory.clone(), Box::new(io::sink())),
        memory,
    )
}

/// Returns the version, the counter and the time that were written last.
fn published(memory: &GuestMemory) -> (u32, u64, u64) {
    let at = |offset| PhysicalAddress(PLACE + offset);
    (
        memory.read_u32(at(0)),
        memory.read_u64(at(8)),
        memory.read_u64(at(16)),
    )
}

#[test]
fn the_clocks_parameters_are_where_the_guest_wants_them() {
    let (mut pc, memory) = machine(Paravirtual::Kvm);
    pc.pause();
    assert_eq!(pc.msr_write(kvm::SYSTEM_TIME, PLACE), Some(true));
    assert_eq!(published(&memory), (0, 0, 0), "not enabled");
    let enabled = PLACE | kvm::IS_ENABLED;
    assert_eq!(pc.msr_write(kvm::SYSTEM_TIME, enabled), Some(true));
    assert_eq!(pc.msr_read(kvm::SYSTEM_TIME), Some(enabled));
    let (version, counter, time) = published(&memory);
    assert!(version != 0 && version.is_multiple_of(2));
    assert_eq!((counter, time), (pc.time_stamp(), pc.now().0));

    // The guest's clock continues after the guest has set its counter.
    pc.msr_write(TIME_STAMP_ADJUST, 1 << 50);
    let (after, adjusted, same_time) = published(&memory);
    assert!(after > version);
    assert_eq!((adjusted, same_time), (counter + (1 << 50), time));

    // The same holds for a machine that continues from this one's state.
    let (mut other, other_memory) = machine(Paravirtual::Kvm);
    other.pause();
    other.restore(pc.save().unwrap()).unwrap();
    assert_eq!(published(&other_memory), (after + 2, adjusted, time));
}

#[test]
fn a_guest_whose_clocks_catch_up_is_told_of_the_pause() {
    const IS_STABLE: u32 = 1;
    const WAS_STOPPED: u32 = 2;
    let (mut pc, memory) = machine(Paravirtual::Kvm);
    pc.msr_write(kvm::SYSTEM_TIME, PLACE | kvm::IS_ENABLED);
    let flags = || memory.read_u32(PhysicalAddress(PLACE + 28)) >> 8 & 0xff;
    pc.pause();
    pc.resume();
    assert_eq!(flags(), IS_STABLE);
    let (version, counter, time) = published(&memory);
    pc.pause();
    let paused = (pc.time_stamp(), pc.now().0);
    std::thread::sleep(std::time::Duration::from_millis(20));
    pc.resume_and_catch_up();
    assert_eq!(flags(), IS_STABLE | WAS_STOPPED);
    let after = published(&memory);
    assert!(after.0 == version + 2 && after.1 > counter && after.2 > time);
    assert!(after.2 >= paused.1 + 20_000_000, "{after:?} {paused:?}");
    assert!(after.1 > paused.0);
    // Another change of the parameters does not report the pause again.
    pc.msr_write(TIME_STAMP_ADJUST, 5);
    assert_eq!(flags(), IS_STABLE);
}

#[test]
fn the_wall_clock_is_that_of_the_machines_start() {
    let (mut pc, memory) = machine(Paravirtual::Kvm);
    pc.msr_write(kvm::WALL_CLOCK, PLACE);
    let seconds = u64::from(memory.read_u32(PhysicalAddress(PLACE + 4)));
    let now = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap();
    let started = now.as_secs() - pc.now().0 / 1_000_000_000;
    assert!(seconds.abs_diff(started) <= 2, "{seconds}, {started}");
}

#[test]
fn places_without_memory_are_ignored_and_a_reset_forgets_them() {
    let (mut pc, memory) = machine(Paravirtual::Kvm);
    for place in [u64::MAX, 0xfee0_0001, 0x20_0001, 0x1f_fff1] {
        assert_eq!(pc.msr_write(kvm::SYSTEM_TIME, place), Some(true));
        assert_eq!(pc.msr_write(kvm::WALL_CLOCK, place), Some(true));
    }
    pc.msr_write(kvm::SYSTEM_TIME, PLACE | kvm::IS_ENABLED);
    pc.reset();
    assert_eq!(pc.msr_read(kvm::SYSTEM_TIME), Some(0));
    let before = published(&memory);
    pc.msr_write(TIME_STAMP_ADJUST, 5);
    assert_eq!(published(&memory), before);
}

#[test]
fn without_the_interface_there_are_no_such_registers() {
    let (mut pc, _) = machine(Paravirtual::None);
    for index in [kvm::SYSTEM_TIME, kvm::WALL_CLOCK, TIME_STAMP_ADJUST] {
        assert_eq!(pc.msr_read(index), None);
        assert_eq!(pc.msr_write(index, PLACE), None);
    }
}
