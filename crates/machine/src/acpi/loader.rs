//! The ACPI tables as firmware receives them: two files, and a script of commands for their
//! placement (QEMU's "BIOS linker/loader", hw/acpi/bios-linker-loader.c).
//!
//! ```text
//!   etc/acpi/tables   all tables, with pointers that count from the file's start
//!   etc/acpi/rsdp     the root pointer
//!   etc/table-loader  allocate both; add an address to each pointer; recompute each checksum
//! ```

use super::{Hardware, Layout, RSDP_BYTES, layout, root_pointer};
use crate::devices::fw_cfg::FwCfgFile;
use crate::devices::fw_cfg::own_file::{
    ACPI_ROOT_POINTER as ROOT_POINTER, ACPI_SCRIPT as SCRIPT, ACPI_TABLES as TABLES,
};

/// The size of a command, and of a name in it, in bytes.
const COMMAND_BYTES: usize = 128;
const NAME_BYTES: usize = 56;
/// The kinds of commands.
const ALLOCATE: u32 = 1;
const ADD_POINTER: u32 = 2;
const ADD_CHECKSUM: u32 = 3;
/// Where to allocate: anywhere, or between F0000h and 1 MiB, where systems search for root
/// pointers.
const HIGH: u8 = 1;
const LOW: u8 = 2;

/// The offset of the checksum in every table.
const TABLE_CHECKSUM: u32 = 9;

/// Returns the files for a machine with this hardware.
pub fn files(hardware: &Hardware) -> Vec<FwCfgFile> {
    let Layout {
        mut bytes,
        pointers,
        tables,
        rsdt,
        xsdt,
    } = layout(hardware, 0);
    let mut script = Script::default();
    script.allocate(ROOT_POINTER, 16, LOW);
    script.allocate(TABLES, 64, HIGH);
    for (offset, size) in pointers {
        script.add_pointer(TABLES, offset, size);
    }
    for (start, length) in tables {
        // Some firmware counts the checksum that is there.
        bytes[(start + TABLE_CHECKSUM) as usize] = 0;
        script.add_checksum(TABLES, start + TABLE_CHECKSUM, start, length);
    }
    let mut root = root_pointer(rsdt, xsdt);
    debug_assert_eq!(root.len(), RSDP_BYTES as usize);
    script.add_pointer(ROOT_POINTER, 16, 4);
    script.add_pointer(ROOT_POINTER, 24, 8);
    // The checksum bytes themselves count as zero.
    root[8] = 0;
    root[32] = 0;
    script.add_checksum(ROOT_POINTER, 8, 0, 20);
    script.add_checksum(ROOT_POINTER, 32, 0, RSDP_BYTES);
    let file = |name: &str, content| FwCfgFile {
        name: name.into(),
        content,
    };
    vec![
        file(ROOT_POINTER, root),
        file(TABLES, bytes),
        file(SCRIPT, script.0),
    ]
}

#[derive(Default)]
struct Script(Vec<u8>);

impl Script {
    fn command(&mut self, kind: u32, parts: &[&[u8]]) {
        let end = self.0.len() + COMMAND_BYTES;
        self.0.extend(kind.to_le_bytes());
        for part in parts {
            self.0.extend(*part);
        }
        self.0.resize(end, 0);
    }

    fn allocate(&mut self, file: &str, alignment: u32, zone: u8) {
        self.command(ALLOCATE, &[&name(file), &alignment.to_le_bytes(), &[zone]]);
    }

    /// Emits a command that adds the address of the tables' file to the pointer in `file`.
    fn add_pointer(&mut self, file: &str, offset: u32, size: u8) {
        let parts: [&[u8]; 4] = [&name(file), &name(TABLES), &offset.to_le_bytes(), &[size]];
        self.command(ADD_POINTER, &parts);
    }

    fn add_checksum(&mut self, file: &str, offset: u32, start: u32, length: u32) {
        let parts: [&[u8]; 4] = [
            &name(file),
            &offset.to_le_bytes(),
            &start.to_le_bytes(),
            &length.to_le_bytes(),
        ];
        self.command(ADD_CHECKSUM, &parts);
    }
}

fn name(file: &str) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    name[..file.len()].copy_from_slice(file.as_bytes());
    name
}

#[cfg(test)]
mod tests {
    use super::super::Windows;
    use super::*;

    /// Executes the script as firmware does, with the tables at `base`. Returns the tables and the
    /// root pointer.
    fn linked(hardware: &Hardware, base: u32) -> (Vec<u8>, Vec<u8>) {
        let files = files(hardware);
        let (mut root, mut tables) = (files[0].content.clone(), files[1].content.clone());
        for command in files[2].content.chunks(COMMAND_BYTES) {
            let number = |at: usize| u32::from_le_bytes(command[at..at + 4].try_into().unwrap());
            let file = if command[4..].starts_with(ROOT_POINTER.as_bytes()) {
                &mut root
            } else {
                &mut tables
            };
            match number(0) {
                ALLOCATE => assert!(matches!(command[64], HIGH | LOW)),
                ADD_POINTER => {
                    let at = number(116) as usize;
                    let old = u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
                    file[at..at + 4].copy_from_slice(&(old + base).to_le_bytes());
                    assert!(matches!(command[120], 4 | 8));
                }
                ADD_CHECKSUM => {
                    let (at, start) = (number(60) as usize, number(64) as usize);
                    let bytes = &file[start..start + number(68) as usize];
                    let sum = bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
                    // SeaBIOS subtracts the sum from what is there, OVMF from zero.
                    assert_eq!(file[at], 0);
                    file[at] = file[at].wrapping_sub(sum);
                }
                other => panic!("{other}"),
            }
        }
        (tables, root)
    }

    #[test]
    fn linked_by_firmware_they_are_what_is_laid_out_for_that_place() {
        let hardware = Hardware {
            pci_functions: Some(5),
            hot_plug_slots: !0x3f,
            virtio_mmio: 0,
            hpet: true,
            generation_id: true,
            before_pci: 0,
            firmware: true,
            windows: Some(Windows {
                low: 2 << 30,
                high: 32 << 30,
            }),
        };
        const BASE: u32 = 0x7fe_1000;
        let (tables, root) = linked(&hardware, BASE);
        let expected = layout(&hardware, BASE);
        assert_eq!(tables, expected.bytes);
        assert_eq!(root, root_pointer(expected.rsdt, expected.xsdt));
    }
}
