//! QEMU's firmware configuration device (fw_cfg), limited to its selector and data ports
//! (docs/specs/fw_cfg in QEMU's source). Test kernels and firmware use it to count processors and
//! memory and to find named files.
//!
//! A 16-bit write to port 510h selects an item. Each 8-bit read of port 511h returns its next byte,
//! and zeros after the item's end. An item that does not exist reads as zeros:
//!
//! ```text
//!   out 510h, ax=0005h      the number of processors
//!   in  al, 511h            01h
//!   in  al, 511h            00h
//! ```
//!
//! Items cannot be written. The DMA interface is not implemented, as the item `ID` shows.

use crate::bus::{Claims, Device, DeviceContext, PortWidth, SavedState, StateError};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The selector port: 16 bits, write-only.
const SELECTOR_PORT: u16 = 0x510;
/// The data port: 8 bits.
const DATA_PORT: u16 = 0x511;

/// Selectors of the items that are not files.
mod item {
    /// The characters "QEMU".
    pub const SIGNATURE: u16 = 0x00;
    /// The available interfaces, 32 bits.
    pub const ID: u16 = 0x01;
    /// The size of RAM in bytes, 64 bits.
    pub const MEMORY_SIZE: u16 = 0x03;
    /// The number of processors, 16 bits.
    pub const PROCESSORS: u16 = 0x05;
    /// The number of processors including those that could be added, 16 bits.
    pub const MOST_PROCESSORS: u16 = 0x0f;
    /// The list of files.
    pub const DIRECTORY: u16 = 0x19;
    /// The first file. The others follow it.
    pub const FIRST_FILE: u16 = 0x20;
}

/// Bit of [`item::ID`]: the selector and data ports exist.
const ID_PORTS: u32 = 1 << 0;
/// Bit of a selector: the item will be written.
const SELECTOR_WRITES: u16 = 1 << 14;
/// The size in bytes of a name in the directory, including the terminating zero.
const NAME_BYTES: usize = 56;
/// The number of processors of the machine.
const PROCESSORS: u16 = 1;

/// The names of the machine's own files.
pub mod own_file {
    /// The memory map.
    pub const MEMORY_MAP: &str = "etc/e820";
    /// The ACPI tables, with pointers that count from the file's start.
    pub const ACPI_TABLES: &str = "etc/acpi/tables";
    /// The root pointer of the ACPI tables.
    pub const ACPI_ROOT_POINTER: &str = "etc/acpi/rsdp";
    /// The commands by which firmware places the ACPI tables.
    pub const ACPI_SCRIPT: &str = "etc/table-loader";
    /// All of these.
    pub const ALL: [&str; 4] = [MEMORY_MAP, ACPI_TABLES, ACPI_ROOT_POINTER, ACPI_SCRIPT];
}

/// The maximum number of files that can be added.
pub const MOST_FILES: usize = 256;

/// A file: its name of at most 55 bytes, and its content.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FwCfgFile {
    /// The name, such as `opt/org.example/key`.
    pub name: String,
    /// The bytes that the guest reads.
    pub content: Vec<u8>,
}

/// Why a file cannot be offered to the guest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FwCfgError {
    /// The name does not fit or would end early. It must have 1 to 55 bytes, none of which is zero.
    Name(String),
    /// Another file has this name.
    NameTwice(String),
    /// There are more than [`MOST_FILES`] files.
    TooMany,
}

impl fmt::Display for FwCfgError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(
                formatter,
                "fw_cfg file '{name}': its name must have 1 to {} bytes",
                NAME_BYTES - 1
            ),
            Self::NameTwice(name) if own_file::ALL.contains(&name.as_str()) => {
                write!(formatter, "fw_cfg file '{name}' is the machine's own")
            }
            Self::NameTwice(name) => write!(formatter, "fw_cfg file '{name}' is given twice"),
            Self::TooMany => write!(formatter, "more than {MOST_FILES} fw_cfg files"),
        }
    }
}

impl std::error::Error for FwCfgError {}

/// Checks that a machine can offer these files in addition to its own.
///
/// # Errors
/// Why the first unsuitable file cannot be offered.
pub fn check(files: &[FwCfgFile]) -> Result<(), FwCfgError> {
    if files.len() > MOST_FILES {
        return Err(FwCfgError::TooMany);
    }
    for (index, file) in files.iter().enumerate() {
        let name = &file.name;
        if name.is_empty() || name.len() >= NAME_BYTES || name.contains('\0') {
            return Err(FwCfgError::Name(name.clone()));
        }
        if own_file::ALL.contains(&name.as_str())
            || files[..index].iter().any(|other| other.name == *name)
        {
            return Err(FwCfgError::NameTwice(name.clone()));
        }
    }
    Ok(())
}

