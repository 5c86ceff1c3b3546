//! The floppy disk controller: its registers, its phases and its interrupt.

use super::command::Command;
use super::drive::{Drive, Mechanics};
use super::registers::{
    DISK_CHANGED, DigitalOutput, MainStatus, RATE, RATE_SELECT_RESET, SPECIFY_NO_DMA,
    configuration, port, st0,
};
use super::transfer::{Stage, Transfer};
use crate::board::IrqLine;
use crate::bus::DeviceContext;
use crate::bus::completion::Completer;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use tollgate_disk::DriveOptions;
use tollgate_platform::GuestTime;

/// The phase of a command.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Phase {
    /// These bytes of a command have arrived. Without any, no command is in progress.
    Command(Vec<u8>),
    /// Data is transferred or searched for.
    Execution(Transfer),
    /// These bytes of the result have not been read yet. The interrupt announces them.
    Result(VecDeque<u8>),
}

impl Phase {
    pub const fn idle() -> Self {
        Self::Command(Vec::new())
    }
}

/// The result of SENSE INTERRUPT STATUS: status register 0 and the present cylinder.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Sense {
    pub st0: u8,
    pub drive: u8,
}

/// Heads that are moving.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Motion {
    pub ends: GuestTime,
    pub st0: u8,
}

/// The saved state, except for the mechanics of the drives.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct State {
    pub output: DigitalOutput,
    tape: u8,
    pub rate: u8,
    pub specify: [u8; 2],
    pub configuration: u8,
    pub precompensation: u8,
    pub perpendicular: u8,
    pub is_locked: bool,
    /// The last sector of a track, or the number of its sectors, as the last command gave it.
    pub track_end: u8,
    /// The cylinder of each drive's heads, as the controller assumes it.
    pub present: [u8; 4],
    pub phase: Phase,
    /// The level of INT before the gate.
    interrupt: bool,
    pub irq: IrqLine,
    pub senses: VecDeque<Sense>,
    pub motions: [Option<Motion>; 4],
    /// When the interrupt after a reset comes.
    reset_ends: Option<GuestTime>,
}

impl State {
    /// The state after a hardware reset: the reset bit of the digital output register is 0.
    fn new() -> Self {
        Self {
            output: DigitalOutput::empty(),
            tape: 0,
            rate: 2,
            specify: [0; 2],
            configuration: configuration::NO_FIFO,
            precompensation: 0,
            perpendicular: 0,
            is_locked: false,
            track_end: 0,
            present: [0; 4],
            phase: Phase::idle(),
            interrupt: false,
            irq: IrqLine::low(),
            senses: VecDeque::new(),
            motions: [None; 4],
            reset_ends: None,
        }
    }
}

/// The work of an image's thread for the command in execution.
#[derive(Debug)]
pub(super) struct DiskWork {
    pub drive: usize,
    /// The tags of the operations, in order.
    pub tags: VecDeque<u64>,
    /// The data that was read.
    pub data: Vec<u8>,
    pub failed: bool,
}

/// The floppy disk controller with its drives.
#[derive(Debug)]
pub struct Floppy {
    pub(super) drives: Vec<Drive>,
    pub(super) state: State,
    pub(super) work: Option<DiskWork>,
    pub(super) completer: Option<Completer>,
}

/// The time from the end of a reset to its interrupt, in nanoseconds.
const RESET_TIME: u64 = 50_000;

impl Floppy {
    /// The ISA interrupt line.
    pub const IRQ: u8 = 6;
    /// The DMA channel.
    pub const CHANNEL: u8 = 2;
    /// The maximum number of drives, which is the number that firmware supports.
    pub const MOST_DRIVES: usize = 2;

    /// Makes a controller with these drives.
    pub fn new(drives: Vec<Drive>) -> Self {
        Self {
            drives,
            state: State::new(),
            work: None,
            completer: None,
        }
    }

