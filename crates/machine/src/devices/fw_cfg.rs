//! QEMU's firmware configuration device (fw_cfg, docs/specs/fw_cfg in QEMU's source). Test kernels
//! and firmware use it to count processors and memory, to find named files and to load a kernel.
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
//! Whole items are copied to memory through two more ports ([`dma`]). Items cannot be written.

mod dma;
pub mod kernel;

use crate::bus::{Claims, Device, DeviceContext, PortWidth, SavedState, StateError};
use dma::{CONTROL_READ, CONTROL_SELECT, CONTROL_SKIP, CONTROL_WRITE, Command};
use kernel::FirmwareKernel;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The selector port: 16 bits, write-only.
const SELECTOR_PORT: u16 = 0x510;
/// The data port: 8 bits.
const DATA_PORT: u16 = 0x511;
/// The port of the upper half of the address of a command, and that of the lower half, which begins
/// the command: 32 bits each, big-endian. The upper half's port reads as a signature.
const DMA_PORTS: [u16; 2] = [0x514, 0x518];
/// What [`DMA_PORTS`] read as: "QEMU CFG", of which the first character is the lowest byte.
const DMA_SIGNATURE: [u32; 2] = [u32::from_le_bytes(*b"QEMU"), u32::from_le_bytes(*b" CFG")];

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
/// Bit of [`item::ID`]: items can be copied to memory.
const ID_DMA: u32 = 1 << 1;
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
    /// The upper half of the address of the next command.
    #[serde(default)]
    address_high: u32,
}

impl FwCfg {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// Makes the device of a machine with this number of bytes of RAM. It offers these files, and a
    /// kernel, if firmware is to load one. Names are truncated to 55 bytes.
    pub fn new(
        memory_bytes: u64,
        mut files: Vec<FwCfgFile>,
        kernel: Option<FirmwareKernel>,
    ) -> Self {
        let mut items = vec![
            (item::SIGNATURE, b"QEMU".to_vec()),
            (item::ID, (ID_PORTS | ID_DMA).to_le_bytes().to_vec()),
            (item::MEMORY_SIZE, memory_bytes.to_le_bytes().to_vec()),
            (item::PROCESSORS, PROCESSORS.to_le_bytes().to_vec()),
            (item::MOST_PROCESSORS, PROCESSORS.to_le_bytes().to_vec()),
        ];
        items.extend(kernel.into_iter().flat_map(FirmwareKernel::items));
        files.sort_by(|left, right| left.name.cmp(&right.name));
        items.push((item::DIRECTORY, directory(&files)));
        items.extend((item::FIRST_FILE..).zip(files.into_iter().map(|file| file.content)));
        Self {
            items,
            position: Position::default(),
        }
    }

    fn select(&mut self, selector: u16) {
        self.position.selector = selector & !SELECTOR_WRITES;
        self.position.offset = 0;
    }

    /// Returns the bytes of the item that were not read.
    fn rest(&self) -> &[u8] {
        let Position {
            selector, offset, ..
        } = self.position;
        let item = self.items.iter().find(|(of, _)| *of == selector);
        item.and_then(|(_, bytes)| bytes.get(offset as usize..))
            .unwrap_or(&[])
    }

    fn next_byte(&mut self) -> u8 {
        let byte = self.rest().first().copied().unwrap_or(0);
        self.position.offset = self.position.offset.saturating_add(1);
        byte
    }

    /// Executes the command at an address.
    fn execute(&mut self, address: u64, context: &mut DeviceContext<'_>) {
        let Some(command) = Command::read(address, context.memory()) else {
            return;
        };
        if command.control & CONTROL_SELECT != 0 {
            self.select((command.control >> 16) as u16);
        }
        let is_done = match command.control & (CONTROL_READ | CONTROL_WRITE | CONTROL_SKIP) {
            0 | CONTROL_SKIP => true,
            control if control & CONTROL_READ != 0 => command.fill(self.rest(), context.memory()),
            _ => false,
        };
        let moved = command.length;
        self.position.offset = self.position.offset.saturating_add(moved);
        command.finish(is_done, context.memory());
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
            .with_ports(DMA_PORTS[0]..=DMA_PORTS[0], PortWidth::Exactly(4))
            .with_ports(DMA_PORTS[1]..=DMA_PORTS[1], PortWidth::Exactly(4))
    }

    fn port_read(&mut self, port: u16, _size: u8, _context: &mut DeviceContext<'_>) -> u32 {
        match port {
            DATA_PORT => self.next_byte().into(),
            _ if port == DMA_PORTS[0] => DMA_SIGNATURE[0],
            _ if port == DMA_PORTS[1] => DMA_SIGNATURE[1],
            _ => u32::MAX,
        }
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        if port == SELECTOR_PORT {
            self.select(value as u16);
        } else if port == DMA_PORTS[0] {
            self.position.address_high = value.swap_bytes();
        } else if port == DMA_PORTS[1] {
            let high = std::mem::take(&mut self.position.address_high);
            self.execute(
                u64::from(high) << 32 | u64::from(value.swap_bytes()),
                context,
            );
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
mod tests;
