//! Transfers between the floppy disk controller and memory or the processor: by DMA, or byte by
//! byte through the FIFO (data sheet, 4).

use super::command::Command;
use super::controller::{Floppy, Phase};
use super::format::{SECTOR_BYTES, SECTOR_SIZE_CODE};
use super::registers::{DigitalOutput, configuration, st0, st1};
use super::transfer::{Stage, Transfer};
use crate::bus::DeviceContext;
use tollgate_disk::Operation;
use tollgate_platform::GuestTime;

/// A DMA channel that accepts no bytes is tried again after this time, in nanoseconds.
const POLL_TIME: u64 = 50_000;
/// Bytes are lost after this time in nanoseconds, which is one revolution.
const OVERRUN_TIME: u64 = 200_000_000;
/// The size of the FIFO in bytes.
const FIFO_BYTES: u8 = 16;

impl Floppy {
    /// Starts the transfer between the controller and its host.
    pub(super) fn begin_host(&mut self, context: &mut DeviceContext<'_>) {
        let now = context.now();
        let late = now.after(OVERRUN_TIME);
        let uses_dma = self.uses_dma();
        let Phase::Execution(transfer) = &mut self.state.phase else {
            return;
        };
        if transfer.data.is_empty() {
            return self.end_data(context);
        }
        if uses_dma {
            transfer.stage = Stage::Host { poll: now, late };
            self.move_by_dma(late, context);
        } else {
            // The processor may take any time: there is no deadline.
            let never = GuestTime(u64::MAX);
            transfer.stage = Stage::Host {
                poll: never,
                late: never,
            };
            self.begin_burst();
        }
    }

    pub(super) fn move_by_dma(&mut self, late: GuestTime, context: &mut DeviceContext<'_>) {
        let is_gated = self.state.output.contains(DigitalOutput::GATE);
        let Phase::Execution(transfer) = &mut self.state.phase else {
            return;
        };
        let now = context.now();
        context.dma().request(Self::CHANNEL, is_gated);
        if is_gated {
            let data = &mut transfer.data[transfer.moved..];
            let moved = match transfer.command.writes() {
                true => context.dma_from_memory(Self::CHANNEL, data),
                false => context.dma_to_memory(Self::CHANNEL, data),
            };
            transfer.moved += moved.bytes;
            transfer.terminal_count = moved.terminal_count;
        }
        let is_done = transfer.terminal_count || transfer.moved == transfer.data.len();
        if is_done {
            context.dma().request(Self::CHANNEL, false);
            self.end_host(context);
        } else if now >= late {
            context.dma().request(Self::CHANNEL, false);
            transfer.abort(st1::OVERRUN, 0, now);
            self.finish(context);
        } else {
            let poll = now.after(POLL_TIME);
            transfer.stage = Stage::Host { poll, late };
        }
    }

    /// Requests the next bytes from the processor.
    fn begin_burst(&mut self) {
        let burst = match self.state.configuration & configuration::NO_FIFO {
            0 => FIFO_BYTES - (self.state.configuration & configuration::THRESHOLD),
            _ => 1,
        };
        if let Phase::Execution(transfer) = &mut self.state.phase {
            transfer.burst = burst;
        }
        self.raise();
    }

    /// Counts a byte that the processor has transferred.
    fn count_byte(&mut self, context: &mut DeviceContext<'_>) {
        let Phase::Execution(transfer) = &mut self.state.phase else {
            return;
        };
        transfer.burst = transfer.burst.saturating_sub(1);
        let is_done = transfer.moved >= transfer.data.len();
        if is_done {
            self.set_interrupt(false);
            self.end_host(context);
        } else if transfer.burst == 0 {
            self.begin_burst();
        }
    }

    /// Returns the byte of data that the processor reads.
    pub(super) fn give_byte(&mut self, context: &mut DeviceContext<'_>) -> u8 {
        let uses_dma = self.uses_dma();
        let Phase::Execution(transfer) = &mut self.state.phase else {
            return 0;
        };
        let is_asked = matches!(transfer.stage, Stage::Host { .. }) && !transfer.command.writes();
        let byte = transfer.data.get(transfer.moved).copied();
        let Some(byte) = byte.filter(|_| is_asked && !uses_dma) else {
            return 0;
        };
        transfer.moved += 1;
        self.count_byte(context);
        byte
    }

    /// Takes the byte of data that the processor writes.
    pub(super) fn take_byte(&mut self, value: u8, context: &mut DeviceContext<'_>) {
        let uses_dma = self.uses_dma();
        let Phase::Execution(transfer) = &mut self.state.phase else {
            return;
        };
        let is_asked = matches!(transfer.stage, Stage::Host { .. }) && transfer.command.writes();
        let place = transfer.data.get_mut(transfer.moved);
        if let Some(place) = place.filter(|_| is_asked && !uses_dma) {
            *place = value;
            transfer.moved += 1;
            self.count_byte(context);
        }
    }

    /// Continues after all bytes have been transferred between controller and host.
    fn end_host(&mut self, context: &mut DeviceContext<'_>) {
        let Phase::Execution(transfer) = &mut self.state.phase else {
            return;
        };
        if !transfer.command.writes() {
            return self.end_data(context);
        }
        let writes = match transfer.command {
            Command::FormatTrack => match self.fill_sectors() {
                Some(writes) => writes,
                None => return self.finish(context),
            },
            _ => transfer.writes(),
        };
        let Phase::Execution(transfer) = &self.state.phase else {
            return;
        };
        let drive = transfer.drive;
        self.send(drive, writes, context);
    }

    /// Returns the writes of FORMAT TRACK. Returns `None` if the image has no such sectors, in
    /// which case the command has failed.
    fn fill_sectors(&mut self) -> Option<Vec<Operation>> {
        let rate = self.state.rate;
        let Phase::Execution(transfer) = &mut self.state.phase else {
            return None;
        };
        let drive = self.drives.get_mut(usize::from(transfer.drive));
        let found = drive.and_then(|drive| drive.readable(rate));
        let addresses = transfer.data[..transfer.moved].chunks_exact(4);
        let writes = found.and_then(|(disk, cylinder)| {
            let format = disk.format;
            let write = |address: &[u8]| {
                let is_there = address[0] == cylinder
                    && address[1] == transfer.head & 1
                    && (1..=format.sectors).contains(&address[2])
                    && address[3] == SECTOR_SIZE_CODE;
                is_there.then(|| Operation::Write {
                    offset: format.offset(cylinder, transfer.head & 1, address[2]),
                    data: vec![transfer.filler; SECTOR_BYTES].into(),
                    through: false,
                })
            };
            addresses.map(write).collect::<Option<Vec<_>>>()
        });
        match writes {
            Some(mut writes) => {
                writes.push(Operation::Flush);
                Some(writes)
            }
            None => {
                transfer.status[0] |= st0::ABNORMAL;
                transfer.status[1] |= st1::MISSING_ADDRESS_MARK;
                None
            }
        }
    }
}

impl Transfer {
    /// Returns the writes of a write command: whole sectors, the last of which is padded with
    /// zeros.
    fn writes(&self) -> Vec<Operation> {
        let mut left = self.moved.div_ceil(SECTOR_BYTES);
        let mut start = 0;
        let mut writes = Vec::new();
        for run in &self.runs {
            let sectors = run.sectors.min(left);
            left -= sectors;
            let end = start + sectors * SECTOR_BYTES;
            if sectors > 0 {
                writes.push(Operation::Write {
                    offset: run.offset,
                    data: self.data[start..end].to_vec().into(),
                    through: true,
                });
            }
            start = end;
        }
        writes
    }
}
