//! Tests that every input that cannot work is refused before the machine starts, with exit code 2
//! and one line that says what is wrong. (`cli.rs` has the exact lines about flags.)

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use crate::support::folder::Folder;
use crate::support::guests::fetched;
use crate::support::linux::{DEBIAN_686, DEBIAN_686_PAE, DEBIAN_AMD64};
use crate::support::{PATIENCE, finish, tollgate};

/// Expects that `tollgate run` with these arguments is refused with one line that contains
/// `reason`.
#[track_caller]
fn refused<A: AsRef<OsStr>>(arguments: &[A], reason: &str) {
    let mut command = tollgate();
    command.arg("run").args(arguments);
    let output = finish(&mut command, PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{command:?}: {errors}");
    assert_eq!(errors.lines().count(), 1, "{command:?}: {errors}");
    assert!(errors.starts_with("tollgate: "), "{command:?}: {errors}");
    assert!(errors.contains(reason), "{command:?}: {errors}");
    assert!(errors.chars().count() < 400, "{command:?}: {errors}");
    assert_eq!(output.stdout, b"", "{command:?}");
}

#[track_caller]
fn kernel_refused(kernel: &Path, reason: &str) {
    refused(&[OsStr::new("--kernel"), kernel.as_os_str()], reason);
}

fn vmlinuz(kernel: &str) -> PathBuf {
    fetched(&format!("{kernel}/vmlinuz"))
}

#[test]
fn a_path_without_a_readable_file() {
    let folder = Folder::new();
    kernel_refused(&folder.path("vmlinuz"), "no such file");
    kernel_refused(folder.as_path(), "it is a folder");
    kernel_refused(Path::new(""), "");
    let file = folder.file("file", b"");
    kernel_refused(&file.join("vmlinuz"), "cannot read");
    let with_initrd = |initrd: &Path, reason: &str| {
        let kernel = vmlinuz(DEBIAN_686);
        let arguments = [
            Path::new("--kernel"),
            &kernel,
            Path::new("--initrd"),
            initrd,
        ];
        refused(&arguments, reason);
    };
    with_initrd(&folder.path("initrd.img"), "initrd.img");
    with_initrd(folder.as_path(), "cannot read");
    let kernel = vmlinuz(DEBIAN_686);
    let mut arguments = vec![OsStr::new("--kernel"), kernel.as_os_str()];
    for _ in 0..2 {
        arguments.extend([OsStr::new("--initrd"), file.as_os_str()]);
    }
    refused(&arguments, "Linux takes one initial RAM disk");
}

#[test]
fn a_file_that_is_no_kernel() {
    let folder = Folder::new();
    for (name, content) in [
        ("empty", b"".as_slice()),
        ("text", b"vmlinuz-6.1.0 is not here\n"),
        ("script", b"#!/bin/sh\nexit 0\n"),
        ("zeros", &[0; 4096]),
        ("dos", b"MZ\x90\0\x03\0\0\0\x04\0"),
    ] {
        kernel_refused(&folder.file(name, content), "is not a kernel");
    }
    // The file is a compressed initramfs in the kernel's place.
    kernel_refused(&fetched("initrd-i386.img"), "is not a kernel");
}

/// The end of a bzImage according to its header. A signature may follow, which is not needed to
/// boot.
fn declared_end(image: &[u8]) -> usize {
    let setup_sectors = usize::from(image[0x1f1]);
    let paragraphs = u32::from_le_bytes(image[0x1f4..0x1f8].try_into().unwrap());
    (setup_sectors + 1) * 512 + paragraphs as usize * 16
}

#[test]
fn a_truncated_kernel() {
    let folder = Folder::new();
    for kernel in [DEBIAN_686, DEBIAN_686_PAE, DEBIAN_AMD64] {
        let image = fs::read(vmlinuz(kernel)).unwrap();
        for length in [
            1,
            0x100,
            0x1f1,
            0x200,
            0x204,
            0x236,
            0x400,
            0x1000,
            0x5000,
            image.len() / 2,
            declared_end(&image) - 0x1000,
            declared_end(&image) - 16,
        ] {
            kernel_refused(&folder.file("vmlinuz", &image[..length]), "vmlinuz");
        }
        let half = folder.file("vmlinuz", &image[..image.len() / 2]);
        kernel_refused(&half, "is truncated");
        let image = fs::read(fetched(&format!("{kernel}/vmlinux"))).unwrap();
        for length in [5, 20, 52, 60, 0x1000, image.len() / 2] {
            kernel_refused(&folder.file("vmlinux", &image[..length]), "vmlinux");
        }
    }
}

#[test]
fn an_elf_file_that_is_no_kernel_for_this_machine() {
    let folder = Folder::new();
    // This test program's command is a 64-bit ELF file itself, for addresses below 1 MiB.
    let program = Path::new(env!("CARGO_BIN_EXE_tollgate"));
    kernel_refused(program, "must be loaded at 0x0");
    // The file has only the header of an ELF file for x86-64 (e_machine 62).
    let mut header = [0; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    header[16..20].copy_from_slice(&[2, 0, 62, 0]);
    kernel_refused(&folder.file("vmlinux", &header), "vmlinux");
    header[54] = 56;
    kernel_refused(&folder.file("vmlinux", &header), "no loadable ELF segment");
    // The file has 32 bits, but another processor (40 is ARM).
    header[4] = 1;
    header[18] = 40;
    kernel_refused(&folder.file("vmlinux", &header), "another processor");
}

#[test]
fn an_initrd_that_does_not_fit() {
    let folder = Folder::new();
    let kernel = vmlinuz(DEBIAN_686);
    let kernel = kernel.to_str().unwrap();
    for (memory, megabytes) in [("512M", 600), ("512M", 505), ("64M", 60), ("1G", 1010)] {
        let initrd = folder.sparse_file("initrd.img", megabytes << 20);
        let initrd = initrd.to_str().unwrap();
        let arguments = ["--memory", memory, "--kernel", kernel, "--initrd", initrd];
        refused(&arguments, "does not fit");
    }
}

#[test]
fn an_initrd_for_a_guest_that_takes_none() {
    let folder = Folder::new();
    let sector = folder.boot_sector(&[0xeb, 0xfe]);
    let initrd = fetched("initrd-i386.img");
    let arguments = [
        Path::new("--kernel"),
        &sector,
        Path::new("--initrd"),
        &initrd,
    ];
    refused(&arguments, "takes no --initrd");
}

#[test]
fn too_little_memory() {
    for kernel in [DEBIAN_686, DEBIAN_686_PAE, DEBIAN_AMD64] {
        for file in ["vmlinuz", "vmlinux"] {
            let path = fetched(&format!("{kernel}/{file}"));
            for memory in ["2M", "8M", "16M"] {
                let arguments = ["--memory", memory, "--kernel", path.to_str().unwrap()];
                refused(&arguments, "--memory: too little");
            }
        }
    }
    let folder = Folder::new();
    let large = folder.sparse_file("large", 40 << 20);
    let arguments = ["-m", "16M", "--kernel", large.to_str().unwrap()];
    refused(&arguments, "--memory: too little");
}

#[test]
fn a_command_line_that_is_too_long() {
    let kernel = vmlinuz(DEBIAN_686);
    let line = "x".repeat(4096);
    let arguments = ["--kernel", kernel.to_str().unwrap(), "--append", &line];
    refused(&arguments, "command line has 4096 bytes");
}

#[test]
fn flags_and_values_that_do_not_exist() {
    let kernel = vmlinuz(DEBIAN_686);
    let kernel = kernel.to_str().unwrap();
    for (arguments, reason) in [
        (["--bogus", ""], "unknown flag '--bogus'"),
        (["--memory", "much"], "not a size"),
        (["--memory", "1,5G"], "unknown unit"),
        (["--memory", "-5"], ""),
        (["--memory", "0"], "zero"),
        (["--memory", "1M"], "--memory: "),
        (["--memory", "8000G"], "--memory: "),
        (["--memory", "99999999999G"], "too large"),
        (["--memory", "5001K"], "multiple of 4096"),
        (["--code-cache", "1K"], "--code-cache: "),
        (["--code-cache", "64G"], "--code-cache: "),
        (["--serial", "nowhere"], "expected stdio"),
        (
            ["--serial", "file:/nonexistent/log"],
            "folder does not exist",
        ),
        (
            ["--control", "/nonexistent/vm.sock"],
            "folder does not exist",
        ),
        (["--knob", "memory-access=magic"], "checked"),
    ] {
        refused(&["--kernel", kernel, arguments[0], arguments[1]], reason);
    }
}
