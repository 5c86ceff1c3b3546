//! A machine's state survives being written to a file and read by another machine.

use std::io;
use tollgate_machine::config::VmConfig;
use tollgate_machine::pc::{Pc, PcState};
use tollgate_platform::Platform;
use tollgate_x86::PhysicalAddress;

fn paused_pc() -> Pc {
    let mut pc = Pc::new(&VmConfig::default(), Box::new(io::sink()));
    pc.pause();
    pc
}

#[test]
fn a_saved_machine_goes_on_where_it_was() {
    let mut pc = paused_pc();
    // Line 13 of the I/O APIC to vector 4Dh, a byte in the UART's scratch register.
    for (register, value) in [(0u64, 0x2au32), (0x10, 0x4d)] {
        pc.memory_write(
            PhysicalAddress(0xfec0_0000 + register),
            &value.to_le_bytes(),
        );
    }
    pc.port_write(0x3ff, 1, 0x77);
    pc.signal_fpu_error();
    let saved = serde_json::to_string(&pc.save()).unwrap();

    let mut other = paused_pc();
    let state: PcState = serde_json::from_str(&saved).unwrap();
    other.restore(state).unwrap();
    assert_eq!(serde_json::to_string(&other.save()).unwrap(), saved);
    assert_eq!(other.now(), pc.now());
    assert_eq!(other.time_stamp(), pc.time_stamp());
    assert_eq!(other.acknowledge_interrupt(), Some(0x4d));
    assert_eq!(other.port_read(0x3ff, 1), 0x77);
}

#[test]
fn a_state_of_another_version_is_refused() {
    let mut pc = paused_pc();
    let mut saved = serde_json::to_value(pc.save()).unwrap();
    saved["version"] = 0.into();
    let state: PcState = serde_json::from_value(saved).unwrap();
    let error = pc.restore(state).unwrap_err();
    assert_eq!(error.found, 0);
}
