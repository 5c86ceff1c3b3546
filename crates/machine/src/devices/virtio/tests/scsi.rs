//! Tests of the SCSI controller: commands of disks and CD-ROM drives, errors and their reasons, task
//! management, and hostile requests.

use super::driver::{AVAILABLE, BAR, DATA, DESCRIPTORS, Driver, HEADER, NEXT};
use super::driver::{STATUS, TempFile, USED, WRITE};
use crate::devices::virtio::scsi::options::Address;
use crate::devices::virtio::scsi::{Scsi, Unit};
use tollgate_disk::DriveOptions;

/// Writable bytes of an answer before its data.
const ANSWER_BYTES: u32 = 108;
const REQUEST_BYTES: u32 = 51;
const REQUESTS: u16 = 2;
const CONTROL: u16 = 0;
/// The rings of the control queue.
const CONTROL_RINGS: [u64; 3] = [0x1_8000, 0x1_a000, 0x1_b000];

fn pattern() -> Vec<u8> {
    (0..64u8).flat_map(|sector| [sector; 512]).collect()
}

const fn at(target: u8, lun: u16) -> Address {
    Address { target, lun }
}

/// A controller: a disk that discards, a read-only disk as another unit of its target, a CD-ROM,
/// and an empty drive.
struct Rig {
    disk: TempFile,
    _disc: TempFile,
    driver: Driver,
    /// The number of requests to the control queue.
    controls: u16,
}

/// What came of a request.
#[derive(Debug, PartialEq, Eq)]
struct Outcome {
    response: u8,
    /// Key and code of the reason for a failure.
    sense: Option<(u8, u8)>,
    residual: u32,
}

const fn good(residual: u32) -> Outcome {
    Outcome {
        response: 0,
        sense: None,
        residual,
    }
}

impl Rig {
    fn new() -> Self {
        let (disk, disc) = (TempFile::new(&pattern()), TempFile::new(&pattern()));
        let mut options = DriveOptions::new(&disk.0);
        options.format = Some(tollgate_disk::Format::Raw);
        options.serial = "S1".into();
        let mut discarding = options.clone();
        discarding.discard = true;
        let mut read = DriveOptions::new(&disc.0);
        (read.format, read.readonly) = (Some(tollgate_disk::Format::Raw), true);
        let units = vec![
            Unit::cd_drive(at(3, 0), "cd".into(), Some(&read)).unwrap(),
            Unit::disk(at(1, 0), "disk".into(), &discarding).unwrap(),
            Unit::disk(at(1, 300), "read".into(), &read).unwrap(),
            Unit::cd_drive(at(4, 0), "empty".into(), None).unwrap(),
        ];
        let mut driver = Driver::new(Box::new(Scsi::new(units)));
        driver.queue_size = 16;
        for status in [0, 3] {
            driver.write(BAR + 20, 1, status);
        }
        driver.write(BAR + 8, 4, 1);
        driver.write(BAR + 12, 4, 1);
        driver.write(BAR + 20, 1, 11);
        for (queue, rings) in [
            (CONTROL, CONTROL_RINGS),
            (REQUESTS, [DESCRIPTORS, AVAILABLE, USED]),
        ] {
            driver.write(BAR + 22, 2, queue.into());
            driver.write(BAR + 24, 2, 16);
            for (register, address) in [32, 40, 48].into_iter().zip(rings) {
                driver.write(BAR + register, 8, address);
            }
            driver.write(BAR + 28, 2, 1);
        }
        driver.write(BAR + 20, 1, 15);
        let mut rig = Self {
            disk,
            _disc: disc,
            driver,
            controls: 0,
        };
        // Each unit reports the reset once.
        for address in [at(1, 0), at(1, 300), at(3, 0), at(4, 0)] {
            let first = rig.command(address, &[0], 0, 0);
            assert_eq!(first.sense, Some((6, 0x29)));
        }
        rig
    }

    fn answer(&self) -> Outcome {
        let answer = self.driver.peek(STATUS, ANSWER_BYTES as usize);
        let word = |at: usize| u32::from_le_bytes(answer[at..at + 4].try_into().unwrap());
        let sense = (word(0) > 0).then(|| (answer[12 + 2], answer[12 + 12]));
        assert_eq!(answer[10] == 2, sense.is_some());
        Outcome {
            response: answer[11],
            sense,
            residual: word(4),
        }
    }

