//! SMBIOS tables (DSP0134, version 2.8): what the machine says of itself, and texts for its guest.
//!
//! Firmware gets them through fw_cfg and puts them where systems look for them. A machine that starts
//! without firmware has them in the area at F0000h, after the ACPI tables.

mod structure;

use crate::devices::fw_cfg::FwCfgFile;
use serde::{Deserialize, Serialize};
use structure::Structure;
use tollgate_memory::GuestMemory;
use tollgate_x86::PhysicalAddress;

/// Where the entry point is in a machine without firmware. Systems search for it on 16-byte boundaries.
const ENTRY_POINT: u64 = 0xf_8000;
/// The size of the entry point in bytes.
const ENTRY_BYTES: usize = 31;
/// The end of the area that systems search.
const AREA_END: u64 = 0x10_0000;
/// Where the structures are in a machine without firmware.
const STRUCTURES: u64 = ENTRY_POINT + 32;
/// The maximum size of all structures in bytes, in a machine with or without firmware.
const MOST_BYTES: usize = (AREA_END - STRUCTURES) as usize;

/// The handle of the chassis, which the board refers to.
const CHASSIS: u16 = 0x300;
/// The handle of the memory array, which memory devices refer to.
const MEMORY_ARRAY: u16 = 0x1000;
/// The handle of what has no structure.
const NO_HANDLE: u16 = 0xfffe;

/// What a part says of itself. An empty text is unknown.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Labels {
    /// Who made it.
    pub manufacturer: String,
    /// The name of the product.
    pub product: String,
    /// The version of the product.
    pub version: String,
    /// The serial number.
    pub serial: String,
    /// The owner's number for it.
    pub asset: String,
    /// The number by which it is ordered.
    pub sku: String,
    /// The name of a group of products.
    pub family: String,
    /// Where it is in the machine.
    pub location: String,
}

/// The tables of a machine.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Smbios {
    /// The firmware: its maker and version. The product is its date.
    pub firmware: Labels,
    /// What the machine as a whole says of itself.
    pub system: Labels,
    /// The machine's identifier, in the order in which it is written.
    pub uuid: [u8; 16],
    /// The main board, if it is described.
    pub board: Option<Labels>,
    /// What encloses the machine.
    pub chassis: Labels,
    /// The processor. The product is its part number.
    pub processor: Labels,
    /// Each piece of memory. The product is its part number.
    pub memory: Labels,
    /// Texts for the guest.
    pub strings: Vec<String>,
}

impl Smbios {
    /// Whether the tables have room where a guest looks for them.
    pub fn fits(&self) -> bool {
        let few_strings = u8::try_from(self.strings.len()).is_ok();
        few_strings && self.structures(0).bytes.len() <= MOST_BYTES
    }

    /// Returns the files by which firmware gets the tables.
    pub fn files(&self, memory_bytes: u64) -> [FwCfgFile; 2] {
        let all = self.structures(memory_bytes);
        let file = |name: &str, content| FwCfgFile {
            name: name.into(),
            content,
        };
        [
            file("etc/smbios/smbios-anchor", all.entry_point(0).to_vec()),
            file("etc/smbios/smbios-tables", all.bytes),
        ]
    }

    /// Writes the tables of a machine without firmware.
    pub fn write(&self, memory_bytes: u64, memory: &mut GuestMemory) {
        let all = self.structures(memory_bytes);
        // Memory that does not extend to 1 MiB has no tables.
        let entry = all.entry_point(STRUCTURES as u32);
        memory.write(PhysicalAddress(ENTRY_POINT), &entry);
        memory.write(PhysicalAddress(STRUCTURES), &all.bytes);
    }

    /// The texts of a part in the order in which most structures have them.
    fn texts(labels: &Labels) -> [&str; 4] {
        [
            &labels.manufacturer,
            &labels.product,
            &labels.version,
            &labels.serial,
        ]
    }

