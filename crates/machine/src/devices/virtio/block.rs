//! The block device (5.2): a disk image with a queue.
//!
//! A request is checked when the driver makes it available, and executed by the image's thread.
//! Requests are executed in the order in which they came. The data of a small request is copied out
//! when it is checked, or copied in after the thread has reported that it is done. The guest RAM of
//! a large request is lent to the thread, which passes it to the host's system calls.

use super::block_work::Work;
use super::chain::Chain;
use super::device::{Queues, VirtioDevice};
use super::device_type;
use super::drive_change::{DriveChange, SizedDrive};
use super::queue::QueueError;
use crate::bus::completion::Completer;
use crate::devices::medium::Medium;
use std::collections::HashMap;
use tollgate_disk::{DiskError, DriveOptions, Image, Operation, Outcome};
use tollgate_memory::Filling;

/// Features (5.2.3).
mod feature {
    pub const SIZE_MAX: u64 = 1 << 1;
    pub const SEG_MAX: u64 = 1 << 2;
    pub const READ_ONLY: u64 = 1 << 5;
    pub const BLOCK_SIZE: u64 = 1 << 6;
    pub const FLUSH: u64 = 1 << 9;
    pub const TOPOLOGY: u64 = 1 << 10;
    pub const DISCARD: u64 = 1 << 13;
    pub const WRITE_ZEROES: u64 = 1 << 14;
}

/// Types of requests (5.2.6).
mod request {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const FLUSH: u32 = 4;
    pub const GET_ID: u32 = 8;
    pub const DISCARD: u32 = 11;
    pub const WRITE_ZEROES: u32 = 13;
}

/// The status of a finished request (5.2.6).
mod status {
    pub const OK: u8 = 0;
    pub const IO_ERROR: u8 = 1;
    pub const UNSUPPORTED: u8 = 2;
}

/// The unit of all positions, in bytes.
const SECTOR: u64 = 512;
/// The number of descriptors of the queue.
const QUEUE_SIZE: u16 = 256;
/// The size of a request's header in bytes.
const HEADER_BYTES: u64 = 16;
/// The size in bytes of the description of a range that is discarded or zeroed.
const RANGE_BYTES: u64 = 16;
/// Flag of a range: the host may take its storage back.
const RANGE_UNMAP: u32 = 1;
/// The maximum number of segments of a request, in addition to header and status.
const MAX_SEGMENTS: u32 = QUEUE_SIZE as u32 - 2;
/// The maximum size of a segment in bytes.
const MAX_SEGMENT_BYTES: u32 = 128 << 10;
/// The maximum size of a request in bytes. A driver that respects the two limits above sends no
/// longer one.
const MAX_REQUEST_BYTES: u64 = MAX_SEGMENTS as u64 * MAX_SEGMENT_BYTES as u64;
/// If the unfinished requests have this many bytes, no more are taken for now.
const BUSY_BYTES: u64 = 64 << 20;
/// The maximum number of sectors of a range that is discarded or zeroed.
const MAX_RANGE_SECTORS: u32 = (1 << 30) / SECTOR as u32;

/// The size of the configuration in bytes (5.2.4).
const CONFIG_BYTES: usize = 60;

/// An unfinished request.
struct Pending {
    chain: Chain,
    /// The size of the data in bytes, which counts as memory of the host.
    bytes: u64,
    /// Set if the host writes the data directly into guest memory.
    filling: Option<Filling>,
}

/// A block device.
pub struct Block {
    /// The device's number among the disks.
    index: usize,
    name: String,
    features: u64,
    config: [u8; CONFIG_BYTES],
    sectors: u64,
    serial: [u8; DriveOptions::MAX_SERIAL_BYTES],
    /// The image; `None` after a change of images that failed, so that all requests fail.
    medium: Option<Medium>,
    /// The way of the image's completions to the device.
    way: Option<Completer>,
    /// What the image was opened with.
    options: DriveOptions,
    pending: HashMap<u64, Pending>,
    pending_bytes: u64,
}

/// The device's name in saved states, and in lines on standard error about failures of the host.
fn device_name(index: usize, options: &DriveOptions) -> String {
    format!("virtio-blk{index} ({})", options.path.display())
}

