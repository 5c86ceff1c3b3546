//! The commands of a SCSI disk (SCSI Block Commands 3, 5; SCSI Primary Commands 4, 6).

use super::disk_answers as answers;
use super::unit::{Action, Command, Disk, Unit};
use crate::devices::ide::Sense;
use crate::devices::medium::SECTOR;

/// The operation codes.
mod operation {
    pub const TEST_UNIT_READY: u8 = 0x00;
    pub const READ_6: u8 = 0x08;
    pub const WRITE_6: u8 = 0x0a;
    pub const MODE_SENSE_6: u8 = 0x1a;
    pub const START_STOP: u8 = 0x1b;
    pub const PREVENT_REMOVAL: u8 = 0x1e;
    pub const READ_CAPACITY_10: u8 = 0x25;
    pub const READ_10: u8 = 0x28;
    pub const WRITE_10: u8 = 0x2a;
    pub const VERIFY_10: u8 = 0x2f;
    pub const SYNCHRONIZE_10: u8 = 0x35;
    pub const WRITE_SAME_10: u8 = 0x41;
    pub const UNMAP: u8 = 0x42;
    pub const MODE_SENSE_10: u8 = 0x5a;
    pub const READ_16: u8 = 0x88;
    pub const WRITE_16: u8 = 0x8a;
    pub const VERIFY_16: u8 = 0x8f;
    pub const SYNCHRONIZE_16: u8 = 0x91;
    pub const WRITE_SAME_16: u8 = 0x93;
    pub const SERVICE_IN_16: u8 = 0x9e;
    pub const READ_12: u8 = 0xa8;
    pub const WRITE_12: u8 = 0xaa;
    pub const VERIFY_12: u8 = 0xaf;
}

/// The service action of READ CAPACITY (16).
const READ_CAPACITY_16: u8 = 0x10;
/// WRITE: the data must be on stable storage when the command ends.
const FORCE_ACCESS: u8 = 1 << 3;
/// WRITE SAME: the blocks may be discarded.
const SAME_UNMAP: u8 = 1 << 3;
/// WRITE SAME (16): there is no data, and the blocks become zero.
const SAME_NO_DATA: u8 = 1;
/// The maximum number of bytes that WRITE SAME writes with a pattern other than zeros.
const MAX_PATTERN_BYTES: u64 = 8 << 20;
/// The size in bytes of UNMAP's header, and of one of its ranges.
const UNMAP_HEADER_BYTES: usize = 8;
const UNMAP_RANGE_BYTES: usize = 16;

/// Blocks of the disk.
#[derive(Clone, Copy, Debug)]
struct Range {
    first: u64,
    count: u64,
}

impl Range {
    /// Returns the place of the blocks on the disk, in bytes.
    ///
    /// # Errors
    /// They are not all on the disk, or are more than `most`.
    fn on(self, disk: &Disk, most: u64) -> Result<(u64, u64), Sense> {
        let end = self.first.checked_add(self.count);
        match end {
            Some(end) if end <= disk.medium.sectors() => {}
            _ => return Err(Sense::OUT_OF_RANGE),
        }
        match self.count <= most {
            true => Ok((self.first * SECTOR, self.count * SECTOR)),
            false => Err(Sense::BAD_FIELD),
        }
    }
}

/// Returns the blocks that a command of 6, 10, 12 or 16 bytes names, by the class of its code.
fn range(command: &Command<'_>) -> Range {
    let u16 = |at: usize| u64::from(command.u16(at));
    let u32 = |at: usize| u64::from(command.u32(at));
    match command.code() >> 5 {
        0 => {
            let count = u64::from(command.byte(4));
            Range {
                first: u32(0) & 0x1f_ffff,
                count: if count == 0 { 256 } else { count },
            }
        }
        4 => Range {
            first: u32(2) << 32 | u32(6),
            count: u32(10),
        },
        5 => Range {
            first: u32(2),
            count: u32(6),
        },
        _ => Range {
            first: u32(2),
            count: u16(7),
        },
    }
}

