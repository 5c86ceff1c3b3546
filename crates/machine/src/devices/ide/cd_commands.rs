//! The commands of a CD-ROM drive (MMC-3, 6; SCSI Primary Commands, 7).

use super::cd_answers as answers;
use super::cd_drive::{CdDrive, MediaEvent, Sense};

/// The size of a command packet in bytes.
pub(super) const PACKET_BYTES: usize = 12;

/// The operation codes.
mod command {
    pub const TEST_UNIT_READY: u8 = 0x00;
    pub const REQUEST_SENSE: u8 = 0x03;
    pub const INQUIRY: u8 = 0x12;
    pub const START_STOP: u8 = 0x1b;
    pub const PREVENT_REMOVAL: u8 = 0x1e;
    pub const READ_CAPACITY: u8 = 0x25;
    pub const READ_10: u8 = 0x28;
    pub const SEEK: u8 = 0x2b;
    pub const READ_SUB_CHANNEL: u8 = 0x42;
    pub const READ_TOC: u8 = 0x43;
    pub const GET_CONFIGURATION: u8 = 0x46;
    pub const GET_EVENT_STATUS: u8 = 0x4a;
    pub const READ_DISC_INFORMATION: u8 = 0x51;
    pub const READ_TRACK_INFORMATION: u8 = 0x52;
    pub const MODE_SENSE: u8 = 0x5a;
    pub const READ_12: u8 = 0xa8;
    pub const READ_DVD_STRUCTURE: u8 = 0xad;
    pub const READ_CD_MSF: u8 = 0xb9;
    pub const SET_SPEED: u8 = 0xbb;
    pub const MECHANISM_STATUS: u8 = 0xbd;
    pub const READ_CD: u8 = 0xbe;
}

/// The result of a command.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// The command has ended.
    Done,
    /// These bytes go to the host.
    Data(Vec<u8>),
    /// `count` sectors of the disc go to the host, beginning at `first`.
    Sectors { first: u32, count: u32 },
}

/// A packet, whose numbers have their most significant byte first.
struct Packet<'a>(&'a [u8; PACKET_BYTES]);

impl Packet<'_> {
    fn u16(&self, at: usize) -> usize {
        usize::from(self.0[at]) << 8 | usize::from(self.0[at + 1])
    }

    fn u24(&self, at: usize) -> u32 {
        u32::from(self.0[at]) << 16 | self.u16(at + 1) as u32
    }

    fn u32(&self, at: usize) -> u32 {
        (self.u16(at) as u32) << 16 | self.u16(at + 2) as u32
    }

    /// Returns the sector at a position in minutes, seconds and frames. The first two seconds of a
    /// disc precede its sectors.
    fn sector_of_msf(&self, at: usize) -> Option<u32> {
        let [minute, second, frame] = [0, 1, 2].map(|offset| u32::from(self.0[at + offset]));
        ((minute * 60 + second) * 75 + frame).checked_sub(150)
    }
}

