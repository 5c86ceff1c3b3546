//! Tests of the SCSI controller's event queue: units that come, go and change, with a driver that
//! offers buffers and one that has none left.

use super::driver::{AVAILABLE, BAR, DATA, DESCRIPTORS, Driver, TempFile, USED, WRITE};
use crate::devices::virtio::drive_change::{DriveChange, SizedDrive};
use crate::devices::virtio::scsi::Scsi;
use crate::devices::virtio::scsi::options::{Address, ScsiDrive, ScsiKind};
use tollgate_disk::{DriveOptions, Format};

const EVENTS: u16 = 1;
const EVENT_BYTES: u32 = 16;

/// A driver that has accepted these features of the device type, with the rings of the event queue.
fn driver(features: u64) -> Driver {
    let mut driver = Driver::new(Box::new(Scsi::new(Vec::new())));
    driver.queue_size = 16;
    for status in [0, 3] {
        driver.write(BAR + 20, 1, status);
    }
    for (select, bits) in [(0, features), (1, 1)] {
        driver.write(BAR + 8, 4, select);
        driver.write(BAR + 12, 4, bits);
    }
    driver.write(BAR + 20, 1, 11);
    driver.write(BAR + 22, 2, EVENTS.into());
    driver.write(BAR + 24, 2, 16);
    for (register, address) in [32, 40, 48].into_iter().zip([DESCRIPTORS, AVAILABLE, USED]) {
        driver.write(BAR + register, 8, address);
    }
    driver.write(BAR + 28, 2, 1);
    driver.write(BAR + 20, 1, 15);
    driver
}

/// Offers a buffer for one event.
fn offer(driver: &mut Driver) {
    driver.descriptor(0, DATA, EVENT_BYTES, WRITE, 0);
    driver.offer_to(EVENTS, 0);
}

/// The next event: its kind, target, unit and reason.
fn event(driver: &mut Driver) -> (u32, u8, [u8; 2], u32) {
    assert_eq!(driver.wait(), (0, EVENT_BYTES));
    let event = driver.peek(DATA, EVENT_BYTES as usize);
    let word = |at: usize| u32::from_le_bytes(event[at..at + 4].try_into().unwrap());
    (word(0), event[5], [event[6], event[7]], word(12))
}

fn change(driver: &mut Driver, change: &DriveChange) -> Result<(), String> {
    let (board, clock) = (&mut driver.bench.board, &driver.bench.clock);
    let changed = driver.bus.change_drive(change, board, clock);
    changed.expect("the controller takes it")
}

fn disk(file: &TempFile, target: u8, lun: u16) -> ScsiDrive {
    let mut options = DriveOptions::new(&file.0);
    options.format = Some(Format::Raw);
    ScsiDrive {
        address: Address { target, lun },
        kind: ScsiKind::Disk(options),
    }
}

#[test]
fn a_driver_hears_of_units_that_come_change_and_go() {
    let file = TempFile::new(&[1; 4096]);
    let mut driver = driver(6);
    let drive = disk(&file, 2, 300);
    offer(&mut driver);
    change(&mut driver, &DriveChange::PlugIn(drive.clone())).unwrap();
    assert_eq!(event(&mut driver), (1, 2, [0x41, 0x2c], 1));
    // The configuration has the last target and unit.
    assert_eq!(driver.read(BAR + 0x2000 + 30, 2), 2);
    assert_eq!(driver.read(BAR + 0x2000 + 32, 4), 300);
    let again = change(&mut driver, &DriveChange::PlugIn(drive.clone()));
    assert_eq!(again, Err("the SCSI address 2:300 is not free".into()));

    offer(&mut driver);
    let longer = DriveChange::Size {
        drive: SizedDrive::Scsi(drive.address),
        bytes: 8100,
    };
    change(&mut driver, &longer).unwrap();
    // Sizes are whole sectors.
    assert_eq!(std::fs::metadata(&file.0).unwrap().len(), 8192);
    assert_eq!(event(&mut driver), (3, 2, [0x41, 0x2c], 0x092a));

    offer(&mut driver);
    change(&mut driver, &DriveChange::Unplug(drive.address)).unwrap();
    assert_eq!(event(&mut driver), (1, 2, [0x41, 0x2c], 2));
    let again = change(&mut driver, &DriveChange::Unplug(drive.address));
    assert_eq!(again, Err("there is no SCSI drive 2:300".into()));
}

#[test]
fn an_event_without_a_buffer_is_reported_as_missed() {
    let file = TempFile::new(&[1; 4096]);
    let mut driver = driver(6);
    change(&mut driver, &DriveChange::PlugIn(disk(&file, 0, 0))).unwrap();
    assert_eq!(driver.used_index(), 0);
    offer(&mut driver);
    assert_eq!(event(&mut driver), (1 << 31, 0, [0, 0], 0));
    // It is reported once.
    offer(&mut driver);
    assert_eq!(driver.used_index(), 1);
    let shorter = DriveChange::Size {
        drive: SizedDrive::Scsi(Address { target: 0, lun: 0 }),
        bytes: 512,
    };
    change(&mut driver, &shorter).unwrap();
    assert_eq!(event(&mut driver), (3, 0, [0, 0], 0x092a));
}

#[test]
fn a_driver_that_has_not_accepted_events_gets_none() {
    let file = TempFile::new(&[1; 4096]);
    let mut driver = driver(0);
    offer(&mut driver);
    change(&mut driver, &DriveChange::PlugIn(disk(&file, 0, 0))).unwrap();
    change(
        &mut driver,
        &DriveChange::Unplug(Address { target: 0, lun: 0 }),
    )
    .unwrap();
    assert_eq!(driver.used_index(), 0);
    assert!(!driver.needs_reset());
}

#[test]
fn a_buffer_that_is_too_short_or_cannot_be_written_breaks_nothing_else() {
    let file = TempFile::new(&[1; 4096]);
    let mut driver = driver(6);
    driver.descriptor(0, DATA, EVENT_BYTES - 1, WRITE, 0);
    driver.offer_to(EVENTS, 0);
    change(&mut driver, &DriveChange::PlugIn(disk(&file, 0, 0))).unwrap();
    assert_eq!(driver.used_index(), 0);
    offer(&mut driver);
    assert_eq!(driver.wait(), (0, EVENT_BYTES));
}
