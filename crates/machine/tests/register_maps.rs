//! The bare-metal guests state the same facts if as many of their registers as possible are held in
//! memory. All emitted code is verified.
//!
//! This is a program of its own, because one of the guests measures time and no other tests may run
//! at the same time.

#[path = "../../tollgate/tests/bare_metal/guests.rs"]
mod guests;

use std::io;

use tollgate_machine::config::{MIB, RegisterMapChoice, VmConfig};
use tollgate_machine::vm::{Consoles, RunOutcome, Vm};
use tollgate_machine::vm_handle::VmHandle;
use tollgate_test_support::Transcript;

/// The value that a guest writes to isa-debug-exit if all its facts hold.
const ALL_FACTS_HOLD: u8 = 0x10;

#[test]
fn all_facts_hold_with_registers_in_memory() {
    for name in guests::bare_metal_names() {
        let config = VmConfig {
            memory_bytes: 32 * MIB,
            code_cache_bytes: 4 * MIB,
            verify_code: true,
            register_map: RegisterMapChoice::Spilled,
            kernel: guests::bare_metal(&name),
            ..VmConfig::default()
        };
        let serial = Transcript::default();
        let consoles = Consoles {
            serial: Box::new(serial.clone()),
            debug: Box::new(io::sink()),
        };
        let mut vm = Vm::build(&config, consoles, &VmHandle::new())
            .unwrap_or_else(|error| panic!("{error}"));
        let outcome = vm.run();
        let facts = serial.text();
        let all = RunOutcome::DebugExit(ALL_FACTS_HOLD);
        assert_eq!(outcome, all, "{name}:\n{facts}");
        let stated = facts.lines().filter(|line| line.starts_with("ok ")).count();
        let last = facts.lines().last().unwrap_or_default();
        assert_eq!(last, format!("{stated} of {stated} facts hold"), "{name}");
    }
}
