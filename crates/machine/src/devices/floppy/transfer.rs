//! Commands of the floppy disk controller that transfer data (data sheet, 5.1): the place of the
//! data on the disk, and the end of the command. [`super::host`] transfers the data to memory or to
//! the processor.

use super::command::{Command, MFM, MULTI_TRACK, SKIP};
use super::controller::{DiskWork, Floppy, Phase};
use super::format::{Format, SECTOR_BYTES, SECTOR_SIZE_CODE};
use super::registers::{DigitalOutput, st0, st1, st2};
use crate::bus::DeviceContext;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use tollgate_disk::{Operation, Outcome};
use tollgate_platform::GuestTime;

/// The time of a search that finds nothing, in nanoseconds: two revolutions.
const SEARCH_TIME: u64 = 400_000_000;
/// The time until the heads reach the address of the next sector, in nanoseconds.
const ADDRESS_TIME: u64 = 1_000_000;

/// The stage of a transfer.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) enum Stage {
    /// Nothing happens until this time, when the command ends.
    Ends(GuestTime),
    /// The image's thread reads or writes.
    Disk,
    /// Bytes are transferred between the controller and memory or the processor.
    Host {
        /// With DMA: when to try again, and when it is too late.
        poll: GuestTime,
        late: GuestTime,
    },
}

/// Consecutive sectors of the image.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Run {
    pub offset: u64,
    pub sectors: usize,
}

/// The address of a sector.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Address {
    pub cylinder: u8,
    pub head: u8,
    pub sector: u8,
    pub size: u8,
}

/// A command in progress that transfers data.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Transfer {
    pub command: Command,
    /// The first byte of the command.
    pub flags: u8,
    pub drive: u8,
    /// The side of the first sector.
    pub head: u8,
    /// The address of the first sector, as the command gives it.
    pub address: Address,
    /// The last sector of a track.
    pub track_end: u8,
    /// The byte with which FORMAT TRACK fills sectors.
    pub filler: u8,
    /// Status registers 0 to 2, as far as they are known yet.
    pub status: [u8; 3],
    pub runs: Vec<Run>,
    /// Status registers 0 and 1 get these values if all data is transferred and no terminal count
    /// has ended the command.
    pub at_end: [u8; 2],
    /// Whether the address stays unchanged if the command fails.
    pub keeps_address: bool,
    pub data: Vec<u8>,
    /// The number of bytes that were transferred.
    pub moved: usize,
    /// Without DMA: the number of bytes until the next interrupt.
    pub burst: u8,
    pub terminal_count: bool,
    pub stage: Stage,
}

impl Transfer {
    pub const fn deadline(&self) -> Option<GuestTime> {
        match self.stage {
            Stage::Ends(at) | Stage::Host { poll: at, .. } => Some(at),
            Stage::Disk => None,
        }
    }

    pub fn abort(&mut self, st1: u8, st2: u8, at: GuestTime) {
        self.status[0] |= st0::ABNORMAL;
        self.status[1] |= st1;
        self.status[2] |= st2;
        self.stage = Stage::Ends(at);
    }

    /// Finds the sectors of the command, up to its implicit end.
    fn plan(&mut self, format: &Format, cylinder: u8) {
        let (mut head, mut sector) = (self.head, self.address.sector);
        let most = match self.command {
            // With EC set, the last byte of the command is the number of sectors.
            Command::Verify if self.head & 0x80 != 0 => usize::from(self.filler),
            _ => usize::MAX,
        };
        self.at_end = [st0::ABNORMAL, st1::END_OF_CYLINDER];
        let mut planned = 0;
        while planned < most {
            if sector == 0 || sector > format.sectors {
                self.at_end = [st0::ABNORMAL, st1::NO_DATA];
                return;
            }
            let offset = format.offset(cylinder, head & 1, sector);
            planned += 1;
            match self.runs.last_mut() {
                Some(run) if run.offset + (run.sectors * SECTOR_BYTES) as u64 == offset => {
                    run.sectors += 1;
                }
                _ => self.runs.push(Run { offset, sectors: 1 }),
            }
            if sector != self.track_end {
                sector += 1;
            } else if self.flags & MULTI_TRACK != 0 && head & 1 == 0 {
                if format.heads < 2 {
                    self.at_end = [st0::ABNORMAL, st1::MISSING_ADDRESS_MARK];
                    return;
                }
                (head, sector) = (head | 1, 1);
            } else {
                break;
            }
        }
        if self.command == Command::Verify {
            self.at_end = [0, 0];
        }
    }

    fn sectors(&self) -> usize {
        self.runs.iter().map(|run| run.sectors).sum()
    }

    /// Returns the address after this number of sectors, for the result (5.1, "Result Phase
    /// Table").
    fn address_after(&self, sectors: usize) -> Address {
        let mut address = self.address;
        for _ in 0..sectors {
            if address.sector != self.track_end {
                address.sector = address.sector.wrapping_add(1);
                continue;
            }
            address.sector = 1;
            let goes_on = self.flags & MULTI_TRACK != 0;
            if !goes_on || address.head & 1 != 0 {
                address.cylinder = address.cylinder.wrapping_add(1);
            }
            if goes_on {
                address.head ^= 1;
            }
        }
        address
    }
}