/// The fw_cfg device with its items.
#[derive(Clone, Debug)]
pub struct FwCfg {
    /// The selector and the bytes of each item.
    items: Vec<(u16, Vec<u8>)>,
    position: Position,
}

/// The part of the state that the guest changes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Position {
    selector: u16,
    /// The number of bytes of the item that were read.
    offset: u32,
}

impl FwCfg {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// Makes the device of a machine with this number of bytes of RAM. It offers these files. Names
    /// are truncated to 55 bytes.
    pub fn new(memory_bytes: u64, mut files: Vec<FwCfgFile>) -> Self {
        let mut items = vec![
            (item::SIGNATURE, b"QEMU".to_vec()),
            (item::ID, ID_PORTS.to_le_bytes().to_vec()),
            (item::MEMORY_SIZE, memory_bytes.to_le_bytes().to_vec()),
            (item::PROCESSORS, PROCESSORS.to_le_bytes().to_vec()),
            (item::MOST_PROCESSORS, PROCESSORS.to_le_bytes().to_vec()),
        ];
        files.sort_by(|left, right| left.name.cmp(&right.name));
        items.push((item::DIRECTORY, directory(&files)));
        items.extend((item::FIRST_FILE..).zip(files.into_iter().map(|file| file.content)));
        Self {
            items,
            position: Position::default(),
        }
    }

    fn select(&mut self, selector: u16) {
        self.position = Position {
            selector: selector & !SELECTOR_WRITES,
            offset: 0,
        };
    }

    fn next_byte(&mut self) -> u8 {
        let Position { selector, offset } = self.position;
        let item = self.items.iter().find(|(of, _)| *of == selector);
        self.position.offset = offset.saturating_add(1);
        item.and_then(|(_, bytes)| bytes.get(offset as usize))
            .copied()
            .unwrap_or(0)
    }
}

/// Returns the directory: the number of files, then the size, the selector and the name of each,
/// all in big-endian order.
fn directory(files: &[FwCfgFile]) -> Vec<u8> {
    let mut bytes = (files.len() as u32).to_be_bytes().to_vec();
    for (selector, file) in (item::FIRST_FILE..).zip(files) {
        let mut name = file.name.as_bytes().to_vec();
        name.truncate(NAME_BYTES - 1);
        name.resize(NAME_BYTES, 0);
        bytes.extend((file.content.len() as u32).to_be_bytes());
        bytes.extend(selector.to_be_bytes());
        bytes.extend([0; 2]);
        bytes.extend(name);
    }
    bytes
}

impl Device for FwCfg {
    fn name(&self) -> &str {
        "fw-cfg"
    }

    fn claims(&self) -> Claims {
        Claims::none()
            .with_ports(SELECTOR_PORT..=SELECTOR_PORT, PortWidth::Exactly(2))
            .with_byte_ports(DATA_PORT..=DATA_PORT)
    }

