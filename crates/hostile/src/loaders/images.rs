//! Small kernel images of every kind that can be loaded.

/// Writes a field at its offset.
fn put(bytes: &mut [u8], offset: usize, field: &[u8]) {
    bytes[offset..offset + field.len()].copy_from_slice(field);
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// A bzImage of protocol 2.15 with one setup sector and this much code.
pub fn bzimage(code_bytes: usize) -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    bytes.resize(1024 + code_bytes, 0x90);
    bytes[0x1f1] = 1;
    put(&mut bytes, 0x1f4, &words(&[code_bytes.div_ceil(16) as u32]));
    put(&mut bytes, 0x1fe, &[0x55, 0xaa, 0xeb, 0x66]);
    put(&mut bytes, 0x202, b"HdrS");
    put(&mut bytes, 0x206, &[0x0f, 2]);
    bytes[0x211] = 1;
    put(&mut bytes, 0x22c, &words(&[0x37ff_ffff, 0x100_0000]));
    bytes[0x234] = 1;
    put(&mut bytes, 0x238, &words(&[2047]));
    put(&mut bytes, 0x258, &words(&[0x100_0000, 0, 0x80_0000]));
    bytes
}

/// A bzImage that also has a 64-bit entry point.
pub fn bzimage_64(code_bytes: usize) -> Vec<u8> {
    let mut bytes = bzimage(code_bytes);
    bytes[0x236] = 1;
    bytes
}

/// A 64-bit ELF file with one segment at 1 MiB, linked at FFFFFFFF81000000h. If `pvh`, it has Xen's
/// note with the PVH entry.
pub fn elf_64(contents: &[u8], pvh: bool) -> Vec<u8> {
    let mut bytes = vec![0; 64];
    put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
    put(&mut bytes, 16, &[2, 0, 62, 0, 1]);
    put(&mut bytes, 24, &words(&[0x10_0010, 0, 64]));
    put(&mut bytes, 54, &[56, 0, 1 + u8::from(pvh), 0]);
    let size = contents.len() as u32;
    bytes.extend(words(&[1, 5, 0x100, 0, 0x8100_0000, u32::MAX]));
    bytes.extend(words(&[0x10_0000, 0, size, 0, size + 0x5000, 0, 0x1000, 0]));
    bytes.extend(words(&[4, 4, 0x100 + size, 0, 0, 0, 0, 0]));
    bytes.extend(words(&[24, 0, 24, 0, 4, 0]));
    bytes.resize(0x100, 0);
    bytes.extend(contents);
    bytes.extend(words(&[4, 8, 18]));
    bytes.extend(b"Xen\0");
    bytes.extend(words(&[0x10_0020, 0]));
    bytes
}

/// The header of a 32-bit ELF file for this processor, with the entry C0100010h.
fn elf_header(program_headers: u16) -> Vec<u8> {
    let mut bytes = vec![0; 52];
    put(&mut bytes, 0, b"\x7fELF\x01\x01\x01");
    put(&mut bytes, 16, &[2, 0, 3, 0, 1]);
    put(&mut bytes, 24, &words(&[0xc010_0010, 52]));
    put(&mut bytes, 40, &[52, 0, 32, 0]);
    put(&mut bytes, 44, &program_headers.to_le_bytes());
    bytes
}

/// An ELF file with one segment at 1 MiB, linked at C0100000h.
pub fn elf(contents: &[u8]) -> Vec<u8> {
    let mut bytes = elf_header(1);
    let size = contents.len() as u32;
    bytes.extend(words(&[
        1,
        0x100,
        0xc010_0000,
        0x10_0000,
        size,
        size + 0x5000,
    ]));
    bytes.resize(0x100, 0);
    bytes.extend(contents);
    bytes
}

/// A 32-bit ELF file with one section of code that contains the symbol `_stext`.
pub fn elf_with_symbols() -> Vec<u8> {
    let mut bytes = elf_header(0);
    bytes.extend(b"\0_stext\0"); // offset 52
    bytes.extend([0; 16]); // offset 60: the null symbol
    bytes.extend(words(&[1, 0x10_0000, 0])); // name, value, size
    bytes.extend([0x12, 0, 1, 0]); // a global function of section 1
    let sections = bytes.len() as u32;
    bytes.extend(words(&[0; 10]));
    bytes.extend(words(&[0, 1, 6, 0x10_0000, 0, 0, 0, 0, 1, 0])); // code
    bytes.extend(words(&[0, 3, 0, 0, 52, 8, 0, 0, 1, 0])); // strings
    bytes.extend(words(&[0, 2, 0, 0, 60, 32, 2, 1, 4, 16])); // symbols
    put(&mut bytes, 32, &words(&[sections]));
    put(&mut bytes, 46, &[40, 0, 4, 0, 2, 0]);
    bytes
}

/// A sector with the boot signature.
pub fn boot_sector() -> Vec<u8> {
    let mut bytes = vec![0x90; 512];
    put(&mut bytes, 510, &[0x55, 0xaa]);
    bytes
}

fn multiboot_header(flags: u32) -> Vec<u8> {
    let magic = 0x1bad_b002u32;
    words(&[magic, flags, magic.wrapping_add(flags).wrapping_neg()])
}

/// Multiboot kernels: an ELF file, and one with addresses in its header.
pub fn multiboot() -> [(&'static str, Vec<u8>); 2] {
    let by_elf = elf(&[multiboot_header(3), vec![0xf4; 20]].concat());
    let mut by_addresses = multiboot_header(0x1_0003);
    // The addresses of the header, of the load area and its end, of the end of the zeroed rest, and
    // of the entry.
    by_addresses.extend(words(&[0x10_0000, 0x10_0000, 0, 0x10_2000, 0x10_0020]));
    by_addresses.extend([0xf4; 20]);
    [("multiboot", by_elf), ("multiboot-addresses", by_addresses)]
}