    fn send(&mut self, address: [u8; 8], command: &[u8], out: u32, room: u32) {
        let mut head = address.to_vec();
        head.extend([7; 8]);
        head.extend([0; 3]);
        head.extend(command);
        head.resize(REQUEST_BYTES as usize, 0);
        self.driver.poke(HEADER, &head);
        self.driver.poke(STATUS, &[0xee; ANSWER_BYTES as usize]);
        let driver = &mut self.driver;
        match (out, room) {
            (0, 0) => {
                driver.descriptor(0, HEADER, REQUEST_BYTES, NEXT, 1);
                driver.descriptor(1, STATUS, ANSWER_BYTES, WRITE, 0);
            }
            (0, room) => {
                driver.descriptor(0, HEADER, REQUEST_BYTES, NEXT, 1);
                driver.descriptor(1, STATUS, ANSWER_BYTES, WRITE | NEXT, 2);
                driver.descriptor(2, DATA, room, WRITE, 0);
            }
            (out, _) => {
                driver.descriptor(0, HEADER, REQUEST_BYTES, NEXT, 1);
                driver.descriptor(1, DATA, out, NEXT, 2);
                driver.descriptor(2, STATUS, ANSWER_BYTES, WRITE, 0);
            }
        }
        driver.offer_to(REQUESTS, 0);
    }

    fn command(&mut self, address: Address, command: &[u8], out: u32, room: u32) -> Outcome {
        let [high, low] = (address.lun | 0x4000).to_be_bytes();
        let bytes = [1, address.target, high, low, 0, 0, 0, 0];
        self.send(bytes, command, out, room);
        assert_eq!(self.driver.wait().0, 0);
        self.answer()
    }

    /// Sends a command for which the answer must have room, and returns its data.
    fn data(&mut self, address: Address, command: &[u8], room: u32) -> Vec<u8> {
        let outcome = self.command(address, command, 0, room);
        assert_eq!((outcome.response, outcome.sense), (0, None), "{command:x?}");
        self.driver.peek(DATA, (room - outcome.residual) as usize)
    }

    fn manage(&mut self, address: [u8; 8], function: u32) -> u8 {
        let mut head = vec![0; 4];
        head.extend(function.to_le_bytes());
        head.extend(address);
        head.extend([7; 8]);
        self.driver.poke(HEADER, &head);
        self.driver.poke(STATUS, &[0xee; 8]);
        self.control(24);
        let [_, _, used] = CONTROL_RINGS;
        let used = self.driver.peek(used + 2, 2);
        assert_eq!(used, self.controls.to_le_bytes());
        self.driver.peek(STATUS, 1)[0]
    }

    /// Sends the bytes at [`HEADER`] to the control queue.
    fn control(&mut self, bytes: u32) {
        let [descriptors, available, _] = CONTROL_RINGS;
        let driver = &mut self.driver;
        driver.descriptor_at(descriptors, 0, HEADER, bytes, NEXT, 1);
        driver.descriptor_at(descriptors, 1, STATUS, 5, WRITE, 0);
        self.controls += 1;
        driver.poke(available + 2, &self.controls.to_le_bytes());
        driver.write(BAR + 0x3000, 4, CONTROL.into());
    }

    fn content(&mut self) -> Vec<u8> {
        assert_eq!(self.command(at(1, 0), &[0x35], 0, 0), good(0));
        std::fs::read(&self.disk.0).unwrap()
    }
}

#[test]
fn the_configuration_tells_the_limits() {
    let mut rig = Rig::new();
    assert_eq!(rig.driver.config(0, 4), 0x1048_1af4);
    let word = |rig: &mut Rig, at: u64| rig.driver.read(BAR + 0x2000 + at, 4);
    assert_eq!(word(&mut rig, 0), 1);
    assert_eq!((word(&mut rig, 20), word(&mut rig, 24)), (96, 32));
    assert_eq!(rig.driver.read(BAR + 0x2000 + 30, 2), 4);
    assert_eq!(word(&mut rig, 32), 300);
}