impl Floppy {
    /// Begins a command of which all bytes have arrived.
    pub(super) fn begin_transfer(
        &mut self,
        command: Command,
        bytes: &[u8],
        context: &mut DeviceContext<'_>,
    ) {
        let byte = |index: usize| bytes.get(index).copied().unwrap_or(0);
        let (drive, now) = (byte(1) & 3, context.now());
        let is_format = command == Command::FormatTrack;
        let mut transfer = Transfer {
            command,
            flags: byte(0),
            drive,
            head: byte(1) >> 2 & 1,
            address: match command {
                Command::ReadId | Command::FormatTrack => Address::default(),
                _ => Address {
                    cylinder: byte(2),
                    head: byte(3),
                    sector: byte(4),
                    size: byte(5),
                },
            },
            track_end: if is_format { byte(3) } else { byte(6) },
            filler: if is_format { byte(5) } else { byte(8) },
            status: [byte(1) & 7, 0, 0],
            runs: Vec::new(),
            at_end: [0, 0],
            keeps_address: false,
            data: Vec::new(),
            moved: 0,
            burst: 0,
            terminal_count: false,
            stage: Stage::Disk,
        };
        if command != Command::ReadId {
            self.state.track_end = transfer.track_end;
        }
        if command == Command::Verify {
            transfer.head |= byte(1) & 0x80;
        }
        let has_address = !is_format && command != Command::ReadId;
        if has_address && self.seeks_by_itself() {
            self.seek(drive, byte(2));
            transfer.status[0] |= st0::SEEK_END;
        }
        self.prepare(&mut transfer, now);
        let works_on_disk = matches!(transfer.stage, Stage::Disk);
        self.state.phase = Phase::Execution(transfer);
        if works_on_disk {
            self.begin_disk_or_host(context);
        }
    }

    /// Looks for the sectors of the command. If that fails, the command ends, as its stage then
    /// says.
    fn prepare(&mut self, transfer: &mut Transfer, now: GuestTime) {
        let has_motor = {
            let motor = DigitalOutput::MOTOR.bits() << transfer.drive;
            self.state.output.bits() & motor != 0
        };
        let rate = self.state.rate;
        let drive = self.drives.get_mut(usize::from(transfer.drive));
        let found = drive.filter(|_| has_motor && transfer.flags & MFM != 0);
        let found = found.and_then(|drive| drive.readable(rate));
        let found = found.filter(|(disk, _)| transfer.head & 1 < disk.format.heads);
        let Some((disk, cylinder)) = found else {
            return transfer.abort(st1::MISSING_ADDRESS_MARK, 0, now.after(SEARCH_TIME));
        };
        let format = disk.format;
        if transfer.command.writes() && !disk.medium.is_writable() {
            return transfer.abort(st1::NOT_WRITABLE, 0, now);
        }
        match transfer.command {
            Command::ReadId => {
                let passed = now.0 / ADDRESS_TIME % u64::from(format.sectors);
                transfer.address = Address {
                    cylinder,
                    head: transfer.head,
                    sector: passed as u8 + 1,
                    size: SECTOR_SIZE_CODE,
                };
                transfer.stage = Stage::Ends(now.after(ADDRESS_TIME));
                return;
            }
            Command::FormatTrack => {
                transfer.data = vec![0; 4 * usize::from(transfer.track_end)];
                return;
            }
            _ => {}
        }
        let address = transfer.address;
        let is_here = (address.cylinder, address.head, address.size)
            == (cylinder, transfer.head & 1, SECTOR_SIZE_CODE);
        if transfer.command == Command::ReadTrack {
            // Sectors are read in the order of their places, whatever their addresses.
            transfer.status[1] |= if is_here { 0 } else { st1::NO_DATA };
            transfer.address.sector = 1;
            transfer.flags &= !MULTI_TRACK;
        } else if !is_here || address.sector == 0 || address.sector > format.sectors {
            let is_wrong = address.cylinder != cylinder;
            let wrong = if is_wrong { st2::WRONG_CYLINDER } else { 0 };
            return transfer.abort(st1::NO_DATA, wrong, now.after(SEARCH_TIME));
        }
        transfer.plan(&format, cylinder);
        if transfer.command == Command::ReadDeletedData {
            transfer.status[2] |= st2::CONTROL_MARK;
            if transfer.flags & SKIP != 0 {
                return transfer.abort(st1::END_OF_CYLINDER, 0, now.after(ADDRESS_TIME));
            }
            // Only the first sector is read, and then the command ends.
            transfer.runs.truncate(1);
            transfer.runs.iter_mut().for_each(|run| run.sectors = 1);
            transfer.at_end = [0, 0];
            transfer.keeps_address = true;
        }
        if transfer.command.writes() {
            transfer.data = vec![0; transfer.sectors() * SECTOR_BYTES];
        }
    }

