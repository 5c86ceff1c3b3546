//! Tests Linux with a memory balloon: the host gets back the memory that the guest frees.

use std::fs;
use std::time::Duration;

use crate::support::folder::Folder;
use crate::support::linux::{self, DEBIAN_686, DEBIAN_AMD64};
use crate::support::within;

/// The guest memory that a process holds, in MiB.
fn held(process: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssShmem:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() / 1024
}

#[test]
fn the_host_gets_back_what_the_guest_frees() {
    for (kernel, pci) in [(DEBIAN_AMD64, "on"), (DEBIAN_686, "off")] {
        let folder = Folder::new();
        let mut command = linux::run_with_modules(&folder, kernel);
        command.args(["--device", "virtio-balloon", "--pci", pci]);
        let mut guest = linux::boot(command);
        linux::load_modules(&mut guest);
        guest.shell("mkdir -p /data && mount -t tmpfs data /data");
        guest.shell("dd if=/dev/urandom of=/data/one bs=1M count=1 2>/dev/null");
        for _ in 0..2 {
            guest.shell("dd if=/dev/zero bs=1M count=100 2>/dev/null | tr '\\0' x > /data/big");
            let full = held(guest.process());
            assert!(full >= 100, "{full} MiB");
            let sum = guest.shell("md5sum /data/one");
            guest.shell("rm /data/big");
            // The driver waits for two seconds before it reports.
            within(Duration::from_secs(120), "memory to come back", || {
                (held(guest.process()) + 80 < full).then_some(())
            });
            assert_eq!(guest.shell("md5sum /data/one"), sum);
        }
        linux::assert_untroubled(&mut guest);
        guest.type_line("poweroff -f");
        assert_eq!(guest.end().code, Some(0));
    }
}
