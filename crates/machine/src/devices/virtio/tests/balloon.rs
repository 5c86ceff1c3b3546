//! Tests of the balloon: pages return to the host by number and by report, and invalid requests
//! have no effect.

use super::driver::{BAR, DATA, Driver, INDIRECT, WRITE};
use crate::devices::virtio::balloon::Balloon;
use crate::devices::virtio::balloon::control::BalloonOptions;
use crate::devices::virtio::device::VirtioDevice;

/// The pages that the tests give away.
const PAGES: u64 = 0x3_0000;

fn driver() -> Driver {
    let balloon = Balloon::new(BalloonOptions {
        page_reporting: true,
        ..BalloonOptions::default()
    });
    let mut driver = Driver::new(Box::new(balloon));
    driver.start_with_all();
    driver.poke(PAGES, &[7; 0x4000]);
    driver
}

/// Returns the first byte of each page.
fn first_bytes(driver: &Driver) -> [u8; 4] {
    [0, 1, 2, 3].map(|page| driver.peek(PAGES + 0x1000 * page, 1)[0])
}

#[test]
fn pages_in_the_balloon_are_the_hosts() {
    let mut driver = driver();
    let numbers = [0x33_u32, 0x31, 0x31, u32::MAX, 0xa0];
    driver.poke(DATA, &numbers.map(u32::to_le_bytes).concat());
    driver.descriptor(0, DATA, 20, 0, 0);
    driver.offer(0);
    assert_eq!(driver.wait(), (0, 0));
    assert_eq!(first_bytes(&driver), [7, 0, 7, 0]);
    // The pages can be used as before.
    driver.poke(PAGES + 0x1000, &[9]);
    assert_eq!(first_bytes(&driver), [7, 9, 7, 0]);
}

#[test]
fn numbers_that_are_not_memory_are_not_read() {
    let mut driver = driver();
    driver.descriptor(0, u64::MAX - 3, 16, 0, 0);
    driver.descriptor(1, 0, u32::MAX, 0, 0);
    driver.descriptor(2, DATA, 3, 0, 0);
    for index in 0..3 {
        driver.offer(index);
        assert_eq!(driver.wait(), (u32::from(index), 0));
    }
    assert_eq!(first_bytes(&driver), [7; 4]);
    assert!(!driver.needs_reset());
}

#[test]
fn reports_are_taken_from_the_last_queues() {
    for queue in [2, 4] {
        let mut driver = driver();
        driver.enable(queue);
        driver.poke(DATA, &[1; 64]);
        // The table of descriptors has a whole page, parts of others, and addresses without memory.
        for (index, (address, bytes)) in [
            (PAGES, 0x1000),
            (PAGES + 0x1800, 0x1000),
            (1 << 50, 0x1000),
            (PAGES + 0x3000, 0x1000),
        ]
        .into_iter()
        .enumerate()
        {
            let index = index as u16;
            let (flags, next) = if index == 3 {
                (WRITE, 0)
            } else {
                (WRITE | 1, index + 1)
            };
            driver.descriptor_at(DATA, index, address, bytes, flags, next);
        }
        driver.descriptor(0, DATA, 64, INDIRECT, 0);
        driver.offer_to(queue, 0);
        assert_eq!(driver.wait(), (0, 0));
        assert_eq!(first_bytes(&driver), [0, 7, 7, 0]);
    }
}

#[test]
fn a_report_of_everything_many_times_ends() {
    let mut driver = driver();
    driver.enable(2);
    for index in 0..15 {
        driver.descriptor(index, 0x4_0000, 0x0400_0000, WRITE | 1, index + 1);
    }
    driver.descriptor(15, 0x4_0000, u32::MAX >> 4, WRITE, 0);
    driver.offer_to(2, 0);
    driver.settle();
    assert_eq!(first_bytes(&driver), [7; 4]);
}

#[test]
fn a_target_reaches_the_driver_and_statistics_come_back() {
    let balloon = Balloon::new(BalloonOptions {
        target_pages: 5,
        statistics: true,
        ..BalloonOptions::default()
    });
    let control = balloon.balloon().unwrap();
    let mut driver = Driver::new(Box::new(balloon));
    driver.start_with_all();
    driver.enable(2);
    let config = BAR + 0x2000;
    assert_eq!(driver.read(config, 4), 5);
    control.set_target(7);
    driver.settle();
    assert_eq!(driver.read(config, 4), 7);
    driver.write(config + 4, 4, 3);
    let reading = control.reading();
    assert_eq!((reading.target_pages, reading.actual_pages), (7, 3));
    // The driver may not change what is wanted.
    driver.write(config, 4, 99);
    assert_eq!(driver.read(config, 4), 7);
    // A chain of statistics stays with the device until it asks for others.
    let statistic =
        |number: u16, value: u64| [&number.to_le_bytes()[..], &value.to_le_bytes()].concat();
    let values = [statistic(4, 1000), statistic(5, 2000), statistic(500, 1)].concat();
    driver.poke(DATA, &values);
    driver.descriptor(0, DATA, values.len() as u32, 0, 0);
    driver.offer_to(2, 0);
    driver.settle();
    let expected = [(4, 1000), (5, 2000)];
    assert_eq!(control.reading().statistics, expected.into());
    control.ask_for_statistics();
    assert_eq!(driver.wait(), (0, 0));
}