    /// Starts reads at the disk and writes at the host.
    fn begin_disk_or_host(&mut self, context: &mut DeviceContext<'_>) {
        let Phase::Execution(transfer) = &mut self.state.phase else {
            return;
        };
        if transfer.command.writes() {
            return self.begin_host(context);
        }
        let reads = transfer.runs.iter().map(|run| Operation::Read {
            offset: run.offset,
            bytes: run.sectors * SECTOR_BYTES,
        });
        let (drive, reads) = (transfer.drive, reads.collect());
        self.send(drive, reads, context);
    }

    /// Gives work to the image's thread. Without any operations, continues as if they were done.
    pub(super) fn send(
        &mut self,
        drive: u8,
        operations: Vec<Operation>,
        context: &mut DeviceContext<'_>,
    ) {
        let drive = usize::from(drive);
        let disk = self.drives.get_mut(drive).and_then(|d| d.disk.as_mut());
        let mut work = DiskWork {
            drive,
            tags: VecDeque::new(),
            data: Vec::new(),
            failed: disk.is_none(),
        };
        if let Some(disk) = disk {
            let send = |operation| disk.medium.send(operation);
            work.tags = operations.into_iter().map(send).collect();
        }
        self.work = Some(work);
        if let Phase::Execution(transfer) = &mut self.state.phase {
            transfer.stage = Stage::Disk;
        }
        self.advance_transfer(context);
    }

    /// Handles an operation that the image's thread has finished.
    pub(super) fn take_outcome(&mut self, drive: usize, outcome: Outcome) {
        let work = self.work.as_mut().filter(|work| work.drive == drive);
        let Some(work) = work.filter(|work| work.tags.front() == Some(&outcome.tag)) else {
            // The operation belongs to a command that was aborted.
            return;
        };
        work.tags.pop_front();
        match outcome.result {
            Ok(data) => work.data.extend_from_slice(&data),
            Err(()) => work.failed = true,
        }
    }

    /// Continues the transfer as far as possible now.
    pub(super) fn advance_transfer(&mut self, context: &mut DeviceContext<'_>) {
        let Phase::Execution(transfer) = &mut self.state.phase else {
            return;
        };
        let now = context.now();
        match transfer.stage {
            Stage::Ends(at) if at <= now => self.finish(context),
            Stage::Ends(_) => {}
            Stage::Disk => {
                let Some(work) = self.work.take_if(|work| work.tags.is_empty()) else {
                    return;
                };
                if work.failed {
                    transfer.abort(st1::DATA_ERROR, st2::DATA_ERROR, now);
                    transfer.moved = 0;
                    self.finish(context);
                } else if transfer.command.writes() {
                    self.end_data(context);
                } else if transfer.command == Command::Verify {
                    transfer.moved = work.data.len();
                    self.end_data(context);
                } else {
                    transfer.data = work.data;
                    self.begin_host(context);
                }
            }
            Stage::Host { poll, .. } if poll > now => {}
            Stage::Host { late, .. } => self.move_by_dma(late, context),
        }
    }

    /// Ends a command whose data has been transferred.
    pub(super) fn end_data(&mut self, context: &mut DeviceContext<'_>) {
        if let Phase::Execution(transfer) = &mut self.state.phase
            && !transfer.terminal_count
        {
            let [end0, end1] = transfer.at_end;
            transfer.status[0] |= end0;
            transfer.status[1] |= end1;
        }
        self.finish(context);
    }

    /// Sets the result and raises its interrupt.
    pub(super) fn finish(&mut self, context: &mut DeviceContext<'_>) {
        context.dma().request(Self::CHANNEL, false);
        let Phase::Execution(transfer) = &self.state.phase else {
            return;
        };
        let moved = match transfer.command {
            Command::FormatTrack | Command::ReadId => 0,
            _ if transfer.keeps_address => 0,
            _ => transfer.moved.div_ceil(SECTOR_BYTES),
        };
        let address = transfer.address_after(moved);
        let [mut status0, status1, status2] = transfer.status;
        if moved > 0 {
            // The side of the last sector.
            status0 = status0 & !4 | (transfer.address_after(moved - 1).head & 1) << 2;
        }
        let result = [
            status0,
            status1,
            status2,
            address.cylinder,
            address.head,
            address.sector,
            address.size,
        ];
        self.work = None;
        self.answer(&result);
        self.raise();
    }

    /// Fails the work of the image's thread after a restore, because no thread does it.
    pub(super) fn settle_restored(&mut self) {
        if let Phase::Execution(transfer) = &mut self.state.phase {
            transfer.moved = transfer.moved.min(transfer.data.len());
            if matches!(transfer.stage, Stage::Disk) {
                transfer.abort(st1::DATA_ERROR, st2::DATA_ERROR, GuestTime(0));
            }
        }
    }
}
