//! Tests that multiboot 2 kernels run as GRUB would start them: 32-bit and 64-bit ELF files, with
//! their header before the code or after it. All begin in 32-bit protected mode.

use crate::support::folder::Folder;
use crate::support::{PATIENCE, finish, tollgate};

/// The address at which the kernel is loaded.
const ADDRESS: u32 = 0x10_0000;
/// The offset of its only segment in the file.
const OFFSET: u32 = 0x1000;

/// Ends the machine with 21h if EAX holds the boot loader's magic number and the information at EBX
/// has more than a header, otherwise with 0Bh.
#[rustfmt::skip]
const CODE: [u8; 22] = [
    0x3d, 0x89, 0x62, 0xd7, 0x36, // cmp eax, 36D76289h
    0x75, 0x09, // jne fail
    0x83, 0x3b, 0x08, // cmp dword [ebx], 8
    0x76, 0x04, // jbe fail
    0xb0, 0x21, 0xe6, 0xf4, // mov al, 21h; out F4h, al
    0xb0, 0x0b, 0xe6, 0xf4, 0xeb, 0xfa, // fail: mov al, 0Bh; out F4h, al; jmp fail
];
const GOOD: Option<i32> = Some(0x21 << 1 | 1);

/// A multiboot 2 header for the i386 with only the last tag.
fn header() -> Vec<u8> {
    const MAGIC: u32 = 0xe852_50d6;
    const BYTES: u32 = 24;
    let sum = MAGIC.wrapping_add(BYTES).wrapping_neg();
    let last_tag = [0, 8];
    [MAGIC, 0, BYTES, sum]
        .into_iter()
        .chain(last_tag)
        .flat_map(u32::to_le_bytes)
        .collect()
}

/// The width of the addresses in an ELF file.
#[derive(Clone, Copy, Debug)]
enum Class {
    Bits32,
    Bits64,
}

/// The place of the header.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Header {
    BeforeCode,
    AfterCode,
}

/// An ELF file with one segment.
fn elf(class: Class, content: &[u8], entry: u32) -> Vec<u8> {
    const EXECUTABLE: u16 = 2;
    let mut file = Vec::new();
    let size = content.len() as u32;
    let half = |file: &mut Vec<u8>, values: &[u16]| {
        file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    };
    let word = |file: &mut Vec<u8>, values: &[u32]| {
        file.extend(values.iter().flat_map(|value| value.to_le_bytes()));
    };
    let long = |file: &mut Vec<u8>, values: &[u32]| {
        let wide = values.iter().map(|value| u64::from(*value));
        file.extend(wide.flat_map(u64::to_le_bytes));
    };
    match class {
        Class::Bits32 => {
            file.extend(b"\x7fELF\x01\x01\x01");
            file.resize(16, 0);
            half(&mut file, &[EXECUTABLE, 3]);
            word(&mut file, &[1, entry, 52, 0, 0]);
            half(&mut file, &[52, 32, 1, 0, 0, 0]);
            word(
                &mut file,
                &[1, OFFSET, ADDRESS, ADDRESS, size, size, 7, 4096],
            );
        }
        Class::Bits64 => {
            file.extend(b"\x7fELF\x02\x01\x01");
            file.resize(16, 0);
            half(&mut file, &[EXECUTABLE, 62]);
            word(&mut file, &[1]);
            long(&mut file, &[entry, 64, 0]);
            word(&mut file, &[0]);
            half(&mut file, &[64, 56, 1, 0, 0, 0]);
            word(&mut file, &[1, 7]);
            long(&mut file, &[OFFSET, ADDRESS, ADDRESS, size, size, 4096]);
        }
    }
    file.resize(OFFSET as usize, 0);
    file.extend(content);
    file
}

#[test]
fn kernels_of_both_classes_start_in_protected_mode_wherever_their_header_is() {
    let folder = Folder::new();
    for class in [Class::Bits32, Class::Bits64] {
        for place in [Header::BeforeCode, Header::AfterCode] {
            // The distance is as large as a linker puts between sections of different kinds.
            let (code_at, header_at) = match place {
                Header::BeforeCode => (0x1000, 0),
                Header::AfterCode => (0, 0x2000),
            };
            let mut content = vec![0x90; 0x3000];
            content[code_at..][..CODE.len()].copy_from_slice(&CODE);
            content[header_at..][..24].copy_from_slice(&header());
            let kernel = elf(class, &content, ADDRESS + code_at as u32);
            let path = folder.file("kernel", &kernel);
            let mut command = tollgate();
            command.args(["run", "-m", "16M", "--kernel"]).arg(path);
            let output = finish(&mut command, PATIENCE);
            assert_eq!(
                output.status.code(),
                GOOD,
                "{class:?} {place:?}: {output:?}"
            );
        }
    }
}
