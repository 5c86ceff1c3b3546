//! Tests of booting, with synthetic images and, if one was fetched, a real kernel.

use super::image::{put, u16_at, u32_at, u64_at};
use super::linux::offset;
use super::*;
use std::path::PathBuf;
use tollgate_test_support::skip;
use tollgate_x86::{Gpr, SegmentRegister};

mod host_files;
mod long_mode;
mod low_multiboot;
mod multiboot2;

const MIB: u64 = 1 << 20;

/// A file in the temporary directory, removed when dropped.
struct TemporaryFile(PathBuf);

impl TemporaryFile {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let unique = format!("tollgate-boot-{}-{name}", std::process::id());
        let path = std::env::temp_dir().join(unique);
        std::fs::write(&path, bytes).unwrap();
        Self(path)
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn memory(mebibytes: u64) -> GuestMemory {
    GuestMemory::new(mebibytes * MIB).unwrap()
}

fn read(memory: &GuestMemory, address: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    assert!(memory.read(PhysicalAddress(address), &mut bytes));
    bytes
}

fn boot(
    name: &str,
    kernel: &[u8],
    initrd: Option<&str>,
    append: &str,
    memory: &mut GuestMemory,
) -> Result<CpuState, BootError> {
    let file = TemporaryFile::new(name, kernel);
    let source = BootSource {
        kernel: &file.0,
        initrd,
        initramfs: None,
        append: append.into(),
        acpi: Some(crate::acpi::Hardware::default()),
    };
    load(&source, memory)
}

/// A bzImage of protocol 2.15 with one setup sector and `code_size` bytes of code.
fn bzimage(code_size: usize) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    bytes.resize(1024 + code_size, 0x90);
    bytes[offset::SETUP_SECTORS] = 1;
    put(
        &mut bytes,
        offset::SYSTEM_SIZE,
        &(code_size.div_ceil(16) as u32).to_le_bytes(),
    );
    put(&mut bytes, offset::BOOT_FLAG, &[0x55, 0xaa]);
    put(&mut bytes, offset::JUMP, &[0xeb, 0x66]);
    put(&mut bytes, offset::SIGNATURE, b"HdrS");
    put(&mut bytes, offset::VERSION, &0x020fu16.to_le_bytes());
    bytes[offset::LOAD_FLAGS] = 1;
    put(
        &mut bytes,
        offset::INITRD_ADDRESS_MAX,
        &0x37ff_ffffu32.to_le_bytes(),
    );
    put(
        &mut bytes,
        offset::KERNEL_ALIGNMENT,
        &0x100_0000u32.to_le_bytes(),
    );
    bytes[offset::RELOCATABLE] = 1;
    put(
        &mut bytes,
        offset::COMMAND_LINE_SIZE,
        &2047u32.to_le_bytes(),
    );
    put(
        &mut bytes,
        offset::PREFERRED_ADDRESS,
        &0x100_0000u64.to_le_bytes(),
    );
    put(&mut bytes, offset::INIT_SIZE, &0x80_0000u32.to_le_bytes());
    bytes
}

/// A 32-bit ELF file with one segment at 1 MiB, linked at C0100000h.
fn elf(class: u8, machine: u16, contents: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 0x100];
    put(&mut bytes, 0, b"\x7fELF");
    bytes[4] = class;
    bytes[5] = 1;
    put(&mut bytes, 16, &2u16.to_le_bytes());
    put(&mut bytes, 18, &machine.to_le_bytes());
    put(&mut bytes, 24, &0xc010_0010u32.to_le_bytes());
    put(&mut bytes, 28, &52u32.to_le_bytes());
    put(&mut bytes, 42, &32u16.to_le_bytes());
    put(&mut bytes, 44, &1u16.to_le_bytes());
    let size = contents.len() as u32;
    for (index, field) in [1, 0x100, 0xc010_0000, 0x10_0000, size, size + 0x5000]
        .into_iter()
        .enumerate()
    {
        put(&mut bytes, 52 + 4 * index, &u32::to_le_bytes(field));
    }
    bytes.extend_from_slice(contents);
    bytes
}

