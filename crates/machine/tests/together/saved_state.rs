//! Tests that a machine's state can be written to a file and read by another machine.

use std::io;
use std::time::{Duration, UNIX_EPOCH};
use tollgate_machine::config::{Realtime, RtcBase, VmConfig};
use tollgate_machine::pc::{Pc, PcState, StateError};
use tollgate_memory::GuestMemory;
use tollgate_platform::Platform;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::paravirtual::kvm;

fn paused_pc() -> Pc {
    let memory = GuestMemory::new(2 << 20).unwrap();
    let mut pc = Pc::new(&VmConfig::default(), memory, Box::new(io::sink()));
    pc.pause();
    pc
}

#[test]
fn a_saved_machine_goes_on_where_it_was() {
    let mut pc = paused_pc();
    // Routes line 13 of the I/O APIC to vector 4Dh, and stores a byte in the UART's scratch
    // register.
    for (register, value) in [(0u64, 0x2au32), (0x10, 0x4d)] {
        pc.memory_write(
            PhysicalAddress(tollgate_machine::board::io_apic::BASE_ADDRESS + register),
            &value.to_le_bytes(),
        );
    }
    pc.port_write(0x3ff, 1, 0x77);
    // Firmware leaves line 13 of the 8259 pair unmasked; a kernel that uses the I/O APIC masks the
    // pair.
    pc.port_write(0x21, 1, 0xff);
    pc.port_write(0xa1, 1, 0xff);
    pc.signal_fpu_error();
    let saved = serde_json::to_string(&pc.save().unwrap()).unwrap();

    let mut other = paused_pc();
    let state: PcState = serde_json::from_str(&saved).unwrap();
    other.restore(state).unwrap();
    assert_eq!(
        serde_json::to_string(&other.save().unwrap()).unwrap(),
        saved
    );
    assert_eq!(other.now(), pc.now());
    assert_eq!(other.time_stamp(), pc.time_stamp());
    assert_eq!(other.acknowledge_interrupt(), Some(0x4d));
    assert_eq!(other.port_read(0x3ff, 1), 0x77);
}

/// Returns century, year, month, day, hour, minute and second as the real-time clock shows them, in
/// BCD.
fn date(pc: &mut Pc) -> [u32; 7] {
    [0x32, 9, 8, 7, 4, 2, 0].map(|register| {
        pc.port_write(0x70, 1, register);
        pc.port_read(0x71, 1)
    })
}

#[test]
fn the_real_time_clock_of_a_restored_machine_shows_its_own_time_or_the_hosts() {
    // 2 October 2096, 7:06:40.
    let later = UNIX_EPOCH + Duration::from_millis(4_000_000_000_250);
    let mut pc = paused_pc();
    let own = date(&mut pc);
    let saved = pc.save().unwrap();

    let mut other = paused_pc();
    other.follow_time_of_day(RtcBase::Universal, later);
    other.restore(saved.clone()).unwrap();
    assert_eq!(date(&mut other), own);
    other.follow_time_of_day(RtcBase::Universal, later);
    let date_of_host = [0x20, 0x96, 0x10, 0x02, 0x07, 0x06, 0x40];
    assert_eq!(date(&mut other), date_of_host);
    // Guest time has not changed, and the machine that continues from this one is not late again.
    assert_eq!(other.now(), pc.now());
    let saved = other.save().unwrap();
    let mut third = paused_pc();
    third.restore(saved).unwrap();
    third.follow_time_of_day(RtcBase::Universal, later);
    assert_eq!(date(&mut third), date_of_host);
}

#[test]
fn kvms_wall_clock_of_a_restored_machine_is_its_own_if_it_keeps_its_time() {
    const PLACE: u64 = 0x5040;
    let config = VmConfig {
        realtime: Realtime::Keep,
        ..VmConfig::default()
    };
    let machine = || {
        let memory = GuestMemory::new(2 << 20).unwrap();
        let mut pc = Pc::new(&config, memory.clone(), Box::new(io::sink()));
        pc.pause();
        (pc, memory)
    };
    /// Returns seconds and nanoseconds since 1970 at guest time zero.
    fn wall_clock(pc: &mut Pc, memory: &GuestMemory) -> (u32, u32) {
        pc.msr_write(kvm::WALL_CLOCK, PLACE);
        let word = |offset| memory.read_u32(PhysicalAddress(PLACE + offset));
        (word(4), word(8))
    }
    let (mut pc, memory) = machine();
    let own = wall_clock(&mut pc, &memory);
    let (mut other, memory) = machine();
    other.restore(pc.save().unwrap()).unwrap();
    assert_eq!(wall_clock(&mut other, &memory), own);
    let host = UNIX_EPOCH + Duration::from_secs(4_000_000_000);
    other.follow_time_of_day(RtcBase::Universal, host + Duration::from_nanos(pc.now().0));
    assert_eq!(wall_clock(&mut other, &memory), (4_000_000_000, 0));
}

#[test]
fn a_state_of_another_version_is_refused() {
    let mut pc = paused_pc();
    let mut saved = serde_json::to_value(pc.save().unwrap()).unwrap();
    saved["version"] = 0.into();
    let state: PcState = serde_json::from_value(saved).unwrap();
    let error = pc.restore(state).unwrap_err();
    assert!(matches!(error, StateError::Version { found: 0, .. }));
}

#[test]
fn a_state_of_the_layout_before_versions_of_devices_is_refused_by_its_version() {
    let old = r#"{"version": 3, "time": 0, "tsc": 0, "devices": {"a20": true}}"#;
    let state: PcState = serde_json::from_str(old).unwrap();
    let error = paused_pc().restore(state).unwrap_err();
    assert_eq!(
        error.to_string(),
        "saved state of 'machine' has version 3, this program reads version 4"
    );
}

/// Each part gets another version, and one is truncated.
#[test]
fn a_part_of_another_version_is_refused_by_name_and_nothing_changes() {
    let mut pc = paused_pc();
    let saved = serde_json::to_value(pc.save().unwrap()).unwrap();
    pc.port_write(0x3ff, 1, 0x77);
    let before = serde_json::to_value(pc.save().unwrap()).unwrap();
    let refuse = |pc: &mut Pc, saved: serde_json::Value| {
        let error = pc.restore(serde_json::from_value(saved).unwrap());
        assert_eq!(serde_json::to_value(pc.save().unwrap()).unwrap(), before);
        error.unwrap_err().to_string()
    };
    let mut board = saved.clone();
    board["board"]["version"] = 99.into();
    assert!(refuse(&mut pc, board).starts_with("saved state of 'board' has version 99"));
    let serial = saved["parts"].as_array().unwrap().iter();
    let serial = serial.take_while(|part| part[0] != "com1").count();
    let mut newer = saved.clone();
    newer["parts"][serial][1]["version"] = 99.into();
    assert!(refuse(&mut pc, newer).starts_with("saved state of 'com1' has version 99"));
    let mut broken = saved.clone();
    broken["parts"][serial][1]["data"] = serde_json::Value::Null;
    assert!(refuse(&mut pc, broken).starts_with("saved state of 'com1' cannot be read"));
    let mut fewer = saved;
    fewer["parts"].as_array_mut().unwrap().pop();
    assert!(refuse(&mut pc, fewer).contains("other devices"));
}
