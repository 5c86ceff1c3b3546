//! The commands of an ATA disk (ATA/ATAPI-6, 8).

use super::cd_drive::Sense;
use super::channel::{Channel, Direction, Transfer, Way, Work};
use super::command;
use super::device_registers::{Registers, Settings};
use super::disk::{Disk, PIECE};
use super::identify::{MOST_MULTIPLE, identify};
use super::registers::{control, device, error};
use super::unit::Unit;
use crate::bus::DeviceContext;
use crate::devices::medium::SECTOR;
use tollgate_disk::Operation;

/// The active power mode.
const POWER_ACTIVE: u8 = 0xff;

impl Disk {
    /// Returns the sector number in the registers, with 48 bits of address or with fewer.
    fn address(&self, is_long: bool) -> Option<u64> {
        let registers = &self.registers;
        let byte = |value: u8, place: u32| u64::from(value) << (8 * place);
        let address =
            byte(registers.low[0], 0) | byte(registers.mid[0], 1) | byte(registers.high[0], 2);
        if is_long {
            return Some(
                address
                    | byte(registers.low[1], 3)
                    | byte(registers.mid[1], 4)
                    | byte(registers.high[1], 5),
            );
        }
        let head = registers.device & device::HEAD;
        if registers.device & device::LBA != 0 {
            return Some(address | byte(head, 3));
        }
        let (heads, sectors) = (self.settings.heads, self.settings.sectors);
        let sector = registers.low[0];
        let is_there = (1..=sectors).contains(&sector) && head < heads;
        let track = (address >> 8) * u64::from(heads) + u64::from(head);
        is_there.then(|| track * u64::from(sectors) + u64::from(sector) - 1)
    }

    /// Returns the number of sectors in the registers.
    fn count(&self, is_long: bool) -> u64 {
        let [low, high] = self.registers.count.map(u64::from);
        match (is_long, low | high << 8) {
            (false, _) if low == 0 => 0x100,
            (false, _) => low,
            (true, 0) => 0x1_0000,
            (true, count) => count,
        }
    }

    /// Sets the registers to the address of a sector, in the form that the host has used.
    pub(super) fn set_address(&mut self, sector: u64, is_long: bool) {
        if !is_long && self.registers.device & device::LBA == 0 {
            return self.set_place(sector);
        }
        let byte = |place: u32| (sector >> (8 * place)) as u8;
        let registers = &mut self.registers;
        if is_long {
            (registers.low, registers.mid, registers.high) =
                ([byte(0), byte(3)], [byte(1), byte(4)], [byte(2), byte(5)]);
        } else {
            registers.low[0] = byte(0);
            registers.mid[0] = byte(1);
            registers.high[0] = byte(2);
            registers.device = registers.device & !device::HEAD | byte(3) & device::HEAD;
        }
    }

    /// Sets the registers to the cylinder, head and sector of a sector.
    fn set_place(&mut self, sector: u64) {
        let heads = u64::from(self.settings.heads.max(1));
        let sectors = u64::from(self.settings.sectors.max(1));
        let track = sector / sectors;
        let cylinder = track / heads;
        let registers = &mut self.registers;
        registers.low[0] = (sector % sectors) as u8 + 1;
        registers.mid[0] = cylinder as u8;
        registers.high[0] = (cylinder >> 8) as u8;
        registers.device = registers.device & !device::HEAD | (track % heads) as u8;
    }

    /// Sets the registers after a command that has moved sectors: to the number of sectors not
    /// moved, and to the last sector or the one that failed. ATA-3 and earlier require this (ATA-2,
    /// 9.13); later versions only do after failures.
    pub(super) fn note_progress(&mut self, sector: u64, left: u64, is_long: bool) {
        let [low, high, ..] = left.to_le_bytes();
        self.registers.count = if is_long {
            [low, high]
        } else {
            [low, self.registers.count[1]]
        };
        self.set_address(sector, is_long);
    }
}