impl CdDrive {
    /// Executes a command.
    pub(crate) fn execute(&mut self, bytes: &[u8; PACKET_BYTES]) -> Result<Reply, Sense> {
        use command as c;
        let code = bytes[0];
        let sense = std::mem::take(&mut self.condition.sense);
        let tells_anyway = matches!(
            code,
            c::INQUIRY | c::REQUEST_SENSE | c::GET_CONFIGURATION | c::GET_EVENT_STATUS
        );
        if !tells_anyway && let Some(attention) = self.take_attention() {
            return Err(attention);
        }
        let needs_disc = matches!(
            code,
            c::TEST_UNIT_READY
                | c::READ_CAPACITY
                | c::READ_10
                | c::READ_12
                | c::READ_CD
                | c::READ_CD_MSF
                | c::SEEK
                | c::READ_SUB_CHANNEL
                | c::READ_TOC
                | c::READ_DISC_INFORMATION
                | c::READ_TRACK_INFORMATION
                | c::READ_DVD_STRUCTURE
        );
        if needs_disc && let Some(sense) = self.not_ready() {
            return Err(sense);
        }
        let packet = Packet(bytes);
        match code {
            c::TEST_UNIT_READY | c::SET_SPEED => Ok(Reply::Done),
            c::REQUEST_SENSE => {
                let sense = match sense {
                    Sense::NONE => self.take_attention().unwrap_or_default(),
                    sense => sense,
                };
                Ok(cut(answers::sense(sense), bytes[4].into()))
            }
            // There are no pages of vital product data.
            c::INQUIRY if bytes[1] & 1 != 0 || bytes[2] != 0 => Err(Sense::BAD_FIELD),
            c::INQUIRY => Ok(cut(answers::inquiry(), bytes[4].into())),
            c::START_STOP => self.start_stop(bytes[4]),
            c::PREVENT_REMOVAL => {
                self.condition.is_locked = bytes[4] & 1 != 0;
                Ok(Reply::Done)
            }
            c::READ_CAPACITY => Ok(Reply::Data(answers::capacity(self.sectors()))),
            c::READ_10 => self.read(packet.u32(2), packet.u16(7) as u32),
            c::READ_12 => self.read(packet.u32(2), packet.u32(6)),
            c::READ_CD => self.read_cd(Some(packet.u32(2)), packet.u24(6), bytes),
            c::READ_CD_MSF => {
                let (first, end) = (packet.sector_of_msf(3), packet.sector_of_msf(6));
                let count = end.unwrap_or(0).checked_sub(first.unwrap_or(0));
                self.read_cd(first, count.ok_or(Sense::BAD_FIELD)?, bytes)
            }
            c::SEEK => match packet.u32(2) < self.sectors() {
                true => Ok(Reply::Done),
                false => Err(Sense::OUT_OF_RANGE),
            },
            c::READ_SUB_CHANNEL => {
                let has_position = bytes[2] & 0x40 != 0;
                if has_position && bytes[3] != 1 {
                    return Err(Sense::BAD_FIELD);
                }
                Ok(cut(answers::sub_channel(has_position), packet.u16(7)))
            }
            c::READ_TOC => {
                // Older drivers put the format into the last byte.
                let format = match bytes[2] & 0xf {
                    0 => bytes[9] >> 6,
                    format => format,
                };
                let in_msf = bytes[1] & 2 != 0;
                let contents = answers::contents(self.sectors(), format, bytes[6], in_msf);
                Ok(cut(contents.ok_or(Sense::BAD_FIELD)?, packet.u16(7)))
            }
            c::GET_CONFIGURATION => {
                let (which, first) = (bytes[1] & 3, packet.u16(2) as u16);
                if which == 3 {
                    return Err(Sense::BAD_FIELD);
                }
                let features = answers::configuration(self, which, first);
                Ok(cut(features, packet.u16(7)))
            }
            // Only polling for events is supported: the drive sends none by itself.
            c::GET_EVENT_STATUS if bytes[1] & 1 == 0 => Err(Sense::BAD_FIELD),
            c::GET_EVENT_STATUS => {
                let events = answers::events(self, bytes[4]);
                if bytes[4] & answers::MEDIA_EVENTS != 0 && packet.u16(7) > 4 {
                    self.condition.event = MediaEvent::None;
                }
                Ok(cut(events, packet.u16(7)))
            }
            c::READ_DISC_INFORMATION => Ok(cut(answers::disc_information(), packet.u16(7))),
            c::READ_TRACK_INFORMATION => {
                let is_there = match bytes[1] & 3 {
                    0 => packet.u32(2) < self.sectors(),
                    _ => packet.u32(2) == 1,
                };
                let information = answers::track_information(self.sectors());
                match is_there {
                    true => Ok(cut(information, packet.u16(7))),
                    false => Err(Sense::BAD_FIELD),
                }
            }
            c::MODE_SENSE => match bytes[2] >> 6 {
                3 => Err(Sense::NOTHING_SAVED),
                values => {
                    let pages = answers::mode_pages(self, bytes[2] & 0x3f, values == 1);
                    Ok(cut(pages.ok_or(Sense::BAD_FIELD)?, packet.u16(7)))
                }
            },
            c::READ_DVD_STRUCTURE if !self.is_dvd() || bytes[7] != 0 || bytes[6] != 0 => {
                Err(Sense::BAD_FIELD)
            }
            c::READ_DVD_STRUCTURE => {
                let structure = answers::dvd_structure(self.sectors());
                Ok(cut(structure, packet.u16(8)))
            }
            c::MECHANISM_STATUS => Ok(cut(answers::mechanism_status(self), packet.u16(8))),
            _ => Err(Sense::NO_SUCH_COMMAND),
        }
    }

    /// Takes the condition that must be reported to the host before any other command is executed.
    pub(crate) fn take_attention(&mut self) -> Option<Sense> {
        if std::mem::take(&mut self.condition.was_reset) {
            return Some(Sense::WAS_RESET);
        }
        std::mem::take(&mut self.condition.was_changed).then_some(Sense::DISC_CHANGED)
    }

    /// Executes START STOP UNIT: opens or closes the tray.
    fn start_stop(&mut self, what: u8) -> Result<Reply, Sense> {
        const START: u8 = 1;
        const LOAD_EJECT: u8 = 2;
        if what & LOAD_EJECT != 0 {
            self.move_tray(what & START == 0)?;
        }
        Ok(Reply::Done)
    }

    fn read(&self, first: u32, count: u32) -> Result<Reply, Sense> {
        match first.checked_add(count) {
            Some(end) if end <= self.sectors() => Ok(match count {
                0 => Reply::Done,
                count => Reply::Sectors { first, count },
            }),
            _ => Err(Sense::OUT_OF_RANGE),
        }
    }

    /// Executes READ CD and READ CD MSF. Only the user data of mode 1 sectors can be read.
    fn read_cd(
        &self,
        first: Option<u32>,
        count: u32,
        packet: &[u8; PACKET_BYTES],
    ) -> Result<Reply, Sense> {
        const USER_DATA: u8 = 0x10;
        let kind = packet[1] >> 2 & 7;
        let first = first.ok_or(Sense::OUT_OF_RANGE)?;
        match (packet[9] & 0xf8, kind) {
            // No data is requested, but the sectors must exist.
            (0, _) => self.read(first, count).map(|_| Reply::Done),
            (USER_DATA, 0 | 2) if packet[9] & 6 == 0 && packet[10] == 0 => self.read(first, count),
            _ => Err(Sense::BAD_FIELD),
        }
    }
}

/// Truncates an answer to the host's room for it.
fn cut(mut data: Vec<u8>, room: usize) -> Reply {
    data.truncate(room);
    match data.is_empty() {
        true => Reply::Done,
        false => Reply::Data(data),
    }
}