fn configuration(image: &Image) -> [u8; CONFIG_BYTES] {
    /// A physical block has 2^3 = 8 sectors. Smaller writes cost the host a read.
    const PHYSICAL_BLOCK_EXPONENT: u8 = 3;
    let mut bytes = [0; CONFIG_BYTES];
    let mut put = |place: usize, value: &[u8]| {
        bytes[place..place + value.len()].copy_from_slice(value);
    };
    put(0, &(image.size() / SECTOR).to_le_bytes());
    put(8, &MAX_SEGMENT_BYTES.to_le_bytes());
    put(12, &MAX_SEGMENTS.to_le_bytes());
    put(20, &(SECTOR as u32).to_le_bytes());
    put(24, &[PHYSICAL_BLOCK_EXPONENT]);
    put(26, &1u16.to_le_bytes());
    // There is one queue.
    put(34, &1u16.to_le_bytes());
    // The limits for discarding and zeroing: sectors and ranges of a request, and for discarding
    // the unit.
    put(36, &MAX_RANGE_SECTORS.to_le_bytes());
    put(40, &1u32.to_le_bytes());
    put(44, &(1u32 << PHYSICAL_BLOCK_EXPONENT).to_le_bytes());
    put(48, &MAX_RANGE_SECTORS.to_le_bytes());
    put(52, &1u32.to_le_bytes());
    put(56, &[1]);
    bytes
}

impl Block {
    /// Opens an image and makes the device with this number for it.
    ///
    /// # Errors
    /// The image cannot be used, or the host starts no thread.
    pub fn open(index: usize, options: &DriveOptions) -> Result<Self, DiskError> {
        let image = tollgate_disk::open(options)?;
        use feature as f;
        let mut features = f::SIZE_MAX | f::SEG_MAX | f::BLOCK_SIZE | f::FLUSH | f::TOPOLOGY;
        features |= match (image.is_writable(), image.discards()) {
            (false, _) => f::READ_ONLY,
            (true, false) => f::WRITE_ZEROES,
            (true, true) => f::WRITE_ZEROES | f::DISCARD,
        };
        let mut padded = [0; DriveOptions::MAX_SERIAL_BYTES];
        for (place, byte) in padded.iter_mut().zip(options.serial.bytes()) {
            *place = byte;
        }
        let (config, sectors) = (configuration(&image), image.size() / SECTOR);
        let name = device_name(index, options);
        let medium = Medium::start(name.clone(), image).map_err(|error| DiskError {
            path: options.path.clone(),
            why: format!("no thread for it: {error}"),
        })?;
        Ok(Self {
            index,
            name,
            features,
            config,
            sectors,
            serial: padded,
            medium: Some(medium),
            way: None,
            options: options.clone(),
            pending: HashMap::new(),
            pending_bytes: 0,
        })
    }

    /// Takes requests as long as there is room for their data.
    fn take_requests(&mut self, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        while self.pending_bytes < BUSY_BYTES {
            let Some(chain) = queues.pop(0)? else {
                return Ok(());
            };
            self.begin(chain, queues)?;
        }
        Ok(())
    }

    fn begin(&mut self, chain: Chain, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        if chain.readable_bytes() < HEADER_BYTES || chain.writable_bytes() == 0 {
            return Err(QueueError::Request);
        }
        let mut header = [0; HEADER_BYTES as usize];
        if !chain.copy_out(queues.memory(), 0, &mut header) {
            return Err(QueueError::NoMemory);
        }
        let [t0, t1, t2, t3, _, _, _, _, s0, s1, s2, s3, s4, s5, s6, s7] = header;
        let kind = u32::from_le_bytes([t0, t1, t2, t3]);
        let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        match self.operation(kind, sector, &chain, queues) {
            Ok(Work {
                operation,
                bytes,
                filling,
            }) => {
                let Some(medium) = &mut self.medium else {
                    return finish(&chain, status::IO_ERROR, &[], queues);
                };
                let tag = medium.send(operation);
                self.pending_bytes += bytes;
                let pending = Pending {
                    chain,
                    bytes,
                    filling,
                };
                self.pending.insert(tag, pending);
                Ok(())
            }
            Err((status, data)) => finish(&chain, status, &data, queues),
        }
    }

