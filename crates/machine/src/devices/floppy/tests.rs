//! Tests of the controller as a driver sees it, byte by byte.

mod hostile;
mod rig;

use super::format::SECTOR_BYTES;
use rig::{Rig, pattern};

const READ: u8 = 0xe6;
const WRITE: u8 = 0xc5;
const READ_ID: u8 = 0x4a;

#[test]
fn a_reset_is_told_of_by_four_interrupts_statuses() {
    let mut rig = Rig::new(&[Some(1440)]);
    assert_eq!(rig.read(0x3f4), 0x80);
    assert!(rig.interrupt());
    for drive in 0..4 {
        assert_eq!(rig.command(&[8]), [0xc0 | drive, 0], "{drive}");
        assert!(!rig.interrupt());
    }
    assert_eq!(rig.command(&[8]), [0x80], "no more");
    rig.write(0x3f2, 0);
    assert_eq!(rig.read(0x3f4), 0, "in reset");
}

#[test]
fn a_sector_comes_by_dma_with_the_address_behind_it_as_its_result() {
    let mut rig = Rig::ready(1440);
    rig.dma(0x46, 0x8000, 512);
    rig.seek(0, 3);
    let result = rig.command(&[READ, 0x04, 3, 1, 7, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [0x04, 0, 0, 3, 1, 8, 2]);
    let sector = (3 * 2 + 1) * 18 + 6;
    assert_eq!(rig.memory(0x8000, 512), pattern(sector));
    assert!(!rig.interrupt(), "the first byte of the result was read");
}

#[test]
fn both_sides_of_a_cylinder_are_one_multi_track_command() {
    let mut rig = Rig::ready(1440);
    rig.dma(0x46, 0x1_0000, 4 * 512);
    let result = rig.command(&[READ, 0, 0, 0, 17, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [4, 0, 0, 0, 1, 3, 2]);
    for (index, sector) in [16, 17, 18, 19].into_iter().enumerate() {
        let found = rig.memory(0x1_0000 + 512 * index as u64, 512);
        assert_eq!(found, pattern(sector), "{sector}");
    }
    // The read goes to the end of the cylinder, with a count that does not end there.
    rig.dma(0x46, 0x1_0000, 2 * 512);
    let result = rig.command(&[READ, 4, 0, 1, 17, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [4, 0, 0, 1, 0, 1, 2]);
    rig.dma(0x46, 0x1_0000, 3 * 512);
    rig.read(0x08);
    let result = rig.command(&[READ, 4, 0, 1, 17, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [0x44, 0x80, 0, 1, 0, 1, 2], "end of cylinder");
    assert_eq!(rig.read(0x08) & 4, 0, "and the count has not ended");
}

#[test]
fn what_is_written_is_in_the_image_when_the_interrupt_comes() {
    let mut rig = Rig::ready(720);
    rig.write(0x3f7, 2);
    rig.seek(0, 79);
    rig.put_memory(0x9000, &[0xa5; 700]);
    // Of 700 bytes, the rest of the second sector becomes zero.
    rig.dma(0x4a, 0x9000, 700);
    let result = rig.command(&[WRITE, 4, 79, 1, 8, 2, 9, 0x1b, 0xff]);
    assert_eq!(result, [4, 0, 0, 80, 0, 1, 2]);
    let image = rig.image(0);
    let last = &image[image.len() - 2 * SECTOR_BYTES..];
    assert_eq!(last[..700], [0xa5; 700]);
    assert_eq!(last[700..], [0; 324]);
}

#[test]
fn a_track_is_formatted_with_its_filler() {
    let mut rig = Rig::ready(360);
    rig.write(0x3f7, 2);
    rig.seek(0, 5);
    let addresses: Vec<u8> = (1..=9).flat_map(|sector| [5, 1, sector, 2]).collect();
    rig.put_memory(0x9000, &addresses);
    rig.dma(0x4a, 0x9000, addresses.len());
    let result = rig.command(&[0x4d, 4, 2, 9, 0x50, 0xf6]);
    assert_eq!(result[..3], [4, 0, 0]);
    let image = rig.image(0);
    let track = (5 * 2 + 1) * 9 * SECTOR_BYTES;
    assert!(
        image[track..track + 9 * SECTOR_BYTES]
            .iter()
            .all(|byte| *byte == 0xf6)
    );
    assert_eq!(image[track - 512..track], pattern((5 * 2 + 1) * 9 - 1));
    // No image of this size has such sectors.
    rig.put_memory(0x9000, &[5, 1, 10, 2]);
    rig.dma(0x4a, 0x9000, 4);
    let result = rig.command(&[0x4d, 4, 2, 1, 0x50, 0xf6]);
    assert_eq!(result[..3], [0x44, 1, 0]);
}

#[test]
fn without_dma_the_processor_moves_each_byte() {
    let mut rig = Rig::ready(1440);
    rig.command(&[3, 0xdf, 3]);
    rig.send(&[0x46, 0, 0, 0, 18, 2, 18, 0x1b, 0xff]);
    rig.wait_for(0xf0);
    assert!(rig.interrupt());
    let data: Vec<u8> = (0..SECTOR_BYTES).map(|_| rig.read(0x3f5)).collect();
    assert_eq!(data, pattern(17));
    // Only the end of the track can end the command.
    assert_eq!(rig.result(), [0x40, 0x80, 0, 1, 0, 1, 2]);

    rig.send(&[0x45, 0, 0, 0, 18, 2, 18, 0x1b, 0xff]);
    rig.wait_for(0xb0);
    (0..SECTOR_BYTES).for_each(|_| rig.write(0x3f5, 0x3c));
    assert_eq!(rig.result()[..2], [0x40, 0x80]);
    assert_eq!(rig.image(0)[17 * 512..18 * 512], [0x3c; 512]);
}

#[test]
fn addresses_are_found_at_the_disk_s_data_rate_alone() {
    for (kib, rates) in [
        (1440, [0].as_slice()),
        (720, &[2]),
        (1200, &[0]),
        (2880, &[3]),
    ] {
        let mut rig = Rig::ready(kib);
        for rate in 0..4 {
            rig.write(0x3f7, rate);
            let result = rig.command(&[READ_ID, 0]);
            if rates.contains(&rate) {
                assert_eq!(result[..5], [0, 0, 0, 0, 0], "{kib}, {rate}");
                assert_eq!(result[6], 2);
            } else {
                assert_eq!(result[..3], [0x40, 1, 0], "{kib}, {rate}");
            }
        }
    }
}

#[test]
fn what_is_not_there_is_looked_for_in_vain() {
    let mut rig = Rig::ready(1440);
    let read = |rig: &mut Rig, address: [u8; 4], head: u8| {
        rig.dma(0x46, 0x8000, 512);
        let [c, h, r, n] = address;
        rig.command(&[READ, head << 2, c, h, r, n, 18, 0x1b, 0xff])
    };
    for (address, head, expected) in [
        ([0, 0, 19, 2], 0, [0x40, 4, 0, 0, 0, 19, 2]),
        ([0, 0, 0, 2], 0, [0x40, 4, 0, 0, 0, 0, 2]),
        ([0, 0, 1, 3], 0, [0x40, 4, 0, 0, 0, 1, 3]),
        ([0, 1, 1, 2], 0, [0x40, 4, 0, 0, 1, 1, 2]),
        ([1, 0, 1, 2], 0, [0x40, 4, 0x10, 1, 0, 1, 2]),
    ] {
        assert_eq!(read(&mut rig, address, head), expected, "{address:?}");
    }
    // These reads are without a motor, in single density, and from a missing drive.
    rig.write(0x3f2, 0x0c);
    assert_eq!(rig.command(&[READ_ID, 0])[..2], [0x40, 1]);
    rig.write(0x3f2, 0xfc);
    assert_eq!(rig.command(&[READ_ID & !0x40, 0])[..2], [0x40, 1]);
    assert_eq!(rig.command(&[READ_ID, 1])[..2], [0x41, 1]);
    assert_eq!(rig.command(&[READ_ID, 0])[..2], [0, 0]);
}

#[test]
fn a_drive_that_is_not_there_finds_no_track_0() {
    let mut rig = Rig::ready(1440);
    rig.send(&[7, 1]);
    assert_eq!(rig.read(0x3f4), 0x82, "its heads move");
    rig.wait_for_interrupt();
    assert_eq!(rig.command(&[8]), [0x71, 0]);
    rig.send(&[7, 0]);
    rig.wait_for_interrupt();
    assert_eq!(rig.command(&[8]), [0x20, 0]);
    assert_eq!(rig.command(&[4, 0]), [0x38], "at track 0");
    rig.seek(0, 4);
    assert_eq!(rig.command(&[4, 4]), [0x2c]);
}

#[test]
fn with_implied_seeks_reads_go_where_the_address_says() {
    let mut rig = Rig::ready(1440);
    rig.command(&[0x13, 0, 0x57, 0]);
    rig.dma(0x46, 0x8000, 512);
    let result = rig.command(&[READ, 0, 40, 0, 1, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [0x20, 0, 0, 40, 0, 2, 2]);
    assert_eq!(rig.memory(0x8000, 512), pattern(40 * 36));
    let dump = rig.command(&[0x0e]);
    assert_eq!(dump, [40, 0, 0, 0, 0xdf, 2, 18, 0, 0x57, 0]);
}

#[test]
fn a_write_protected_disk_says_so_and_stays_as_it_is() {
    let mut rig = Rig::read_only(1440);
    assert_eq!(rig.command(&[4, 0]), [0x78]);
    rig.dma(0x4a, 0x8000, 512);
    let result = rig.command(&[WRITE, 0, 0, 0, 1, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [0x40, 2, 0, 0, 0, 1, 2]);
    rig.dma(0x4a, 0x8000, 4);
    assert_eq!(rig.command(&[0x4d, 0, 2, 1, 0x50, 0xf6])[..2], [0x40, 2]);
    assert_eq!(rig.image(0)[..512], pattern(0));
}

#[test]
fn a_changed_disk_shows_until_the_heads_move() {
    let mut rig = Rig::ready(1440);
    assert_eq!(rig.read(0x3f7), 0x80, "since the power came");
    rig.seek(0, 0);
    assert_eq!(rig.read(0x3f7), 0x80, "no step");
    rig.seek(0, 1);
    assert_eq!(rig.read(0x3f7), 0);
    rig.change(None).unwrap();
    assert_eq!(rig.read(0x3f7), 0x80);
    rig.seek(0, 0);
    assert_eq!(rig.read(0x3f7), 0x80, "the drive is empty");
    assert_eq!(rig.command(&[READ_ID, 0])[..2], [0x40, 1]);
    rig.change(Some(720)).unwrap();
    rig.seek(0, 1);
    assert_eq!(rig.read(0x3f7), 0);
    rig.write(0x3f7, 2);
    assert_eq!(rig.command(&[READ_ID, 0])[..4], [0, 0, 0, 1]);
    let refusal = rig.change(Some(360)).unwrap_err();
    assert!(
        refusal.contains("does not support a disk of 360 KiB"),
        "{refusal}"
    );
    assert_eq!(rig.read(0x3f7), 0x80, "empty again");
}

#[test]
fn a_disk_of_40_cylinders_is_read_by_every_second_step_of_80() {
    let mut rig = Rig::ready(1200);
    rig.change(Some(360)).unwrap();
    rig.write(0x3f7, 1);
    rig.seek(0, 6);
    assert_eq!(rig.command(&[READ_ID, 0])[..4], [0, 0, 0, 3]);
    rig.seek(0, 7);
    assert_eq!(rig.command(&[READ_ID, 0])[..2], [0x40, 1], "between two");
}

#[test]
fn a_closed_dma_channel_is_waited_for_and_then_given_up() {
    let mut rig = Rig::ready(1440);
    rig.dma(0x46, 0x8000, 512);
    rig.write(0x0a, 6);
    rig.send(&[READ, 0, 0, 0, 1, 2, 18, 0x1b, 0xff]);
    rig.pass(1_000_000);
    assert_eq!(rig.read(0x3f4), 0x10);
    rig.write(0x0a, 2);
    assert_eq!(rig.result()[..2], [0, 0]);
    assert_eq!(rig.memory(0x8000, 512), pattern(0));
    rig.write(0x0a, 6);
    let result = rig.command(&[READ, 0, 0, 0, 1, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [0x40, 0x10, 0, 0, 0, 1, 2], "overrun");
}

#[test]
fn deleted_data_is_nowhere_and_verify_moves_nothing() {
    let mut rig = Rig::ready(1440);
    rig.dma(0x46, 0x8000, 1024);
    let result = rig.command(&[0x4c, 0, 0, 0, 1, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [0, 0, 0x40, 0, 0, 1, 2], "control mark");
    rig.put_memory(0x8000, &[0; 512]);
    let result = rig.command(&[0x56, 0, 0, 0, 1, 2, 18, 0x1b, 0xff]);
    assert_eq!(result, [0, 0, 0, 1, 0, 1, 2]);
    let result = rig.command(&[0x56, 0x80, 0, 0, 1, 2, 18, 0x1b, 4]);
    assert_eq!(result, [0, 0, 0, 0, 0, 5, 2], "as many as EC counts");
    assert_eq!(rig.memory(0x8000, 512), [0; 512]);
}

#[test]
fn a_lock_keeps_the_configuration_over_a_reset_by_software() {
    let mut rig = Rig::ready(1440);
    assert_eq!(rig.command(&[0x10]), [0x90]);
    assert_eq!(rig.command(&[0x18]), [0x80], "no later chip");
    rig.command(&[0x13, 0, 0x0f, 3]);
    assert_eq!(rig.command(&[0x94]), [0x10]);
    rig.write(0x3f4, 0x80);
    assert_eq!(rig.command(&[0x0e])[8..], [0x0f, 3]);
    assert_eq!(rig.command(&[0x14]), [0]);
    rig.write(0x3f4, 0x80);
    assert_eq!(rig.command(&[0x0e])[8..], [0x20, 0]);
    assert!(rig.command(&[0x12, 0x84 | 3]).is_empty());
    assert_eq!(rig.command(&[0x0e])[7], 7);
}

#[test]
fn the_gate_keeps_interrupts_from_the_board() {
    let mut rig = Rig::ready(1440);
    rig.write(0x3f2, 0x14);
    rig.send(&[7, 0]);
    rig.pass(10_000_000);
    assert!(!rig.interrupt());
    rig.write(0x3f2, 0x1c);
    assert!(rig.interrupt());
}

#[test]
fn state_is_saved_and_restored() {
    let mut rig = Rig::ready(1440);
    rig.seek(0, 12);
    rig.send(&[READ, 0, 12]);
    let saved = rig.save();
    let mut other = Rig::new(&[Some(1440)]);
    other.restore(&saved);
    other.dma(0x46, 0x8000, 512);
    let rest = [0, 1, 2, 18, 0x1b, 0xff];
    assert_eq!(other.command(&rest), [0, 0, 0, 12, 0, 2, 2]);
}
