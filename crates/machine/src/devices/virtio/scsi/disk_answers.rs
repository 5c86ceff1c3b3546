//! What a SCSI disk says about itself (SCSI Primary Commands 4; SCSI Block Commands 3). Numbers have
//! their most significant byte first.

use super::unit::Disk;
use crate::devices::medium::SECTOR;

/// The type of a device in INQUIRY: a disk.
pub(super) const TYPE_DISK: u8 = 0;
/// The type of a device in INQUIRY: a CD-ROM drive.
pub(super) const TYPE_CD_ROM: u8 = 5;
/// The type in INQUIRY of a unit that is not there.
const TYPE_ABSENT: u8 = 0x7f;
/// SPC-4, in the standard INQUIRY data.
const VERSION: u8 = 6;
/// The vendor in INQUIRY, padded to its field.
const VENDOR: &[u8; 8] = b"TOLLGATE";
/// A physical block has 2^3 = 8 sectors. Smaller writes cost the host a read.
const PHYSICAL_BLOCK_EXPONENT: u8 = 3;
/// The maximum size of a transfer in blocks.
pub(super) const MAX_TRANSFER_BLOCKS: u32 = (32 << 20) / SECTOR as u32;
/// The maximum number of blocks of a range that is discarded or zeroed.
pub(super) const MAX_RANGE_BLOCKS: u64 = (1 << 30) / SECTOR;

/// Pages of vital product data.
mod page {
    pub const LIST: u8 = 0;
    pub const SERIAL: u8 = 0x80;
    pub const IDENTITY: u8 = 0x83;
    pub const LIMITS: u8 = 0xb0;
    pub const CHARACTERISTICS: u8 = 0xb1;
    pub const PROVISIONING: u8 = 0xb2;
}

/// What INQUIRY says about a unit.
#[derive(Clone, Copy, Debug)]
pub(super) struct Identity<'a> {
    pub(super) kind: u8,
    pub(super) is_removable: bool,
    pub(super) product: &'a str,
    pub(super) serial: &'a str,
}

/// Returns standard INQUIRY data (SPC-4, 6.4.2).
pub(super) fn inquiry(identity: Identity<'_>) -> Vec<u8> {
    let mut data = vec![0; 36];
    data[0] = identity.kind;
    data[1] = u8::from(identity.is_removable) << 7;
    // Response data format 2; 31 bytes follow the fifth; commands are queued.
    (data[2], data[3], data[4], data[7]) = (VERSION, 2, 31, 2);
    data[8..16].copy_from_slice(VENDOR);
    let texts = format!("{:16}{:4}", identity.product, env!("CARGO_PKG_VERSION"));
    data[16..].copy_from_slice(&texts.as_bytes()[..20]);
    data
}

/// Returns the INQUIRY data for a unit that a target does not have.
pub(super) fn absent() -> Vec<u8> {
    let mut data = vec![0; 36];
    (data[0], data[2], data[3], data[4]) = (TYPE_ABSENT, VERSION, 2, 31);
    data
}

/// Returns a page of vital product data, or `None` if there is no such page. Only disks have those
/// about blocks.
pub(super) fn product_data(
    identity: Identity<'_>,
    disk: Option<&Disk>,
    number: u8,
) -> Option<Vec<u8>> {
    let body = match (number, disk) {
        (page::LIST, _) => {
            let mut pages = vec![page::LIST, page::SERIAL, page::IDENTITY];
            if disk.is_some() {
                pages.extend([page::LIMITS, page::CHARACTERISTICS, page::PROVISIONING]);
            }
            pages
        }
        (page::SERIAL, _) => identity.serial.as_bytes().to_vec(),
        (page::IDENTITY, _) => {
            // One designator of the unit in ASCII: the vendor's.
            let name = [
                VENDOR,
                identity.product.as_bytes(),
                identity.serial.as_bytes(),
            ]
            .concat();
            [&[2, 1, 0, name.len() as u8][..], &name].concat()
        }
        (page::LIMITS, Some(disk)) => limits(disk),
        (page::CHARACTERISTICS, Some(_)) => {
            let mut body = vec![0; 60];
            // The medium does not rotate.
            body[1] = 1;
            body
        }
        // Blocks are discarded by UNMAP and by WRITE SAME, thinly.
        (page::PROVISIONING, Some(disk)) => match disk.discards {
            true => vec![0, 0xe0, 2, 0],
            false => vec![0; 4],
        },
        _ => return None,
    };
    let mut data = vec![identity.kind, number];
    data.extend((body.len() as u16).to_be_bytes());
    data.extend(body);
    Some(data)
}

