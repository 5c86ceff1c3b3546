//! Tests of flash memory on a board: what its addresses show, and what reaches its image.

use super::*;
use crate::bus::testing::Bench;
use std::path::PathBuf;
use tollgate_memory::PageUse;
use tollgate_test_support::Random;

const PAGE: usize = PAGE_SIZE as usize;
/// The first addresses of unit 0, of two pages, and of unit 1, of three.
const CODE: u64 = 0xffff_e000;
const VARIABLES: u64 = 0xffff_b000;

fn bench(images: Vec<FlashImage>) -> (Flash, Bench) {
    let mut bench = Bench::new();
    let mut flash = Flash::new(images);
    flash.make_memory(&mut bench.context(0)).unwrap();
    (flash, bench)
}

fn two() -> Vec<FlashImage> {
    let code = FlashImage {
        is_writable: false,
        ..FlashImage::in_memory([[1; PAGE], [2; PAGE]].concat())
    };
    vec![code, FlashImage::in_memory(vec![0x55; 3 * PAGE])]
}

fn store(flash: &mut Flash, bench: &mut Bench, address: u64, bytes: &[u8]) {
    for byte in bytes {
        flash.memory_write(PhysicalAddress(address), &[*byte], &mut bench.context(0));
    }
}

/// What a load by the guest sees, or `None` if it comes to the device.
fn memory(bench: &mut Bench, address: u64) -> Option<u8> {
    let mut context = bench.context(0);
    let memory = context.memory();
    let page = PhysicalAddress(address).page();
    if memory.ram().page_use(page) == PageUse::Device {
        return None;
    }
    let mut byte = [0];
    assert!(memory.read(PhysicalAddress(address), &mut byte));
    Some(byte[0])
}

fn device(flash: &mut Flash, bench: &mut Bench, address: u64, count: usize) -> Vec<u8> {
    let mut data = vec![0; count];
    flash.memory_read(PhysicalAddress(address), &mut data, &mut bench.context(0));
    data
}

#[test]
fn unit_1_lies_below_unit_0_and_commands_hide_the_contents_of_one() {
    let (mut flash, mut bench) = bench(two());
    assert_eq!(memory(&mut bench, u32::MAX.into()), Some(2));
    assert_eq!(memory(&mut bench, CODE), Some(1));
    assert_eq!(memory(&mut bench, CODE - 1), Some(0x55));
    assert_eq!(memory(&mut bench, VARIABLES), Some(0x55));
    store(&mut flash, &mut bench, VARIABLES + 5, &[0x70]);
    assert_eq!(memory(&mut bench, VARIABLES), None);
    assert_eq!(memory(&mut bench, CODE), Some(1));
    assert_eq!(device(&mut flash, &mut bench, VARIABLES, 4), [0x80; 4]);
    store(&mut flash, &mut bench, VARIABLES, &[0x98]);
    let text = device(&mut flash, &mut bench, VARIABLES + 0x10, 3);
    assert_eq!(text, b"QRY");
    store(&mut flash, &mut bench, VARIABLES, &[0xff]);
    assert_eq!(memory(&mut bench, VARIABLES), Some(0x55));
}

#[test]
fn what_is_programmed_and_erased_is_there_when_the_contents_show_again() {
    let (mut flash, mut bench) = bench(two());
    let at = VARIABLES + PAGE_SIZE;
    store(&mut flash, &mut bench, at + 9, &[0x20, 0xd0]);
    store(&mut flash, &mut bench, at + 1, &[0x10, 0x21]);
    store(&mut flash, &mut bench, at + 2, &[0x40, 0x22, 0xff]);
    let bytes: Vec<_> = (0..4).map(|byte| memory(&mut bench, at + byte)).collect();
    assert_eq!(bytes, [0xff, 0x21, 0x22, 0xff].map(Some));
    assert_eq!(memory(&mut bench, at - 1), Some(0x55));
    assert_eq!(memory(&mut bench, at + PAGE_SIZE - 1), Some(0xff));
    assert_eq!(memory(&mut bench, at + PAGE_SIZE), Some(0x55));
}

#[test]
fn a_chip_that_is_only_read_keeps_its_contents() {
    let (mut flash, mut bench) = bench(two());
    store(
        &mut flash,
        &mut bench,
        CODE,
        &[0x10, 0x21, 0x20, 0xd0, 0x70],
    );
    assert_eq!(device(&mut flash, &mut bench, CODE, 1), [0xb0]);
    store(&mut flash, &mut bench, CODE, &[0xff]);
    assert_eq!(memory(&mut bench, CODE), Some(1));
}