    /// Removes the disk from a drive, 0 for the first, or inserts another one.
    ///
    /// # Errors
    /// There is no such drive, or the disk cannot be used. The drive is empty then.
    pub fn change_disk(
        &mut self,
        drive: usize,
        image: Option<&DriveOptions>,
    ) -> Result<(), String> {
        let Some(found) = self.drives.get_mut(drive) else {
            return Err("the machine has no such drive".into());
        };
        if let Some(work) = self.work.as_mut().filter(|work| work.drive == drive) {
            // The disk is removed while the heads read or write it.
            work.tags.clear();
            work.failed = true;
        }
        match image {
            None => {
                found.eject();
                Ok(())
            }
            Some(image) => {
                let name = disk_name(drive, Some(image));
                let inserted = found.insert(name, image, self.completer.as_ref());
                inserted.map_err(|error| error.to_string())
            }
        }
    }

    pub(super) fn raise(&mut self) {
        self.set_interrupt(false);
        self.set_interrupt(true);
    }

    pub(super) fn set_interrupt(&mut self, level: bool) {
        self.state.interrupt = level;
        self.drive_line();
    }

    fn drive_line(&mut self) {
        let gate = self.state.output.contains(DigitalOutput::GATE);
        let level = self.state.interrupt && gate;
        self.state.irq.set(level);
    }

    pub(super) const fn uses_dma(&self) -> bool {
        self.state.specify[1] & SPECIFY_NO_DMA == 0
    }

    /// Reads a port.
    pub(super) fn read(&mut self, port: u16, context: &mut DeviceContext<'_>) -> u8 {
        match port {
            port::DIGITAL_OUTPUT => self.state.output.bits(),
            port::TAPE_DRIVE => self.state.tape,
            port::STATUS => self.status(),
            port::FIFO => self.read_fifo(context),
            port::DIGITAL_INPUT => {
                let selected = self.state.output & DigitalOutput::DRIVE;
                let drive = self.drives.get(usize::from(selected.bits()));
                match drive.is_some_and(|drive| drive.mechanics.changed) {
                    true => DISK_CHANGED,
                    false => 0,
                }
            }
            // The PS/2's status registers are not driven in AT mode.
            _ => 0xff,
        }
    }

    /// Writes a port.
    pub(super) fn write(&mut self, port: u16, value: u8, context: &mut DeviceContext<'_>) {
        match port {
            port::DIGITAL_OUTPUT => {
                let before = self.state.output;
                self.state.output = DigitalOutput::from_bits_retain(value);
                let runs = |output: DigitalOutput| output.contains(DigitalOutput::NO_RESET);
                match (runs(before), runs(self.state.output)) {
                    (true, false) => self.stop(context),
                    (false, true) => self.begin_reset(context),
                    _ => self.drive_line(),
                }
            }
            port::TAPE_DRIVE => self.state.tape = value & 3,
            port::STATUS => {
                self.state.rate = value & RATE;
                if value & RATE_SELECT_RESET != 0 && self.runs() {
                    self.stop(context);
                    self.begin_reset(context);
                }
            }
            port::FIFO => self.write_fifo(value, context),
            port::DIGITAL_INPUT => self.state.rate = value & RATE,
            _ => {}
        }
    }

    fn runs(&self) -> bool {
        self.state.output.contains(DigitalOutput::NO_RESET)
    }

    /// Aborts the command in progress without a result.
    pub(super) fn stop(&mut self, context: &mut DeviceContext<'_>) {
        context.dma().request(Self::CHANNEL, false);
        self.work = None;
        let state = &mut self.state;
        state.phase = Phase::idle();
        state.senses.clear();
        state.motions = [None; 4];
        state.reset_ends = None;
        // LOCK preserves some of the configuration across a software reset (5.2.12).
        state.perpendicular &= 0x3c;
        if !state.is_locked {
            state.configuration |= configuration::NO_FIFO;
            state.configuration &= !configuration::THRESHOLD;
            state.precompensation = 0;
        }
        self.set_interrupt(false);
    }

    fn begin_reset(&mut self, context: &DeviceContext<'_>) {
        self.state.reset_ends = Some(context.now().after(RESET_TIME));
    }

