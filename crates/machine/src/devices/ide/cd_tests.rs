//! Tests of a CD-ROM drive as a driver sees it: packets, data, its description of the disc, and
//! changes of the disc.

use super::rig::{Rig, new_image, pattern};
use crate::devices::pci::function::PciFunction;
use tollgate_disk::DriveOptions;
use tollgate_test_support::Random;
use tollgate_x86::PhysicalAddress;

/// The number of 2048-byte sectors of the disc.
const DISC: usize = 512;

const READY: u8 = 0x50;
const HAS_DATA: u8 = 0x58;
const FAILED: u8 = 0x51;

/// Returns a sector of 2048 bytes.
fn sector(number: usize) -> Vec<u8> {
    (4 * number..4 * number + 4).flat_map(pattern).collect()
}

/// The result of a packet: the data, or the sense key, code and qualifier.
type Outcome = Result<Vec<u8>, (u8, u8, u8)>;

impl Rig {
    fn drive() -> Self {
        let mut rig = Self::with_cd_drive(Some(4 * DISC));
        assert_eq!(rig.packet(&[0]), Err((6, 0x29, 0)), "it was reset");
        rig
    }

    /// Sends a packet, with blocks of at most `limit` bytes, and leaves the data to be read.
    fn send(&mut self, packet: &[u8], features: u8, limit: u16) -> u8 {
        let [low, high] = limit.to_le_bytes();
        for (port, value) in [(6, 0xa0), (1, features), (4, low), (5, high), (7, 0xa0)] {
            self.write(0x1f0 + port, value);
        }
        assert_eq!((self.read(0x3f6), self.read(0x1f2)), (HAS_DATA, 1));
        let mut bytes = [0; 12];
        bytes[..packet.len()].copy_from_slice(packet);
        self.give(&bytes);
        self.wait()
    }

    /// Sends a packet and reads its data through the data register.
    fn packet_in_blocks(&mut self, packet: &[u8], limit: u16) -> Outcome {
        let mut data = Vec::new();
        let mut status = self.send(packet, 0, limit);
        while status == HAS_DATA {
            assert_eq!(self.read(0x1f2), 2, "data to the host");
            let bytes = usize::from(self.read(0x1f4)) | usize::from(self.read(0x1f5)) << 8;
            assert!(bytes <= usize::from(limit), "{bytes} of {limit}");
            let mut block = self.take(bytes.next_multiple_of(2));
            block.truncate(bytes);
            data.append(&mut block);
            status = self.wait();
        }
        assert_eq!(self.read(0x1f2), 3, "status");
        if status == READY {
            return Ok(data);
        }
        assert_eq!(status, FAILED);
        let key = self.read(0x1f1) >> 4;
        let sense = self.packet(&[3, 0, 0, 0, 18]).unwrap();
        assert_eq!((sense[0], sense[2]), (0x70, key));
        Err((sense[2], sense[12], sense[13]))
    }

    fn packet(&mut self, packet: &[u8]) -> Outcome {
        self.packet_in_blocks(packet, 0xfffe)
    }

    fn change(&mut self, image: Option<&DriveOptions>, force: bool) -> Result<(), String> {
        let context = &mut self.bench.context(0);
        self.function.change_disc(0, image, force, context)
    }

    fn event(&mut self) -> (u8, u8) {
        let events = self.packet(&[0x4a, 1, 0, 0, 0x10, 0, 0, 0, 8]).unwrap();
        (events[4], events[5])
    }
}

#[test]
fn a_drive_is_known_by_its_signature_and_says_what_it_is() {
    let mut rig = Rig::with_cd_drive(None);
    let signature = |rig: &mut Rig| [1, 2, 3, 4, 5].map(|port| rig.read(0x1f0 + port));
    assert_eq!(signature(&mut rig), [1, 1, 1, 0x14, 0xeb]);
    assert_eq!(rig.read(0x1f7), 0, "not ready before its first command");
    // A host that takes the drive for a disk is shown its signature.
    rig.write(0x1f7, 0xec);
    assert_eq!(rig.wait(), FAILED);
    assert_eq!(signature(&mut rig), [4, 1, 1, 0x14, 0xeb]);
    rig.write(0x1f7, 0xa1);
    assert_eq!(rig.wait(), HAS_DATA);
    let data = rig.take(512);
    assert_eq!(data[..2], [0xc0, 0x85]);
    assert_eq!(&data[54..70], b"OTLLAGETC -DOR M");
    assert_eq!(rig.wait(), READY);
    let inquiry = rig.packet(&[0x12, 0, 0, 0, 36]).unwrap();
    assert_eq!(inquiry[..2], [5, 0x80]);
    assert_eq!(&inquiry[8..22], b"TOLLGATECD-ROM");
    assert_eq!(rig.packet(&[0x12, 0, 0, 0, 5]).unwrap(), inquiry[..5]);
}

