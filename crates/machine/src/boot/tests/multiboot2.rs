//! Tests of multiboot 2 kernels: what their headers request and what they get.

use super::*;

/// Makes a header with these tags, each of which has a kind, flags and words.
fn header(tags: &[(u16, u16, &[u32])]) -> Vec<u8> {
    let mut bytes = vec![0; 16];
    for (kind, flags, words) in tags.iter().chain(&[(0, 0, &[][..])]) {
        bytes.extend(kind.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend((8 + 4 * words.len() as u32).to_le_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        bytes.resize(bytes.len().next_multiple_of(8), 0);
    }
    let (magic, size) = (0xe852_50d6u32, bytes.len() as u32);
    let sum = magic.wrapping_add(size).wrapping_neg();
    for (field, word) in [magic, 0, size, sum].into_iter().enumerate() {
        put(&mut bytes, 4 * field, &word.to_le_bytes());
    }
    bytes
}

/// Returns the kind and the contents of each tag of the information at an address.
fn tags(memory: &GuestMemory, address: u64) -> Vec<(u32, Vec<u8>)> {
    let size = u32_at(&read(memory, address, 4), 0) as usize;
    let bytes = read(memory, address, size);
    let mut tags = Vec::new();
    let mut offset = 8;
    while offset < size {
        let (kind, length) = (u32_at(&bytes, offset), u32_at(&bytes, offset + 4) as usize);
        tags.push((kind, bytes[offset + 8..offset + length].to_vec()));
        offset += length.next_multiple_of(8);
    }
    assert_eq!(tags.last().map(|tag| tag.0), Some(0));
    tags
}

fn elf_with(tags: &[(u16, u16, &[u32])]) -> Vec<u8> {
    let mut contents = header(tags);
    contents.resize(256, 0x90);
    elf(1, 3, &contents)
}

#[test]
fn a_multiboot_2_kernel_gets_its_information() {
    let module = TemporaryFile::new("mb2-module", b"contents");
    let modules = format!("{} root=1 ro", module.0.display());
    let mut memory = memory(16);
    let requests: &[u32] = &[1, 2, 3, 4, 6, 8, 15];
    let image = elf_with(&[(1, 0, requests), (5, 0, &[1024, 768, 32]), (6, 0, &[])]);
    let state = boot("mb2", &image, Some(&modules), "a b", &mut memory).unwrap();
    assert_eq!(state.register(Gpr::Rax), 0x36d7_6289);
    assert_eq!(state.rip, 0x10_0010);
    assert!(state.is_protected() && !state.is_paging());
    let tags = tags(&memory, state.register(Gpr::Rbx));
    let one = |kind: u32| {
        let mut found = tags.iter().filter(|tag| tag.0 == kind);
        let contents = found.next().map(|tag| tag.1.clone());
        assert!(found.next().is_none(), "two tags {kind}");
        contents.unwrap_or_else(|| panic!("no tag {kind}"))
    };
    assert_eq!(one(1), b"a b\0");
    assert_eq!(one(2), b"tollgate\0");
    let module = one(3);
    let [start, end] = [0, 4].map(|field| u64::from(u32_at(&module, field)));
    assert_eq!(&module[8..], b"root=1 ro\0");
    assert_eq!((start % 4096, end - start), (0, 8));
    assert_eq!(read(&memory, start, 8), b"contents");
    assert_eq!(one(4), [639u32, 15 * 1024].map(u32::to_le_bytes).concat());
    let map = one(6);
    assert_eq!((u32_at(&map, 0), u32_at(&map, 4)), (24, 0));
    assert_eq!(u64_at(&map, 16), layout::EXTENDED_BIOS_DATA);
    assert_eq!((map.len() - 8) % 24, 0);
    let rsdp = one(15);
    assert_eq!((rsdp.len(), &rsdp[..8]), (36, &b"RSD PTR "[..]));
    assert_eq!(one(21), 0x10_0000u32.to_le_bytes());
    assert!(tags.iter().all(|tag| tag.0 != 8), "there is no display");
}

#[test]
fn a_multiboot_2_image_with_addresses_needs_no_elf() {
    let load = 0x20_0000;
    let addresses = [load, load, 0, load + 0x1000];
    let entry = [load + 0x58];
    let mut image = header(&[(2, 0, &addresses), (3, 0, &entry)]);
    image.resize(200, 0xf4);
    let mut memory = memory(4);
    let state = boot("mb2-flat", &image, None, "", &mut memory).unwrap();
    assert_eq!(state.rip, 0x20_0058);
    assert_eq!(read(&memory, load.into(), image.len()), image);
    let error = boot(
        "mb2-none",
        &header(&[(2, 0, &addresses)]),
        None,
        "",
        &mut memory,
    );
    assert!(error.unwrap_err().to_string().contains("tag 3"));
}

#[test]
fn the_entry_tag_goes_before_the_elf_files_entry() {
    let image = elf_with(&[(3, 0, &[0x10_0040])]);
    let state = boot("mb2-entry", &image, None, "", &mut memory(16)).unwrap();
    assert_eq!(state.rip, 0x10_0040);
}

#[test]
fn required_tags_that_cannot_be_met_are_named_and_optional_ones_passed_over() {
    for (kind, words, name) in [
        (1, &[9][..], "request for tag 9"),
        (1, &[4, 77], "request for tag 77"),
        (4, &[1], "tag 4"),
        (11, &[], "tag 11"),
        (3, &[], "tag 3"),
    ] {
        let error = boot(
            "mb2-no",
            &elf_with(&[(kind, 0, words)]),
            None,
            "",
            &mut memory(16),
        );
        let error = error.unwrap_err().to_string();
        assert!(error.contains(name) && !error.contains('\n'), "{error}");
        let optional = elf_with(&[(kind, 1, words)]);
        boot("mb2-optional", &optional, None, "", &mut memory(16)).unwrap();
    }
}

#[test]
fn headers_cut_or_damaged_anywhere_are_errors_never_panics() {
    let whole = elf_with(&[(1, 0, &[4]), (3, 0, &[0x10_0040])]);
    for length in (0..whole.len()).step_by(3) {
        let _ = boot("mb2-cut", &whole[..length], None, "", &mut memory(4));
    }
    for offset in 0x110..0x140 {
        for value in [0, 1, 7, 0x7f, 0xff] {
            let mut bad = whole.clone();
            bad[offset] = value;
            let _ = boot("mb2-bad", &bad, None, "", &mut memory(4));
        }
    }
}