fn file(name: &str, bytes: usize) -> PathBuf {
    let name = format!("tollgate-flash-{}-{name}", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, vec![0xff; bytes]).unwrap();
    path
}

#[test]
fn the_image_keeps_what_was_written_also_before_the_contents_show_again() {
    let path = file("kept", 2 * PAGE);
    let image = FlashImage::open(0, &DriveOptions::new(&path)).unwrap();
    let (mut flash, mut bench) = bench(vec![image]);
    store(&mut flash, &mut bench, CODE + 7, &[0x10, 0x5a, 0xff]);
    store(&mut flash, &mut bench, CODE + 8, &[0x10, 0x5b]);
    store(&mut flash, &mut bench, CODE + 0x1003, &[0x10, 0x5c]);
    drop(flash);
    let kept = std::fs::read(&path).unwrap();
    std::fs::remove_file(path).unwrap();
    assert_eq!(kept[6..10], [0xff, 0x5a, 0x5b, 0xff]);
    assert_eq!(kept[0x1003], 0x5c);
    assert_eq!(kept.len(), 2 * PAGE);
}

#[test]
fn a_command_in_progress_is_saved() {
    let (mut flash, mut bench) = bench(two());
    store(&mut flash, &mut bench, VARIABLES, &[0x10, 0x21]);
    store(&mut flash, &mut bench, VARIABLES + 1, &[0x10]);
    let saved = flash.save();
    let (mut other, mut bench) = self::bench(two());
    other.restore(&saved).unwrap();
    other.place_regions(&mut bench.context(0));
    assert_eq!(memory(&mut bench, VARIABLES), None);
    store(&mut other, &mut bench, VARIABLES + 1, &[0x22, 0xff]);
    assert_eq!(memory(&mut bench, VARIABLES), Some(0x21));
    assert_eq!(memory(&mut bench, VARIABLES + 1), Some(0x22));
    let (mut one, _) = self::bench(vec![FlashImage::in_memory(vec![0; PAGE])]);
    assert!(one.restore(&saved).is_err());
}

#[test]
fn images_that_no_chip_can_have_are_refused() {
    for bytes in [0, 1, PAGE + 1, (16 << 20) + PAGE] {
        let path = file("bad", bytes);
        let error = FlashImage::open(0, &DriveOptions::new(&path)).unwrap_err();
        assert!(error.to_string().contains("flash"), "{error}");
        std::fs::remove_file(path).unwrap();
    }
    let (first, second) = (file("first", 9 << 20), file("second", 8 << 20));
    let drives = [&first, &second].map(DriveOptions::new);
    let error = FlashImage::open_all(&drives).unwrap_err();
    assert!(error.to_string().contains("together"), "{error}");
    std::fs::remove_file(first).unwrap();
    std::fs::remove_file(second).unwrap();
}

#[test]
fn random_accesses_are_survived() {
    const COMMANDS: [u8; 12] = [
        0x10, 0x20, 0x40, 0x50, 0x60, 0x70, 0x90, 0x98, 0xd0, 0xe8, 0xff, 1,
    ];
    let (mut flash, mut bench) = bench(two());
    let mut random = Random::new(0x5eed_f1a5);
    for _ in 0..20_000 {
        let address = match random.below(4) {
            0 => VARIABLES - 8 + random.below(16) as u64,
            1 => (1 << 32) - 1 - random.below(8) as u64,
            _ => VARIABLES + random.below(5 * PAGE) as u64,
        };
        let address = PhysicalAddress(address);
        let mut data = [0; 64];
        let count = 1 + random.below(64);
        data[0] = COMMANDS[random.below(12)];
        let data = &mut data[..count];
        match random.below(8) {
            0 => flash.memory_read(address, data, &mut bench.context(0)),
            1 => flash.advance(&mut bench.context(0)),
            2 if random.below(50) == 0 => flash.reset(&mut bench.context(0)),
            _ => flash.memory_write(address, &data[..1 + (count - 1) % 8], &mut bench.context(0)),
        }
        let saved = flash.save();
        flash.restore(&saved).unwrap();
    }
    store(&mut flash, &mut bench, VARIABLES, &[0xff, 0xff, 0xff]);
    flash.reset(&mut bench.context(0));
    assert_eq!(memory(&mut bench, CODE), Some(1));
}
