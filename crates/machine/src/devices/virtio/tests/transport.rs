//! Tests of the PCI transport: negotiation, interrupts, reset.

use super::driver::{BAR, DATA, Driver, TABLE, TempFile, block_device};
use crate::bus::SavedState;
use crate::bus::testing::Bench;
use crate::devices::pci::function::PciFunction;
use crate::devices::virtio::pci_transport::VirtioPci;
use crate::devices::virtio::{feature, status};

fn driver() -> (TempFile, Driver) {
    let file = TempFile::new(&[7; 8192]);
    let driver = Driver::new(block_device(&file.0, |_| {}));
    (file, driver)
}

#[test]
fn features_that_are_not_offered_are_not_agreed_on() {
    let (_file, mut driver) = driver();
    for features in [0, feature::VERSION_1 | 1 << 40, 1 << 9] {
        driver.write(BAR + 20, 1, 0);
        driver.write(BAR + 20, 1, 3);
        for half in 0..2 {
            driver.write(BAR + 8, 4, half);
            driver.write(BAR + 12, 4, features >> (32 * half) & 0xffff_ffff);
        }
        driver.write(BAR + 20, 1, 11);
        assert_eq!(driver.status(), 3);
        driver.write(BAR + 20, 1, 15);
        assert_eq!(driver.status() & status::DRIVER_OK, 0);
    }
}

#[test]
fn a_line_is_asserted_until_the_isr_is_read() {
    let (_file, mut driver) = driver();
    driver.start_with_all();
    assert_eq!(driver.request(0, 0, 512, true), 0);
    assert!(driver.interrupts().io_apic.is_asserted(17));
    assert_eq!(driver.read(BAR + 0x1000, 1), 1);
    assert!(!driver.interrupts().io_apic.is_asserted(17));
    assert_eq!(driver.read(BAR + 0x1000, 1), 0);
}

#[test]
fn a_message_comes_instead_of_the_line() {
    let (_file, mut driver) = driver();
    let clock = &driver.bench.clock;
    let apic = &mut driver.bench.board.interrupts.local_apic;
    apic.write(0xf0, &0x1ffu32.to_le_bytes(), clock);
    driver.write(TABLE + 16, 8, 0xfee0_0000);
    driver.write(TABLE + 24, 8, 0x51);
    let mut capability = driver.config(0x34, 1);
    while driver.config(capability, 1) != 0x11 {
        capability = driver.config(capability + 1, 1);
    }
    driver.set_config(capability + 2, 2, 0x8000);
    driver.start_with_all();
    driver.write(BAR + 26, 2, 1);
    assert_eq!(driver.read(BAR + 26, 2), 1);
    driver.write(BAR + 16, 2, 9);
    assert_eq!(driver.read(BAR + 16, 2), 0xffff, "no such vector");
    assert_eq!(driver.request(0, 0, 512, true), 0);
    assert_eq!(driver.interrupts().local_apic.acknowledge(), Some(0x51));
    assert!(!driver.interrupts().io_apic.is_asserted(17));
}

#[test]
fn the_event_index_holds_interrupts_back() {
    let (_file, mut driver) = driver();
    driver.start_with_all();
    // The driver requests an interrupt only after the third used chain.
    driver.poke(super::driver::AVAILABLE + 4 + 32, &2u16.to_le_bytes());
    for expected in [0, 0, 1, 0] {
        assert_eq!(driver.request(0, 0, 512, true), 0);
        assert_eq!(driver.read(BAR + 0x1000, 1), expected);
    }
    // The device requests a notification of the next chain.
    let wish = driver.peek(super::driver::USED + 4 + 128, 2);
    assert_eq!(wish, 4u16.to_le_bytes());
}

