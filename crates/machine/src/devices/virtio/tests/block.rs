//! Tests of requests to the block device, and of their effect on the image.

use super::driver::{BAR, DATA, Driver, INDIRECT, NEXT, TempFile, WRITE, block_device};
use super::driver::{HEADER, STATUS};
use crate::devices::virtio::feature;
use tollgate_disk::Cache;
use tollgate_x86::PhysicalAddress;

const READ: u32 = 0;
const WRITE_REQUEST: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;

const OK: u8 = 0;
const IO_ERROR: u8 = 1;
const UNSUPPORTED: u8 = 2;

/// Returns 64 sectors, each filled with its number.
fn pattern() -> Vec<u8> {
    (0..64u8).flat_map(|sector| [sector; 512]).collect()
}

fn range(sector: u64, sectors: u32, flags: u32) -> Vec<u8> {
    let mut range = sector.to_le_bytes().to_vec();
    range.extend(sectors.to_le_bytes());
    range.extend(flags.to_le_bytes());
    range
}

#[test]
fn the_configuration_tells_size_and_limits() {
    let file = TempFile::new(&pattern());
    let mut driver = Driver::new(block_device(&file.0, |_| {}));
    assert_eq!(driver.config(0, 4), 0x1042_1af4);
    assert_eq!(driver.config(8, 4), 0x0100_0001);
    assert_eq!(driver.read(BAR + 0x2000, 8), 64);
    assert_eq!(driver.read(BAR + 0x2000 + 12, 4), 254);
    assert_eq!(driver.read(BAR + 0x2000 + 20, 4), 512);
    assert_eq!(driver.read(BAR + 0x2000 + 34, 2), 1);
    let features = driver.features();
    let wanted = feature::VERSION_1 | feature::INDIRECT_DESCRIPTORS | feature::EVENT_INDEX;
    assert_eq!(features & wanted, wanted);
    assert_eq!(
        features & (1 << 5 | 1 << 9 | 1 << 13 | 1 << 14),
        1 << 9 | 1 << 14
    );
}

#[test]
fn sectors_are_read_and_written() {
    let file = TempFile::new(&pattern());
    let mut driver = Driver::new(block_device(&file.0, |_| {}));
    driver.start_with_all();
    assert_eq!(driver.request(READ, 3, 1024, true), OK);
    assert_eq!(driver.peek(DATA, 1024), pattern()[3 * 512..5 * 512]);
    driver.poke(DATA, &[0xa5; 1024]);
    assert_eq!(driver.request(WRITE_REQUEST, 62, 1024, false), OK);
    assert_eq!(driver.request(FLUSH, 0, 0, false), OK);
    let mut expected = pattern();
    expected[62 * 512..].fill(0xa5);
    assert_eq!(std::fs::read(&file.0).unwrap(), expected);
    // There are more requests than the queue holds.
    for sector in 0..40 {
        assert_eq!(driver.request(READ, sector, 512, true), OK);
        assert_eq!(driver.peek(DATA, 512), [sector as u8; 512]);
    }
}

#[test]
fn what_is_not_on_the_disk_is_an_error() {
    let file = TempFile::new(&pattern());
    let mut driver = Driver::new(block_device(&file.0, |_| {}));
    driver.start_with_all();
    for (sector, bytes) in [
        (64, 512),
        (63, 1024),
        (u64::MAX, 512),
        (1 << 55, 512),
        (0, 100),
    ] {
        assert_eq!(
            driver.request(READ, sector, bytes, true),
            IO_ERROR,
            "{sector}"
        );
        assert_eq!(
            driver.request(WRITE_REQUEST, sector, bytes, false),
            IO_ERROR
        );
    }
    assert_eq!(driver.request(0x1234, 0, 512, true), UNSUPPORTED);
    assert_eq!(
        driver.request(DISCARD, 0, 16, false),
        UNSUPPORTED,
        "not offered"
    );
    assert_eq!(std::fs::read(&file.0).unwrap(), pattern());
    assert!(!driver.needs_reset());
}

#[test]
fn ranges_are_zeroed_and_discarded() {
    let file = TempFile::new(&pattern());
    let mut driver = Driver::new(block_device(&file.0, |options| options.discard = true));
    driver.start_with_all();
    driver.poke(DATA, &range(8, 8, 0));
    assert_eq!(driver.request(WRITE_ZEROES, 0, 16, false), OK);
    driver.poke(DATA, &range(24, 16, 1));
    assert_eq!(driver.request(WRITE_ZEROES, 0, 16, false), OK);
    driver.poke(DATA, &range(40, 8, 0));
    assert_eq!(driver.request(DISCARD, 0, 16, false), OK);
    let content = std::fs::read(&file.0).unwrap();
    assert_eq!(content[..8 * 512], pattern()[..8 * 512]);
    assert_eq!(content[8 * 512..16 * 512], [0; 8 * 512]);
    assert_eq!(content[16 * 512..24 * 512], pattern()[16 * 512..24 * 512]);
    assert_eq!(content[24 * 512..40 * 512], [0; 16 * 512]);
    assert_eq!(content[48 * 512..], pattern()[48 * 512..]);
    for (bad, status) in [
        (range(60, 8, 0), IO_ERROR),
        (range(u64::MAX, 8, 0), IO_ERROR),
        (range(0, 8, 2), UNSUPPORTED),
    ] {
        driver.poke(DATA, &bad);
        assert_eq!(driver.request(WRITE_ZEROES, 0, 16, false), status);
    }
    driver.poke(DATA, &range(0, 8, 1));
    assert_eq!(driver.request(DISCARD, 0, 16, false), UNSUPPORTED);
    assert_eq!(driver.request(DISCARD, 0, 15, false), IO_ERROR);
}