#[test]
fn sectors_are_read_in_blocks_as_long_as_the_host_wants() {
    let mut rig = Rig::drive();
    let expected: Vec<u8> = (100..200).flat_map(sector).collect();
    for limit in [2048, 0xfffe, 6, 2046] {
        // READ(10) and READ(12) of 100 sectors.
        let data = rig.packet_in_blocks(&[0x28, 0, 0, 0, 0, 100, 0, 0, 100], limit);
        assert!(data.unwrap() == expected, "{limit}");
        let data = rig.packet_in_blocks(&[0xa8, 0, 0, 0, 0, 100, 0, 0, 0, 100], limit);
        assert!(data.unwrap() == expected, "{limit}");
    }
    // READ CD; READ CD MSF from 0:3:25 to 0:4:50.
    let data = rig.packet(&[0xbe, 0, 0, 0, 0, 100, 0, 0, 100, 0x10]);
    assert!(data.unwrap() == expected);
    let data = rig.packet(&[0xb9, 0, 0, 0, 3, 25, 0, 4, 50, 0x10]);
    assert!(data.unwrap() == expected);
    assert_eq!(rig.packet(&[0x28]), Ok(Vec::new()), "nothing is wanted");
}

#[test]
fn sectors_are_read_by_the_bus_master() {
    let mut rig = Rig::drive();
    let table = [0, 0x10, 1, 0, 0, 0x20, 0, 0x80];
    rig.bench
        .board
        .memory
        .write(PhysicalAddress(0x8000), &table);
    rig.master(4, &0x8000u32.to_le_bytes());
    rig.master(0, &[9]);
    let read = [0x28, 0, 0, 0, 0, 7, 0, 0, 4];
    assert_eq!(rig.send(&read, 1, 0), READY);
    assert_eq!((rig.read(0x1f2), rig.master_status() & 7), (3, 4));
    let mut data = vec![0; 4 * 2048];
    let memory = &rig.bench.board.memory;
    memory.read(PhysicalAddress(0x1_1000), &mut data);
    assert!(data == (7..11).flat_map(sector).collect::<Vec<u8>>());
    // The list has less room than the data needs.
    rig.master(0, &[0]);
    rig.master(2, &[4]);
    rig.master(0, &[9]);
    assert_eq!(rig.send(&[0x25], 1, 0), READY);
    assert_eq!(rig.master_status() & 7, 5, "it has not come to the end");
    let mut data = [0; 8];
    let memory = &rig.bench.board.memory;
    memory.read(PhysicalAddress(0x1_1000), &mut data);
    assert_eq!(data, [0, 0, 1, 0xff, 0, 0, 8, 0]);
}

#[test]
fn what_is_not_there_is_refused_and_the_reason_told_once() {
    let mut rig = Rig::drive();
    for (packet, sense) in [
        (&[0x28, 0, 0, 0, 2, 0, 0, 0, 1][..], (5, 0x21, 0)),
        (&[0x28, 0, 0, 0, 1, 0xff, 0, 0, 2], (5, 0x21, 0)),
        (&[0x28, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 2], (5, 0x21, 0)),
        (&[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], (5, 0x20, 0)),
        (&[0xff], (5, 0x20, 0)),
        // Raw sectors, a page that does not exist, saved pages, and a track after the last one.
        (&[0xbe, 0, 0, 0, 0, 0, 0, 0, 1, 0xf8], (5, 0x24, 0)),
        (&[0x5a, 0, 5, 0, 0, 0, 0, 0, 99], (5, 0x24, 0)),
        (&[0x5a, 0, 0xff, 0, 0, 0, 0, 0, 99], (5, 0x39, 0)),
        (&[0x43, 0, 0, 0, 0, 0, 2, 0, 99], (5, 0x24, 0)),
    ] {
        assert_eq!(rig.packet(packet), Err(sense), "{packet:x?}");
        let sense = rig.packet(&[3, 0, 0, 0, 18]).unwrap();
        assert_eq!(sense[2], 0, "it was reported once");
    }
    // Overlapping is not supported.
    rig.write(0x1f1, 2);
    rig.write(0x1f7, 0xa0);
    assert_eq!((rig.wait(), rig.read(0x1f1)), (FAILED, 4));
}

