//! Tests of the fw_cfg device.

use super::*;
use crate::bus::testing::Bench;
use tollgate_x86::PhysicalAddress;

const MEMORY: u64 = 64 << 20;

fn device(files: &[(&str, &[u8])]) -> FwCfg {
    let files = files.iter().map(|(name, content)| FwCfgFile {
        name: (*name).into(),
        content: content.to_vec(),
    });
    FwCfg::new(MEMORY, files.collect(), None)
}

fn read(device: &mut FwCfg, selector: u16, length: usize) -> Vec<u8> {
    let mut bench = Bench::new();
    let mut context = bench.context(0);
    device.port_write(SELECTOR_PORT, 2, selector.into(), &mut context);
    let next = |_| device.port_read(DATA_PORT, 1, &mut context) as u8;
    (0..length).map(next).collect()
}

/// Returns the files of the directory: size, selector, name.
fn files(device: &mut FwCfg) -> Vec<(usize, u16, String)> {
    let count = read(device, 0x19, 4);
    let count = u32::from_be_bytes(count.try_into().unwrap()) as usize;
    let bytes = read(device, 0x19, 4 + 64 * count);
    bytes[4..]
        .chunks(64)
        .map(|entry| {
            let size = u32::from_be_bytes(entry[..4].try_into().unwrap());
            let selector = u16::from_be_bytes(entry[4..6].try_into().unwrap());
            let name = entry[8..].split(|byte| *byte == 0).next().unwrap();
            (
                size as usize,
                selector,
                String::from_utf8(name.to_vec()).unwrap(),
            )
        })
        .collect()
}

#[test]
fn a_test_kernel_finds_signature_processors_and_memory() {
    let mut device = device(&[]);
    assert_eq!(read(&mut device, 0, 6), b"QEMU\0\0");
    assert_eq!(read(&mut device, 1, 4), [3, 0, 0, 0], "with DMA");
    assert_eq!(read(&mut device, 3, 9), [0, 0, 0, 4, 0, 0, 0, 0, 0]);
    assert_eq!(read(&mut device, 5, 3), [1, 0, 0]);
    assert_eq!(read(&mut device, 0xf, 3), [1, 0, 0]);
}

#[test]
fn selecting_begins_at_the_start_also_for_writing() {
    let mut device = device(&[]);
    assert_eq!(read(&mut device, 0, 2), b"QE");
    assert_eq!(read(&mut device, 0x4000, 2), b"QE");
    let mut bench = Bench::new();
    device.port_write(DATA_PORT, 1, 0x58, &mut bench.context(0));
    assert_eq!(read(&mut device, 0, 2), b"QE", "read-only");
}

#[test]
fn items_that_are_not_there_read_as_zeros() {
    let mut device = device(&[]);
    for selector in [2, 0x21, 0x3fff, 0x8000, 0x8005, 0xffff] {
        assert_eq!(read(&mut device, selector, 4), [0; 4], "{selector:#x}");
    }
}

#[test]
fn files_are_listed_by_name_with_their_selectors() {
    let long = "x".repeat(80);
    let mut device = device(&[("opt/b", b"second"), ("opt/a", b"first"), (&long, b"")]);
    let list = files(&mut device);
    let names: Vec<&str> = list.iter().map(|file| file.2.as_str()).collect();
    assert_eq!(names, ["opt/a", "opt/b", &long[..55]]);
    assert_eq!((list[0].0, list[0].1), (5, 0x20));
    assert_eq!(read(&mut device, 0x20, 6), b"first\0");
    assert_eq!(read(&mut device, 0x21, 6), b"second");
}

#[test]
fn names_must_fit_and_be_of_one_file_each() {
    let check = |names: &[&str]| {
        let files = names.iter().map(|name| FwCfgFile {
            name: (*name).into(),
            content: Vec::new(),
        });
        super::check(&files.collect::<Vec<_>>())
    };
    let longest = "x".repeat(55);
    assert_eq!(check(&["opt/a", "opt/b", &longest]), Ok(()));
    for bad in ["", "opt/\0", &(longest + "x")] {
        assert_eq!(check(&["a", bad]), Err(FwCfgError::Name(bad.into())));
    }
    for twice in ["etc/e820", "a"] {
        assert_eq!(
            check(&["a", twice]),
            Err(FwCfgError::NameTwice(twice.into()))
        );
    }
    assert_eq!(check(&["a"; MOST_FILES + 1]), Err(FwCfgError::TooMany));
}

#[test]
fn the_position_is_saved_and_reset() {
    let mut device = device(&[]);
    read(&mut device, 0, 1);
    let saved = device.save();
    read(&mut device, 5, 1);
    device.restore(&saved).unwrap();
    let mut bench = Bench::new();
    let next = |device: &mut FwCfg, bench: &mut Bench| {
        device.port_read(DATA_PORT, 1, &mut bench.context(0)) as u8
    };
    assert_eq!(next(&mut device, &mut bench), b'U' - 0x10);
    device.reset(&mut bench.context(0));
    assert_eq!(next(&mut device, &mut bench), b'Q');
}

/// Executes a command at address 100h.
fn command(device: &mut FwCfg, bench: &mut Bench, control: u32, length: u32, address: u64) -> u32 {
    let place = PhysicalAddress(0x100);
    let mut bytes = control.to_be_bytes().to_vec();
    bytes.extend(length.to_be_bytes());
    bytes.extend(address.to_be_bytes());
    let mut context = bench.context(0);
    context.memory().write(place, &bytes);
    device.port_write(0x514, 4, 0, &mut context);
    device.port_write(0x518, 4, 0x100u32.swap_bytes(), &mut context);
    context.memory().read_u32(place).swap_bytes()
}

#[test]
fn items_are_copied_to_memory() {
    let mut device = device(&[("opt/a", b"0123456789")]);
    let mut bench = Bench::new();
    let select = 0x20 << 16 | CONTROL_SELECT;
    assert_eq!(
        command(&mut device, &mut bench, select | CONTROL_SKIP, 2, 0),
        0
    );
    assert_eq!(command(&mut device, &mut bench, CONTROL_READ, 3, 0x200), 0);
    assert_eq!(command(&mut device, &mut bench, CONTROL_READ, 8, 0x203), 0);
    let mut bytes = [1; 11];
    bench
        .context(0)
        .memory()
        .read(PhysicalAddress(0x200), &mut bytes);
    assert_eq!(&bytes, b"23456789\0\0\0");
}

#[test]
fn impossible_commands_fail() {
    let mut device = device(&[]);
    let mut bench = Bench::new();
    let select = CONTROL_SELECT | CONTROL_READ;
    for (control, length, address) in [
        (CONTROL_WRITE, 1, 0x200),
        (select, 4, u64::MAX),
        (select, 4, 1 << 40),
        (select, u32::MAX, 0),
    ] {
        assert_eq!(
            command(&mut device, &mut bench, control, length, address),
            1
        );
    }
    // There is no memory at the command's own place.
    let mut context = bench.context(0);
    device.port_write(0x514, 4, u32::MAX, &mut context);
    device.port_write(0x518, 4, u32::MAX, &mut context);
}