#[test]
fn a_read_only_disk_says_so_and_refuses_writes() {
    let file = TempFile::new(&pattern());
    let mut driver = Driver::new(block_device(&file.0, |options| options.readonly = true));
    assert_ne!(driver.features() & 1 << 5, 0);
    driver.start_with_all();
    assert_eq!(driver.request(WRITE_REQUEST, 0, 512, false), IO_ERROR);
    driver.poke(DATA, &range(0, 8, 0));
    assert_eq!(driver.request(WRITE_ZEROES, 0, 16, false), IO_ERROR);
    assert_eq!(driver.request(READ, 7, 512, true), OK);
    assert_eq!(driver.peek(DATA, 512), [7; 512]);
    assert_eq!(std::fs::read(&file.0).unwrap(), pattern());
}

#[test]
fn a_snapshot_leaves_the_image_alone() {
    let file = TempFile::new(&pattern());
    let mut driver = Driver::new(block_device(&file.0, |options| options.snapshot = true));
    driver.start_with_all();
    driver.poke(DATA, &[0xa5; 512]);
    assert_eq!(driver.request(WRITE_REQUEST, 9, 512, false), OK);
    assert_eq!(driver.request(FLUSH, 0, 0, false), OK);
    driver.poke(DATA, &[0; 512]);
    for (sector, byte) in [(8, 8), (9, 0xa5), (10, 10)] {
        assert_eq!(driver.request(READ, sector, 512, true), OK);
        assert_eq!(driver.peek(DATA, 512), [byte; 512]);
    }
    drop(driver);
    assert_eq!(std::fs::read(&file.0).unwrap(), pattern());
}

#[test]
fn the_serial_number_is_padded_and_cut() {
    let file = TempFile::new(&pattern());
    let mut driver = Driver::new(block_device(&file.0, |options| {
        options.serial = "S-1".into()
    }));
    driver.start_with_all();
    assert_eq!(driver.request(GET_ID, 0, 20, true), OK);
    assert_eq!(
        driver.peek(DATA, 20),
        b"S-1\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
    );
    driver.poke(DATA, &[0xee; 20]);
    assert_eq!(driver.request(GET_ID, 0, 2, true), OK);
    assert_eq!(driver.peek(DATA, 3), b"S-\xee");
}

#[test]
fn indirect_tables_and_split_buffers_are_the_same_request() {
    let file = TempFile::new(&pattern());
    let mut driver = Driver::new(block_device(&file.0, |_| {}));
    driver.start_with_all();
    driver.send(READ, 5, 1024, true);
    driver.wait();
    let expected = driver.peek(DATA, 1024);
    let table = 0x1_8000;
    driver.descriptor_at(table, 0, HEADER, 7, NEXT, 1);
    driver.descriptor_at(table, 1, HEADER + 7, 9, NEXT, 2);
    driver.descriptor_at(table, 2, DATA + 0x1000, 1000, NEXT | WRITE, 3);
    driver.descriptor_at(table, 3, DATA + 0x2000, 24, NEXT | WRITE, 4);
    driver.descriptor_at(table, 4, STATUS, 1, WRITE, 0);
    driver.poke(STATUS, &[0xee]);
    driver.descriptor(7, table, 5 * 16, INDIRECT, 0);
    driver.offer(7);
    assert_eq!(driver.wait(), (7, 1025));
    assert_eq!(driver.peek(STATUS, 1), [OK]);
    let mut read = driver.peek(DATA + 0x1000, 1000);
    read.extend(driver.peek(DATA + 0x2000, 24));
    assert_eq!(read, expected);
}

#[test]
fn a_driver_that_cannot_flush_finds_its_writes_on_storage() {
    let file = TempFile::new(&pattern());
    let mut driver = Driver::new(block_device(&file.0, |options| {
        options.cache = Cache::Writeback
    }));
    driver.start(feature::VERSION_1, 16);
    driver.poke(DATA, &[0x11; 512]);
    assert_eq!(driver.request(WRITE_REQUEST, 0, 512, false), OK);
    assert_eq!(std::fs::read(&file.0).unwrap()[..512], [0x11; 512]);
}