/// The page of block limits (SBC-3, 6.6.4), without its header.
fn limits(disk: &Disk) -> Vec<u8> {
    let mut body = vec![0; 60];
    let mut put = |place: usize, value: u32| {
        body[place..place + 4].copy_from_slice(&value.to_be_bytes());
    };
    put(4, MAX_TRANSFER_BLOCKS);
    if disk.discards {
        put(16, MAX_RANGE_BLOCKS as u32);
        // The number of ranges of one UNMAP, and the unit of discarding.
        put(20, 1);
        put(24, 1 << PHYSICAL_BLOCK_EXPONENT);
    }
    body[32..40].copy_from_slice(&MAX_RANGE_BLOCKS.to_be_bytes());
    body
}

/// The answer to READ CAPACITY (10): the last block and the size of a block.
pub(super) fn capacity_10(disk: &Disk) -> Vec<u8> {
    let last = disk.medium.sectors().saturating_sub(1);
    let last = u32::try_from(last).unwrap_or(u32::MAX);
    [last, SECTOR as u32]
        .iter()
        .flat_map(|it| it.to_be_bytes())
        .collect()
}

/// The answer to READ CAPACITY (16).
pub(super) fn capacity_16(disk: &Disk) -> Vec<u8> {
    let mut data = vec![0; 32];
    let last = disk.medium.sectors().saturating_sub(1);
    data[..8].copy_from_slice(&last.to_be_bytes());
    data[8..12].copy_from_slice(&(SECTOR as u32).to_be_bytes());
    data[13] = PHYSICAL_BLOCK_EXPONENT;
    // Provisioning is managed.
    data[14] = u8::from(disk.discards) << 7;
    data
}

/// The answer to MODE SENSE in its short or long form: one page or all, with their values or, with
/// `of_changes`, a mask of the bits that can be changed, which is empty. `None` if there is no such
/// page.
pub(super) fn mode_pages(
    disk: &Disk,
    is_long: bool,
    with_blocks: bool,
    number: u8,
    of_changes: bool,
) -> Option<Vec<u8>> {
    const ALL: u8 = 0x3f;
    /// Writes can be forced to the medium.
    const FORCED_ACCESS: u8 = 1 << 4;
    let mut caching = vec![0x08, 0x12];
    caching.resize(20, 0);
    // Writes are cached.
    caching[2] = 1 << 2;
    let mut control = vec![0x0a, 0x0a];
    control.resize(12, 0);
    let mut recovery = vec![0x01, 0x0a];
    recovery.resize(12, 0);
    let mut pages = Vec::new();
    for mut page in [recovery, caching, control] {
        if number == ALL || number == page[0] {
            if of_changes {
                page[2..].fill(0);
            }
            pages.extend(page);
        }
    }
    if pages.is_empty() {
        return None;
    }
    let specific = u8::from(!disk.medium.is_writable()) << 7 | FORCED_ACCESS;
    let blocks: Vec<u8> = match with_blocks {
        true => {
            let count = u32::try_from(disk.medium.sectors()).unwrap_or(u32::MAX);
            [count, SECTOR as u32]
                .iter()
                .flat_map(|it| it.to_be_bytes())
                .collect()
        }
        false => Vec::new(),
    };
    let rest = [&*blocks, &*pages].concat();
    let described = blocks.len() as u8;
    let head = match is_long {
        true => {
            let [high, low] = (rest.len() as u16 + 6).to_be_bytes();
            vec![high, low, 0, specific, 0, 0, 0, described]
        }
        false => vec![rest.len() as u8 + 3, 0, specific, described],
    };
    Some([head, rest].concat())
}
