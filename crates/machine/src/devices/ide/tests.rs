//! Tests of the function as a driver sees it: registers, data, bus master.

use super::pci::IdeFunction;
use super::rig::{Rig, SECTORS, pattern};
use crate::bus::Device;
use crate::devices::pci::Place;
use crate::devices::pci::function::PciFunction;
use crate::devices::pci::host::PciHost;
use tollgate_test_support::Random;
use tollgate_x86::PhysicalAddress;

#[test]
fn a_disk_identifies_itself() {
    let mut rig = Rig::with_disks(1);
    assert_eq!(rig.command(0xa0, 0, 0, 0xec), 0x58);
    let data = rig.take(512);
    assert_eq!(rig.read(0x1f7), 0x50);
    let word = |index: usize| u16::from_le_bytes([data[2 * index], data[2 * index + 1]]);
    assert_eq!((word(1), word(3), word(6)), (2, 16, 63));
    assert_eq!((word(60), word(61)), (SECTORS as u16, 0));
    assert_eq!(&data[54..62], b"OTLLAGET");
}

#[test]
fn the_channels_answer_on_the_bus_as_soon_as_the_function_may() {
    let mut function = IdeFunction::new(Default::default());
    function.config_mut().write(4, &[1, 0]);
    let bus = PciHost::with_chipset(vec![(Place::device(0), Box::new(function))], Vec::new());
    let claims = bus.claims();
    for port in [0x1f0, 0x1f7, 0x3f6, 0x170] {
        let mut ports = claims.ports.iter();
        assert!(ports.any(|claim| claim.ports.contains(&port)), "{port:x}");
    }
}

#[test]
fn sectors_are_read_by_each_kind_of_address() {
    let mut rig = Rig::with_disks(1);
    // Cylinder 1, head 2, sector 3 of 16 heads and 63 sectors.
    for (device, address, sector) in [(0xa2, 0x00_0103, 16 * 63 + 2 * 63 + 2), (0xe0, 1500, 1500)] {
        assert_eq!(rig.command(device, 2, address, 0x20), 0x58);
        assert_eq!(rig.take(512), pattern(sector));
        assert_eq!(rig.wait(), 0x58);
        assert_eq!(rig.take(512), pattern(sector + 1));
        assert_eq!(rig.wait(), 0x50);
    }
    // With 48 bits of address, the upper bytes are written first.
    for value in [0, 1] {
        rig.write(0x1f2, value);
    }
    for (port, value) in [(3, 0), (3, 9), (4, 0), (4, 1), (5, 0), (5, 0), (6, 0xe0)] {
        rig.write(0x1f0 + port, value);
    }
    rig.write(0x1f7, 0x24);
    rig.wait();
    assert_eq!(rig.take(512), pattern(0x109));
}

#[test]
fn the_registers_tell_where_a_command_has_ended() {
    let mut rig = Rig::with_disks(1);
    // The last two sectors of cylinder 1, head 2, and the first two of the next head.
    assert_eq!(rig.command(0xa2, 4, 0x00_013e, 0x20), 0x58);
    rig.take(4 * 512);
    let registers = |rig: &mut Rig| [2, 3, 4, 5, 6].map(|port| rig.read(0x1f0 + port));
    assert_eq!(registers(&mut rig), [0, 2, 1, 0, 0xa3]);
    assert_eq!(rig.command(0xe0, 2, 1500, 0x30), 0x58);
    rig.give(&[0; 2 * 512]);
    assert_eq!(rig.wait(), 0x50);
    assert_eq!(registers(&mut rig), [0, 0xdd, 0x05, 0, 0xe0]);
    // Verified sectors are not transferred.
    assert_eq!(rig.command(0xe0, 5, 10, 0x40), 0x50);
    assert_eq!(registers(&mut rig), [0, 14, 0, 0, 0xe0]);
}

#[test]
fn power_commands_have_their_first_codes_too() {
    let mut rig = Rig::with_disks(1);
    for code in [0x94, 0x95, 0x96, 0x97, 0x99] {
        assert_eq!(rig.command(0xa0, 0, 0, code), 0x50, "{code:x}");
    }
    assert_eq!(rig.command(0xa0, 0, 0, 0x98), 0x50);
    assert_eq!(rig.read(0x1f2), 0xff, "active");
}

#[test]
fn blocks_of_several_sectors_are_written_and_flushed() {
    let mut rig = Rig::with_disks(1);
    assert_eq!(rig.command(0xe0, 3, 0, 0xc6), 0x51, "no power of two");
    assert_eq!(rig.command(0xe0, 4, 0, 0xc6), 0x50);
    assert_eq!(rig.command(0xe0, 6, 100, 0xc5), 0x58);
    rig.give(&[0xa5; 6 * 512]);
    assert_eq!(rig.wait(), 0x50);
    assert_eq!(rig.command(0xe0, 0, 0, 0xe7), 0x50);
    let image = rig.image();
    assert_eq!(image[100 * 512..106 * 512], [0xa5; 6 * 512]);
    assert_eq!(image[106 * 512..107 * 512], pattern(106));
}