    fn structures(&self, memory_bytes: u64) -> Structures {
        let mut all = Structures::default();
        all.add(self.firmware_structure());
        all.add(self.system_structure());
        if let Some(board) = &self.board {
            let mut it = Structure::new(2, 0x200).texts(&Self::texts(board));
            // A board that hosts other parts, in this chassis.
            it = it.text(&board.asset).bytes(&[1]).text(&board.location);
            all.add(it.word(CHASSIS).bytes(&[0x0a, 0]));
        }
        all.add(self.chassis_structure());
        all.add(self.processor_structure());
        if !self.strings.is_empty() {
            let count = self.strings.len() as u8;
            let mut it = Structure::new(11, 0xe00).bytes(&[count]);
            for text in &self.strings {
                it.name(text);
            }
            all.add(it);
        }
        let kibibytes = memory_bytes >> 10;
        // System memory on the board, with errors of several bits corrected.
        let array = Structure::new(16, MEMORY_ARRAY).bytes(&[1, 3, 6]);
        let array = array.double(u32::try_from(kibibytes).unwrap_or(1 << 31));
        let array = array.word(NO_HANDLE).word(1);
        let exact = if kibibytes >= 1 << 31 {
            memory_bytes
        } else {
            0
        };
        all.add(array.quad(exact));
        all.add(self.memory_structure(memory_bytes >> 20));
        // All of the memory array, from address 0.
        let last = u32::try_from(kibibytes.saturating_sub(1)).unwrap_or(u32::MAX);
        let range = Structure::new(19, 0x1300).double(0).double(last);
        all.add(range.word(MEMORY_ARRAY).bytes(&[1]).quad(0).quad(0));
        // The last boot had no errors.
        all.add(Structure::new(32, 0x2000).bytes(&[0; 7]));
        all.add(Structure::new(127, 0x7f00));
        all
    }

    fn firmware_structure(&self) -> Structure {
        let it = Structure::new(0, 0).text(&self.firmware.manufacturer);
        let it = it.text(&self.firmware.version).word(0xe800);
        let it = it.text(&self.firmware.product).bytes(&[0]);
        // No characteristics are listed; this is a virtual machine; no release, no controller.
        it.quad(8).bytes(&[0, 0x14, 0, 0, 0xff, 0xff])
    }

    fn system_structure(&self) -> Structure {
        let it = Structure::new(1, 0x100).texts(&Self::texts(&self.system));
        // The first three fields of the identifier are little-endian.
        let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
        let it = it.bytes(&order.map(|place: usize| self.uuid[place]));
        // Switched on by its button.
        let it = it.bytes(&[6]).text(&self.system.sku);
        it.text(&self.system.family)
    }

    fn chassis_structure(&self) -> Structure {
        let labels = &self.chassis;
        let it = Structure::new(3, CHASSIS).text(&labels.manufacturer);
        let it = it.bytes(&[1]).text(&labels.version).text(&labels.serial);
        // Its states are safe, its security unknown; nothing is in it that has a structure.
        let it = it.text(&labels.asset).bytes(&[3, 3, 3, 2]).double(0);
        it.bytes(&[0, 0, 0, 0]).text(&labels.sku)
    }

