//! The null hypercall from ring 3 of a Linux guest.

mod support;

use std::path::PathBuf;
use support::folder::Folder;
use support::guests::fetched;
use support::{linux, tollgate};

/// The usual initramfs with the program as /bin/hypercall: Linux unpacks several
/// archives one after the other.
fn initramfs_with_program(folder: &Folder) -> PathBuf {
    let mut archive = std::fs::read(fetched("initrd-i386.img")).unwrap();
    // The second archive begins at a multiple of four.
    archive.resize(archive.len().next_multiple_of(4), 0);
    entry(
        &mut archive,
        "bin/hypercall",
        0o100_755,
        tollgate_lab::HYPERCALL_LINUX,
    );
    entry(&mut archive, "TRAILER!!!", 0, &[]);
    folder.file("initrd.img", &archive)
}

/// One entry of a cpio archive in the newc format.
fn entry(archive: &mut Vec<u8>, path: &str, mode: u32, content: &[u8]) {
    let start = archive.len();
    // Inode, mode, owner, group, links, time, size, two device numbers, name's length.
    let fields = [
        1,
        mode,
        0,
        0,
        1,
        0,
        content.len() as u32,
        0,
        0,
        0,
        0,
        path.len() as u32 + 1,
        0,
    ];
    archive.extend(b"070701");
    for field in fields {
        archive.extend(format!("{field:08X}").bytes());
    }
    archive.extend(path.bytes());
    archive.push(0);
    let aligned = |length: usize| start + (length - start).next_multiple_of(4);
    archive.resize(aligned(archive.len()), 0);
    archive.extend(content);
    archive.resize(aligned(archive.len()), 0);
}

/// The number behind `word` in a line of words.
fn number(line: &str, word: &str) -> u64 {
    let mut words = line.split_whitespace().skip_while(|other| *other != word);
    let value = words.nth(1).unwrap_or_else(|| panic!("no {word}: {line}"));
    value.parse().unwrap_or_else(|_| panic!("{word}: {line}"))
}

#[test]
fn a_linux_program_repeats_the_null_hypercall_from_ring_3() {
    const CALLS: u64 = 20_000;
    let folder = Folder::new();
    let mut command = tollgate();
    command
        .args(["run", "--stats", "--append", "console=ttyS0", "--kernel"])
        .arg(fetched("debian-686/vmlinuz"))
        .arg("--initrd")
        .arg(initramfs_with_program(&folder));
    let mut session = linux::boot(command);

    let line = session.shell(&format!("hypercall {CALLS}"));
    assert!(line.starts_with("null-hypercall: "), "{line}");
    assert_eq!(number(&line, "calls"), CALLS);
    let order = ["min", "p50", "p95", "p99", "max"].map(|word| number(&line, word));
    assert!(order.is_sorted(), "{line}");
    assert!(number(&line, "baseline") > 0, "{line}");
    println!("{line}");

    let usage = session.shell("hypercall x; echo $?");
    assert!(
        usage.starts_with("usage:") && usage.ends_with('2'),
        "{usage}"
    );

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
