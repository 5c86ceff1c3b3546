//! Shared parts of the function's tests: a function with its units, and the accesses of a driver.

use super::pci::IdeFunction;
use super::{CdDrive, Disk, Unit};
use crate::bus::testing::Bench;
use crate::devices::pci::function::PciFunction;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tollgate_disk::DriveOptions;

/// The maximum time that the image's thread may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of sectors of each image.
pub const SECTORS: usize = 2048;

/// Returns the contents of a 512-byte sector.
pub fn pattern(sector: usize) -> Vec<u8> {
    let byte = |index: usize| (sector * 5 + index * 3 + (index >> 8)) as u8;
    (0..512).map(byte).collect()
}

/// Creates a file of this number of sectors. The caller must remove it.
pub fn new_image(sectors: usize) -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tollgate-ide-{}-{count}.img", std::process::id());
    let path = std::env::temp_dir().join(name);
    let content: Vec<u8> = (0..sectors).flat_map(pattern).collect();
    std::fs::write(&path, content).unwrap();
    path
}

/// The function on a bench, with its images in files.
pub struct Rig {
    pub bench: Bench,
    pub function: IdeFunction,
    pub images: Vec<PathBuf>,
}

impl Rig {
    /// Makes the function with this number of disks on the first channel.
    pub fn with_disks(disks: usize) -> Self {
        let images: Vec<PathBuf> = (0..disks).map(|_| new_image(SECTORS)).collect();
        let mut units = <[Option<Unit>; IdeFunction::PLACES]>::default();
        for (unit, image) in units.iter_mut().zip(&images) {
            let disk = Disk::open("disk".into(), &DriveOptions::new(image), None).unwrap();
            *unit = Some(Unit::Disk(disk));
        }
        Self::new(units, images)
    }

    /// Makes the function with a CD-ROM drive as its first unit, which is empty or has a disc of
    /// this number of 512-byte sectors.
    pub fn with_cd_drive(disc: Option<usize>) -> Self {
        let images: Vec<PathBuf> = disc.into_iter().map(new_image).collect();
        let options = images.first().map(DriveOptions::new);
        let drive = CdDrive::open("cd".into(), options.as_ref()).unwrap();
        Self::new([Some(Unit::CdDrive(drive)), None, None, None], images)
    }

    fn new(units: [Option<Unit>; IdeFunction::PLACES], images: Vec<PathBuf>) -> Self {
        let mut rig = Self {
            bench: Bench::new(),
            function: IdeFunction::new(units),
            images,
        };
        // Enables I/O, memory and bus master.
        rig.config(4, &[7, 0]);
        rig
    }

    pub fn config(&mut self, offset: usize, data: &[u8]) {
        let context = &mut self.bench.context(0);
        self.function.config_write(offset, data, context);
    }

    pub fn read(&mut self, port: u16) -> u8 {
        let mut data = [0];
        let context = &mut self.bench.context(0);
        self.function.port_read(port, &mut data, context);
        data[0]
    }

    pub fn write(&mut self, port: u16, value: u8) {
        let context = &mut self.bench.context(0);
        self.function.port_write(port, &[value], context);
    }

    pub fn master(&mut self, offset: u64, data: &[u8]) {
        let context = &mut self.bench.context(0);
        self.function.bar_write(4, offset, data, context);
    }

    pub fn master_status(&mut self) -> u8 {
        let mut data = [0];
        let context = &mut self.bench.context(0);
        self.function.bar_read(4, 2, &mut data, context);
        data[0]
    }

    /// Waits until the device is not busy, and returns its status.
    pub fn wait(&mut self) -> u8 {
        let end = Instant::now() + PATIENCE;
        loop {
            let context = &mut self.bench.context(0);
            self.function.complete(0, context);
            let status = self.read(0x3f6);
            if status & 0x80 == 0 {
                return status;
            }
            assert!(Instant::now() < end, "the device stays busy");
            std::thread::yield_now();
        }
    }

    /// Writes a command: device, count, address and code.
    pub fn command(&mut self, device: u8, count: u8, address: u32, code: u8) -> u8 {
        let [low, mid, high, top] = address.to_le_bytes();
        for (port, value) in [
            (6, device | top & 0xf),
            (2, count),
            (3, low),
            (4, mid),
            (5, high),
        ] {
            self.write(0x1f0 + port, value);
        }
        self.write(0x1f7, code);
        self.wait()
    }

    pub fn take(&mut self, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        for word in data.chunks_mut(2) {
            let context = &mut self.bench.context(0);
            self.function.port_read(0x1f0, word, context);
        }
        data
    }

    pub fn give(&mut self, data: &[u8]) {
        for word in data.chunks(4) {
            let context = &mut self.bench.context(0);
            self.function.port_write(0x1f0, word, context);
        }
    }

    pub fn image(&self) -> Vec<u8> {
        std::fs::read(&self.images[0]).unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for image in &self.images {
            let _ = std::fs::remove_file(image);
        }
    }
}