#[test]
fn the_bus_master_scatters_and_gathers() {
    let mut rig = Rig::with_disks(1);
    let table: [u8; 24] = [
        0, 0x10, 1, 0, 0, 3, 0, 0, // 768 bytes at 11000h
        0, 0x20, 1, 0, 0, 3, 0, 0, // 768 at 12000h
        0, 0x30, 1, 0, 0, 2, 0, 0x80, // 512 at 13000h, the last
    ];
    let memory = &mut rig.bench.board.memory;
    memory.write(PhysicalAddress(0x8000), &table);
    rig.master(4, &0x8000u32.to_le_bytes());
    rig.write(0x1f2, 4);
    for (port, value) in [(3, 7), (4, 0), (5, 0), (6, 0xe0), (7, 0xc8)] {
        rig.write(0x1f0 + port, value);
    }
    assert_eq!(rig.read(0x3f6), 0x80, "it waits for the bus master");
    rig.master(0, &[9]);
    assert_eq!(rig.wait(), 0x50);
    assert_eq!(rig.master_status() & 7, 4);
    let expected: Vec<u8> = (7..11).flat_map(pattern).collect();
    for (address, range) in [
        (0x1_1000, 0..768),
        (0x1_2000, 768..1536),
        (0x1_3000, 1536..2048),
    ] {
        let mut data = vec![0; range.len()];
        let memory = &rig.bench.board.memory;
        memory.read(PhysicalAddress(address), &mut data);
        assert_eq!(data, expected[range], "{address:#x}");
    }
    rig.master(0, &[0]);
    rig.master(2, &[4]);
    rig.master(0, &[1]);
    assert_eq!(rig.command(0xe0, 4, 50, 0xca), 0x50);
    assert_eq!(rig.image()[50 * 512..54 * 512], expected);
}

#[test]
fn what_is_not_there_is_refused() {
    let mut rig = Rig::with_disks(1);
    for (device, address, code, error) in [
        (0xe0, SECTORS as u32 - 1, 0x20, 0x10),
        (0xa0, 0, 0x20, 0x10),
        (0xe0, 0, 0xc4, 4),
        (0xe0, 0, 0xa0, 4),
        (0xe0, 0, 0, 4),
    ] {
        assert_eq!(rig.command(device, 2, address, code), 0x51, "{code:#x}");
        assert_eq!(rig.read(0x1f1), error, "{code:#x}");
    }
    // The channel has no second device, and the other channel has none at all.
    rig.write(0x1f6, 0xb0);
    assert_eq!(rig.read(0x1f7), 0);
    assert_eq!(rig.read(0x177), 0);
}

#[test]
fn a_reset_shows_the_signature_of_both_disks() {
    let mut rig = Rig::with_disks(2);
    rig.command(0xe0, 1, 0x12345, 0x20);
    rig.write(0x3f6, 4);
    assert_eq!(rig.read(0x3f6), 0x80);
    rig.write(0x3f6, 0);
    for device in [0xa0, 0xb0] {
        rig.write(0x1f6, device);
        let registers: Vec<u8> = (1..6).map(|offset| rig.read(0x1f0 + offset)).collect();
        assert_eq!(registers, [1, 1, 1, 0, 0]);
        assert_eq!(rig.read(0x1f7), 0x50);
    }
}

#[test]
fn random_accesses_are_survived() {
    let mut random = Random::new(0x8237_1000);
    let mut rig = Rig::with_disks(2);
    for _ in 0..40_000 {
        let value = random.next_u64() as u8;
        let port = [0x1f0, 0x1f0, 0x170, 0x3f6 - 7][random.below(4)] + random.below(8) as u16;
        match random.below(8) {
            0 => drop(rig.read(port)),
            1 => rig.master(random.below(16) as u64, &value.to_le_bytes()),
            2 => rig.give(&random.next_u64().to_le_bytes()),
            3 => drop(rig.take(64)),
            4 => {
                const CODES: [u8; 10] =
                    [0x20, 0x30, 0x24, 0x34, 0xc8, 0xca, 0xc5, 0xe7, 0xec, 0xef];
                rig.write(0x1f7, CODES[random.below(CODES.len())]);
            }
            5 => rig.config(0x40 + random.below(4), &[value | 0x80]),
            6 => {
                let context = &mut rig.bench.context(0);
                rig.function.complete(0, context);
            }
            _ => rig.write(port, value),
        }
        if random.below(5000) == 0 {
            let saved = rig.function.save();
            rig.function.restore(&saved).unwrap();
        }
    }
    rig.write(0x3f6, 4);
    rig.write(0x3f6, 0);
    rig.wait();
    assert_eq!(
        rig.command(0xa0, 0, 0, 0xec),
        0x58,
        "it answers after all that"
    );
    assert_eq!(rig.image().len(), SECTORS * 512);
}
