//! The identification of a disk or a packet device (ATA/ATAPI-6, 8.15 and 8.16).

use super::cd_drive::CdDrive;
use super::disk::{Disk, PIECE};

/// The maximum number of sectors of a block of READ MULTIPLE.
pub(super) const MOST_MULTIPLE: u8 = 16;

/// Returns the 512 bytes of IDENTIFY DEVICE.
pub(super) fn identify(disk: &Disk) -> Vec<u8> {
    let mut words = [0u16; 256];
    let settings = &disk.settings;
    let geometry = disk.geometry();
    words[0] = 1 << 6;
    words[1] = geometry.cylinders;
    words[3] = geometry.heads.into();
    // The sizes of a track and of a sector in bytes, for old drivers (ATA-1, 9.9).
    words[4] = 512 * u16::from(geometry.sectors);
    words[5] = 512;
    words[6] = geometry.sectors.into();
    // A look-ahead buffer, its size in 512-byte sectors, and 4 bytes of error correction with READ
    // LONG.
    words[20] = 3;
    words[21] = PIECE as u16;
    words[22] = 4;
    put_names(&mut words, &disk.serial, "TOLLGATE HARDDISK");
    words[47] = 0x8000 | u16::from(MOST_MULTIPLE);
    // IORDY, LBA and DMA are supported.
    words[49] = 1 << 11 | 1 << 9 | 1 << 8;
    words[50] = 1 << 14;
    // PIO mode 2 is the fastest that this word can express.
    words[51] = 2 << 8;
    // Words 54 to 58, 64 to 70 and 88 are valid.
    words[53] = 7;
    let cylinders = disk.cylinders();
    words[54] = cylinders;
    words[55] = settings.heads.into();
    words[56] = settings.sectors.into();
    let capacity = u32::from(cylinders) * u32::from(settings.heads) * u32::from(settings.sectors);
    words[57] = capacity as u16;
    words[58] = (capacity >> 16) as u16;
    if settings.multiple != 0 {
        words[59] = 1 << 8 | u16::from(settings.multiple);
    }
    let small = disk.sectors().min(0x0fff_ffff) as u32;
    words[60] = small as u16;
    words[61] = (small >> 16) as u16;
    put_modes(&mut words, settings.transfer_mode);
    // The supported standards: ATA-3 to ATA/ATAPI-6.
    words[80] = 0x78;
    // Supported are NOP, the write cache, FLUSH CACHE and FLUSH CACHE EXT, and 48 bits of address.
    words[82] = 1 << 14 | 1 << 5;
    words[83] = 1 << 14 | 1 << 13 | 1 << 12 | 1 << 10;
    words[84] = 1 << 14;
    words[85] = 1 << 14 | u16::from(settings.write_cache) << 5;
    words[86] = 1 << 13 | 1 << 12 | 1 << 10;
    words[87] = 1 << 14;
    // The result of a hardware reset: the device number was determined by a jumper.
    words[93] = 1 << 14 | 1;
    for (index, word) in words[100..104].iter_mut().enumerate() {
        *word = (disk.sectors() >> (16 * index)) as u16;
    }
    words.into_iter().flat_map(u16::to_le_bytes).collect()
}

/// Returns the 512 bytes of IDENTIFY PACKET DEVICE.
pub(super) fn identify_packet_device(drive: &CdDrive) -> Vec<u8> {
    let mut words = [0u16; 256];
    // A removable CD-ROM packet device. It accepts the 12 bytes of a packet immediately, without an
    // interrupt.
    words[0] = 2 << 14 | 5 << 8 | 1 << 7 | 2 << 5;
    put_names(&mut words, &drive.serial, "TOLLGATE CD-ROM");
    // IORDY, LBA and DMA are supported.
    words[49] = 1 << 11 | 1 << 9 | 1 << 8;
    // Words 64 to 70 and 88 are valid.
    words[53] = 6;
    put_modes(&mut words, drive.settings.transfer_mode);
    // The supported standards: ATA/ATAPI-4 to ATA/ATAPI-6.
    words[80] = 0x70;
    // DEVICE RESET and PACKET are supported, NOP is not.
    words[82] = 1 << 9 | 1 << 4;
    words[83] = 1 << 14;
    words[84] = 1 << 14;
    words[85] = words[82];
    words[87] = 1 << 14;
    words[93] = 1 << 14 | 1;
    words.into_iter().flat_map(u16::to_le_bytes).collect()
}

/// Stores the serial number, the firmware's revision and the model.
fn put_names(words: &mut [u16; 256], serial: &str, model: &str) {
    let serial = match serial {
        "" => "TG00000001",
        serial => serial,
    };
    put_text(&mut words[10..20], serial);
    put_text(&mut words[23..27], env!("CARGO_PKG_VERSION"));
    put_text(&mut words[27..47], model);
}

/// Stores the supported transfer modes, and which one was selected.
fn put_modes(words: &mut [u16; 256], transfer_mode: u8) {
    let (kind, mode) = (transfer_mode >> 3, transfer_mode & 7);
    let selected = |wanted: u8| if kind == wanted { 0x100 << mode } else { 0 };
    words[63] = 7 | selected(4);
    // PIO modes 3 and 4 with the shortest cycles.
    words[64] = 3;
    words[65..69].fill(120);
    words[88] = 7 | selected(8);
}

/// Stores text padded with blanks. The upper half of a word holds the first of two characters.
fn put_text(words: &mut [u16], text: &str) {
    let mut characters = text.bytes().chain(std::iter::repeat(b' '));
    for word in words {
        let first = characters.next().unwrap_or(b' ');
        *word = u16::from(first) << 8 | u16::from(characters.next().unwrap_or(b' '));
    }
}