impl Disk {
    /// Executes a command, except for those that all units have.
    pub(super) fn execute(&self, command: &Command<'_>) -> Result<Action, Sense> {
        use operation as op;
        let transfer = || range(command).on(self, answers::MAX_TRANSFER_BLOCKS.into());
        match command.code() {
            op::TEST_UNIT_READY | op::START_STOP | op::PREVENT_REMOVAL => Ok(Action::Done),
            op::READ_6 | op::READ_10 | op::READ_12 | op::READ_16 => {
                let (offset, bytes) = transfer()?;
                Ok(Action::Read { offset, bytes })
            }
            op::WRITE_6 | op::WRITE_10 | op::WRITE_12 | op::WRITE_16 => {
                self.check_writable()?;
                let (offset, bytes) = transfer()?;
                // Byte 1 of the shortest command is a part of the place.
                let through = command.code() != op::WRITE_6 && command.byte(1) & FORCE_ACCESS != 0;
                Ok(Action::Write {
                    offset,
                    bytes,
                    through,
                })
            }
            op::VERIFY_10 | op::VERIFY_12 | op::VERIFY_16 if command.byte(1) & 6 == 0 => {
                range(command).on(self, u64::MAX)?;
                Ok(Action::Done)
            }
            op::SYNCHRONIZE_10 | op::SYNCHRONIZE_16 => Ok(Action::Flush),
            op::READ_CAPACITY_10 => Ok(Action::Data(answers::capacity_10(self))),
            op::SERVICE_IN_16 if command.byte(1) & 0x1f == READ_CAPACITY_16 => {
                let room = command.u32(10) as usize;
                Ok(Unit::cut(answers::capacity_16(self), room))
            }
            op::WRITE_SAME_10 | op::WRITE_SAME_16 => self.write_same(command),
            op::UNMAP => self.unmap(command),
            op::MODE_SENSE_6 => self.mode_sense(command, false, command.byte(4).into()),
            op::MODE_SENSE_10 => self.mode_sense(command, true, command.u16(7).into()),
            _ => Err(Sense::NO_SUCH_COMMAND),
        }
    }

    fn check_writable(&self) -> Result<(), Sense> {
        match self.medium.is_writable() {
            true => Ok(()),
            false => Err(Sense::WRITE_PROTECTED),
        }
    }

    fn mode_sense(
        &self,
        command: &Command<'_>,
        is_long: bool,
        room: usize,
    ) -> Result<Action, Sense> {
        let (values, number) = (command.byte(2) >> 6, command.byte(2) & 0x3f);
        if values == 3 {
            return Err(Sense::NOTHING_SAVED);
        }
        let with_blocks = command.byte(1) & 1 << 3 == 0;
        let pages = answers::mode_pages(self, is_long, with_blocks, number, values == 1);
        Ok(Unit::cut(pages.ok_or(Sense::BAD_FIELD)?, room))
    }

    fn write_same(&self, command: &Command<'_>) -> Result<Action, Sense> {
        self.check_writable()?;
        let wanted = range(command);
        // Zero stands for all blocks up to the last one.
        let count = match wanted.count {
            0 => self.medium.sectors().saturating_sub(wanted.first),
            count => count,
        };
        let (offset, bytes) = Range { count, ..wanted }.on(self, answers::MAX_RANGE_BLOCKS)?;
        let flags = command.byte(1);
        let is_long = command.code() == operation::WRITE_SAME_16;
        let zeros = Action::Zero {
            offset,
            bytes,
            unmap: flags & SAME_UNMAP != 0,
        };
        if is_long && flags & SAME_NO_DATA != 0 {
            return Ok(zeros);
        }
        let block = command
            .data
            .get(..SECTOR as usize)
            .ok_or(Sense::BAD_FIELD)?;
        if block.iter().all(|byte| *byte == 0) {
            return Ok(zeros);
        }
        if bytes > MAX_PATTERN_BYTES || flags & SAME_UNMAP != 0 {
            return Err(Sense::BAD_FIELD);
        }
        let data = block.repeat((bytes / SECTOR) as usize);
        Ok(Action::Fill { offset, data })
    }

    /// Executes UNMAP with one range at most, as the block limits say.
    fn unmap(&self, command: &Command<'_>) -> Result<Action, Sense> {
        if !self.discards {
            return Err(Sense::NO_SUCH_COMMAND);
        }
        self.check_writable()?;
        let bytes = usize::from(command.u16(7));
        if bytes == 0 {
            return Ok(Action::Done);
        }
        let list = command.data.get(..bytes).ok_or(Sense::BAD_LIST)?;
        let (head, ranges) = list
            .split_at_checked(UNMAP_HEADER_BYTES)
            .ok_or(Sense::BAD_LIST)?;
        let described = usize::from(u16::from_be_bytes([head[2], head[3]]));
        let ranges = ranges.get(..described).ok_or(Sense::BAD_LIST)?;
        let Some((range, rest)) = ranges.split_first_chunk::<UNMAP_RANGE_BYTES>() else {
            return Ok(Action::Done);
        };
        if !rest.is_empty() {
            return Err(Sense::BAD_LIST);
        }
        let [a0, a1, a2, a3, a4, a5, a6, a7, c0, c1, c2, c3, ..] = *range;
        let range = Range {
            first: u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]),
            count: u32::from_be_bytes([c0, c1, c2, c3]).into(),
        };
        let (offset, bytes) = range.on(self, answers::MAX_RANGE_BLOCKS)?;
        Ok(Action::Discard { offset, bytes })
    }
}