    fn port_read(&mut self, port: u16, _size: u8, _context: &mut DeviceContext<'_>) -> u32 {
        match port {
            DATA_PORT => self.next_byte().into(),
            _ => u32::MAX,
        }
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, _context: &mut DeviceContext<'_>) {
        if port == SELECTOR_PORT {
            self.select(value as u16);
        }
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        self.position = Position::default();
    }

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, &self.position)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        self.position = saved.read(Self::STATE_VERSION)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bus::testing::Bench;

    const MEMORY: u64 = 64 << 20;

    fn device(files: &[(&str, &[u8])]) -> FwCfg {
        let files = files.iter().map(|(name, content)| FwCfgFile {
            name: (*name).into(),
            content: content.to_vec(),
        });
        FwCfg::new(MEMORY, files.collect())
    }

    fn read(device: &mut FwCfg, selector: u16, length: usize) -> Vec<u8> {
        let mut bench = Bench::new();
        let mut context = bench.context(0);
        device.port_write(SELECTOR_PORT, 2, selector.into(), &mut context);
        let next = |_| device.port_read(DATA_PORT, 1, &mut context) as u8;
        (0..length).map(next).collect()
    }

    /// Returns the files of the directory: size, selector, name.
    fn files(device: &mut FwCfg) -> Vec<(usize, u16, String)> {
        let count = read(device, 0x19, 4);
        let count = u32::from_be_bytes(count.try_into().unwrap()) as usize;
        let bytes = read(device, 0x19, 4 + 64 * count);
        bytes[4..]
            .chunks(64)
            .map(|entry| {
                let size = u32::from_be_bytes(entry[..4].try_into().unwrap());
                let selector = u16::from_be_bytes(entry[4..6].try_into().unwrap());
                let name = entry[8..].split(|byte| *byte == 0).next().unwrap();
                (
                    size as usize,
                    selector,
                    String::from_utf8(name.to_vec()).unwrap(),
                )
            })
            .collect()
    }

    #[test]
    fn a_test_kernel_finds_signature_processors_and_memory() {
        let mut device = device(&[]);
        assert_eq!(read(&mut device, 0, 6), b"QEMU\0\0");
        assert_eq!(read(&mut device, 1, 4), [1, 0, 0, 0], "no DMA interface");
        assert_eq!(read(&mut device, 3, 9), [0, 0, 0, 4, 0, 0, 0, 0, 0]);
        assert_eq!(read(&mut device, 5, 3), [1, 0, 0]);
        assert_eq!(read(&mut device, 0xf, 3), [1, 0, 0]);
    }

    #[test]
    fn selecting_begins_at_the_start_also_for_writing() {
        let mut device = device(&[]);
        assert_eq!(read(&mut device, 0, 2), b"QE");
        assert_eq!(read(&mut device, 0x4000, 2), b"QE");
        let mut bench = Bench::new();
        device.port_write(DATA_PORT, 1, 0x58, &mut bench.context(0));
        assert_eq!(read(&mut device, 0, 2), b"QE", "read-only");
    }

    #[test]
    fn items_that_are_not_there_read_as_zeros() {
        let mut device = device(&[]);
        for selector in [2, 0x21, 0x3fff, 0x8000, 0x8005, 0xffff] {
            assert_eq!(read(&mut device, selector, 4), [0; 4], "{selector:#x}");
        }
    }

    #[test]
    fn files_are_listed_by_name_with_their_selectors() {
        let long = "x".repeat(80);
        let mut device = device(&[("opt/b", b"second"), ("opt/a", b"first"), (&long, b"")]);
        let list = files(&mut device);
        let names: Vec<&str> = list.iter().map(|file| file.2.as_str()).collect();
        assert_eq!(names, ["opt/a", "opt/b", &long[..55]]);
        assert_eq!((list[0].0, list[0].1), (5, 0x20));
        assert_eq!(read(&mut device, 0x20, 6), b"first\0");
        assert_eq!(read(&mut device, 0x21, 6), b"second");
    }

    #[test]
    fn names_must_fit_and_be_of_one_file_each() {
        let check = |names: &[&str]| {
            let files = names.iter().map(|name| FwCfgFile {
                name: (*name).into(),
                content: Vec::new(),
            });
            super::check(&files.collect::<Vec<_>>())
        };
        let longest = "x".repeat(55);
        assert_eq!(check(&["opt/a", "opt/b", &longest]), Ok(()));
        for bad in ["", "opt/\0", &(longest + "x")] {
            assert_eq!(check(&["a", bad]), Err(FwCfgError::Name(bad.into())));
        }
        for twice in ["etc/e820", "a"] {
            assert_eq!(
                check(&["a", twice]),
                Err(FwCfgError::NameTwice(twice.into()))
            );
        }
        assert_eq!(check(&["a"; MOST_FILES + 1]), Err(FwCfgError::TooMany));
    }

    #[test]
    fn the_position_is_saved_and_reset() {
        let mut device = device(&[]);
        read(&mut device, 0, 1);
        let saved = device.save();
        read(&mut device, 5, 1);
        device.restore(&saved).unwrap();
        let mut bench = Bench::new();
        let next = |device: &mut FwCfg, bench: &mut Bench| {
            device.port_read(DATA_PORT, 1, &mut bench.context(0)) as u8
        };
        assert_eq!(next(&mut device, &mut bench), b'U' - 0x10);
        device.reset(&mut bench.context(0));
        assert_eq!(next(&mut device, &mut bench), b'Q');
    }
}