    fn processor_structure(&self) -> Structure {
        let labels = &self.processor;
        let location = match labels.location.as_str() {
            "" => "CPU 0",
            location => location,
        };
        // A central processor of another family.
        let it = Structure::new(4, 0x400).text(location).bytes(&[3, 1]);
        let it = it.text(&labels.manufacturer).quad(0).text(&labels.version);
        // 2000 MHz; enabled in its socket; caches without structures.
        let it = it.bytes(&[0]).word(0).word(2000).word(2000);
        let it = it.bytes(&[0x41, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
        let it = it.text(&labels.serial).text(&labels.asset);
        it.text(&labels.product).bytes(&[1, 1, 1]).word(4).word(1)
    }

    fn memory_structure(&self, mebibytes: u64) -> Structure {
        const IS_EXTENDED: u16 = 0x7fff;
        let labels = &self.memory;
        let location = match labels.location.as_str() {
            "" => "DIMM 0",
            location => location,
        };
        let size = u16::try_from(mebibytes).unwrap_or(IS_EXTENDED);
        let size = size.min(IS_EXTENDED);
        let it = Structure::new(17, 0x1100)
            .word(MEMORY_ARRAY)
            .word(NO_HANDLE);
        let it = it.word(u16::MAX).word(u16::MAX).word(size);
        // A DIMM of RAM.
        let it = it.bytes(&[9, 0]).text(location).text("");
        let it = it.bytes(&[7]).word(2).word(0);
        let it = it.text(&labels.manufacturer).text(&labels.serial);
        let it = it.text(&labels.asset).text(&labels.product).bytes(&[0]);
        let extended = if size == IS_EXTENDED { mebibytes } else { 0 };
        let extended = u32::try_from(extended).unwrap_or(u32::MAX >> 1);
        it.double(extended).word(0).bytes(&[0; 6])
    }
}

/// The structures of a machine, in their order, as bytes.
#[derive(Default)]
struct Structures {
    bytes: Vec<u8>,
    count: u16,
    largest: usize,
}

impl Structures {
    fn add(&mut self, structure: Structure) {
        let bytes = structure.finished();
        self.largest = self.largest.max(bytes.len());
        self.count += 1;
        self.bytes.extend(bytes);
    }

    /// The entry point of version 2.8, for structures at this address.
    fn entry_point(&self, address: u32) -> [u8; ENTRY_BYTES] {
        let mut entry = [0; ENTRY_BYTES];
        entry[..4].copy_from_slice(b"_SM_");
        entry[5..8].copy_from_slice(&[ENTRY_BYTES as u8, 2, 8]);
        let size = |bytes: usize| u16::try_from(bytes).unwrap_or(u16::MAX).to_le_bytes();
        entry[8..10].copy_from_slice(&size(self.largest));
        entry[16..21].copy_from_slice(b"_DMI_");
        entry[22..24].copy_from_slice(&size(self.bytes.len()));
        entry[24..28].copy_from_slice(&address.to_le_bytes());
        entry[28..30].copy_from_slice(&self.count.to_le_bytes());
        entry[30] = 0x28;
        // The sums of the second part and of all of it are 0 modulo 256.
        entry[21] = negative_sum(&entry[16..]);
        entry[4] = negative_sum(&entry);
        entry
    }
}

fn negative_sum(bytes: &[u8]) -> u8 {
    let sum = bytes
        .iter()
        .fold(0, |sum: u8, byte| sum.wrapping_add(*byte));
    sum.wrapping_neg()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The type, the formatted part and the texts of each structure.
    fn parsed(mut bytes: &[u8]) -> Vec<(u8, Vec<u8>, Vec<String>)> {
        let mut all = Vec::new();
        while let [kind, length, ..] = *bytes {
            let (formatted, rest) = bytes.split_at(length.into());
            let end = rest.windows(2).position(|pair| pair == [0, 0]).unwrap();
            let texts = rest[..end].split(|byte| *byte == 0);
            let texts = texts.map(|text| String::from_utf8(text.to_vec()).unwrap());
            all.push((kind, formatted.to_vec(), texts.collect()));
            bytes = &rest[end + 2..];
        }
        all
    }

    #[test]
    fn structures_have_the_lengths_of_their_version_and_their_texts() {
        let labels = |name: &str| Labels {
            manufacturer: name.into(),
            serial: "1".into(),
            ..Labels::default()
        };
        let smbios = Smbios {
            system: labels("system"),
            board: Some(labels("board")),
            uuid: *b"\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f\x10",
            strings: vec!["a=1".into(), "b=2".into()],
            ..Smbios::default()
        };
        assert!(smbios.fits());
        let [anchor, tables] = smbios.files(6 << 30);
        let sum = |bytes: &[u8]| bytes.iter().fold(0, |sum: u8, it| sum.wrapping_add(*it));
        assert_eq!((sum(&anchor.content), sum(&anchor.content[16..])), (0, 0));
        let all = parsed(&tables.content);
        assert_eq!(anchor.content[28], all.len() as u8);
        let lengths: Vec<_> = all.iter().map(|it| (it.0, it.1.len())).collect();
        let expected = [
            (0, 24),
            (1, 27),
            (2, 15),
            (3, 22),
            (4, 42),
            (11, 5),
            (16, 23),
            (17, 40),
            (19, 31),
            (32, 11),
            (127, 4),
        ];
        assert_eq!(lengths, expected);
        assert_eq!(all[1].2, ["system", "1"]);
        assert_eq!(&all[1].1[4..9], &[1, 0, 0, 2, 4]);
        assert_eq!(all[5].2, ["a=1", "b=2"]);
        // 6 GiB in mebibytes.
        assert_eq!(&all[7].1[12..14], &6144u16.to_le_bytes());
    }

    #[test]
    fn too_many_texts_do_not_fit() {
        let strings = |count, bytes| Smbios {
            strings: vec!["x".repeat(bytes); count],
            ..Smbios::default()
        };
        assert!(strings(255, 100).fits());
        assert!(!strings(256, 1).fits());
        assert!(!strings(1, 40_000).fits());
    }
}
