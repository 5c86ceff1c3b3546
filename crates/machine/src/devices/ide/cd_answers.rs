//! The answers of a CD-ROM drive about itself and about the disc, which has one session with one
//! data track (MMC-3, 5 and 6). Numbers have their most significant byte first.

use super::cd_drive::{CdDrive, MediaEvent, Sense};

/// The only class of events that the drive has: those of its medium.
pub(super) const MEDIA_EVENTS: u8 = 1 << 4;
/// ADR 1; control: a data track that may not be copied.
const DATA_TRACK: u8 = 0x14;
/// The track number of the lead-out.
const LEAD_OUT: u8 = 0xaa;
/// The speed in kilobytes per second: forty times that of an audio disc.
const SPEED: u16 = 40 * 176;
/// The tray can be moved, locked, and opened by a command.
const TRAY: u8 = 1 << 5 | 1 << 3 | 1;

/// Returns fixed-format sense data (SPC, 7.20.2).
pub(crate) fn sense(sense: Sense) -> Vec<u8> {
    let mut data = vec![0; 18];
    (data[0], data[2], data[7]) = (0x70, sense.key, 10);
    (data[12], data[13]) = (sense.code, sense.qualifier);
    data
}

/// Returns standard INQUIRY data (SPC, 7.3.2).
pub(super) fn inquiry() -> Vec<u8> {
    let mut data = vec![0; 36];
    // A removable CD-ROM device with ATAPI. 31 bytes follow the fifth.
    data[..5].copy_from_slice(&[5, 0x80, 0, 0x21, 31]);
    let texts = format!(
        "{:8}{:16}{:4}",
        "TOLLGATE",
        "CD-ROM",
        env!("CARGO_PKG_VERSION")
    );
    data[8..].copy_from_slice(&texts.as_bytes()[..28]);
    data
}

/// The answer to READ CAPACITY: the number of the last sector, and the size of a sector.
pub(super) fn capacity(sectors: u32) -> Vec<u8> {
    let last = sectors.saturating_sub(1).to_be_bytes();
    [last, 2048u32.to_be_bytes()].concat()
}

/// Returns a position: a sector number, or minutes, seconds and frames from the start of the disc.
fn position(sector: u32, in_msf: bool) -> [u8; 4] {
    if !in_msf {
        return sector.to_be_bytes();
    }
    let frames = u64::from(sector) + 150;
    let minute = (frames / (60 * 75)).min(255);
    [
        0,
        minute as u8,
        (frames / 75 % 60) as u8,
        (frames % 75) as u8,
    ]
}

/// The answer to READ TOC: the tracks, the sessions, or all entries of the lead-in. Returns `None`
/// for another format, or if there is no such track.
pub(super) fn contents(sectors: u32, format: u8, first: u8, in_msf: bool) -> Option<Vec<u8>> {
    let track = |number: u8, start: u32| {
        let mut entry = vec![0, DATA_TRACK, number, 0];
        entry.extend(position(start, in_msf));
        entry
    };
    // The first and the last track or session.
    let mut data = vec![0, 0, 1, 1];
    match format {
        0 => {
            if first > 1 && first != LEAD_OUT {
                return None;
            }
            if first <= 1 {
                data.extend(track(1, 0));
            }
            data.extend(track(LEAD_OUT, sectors));
        }
        1 => data.extend(track(1, 0)),
        2 => {
            let [_, minute, second, frame] = position(sectors, true);
            for (point, place) in [
                (0xa0, [1, 0, 0]),
                (0xa1, [1, 0, 0]),
                (0xa2, [minute, second, frame]),
                (1, [0, 2, 0]),
            ] {
                data.extend([1, DATA_TRACK, 0, point, 0, 0, 0, 0]);
                data.extend(place);
            }
        }
        _ => return None,
    }
    set_length(&mut data, 2);
    Some(data)
}

/// The answer to READ SUB-CHANNEL: no audio is played, and the drive is positioned at the start.
pub(super) fn sub_channel(has_position: bool) -> Vec<u8> {
    let mut data = vec![0, 0x15, 0, 0];
    if has_position {
        data.extend([1, DATA_TRACK, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0]);
        data[3] = 12;
    }
    data
}

/// The answer to READ DISC INFORMATION: a complete disc of one session with one track.
pub(super) fn disc_information() -> Vec<u8> {
    let mut data = vec![0; 34];
    data[..8].copy_from_slice(&[0, 32, 0b1110, 1, 1, 1, 1, 0x20]);
    // The disc cannot be written, so it has no address where writing could continue.
    data[16..24].fill(0xff);
    data
}

/// The answer to READ TRACK INFORMATION for the only track.
pub(super) fn track_information(sectors: u32) -> Vec<u8> {
    let mut data = vec![0; 28];
    // Track 1, session 1, data in mode 1.
    data[..7].copy_from_slice(&[0, 26, 1, 1, 0, 4, 1]);
    data[24..].copy_from_slice(&sectors.to_be_bytes());
    data
}

/// The answer to READ DVD STRUCTURE, physical format: one read-only layer.
pub(super) fn dvd_structure(sectors: u32) -> Vec<u8> {
    /// The first sector number of the data on a DVD.
    const START: u32 = 0x3_0000;
    let mut data = vec![0; 4 + 2048];
    set_length(&mut data, 2);
    data[4..7].copy_from_slice(&[1, 0x0f, 1]);
    data[8..12].copy_from_slice(&START.to_be_bytes());
    let last = START.saturating_add(sectors.saturating_sub(1)) & 0xff_ffff;
    data[12..16].copy_from_slice(&last.to_be_bytes());
    data
}

