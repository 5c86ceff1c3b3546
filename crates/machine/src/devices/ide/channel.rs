//! An IDE channel: the registers that its two units share, the command in progress, and the
//! interrupt.

use super::bus_master::BusMaster;
use super::cd_drive::Condition;
use super::device_registers::{Registers, Settings};
use super::disk::Disk;
use super::packet::Packet;
use super::registers::{Status, control, device, register};
use super::unit::Unit;
use crate::board::IrqLine;
use crate::bus::DeviceContext;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;

/// How data moves between a device and its host.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Way {
    /// The data register transfers blocks of this number of bytes.
    Blocks(usize),
    /// The data register transfers blocks of at most `limit` bytes; the present block ends at `end`
    /// in the piece. This is for a packet device, which reports the length of each block.
    PacketBlocks { limit: usize, end: usize },
    /// The bus master transfers the data.
    Dma,
}

/// What a transfer does with the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) enum Direction {
    Read,
    Write,
    /// The image is read, but the data is discarded.
    Verify,
    /// The image is not used: the buffer holds the complete data.
    Answer,
}

/// A command in progress that moves data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Transfer {
    pub direction: Direction,
    pub way: Way,
    /// The first sector of the piece, and the number of sectors from there to the end.
    pub sector: u64,
    pub sectors: u64,
    /// The data of the piece.
    pub data: Vec<u8>,
    /// The number of bytes of the piece that were moved.
    pub moved: usize,
    /// Whether each piece is written to stable storage, because the write cache is disabled or the
    /// command requires it.
    pub through: bool,
    /// Whether the command has 48 bits of address.
    #[serde(default)]
    pub is_long: bool,
}

/// What a channel is doing.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) enum Work {
    #[default]
    Nothing,
    /// The host writes a command packet.
    Packet(Packet),
    /// The image's thread reads or writes a piece.
    Disk(Transfer),
    /// The host moves a piece.
    Host(Transfer),
    /// The image's thread flushes the image.
    Flush,
}

/// The saved state of a channel.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct State {
    pub control: u8,
    /// The last value written to the device register, which selects a device.
    pub selected: u8,
    /// The ERR bit in the status of the selected device.
    pub failed: bool,
    pub work: Work,
    /// The level of INTRQ before the device control register's bit.
    pub request: bool,
    pub master: BusMaster,
    /// Registers and settings of the two devices, if they exist.
    pub devices: [(Registers, Settings); 2],
    /// For each of the two devices that is a drive: whether it is ready, and its condition.
    pub drives: [(bool, Condition); 2],
}

/// A channel with its two units.
#[derive(Debug, Default)]
pub(super) struct Channel {
    pub units: [Option<Unit>; 2],
    pub state: State,
    /// The operations of the image's thread that the command waits for.
    pub tags: VecDeque<u64>,
    pub line: IrqLine,
    /// Whether the function may read and write memory.
    pub may_master: bool,
}

impl Channel {
    /// Returns the index of the selected device.
    pub fn index(&self) -> usize {
        usize::from(self.state.selected & device::SECOND != 0)
    }

    /// Returns the selected unit.
    pub fn unit(&mut self) -> Option<&mut Unit> {
        let index = self.index();
        self.units[index].as_mut()
    }

    /// Returns the selected unit if it is a disk.
    pub fn disk(&mut self) -> Option<&mut Disk> {
        match self.unit()? {
            Unit::Disk(disk) => Some(disk),
            Unit::CdDrive(_) => None,
        }
    }

    fn is_empty(&self) -> bool {
        self.units.iter().all(Option::is_none)
    }

    /// Requests an interrupt, or withdraws the request.
    pub fn set_request(&mut self, request: bool) {
        if request {
            self.state.master.note_interrupt();
        }
        self.state.request = request;
        let is_enabled = self.state.control & control::NO_INTERRUPT == 0;
        self.line.set(request && is_enabled);
    }

    /// Returns the status of the selected device.
    fn status(&self) -> u8 {
        // Firmware waits half a minute for a drive that looks busy, as all ones do.
        let Some(unit) = &self.units[self.index()] else {
            return 0;
        };
        if self.state.control & control::RESET != 0 {
            return Status::BUSY.bits();
        }
        let idle = match unit {
            Unit::CdDrive(drive) if !drive.is_ready => Status::empty(),
            _ => Status::READY | Status::SEEK_DONE,
        };
        let status = match &self.state.work {
            Work::Nothing => idle,
            Work::Disk(_) | Work::Flush => Status::BUSY,
            Work::Host(transfer) if transfer.way == Way::Dma => Status::BUSY,
            Work::Host(_) | Work::Packet(_) => idle | Status::DATA_REQUEST,
        };
        let failed = self.state.failed && matches!(self.state.work, Work::Nothing);
        (status
            | if failed {
                Status::ERROR
            } else {
                Status::empty()
            })
        .bits()
    }

