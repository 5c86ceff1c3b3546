//! A controller with its board, and the accesses of a driver to it.

use crate::board::GuestClock;
use crate::board::dma::DmaControllers;
use crate::bus::testing::Bench;
use crate::bus::{Device, SavedState};
use crate::devices::floppy::{Drive, Floppy, disk_name};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tollgate_disk::DriveOptions;
use tollgate_memory::GuestMemory;
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;

/// The maximum time that the image's thread may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Returns the contents of a sector of each image.
pub fn pattern(sector: usize) -> Vec<u8> {
    let byte = |index: usize| (sector * 7 + index * 3 + (index >> 8)) as u8;
    (0..512).map(byte).collect()
}

/// A file with the pattern, which is removed at the end.
pub struct ImageFile(pub PathBuf);

impl ImageFile {
    pub fn new(kib: usize) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-floppy-{}-{count}.img", std::process::id());
        let path = std::env::temp_dir().join(name);
        let content: Vec<u8> = (0..2 * kib).flat_map(pattern).collect();
        std::fs::write(&path, content).unwrap();
        Self(path)
    }

    fn options(&self) -> DriveOptions {
        DriveOptions::new(&self.0)
    }
}

impl Drop for ImageFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub struct Rig {
    pub bench: Bench,
    pub floppy: Floppy,
    images: Vec<ImageFile>,
    time: u64,
}

impl Rig {
    /// Makes a controller out of reset, whose drives have images of this many KiB.
    pub fn new(drives: &[Option<usize>]) -> Self {
        Self::with(drives, false)
    }

    fn with(drives: &[Option<usize>], readonly: bool) -> Self {
        let mut images = Vec::new();
        let drives = drives.iter().enumerate().map(|(index, kib)| {
            let options = kib.map(|kib| {
                images.push(ImageFile::new(kib));
                let mut options = images.last().unwrap().options();
                options.readonly = readonly;
                options
            });
            Drive::new(disk_name(index, options.as_ref()), options.as_ref()).unwrap()
        });
        let drives = drives.collect();
        let mut bench = Bench::new();
        bench.board.dma = DmaControllers::cascaded();
        let mut rig = Self {
            bench,
            floppy: Floppy::new(drives),
            images,
            time: 0,
        };
        rig.write(0x3f2, 0x1c);
        rig.pass(1_000_000);
        rig
    }

    /// Makes a controller with one drive, prepared as by a driver.
    pub fn ready(kib: usize) -> Self {
        let mut rig = Self::new(&[Some(kib)]);
        rig.prepare();
        rig
    }

    pub fn read_only(kib: usize) -> Self {
        let mut rig = Self::with(&[Some(kib)], true);
        rig.prepare();
        rig
    }

    fn prepare(&mut self) {
        (0..4).for_each(|_| drop(self.command(&[8])));
        self.command(&[3, 0xdf, 2]);
        self.write(0x3f7, 0);
    }

    pub fn read(&mut self, port: u16) -> u8 {
        let context = &mut self.bench.context(0);
        match port {
            0..=0xdf => context.dma().read(port),
            _ => self.floppy.port_read(port, 1, context) as u8,
        }
    }

    pub fn write(&mut self, port: u16, value: u8) {
        let context = &mut self.bench.context(0);
        match port {
            0..=0xdf => context.dma().write(port, value),
            _ => self.floppy.port_write(port, 1, value.into(), context),
        }
    }

    /// Lets guest time pass, and completions of the thread arrive.
    pub fn pass(&mut self, nanoseconds: u64) {
        let end = self.time + nanoseconds;
        while self.time < end {
            let next = self.floppy.deadline(&self.bench.context(0));
            self.time = next.map_or(end, |next| next.0.clamp(self.time, end));
            self.bench.clock = GuestClock::paused_at(GuestTime(self.time), 0);
            let context = &mut self.bench.context(0);
            self.floppy.advance(context);
            self.floppy.complete(0, context);
            let next = self.floppy.deadline(context);
            assert!(
                next.is_none_or(|next| next.0 > self.time),
                "the deadline is in the future"
            );
        }
    }

    pub fn interrupt(&self) -> bool {
        self.floppy.state.irq.level()
    }

    fn wait(&mut self, what: &str, mut reached: impl FnMut(&mut Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !reached(self) {
            assert!(Instant::now() < end, "waited in vain for {what}");
            self.pass(10_000_000);
            std::thread::yield_now();
        }
    }

    pub fn wait_for_interrupt(&mut self) {
        self.wait("an interrupt", |rig| rig.interrupt());
    }

    /// Waits for a value of the main status register.
    pub fn wait_for(&mut self, status: u8) {
        self.wait("a status", |rig| rig.read(0x3f4) == status);
    }

    /// Writes the bytes of a command.
    pub fn send(&mut self, bytes: &[u8]) {
        for byte in bytes {
            assert_eq!(self.read(0x3f4) & 0xc0, 0x80, "ready for a command");
            self.write(0x3f5, *byte);
        }
    }

    /// Returns the bytes of a result, once there are any.
    pub fn result(&mut self) -> Vec<u8> {
        self.wait("a result", |rig| rig.read(0x3f4) & 0xd0 == 0xd0);
        self.rest()
    }

    fn rest(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.read(0x3f4) & 0xd0 == 0xd0 {
            bytes.push(self.read(0x3f5));
        }
        bytes
    }

    /// Writes a command and reads its result, if it has one.
    pub fn command(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.send(bytes);
        self.wait("the end", |rig| rig.read(0x3f4) & 0xf0 != 0x10);
        self.rest()
    }

    pub fn seek(&mut self, drive: u8, cylinder: u8) {
        self.send(&[0x0f, drive, cylinder]);
        self.wait_for_interrupt();
        assert_eq!(self.command(&[8]), [0x20 | drive, cylinder]);
    }

    /// Programs channel 2.
    pub fn dma(&mut self, mode: u8, address: u32, bytes: usize) {
        let count = (bytes - 1) as u16;
        for (port, value) in [
            (0x0a, 6),
            (0x0c, 0),
            (0x0b, mode),
            (0x04, address as u8),
            (0x04, (address >> 8) as u8),
            (0x81, (address >> 16) as u8),
            (0x05, count as u8),
            (0x05, (count >> 8) as u8),
            (0x0a, 2),
        ] {
            self.write(port, value);
        }
    }

    fn guest(&mut self) -> &mut GuestMemory {
        &mut self.bench.board.memory
    }

    pub fn memory(&mut self, address: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        assert!(self.guest().read(PhysicalAddress(address), &mut data));
        data
    }

    pub fn put_memory(&mut self, address: u64, data: &[u8]) {
        assert!(self.guest().write(PhysicalAddress(address), data));
    }

    pub fn image(&self, index: usize) -> Vec<u8> {
        std::fs::read(Path::new(&self.images[index].0)).unwrap()
    }

    /// Replaces the first drive's disk by a new one of this many KiB.
    pub fn change(&mut self, kib: Option<usize>) -> Result<(), String> {
        let options = kib.map(|kib| {
            self.images.push(ImageFile::new(kib));
            self.images.last().unwrap().options()
        });
        self.floppy.change_disk(0, options.as_ref())
    }

    pub fn save(&mut self) -> SavedState {
        self.floppy.save()
    }

    pub fn restore(&mut self, saved: &SavedState) {
        self.floppy.restore(saved).unwrap();
    }
}