#[test]
fn the_disc_has_one_track_of_data() {
    let mut rig = Rig::drive();
    assert_eq!(rig.packet(&[0]), Ok(Vec::new()));
    let contents = rig.packet(&[0x43, 0, 0, 0, 0, 0, 0, 0, 99]).unwrap();
    assert_eq!(contents[..12], [0, 18, 1, 1, 0, 0x14, 1, 0, 0, 0, 0, 0]);
    assert_eq!(contents[12..], [0, 0x14, 0xaa, 0, 0, 0, 2, 0]);
    // The answer is in minutes, seconds and frames: 512 + 150 frames are 8 s and 62 frames.
    let contents = rig.packet(&[0x43, 2, 0, 0, 0, 0, 0xaa, 0, 99]).unwrap();
    assert_eq!(contents, [0, 10, 1, 1, 0, 0x14, 0xaa, 0, 0, 0, 8, 62]);
    let all = rig.packet(&[0x43, 0, 2, 0, 0, 0, 0, 0, 99]).unwrap();
    assert_eq!(all.len(), 4 + 4 * 11);
    assert_eq!(
        all[4 + 22..4 + 33],
        [1, 0x14, 0, 0xa2, 0, 0, 0, 0, 0, 8, 62]
    );
    let configuration = rig.packet(&[0x46, 0, 0, 0, 0, 0, 0, 0, 99]).unwrap();
    let length = u32::from_be_bytes(configuration[..4].try_into().unwrap());
    assert_eq!(length as usize + 4, configuration.len());
    assert_eq!(configuration[6..8], [0, 8], "a CD-ROM");
    let one = rig.packet(&[0x46, 2, 0, 3, 0, 0, 0, 0, 99]).unwrap();
    assert_eq!(one[8..], [0, 3, 3, 4, 0x29, 0, 0, 0]);
    let pages = rig.packet(&[0x5a, 0, 0x3f, 0, 0, 0, 0, 1, 0]).unwrap();
    assert_eq!(pages.len(), 8 + 8 + 8 + 20);
    assert_eq!(
        usize::from(pages[1]) + 2,
        pages.len(),
        "the length of the pages"
    );
    let track = rig.packet(&[0x52, 1, 0, 0, 0, 1, 0, 0, 99]).unwrap();
    assert_eq!(track[24..], [0, 0, 2, 0]);
}

#[test]
fn an_empty_drive_is_not_ready_until_someone_puts_a_disc_in() {
    let mut rig = Rig::with_cd_drive(None);
    assert_eq!(rig.packet(&[0]), Err((6, 0x29, 0)));
    assert_eq!(rig.packet(&[0]), Err((2, 0x3a, 1)));
    assert_eq!(rig.event(), (0, 0));
    let image = new_image(4 * DISC);
    rig.images.push(image.clone());
    rig.change(Some(&DriveOptions::new(&image)), false).unwrap();
    assert_eq!(rig.event(), (2, 2), "a new disc, and it is there");
    assert_eq!(rig.event(), (0, 2), "told once");
    assert_eq!(rig.packet(&[0x25]), Err((6, 0x28, 0)), "it was changed");
    assert_eq!(
        rig.packet(&[0x25]),
        Ok(vec![0, 0, 1, 0xff, 0, 0, 8, 0]),
        "told once"
    );
    rig.change(None, false).unwrap();
    assert_eq!(rig.event(), (3, 1), "removed, and the tray is open");
    assert_eq!(rig.packet(&[0]), Err((2, 0x3a, 2)));
}