#[test]
fn a_buffer_outside_of_memory_is_an_io_error() {
    let file = TempFile::new(&pattern());
    let mut driver = Driver::new(block_device(&file.0, |_| {}));
    driver.start_with_all();
    for kind in [READ, WRITE_REQUEST] {
        let flags = if kind == READ { NEXT | WRITE } else { NEXT };
        driver.poke(HEADER, &[0; 16]);
        driver.poke(HEADER, &kind.to_le_bytes());
        driver.descriptor(0, HEADER, 16, NEXT, 1);
        driver.descriptor(1, 0xe000_0000, 512, flags, 2);
        driver.descriptor(2, STATUS, 1, WRITE, 0);
        driver.offer(0);
        driver.wait();
        assert_eq!(driver.peek(STATUS, 1), [IO_ERROR]);
    }
    assert!(!driver.needs_reset());
    assert_eq!(std::fs::read(&file.0).unwrap(), pattern());
}

/// The size in bytes of a request whose data is not copied.
const LARGE: u32 = 64 << 10;

/// Returns an image for several such requests, in which no two sectors are alike.
fn large_pattern() -> Vec<u8> {
    (0..4 * u64::from(LARGE) / 8)
        .flat_map(u64::to_le_bytes)
        .collect()
}

#[test]
fn the_data_of_a_large_read_counts_as_written_when_the_request_is_done() {
    let file = TempFile::new(&large_pattern());
    let mut driver = Driver::new(block_device(&file.0, |_| {}));
    driver.start_with_all();
    let last = PhysicalAddress(DATA + u64::from(LARGE) - 4);
    driver.bench.board.memory.code().mark(last, 4);
    driver.send(READ, 8, LARGE, true);
    let memory = &driver.bench.board.memory;
    assert!(memory.is_being_filled(last.page()));
    assert!(!memory.is_being_filled(last.page() + 1));
    assert_eq!(driver.wait(), (0, LARGE + 1));
    assert_eq!(driver.peek(STATUS, 1), [OK]);
    let expected = &large_pattern()[8 * 512..][..LARGE as usize];
    assert_eq!(driver.peek(DATA, LARGE as usize), expected);
    let memory = &mut driver.bench.board.memory;
    assert!(!memory.is_being_filled(last.page()));
    assert_eq!(memory.take_code_writes().len(), 1);
}

#[test]
fn large_requests_in_pieces_are_read_and_written() {
    let file = TempFile::new(&large_pattern());
    let mut driver = Driver::new(block_device(&file.0, |_| {}));
    driver.start_with_all();
    let half = LARGE / 2;
    // The second and the third piece share bytes with the last one, so the data is copied.
    for (places, kind) in [
        ([DATA + 0x1_0001, DATA], READ),
        ([DATA + 0x1_0001, DATA], WRITE_REQUEST),
        ([DATA, DATA + 1], WRITE_REQUEST),
    ] {
        let flags = if kind == READ { NEXT | WRITE } else { NEXT };
        driver.poke(HEADER, &[0; 16]);
        driver.poke(HEADER, &kind.to_le_bytes());
        driver.descriptor(0, HEADER, 16, NEXT, 1);
        driver.descriptor(1, places[0], half, flags, 2);
        driver.descriptor(2, places[1], half, flags, 3);
        driver.descriptor(3, STATUS, 1, WRITE, 0);
        driver.offer(0);
        driver.wait();
        assert_eq!(driver.peek(STATUS, 1), [OK]);
        let data = places.map(|place| driver.peek(place, half as usize));
        let image = std::fs::read(&file.0).unwrap();
        assert_eq!(image[..LARGE as usize], data.concat());
        assert_eq!(image[LARGE as usize..], large_pattern()[LARGE as usize..]);
    }
}

#[test]
fn what_lies_in_a_buffer_after_a_reset_does_not_reach_the_disk() {
    let file = TempFile::new(&large_pattern());
    let mut driver = Driver::new(block_device(&file.0, |_| {}));
    for round in 1..=100 {
        driver.start_with_all();
        driver.poke(DATA, &vec![round; LARGE as usize]);
        driver.send(WRITE_REQUEST, 0, LARGE, false);
        // Resets the device by its status.
        driver.write(BAR + 20, 1, 0);
        driver.poke(DATA, &vec![0xee; LARGE as usize]);
        let image = std::fs::read(&file.0).unwrap();
        assert!(image[..LARGE as usize].iter().all(|&byte| byte == round));
    }
}

#[test]
fn a_reset_ends_what_was_being_read() {
    let file = TempFile::new(&large_pattern());
    let mut driver = Driver::new(block_device(&file.0, |_| {}));
    for _ in 0..100 {
        driver.start_with_all();
        driver.send(READ, 0, LARGE, true);
        driver.write(BAR + 20, 1, 0);
        assert!(!driver.bench.board.memory.is_being_filled(DATA >> 12));
        driver.poke(DATA, &[0xee; LARGE as usize]);
        driver.settle();
        assert_eq!(driver.peek(DATA, LARGE as usize), [0xee; LARGE as usize]);
    }
}