    /// Reads a register of the command block, except for the data register.
    pub fn read(&mut self, offset: u16) -> u8 {
        if self.is_empty() {
            return 0;
        }
        if offset == register::STATUS {
            let status = self.status();
            self.set_request(false);
            return status;
        }
        let selected = self.state.selected;
        let previous = usize::from(self.state.control & control::HIGH_ORDER != 0);
        let Some(unit) = self.unit() else {
            // The other device answers for a missing one.
            return if offset == register::DEVICE {
                selected
            } else {
                0
            };
        };
        let registers = unit.registers();
        match offset {
            register::ERROR => registers.error,
            register::COUNT => registers.count[previous],
            register::LBA_LOW => registers.low[previous],
            register::LBA_MID => registers.mid[previous],
            register::LBA_HIGH => registers.high[previous],
            register::DEVICE => registers.device & !device::SECOND | selected & device::SECOND,
            _ => 0xff,
        }
    }

    /// Writes a register of the command block, except for the data register.
    pub fn write(&mut self, offset: u16, value: u8, context: &mut DeviceContext<'_>) {
        if offset == register::STATUS {
            return self.begin_command(value, context);
        }
        if !matches!(self.state.work, Work::Nothing) {
            // The host cannot write the registers while a command is in progress.
            return;
        }
        self.state.control &= !control::HIGH_ORDER;
        if offset == register::DEVICE {
            if (self.state.selected ^ value) & device::SECOND != 0 {
                // Each device has an error bit of its own; that of the other device has been
                // reported.
                self.state.failed = false;
            }
            self.state.selected = value;
        }
        let push = |register: &mut [u8; 2]| *register = [value, register[0]];
        for unit in self.units.iter_mut().flatten() {
            let registers = unit.registers_mut();
            match offset {
                register::ERROR => registers.features = value,
                register::COUNT => push(&mut registers.count),
                register::LBA_LOW => push(&mut registers.low),
                register::LBA_MID => push(&mut registers.mid),
                register::LBA_HIGH => push(&mut registers.high),
                register::DEVICE => registers.device = value,
                _ => {}
            }
        }
    }

    /// Reads the alternate status register, which does not change the interrupt.
    pub fn alternate_status(&self) -> u8 {
        self.status()
    }

    /// Writes the device control register.
    pub fn write_control(&mut self, value: u8) {
        let before = std::mem::replace(&mut self.state.control, value);
        if value & control::RESET != 0 && before & control::RESET == 0 {
            self.reset();
            self.state.control = value;
        }
        let request = self.state.request;
        self.line.set(request && value & control::NO_INTERRUPT == 0);
    }

    /// Resets both devices, as the hardware reset or the device control register does.
    pub fn reset(&mut self) {
        self.state.work = Work::Nothing;
        self.state.failed = false;
        self.state.selected = 0;
        self.state.control = 0;
        self.tags.clear();
        for unit in self.units.iter_mut().flatten() {
            unit.set_signature();
            unit.settings_mut().multiple = 0;
        }
        self.state.request = false;
        self.line.set(false);
    }

    /// Resets the channel, as the hardware reset does.
    pub fn reset_all(&mut self) {
        self.reset();
        self.state.master = BusMaster::default();
        for unit in self.units.iter_mut().flatten() {
            *unit.settings_mut() = unit
                .geometry()
                .map_or_else(Settings::default, Settings::of_disk);
            if let Unit::CdDrive(drive) = unit {
                drive.reset();
            }
        }
    }

    pub fn save(&self) -> State {
        let mut state = self.state.clone();
        for (index, unit) in self.units.iter().enumerate() {
            if let Some(unit) = unit {
                state.devices[index] = (*unit.registers(), *unit.settings());
            }
            if let Some(Unit::CdDrive(drive)) = unit {
                state.drives[index] = (drive.is_ready, drive.condition);
            }
        }
        state
    }

    pub fn restore(&mut self, state: State) {
        for (index, unit) in self.units.iter_mut().enumerate() {
            if let Some(unit) = unit {
                (*unit.registers_mut(), *unit.settings_mut()) = state.devices[index];
            }
            if let Some(Unit::CdDrive(drive)) = unit {
                (drive.is_ready, drive.condition) = state.drives[index];
            }
        }
        self.state = state;
        self.tags.clear();
        if let Work::Host(transfer) = &mut self.state.work {
            transfer.moved = transfer.moved.min(transfer.data.len());
            if let Way::PacketBlocks { limit, end } = &mut transfer.way {
                *limit = (*limit).max(2);
                *end = (*end).clamp(transfer.moved, transfer.data.len());
            }
        }
        if matches!(self.state.work, Work::Disk(_) | Work::Flush) {
            // State is never saved while a thread works, so this state was made otherwise, and its
            // command fails.
            self.state.work = Work::Nothing;
            self.state.failed = true;
        }
        let is_enabled = self.state.control & control::NO_INTERRUPT == 0;
        self.line = IrqLine::low();
        self.line.record(0, self.state.request && is_enabled);
    }
}
