//! Tests what only Debian's 64-bit kernel can show. (`linux_boot.rs` has the tests that it shares
//! with the 32-bit kernels.)

use std::fs;

use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{self, DEBIAN_AMD64};
use crate::support::session::Session;
use crate::support::tollgate;

/// Words that make a line of the kernel's log suspicious.
const SUSPICIOUS: [&str; 16] = [
    "error",
    "fail",
    "bug",
    "warn",
    "unable",
    "unsupported",
    "not supported",
    "invalid",
    "fatal",
    " bad ",
    "cannot",
    "corrupt",
    "oops",
    "not found",
    "unexpected",
    "unknown",
];

/// Suspicious lines that are allowed. The first ones also occur in a boot on QEMU 7.2.
const KNOWN: [(&str, &str); 9] = [
    (
        "and report a bug",
        "on QEMU, too: advice about the PCI host bridge",
    ),
    ("TLB invalidation policy", "on QEMU, too: no complaint"),
    ("DMI not present or invalid", "there are no SMBIOS tables"),
    ("no PMU driver", "there are no performance counters"),
    (
        "intel_pstate: CPU model not supported",
        "it cannot set the host's frequency",
    ),
    ("amd_pstate", "it cannot set the host's frequency"),
    (
        linux::RETBLEED,
        "Linux says it on some models of Intel's that have no IBRS",
    ),
    (
        "Fast TSC calibration failed",
        "if the host is busy: the kernel has other ways",
    ),
    (
        "Unable to calibrate against PIT",
        "if the host is busy: the kernel has other ways",
    ),
];

#[test]
fn the_kernel_complains_of_nothing_unknown() {
    for model in ["host", "qemu64", "x86-64-v2"] {
        let mut command = linux::run(DEBIAN_AMD64);
        command.args(["-m", "512M", "--cpu", model]);
        let mut guest = linux::boot(command);
        let log = guest.shell("dmesg");
        assert!(log.contains("Linux version"), "{log}");
        for line in log.lines() {
            let small = line.to_lowercase();
            let is_suspicious = SUSPICIOUS.iter().any(|word| small.contains(word));
            let is_known = KNOWN.iter().any(|(text, _)| line.contains(text));
            assert!(!is_suspicious || is_known, "--cpu {model}: {line}");
        }
        guest.type_line("poweroff -f");
        assert_eq!(guest.end().code, Some(0));
    }
}

#[test]
fn the_clock_comes_from_the_monitor_if_the_guest_is_told_of_it() {
    for (interface, is_there) in [("kvm", true), ("none", false)] {
        let mut command = linux::run(DEBIAN_AMD64);
        command.args(["-m", "512M", "--paravirt", interface]);
        let mut guest = linux::boot(command);
        let log = guest.shell("dmesg");
        assert_eq!(log.contains("kvm-clock: Using msrs"), is_there, "{log}");
        assert_eq!(log.contains("Hypervisor detected: KVM"), is_there, "{log}");
        // Linux uses the x2APIC where a hypervisor guarantees the routes of interrupts.
        assert_eq!(log.contains("x2apic enabled"), is_there, "{log}");
        if is_there {
            // The kernel has not measured the counter.
            assert!(!log.contains("Refined TSC"), "{log}");
        }
        let sources = "cat /sys/devices/system/clocksource/clocksource0/available_clocksource";
        let sources = guest.shell(sources);
        assert_eq!(sources.contains("kvm-clock"), is_there, "{sources}");
        guest.type_line("poweroff -f");
        assert_eq!(guest.end().code, Some(0));
    }
}

#[test]
fn symbols_of_one_run_name_the_kernels_code_in_another() {
    let folder = Folder::new();
    let mut command = linux::run(DEBIAN_AMD64);
    command.args(["-m", "512M"]);
    let mut guest = linux::boot(command);
    guest.shell("echo 0 > /proc/sys/kernel/kptr_restrict");
    let symbols =
        guest.shell("grep -E ' (_stext|entry_SYSCALL_64|[a-z_]*safe_halt[a-z_]*)$' /proc/kallsyms");
    assert!(symbols.contains("entry_SYSCALL_64"), "{symbols}");
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));

    // The kernel is at another address this time, except in one of 500 runs.
    let file = folder.file("kallsyms", symbols.replace('\r', "").as_bytes());
    let statistics = folder.path("stats.json");
    let mut command = linux::run(DEBIAN_AMD64);
    command.args(["-m", "512M", "--stats-format", "json", "--symbols"]);
    command.arg(&file).arg("--stats-file").arg(&statistics);
    let mut guest = linux::boot(command);
    guest.shell("sleep 2");
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
    let text = fs::read_to_string(&statistics).unwrap();
    let snapshot: serde_json::Value = serde_json::from_str(&text).unwrap();
    let rows = snapshot["symbols"].as_array().unwrap();
    let is_named = |row: &serde_json::Value| {
        let symbol = row["symbol"].as_str().unwrap_or("");
        row["kind"] == "halt" && symbol.contains("safe_halt")
    };
    assert!(rows.iter().any(is_named), "{symbols}\n{rows:#?}");
}