#[test]
fn units_say_what_they_are() {
    let mut rig = Rig::new();
    let inquiry = [0x12, 0, 0, 0, 96];
    let disk = rig.data(at(1, 0), &inquiry, 96);
    assert_eq!((disk.len(), disk[0], disk[1]), (36, 0, 0));
    assert_eq!(&disk[8..20], b"TOLLGATEDISK");
    let disc = rig.data(at(3, 0), &inquiry, 96);
    assert_eq!((disc[0], disc[1]), (5, 0x80));
    // A target without this unit, and no target.
    assert_eq!(rig.data(at(1, 7), &inquiry, 96)[0], 0x7f);
    assert_eq!(rig.command(at(1, 7), &[0], 0, 0).sense, Some((5, 0x25)));
    assert_eq!(rig.command(at(9, 0), &inquiry, 0, 96).response, 3);
    rig.send([0xc1, 1, 0, 0, 0, 0, 0, 0], &inquiry, 0, 96);
    rig.driver.wait();
    assert_eq!(rig.answer().response, 3);
    let luns = rig.data(at(1, 7), &[0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0], 256);
    assert_eq!(luns[..4], [0, 0, 0, 16]);
    assert_eq!(
        (&luns[8..10], &luns[16..18]),
        (&[0, 0][..], &[0x41, 0x2c][..])
    );
    // Pages of vital product data.
    let page = |number: u8| [0x12, 1, number, 0, 96];
    assert_eq!(
        rig.data(at(1, 0), &page(0), 96)[4..],
        [0, 0x80, 0x83, 0xb0, 0xb1, 0xb2]
    );
    assert_eq!(rig.data(at(1, 0), &page(0x80), 96)[4..], *b"S1");
    assert_eq!(rig.data(at(3, 0), &page(0), 96)[4..], [0, 0x80, 0x83]);
    assert_eq!(rig.data(at(1, 0), &page(0xb2), 96)[5], 0xe0);
    assert_eq!(rig.data(at(1, 300), &page(0xb2), 96)[5], 0);
    assert_eq!(
        rig.command(at(1, 0), &page(0x99), 0, 96).sense,
        Some((5, 0x24))
    );
    // READ CAPACITY tells the last block and the size of a block.
    let capacity = rig.data(at(1, 0), &[0x25], 8);
    assert_eq!(capacity, [0, 0, 0, 63, 0, 0, 2, 0]);
    let long = rig.data(
        at(1, 0),
        &[0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32],
        32,
    );
    assert_eq!((long[7], long[10], long[13], long[14]), (63, 2, 3, 0x80));
    assert_eq!(rig.data(at(3, 0), &[0x25], 8), [0, 0, 0, 15, 0, 0, 8, 0]);
    // Modes: the cache is on, and the read-only disk says so.
    let modes = rig.data(at(1, 0), &[0x1a, 8, 0x08, 0, 96], 96);
    assert_eq!((modes[0], modes[2] & 0x80, modes[3]), (23, 0, 0));
    assert_eq!(modes[4..7], [8, 0x12, 4]);
    let modes = rig.data(at(1, 300), &[0x5a, 0, 0x3f, 0, 0, 0, 0, 0, 200], 200);
    assert_eq!(
        (modes[1] as usize + 2, modes[3] & 0x80, modes[7]),
        (modes.len(), 0x80, 8)
    );
    let modes = rig.data(at(3, 0), &[0x1a, 8, 0x2a, 0, 200], 200);
    assert_eq!((modes[0], modes[4]), (23, 0x2a));
}