/// A multiboot header with this flags word.
fn multiboot_header(flags: u32) -> Vec<u8> {
    let magic = 0x1bad_b002u32;
    let checksum = magic.wrapping_add(flags).wrapping_neg();
    [magic, flags, checksum]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect()
}

#[test]
fn a_bzimage_is_entered_by_the_32_bit_protocol() {
    let mut memory = memory(64);
    let initrd = TemporaryFile::new("initrd", &[0x77; 5000]);
    let state = boot(
        "bzimage",
        &bzimage(3000),
        Some(initrd.0.to_str().unwrap()),
        "console=ttyS0",
        &mut memory,
    )
    .unwrap();

    assert_eq!(state.rip, 0x10_0000);
    assert_eq!(state.cs().selector.0, 0x10);
    assert_eq!(state.ss().selector.0, 0x18);
    assert_eq!(state.cs().limit, u32::MAX);
    assert!(state.is_protected() && !state.is_paging());
    assert_eq!(state.flags, 0);
    for zero in [Gpr::Rbp, Gpr::Rdi, Gpr::Rbx] {
        assert_eq!(state.register(zero), 0);
    }
    assert_eq!(read(&memory, 0x10_0000 + 2999, 1), [0x90]);

    let zero_page = read(&memory, state.register(Gpr::Rsi), 4096);
    assert_eq!(u16_at(&zero_page, offset::BOOT_FLAG), 0xaa55);
    assert_eq!(u32_at(&zero_page, offset::SIGNATURE), u32_at(b"HdrS", 0));
    assert_eq!(zero_page[offset::LOADER_TYPE], 0xff);
    assert_eq!(u64_at(&zero_page, offset::RSDP), 0xf_0000);
    assert_eq!(read(&memory, 0xf_0000, 8), b"RSD PTR ");
    let command_line = u32_at(&zero_page, offset::COMMAND_LINE);
    assert_eq!(read(&memory, command_line.into(), 14), b"console=ttyS0\0");
    let ramdisk = u32_at(&zero_page, offset::RAMDISK_IMAGE);
    assert_eq!(u32_at(&zero_page, offset::RAMDISK_SIZE), 5000);
    assert_eq!(u64::from(ramdisk), 64 * MIB - 0x2000);
    assert_eq!(read(&memory, ramdisk.into(), 5000), [0x77; 5000]);
    assert!(zero_page[offset::MEMORY_MAP_COUNT] >= 4);
    assert_eq!(
        u64_at(&zero_page, offset::MEMORY_MAP + 8),
        layout::EXTENDED_BIOS_DATA
    );
    // The descriptor table in memory is the one that the segments were loaded from.
    let code = u64_at(&read(&memory, state.gdtr.base + 0x10, 8), 0);
    assert_eq!(
        tollgate_x86::Descriptor(code).segment(tollgate_x86::Selector(0x10)),
        *state.segment(SegmentRegister::Cs)
    );
}

#[test]
fn a_bzimage_cut_anywhere_is_an_error_never_a_panic() {
    let image = bzimage(3000);
    for length in (0..image.len() - 15).step_by(7) {
        let result = boot("cut", &image[..length], None, "", &mut memory(64));
        if length >= 0x206 {
            let truncated = matches!(result, Err(BootError::Truncated { .. }));
            assert!(truncated || length < 0x212, "{length}: {result:?}");
        }
    }
}

#[test]
fn too_little_memory_says_how_much_is_needed() {
    let error = boot("small", &bzimage(3000), None, "", &mut memory(16)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "--memory: too little: the kernel needs 24 MiB, the machine has 16 MiB"
    );
}

