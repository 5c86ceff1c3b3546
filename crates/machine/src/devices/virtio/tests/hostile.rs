//! Tests of drivers that break the rules: the device needs a reset, and works again after it.

use super::driver::{
    AVAILABLE, BAR, DATA, DESCRIPTORS, Driver, HEADER, INDIRECT, NEXT, STATUS, TempFile, WRITE,
    block_device,
};
use crate::devices::virtio::feature;

fn broken_by(misdeed: impl FnOnce(&mut Driver)) {
    let file = TempFile::new(&[7; 8192]);
    let mut driver = Driver::new(block_device(&file.0, |_| {}));
    driver.start_with_all();
    driver.poke(HEADER, &[0; 16]);
    misdeed(&mut driver);
    driver.settle();
    assert!(driver.needs_reset());
    assert_eq!(
        driver.read(BAR + 0x1000, 1) & 2,
        2,
        "the driver is notified"
    );
    driver.notify();
    driver.start_with_all();
    assert!(!driver.needs_reset());
    assert_eq!(driver.request(0, 0, 512, true), 0);
}

#[test]
fn a_chain_that_loops() {
    broken_by(|driver| {
        driver.descriptor(0, HEADER, 16, NEXT, 1);
        driver.descriptor(1, DATA, 16, NEXT, 0);
        driver.offer(0);
    });
}

#[test]
fn an_index_outside_of_the_table() {
    broken_by(|driver| driver.offer(16));
    broken_by(|driver| {
        driver.descriptor(0, HEADER, 16, NEXT, 0xffff);
        driver.offer(0);
    });
}

#[test]
fn more_chains_than_the_queue_holds() {
    broken_by(|driver| {
        driver.poke(AVAILABLE + 2, &17u16.to_le_bytes());
        driver.notify();
    });
}

#[test]
fn a_chain_without_room_for_the_header_or_the_status() {
    broken_by(|driver| {
        driver.descriptor(0, HEADER, 15, NEXT, 1);
        driver.descriptor(1, STATUS, 1, WRITE, 0);
        driver.offer(0);
    });
    broken_by(|driver| {
        driver.descriptor(0, HEADER, 16, 0, 0);
        driver.offer(0);
    });
    broken_by(|driver| {
        driver.descriptor(0, HEADER, 16, NEXT, 1);
        driver.descriptor(1, u64::MAX, 1, WRITE, 0);
        driver.offer(0);
    });
    broken_by(|driver| {
        driver.descriptor(0, u64::MAX - 3, 16, NEXT, 1);
        driver.descriptor(1, STATUS, 1, WRITE, 0);
        driver.offer(0);
    });
}

#[test]
fn a_buffer_to_be_read_behind_one_to_be_written() {
    broken_by(|driver| {
        driver.descriptor(0, HEADER, 16, NEXT, 1);
        driver.descriptor(1, STATUS, 1, WRITE | NEXT, 2);
        driver.descriptor(2, DATA, 512, 0, 0);
        driver.offer(0);
    });
}

#[test]
fn indirect_tables_of_every_wrong_kind() {
    for (address, bytes, flags) in [
        (DATA, 0, INDIRECT),
        (DATA, 17, INDIRECT),
        (DATA, 0xffff_fff0, INDIRECT),
        (0xd000_0000, 16, INDIRECT),
        (u64::MAX - 15, 32, INDIRECT),
        (DATA, 16, INDIRECT | NEXT),
        // This table refers to itself.
        (DESCRIPTORS, 16, INDIRECT),
    ] {
        broken_by(|driver| {
            driver.descriptor(0, address, bytes, flags, 1);
            driver.offer(0);
        });
    }
}

#[test]
fn four_gibibytes_in_one_chain() {
    broken_by(|driver| {
        driver.descriptor(0, HEADER, 16, NEXT, 1);
        driver.descriptor(1, 0, u32::MAX, WRITE | NEXT, 2);
        driver.descriptor(2, STATUS, 1, WRITE, 0);
        driver.offer(0);
    });
}

#[test]
fn queues_of_impossible_sizes_and_addresses() {
    for (register, value) in [
        (24, 0),
        (24, 3),
        (24, 0xffff),
        (24, 512),
        (32, 8),
        (40, 1),
        (48, 2),
    ] {
        let file = TempFile::new(&[7; 8192]);
        let mut driver = Driver::new(block_device(&file.0, |_| {}));
        driver.write(BAR + register, if register == 24 { 2 } else { 4 }, value);
        driver.write(BAR + 28, 2, 1);
        assert!(driver.needs_reset(), "{register} {value}");
        assert_eq!(driver.read(BAR + 28, 2), 0);
    }
}

#[test]
fn rings_outside_of_memory() {
    for register in [32, 40, 48] {
        let file = TempFile::new(&[7; 8192]);
        let mut driver = Driver::new(block_device(&file.0, |_| {}));
        driver.start(feature::VERSION_1, 16);
        driver.write(BAR + 20, 1, 0);
        driver.write(BAR + 20, 1, 3);
        driver.write(BAR + 8, 4, 1);
        driver.write(BAR + 12, 4, 1);
        driver.write(BAR + 20, 1, 11);
        for other in [32, 40, 48] {
            let address = [DESCRIPTORS, AVAILABLE, 0x1_3000][(other as usize - 32) / 8];
            let outside = 0xffff_ffff_ffff_f000;
            driver.write(
                BAR + other,
                8,
                if other == register { outside } else { address },
            );
        }
        driver.write(BAR + 28, 2, 1);
        driver.write(BAR + 20, 1, 15);
        driver.poke(HEADER, &[0; 16]);
        driver.queue_size = 256;
        driver.descriptor(0, HEADER, 16, NEXT, 1);
        driver.descriptor(1, STATUS, 1, WRITE, 0);
        driver.offer(0);
        driver.settle();
        assert!(driver.needs_reset(), "{register}");
    }
}

#[test]
fn an_enabled_queue_does_not_move() {
    let file = TempFile::new(&[7; 8192]);
    let mut driver = Driver::new(block_device(&file.0, |_| {}));
    driver.start_with_all();
    driver.send(0, 0, 512, true);
    driver.write(BAR + 24, 2, 3);
    driver.write(BAR + 48, 8, 0xdead_0000);
    driver.write(BAR + 12, 4, 0);
    assert_eq!(driver.read(BAR + 24, 2), 16);
    driver.wait();
    assert_eq!(driver.request(0, 0, 512, true), 0);
}

#[test]
fn queues_that_do_not_exist() {
    let file = TempFile::new(&[7; 8192]);
    let mut driver = Driver::new(block_device(&file.0, |_| {}));
    driver.start_with_all();
    driver.write(BAR + 22, 2, 0xffff);
    assert_eq!(driver.read(BAR + 24, 2), 0);
    driver.write(BAR + 24, 2, 16);
    driver.write(BAR + 28, 2, 1);
    driver.write(BAR + 26, 2, 0);
    for queue in [1, 2, 0x3ff] {
        driver.write(BAR + 0x3000 + 4 * queue, 4, queue);
    }
    assert!(!driver.needs_reset());
}