impl Channel {
    /// Handles a write to the command register.
    pub(super) fn begin_command(&mut self, code: u8, context: &mut DeviceContext<'_>) {
        let is_busy = matches!(self.state.work, Work::Disk(_) | Work::Flush);
        let is_in_reset = self.state.control & control::RESET != 0;
        if is_in_reset || self.resets_device(code) || is_busy {
            return;
        }
        self.state.control &= !control::HIGH_ORDER;
        if code == command::DIAGNOSTIC && self.units[0].is_some() {
            self.state.work = Work::Nothing;
            self.state.failed = false;
            self.state.selected = 0;
            let units = self.units.iter_mut().flatten();
            units.for_each(Unit::set_signature);
            return self.set_request(true);
        }
        // Data that the host has not read is lost.
        self.state.work = Work::Nothing;
        self.state.failed = false;
        self.set_request(false);
        match self.unit() {
            Some(Unit::Disk(_)) => self.obey(code, context),
            Some(Unit::CdDrive(_)) => self.obey_packet_device(code),
            None => {}
        }
    }

    fn obey(&mut self, code: u8, context: &mut DeviceContext<'_>) {
        use Direction::{Read, Verify, Write};
        use command as c;
        let Some(disk) = self.disk() else { return };
        disk.registers.error = 0;
        let multiple = Way::Blocks(usize::from(disk.settings.multiple) * SECTOR as usize);
        let single = Way::Blocks(SECTOR as usize);
        match code {
            c::READ | c::READ_ONCE => self.begin(Read, single, false, context),
            c::READ_EXT => self.begin(Read, single, true, context),
            c::READ_MULTIPLE => self.begin(Read, multiple, false, context),
            c::READ_MULTIPLE_EXT => self.begin(Read, multiple, true, context),
            c::READ_DMA | c::READ_DMA_ONCE => self.begin(Read, Way::Dma, false, context),
            c::READ_DMA_EXT => self.begin(Read, Way::Dma, true, context),
            c::WRITE | c::WRITE_ONCE | c::WRITE_VERIFY => {
                self.begin(Write, single, false, context);
            }
            c::WRITE_EXT => self.begin(Write, single, true, context),
            c::WRITE_MULTIPLE => self.begin(Write, multiple, false, context),
            c::WRITE_MULTIPLE_EXT => self.begin(Write, multiple, true, context),
            c::WRITE_DMA | c::WRITE_DMA_ONCE => self.begin(Write, Way::Dma, false, context),
            c::WRITE_DMA_EXT => self.begin(Write, Way::Dma, true, context),
            c::WRITE_DMA_FUA_EXT => {
                self.begin(Write, Way::Dma, true, context);
                self.write_through();
            }
            c::WRITE_MULTIPLE_FUA_EXT => {
                self.begin(Write, multiple, true, context);
                self.write_through();
            }
            c::VERIFY | c::VERIFY_ONCE => self.begin(Verify, single, false, context),
            c::VERIFY_EXT => self.begin(Verify, single, true, context),
            c::SEEK => match disk.address(false) {
                Some(sector) if sector < disk.sectors() => self.end(),
                _ => self.fail(error::ID_NOT_FOUND),
            },
            c::FLUSH | c::FLUSH_EXT => {
                let tag = disk.medium.send(Operation::Flush);
                self.tags.push_back(tag);
                self.state.work = Work::Flush;
            }
            c::IDENTIFY => {
                let data = identify(disk);
                self.answer(data);
            }
            c::SET_FEATURES => self.set_features(),
            c::SET_MULTIPLE => {
                let count = disk.registers.count[0];
                let is_good = count == 0 || count.is_power_of_two() && count <= MOST_MULTIPLE;
                disk.settings.multiple = if is_good { count } else { 0 };
                if is_good {
                    self.end()
                } else {
                    self.fail(error::ABORTED)
                }
            }
            c::SET_GEOMETRY => {
                let (heads, sectors) = (
                    (disk.registers.device & device::HEAD) + 1,
                    disk.registers.count[0],
                );
                if sectors == 0 || sectors > 63 {
                    return self.fail(error::ABORTED);
                }
                (disk.settings.heads, disk.settings.sectors) = (heads, sectors);
                self.end();
            }
            c::NATIVE_MAX | c::NATIVE_MAX_EXT => {
                let is_long = code == c::NATIVE_MAX_EXT;
                let last = disk.sectors().saturating_sub(1);
                let last = if is_long { last } else { last.min(0x0fff_ffff) };
                disk.set_address(last, is_long);
                self.end();
            }
            c::CHECK_POWER | c::OLD_CHECK_POWER => self.check_power(),
            c::RECALIBRATE_FIRST..=c::RECALIBRATE_LAST
            | c::STANDBY_NOW
            | c::IDLE_NOW
            | c::STANDBY
            | c::IDLE
            | c::SLEEP
            | c::OLD_STANDBY_NOW
            | c::OLD_IDLE_NOW
            | c::OLD_STANDBY
            | c::OLD_IDLE
            | c::OLD_SLEEP => self.end(),
            _ => self.fail(error::ABORTED),
        }
    }