    /// Returns the main status register.
    fn status(&self) -> u8 {
        use MainStatus as M;
        if !self.runs() {
            return 0;
        }
        let status = match &self.state.phase {
            Phase::Command(bytes) if bytes.is_empty() => M::REQUEST,
            Phase::Command(_) => M::REQUEST | M::BUSY,
            Phase::Result(_) => M::REQUEST | M::BUSY | M::TO_PROCESSOR,
            Phase::Execution(_) if self.uses_dma() => M::BUSY,
            Phase::Execution(transfer) => match transfer.stage {
                Stage::Host { .. } if transfer.command.writes() => M::REQUEST | M::NO_DMA | M::BUSY,
                Stage::Host { .. } => M::REQUEST | M::TO_PROCESSOR | M::NO_DMA | M::BUSY,
                _ => M::NO_DMA | M::BUSY,
            },
        };
        let motions = (0..4).filter(|drive| self.state.motions[*drive].is_some());
        motions.fold(status.bits(), |status, drive| status | 1 << drive)
    }

    fn read_fifo(&mut self, context: &mut DeviceContext<'_>) -> u8 {
        match &mut self.state.phase {
            Phase::Command(_) => 0,
            Phase::Execution(_) => self.give_byte(context),
            Phase::Result(bytes) => {
                let byte = bytes.pop_front().unwrap_or(0);
                if bytes.is_empty() {
                    self.state.phase = Phase::idle();
                }
                if self.state.interrupt && self.state.senses.is_empty() {
                    self.set_interrupt(false);
                }
                byte
            }
        }
    }

    fn write_fifo(&mut self, value: u8, context: &mut DeviceContext<'_>) {
        if !self.runs() {
            return;
        }
        match &mut self.state.phase {
            Phase::Command(bytes) => {
                bytes.push(value);
                let command = Command::of(bytes[0]);
                if bytes.len() >= command.bytes() {
                    let bytes = std::mem::take(bytes);
                    self.execute(command, &bytes, context);
                }
            }
            Phase::Execution(_) => self.take_byte(value, context),
            Phase::Result(_) => {}
        }
    }

    /// Sets the result of a command that causes no interrupt.
    pub(super) fn answer(&mut self, bytes: &[u8]) {
        self.state.phase = match bytes {
            [] => Phase::idle(),
            _ => Phase::Result(bytes.iter().copied().collect()),
        };
    }

    /// Returns when the controller next does something by itself.
    pub(super) fn next_deadline(&self) -> Option<GuestTime> {
        let motions = self.state.motions.iter().flatten();
        let transfer = match &self.state.phase {
            Phase::Execution(transfer) => transfer.deadline(),
            _ => None,
        };
        let ends = motions.map(|motion| motion.ends);
        ends.chain(self.state.reset_ends).chain(transfer).min()
    }

    /// Does everything that is due.
    pub(super) fn advance_to(&mut self, context: &mut DeviceContext<'_>) {
        let now = context.now();
        if self.state.reset_ends.is_some_and(|ends| ends <= now) {
            self.state.reset_ends = None;
            if self.state.configuration & configuration::NO_POLLING == 0 {
                let sense = |drive| Sense {
                    st0: st0::READY_CHANGED | drive,
                    drive,
                };
                self.state.senses = (0..4).map(sense).collect();
                self.raise();
            }
        }
        for drive in 0..4 {
            let motion = self.state.motions[usize::from(drive)];
            if let Some(Motion { st0, .. }) = motion.filter(|motion| motion.ends <= now) {
                self.state.motions[usize::from(drive)] = None;
                self.state.senses.push_back(Sense { st0, drive });
                self.raise();
            }
        }
        self.advance_transfer(context);
    }

    /// Returns the state of the drives' mechanics, which is saved.
    pub(super) fn mechanics(&self) -> Vec<Mechanics> {
        self.drives.iter().map(|drive| drive.mechanics).collect()
    }

    /// Resets the controller and all drives, as the hardware reset does.
    pub(super) fn reset_all(&mut self, context: &mut DeviceContext<'_>) {
        self.stop(context);
        self.state = State::new();
    }
}

/// Returns the name of a drive's disk for messages.
pub fn disk_name(drive: usize, image: Option<&DriveOptions>) -> String {
    let letter = if drive == 0 { 'a' } else { 'b' };
    match image {
        Some(image) => format!("floppy {letter} ({})", image.path.display()),
        None => format!("floppy {letter}"),
    }
}