#[test]
fn an_initrd_that_does_not_fit_says_what_is_free() {
    let initrd = TemporaryFile::new("huge", &vec![0; 2 * MIB as usize]);
    let error = boot(
        "initrd-kernel",
        &bzimage(3000),
        Some(initrd.0.to_str().unwrap()),
        "",
        &mut memory(25),
    )
    .unwrap_err();
    assert_eq!(
        error,
        BootError::InitrdTooLarge {
            size: 2 * MIB,
            room: MIB
        }
    );
}

#[test]
fn the_kernel_limits_its_command_line() {
    let long = "x".repeat(2048);
    let error = boot("long", &bzimage(3000), None, &long, &mut memory(64)).unwrap_err();
    assert_eq!(
        error,
        BootError::CommandLineTooLong {
            length: 2048,
            limit: 2047
        }
    );
    assert!(boot("fits", &bzimage(3000), None, &long[1..], &mut memory(64)).is_ok());
}

#[test]
fn missing_files_are_named() {
    let source = BootSource {
        kernel: Path::new("/nowhere/vmlinuz"),
        initrd: None,
        initramfs: None,
        append: "".into(),
        acpi: Some(crate::acpi::Hardware::default()),
    };
    let message = load(&source, &mut memory(16)).unwrap_err().to_string();
    assert!(message.starts_with("--kernel: cannot read '/nowhere/vmlinuz': no such file"));
    let directory = BootSource {
        kernel: Path::new("/"),
        ..source.clone()
    };
    assert!(matches!(
        load(&directory, &mut memory(16)),
        Err(BootError::Unreadable { .. })
    ));
}

#[test]
fn files_that_never_end_are_refused() {
    let source = BootSource {
        kernel: Path::new("/dev/zero"),
        initrd: None,
        initramfs: None,
        append: "".into(),
        acpi: Some(crate::acpi::Hardware::default()),
    };
    assert!(matches!(
        load(&source, &mut memory(2)),
        Err(BootError::TooLittleMemory { .. })
    ));
}

#[test]
fn files_that_are_no_kernels_are_refused() {
    for bytes in [
        &b""[..],
        b"hello, this is text\n",
        b"\x1f\x8b\x08\x00 compressed",
        &[0; 4096],
    ] {
        assert!(matches!(
            boot("foreign", bytes, None, "", &mut memory(16)),
            Err(BootError::NotAKernel { .. })
        ));
    }
}

#[test]
fn a_compressed_kernel_is_refused_with_the_command_that_unpacks_it() {
    let compressed = b"\x1f\x8b\x08\x00 compressed";
    let error = boot("xen.gz", compressed, None, "", &mut memory(16)).unwrap_err();
    let message = error.to_string();
    assert!(message.contains("'gzip -dc'"), "{message}");
}

#[test]
fn a_vmlinux_is_entered_at_its_physical_address() {
    let mut memory = memory(16);
    let state = boot(
        "vmlinux",
        &elf(1, 3, &[0x90; 64]),
        None,
        "quiet",
        &mut memory,
    )
    .unwrap();
    assert_eq!(state.rip, 0x10_0010);
    assert_eq!(read(&memory, 0x10_0000, 64), [0x90; 64]);
    let zero_page = read(&memory, state.register(Gpr::Rsi), 4096);
    assert_eq!(&zero_page[offset::SIGNATURE..][..4], b"HdrS");
}

#[test]
fn elf_files_for_other_processors_are_refused() {
    let load = |class, machine| {
        boot(
            "elf",
            &elf(class, machine, &[0; 8]),
            None,
            "",
            &mut memory(16),
        )
    };
    // ARM, 64-bit code in a file with 32-bit addresses, and 32-bit code in a file with 64-bit
    // addresses.
    for (class, machine) in [(1, 40), (2, 183), (1, 62), (2, 3), (0, 3)] {
        let result = load(class, machine);
        assert!(matches!(result, Err(BootError::Unsupported { .. })));
    }
}