#[test]
fn a_reset_forgets_what_is_under_way() {
    let (file, mut driver) = driver();
    driver.start_with_all();
    driver.poke(DATA, &[0x5a; 512]);
    driver.send(1, 3, 512, false);
    driver.write(BAR + 20, 1, 0);
    assert_eq!(driver.status(), 0);
    driver.poke(super::driver::USED, &[0; 4]);
    driver.settle();
    assert_eq!(driver.used_index(), 0, "nothing is handed back");
    assert_eq!(driver.read(BAR + 28, 2), 0, "the queue is not enabled");
    driver.start_with_all();
    assert_eq!(driver.request(0, 3, 512, true), 0);
    assert_eq!(driver.peek(DATA, 512), [0x5a; 512]);
    drop(driver);
    assert_eq!(
        std::fs::read(&file.0).unwrap()[3 * 512..4 * 512],
        [0x5a; 512]
    );
}

#[test]
fn the_end_of_the_machine_waits_for_its_writes() {
    let (file, mut driver) = driver();
    driver.start_with_all();
    driver.poke(DATA, &[0x5a; 4096]);
    driver.send(1, 8, 4096, false);
    drop(driver);
    assert_eq!(std::fs::read(&file.0).unwrap()[4096..], [0x5a; 4096]);
}

#[test]
fn registers_are_reached_by_configuration_space_too() {
    let (_file, mut driver) = driver();
    let mut capability = driver.config(0x34, 1);
    while driver.config(capability, 1) != 9 || driver.config(capability + 3, 1) != 5 {
        capability = driver.config(capability + 1, 1);
    }
    // The register is the device status, of one byte.
    driver.set_config(capability + 8, 4, 20);
    driver.set_config(capability + 12, 4, 1);
    driver.set_config(capability + 16, 1, 3);
    assert_eq!(driver.status(), 3);
    driver.write(BAR + 20, 1, 0);
    assert_eq!(driver.config(capability + 16, 1), 0);
    // Accesses to registers that do not exist have no effect.
    for (bar, offset, bytes) in [(1, 20, 1), (0, 0x4000, 4), (0, 20, 3), (0, u32::MAX, 4)] {
        driver.set_config(capability + 4, 1, bar);
        driver.set_config(capability + 8, 4, offset);
        driver.set_config(capability + 12, 4, bytes);
        driver.set_config(capability + 16, 4, u32::MAX);
        assert_eq!(driver.status(), 0);
    }
}

#[test]
fn without_the_bus_master_nothing_is_done_until_there_is_one() {
    let (_file, mut driver) = driver();
    driver.start_with_all();
    driver.set_config(4, 2, 3);
    driver.send(0, 0, 512, true);
    driver.settle();
    assert_eq!(driver.used_index(), 0);
    driver.set_config(4, 2, 7);
    assert_eq!(driver.wait().0, 0);
}

#[test]
fn a_saved_device_goes_on() {
    let (_file, mut driver) = driver();
    driver.start_with_all();
    assert_eq!(driver.request(0, 0, 512, true), 0);
    let saved = driver.bus.save();
    driver.write(BAR + 20, 1, 0);
    driver.bus.restore(&saved).unwrap();
    assert_eq!(driver.status(), 15);
    assert_eq!(driver.request(0, 1, 512, true), 0);
    assert_eq!(driver.bus.save()[0].0, "pci");
}

#[test]
fn a_state_that_is_refused_changes_nothing() {
    let file = TempFile::new(&[7; 8192]);
    let mut device = VirtioPci::new(block_device(&file.0, |_| {}));
    let mut bench = Bench::new();
    device.bar_write(0, 20, &[status::ACKNOWLEDGE], &mut bench.context(0));
    let saved = serde_json::to_value(device.save()).unwrap();
    device.bar_write(0, 20, &[0], &mut bench.context(0));
    let mut other_vectors = saved.clone();
    other_vectors["data"][0]["queue_vectors"] = serde_json::json!([]);
    let mut other_messages = saved.clone();
    other_messages["data"][1]["entries"] = serde_json::json!([]);
    for broken in [other_vectors, other_messages] {
        let broken: SavedState = serde_json::from_value(broken).unwrap();
        assert!(device.restore(&broken).is_err());
        assert_eq!(device.core().status(), 0);
    }
    let saved: SavedState = serde_json::from_value(saved).unwrap();
    device.restore(&saved).unwrap();
    assert_eq!(device.core().status(), status::ACKNOWLEDGE);
}