    fn begin(
        &mut self,
        direction: Direction,
        way: Way,
        is_long: bool,
        context: &mut DeviceContext<'_>,
    ) {
        let Some(disk) = self.disk() else { return };
        let is_refused =
            way == Way::Blocks(0) || direction == Direction::Write && !disk.medium.is_writable();
        if is_refused {
            return self.fail(error::ABORTED);
        }
        let (count, all) = (disk.count(is_long), disk.sectors());
        let sector = disk.address(is_long);
        let sector =
            sector.filter(|sector| sector.checked_add(count).is_some_and(|end| end <= all));
        let Some(sector) = sector else {
            return self.fail(error::ID_NOT_FOUND);
        };
        let transfer = Transfer {
            direction,
            way,
            sector,
            sectors: count,
            data: Vec::new(),
            moved: 0,
            through: !disk.settings.write_cache,
            is_long,
        };
        if direction == Direction::Write {
            self.begin_host(transfer, false, context);
        } else {
            self.read_piece(transfer);
        }
    }

    pub(super) fn set_features(&mut self) {
        let Some(unit) = self.unit() else { return };
        let registers = *unit.registers();
        match set_features(&registers, unit.settings_mut()) {
            true => self.end(),
            false => self.fail(error::ABORTED),
        }
    }

    pub(super) fn check_power(&mut self) {
        if let Some(unit) = self.unit() {
            unit.registers_mut().count[0] = POWER_ACTIVE;
        }
        self.end();
    }

    fn write_through(&mut self) {
        if let Work::Host(transfer) = &mut self.state.work {
            transfer.through = true;
        }
    }

    /// Makes the image's thread read the next piece.
    pub(super) fn read_piece(&mut self, transfer: Transfer) {
        let Some(medium) = self.unit().and_then(Unit::medium_mut) else {
            return self.fail_packet(Sense::NO_DISC);
        };
        let tag = medium.send(Operation::Read {
            offset: transfer.sector * SECTOR,
            bytes: (transfer.sectors.min(PIECE) * SECTOR) as usize,
        });
        self.tags.push_back(tag);
        self.state.work = Work::Disk(transfer);
    }

    /// Sends `data` to the host as the whole result of a command.
    pub(super) fn answer(&mut self, data: Vec<u8>) {
        self.state.work = Work::Host(Transfer {
            direction: Direction::Answer,
            way: Way::Blocks(data.len()),
            sector: 0,
            sectors: 0,
            data,
            moved: 0,
            through: false,
            is_long: false,
        });
        self.set_request(true);
    }
}

/// Executes SET FEATURES (8.46). Returns false if it requests an unsupported feature.
fn set_features(registers: &Registers, settings: &mut Settings) -> bool {
    let count = registers.count[0];
    match registers.features {
        0x02 => settings.write_cache = true,
        0x82 => settings.write_cache = false,
        // The PIO modes need not be remembered.
        0x03 if matches!(count, 0x00 | 0x01 | 0x08..=0x0c) => {}
        0x03 if matches!(count, 0x20..=0x22 | 0x40..=0x42) => settings.transfer_mode = count,
        // Read look-ahead, and what a software reset preserves, have no effect.
        0x55 | 0xaa | 0x66 | 0xcc => {}
        _ => return false,
    }
    true
}