#[test]
fn malformed_elf_files_are_errors() {
    let image = elf(1, 3, &[0x90; 64]);
    for length in 4..image.len() {
        assert!(boot("cut-elf", &image[..length], None, "", &mut memory(4)).is_err());
    }
    for position in 4..0x100 {
        let mut bad = image.clone();
        bad[position] ^= 0xff;
        // Any result is fine, as long as nothing panics.
        let _ = boot("bad-elf", &bad, None, "", &mut memory(4));
    }
}

#[test]
fn a_multiboot_elf_gets_its_information() {
    let mut contents = vec![0x90; 64];
    contents.splice(0..12, multiboot_header(3));
    let first = TemporaryFile::new("module-1", b"first");
    let second = TemporaryFile::new("module-2", b"second!");
    let modules = format!("{} root=1,{}", first.0.display(), second.0.display());
    let mut memory = memory(16);
    let state = boot(
        "mb",
        &elf(1, 3, &contents),
        Some(&modules),
        "a b",
        &mut memory,
    )
    .unwrap();

    assert_eq!(state.register(Gpr::Rax), 0x2bad_b002);
    assert_eq!(state.rip, 0x10_0010);
    let information = read(&memory, state.register(Gpr::Rbx), 116);
    assert_eq!(u32_at(&information, 0), 0x24d);
    assert_eq!(u32_at(&information, 4), 639);
    assert_eq!(u32_at(&information, 8), 15 * 1024);
    let line = read(&memory, u32_at(&information, 16).into(), 200);
    let line = line.split(|byte| *byte == 0).next().unwrap();
    assert!(line.ends_with(b" a b"));
    assert_eq!(u32_at(&information, 20), 2);
    let list = read(&memory, u32_at(&information, 24).into(), 32);
    for (index, (file, text)) in [(&b"first"[..], " root=1"), (b"second!", "")]
        .into_iter()
        .enumerate()
    {
        let start = u32_at(&list, 16 * index);
        let end = u32_at(&list, 16 * index + 4);
        assert_eq!(start % 4096, 0);
        assert!(start >= 0x10_0000 + 64 + 0x5000);
        assert_eq!(read(&memory, start.into(), (end - start) as usize), file);
        let string = read(&memory, u32_at(&list, 16 * index + 8).into(), 200);
        let string = String::from_utf8(string.split(|byte| *byte == 0).next().unwrap().to_vec());
        assert!(string.unwrap().ends_with(text));
    }
    let map = read(
        &memory,
        u32_at(&information, 48).into(),
        u32_at(&information, 44) as usize,
    );
    assert_eq!(map.len() % 24, 0);
    assert_eq!((u32_at(&map, 0), u32_at(&map, 20)), (20, 1));
    let name = read(&memory, u32_at(&information, 64).into(), 9);
    assert_eq!(name, b"tollgate\0");
}

#[test]
fn a_multiboot_image_with_addresses_needs_no_elf() {
    let mut image = vec![0xf4; 16];
    image.extend(multiboot_header(0x1_0000));
    // Header at 200010h, load from 200008h (file offset 8) to the end, bss, entry.
    for word in [0x20_0010u32, 0x20_0008, 0, 0x20_1000, 0x20_0020] {
        image.extend(word.to_le_bytes());
    }
    image.extend([0xcc; 16]);
    let mut memory = memory(4);
    let state = boot("kludge", &image, None, "", &mut memory).unwrap();
    assert_eq!(state.rip, 0x20_0020);
    assert_eq!(read(&memory, 0x20_0008, 8), [0xf4; 8]);
    assert_eq!(
        read(&memory, 0x20_0008 + image.len() as u64 - 9, 2),
        [0xcc, 0]
    );
}