#[test]
fn blocks_are_read_and_written_in_all_forms() {
    let mut rig = Rig::new();
    let read: [&[u8]; 4] = [
        &[0x08, 0, 0, 3, 2],
        &[0x28, 0, 0, 0, 0, 3, 0, 0, 2],
        &[0xa8, 0, 0, 0, 0, 3, 0, 0, 0, 2],
        &[0x88, 0, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 2],
    ];
    for command in read {
        assert_eq!(
            rig.data(at(1, 0), command, 1024),
            pattern()[3 * 512..5 * 512]
        );
    }
    // There is room for more than the command reads, and for less.
    assert_eq!(rig.command(at(1, 0), read[1], 0, 4096), good(3072));
    assert_eq!(rig.command(at(1, 0), read[1], 0, 512).response, 1);
    let write: [&[u8]; 4] = [
        &[0x0a, 0, 0, 10, 2],
        &[0x2a, 8, 0, 0, 0, 12, 0, 0, 2],
        &[0xaa, 0, 0, 0, 0, 14, 0, 0, 0, 2],
        &[0x8a, 0, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 2],
    ];
    let mut expected = pattern();
    for (number, command) in (0..).zip(write) {
        rig.driver.poke(DATA, &[0xa0 + number; 1024]);
        assert_eq!(rig.command(at(1, 0), command, 1024, 0), good(0));
        let start = (10 + 2 * usize::from(number)) * 512;
        expected[start..start + 1024].fill(0xa0 + number);
    }
    assert_eq!(rig.content(), expected);
    // Large transfers, whose memory is lent to the host.
    assert_eq!(
        rig.data(at(1, 0), &[0x28, 0, 0, 0, 0, 0, 0, 0, 64], 32768),
        expected
    );
    rig.driver.poke(DATA, &pattern());
    assert_eq!(
        rig.command(at(1, 0), &[0x2a, 0, 0, 0, 0, 0, 0, 0, 64], 32768, 0),
        good(0)
    );
    assert_eq!(rig.content(), pattern());
    // A disc has sectors of 2048 bytes.
    assert_eq!(
        rig.data(at(3, 0), &[0x28, 0, 0, 0, 0, 1, 0, 0, 1], 2048),
        pattern()[2048..4096]
    );
    assert_eq!(
        rig.data(at(3, 0), &[0x08, 0, 0, 15, 1], 2048),
        pattern()[30720..]
    );
    let contents = rig.data(at(3, 0), &[0x43, 0, 0, 0, 0, 0, 0, 0, 20], 20);
    assert_eq!(contents[2..4], [1, 1]);
    let profile = rig.data(at(3, 0), &[0x46, 0, 0, 0, 0, 0, 0, 0, 8], 8);
    assert_eq!(profile[6..], [0, 8]);
}

#[test]
fn what_cannot_be_done_has_a_reason() {
    let mut rig = Rig::new();
    let mut sense = |address, command: &[u8], out, room| {
        let outcome = rig.command(address, command, out, room);
        assert_eq!(outcome.response, 0);
        outcome.sense.unwrap()
    };
    let out_of_range = (5, 0x21);
    assert_eq!(
        sense(at(1, 0), &[0x28, 0, 0, 0, 0, 63, 0, 0, 2], 0, 1024),
        out_of_range
    );
    assert_eq!(
        sense(at(1, 0), &[0x2a, 0, 255, 255, 255, 255, 0, 0, 2], 1024, 0),
        out_of_range
    );
    let far = [0x88, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 1];
    assert_eq!(sense(at(1, 0), &far, 0, 512), out_of_range);
    assert_eq!(
        sense(at(3, 0), &[0x28, 0, 0, 0, 0, 16, 0, 0, 1], 0, 2048),
        out_of_range
    );
    assert_eq!(
        sense(at(1, 300), &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], 512, 0),
        (7, 0x27)
    );
    assert_eq!(sense(at(1, 0), &[0xff], 0, 0), (5, 0x20));
    assert_eq!(
        sense(at(3, 0), &[0x2a, 0, 0, 0, 0, 0, 0, 0, 1], 2048, 0),
        (5, 0x20)
    );
    assert_eq!(sense(at(4, 0), &[0], 0, 0), (2, 0x3a));
    assert_eq!(
        sense(at(4, 0), &[0x28, 0, 0, 0, 0, 0, 0, 0, 1], 0, 2048),
        (2, 0x3a)
    );
    // REQUEST SENSE: the reasons were sent before.
    assert_eq!(rig.data(at(1, 0), &[3, 0, 0, 0, 18], 18)[2], 0);
    assert!(!rig.driver.needs_reset());
}

#[test]
fn the_reason_for_an_error_of_the_host_is_the_medium() {
    let mut rig = Rig::new();
    std::fs::OpenOptions::new()
        .write(true)
        .open(&rig.disk.0)
        .unwrap()
        .set_len(512)
        .unwrap();
    // A raw image that became shorter reads as zeros or fails; neither harms the controller.
    let outcome = rig.command(at(1, 0), &[0x28, 0, 0, 0, 0, 3, 0, 0, 1], 0, 512);
    assert_eq!(outcome.response, 0);
    assert!(outcome.sense.is_none() || outcome.sense == Some((3, 0x11)));
}