    /// Returns the operation on the image for a request. If the request ends immediately, returns
    /// its status and the data for the driver as an error.
    fn operation(
        &self,
        kind: u32,
        sector: u64,
        chain: &Chain,
        queues: &mut Queues<'_>,
    ) -> Result<Work, (u8, Vec<u8>)> {
        let failed = |status| (status, Vec::new());
        let sent = chain.readable_bytes() - HEADER_BYTES;
        let wanted = chain.writable_bytes() - 1;
        let is_read_only = self.features & feature::READ_ONLY != 0;
        if matches!(
            kind,
            request::WRITE | request::DISCARD | request::WRITE_ZEROES
        ) && is_read_only
        {
            return Err(failed(status::IO_ERROR));
        }
        match kind {
            request::READ => {
                let offset = self.place(sector, wanted).ok_or(failed(status::IO_ERROR))?;
                Ok(Work::reading(offset, (chain, 0, wanted), queues.memory()))
            }
            request::WRITE => {
                let offset = self.place(sector, sent).ok_or(failed(status::IO_ERROR))?;
                // A driver that cannot flush assumes that a finished write is on stable storage
                // (5.2.6.2).
                let through = !queues.has_feature(feature::FLUSH);
                let data = (chain, HEADER_BYTES, sent);
                let medium = self.medium.as_ref().ok_or(failed(status::IO_ERROR))?;
                let work = Work::writing((offset, through), data, queues.memory(), |bytes| {
                    medium.buffer(bytes)
                });
                work.ok_or(failed(status::IO_ERROR))
            }
            request::FLUSH => Ok(Work::copied(Operation::Flush, 0)),
            request::GET_ID => Err((status::OK, self.serial.to_vec())),
            request::DISCARD | request::WRITE_ZEROES if self.offers(kind) => {
                let operation = self.range_operation(kind, sent, chain, queues);
                let work = operation.map(|operation| Work::copied(operation, 0));
                work.map_err(failed)
            }
            _ => Err(failed(status::UNSUPPORTED)),
        }
    }

    const fn offers(&self, kind: u32) -> bool {
        let feature = match kind {
            request::DISCARD => feature::DISCARD,
            _ => feature::WRITE_ZEROES,
        };
        self.features & feature != 0
    }

    /// Returns the operation that discards or zeroes the only range of a request, or else the
    /// status with which the request ends.
    fn range_operation(
        &self,
        kind: u32,
        sent: u64,
        chain: &Chain,
        queues: &mut Queues<'_>,
    ) -> Result<Operation, u8> {
        let mut range = [0; RANGE_BYTES as usize];
        let is_one = sent == RANGE_BYTES;
        if !is_one || !chain.copy_out(queues.memory(), HEADER_BYTES, &mut range) {
            return Err(status::IO_ERROR);
        }
        let [
            s0,
            s1,
            s2,
            s3,
            s4,
            s5,
            s6,
            s7,
            n0,
            n1,
            n2,
            n3,
            f0,
            f1,
            f2,
            f3,
        ] = range;
        let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        let sectors = u32::from_le_bytes([n0, n1, n2, n3]);
        let flags = u32::from_le_bytes([f0, f1, f2, f3]);
        let known = if kind == request::DISCARD {
            0
        } else {
            RANGE_UNMAP
        };
        if flags & !known != 0 {
            return Err(status::UNSUPPORTED);
        }
        let is_there = sector
            .checked_add(sectors.into())
            .is_some_and(|end| end <= self.sectors);
        if !is_there || sectors > MAX_RANGE_SECTORS {
            return Err(status::IO_ERROR);
        }
        let (offset, bytes) = (sector * SECTOR, u64::from(sectors) * SECTOR);
        Ok(match kind {
            request::DISCARD => Operation::Discard { offset, bytes },
            _ => Operation::WriteZeroes {
                offset,
                bytes,
                unmap: flags & RANGE_UNMAP != 0,
            },
        })
    }

    /// Returns the offset of `bytes` bytes from a sector on, if they are whole sectors on the disk
    /// and not too many.
    fn place(&self, sector: u64, bytes: u64) -> Option<u64> {
        let end = sector.checked_add(bytes / SECTOR)?;
        let is_there =
            bytes.is_multiple_of(SECTOR) && bytes <= MAX_REQUEST_BYTES && end <= self.sectors;
        is_there.then(|| sector * SECTOR)
    }

    /// Replaces the image, after all requests are done, and announces the new size. The image before
    /// is closed first, because it may be the same file, which only one device may use.
    fn change(&mut self, options: &DriveOptions, queues: &mut Queues<'_>) -> Result<(), String> {
        if let Some(medium) = &self.medium {
            medium.wait();
        }
        self.take_outcomes(queues)
            .map_err(|_| "the guest's driver has broken a rule")?;
        if let Some(medium) = self.medium.take() {
            medium.flush();
        }
        let changed = self.insert(options);
        if changed.is_err() {
            let before = self.options.clone();
            self.insert(&before).map_err(|error| error.to_string())?;
        }
        queues.announce_config();
        changed.map_err(|error| error.to_string())
    }

