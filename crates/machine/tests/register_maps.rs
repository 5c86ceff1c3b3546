//! The bare-metal guests state the same facts when their registers live in memory as far
//! as they can. All emitted code is verified.

#[path = "../../tollgate/tests/support/guests.rs"]
#[allow(dead_code)]
mod guests;

use std::io::{self, Write};
use std::sync::{Arc, Mutex};

use tollgate_machine::config::{MIB, RegisterMapChoice, VmConfig};
use tollgate_machine::vm::{Consoles, RunOutcome, Vm};
use tollgate_machine::vm_handle::VmHandle;

/// What a guest writes to isa-debug-exit if all its facts hold.
const ALL_FACTS_HOLD: u8 = 0x10;

/// A console that a test reads afterwards.
#[derive(Clone, Default)]
struct Console(Arc<Mutex<Vec<u8>>>);

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

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
        let serial = Console::default();
        let consoles = Consoles {
            serial: Box::new(serial.clone()),
            debug: Box::new(io::sink()),
        };
        let mut vm = Vm::build(&config, consoles, &VmHandle::new())
            .unwrap_or_else(|error| panic!("{error}"));
        let outcome = vm.run();
        let facts = String::from_utf8_lossy(&serial.0.lock().unwrap()).into_owned();
        let all = RunOutcome::DebugExit(ALL_FACTS_HOLD);
        assert_eq!(outcome, all, "{name}:\n{facts}");
        let stated = facts.lines().filter(|line| line.starts_with("ok ")).count();
        let last = facts.lines().last().unwrap_or_default();
        assert_eq!(last, format!("{stated} of {stated} facts hold"), "{name}");
    }
}
