//! The 440FX's host bridge (82441FX data sheet, 3.2). Its programmable attribute map decides, for
//! each part of C0000h to FFFFFh, whether loads and stores reach RAM or the bus with the ROM.
//!
//! ```text
//!   59h  7:4  F0000h-FFFFFh          read enable, write enable in bits 0 and 1
//!   5Ah  3:0  C0000h-C3FFFh          7:4  C4000h-C7FFFh
//!   ...                              of each half of a register
//!   5Fh  3:0  E8000h-EBFFFh          7:4  EC000h-EFFFFh
//! ```
//!
//! Where loads reach the ROM and stores reach RAM, the region is ROM. Its stores come to the bus,
//! and [`PciFunction::fixed_memory_write`] writes them to the RAM beneath.

use super::rom::FirmwareRom;
use crate::bus::DeviceContext;
use crate::devices::pci::config_space::{ConfigSpace, Identity};
use crate::devices::pci::function::PciFunction;
use std::ops::Range;
use tollgate_memory::{Region, RegionKind};
use tollgate_x86::PhysicalAddress;

/// The identity of the host bridge in QEMU's PC, by which firmware and systems recognise it.
const IDENTITY: Identity = Identity {
    vendor: 0x8086,
    device: 0x1237,
    revision: 2,
    class: 0x06_00_00,
    subsystem_vendor: 0x1af4,
    subsystem: 0x1100,
};

/// The first attribute register.
const FIRST_REGISTER: usize = 0x59;

/// The first address of the area that the attribute registers control.
const AREA_START: u64 = 0xc_0000;
/// The first address after the area.
const AREA_END: u64 = 0x10_0000;
/// The first address of the last part, which has a single attribute field.
const LAST_PART: u64 = 0xf_0000;
/// The size of each other part in bytes.
const PART_BYTES: u64 = 0x4000;
/// Attribute bits: loads reach RAM, stores reach RAM.
const READ_ENABLE: u8 = 1;
const WRITE_ENABLE: u8 = 2;

/// The host bridge.
#[derive(Debug)]
pub struct HostBridge440fx {
    config: ConfigSpace,
    rom: Option<FirmwareRom>,
}

impl Default for HostBridge440fx {
    fn default() -> Self {
        let mut config = ConfigSpace::new(&IDENTITY);
        // The registers of the memory and bus controllers also keep what is written, without
        // effect. Among them is that of system management RAM (72h): there is no system management
        // mode.
        config.make_writable(0x50..0xc0);
        Self { config, rom: None }
    }
}

impl HostBridge440fx {
    /// Installs the ROM.
    pub fn set_rom(&mut self, rom: FirmwareRom) {
        self.rom = Some(rom);
    }

    /// Returns the attributes of the part that contains an address of the area.
    fn attributes(&self, address: u64) -> u8 {
        let (register, high) = if address >= LAST_PART {
            (FIRST_REGISTER, true)
        } else {
            let part = ((address - AREA_START) / PART_BYTES) as usize;
            (FIRST_REGISTER + 1 + part / 2, part % 2 == 1)
        };
        let byte = self.config.u16(register) as u8;
        if high { byte >> 4 } else { byte & 0xf }
    }

    fn place_part(&self, start: u64, bytes: u64, context: &mut DeviceContext<'_>) {
        let attributes = self.attributes(start);
        if attributes & READ_ENABLE != 0 {
            let kind = match attributes & WRITE_ENABLE {
                0 => RegionKind::Rom,
                _ => RegionKind::Ram,
            };
            place(start, bytes, kind, None, context);
            return;
        }
        // No device answers at addresses that the ROM does not cover.
        let shown = self.rom.filter(|rom| rom.copy_start() < start + bytes);
        let rom_start = shown.map_or(start + bytes, |rom| rom.copy_start().max(start));
        if rom_start > start {
            place(start, rom_start - start, RegionKind::Device, None, context);
        }
        if let Some(rom) = shown {
            let block = Some((rom.block, rom.offset_of_copy(rom_start)));
            let bytes = start + bytes - rom_start;
            place(rom_start, bytes, RegionKind::Rom, block, context);
        }
    }
}

/// Returns the first address and the size of each part with attributes of its own.
fn parts() -> impl Iterator<Item = (u64, u64)> {
    let small = (AREA_START..LAST_PART).step_by(PART_BYTES as usize);
    let small = small.map(|start| (start, PART_BYTES));
    small.chain(std::iter::once((LAST_PART, AREA_END - LAST_PART)))
}

fn place(
    start: u64,
    bytes: u64,
    kind: RegionKind,
    block: Option<(tollgate_memory::BlockId, u64)>,
    context: &mut DeviceContext<'_>,
) {
    context.place_region(Region {
        start: PhysicalAddress(start),
        bytes,
        kind,
        block,
    });
}

impl PciFunction for HostBridge440fx {
    fn name(&self) -> &str {
        "440fx"
    }

    fn config(&self) -> &ConfigSpace {
        &self.config
    }

    fn config_mut(&mut self) -> &mut ConfigSpace {
        &mut self.config
    }

    fn config_write(&mut self, offset: usize, data: &[u8], context: &mut DeviceContext<'_>) {
        let before = parts()
            .map(|(start, _)| self.attributes(start))
            .collect::<Vec<_>>();
        self.config.write(offset, data);
        for ((start, bytes), before) in parts().zip(before) {
            if self.attributes(start) != before {
                self.place_part(start, bytes, context);
            }
        }
    }

    fn fixed_memory(&self) -> Option<Range<u64>> {
        Some(AREA_START..AREA_END)
    }

    fn fixed_memory_write(
        &mut self,
        address: PhysicalAddress,
        data: &[u8],
        context: &mut DeviceContext<'_>,
    ) {
        for (at, byte) in (address.0..AREA_END).zip(data) {
            if self.attributes(at) & WRITE_ENABLE != 0 {
                context.memory().write_beneath(PhysicalAddress(at), *byte);
            }
        }
    }

    fn place_regions(&mut self, context: &mut DeviceContext<'_>) {
        for (start, bytes) in parts() {
            self.place_part(start, bytes, context);
        }
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        self.config.reset();
        self.place_regions(context);
    }
}
