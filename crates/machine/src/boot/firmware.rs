//! Starting from firmware: its image becomes a ROM, and the processor begins at the reset vector.
//!
//! Firmware reads the description of the machine through fw_cfg: the memory map, and the ACPI
//! tables with a script for their placement in memory ([`crate::acpi::loader`]).

use super::BootError;
use super::e820::{MemoryKind, MemoryRange};
use super::files::read_file;
use crate::config::VmConfig;
use crate::devices::chipset::rom::FirmwareRom;
use crate::devices::fw_cfg::FwCfgFile;
use crate::devices::fw_cfg::kernel::FirmwareKernel;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use tollgate_memory::layout::HIGH_RAM_START;
use tollgate_memory::{GuestMemory, PhysicalLayout};
use tollgate_x86::address::PAGE_SIZE;

/// The paths where distributions install SeaBIOS.
const CUSTOMARY_PLACES: [&str; 3] = [
    "/usr/share/seabios/bios-256k.bin",
    "/usr/share/qemu/bios-256k.bin",
    "/usr/share/seabios/bios.bin",
];

/// The paths where distributions install the firmware of the display adapter.
const VIDEO_PLACES: [&str; 2] = [
    "/usr/share/seabios/vgabios-stdvga.bin",
    "/usr/share/qemu/vgabios-stdvga.bin",
];
/// The fw_cfg file in which SeaBIOS looks for the firmware of this vendor and device.
pub const VIDEO_FILE: &str = "pci1234,1111.rom";

/// Returns the path of the firmware that is installed on this host.
///
/// # Errors
/// No firmware is installed. The message lists the paths that were searched.
pub fn find() -> Result<PathBuf, String> {
    let places = CUSTOMARY_PLACES.iter().map(PathBuf::from);
    places.clone().find(|place| place.is_file()).ok_or_else(|| {
        format!(
            "no firmware at {}: install the package 'seabios', or give an image with --bios FILE",
            CUSTOMARY_PLACES[0]
        )
    })
}

/// Returns the path of the display adapter's firmware that is installed on this host.
pub fn find_video_path() -> Option<PathBuf> {
    let mut places = VIDEO_PLACES.iter().map(PathBuf::from);
    places.find(|place| place.is_file())
}

/// Returns the display adapter's firmware that is installed on this host, as the file in which
/// SeaBIOS looks for it. Without it the display stays unused until the operating system uses it.
pub fn find_video() -> Option<FwCfgFile> {
    let content = std::fs::read(find_video_path()?).ok()?;
    Some(FwCfgFile {
        name: VIDEO_FILE.into(),
        content,
    })
}

/// Reads an image and places it at the top of the first 4 GiB. The chip set also shows its last
/// part below 1 MiB.
///
/// # Errors
/// [`BootError`]: the file cannot be read, or cannot be a ROM.
pub fn load(path: &Path, memory: &mut GuestMemory) -> Result<FirmwareRom, BootError> {
    let bad = |size| BootError::FirmwareSize {
        path: path.to_owned(),
        size,
    };
    let image = read_file("--bios", path, FirmwareRom::MAX_BYTES, bad)?;
    let bytes = image.len() as u64;
    if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE) {
        return Err(bad(bytes));
    }
    let host = |reason: String| BootError::Unreadable {
        flag: "--bios",
        path: path.to_owned(),
        reason,
    };
    let block = memory
        .new_block(bytes)
        .map_err(|error| host(error.to_string()))?;
    memory
        .write_block(block, 0, &image)
        .map_err(|error| host(error.to_string()))?;
    let rom = FirmwareRom { block, bytes };
    rom.place_at_top(memory)
        .map_err(|error| host(error.to_string()))?;
    Ok(rom)
}

/// Whether a file begins with a volume of UEFI firmware.
pub fn is_uefi(path: &Path) -> bool {
    let mut head = [0; 44];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut head));
    read.is_ok() && head[40..] == *b"_FVH"
}

/// Reads the kernel that firmware loads, if the machine has both.
///
/// # Errors
/// [`BootError`]: the firmware is not UEFI firmware, or a file cannot be read.
pub fn kernel(config: &VmConfig) -> Result<Option<FirmwareKernel>, BootError> {
    let Some(firmware) = &config.firmware else {
        return Ok(None);
    };
    if config.kernel.as_os_str().is_empty() {
        return Ok(None);
    }
    if !is_uefi(firmware) {
        return Err(BootError::NotUefi {
            path: firmware.clone(),
        });
    }
    let memory = config.memory_bytes;
    let too_large = |needed| BootError::TooLittleMemory { needed, memory };
    let initrd = match (&config.initrd, &config.initramfs) {
        (Some(path), _) => read_file("--initrd", Path::new(path), memory, too_large)?,
        (None, Some(bytes)) => bytes.to_vec(),
        (None, None) => Vec::new(),
    };
    Ok(Some(FirmwareKernel {
        kernel: read_file("--kernel", &config.kernel, memory, too_large)?,
        initrd,
        command_line: config.append.clone(),
    }))
}

/// Returns the memory map for firmware, which contains all RAM. Firmware reserves what it uses
/// itself.
pub fn memory_map(layout: &PhysicalLayout) -> Vec<MemoryRange> {
    [
        (0, layout.low_bytes()),
        (HIGH_RAM_START, layout.high_bytes()),
    ]
    .into_iter()
    .filter(|(_, size)| *size > 0)
    .map(|(start, size)| MemoryRange {
        start,
        size,
        kind: MemoryKind::Usable,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_x86::PhysicalAddress;

    fn loaded(name: &str, image: &[u8]) -> (GuestMemory, Result<FirmwareRom, BootError>) {
        let name = format!("tollgate-firmware-{}-{name}.bin", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, image).unwrap();
        let mut memory = GuestMemory::new(2 << 20).unwrap();
        let rom = load(&path, &mut memory);
        std::fs::remove_file(path).unwrap();
        (memory, rom)
    }

    #[test]
    fn an_image_ends_where_the_processor_begins() {
        let mut image = vec![0; 0x1_1000];
        image[0x1_0ff0..0x1_0ff4].copy_from_slice(b"last");
        let (memory, rom) = loaded("fits", &image);
        let rom = rom.unwrap();
        assert_eq!(
            memory.read_u32(PhysicalAddress(0xffff_fff0)),
            u32::from_le_bytes(*b"last")
        );
        assert_eq!(rom.copy_start(), 0xe_f000);
        assert_eq!(rom.offset_of_copy(0xf_0000), 0x1000);
    }

    #[test]
    fn what_cannot_be_a_rom_is_refused_with_its_name() {
        for size in [0, 4095, 4097, (16 << 20) + 4096] {
            let (_, rom) = loaded(&size.to_string(), &vec![0; size]);
            let message = rom.unwrap_err().to_string();
            assert!(message.contains("tollgate-firmware"), "{message}");
        }
    }

    #[test]
    fn firmware_is_told_of_all_ram() {
        let map = memory_map(&PhysicalLayout::new(4 << 30));
        let ranges: Vec<_> = map.iter().map(|range| (range.start, range.size)).collect();
        assert_eq!(ranges, [(0, 3 << 30), (4 << 30, 1 << 30)]);
    }
}
