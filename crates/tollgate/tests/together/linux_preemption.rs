//! Tests Debian's kernel for real time, which preempts itself everywhere, on a monitor that stops
//! its work at each N-th checkpoint. Stopped work is resumed or dropped, and programs compute the
//! same.

use std::io::{self, Write};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::GUEST_PATIENCE;
use crate::support::guests::fetched;
use crate::support::linux::RETBLEED;
use tollgate_exits::reading::InterruptReading;
use tollgate_machine::config::{Interruptible, VmConfig};
use tollgate_machine::vm::{Consoles, RunOutcome, Vm};
use tollgate_machine::vm_handle::VmHandle;

/// Forks, executes, pipes and computes, while two other programs run.
const SCRIPT: &str = "
uname -v
(while :; do ls -l /bin; done) > /dev/null &
(while :; do cat /proc/meminfo; done) > /dev/null &
i=0; while [ $i -lt 40 ]; do [ $(echo $i | sed s/^/1/) = 1$i ] && echo $i; usleep 500; i=$((i+1)); done | wc -l
dd if=/dev/zero bs=4k count=256 2>/dev/null | sha256sum
echo all-$((6*7))
poweroff -f
";
/// The checksum of 1 MiB of zeros.
const SUM: &str = "30e14955ebf1352266dc2ff8067e68104607e750abb9d3b36582b8af909fcb58";

#[derive(Clone, Default)]
struct Printed(Arc<Mutex<Vec<u8>>>);

impl Printed {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Printed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Types the script when the shell is ready, and ends the machine if the script takes too long.
fn type_script(printed: &Printed, handle: &VmHandle) {
    let end = Instant::now() + 4 * GUEST_PATIENCE;
    let mut left = SCRIPT.as_bytes();
    while !printed.text().contains("reboot: Power down") {
        if printed.text().contains("tollgate-guest: ready") && !left.is_empty() {
            left = &left[handle.serial_input(left)..];
        }
        if Instant::now() > end {
            handle.quit();
            return;
        }
        thread::sleep(Duration::from_millis(20));
    }
}

/// Boots the kernel, and lets the monitor's work stop at each `every`-th checkpoint.
fn boots(choice: Interruptible, every: u64) -> InterruptReading {
    let config = VmConfig {
        memory_bytes: 256 << 20,
        kernel: fetched("debian-rt-amd64/vmlinuz"),
        initrd: Some(fetched("initrd-amd64.img").to_string_lossy().into_owned()),
        append: "console=ttyS0".into(),
        verify_code: true,
        verify_shadow: true,
        interruptible: choice,
        ..VmConfig::default()
    };
    let (printed, handle) = (Printed::default(), VmHandle::new());
    let consoles = Consoles {
        serial: Box::new(printed.clone()),
        debug: Box::new(io::sink()),
    };
    let mut vm = Vm::build(&config, consoles, &handle).unwrap();
    vm.force_requests(every);
    let outcome = thread::scope(|scope| {
        scope.spawn(|| type_script(&printed, &handle));
        let outcome = vm.run();
        // Whatever the reason, this ends the wait for the guest.
        printed.clone().write_all(b"reboot: Power down").unwrap();
        outcome
    });
    let text = printed.text();
    assert!(
        matches!(outcome, RunOutcome::PowerOff),
        "{outcome:?}\n{text}"
    );
    let said = |what: &str| assert!(text.contains(what), "{what} is missing:\n{text}");
    for what in ["PREEMPT_RT", "\n40\r", SUM, "all-42"] {
        said(what);
    }
    let is_of_kernel = |line: &&str| line.starts_with('[') && !line.contains(RETBLEED);
    for line in text.lines().filter(is_of_kernel) {
        let complains = ["BUG:", "WARNING:", "Oops", "stall"].map(|what| line.contains(what));
        assert_eq!(complains, [false; 4], "{text}");
    }
    vm.reading().interrupts
}

fn count(rows: &[(&'static str, u64)], name: &str) -> u64 {
    rows.iter().find(|row| row.0 == name).map_or(0, |row| row.1)
}

#[test]
fn a_preemptive_kernel_runs_while_work_stops_and_begins_again() {
    let reading = boots(Interruptible::Restart, 5);
    assert!(
        count(&reading.stops, "translate") > 1_000,
        "{:?}",
        reading.stops
    );
    assert!(reading.resumed.iter().all(|row| row.1 == 0));
}

#[test]
fn a_preemptive_kernel_runs_while_work_stops_and_goes_on() {
    let reading = boots(Interruptible::Resume, 5);
    assert!(
        count(&reading.stops, "translate") > 1_000,
        "{:?}",
        reading.stops
    );
    let resumed = count(&reading.resumed, "translate");
    assert!(resumed > 100, "{:?}", reading.resumed);
}