    /// Gives the image another size, after all requests are done, and announces it.
    fn resize(&mut self, bytes: u64, queues: &mut Queues<'_>) -> Result<(), String> {
        if let Some(medium) = &self.medium {
            medium.wait();
        }
        self.take_outcomes(queues)
            .map_err(|_| "the guest's driver has broken a rule")?;
        let medium = self.medium.as_mut().ok_or("the disk has no image")?;
        medium.resize(bytes)?;
        self.sectors = medium.sectors();
        self.config[..8].copy_from_slice(&self.sectors.to_le_bytes());
        queues.announce_config();
        Ok(())
    }

    fn insert(&mut self, options: &DriveOptions) -> Result<(), DiskError> {
        let name = device_name(self.index, options);
        let mut config = self.config;
        let mut medium = Medium::open_after(name.clone(), options, |image| {
            config = configuration(image);
        })?;
        if let Some(way) = &self.way {
            medium.connect(way.clone());
        }
        self.config = config;
        self.sectors = medium.sectors();
        self.medium = Some(medium);
        self.name = name;
        self.options = options.clone();
        Ok(())
    }

    fn take_outcomes(&mut self, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        let outcomes = self.medium.as_ref().map(Medium::take).unwrap_or_default();
        let mut result = Ok(());
        for outcome in outcomes {
            result = result.and(self.end(&outcome, queues));
        }
        result
    }

    fn end(&mut self, outcome: &Outcome, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        // A request from before a reset has been forgotten.
        let Some(Pending {
            chain,
            bytes,
            filling,
        }) = self.pending.remove(&outcome.tag)
        else {
            return Ok(());
        };
        self.pending_bytes -= bytes;
        let is_filled = filling.is_some();
        // The data must be marked as written before the driver is notified.
        drop(filling);
        match &outcome.result {
            Ok(_) if is_filled => hand_back(&chain, status::OK, bytes, queues),
            Ok(data) => finish(&chain, status::OK, data, queues),
            Err(()) => finish(&chain, status::IO_ERROR, &[], queues),
        }
    }
}

/// Returns a request to the driver, with its data and status. The status is the last byte that the
/// device may write.
fn finish(
    chain: &Chain,
    status: u8,
    data: &[u8],
    queues: &mut Queues<'_>,
) -> Result<(), QueueError> {
    let last = chain.writable_bytes() - 1;
    let data = &data[..data.len().min(usize::try_from(last).unwrap_or(usize::MAX))];
    let is_written = chain.copy_in(queues.memory(), 0, data);
    let status = if is_written { status } else { status::IO_ERROR };
    hand_back(chain, status, data.len() as u64, queues)
}

/// Returns a request to the driver whose `bytes` bytes of data are already in place.
fn hand_back(
    chain: &Chain,
    status: u8,
    bytes: u64,
    queues: &mut Queues<'_>,
) -> Result<(), QueueError> {
    let last = chain.writable_bytes() - 1;
    if !chain.copy_in(queues.memory(), last, &[status]) {
        return Err(QueueError::NoMemory);
    }
    queues.push(0, chain, bytes as u32 + 1)
}

impl VirtioDevice for Block {
    fn name(&self) -> &str {
        &self.name
    }

    fn device_type(&self) -> u16 {
        device_type::BLOCK
    }

    fn features(&self) -> u64 {
        self.features
    }

    fn queue_sizes(&self) -> &[u16] {
        &[QUEUE_SIZE]
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn notify(&mut self, _queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        self.take_requests(queues)
    }

    fn connect(&mut self, completer: Completer) {
        self.way = Some(completer.clone());
        if let Some(medium) = &mut self.medium {
            medium.connect(completer);
        }
    }

    fn complete(&mut self, _token: u64, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        self.take_outcomes(queues)?;
        self.take_requests(queues)
    }

    fn change_drive(
        &mut self,
        change: &DriveChange,
        queues: &mut Queues<'_>,
    ) -> Option<Result<(), String>> {
        match change {
            DriveChange::Image { disk, image } if *disk == self.index => {
                Some(self.change(image, queues))
            }
            DriveChange::Size {
                drive: SizedDrive::Disk(disk),
                bytes,
            } if *disk == self.index => Some(self.resize(*bytes, queues)),
            _ => None,
        }
    }

    fn has_pending_work(&self) -> bool {
        self.medium.as_ref().is_some_and(Medium::has_pending_work)
    }

    fn flush(&self) {
        if let Some(medium) = &self.medium {
            medium.flush();
        }
    }

    fn reset(&mut self) {
        // From now on the driver may reuse its memory. The thread must no longer access the parts
        // that were lent to it, and above all must not write their new contents to the disk.
        if let Some(medium) = &self.medium {
            medium.wait();
        }
        self.pending.clear();
        self.pending_bytes = 0;
    }
}