#[test]
fn multiboot_headers_with_bad_addresses_or_needs_are_refused() {
    let with = |flags, words: [u32; 5]| {
        let mut image = multiboot_header(flags);
        image.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        boot("bad-mb", &image, None, "", &mut memory(4))
    };
    let unsupported = |result: Result<_, _>| matches!(result, Err(BootError::Unsupported { .. }));
    assert!(unsupported(with(0x8, [0; 5])));
    assert!(unsupported(with(0x1_0000, [0xa_0000, 0xa_0000, 0, 0, 0])));
    assert!(unsupported(with(0x1_0000, [0, u32::MAX, 0, 0, 0])));
    assert!(unsupported(with(0x1_0000, [0x20_0000, 0x10_0000, 0, 0, 0])));
    assert!(matches!(
        with(0x1_0000, [0x10_0000, 0x10_0000, u32::MAX, 0, 0]),
        Err(BootError::Truncated { .. })
    ));
    assert!(matches!(
        with(0x1_0000, [0x10_0000, 0x10_0000, 0, u32::MAX, 0]),
        Err(BootError::TooLittleMemory { .. })
    ));
}

#[test]
fn a_boot_sector_starts_in_real_mode() {
    let mut sector = vec![0x90; 512];
    put(&mut sector, 510, &[0x55, 0xaa]);
    let mut memory = memory(4);
    let state = boot("sector", &sector, None, "", &mut memory).unwrap();
    assert!(!state.is_protected());
    assert_eq!((state.cs().base, state.rip), (0, 0x7c00));
    assert_eq!(state.register(Gpr::Rdx), 0x80);
    assert_eq!(read(&memory, 0x7c00, 512), sector);
    let error = boot("sector", &sector, Some("x"), "", &mut memory).unwrap_err();
    assert!(matches!(error, BootError::InitrdUnsupported { .. }));
}

#[test]
fn a_flat_image_starts_at_1_mib_in_protected_mode() {
    let mut memory = memory(4);
    let state = boot("flat", &[0xfa, 0xf4, 0xeb, 0xfd], None, "", &mut memory).unwrap();
    assert!(state.is_protected() && state.cs().is_big());
    assert_eq!(state.rip, 0x10_0000);
    assert_eq!(read(&memory, 0x10_0000, 4), [0xfa, 0xf4, 0xeb, 0xfd]);
}

#[test]
fn a_real_debian_kernel_loads() {
    let Some(kernel) = debian_kernel() else {
        skip::missing("no Debian kernel has been fetched (scripts/get-guests)");
        return;
    };
    let mut memory = memory(512);
    let source = BootSource {
        kernel: &kernel,
        initrd: None,
        initramfs: None,
        append: "console=ttyS0".into(),
        acpi: Some(crate::acpi::Hardware::default()),
    };
    let state = load(&source, &mut memory).unwrap();
    assert_eq!(state.rip, 0x10_0000);
    let error = load(&source, &mut GuestMemory::new(8 * MIB).unwrap()).unwrap_err();
    assert!(matches!(error, BootError::TooLittleMemory { .. }));
}

/// Returns a fetched kernel if the guests' directory has one.
fn debian_kernel() -> Option<PathBuf> {
    let guests = std::env::var_os("TOLLGATE_GUESTS").map_or_else(
        || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/guests"),
        PathBuf::from,
    );
    let kernel = guests.join("debian-686/vmlinuz");
    kernel.exists().then_some(kernel)
}

#[test]
fn a_guest_that_reads_no_acpi_is_told_of_virtio_devices_in_memory() {
    let config = VmConfig {
        append: "quiet acpi=off -- word".into(),
        pci: false,
        drives: vec![crate::config::DriveOptions::new("disk.img"); 2],
        ..VmConfig::default()
    };
    let told = "virtio_mmio.device=512@0xe0100000:5 virtio_mmio.device=512@0xe0100200:10";
    let expected = format!("{told} {}", config.append);
    assert_eq!(BootSource::of(&config).append, expected);
    let by_acpi = VmConfig {
        append: "quiet".into(),
        ..config.clone()
    };
    assert_eq!(BootSource::of(&by_acpi).append, "quiet");
    let on_pci = VmConfig {
        pci: true,
        ..config.clone()
    };
    assert_eq!(BootSource::of(&on_pci).append, config.append);
}