#[test]
fn ranges_are_zeroed_filled_and_discarded() {
    let mut rig = Rig::new();
    let mut expected = pattern();
    // WRITE SAME with zeros, with a pattern, and without data.
    rig.driver.poke(DATA, &[0; 512]);
    assert_eq!(
        rig.command(at(1, 0), &[0x41, 0, 0, 0, 0, 8, 0, 0, 8], 512, 0),
        good(512)
    );
    expected[8 * 512..16 * 512].fill(0);
    rig.driver.poke(DATA, &[0x5a; 512]);
    rig.command(
        at(1, 0),
        &[0x93, 0, 0, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 3],
        512,
        0,
    );
    expected[20 * 512..23 * 512].fill(0x5a);
    rig.command(
        at(1, 0),
        &[0x93, 1, 0, 0, 0, 0, 0, 0, 0, 30, 0, 0, 0, 1],
        0,
        0,
    );
    expected[30 * 512..31 * 512].fill(0);
    assert_eq!(rig.content(), expected);
    let list = |first: u8, count: u8| {
        let mut list = vec![0, 22, 0, 16, 0, 0, 0, 0];
        list.extend([0, 0, 0, 0, 0, 0, 0, first, 0, 0, 0, count, 0, 0, 0, 0]);
        list
    };
    let unmap = [0x42, 0, 0, 0, 0, 0, 0, 0, 24];
    rig.driver.poke(DATA, &list(40, 8));
    assert_eq!(rig.command(at(1, 0), &unmap, 24, 0), good(24));
    assert_eq!(rig.content()[48 * 512..], expected[48 * 512..]);
    rig.driver.poke(DATA, &list(60, 8));
    assert_eq!(rig.command(at(1, 0), &unmap, 24, 0).sense, Some((5, 0x21)));
    assert_eq!(rig.command(at(1, 0), &unmap, 20, 0).sense, Some((5, 0x26)));
    rig.driver.poke(DATA, &list(40, 8));
    assert_eq!(
        rig.command(at(1, 300), &unmap, 24, 0).sense,
        Some((5, 0x20))
    );
}

#[test]
fn tasks_are_managed() {
    let mut rig = Rig::new();
    let disk = [1, 1, 0x40, 0, 0, 0, 0, 0];
    for (function, answer) in [(0, 0), (1, 0), (2, 0), (3, 0), (6, 0), (7, 0), (8, 11)] {
        assert_eq!(rig.manage(disk, function), answer, "{function}");
    }
    assert_eq!(rig.manage([1, 1, 0x40, 5, 0, 0, 0, 0], 0), 12);
    assert_eq!(rig.manage([1, 9, 0x40, 0, 0, 0, 0, 0], 0), 3);
    assert_eq!(rig.manage([0; 8], 0), 3);
    // A reset of the unit concerns no other; one of the target does.
    assert_eq!(rig.manage(disk, 5), 0);
    assert_eq!(rig.command(at(1, 300), &[0], 0, 0), good(0));
    assert_eq!(rig.command(at(1, 0), &[0], 0, 0).sense, Some((6, 0x29)));
    assert_eq!(rig.command(at(1, 0), &[0], 0, 0), good(0));
    assert_eq!(rig.manage(disk, 4), 0);
    assert_eq!(rig.command(at(1, 300), &[0], 0, 0).sense, Some((6, 0x29)));
}

#[test]
fn requests_without_room_for_their_headers_need_a_reset() {
    for (readable, writable) in [(50, 108), (51, 107), (8, 8)] {
        let mut rig = Rig::new();
        rig.driver.descriptor(0, HEADER, readable, NEXT, 1);
        rig.driver.descriptor(1, STATUS, writable, WRITE, 0);
        rig.driver.offer_to(REQUESTS, 0);
        assert!(rig.driver.needs_reset());
    }
    let mut rig = Rig::new();
    rig.control(12);
    assert!(rig.driver.needs_reset());
    // Data in both directions.
    let mut rig = Rig::new();
    rig.driver.poke(HEADER, &[0; 51]);
    rig.driver.descriptor(0, HEADER, 151, NEXT, 1);
    rig.driver.descriptor(1, STATUS, 208, WRITE, 0);
    rig.driver.offer_to(REQUESTS, 0);
    rig.driver.wait();
    assert_eq!(rig.answer().response, 9);
}
