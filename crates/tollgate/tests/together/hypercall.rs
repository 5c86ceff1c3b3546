//! Tests the null hypercall from ring 3 of a Linux guest.

use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_686, DEBIAN_AMD64};
use crate::support::tollgate;

/// The number that follows `word` in a line of words.
fn number(line: &str, word: &str) -> u64 {
    let mut words = line.split_whitespace().skip_while(|other| *other != word);
    let value = words.nth(1).unwrap_or_else(|| panic!("no {word}: {line}"));
    value.parse().unwrap_or_else(|_| panic!("{word}: {line}"))
}

#[test]
fn a_linux_program_repeats_the_null_hypercall_from_ring_3() {
    repeats_the_null_hypercall(DEBIAN_686, tollgate_lab::HYPERCALL_LINUX);
}

/// The program has 32 bits, so its calls come from compatibility mode.
#[test]
fn a_32_bit_program_repeats_the_null_hypercall_under_a_64_bit_kernel() {
    repeats_the_null_hypercall(DEBIAN_AMD64, tollgate_lab::HYPERCALL_LINUX);
}

#[test]
fn so_does_a_program_of_64_bits() {
    repeats_the_null_hypercall(DEBIAN_AMD64, tollgate_lab::HYPERCALL_LINUX_64);
}

#[track_caller]
fn repeats_the_null_hypercall(kernel: &str, program: &[u8]) {
    const CALLS: u64 = 20_000;
    let folder = Folder::new();
    let initramfs = linux::initramfs_with(kernel, "bin/hypercall", program);
    let mut command = tollgate();
    command
        .args(["run", "--stats", "--append", "console=ttyS0", "--kernel"])
        .arg(fetched(&format!("{kernel}/vmlinuz")))
        .arg("--initrd")
        .arg(folder.file("initrd.img", &initramfs));
    let mut session = linux::boot(command);

    let line = session.shell(&format!("hypercall {CALLS}"));
    assert!(line.starts_with("null-hypercall: "), "{line}");
    assert_eq!(number(&line, "calls"), CALLS);
    let order = ["min", "p50", "p95", "p99", "max"].map(|word| number(&line, word));
    assert!(order.is_sorted(), "{line}");
    assert!(number(&line, "baseline") > 0, "{line}");
    println!("{line}");

    let usage = session.shell("hypercall 1x; echo $?");
    assert!(
        usage.starts_with("usage:") && usage.ends_with('2'),
        "{usage}"
    );

    assert_eq!(session.shell("hypercall first; echo $?"), "0");
    assert_eq!(session.shell("hypercall a-mark-of-16-end; echo $?"), "0");
    let too_long = session.shell("hypercall a-mark-of-16-ends; echo $?");
    assert!(too_long.starts_with("usage:"), "{too_long}");
    session.type_line("poweroff -f");
    let end = session.end();
    let counted = end
        .errors
        .lines()
        .find(|line| line.starts_with("null-hypercall"))
        .unwrap_or_else(|| panic!("no null hypercalls in: {}", end.errors));
    let counted = counted.split_whitespace().nth(1).unwrap().replace(',', "");
    assert_eq!(counted.parse(), Ok(CALLS), "{}", end.errors);
}
