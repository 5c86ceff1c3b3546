//! Boots kernels that are neither Linux nor our own. docs/measured/public-suites.md describes
//! further runs of them.

use crate::support::guests::fetched;
use crate::support::session::Session;
use crate::support::system::system;
use crate::support::{GUEST_PATIENCE, finish, tollgate};

fn memtest86_finds_no_error(access: &str) {
    let mut command = tollgate();
    command.args(["run", "-m", "16M", "--verify-code"]);
    command.args(["--knob", &format!("memory-access={access}")]);
    command.args(["--append", "console=ttyS0", "--kernel"]);
    command.arg(fetched("memtest86+/memtest.bin"));
    let mut guest = Session::over_pipes(command);
    // All of its tests run except the last one, which mostly waits.
    let screen = guest.wait_for("#10 [Bit fade test");
    let counts: Vec<_> = screen.split("Errors: ").skip(1).collect();
    assert!(!counts.is_empty(), "{screen}");
    assert!(
        counts.iter().all(|count| count.starts_with("0 ")),
        "{screen}"
    );
    guest.type_bytes(b"\x1b");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn memtest86_finds_no_error_and_restarts_when_told_to() {
    memtest86_finds_no_error("adaptive");
}

#[test]
fn so_it_does_where_it_reaches_memory_directly() {
    memtest86_finds_no_error("direct");
}

fn gnu_mach_gets_as_far_as_it_can(access: &str) {
    let mut command = tollgate();
    command.args(["run", "-m", "128M", "--verify-code"]);
    command.args(["--knob", &format!("memory-access={access}")]);
    command.args(["--append", "console=com0", "--kernel"]);
    command.arg(fetched("gnumach/gnumach"));
    // It restarts the machine a few seconds after its panic.
    let output = finish(&mut command, GUEST_PATIENCE);
    let console = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{console}");
    assert!(console.contains("DIRECTMAP: pages: 28672"), "{console}");
    assert!(
        console.contains("No bootstrap code loaded with the kernel"),
        "{console}"
    );
}

#[test]
fn gnu_mach_gets_as_far_as_it_can_without_servers() {
    gnu_mach_gets_as_far_as_it_can("adaptive");
}

#[test]
fn so_does_one_that_reaches_memory_directly() {
    gnu_mach_gets_as_far_as_it_can("direct");
}

#[test]
fn xen_builds_its_first_domain_which_powers_the_machine_off() {
    // Debian's kernel for virtual machines cannot be Xen's first domain.
    let Some(system) = system("amd64") else {
        return;
    };
    let kernel = system.join("generic/vmlinuz");
    let mut command = tollgate();
    command.args(["run", "-m", "1G", "--kernel"]);
    command.arg(fetched("xen/xen"));
    command.args(["--append", "com1=115200,8n1 console=com1 dom0_mem=700M"]);
    let kernel = format!("{} console=hvc0 tollgate.autooff", kernel.display());
    command.args(["--module", &kernel, "--module"]);
    command.arg(fetched("initrd-amd64.img"));
    let output = finish(&mut command, GUEST_PATIENCE);
    let console = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{console}");
    let stages = [
        "Hypervisor detected: Xen PV",
        "tollgate-guest: ready",
        "(XEN) Entering ACPI S5 state.",
    ];
    let mut rest = &console[..];
    for stage in stages {
        let Some((_, after)) = rest.split_once(stage) else {
            panic!("{stage} is missing: {console}");
        };
        rest = after;
    }
}
