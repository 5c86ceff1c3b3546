//! Tests of booting 64-bit kernels, and PVH kernels of both widths.

use super::*;
use tollgate_x86::{Cr0, Cr4, Efer};

/// Makes a 64-bit ELF file with one segment at 1 MiB, linked at FFFFFFFF81000000h, followed by
/// these notes.
fn elf64(entry: u64, contents: &[u8], notes: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 0x100];
    put(&mut bytes, 0, b"\x7fELF\x02\x01\x01");
    put(&mut bytes, 16, &[2, 0, 62, 0]);
    put(&mut bytes, 24, &entry.to_le_bytes());
    put(&mut bytes, 32, &64u64.to_le_bytes());
    put(&mut bytes, 54, &[56, 0, 2, 0]);
    let size = contents.len() as u64;
    let segment = [
        5 << 32 | 1,
        0x100,
        0xffff_ffff_8100_0000,
        0x10_0000,
        size,
        size + 0x5000,
        0x1000,
    ];
    let note_size = notes.len() as u64;
    let note_segment = [4, 0x100 + size, 0, 0, note_size, note_size, 4];
    for (index, field) in segment.into_iter().chain(note_segment).enumerate() {
        put(&mut bytes, 64 + 8 * index, &u64::to_le_bytes(field));
    }
    bytes.extend_from_slice(contents);
    bytes.extend_from_slice(notes);
    bytes
}

/// Xen's note with a 32-bit entry point.
fn pvh_note(entry: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [4u32, 8, 18] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend(b"Xen\0");
    bytes.extend(entry.to_le_bytes());
    bytes
}

fn bzimage64() -> Vec<u8> {
    let mut image = bzimage(3000);
    image[offset::EXTENDED_FLAGS] = 1;
    image
}

/// Translates a linear address by the page tables of this state (SDM volume 3, 4.5.4).
fn translate(memory: &GuestMemory, state: &CpuState, linear: u64) -> Option<u64> {
    let entry = |table: u64, shift: u32| {
        let address = (table & 0xf_ffff_ffff_f000) + (linear >> shift & 0x1ff) * 8;
        let entry = u64_at(&read(memory, address, 8), 0);
        (entry & 3 == 3).then_some(entry)
    };
    let directory = entry(entry(entry(state.cr3, 39)?, 30)?, 21)?;
    assert_ne!(directory & 0x80, 0);
    Some((directory & 0xf_ffff_ffe0_0000) + (linear & 0x1f_ffff))
}

/// Checks the requirements of boot.rst under "64-bit boot protocol".
#[track_caller]
fn assert_in_long_mode(memory: &GuestMemory, state: &CpuState) {
    assert!(state.is_64_bit() && state.is_paging());
    assert_eq!(state.cr0(), Cr0::PE | Cr0::ET | Cr0::PG);
    assert_eq!(state.cr4(), Cr4::PAE);
    assert_eq!(state.efer(), Efer::LME | Efer::LMA);
    assert_eq!((state.flags, state.cpl()), (0, 0));
    assert_eq!(state.cs().selector.0, 0x10);
    for register in [
        SegmentRegister::Ds,
        SegmentRegister::Es,
        SegmentRegister::Ss,
    ] {
        assert_eq!(state.segment(register).selector.0, 0x18);
    }
    let code = u64_at(&read(memory, state.gdtr.base + 0x10, 8), 0);
    assert_eq!(
        tollgate_x86::Descriptor(code).segment(tollgate_x86::Selector(0x10)),
        *state.cs()
    );
    for address in [0, 0x7123, 0x10_0200, 0x1fff_ffff, 0xc000_0000, 0xffff_ffff] {
        assert_eq!(translate(memory, state, address), Some(address));
    }
    assert_eq!(translate(memory, state, 1 << 32), None);
}

#[test]
fn a_64_bit_bzimage_is_entered_in_long_mode_200h_behind_its_start() {
    let mut memory = memory(64);
    let initrd = TemporaryFile::new("initrd64", &[0x77; 5000]);
    let path = initrd.0.to_str().unwrap();
    let state = boot("amd64", &bzimage64(), Some(path), "quiet", &mut memory).unwrap();

    assert_eq!(state.rip, 0x10_0200);
    assert_in_long_mode(&memory, &state);
    let zero_page = read(&memory, state.register(Gpr::Rsi), 4096);
    assert_eq!(&zero_page[offset::SIGNATURE..][..4], b"HdrS");
    let ramdisk = u32_at(&zero_page, offset::RAMDISK_IMAGE);
    assert_eq!(u64::from(ramdisk), 64 * MIB - 0x2000);
    assert_eq!(u32_at(&zero_page, offset::RAMDISK_SIZE), 5000);
    let command_line = u32_at(&zero_page, offset::COMMAND_LINE);
    assert_eq!(read(&memory, command_line.into(), 6), b"quiet\0");
}