/// Boots with a BusyBox for the 80386 in addition to the 64-bit one.
fn boot_with_32_bit_programs(folder: &Folder) -> Session {
    let busybox = fs::read(fetched("busybox/busybox")).unwrap();
    let initramfs = linux::initramfs_with(DEBIAN_AMD64, "bin/busybox32", &busybox);
    let mut command = tollgate();
    command.args(["run", "-m", "512M", "--verify-code", "--verify-shadow"]);
    command.args(["--kernel"]);
    command.arg(fetched("debian-amd64/vmlinuz"));
    command
        .arg("--initrd")
        .arg(folder.file("initrd.img", &initramfs));
    command.args(["--append", "console=ttyS0"]);
    linux::boot(command)
}

#[test]
fn programs_of_32_bits_run_beside_those_of_64() {
    let folder = Folder::new();
    let mut guest = boot_with_32_bit_programs(&folder);
    // The class of the ELF file that runs is 1 for 32 bits and 2 for 64 bits.
    for (busybox, class) in [("busybox32", "01"), ("busybox", "02")] {
        let command = format!("{busybox} od -An -tx1 -j4 -N1 /proc/self/exe");
        assert_eq!(guest.shell(&command), class);
    }
    guest.shell("head -c 1000000 /dev/zero | tr '\\0' a > /tmp/a");
    let sum = guest.shell("busybox32 sha256sum < /tmp/a");
    let expected = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0";
    assert_eq!(sum.split(' ').next(), Some(expected));
    // Pipes lead from one width to the other, and many processes run.
    let sum = guest.shell("busybox32 gzip < /tmp/a | busybox gunzip | busybox32 md5sum");
    assert_eq!(sum, "7707d6ae4e027c70eea2a935c2296f21  -");
    let loops = "i=0; s=0; while [ $i -lt 100 ]; do i=$((i+1)); s=$((s+$(echo $i))); done; echo $s";
    let sum = guest.shell(&format!("busybox32 sh -c '{loops}'"));
    assert_eq!(sum, "5050");
    let newton = "BEGIN { x=1; while (i++ < 9) x=(x+2/x)/2; printf \"%.12f %.12f\", x, 2/3 }";
    let roots = guest.shell(&format!("busybox32 awk '{newton}'"));
    assert_eq!(roots, "1.414213562373 0.666666666667");
    linux::assert_untroubled(&mut guest);
    guest.type_line("poweroff -f");
    assert_eq!(guest.end().code, Some(0));
}

#[test]
fn every_model_of_processor_boots_it() {
    for (model, flag) in [
        ("x86-64-v1", "syscall"),
        ("x86-64-v2", "popcnt"),
        ("x86-64-v3", "avx2"),
        ("qemu64", "cx16"),
    ] {
        let mut command = linux::run(DEBIAN_AMD64);
        command.args(["-m", "512M", "--verify-code", "--cpu", model]);
        let mut guest = linux::boot(command);
        let processor = guest.shell("cat /proc/cpuinfo");
        let has = |flag: &str| processor.split_whitespace().any(|word| word == flag);
        assert!(has(flag) && has("lm"), "{model}: {processor}");
        assert!(model == "x86-64-v3" || !has("avx"), "{model}: {processor}");
        assert_eq!(has("pcid"), model != "qemu64", "{model}: {processor}");
        let sum = guest.shell("seq 1 1000 | sha256sum | head -c 8");
        assert_eq!(sum, "67d4ff71");
        linux::assert_untroubled(&mut guest);
        guest.type_line("poweroff -f");
        assert_eq!(guest.end().code, Some(0));
    }
}
