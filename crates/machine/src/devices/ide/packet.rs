//! How an IDE packet device takes commands and moves their data (ATA/ATAPI-6, 8.23 and 9.7).
//!
//! ```text
//!   PACKET ──> the host writes 12 bytes ──> data, block by block ──> status
//!              interrupt reason 1           reason 2, an interrupt   reason 3, an interrupt
//!                                           for each, or by the
//!                                           bus master
//! ```

use super::cd_commands::{PACKET_BYTES, Reply};
use super::cd_drive::{CdDrive, SECTOR_BYTES, Sense};
use super::channel::{Channel, Direction, Transfer, Way, Work};
use super::command;
use super::identify::identify_packet_device;
use super::registers::error;
use super::unit::Unit;
use crate::bus::DeviceContext;
use crate::devices::medium::SECTOR;
use serde::{Deserialize, Serialize};

/// The interrupt reason, which the count register of a packet device shows (7.13).
mod reason {
    pub const COMMAND: u8 = 1;
    pub const DATA_TO_HOST: u8 = 2;
    pub const STATUS: u8 = 3;
}

/// In the features of PACKET: the bus master moves the data.
const FEATURE_DMA: u8 = 1;
/// In the features of PACKET: the device may release the bus, which this one does not.
const FEATURE_OVERLAP: u8 = 1 << 1;

/// A command packet that the host is writing.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Packet {
    bytes: Vec<u8>,
    way: Way,
}

impl Channel {
    /// Returns the selected unit if it is a CD-ROM drive.
    pub(super) fn cd_drive(&mut self) -> Option<&mut CdDrive> {
        match self.unit()? {
            Unit::CdDrive(drive) => Some(drive),
            Unit::Disk(_) => None,
        }
    }

    /// Executes DEVICE RESET, which a packet device accepts at any time. Returns false for any
    /// other command or device.
    pub(super) fn resets_device(&mut self, code: u8) -> bool {
        if code != command::DEVICE_RESET || self.cd_drive().is_none() {
            return false;
        }
        self.state.work = Work::Nothing;
        self.state.failed = false;
        self.tags.clear();
        if let Some(unit) = self.unit() {
            unit.set_signature();
        }
        self.set_request(false);
        true
    }

    /// Executes a command of a packet device.
    pub(super) fn obey_packet_device(&mut self, code: u8) {
        use command as c;
        let Some(drive) = self.cd_drive() else { return };
        drive.registers.error = 0;
        drive.is_ready = true;
        match code {
            c::PACKET => self.begin_packet(),
            c::IDENTIFY_PACKET => {
                let data = identify_packet_device(drive);
                self.answer(data);
            }
            c::SET_FEATURES => self.set_features(),
            c::CHECK_POWER => self.check_power(),
            c::STANDBY_NOW | c::IDLE_NOW | c::STANDBY | c::IDLE | c::SLEEP | c::FLUSH => self.end(),
            _ => {
                // A host that asks for a disk is shown the signature of a packet device (8.15.5.2).
                let (mid, high) = CdDrive::SIGNATURE;
                let registers = &mut drive.registers;
                (registers.count, registers.low) = ([1, 0], [1, 0]);
                (registers.mid, registers.high) = ([mid, 0], [high, 0]);
                self.fail(error::ABORTED);
            }
        }
    }

    fn begin_packet(&mut self) {
        let Some(drive) = self.cd_drive() else { return };
        let registers = &mut drive.registers;
        if registers.features & FEATURE_OVERLAP != 0 {
            return self.fail(error::ABORTED);
        }
        let limit = usize::from(registers.mid[0]) | usize::from(registers.high[0]) << 8;
        // Blocks have an even size, except for the last one.
        let limit = match limit & !1 {
            0 => 0xfffe,
            limit => limit,
        };
        registers.count = [reason::COMMAND, 0];
        let way = match registers.features & FEATURE_DMA {
            0 => Way::PacketBlocks { limit, end: 0 },
            _ => Way::Dma,
        };
        let bytes = Vec::with_capacity(PACKET_BYTES);
        self.state.work = Work::Packet(Packet { bytes, way });
    }

    /// Handles bytes of a command packet from the host.
    pub(super) fn take_packet(&mut self, data: &[u8], context: &mut DeviceContext<'_>) {
        let Work::Packet(packet) = &mut self.state.work else {
            return;
        };
        let room = PACKET_BYTES.saturating_sub(packet.bytes.len());
        packet
            .bytes
            .extend_from_slice(&data[..data.len().min(room)]);
        let way = packet.way;
        if let Ok(bytes) = <[u8; PACKET_BYTES]>::try_from(packet.bytes.as_slice()) {
            self.state.work = Work::Nothing;
            self.execute_packet(&bytes, way, context);
        }
    }

    fn execute_packet(
        &mut self,
        bytes: &[u8; PACKET_BYTES],
        way: Way,
        context: &mut DeviceContext<'_>,
    ) {
        let Some(drive) = self.cd_drive() else { return };
        let transfer = |direction, sector, sectors, data| Transfer {
            direction,
            way,
            sector,
            sectors,
            data,
            moved: 0,
            through: false,
            is_long: false,
        };
        match drive.execute(bytes) {
            Ok(Reply::Done) => self.end_packet(),
            Ok(Reply::Data(data)) => {
                self.state.work = Work::Host(transfer(Direction::Answer, 0, 0, data));
                match way {
                    Way::Dma => self.run_master(context),
                    _ => self.begin_block(),
                }
            }
            Ok(Reply::Sectors { first, count }) => {
                let sectors = |count: u32| u64::from(count) * (SECTOR_BYTES / SECTOR);
                let (first, count) = (sectors(first), sectors(count));
                self.read_piece(transfer(Direction::Read, first, count, Vec::new()));
            }
            Err(sense) => self.fail_packet(sense),
        }
    }

    /// Offers the next block of a piece to the host.
    pub(super) fn begin_block(&mut self) {
        let Work::Host(transfer) = &mut self.state.work else {
            return;
        };
        let Way::PacketBlocks { limit, end } = &mut transfer.way else {
            return;
        };
        *end = (transfer.moved + *limit).min(transfer.data.len());
        let [low, high, ..] = (*end - transfer.moved).to_le_bytes();
        if let Some(drive) = self.cd_drive() {
            let registers = &mut drive.registers;
            registers.count = [reason::DATA_TO_HOST, 0];
            (registers.mid, registers.high) = ([low, 0], [high, 0]);
        }
        self.set_request(false);
        self.set_request(true);
    }

    /// Ends a successful command.
    pub(super) fn end_packet(&mut self) {
        if let Some(drive) = self.cd_drive() {
            drive.registers.count = [reason::STATUS, 0];
        }
        self.end();
    }

    /// Ends a command with an error. The host will request the reason.
    pub(super) fn fail_packet(&mut self, sense: Sense) {
        if let Some(drive) = self.cd_drive() {
            drive.registers.count = [reason::STATUS, 0];
            drive.condition.sense = sense;
        }
        self.fail(sense.key << 4 | error::ABORTED);
    }

    /// Handles a change of a unit's disc: data that was being read from the old disc is lost.
    pub(super) fn disc_changed(&mut self, unit: usize) {
        let reads = match &self.state.work {
            Work::Disk(_) => true,
            Work::Host(transfer) => transfer.direction == Direction::Read,
            _ => false,
        };
        if unit == self.index() && reads {
            self.tags.clear();
            self.fail_packet(Sense::NO_DISC);
        }
    }
}
