//! Moves the data of an IDE command, piece by piece: between image and buffer by the image's
//! thread, and between buffer and host through the data register or by the bus master.

use super::cd_drive::Sense;
use super::channel::{Channel, Direction, Transfer, Way, Work};
use super::disk::PIECE;
use super::registers::error;
use super::unit::Unit;
use crate::bus::DeviceContext;
use crate::devices::medium::{Medium, SECTOR};
use tollgate_disk::{Buffer, Operation, Outcome};

impl Channel {
    /// Lets the host move a piece: one that was read, or one that it must fill.
    pub(super) fn begin_host(
        &mut self,
        mut transfer: Transfer,
        asks: bool,
        context: &mut DeviceContext<'_>,
    ) {
        if transfer.direction == Direction::Write {
            transfer.data = vec![0; (transfer.sectors.min(PIECE) * SECTOR) as usize];
        }
        transfer.moved = 0;
        let transfer_way = transfer.way;
        let is_dma = transfer_way == Way::Dma;
        self.state.work = Work::Host(transfer);
        if is_dma {
            self.run_master(context);
        } else if matches!(transfer_way, Way::PacketBlocks { .. }) {
            self.begin_block();
        } else if asks {
            self.set_request(true);
        }
    }

    /// Lets the bus master move as many bytes as it can.
    pub(super) fn run_master(&mut self, context: &mut DeviceContext<'_>) {
        use super::bus_master::Stopped;
        let Work::Host(transfer) = &mut self.state.work else {
            return;
        };
        if transfer.way != Way::Dma || !self.may_master {
            return;
        }
        let to_memory = transfer.direction != Direction::Write;
        let (data, moved) = (&mut transfer.data, &mut transfer.moved);
        let stopped = (self.state.master).run(data, moved, to_memory, context.memory());
        if stopped == Stopped::Done {
            self.end_piece(context);
        }
    }

    /// Handles a read of bytes from the data register.
    pub(super) fn read_data(&mut self, data: &mut [u8], context: &mut DeviceContext<'_>) {
        let Work::Host(transfer) = &mut self.state.work else {
            return;
        };
        let end = match transfer.way {
            Way::Blocks(_) => transfer.data.len(),
            Way::PacketBlocks { end, .. } => end,
            Way::Dma => return,
        };
        if transfer.direction == Direction::Write {
            return;
        }
        let rest = &transfer.data[transfer.moved..end];
        let count = data.len().min(rest.len());
        data[..count].copy_from_slice(&rest[..count]);
        self.count_data(count, context);
    }

    /// Handles a write of bytes to the data register.
    pub(super) fn write_data(&mut self, data: &[u8], context: &mut DeviceContext<'_>) {
        let Work::Host(transfer) = &mut self.state.work else {
            return self.take_packet(data, context);
        };
        if transfer.way == Way::Dma || transfer.direction != Direction::Write {
            return;
        }
        let rest = &mut transfer.data[transfer.moved..];
        let count = data.len().min(rest.len());
        rest[..count].copy_from_slice(&data[..count]);
        self.count_data(count, context);
    }

    fn count_data(&mut self, count: usize, context: &mut DeviceContext<'_>) {
        let Work::Host(transfer) = &mut self.state.work else {
            return;
        };
        let before = transfer.moved;
        transfer.moved += count;
        if transfer.moved >= transfer.data.len() {
            return self.end_piece(context);
        }
        match transfer.way {
            Way::Blocks(block) if transfer.moved / block.max(1) != before / block.max(1) => {
                self.set_request(false);
                self.set_request(true);
            }
            Way::PacketBlocks { end, .. } if transfer.moved >= end => self.begin_block(),
            _ => {}
        }
    }

    /// Continues after a whole piece has moved between the host and the buffer.
    fn end_piece(&mut self, context: &mut DeviceContext<'_>) {
        let Work::Host(mut transfer) = std::mem::take(&mut self.state.work) else {
            return;
        };
        match transfer.direction {
            Direction::Write => {
                let Some(disk) = self.disk() else { return };
                let tag = disk.medium.send(Operation::Write {
                    offset: transfer.sector * SECTOR,
                    data: std::mem::take(&mut transfer.data).into(),
                    through: transfer.through,
                });
                self.tags.push_back(tag);
                self.state.work = Work::Disk(transfer);
            }
            _ => self.next_piece(transfer, context),
        }
    }

    /// Continues after a piece has reached its destination: with the next piece, or with the end of
    /// the command.
    fn next_piece(&mut self, mut transfer: Transfer, context: &mut DeviceContext<'_>) {
        let done = transfer.sectors.min(PIECE);
        transfer.sector += done;
        transfer.sectors -= done;
        let is_read_by_blocks = matches!(transfer.way, Way::Blocks(_))
            && matches!(transfer.direction, Direction::Read | Direction::Answer);
        if transfer.sectors == 0
            && transfer.direction != Direction::Answer
            && let Some(disk) = self.disk()
        {
            disk.note_progress(transfer.sector.saturating_sub(1), 0, transfer.is_long);
        }
        if transfer.sectors > 0 {
            match transfer.direction {
                Direction::Write => self.begin_host(transfer, true, context),
                _ => self.read_piece(transfer),
            }
        } else if is_read_by_blocks {
            // The interrupt came before the last block.
            self.state.work = Work::Nothing;
        } else if self.cd_drive().is_some() {
            self.end_packet();
        } else {
            self.end();
        }
    }

    /// Takes the operations that the image's thread has finished.
    pub(super) fn complete(&mut self, context: &mut DeviceContext<'_>) {
        for index in 0..self.units.len() {
            let medium = self.units[index].as_ref().and_then(Unit::medium);
            let outcomes = medium.map(Medium::take);
            for Outcome { tag, result } in outcomes.unwrap_or_default() {
                let is_awaited = index == self.index() && self.tags.front() == Some(&tag);
                if is_awaited {
                    self.tags.pop_front();
                    self.go_on(result, context);
                }
            }
        }
    }

    /// Continues the command after the image's thread has finished the operations that it waited
    /// for.
    fn go_on(&mut self, result: Result<Buffer, ()>, context: &mut DeviceContext<'_>) {
        if let (Work::Disk(transfer), Err(())) = (&self.state.work, &result) {
            let (sector, left, is_long) = (transfer.sector, transfer.sectors, transfer.is_long);
            if let Some(disk) = self.disk() {
                disk.note_progress(sector, left, is_long);
            }
        }
        match (std::mem::take(&mut self.state.work), result) {
            (Work::Disk(_) | Work::Flush, Err(())) => match self.cd_drive() {
                Some(_) => self.fail_packet(Sense::READ_ERROR),
                None => self.fail(error::UNCORRECTABLE),
            },
            (Work::Flush, Ok(_)) => self.end(),
            (Work::Disk(mut transfer), Ok(data)) => match transfer.direction {
                Direction::Read => {
                    transfer.data = data.into();
                    self.begin_host(transfer, true, context);
                }
                _ => self.next_piece(transfer, context),
            },
            (other, _) => self.state.work = other,
        }
    }

    /// Ends a successful command.
    pub(super) fn end(&mut self) {
        self.state.work = Work::Nothing;
        self.set_request(true);
    }

    /// Ends a command with an error.
    pub(super) fn fail(&mut self, error: u8) {
        self.state.work = Work::Nothing;
        self.state.failed = true;
        if let Some(unit) = self.unit() {
            unit.registers_mut().error = error;
        }
        self.set_request(true);
    }
}