#[test]
fn an_older_protocol_has_no_64_bit_entry() {
    let mut image = bzimage64();
    put(&mut image, offset::VERSION, &0x020bu16.to_le_bytes());
    let state = boot("old", &image, None, "", &mut memory(64)).unwrap();
    assert_eq!((state.rip, state.is_long_mode()), (0x10_0000, false));
}

#[test]
fn a_64_bit_vmlinux_is_entered_in_long_mode_at_its_physical_address() {
    for entry in [0x10_0010, 0xffff_ffff_8100_0010] {
        let mut memory = memory(16);
        let image = elf64(entry, &[0x90; 64], &[]);
        let state = boot("vmlinux64", &image, None, "quiet", &mut memory).unwrap();
        assert_eq!(state.rip, 0x10_0010);
        assert_in_long_mode(&memory, &state);
        assert_eq!(read(&memory, 0x10_0000, 64), [0x90; 64]);
        let zero_page = read(&memory, state.register(Gpr::Rsi), 4096);
        assert_eq!(&zero_page[offset::SIGNATURE..][..4], b"HdrS");
    }
}

#[test]
fn a_pvh_kernel_gets_its_start_information_in_protected_mode() {
    let mut memory = memory(16);
    let initrd = TemporaryFile::new("pvh-module", &[0x77; 5000]);
    let path = initrd.0.to_str().unwrap();
    let image = elf64(0x10_0010, &[0x90; 64], &pvh_note(0x10_0020));
    let state = boot("pvh", &image, Some(path), "a b", &mut memory).unwrap();

    assert_eq!(state.rip, 0x10_0020);
    assert!(state.is_protected() && !state.is_paging() && !state.is_long_mode());
    assert_eq!((state.cs().base, state.cs().limit), (0, u32::MAX));
    assert!(state.cs().is_big());
    assert_eq!((state.tr.base, state.tr.limit), (0, 0x67));
    assert_eq!((state.flags, state.cr4, state.efer), (0, 0, 0));

    let information = read(&memory, state.register(Gpr::Rbx), 56);
    assert_eq!(u32_at(&information, 0), 0x336e_c578);
    assert_eq!(u32_at(&information, 4), 1);
    assert_eq!(u32_at(&information, 12), 1);
    let module = read(&memory, u64_at(&information, 16), 32);
    let (address, size) = (u64_at(&module, 0), u64_at(&module, 8));
    assert_eq!((address, size), (16 * MIB - 0x2000, 5000));
    assert_eq!(read(&memory, address, 5000), [0x77; 5000]);
    assert_eq!(read(&memory, u64_at(&information, 24), 4), b"a b\0");
    assert_eq!(u64_at(&information, 32), 0xf_0000);
    let map = e820::memory_map(memory.ram().layout());
    assert_eq!(u32_at(&information, 48), map.len() as u32);
    for (index, range) in map.iter().enumerate() {
        let entry = read(&memory, u64_at(&information, 40) + 24 * index as u64, 24);
        assert_eq!(entry[..20], range.to_bytes());
        assert_eq!(entry[20..], [0; 4]);
    }
}

#[test]
fn entry_points_outside_of_what_is_loaded_are_refused() {
    let refused = |entry, notes: &[u8]| {
        let image = elf64(entry, &[0x90; 64], notes);
        let error = boot("outside", &image, None, "", &mut memory(16)).unwrap_err();
        assert!(matches!(error, BootError::Unsupported { .. }), "{error}");
    };
    for entry in [0x20_0000, 0xffff_ffff_0000_0000, u64::MAX] {
        refused(entry, &[]);
    }
    for entry in [0, 0x20_0000, 1 << 32, u64::MAX] {
        refused(0x10_0010, &pvh_note(entry));
    }
}

#[test]
fn malformed_64_bit_elf_files_are_errors() {
    let image = elf64(0x10_0010, &[0x90; 64], &pvh_note(0x10_0020));
    for length in 4..image.len() {
        assert!(boot("cut64", &image[..length], None, "", &mut memory(4)).is_err());
    }
    for position in 4..image.len() {
        for change in [0xff, 0x80, 0x01] {
            let mut bad = image.clone();
            bad[position] ^= change;
            // Any result is fine, as long as nothing panics.
            let _ = boot("bad64", &bad, None, "", &mut memory(4));
        }
    }
}
