//! Commands of the floppy disk controller that transfer no data (data sheet, 5.2).

use super::command::{Command, INWARDS};
use super::controller::{Floppy, Motion};
use super::registers::{configuration, st0, st3};
use crate::bus::DeviceContext;

/// The time of a movement of the heads of any length, in nanoseconds.
const SEEK_TIME: u64 = 200_000;
/// The maximum number of steps of RECALIBRATE (5.2.2).
const RECALIBRATE_STEPS: u8 = 79;
/// The result of VERSION: an enhanced controller.
const VERSION: u8 = 0x90;

impl Floppy {
    /// Executes a command of which all bytes have arrived.
    pub(super) fn execute(
        &mut self,
        command: Command,
        bytes: &[u8],
        context: &mut DeviceContext<'_>,
    ) {
        let byte = |index: usize| bytes.get(index).copied().unwrap_or(0);
        let drive = byte(1) & 3;
        let state = &mut self.state;
        match command {
            Command::ReadData
            | Command::ReadDeletedData
            | Command::WriteData
            | Command::WriteDeletedData
            | Command::ReadTrack
            | Command::Verify
            | Command::FormatTrack
            | Command::ReadId => self.begin_transfer(command, bytes, context),
            Command::Recalibrate => {
                self.answer(&[]);
                self.recalibrate(drive, context);
            }
            Command::Seek => {
                self.answer(&[]);
                self.seek(drive, byte(2));
                self.end_motion(drive, st0::SEEK_END | byte(1) & 7, context);
            }
            Command::RelativeSeek => {
                let present = state.present[usize::from(drive)];
                let to = match byte(0) & INWARDS {
                    0 => present.saturating_sub(byte(2)),
                    _ => present.saturating_add(byte(2)),
                };
                self.answer(&[]);
                self.seek(drive, to);
                self.end_motion(drive, st0::SEEK_END | byte(1) & 7, context);
            }
            Command::SenseInterrupt => self.sense_interrupt(),
            Command::Specify => {
                state.specify = [byte(1), byte(2)];
                self.answer(&[]);
            }
            Command::SenseDriveStatus => {
                let status = self.drive_status(byte(1));
                self.answer(&[status]);
            }
            Command::Configure => {
                state.configuration = byte(2) & 0x7f;
                state.precompensation = byte(3);
                self.answer(&[]);
            }
            Command::DumpRegisters => {
                let [p0, p1, p2, p3] = state.present;
                let [timings, load] = state.specify;
                let lock = u8::from(state.is_locked) << 7;
                let result = [
                    p0,
                    p1,
                    p2,
                    p3,
                    timings,
                    load,
                    state.track_end,
                    lock | state.perpendicular & 0x3f,
                    state.configuration,
                    state.precompensation,
                ];
                self.answer(&result);
            }
            Command::Version => self.answer(&[VERSION]),
            Command::PerpendicularMode => {
                // The bits of the drives change only if the highest bit is set (5.2.9).
                let mode = byte(1);
                state.perpendicular = match mode & 0x80 {
                    0 => state.perpendicular & 0x3c | mode & 3,
                    _ => mode & 0x3f,
                };
                self.answer(&[]);
            }
            Command::Lock => {
                state.is_locked = byte(0) & 0x80 != 0;
                let lock = u8::from(state.is_locked) << 4;
                self.answer(&[lock]);
            }
            Command::Invalid => self.answer(&[st0::INVALID]),
        }
    }

    /// Moves the heads by the distance between the new cylinder and the one where the controller
    /// assumes them to be.
    pub(super) fn seek(&mut self, drive: u8, to: u8) {
        let index = usize::from(drive & 3);
        let from = std::mem::replace(&mut self.state.present[index], to);
        if let Some(drive) = self.drives.get_mut(index) {
            let stands = i16::from(drive.mechanics.cylinder);
            let reached = stands + i16::from(to) - i16::from(from);
            drive.step(reached.clamp(0, 255) as u8);
        }
    }

    fn recalibrate(&mut self, drive: u8, context: &mut DeviceContext<'_>) {
        let index = usize::from(drive);
        self.state.present[index] = 0;
        let is_at_0 = match self.drives.get_mut(index) {
            Some(drive) => {
                drive.step(drive.mechanics.cylinder.saturating_sub(RECALIBRATE_STEPS));
                drive.mechanics.cylinder == 0
            }
            None => false,
        };
        let end = match is_at_0 {
            true => 0,
            false => st0::ABNORMAL | st0::EQUIPMENT_CHECK,
        };
        self.end_motion(drive, end | st0::SEEK_END | drive, context);
    }

    /// Schedules the interrupt for the time when the heads arrive.
    fn end_motion(&mut self, drive: u8, st0: u8, context: &DeviceContext<'_>) {
        let ends = context.now().after(SEEK_TIME);
        self.state.motions[usize::from(drive & 3)] = Some(Motion { ends, st0 });
    }

    fn sense_interrupt(&mut self) {
        let Some(sense) = self.state.senses.pop_front() else {
            return self.answer(&[st0::INVALID]);
        };
        self.set_interrupt(false);
        let is_polled = sense.st0 & st0::READY_CHANGED == st0::READY_CHANGED;
        if !is_polled && !self.state.senses.is_empty() {
            // Another drive's seek has ended in the meantime.
            self.set_interrupt(true);
        }
        let present = self.state.present[usize::from(sense.drive & 3)];
        self.answer(&[sense.st0, present]);
    }

    fn drive_status(&self, selected: u8) -> u8 {
        let mut status = st3::ALWAYS | selected & 7;
        if let Some(drive) = self.drives.get(usize::from(selected & 3)) {
            if drive.mechanics.cylinder == 0 {
                status |= st3::TRACK_0;
            }
            let disk = drive.disk.as_ref();
            if disk.is_some_and(|disk| !disk.medium.is_writable()) {
                status |= st3::WRITE_PROTECTED;
            }
        }
        status
    }

    pub(super) const fn seeks_by_itself(&self) -> bool {
        self.state.configuration & configuration::IMPLIED_SEEK != 0
    }
}