#[test]
fn a_locked_drive_keeps_its_disc_until_the_guest_opens_it() {
    let mut rig = Rig::drive();
    rig.packet(&[0x1e, 0, 0, 0, 1]).unwrap();
    assert_eq!(rig.packet(&[0x1b, 0, 0, 0, 2]), Err((5, 0x53, 2)));
    let refusal = rig.change(None, false).unwrap_err();
    assert!(refusal.contains("--force"), "{refusal}");
    assert_eq!(rig.event(), (1, 2), "someone wants it out");
    assert_eq!(rig.packet(&[0]), Ok(Vec::new()));
    rig.packet(&[0x1e]).unwrap();
    rig.packet(&[0x1b, 0, 0, 0, 2]).unwrap();
    assert_eq!(rig.packet(&[0]), Err((2, 0x3a, 2)));
    // The disc is still on the tray.
    rig.packet(&[0x1b, 0, 0, 0, 3]).unwrap();
    assert_eq!(rig.packet(&[0]), Err((6, 0x28, 0)));
    assert_eq!(rig.packet(&[0]), Ok(Vec::new()));
    rig.packet(&[0x1e, 0, 0, 0, 1]).unwrap();
    assert_eq!(rig.change(None, true), Ok(()));
    assert_eq!(rig.packet(&[0]), Err((2, 0x3a, 2)));
}

#[test]
fn an_image_that_cannot_be_used_leaves_the_disc_as_it_is() {
    let mut rig = Rig::drive();
    let small = new_image(3);
    rig.images.push(small.clone());
    for (path, why) in [
        (small, "1536 bytes is not the size of a CD-ROM"),
        ("/nonexistent".into(), "no such file"),
    ] {
        let refusal = rig.change(Some(&DriveOptions::new(path)), false);
        let refusal = refusal.unwrap_err();
        assert!(refusal.contains(why), "{refusal}");
    }
    assert_eq!(rig.packet(&[0]), Ok(Vec::new()));
    let context = &mut rig.bench.context(0);
    let refusal = rig.function.change_disc(1, None, true, context);
    assert!(refusal.unwrap_err().contains("no such drive"));
}

#[test]
fn a_reset_of_the_device_ends_whatever_it_does() {
    let mut rig = Rig::drive();
    let read = [0x28, 0, 0, 0, 0, 0, 0, 0, 200];
    assert_eq!(rig.send(&read, 0, 2048), HAS_DATA);
    rig.take(100);
    rig.write(0x1f7, 8);
    assert_eq!(rig.read(0x1f7), 0);
    assert_eq!((rig.read(0x1f4), rig.read(0x1f5)), (0x14, 0xeb));
    assert_eq!(rig.packet(&[0]), Ok(Vec::new()));
}

#[test]
fn random_packets_are_survived() {
    let mut random = Random::new(0xcd_0000);
    let mut rig = Rig::with_cd_drive(Some(4 * DISC));
    const CODES: [u8; 23] = [
        0, 3, 0x12, 0x1b, 0x1e, 0x25, 0x28, 0x2b, 0x42, 0x43, 0x46, 0x4a, 0x51, 0x52, 0x5a, 0xa8,
        0xad, 0xb9, 0xbb, 0xbd, 0xbe, 0x28, 0x28,
    ];
    for _ in 0..20_000 {
        match random.below(10) {
            0..=3 => {
                let mut packet = random.next_u64().to_le_bytes().to_vec();
                packet.extend((random.next_u64() as u32).to_le_bytes());
                packet[0] = CODES[random.below(CODES.len())];
                if random.below(2) == 0 {
                    packet[2..5].fill(0);
                    packet[6..8].fill(0);
                }
                rig.write(0x1f1, random.below(4) as u8);
                rig.write(0x1f4, random.next_u64() as u8);
                rig.write(0x1f7, 0xa0);
                rig.give(&packet);
            }
            4 => drop(rig.take(random.below(5000))),
            5 => rig.write(0x1f0 + random.below(8) as u16, random.next_u64() as u8),
            6 => rig.master(random.below(16) as u64, &[random.next_u64() as u8]),
            7 => {
                let context = &mut rig.bench.context(0);
                rig.function.complete(0, context);
            }
            8 => {
                let image = DriveOptions::new(&rig.images[0]);
                let image = (random.below(4) != 0).then_some(image);
                drop(rig.change(image.as_ref(), random.below(2) == 0));
            }
            _ if random.below(50) == 0 => {
                let saved = rig.function.save();
                rig.function.restore(&saved).unwrap();
            }
            _ => drop(rig.read(0x1f7)),
        }
    }
    let image = DriveOptions::new(&rig.images[0]);
    rig.change(Some(&image), true).unwrap();
    rig.write(0x3f6, 4);
    rig.write(0x3f6, 0);
    rig.wait();
    let data = (0..3).find_map(|_| rig.packet(&[0x28, 0, 0, 0, 0, 9, 0, 0, 1]).ok());
    assert!(
        data.is_some_and(|data| data == sector(9)),
        "it reads after all that"
    );
}