/// The answer to MECHANISM STATUS.
pub(super) fn mechanism_status(drive: &CdDrive) -> Vec<u8> {
    let door = u8::from(drive.condition.is_open) << 4;
    vec![0, door, 0, 0, 0, 1, 0, 0]
}

/// The answer to GET EVENT STATUS NOTIFICATION: an event of a supported class in the mask `wanted`.
pub(super) fn events(drive: &CdDrive, wanted: u8) -> Vec<u8> {
    /// No event of a requested class.
    const NOTHING: u8 = 1 << 7;
    /// The number of the class of media events.
    const MEDIA: u8 = 4;
    if wanted & MEDIA_EVENTS == 0 {
        return vec![0, 2, NOTHING, MEDIA_EVENTS];
    }
    let event = match drive.condition.event {
        MediaEvent::None => 0,
        MediaEvent::EjectRequest => 1,
        MediaEvent::New => 2,
        MediaEvent::Removed => 3,
    };
    let has_disc = drive.medium().is_some() && !drive.condition.is_open;
    let status = u8::from(has_disc) << 1 | u8::from(drive.condition.is_open);
    vec![0, 6, MEDIA, MEDIA_EVENTS, event, status, 0, 0]
}

/// The answer to GET CONFIGURATION (MMC-3, 5.3): the features from `first` on. `which` selects all
/// of them (0), those that the disc allows (1), or only the first (2).
pub(super) fn configuration(drive: &CdDrive, which: u8, first: u16) -> Vec<u8> {
    const DVD_ROM: u16 = 0x10;
    const CD_ROM: u16 = 0x08;
    let has_disc = drive.not_ready().is_none();
    let (is_cd, is_dvd) = (has_disc && !drive.is_dvd(), has_disc && drive.is_dvd());
    let profile = match (is_cd, is_dvd) {
        (true, _) => CD_ROM,
        (_, true) => DVD_ROM,
        _ => 0,
    };
    let listed = |profile: u16, is_current: bool| {
        let [high, low] = profile.to_be_bytes();
        [high, low, is_current.into(), 0]
    };
    let profiles = [listed(DVD_ROM, is_dvd), listed(CD_ROM, is_cd)].concat();
    // Each feature has a code, a version, whether it is persistent, whether it is current, and
    // further data.
    let features: [(u16, u8, bool, bool, Vec<u8>); 7] = [
        (0, 0, true, true, profiles),
        // Core: ATAPI.
        (1, 0, true, true, vec![0, 0, 0, 2]),
        // Morphing.
        (2, 0, true, true, vec![0; 4]),
        // Removable medium.
        (3, 0, true, true, vec![TRAY, 0, 0, 0]),
        // Random readable: sectors of 2048 bytes, one at a time; there is a mode page for errors.
        (0x10, 0, false, has_disc, vec![0, 0, 8, 0, 0, 1, 1, 0]),
        // CD read.
        (0x1e, 0, false, is_cd, vec![0; 4]),
        // DVD read.
        (0x1f, 0, false, is_dvd, Vec::new()),
    ];
    let [high, low] = profile.to_be_bytes();
    let mut data = vec![0, 0, 0, 0, 0, 0, high, low];
    for (code, version, is_persistent, is_current, more) in features {
        let is_wanted = match which {
            0 => code >= first,
            1 => code >= first && is_current,
            _ => code == first,
        };
        if is_wanted {
            data.extend(code.to_be_bytes());
            let state = version << 2 | u8::from(is_persistent) << 1 | u8::from(is_current);
            data.extend([state, more.len() as u8]);
            data.extend(more);
        }
    }
    let length = (data.len() as u32 - 4).to_be_bytes();
    data[..4].copy_from_slice(&length);
    data
}

/// The answer to MODE SENSE (MMC-3, 5.4): one page or all of them, with their values or, with
/// `of_changes`, with a mask of the bits that can be changed, which is empty. Returns `None` if
/// there is no such page.
pub(super) fn mode_pages(drive: &CdDrive, page: u8, of_changes: bool) -> Option<Vec<u8>> {
    const ALL: u8 = 0x3f;
    let [speed_high, speed_low] = SPEED.to_be_bytes();
    let locked = u8::from(drive.condition.is_locked) << 1;
    let pages: [Vec<u8>; 3] = [
        // Error recovery: five attempts.
        vec![0x01, 6, 0, 5, 0, 0, 0, 0],
        // CD parameters: 60 seconds in a minute, 75 frames in a second.
        vec![0x0d, 6, 0, 0x0d, 0, 60, 0, 75],
        // Capabilities: the drive reads CD-R, CD-RW and DVD-ROM, both forms of mode 2, and several
        // sessions, and has 512 KiB of buffer.
        vec![
            0x2a,
            18,
            0x0b,
            0,
            0x70,
            0,
            TRAY | locked,
            0,
            speed_high,
            speed_low,
            0,
            0,
            2,
            0,
            speed_high,
            speed_low,
            0,
            0,
            0,
            0,
        ],
    ];
    let medium = match (drive.condition.is_open, drive.medium()) {
        (true, _) => 0x71,
        (false, None) => 0x70,
        (false, Some(_)) => 0x01,
    };
    let mut data = vec![0, 0, medium, 0, 0, 0, 0, 0];
    let header = data.len();
    for mut found in pages {
        if page == ALL || page == found[0] {
            if of_changes {
                found[2..].fill(0);
            }
            data.extend(found);
        }
    }
    set_length(&mut data, 2);
    (data.len() > header).then_some(data)
}

/// Stores the number of bytes after the first `size` there, in 16 bits.
fn set_length(data: &mut [u8], size: usize) {
    let length = (data.len() - size) as u16;
    data[..2].copy_from_slice(&length.to_be_bytes());
}
