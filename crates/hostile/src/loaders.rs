//! Hostile input for boot loaders: random files as kernels, with an initial RAM disk and a command
//! line.
//!
//! The first bytes of an input select the machine's memory, and how much of the rest is command
//! line and how much initial RAM disk; the remaining bytes are the kernel.

pub mod images;

use crate::input::Input;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_machine::acpi::Hardware;
use tollgate_machine::boot::{self, BootSource};
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;

/// Sizes of RAM in bytes, selected by the input's first byte.
const MEMORY_BYTES: [u64; 4] = [2 << 20, 64 << 20, 16 << 20, 3 << 30];

/// A file for this input, removed when dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str, bytes: &[u8]) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-hostile-{}-{number}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::write(&path, bytes).expect("a file in the temporary folder");
        Self(path)
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

/// Loads the files that the input describes.
///
/// # Panics
///
/// Panics if a loader breaks a promise.
pub fn run(data: &[u8]) {
    let mut input = Input::new(data);
    let options = input.byte();
    let command_line_bytes = usize::from(input.byte()) << (options >> 6);
    let initrd_bytes = usize::from(input.byte()) << 4;
    let append = String::from_utf8_lossy(input.bytes(command_line_bytes)).into_owned();
    let initrd = (initrd_bytes != 0).then(|| File::new("initrd", input.bytes(initrd_bytes)));
    let kernel = File::new("kernel", input.rest());
    // Two modules, the second with an argument; Linux takes all of it as one name.
    let modules = initrd.as_ref().map(|file| {
        let path = file.0.display();
        if options & 4 == 0 {
            path.to_string()
        } else {
            format!("{path},{path} {append}")
        }
    });
    let bytes = MEMORY_BYTES[usize::from(options & 3)];
    let mut memory = GuestMemory::new(bytes).expect("guest memory");
    let source = BootSource {
        kernel: &kernel.0,
        initrd: modules.as_deref(),
        initramfs: None,
        append: append.as_str().into(),
        acpi: (options & 8 == 0).then(Hardware::default),
    };
    match boot::load(&source, &mut memory) {
        Ok(state) => {
            assert!(state.rip >> 32 == 0);
            assert!(state.gpr.iter().all(|value| value >> 32 == 0));
            // Loaders must not write to the areas of the firmware.
            let mut word = [0; 2];
            assert!(memory.read(PhysicalAddress(0x400), &mut word));
            assert_eq!(u16::from_le_bytes(word), 0x3f8);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

/// A complete image of each kind.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let input = |initrd: &[u8], command_line: &[u8], kernel: &[u8]| {
        let blocks = initrd.len().div_ceil(16);
        let head = [1, command_line.len() as u8, blocks as u8];
        let mut bytes = [&head, command_line, initrd].concat();
        bytes.resize(3 + command_line.len() + 16 * blocks, 0);
        bytes.extend(kernel);
        bytes
    };
    let text = b"console=ttyS0";
    let mut seeds = vec![
        (
            "bzimage".to_owned(),
            input(&[7; 48], text, &images::bzimage(64)),
        ),
        (
            "bzimage-64".to_owned(),
            input(&[7; 48], text, &images::bzimage_64(64)),
        ),
        (
            "vmlinux".to_owned(),
            input(&[7; 16], text, &images::elf(&[0x90; 64])),
        ),
        (
            "vmlinux-64".to_owned(),
            input(&[7; 16], text, &images::elf_64(&[0x90; 64], false)),
        ),
        (
            "pvh".to_owned(),
            input(&[7; 16], text, &images::elf_64(&[0x90; 64], true)),
        ),
        ("flat".to_owned(), input(&[], text, &[0xf4; 32])),
        (
            "boot-sector".to_owned(),
            input(&[], &[], &images::boot_sector()),
        ),
        ("text".to_owned(), input(&[], &[], b"not a kernel\n")),
        (
            "gzip".to_owned(),
            input(&[], &[], b"\x1f\x8b\x08\0\0\0\0\0"),
        ),
    ];
    for (name, kernel) in images::multiboot() {
        seeds.push((name.to_owned(), input(&[3; 32], text, &kernel)));
    }
    let mut two_modules = input(&[3; 32], text, &images::multiboot()[0].1);
    two_modules[0] |= 4;
    seeds.push(("two-modules".to_owned(), two_modules));
    seeds
}
