//! Tests Debian's kernels with direct access to memory: the results are the same as without.

use crate::support::linux::{self, DEBIAN_686, DEBIAN_686_PAE, DEBIAN_AMD64};
use crate::support::session::Session;

/// The output of programs that run for long, map and unmap, fork, and write to memory that they
/// share.
const WORK: &str = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; echo $i; \
     seq 1 30000 | sort -r | sha256sum; \
     dd if=/dev/zero bs=64k count=64 2>/dev/null | gzip | gunzip | md5sum; \
     n=0; for f in 1 2 3 4 5 6 7 8 9 10; do n=$((n + $(seq 1 200 | wc -l))); done; echo $n; \
     awk 'BEGIN { for (i = 0; i < 200000; i++) a[i % 5000] += i; print a[4999] }'";

fn boot(kernel: &str, access: &str) -> Session {
    let mut command = linux::run(kernel);
    command.args([
        "-m",
        "512M",
        "--stats",
        "--knob",
        &format!("memory-access={access}"),
    ]);
    linux::boot(command)
}

/// The guest's results, and the number of faults in shadow windows.
fn results(kernel: &str, access: &str, arguments: &[&str]) -> (String, u64) {
    let mut command = linux::run(kernel);
    command.args([
        "-m",
        "512M",
        "--stats",
        "--knob",
        &format!("memory-access={access}"),
    ]);
    command.args(arguments);
    let mut guest = linux::boot(command);
    let text = guest.shell(WORK);
    guest.type_line("poweroff -f");
    let end = guest.end();
    assert_eq!(end.code, Some(0), "{}", end.errors);
    let row = end
        .errors
        .lines()
        .find(|line| line.contains("window-fault "));
    let count = row.and_then(|row| row.split_whitespace().nth(1));
    let count = count.map_or(0, |count| count.replace(',', "").parse().unwrap());
    (text, count)
}

fn programs_compute_the_same(kernel: &str) {
    let (checked, none) = results(kernel, "checked", &[]);
    assert!(
        checked.contains("20000") && checked.contains("2000\n"),
        "{checked}"
    );
    assert_eq!(none, 0);
    let (direct, faults) = results(kernel, "direct", &["--verify-code"]);
    assert_eq!(direct, checked);
    assert!(faults > 0, "nothing was reached directly");
    let (adaptive, faults) = results(kernel, "adaptive", &[]);
    assert_eq!(adaptive, checked);
    assert!(faults > 0, "nothing was reached directly");
}

#[test]
fn programs_compute_the_same_however_they_reach_memory() {
    programs_compute_the_same(DEBIAN_AMD64);
}

#[test]
fn so_do_those_of_32_bit_kernels() {
    programs_compute_the_same(DEBIAN_686);
}

#[test]
fn so_do_those_of_32_bit_kernels_with_pae() {
    programs_compute_the_same(DEBIAN_686_PAE);
}

#[test]
fn a_reset_begins_without_what_was_mapped_before() {
    for kernel in [DEBIAN_AMD64, DEBIAN_686_PAE] {
        let mut guest = boot(kernel, "direct");
        guest.shell("seq 1 1000 | sha256sum");
        guest.type_line("reboot -f");
        assert_eq!(guest.end().code, Some(0), "{kernel}");
    }
}
