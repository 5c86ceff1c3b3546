//! The SCSI host device (5.6): a controller with several targets, whose units are disks and CD-ROM
//! drives.
//!
//! ```text
//!   queue 0: control   task management: what is unfinished is finished first
//!   queue 1: events    buffers of the driver, for units that come, go and change
//!   queue 2: requests  command ──> Unit::execute ──> Action ──> the medium's thread ──> answer
//! ```
//!
//! A command is decoded on the vCPU's thread. What concerns a medium is executed by the medium's
//! thread, in order; all else is answered immediately. A command that fails carries the reason with
//! its answer (automatic sense), so units keep none.

mod changes;
mod disk_answers;
mod disk_commands;
mod events;
pub mod options;
mod unit;

use super::block_work::Work;
use super::chain::Chain;
use super::device::{Queues, VirtioDevice};
use super::device_type;
use super::drive_change::DriveChange;
use super::queue::QueueError;
use crate::bus::completion::Completer;
use crate::devices::ide::{Sense, fixed_sense};
use crate::devices::medium::{Medium, SECTOR};
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use tollgate_disk::{Operation, Outcome};
use tollgate_memory::Filling;
use unit::{Action, Command, Saved};

use events::{EVENT_BYTES, Events};
use options::Address;
pub use unit::Unit;

/// The queues by number; further ones are for requests too.
const CONTROL: usize = 0;
const REQUESTS: usize = 2;
const QUEUE_SIZES: [u16; 3] = [64, 64, 256];
/// The sizes in bytes of a command and of the reason for a failure, with which the driver begins
/// (5.6.4).
const COMMAND_BYTES: usize = 32;
const SENSE_BYTES: usize = 96;
/// The size of a request before its data, and of an answer before its data (5.6.6.1).
const REQUEST_BYTES: usize = 19 + COMMAND_BYTES;
const ANSWER_BYTES: usize = 12 + SENSE_BYTES;
/// The maximum number of segments of a request, in addition to its header and its answer's.
const MAX_SEGMENTS: u32 = 254;
/// The number of bytes of a request's data that commands other than writes may need.
const MAX_PARAMETER_BYTES: u64 = 512;
/// If unfinished requests have this many bytes, no more are taken for now.
const BUSY_BYTES: u64 = 64 << 20;

/// The answers of the controller to a request (5.6.6.1).
mod response {
    pub const OK: u8 = 0;
    pub const OVERRUN: u8 = 1;
    pub const BAD_TARGET: u8 = 3;
    pub const FAILURE: u8 = 9;
}

/// The answers to task management (5.6.6.2).
mod management {
    pub const COMPLETE: u8 = 0;
    pub const BAD_TARGET: u8 = 3;
    pub const SUCCEEDED: u8 = 10;
    pub const REJECTED: u8 = 11;
    pub const INCORRECT_LUN: u8 = 12;
}

/// The status of a command (SAM-5, 5.3.1).
const GOOD: u8 = 0;
const CHECK_CONDITION: u8 = 2;

/// A request whose operation is with a medium's thread.
struct Pending {
    queue: usize,
    chain: Chain,
    /// The number by which the driver manages the request.
    id: u64,
    /// The bytes that are transferred, and those that the request has room or data for.
    bytes: u64,
    room: u64,
    /// What the command reports if the operation fails.
    failure: Sense,
    /// Set if the host writes the data directly into guest memory.
    filling: Option<Filling>,
}

/// A controller with its units.
pub struct Scsi {
    config: Vec<u8>,
    units: Vec<Unit>,
    /// The unfinished requests, by unit and by the medium's tag.
    pending: HashMap<(usize, u64), Pending>,
    pending_bytes: u64,
    events: Events,
    /// The way of completions to the device, for units that are plugged in.
    completer: Option<Completer>,
}

/// The answer to a request, without the data that is already in guest memory.
struct Answer<'a> {
    response: u8,
    sense: Option<Sense>,
    /// The number of bytes that the request has room or data for, and that were not transferred.
    residual: u64,
    data: &'a [u8],
}

impl Answer<'_> {
    /// A request that the controller does not pass to a unit.
    const fn refusal(response: u8, residual: u64) -> Self {
        Self {
            response,
            sense: None,
            residual,
            data: &[],
        }
    }

    /// Returns a request to the driver. `written` bytes after the answer are already in place.
    fn give(
        self,
        queue: usize,
        chain: &Chain,
        written: u64,
        queues: &mut Queues<'_>,
    ) -> Result<(), QueueError> {
        let sense = self.sense.map(fixed_sense).unwrap_or_default();
        let residual = u32::try_from(self.residual).unwrap_or(u32::MAX);
        let mut head = (sense.len() as u32).to_le_bytes().to_vec();
        head.extend(residual.to_le_bytes());
        let status = if sense.is_empty() {
            GOOD
        } else {
            CHECK_CONDITION
        };
        head.extend([0, 0, status, self.response]);
        head.extend(sense);
        head.resize(ANSWER_BYTES, 0);
        let memory = queues.memory();
        let is_written = chain.copy_in(memory, 0, &head)
            && chain.copy_in(memory, ANSWER_BYTES as u64, self.data);
        if !is_written {
            return Err(QueueError::NoMemory);
        }
        let bytes = ANSWER_BYTES as u64 + written + self.data.len() as u64;
        queues.push(queue, chain, bytes as u32)
    }
}

/// Returns the address of a unit in the form of the controller, or `None` for another form.
fn address(bytes: [u8; 8]) -> Option<Address> {
    let [1, target, high, low, ..] = bytes else {
        return None;
    };
    Some(Address {
        target,
        lun: u16::from_be_bytes([high & 0x3f, low]),
    })
}

/// Returns the device-specific configuration of a controller with these units (5.6.4).
fn configuration(units: &[Unit]) -> Vec<u8> {
    let last = units.iter().map(|unit| unit.address.target).max();
    let last_lun = units.iter().map(|unit| unit.address.lun).max();
    // One request queue.
    let mut config = 1u32.to_le_bytes().to_vec();
    for value in [
        MAX_SEGMENTS,
        disk_answers::MAX_TRANSFER_BLOCKS,
        u32::from(QUEUE_SIZES[REQUESTS]) / 2,
        EVENT_BYTES,
        SENSE_BYTES as u32,
        COMMAND_BYTES as u32,
    ] {
        config.extend(value.to_le_bytes());
    }
    // All targets are on one channel.
    config.extend([0, 0]);
    config.extend(u16::from(last.unwrap_or(0)).to_le_bytes());
    config.extend(u32::from(last_lun.unwrap_or(0)).to_le_bytes());
    config
}

impl Scsi {
    /// Makes a controller with these units.
    pub fn new(mut units: Vec<Unit>) -> Self {
        units.sort_by_key(|unit| unit.address);
        Self {
            config: configuration(&units),
            units,
            pending: HashMap::new(),
            pending_bytes: 0,
            events: Events::default(),
            completer: None,
        }
    }

    /// Returns the numbers of the units of a target.
    fn luns(&self, target: u8) -> Vec<u16> {
        let units = self.units.iter().map(|unit| unit.address);
        let units = units.filter(|address| address.target == target);
        units.map(|address| address.lun).collect()
    }

    fn place(&self, address: Address) -> Option<usize> {
        self.units.iter().position(|unit| unit.address == address)
    }

    /// Takes requests as long as there is room for their data.
    fn take_requests(&mut self, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        while self.pending_bytes < BUSY_BYTES {
            let Some(chain) = queues.pop(REQUESTS)? else {
                return Ok(());
            };
            self.begin(chain, queues)?;
        }
        Ok(())
    }

    fn begin(&mut self, chain: Chain, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        let sent = chain.readable_bytes().checked_sub(REQUEST_BYTES as u64);
        let room = chain.writable_bytes().checked_sub(ANSWER_BYTES as u64);
        let (Some(sent), Some(room)) = (sent, room) else {
            return Err(QueueError::Request);
        };
        let mut head = [0; REQUEST_BYTES];
        let mut data = vec![0; sent.min(MAX_PARAMETER_BYTES) as usize];
        let memory = queues.memory();
        let is_read = chain.copy_out(memory, 0, &mut head)
            && chain.copy_out(memory, REQUEST_BYTES as u64, &mut data);
        if !is_read {
            return Err(QueueError::NoMemory);
        }
        let (lun, rest) = head.split_first_chunk::<8>().ok_or(QueueError::Request)?;
        let (id, rest) = rest.split_first_chunk::<8>().ok_or(QueueError::Request)?;
        let bytes = rest.last_chunk().ok_or(QueueError::Request)?;
        let command = Command { bytes, data: &data };
        // A command moves data in one direction only.
        if sent > 0 && room > 0 {
            let refusal = Answer::refusal(response::FAILURE, 0);
            return refusal.give(REQUESTS, &chain, 0, queues);
        }
        let address = address(*lun);
        let luns = address.map(|address| self.luns(address.target));
        let (Some(address), Some(luns)) = (address, luns.filter(|luns| !luns.is_empty())) else {
            let refusal = Answer::refusal(response::BAD_TARGET, sent.max(room));
            return refusal.give(REQUESTS, &chain, 0, queues);
        };
        let place = self.place(address);
        let result = match place {
            Some(place) => self.units[place].execute(&command, &luns),
            None => unit::execute_on_absent(&command, &luns),
        };
        let answer = match (result, place) {
            (Ok(Action::Done), _) => Answer::refusal(response::OK, sent.max(room)),
            (Ok(Action::Data(mut data)), _) => {
                data.truncate(usize::try_from(room).unwrap_or(usize::MAX));
                let answer = Answer {
                    response: response::OK,
                    sense: None,
                    residual: room - data.len() as u64,
                    data: &data,
                };
                return answer.give(REQUESTS, &chain, 0, queues);
            }
            (Ok(action), Some(place)) => {
                let id = u64::from_le_bytes(*id);
                return self.start(place, action, (chain, id, sent, room), queues);
            }
            (Ok(_), None) => Answer::refusal(response::FAILURE, sent.max(room)),
            (Err(sense), _) => Answer {
                response: response::OK,
                sense: Some(sense),
                residual: sent.max(room),
                data: &[],
            },
        };
        answer.give(REQUESTS, &chain, 0, queues)
    }

    /// Hands what a command asks for to the medium's thread.
    fn start(
        &mut self,
        place: usize,
        action: Action,
        (chain, id, sent, room): (Chain, u64, u64, u64),
        queues: &mut Queues<'_>,
    ) -> Result<(), QueueError> {
        let needed = match action {
            Action::Read { bytes, .. } => bytes > room,
            Action::Write { bytes, .. } => bytes > sent,
            _ => false,
        };
        if needed {
            let refusal = Answer::refusal(response::OVERRUN, 0);
            return refusal.give(REQUESTS, &chain, 0, queues);
        }
        let failure = match action {
            Action::Read { .. } => Sense::READ_ERROR,
            _ => Sense::WRITE_ERROR,
        };
        let Some(medium) = self.units[place].medium_mut() else {
            let refusal = Answer::refusal(response::FAILURE, 0);
            return refusal.give(REQUESTS, &chain, 0, queues);
        };
        let Some(work) = work(action, &chain, medium, queues) else {
            return Err(QueueError::NoMemory);
        };
        let (moved, total) = (work.bytes, sent.max(room));
        let tag = medium.send(work.operation);
        let pending = Pending {
            queue: REQUESTS,
            chain,
            id,
            bytes: moved,
            room: total,
            failure,
            filling: work.filling,
        };
        self.pending_bytes += moved;
        self.pending.insert((place, tag), pending);
        Ok(())
    }

    fn end(
        &mut self,
        place: usize,
        outcome: &Outcome,
        queues: &mut Queues<'_>,
    ) -> Result<(), QueueError> {
        // A request from before a reset has been forgotten.
        let Some(pending) = self.pending.remove(&(place, outcome.tag)) else {
            return Ok(());
        };
        self.pending_bytes -= pending.bytes;
        let is_filled = pending.filling.is_some();
        // The data must be marked as written before the driver is notified.
        drop(pending.filling);
        let (data, sense): (&[u8], _) = match &outcome.result {
            Ok(data) => (data, None),
            Err(()) => (&[], Some(pending.failure)),
        };
        let moved = if sense.is_none() { pending.bytes } else { 0 };
        let written = if is_filled { moved } else { 0 };
        let answer = Answer {
            response: response::OK,
            sense,
            residual: pending.room.saturating_sub(moved),
            data,
        };
        answer.give(pending.queue, &pending.chain, written, queues)
    }

    /// Takes what the media's threads have finished.
    fn take_outcomes(&mut self, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        let mut result = Ok(());
        for place in 0..self.units.len() {
            let outcomes = self.units[place].medium().map(Medium::take);
            for outcome in outcomes.unwrap_or_default() {
                result = result.and(self.end(place, &outcome, queues));
            }
        }
        result
    }

    /// Answers the chains of the control queue.
    fn take_control(&mut self, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        /// Kinds of requests: a task is managed, or asynchronous events are.
        const MANAGE: u32 = 0;
        /// The size of a request of the first kind, and the least one of all.
        const MANAGE_BYTES: usize = 24;
        const LEAST_BYTES: usize = 16;
        while let Some(chain) = queues.pop(CONTROL)? {
            let mut head = [0; MANAGE_BYTES];
            let sent = usize::try_from(chain.readable_bytes()).unwrap_or(usize::MAX);
            let sent = sent.min(MANAGE_BYTES);
            if sent < LEAST_BYTES || chain.writable_bytes() == 0 {
                return Err(QueueError::Request);
            }
            if !chain.copy_out(queues.memory(), 0, &mut head[..sent]) {
                return Err(QueueError::NoMemory);
            }
            let [k0, k1, k2, k3, s0, s1, s2, s3, rest @ ..] = head;
            let answer = match u32::from_le_bytes([k0, k1, k2, k3]) {
                MANAGE if sent == MANAGE_BYTES => {
                    let [l0, l1, l2, l3, l4, l5, l6, l7, id @ ..] = rest;
                    let function = u32::from_le_bytes([s0, s1, s2, s3]);
                    let address = address([l0, l1, l2, l3, l4, l5, l6, l7]);
                    let id = u64::from_le_bytes(id);
                    vec![self.manage(function, address, id, queues)?]
                }
                MANAGE => return Err(QueueError::Request),
                // There are no asynchronous events.
                _ => vec![0; 5],
            };
            let room = usize::try_from(chain.writable_bytes()).unwrap_or(usize::MAX);
            let answer = answer.get(..answer.len().min(room)).unwrap_or_default();
            if !chain.copy_in(queues.memory(), 0, answer) {
                return Err(QueueError::NoMemory);
            }
            queues.push(CONTROL, &chain, answer.len() as u32)?;
        }
        Ok(())
    }

    /// Manages tasks (SAM-5, 7). A task that would be aborted is finished first, so that the data
    /// that it moves no longer changes.
    fn manage(
        &mut self,
        function: u32,
        address: Option<Address>,
        id: u64,
        queues: &mut Queues<'_>,
    ) -> Result<u8, QueueError> {
        const ABORT_TASK: u32 = 0;
        const NEXUS_RESET: u32 = 4;
        const UNIT_RESET: u32 = 5;
        const QUERY_TASK: u32 = 6;
        const QUERY_TASK_SET: u32 = 7;
        let Some(address) = address else {
            return Ok(management::BAD_TARGET);
        };
        if self.luns(address.target).is_empty() {
            return Ok(management::BAD_TARGET);
        }
        let place = self.place(address);
        if place.is_none() && function != NEXUS_RESET {
            return Ok(management::INCORRECT_LUN);
        }
        match function {
            QUERY_TASK | QUERY_TASK_SET => {
                let mut tasks = self.pending.iter();
                let is_pending = tasks.any(|((unit, _), task)| {
                    Some(*unit) == place && (function == QUERY_TASK_SET || task.id == id)
                });
                return Ok(match is_pending {
                    true => management::SUCCEEDED,
                    false => management::COMPLETE,
                });
            }
            ABORT_TASK..=UNIT_RESET => {}
            _ => return Ok(management::REJECTED),
        }
        for unit in &self.units {
            if unit.address.target == address.target
                && let Some(medium) = unit.medium()
            {
                medium.wait();
            }
        }
        self.take_outcomes(queues)?;
        for unit in &mut self.units {
            let is_meant = match function {
                NEXUS_RESET => unit.address.target == address.target,
                UNIT_RESET => unit.address == address,
                _ => false,
            };
            if is_meant {
                unit.reset();
            }
        }
        Ok(management::COMPLETE)
    }
}

/// Returns what the medium's thread must do, or `None` if the data is not in memory.
fn work(action: Action, chain: &Chain, medium: &Medium, queues: &mut Queues<'_>) -> Option<Work> {
    Some(match action {
        Action::Read { offset, bytes } => {
            let data = (chain, ANSWER_BYTES as u64, bytes);
            Work::reading(offset, data, queues.memory())
        }
        Action::Write {
            offset,
            bytes,
            through,
        } => {
            let data = (chain, REQUEST_BYTES as u64, bytes);
            Work::writing((offset, through), data, queues.memory(), |bytes| {
                medium.buffer(bytes)
            })?
        }
        Action::Fill { offset, data } => {
            let mut buffer = medium.buffer(data.len());
            buffer.copy_from_slice(&data);
            let operation = Operation::Write {
                offset,
                data: buffer,
                through: false,
            };
            Work::copied(operation, SECTOR)
        }
        Action::Zero {
            offset,
            bytes,
            unmap,
        } => Work::copied(
            Operation::WriteZeroes {
                offset,
                bytes,
                unmap,
            },
            0,
        ),
        Action::Discard { offset, bytes } => Work::copied(Operation::Discard { offset, bytes }, 0),
        Action::Flush | Action::Done | Action::Data(_) => Work::copied(Operation::Flush, 0),
    })
}

impl VirtioDevice for Scsi {
    fn name(&self) -> &'static str {
        "virtio-scsi"
    }

    fn device_type(&self) -> u16 {
        device_type::SCSI
    }

    fn features(&self) -> u64 {
        events::FEATURES
    }

    fn queue_sizes(&self) -> &[u16] {
        &QUEUE_SIZES
    }

    fn config(&self) -> &[u8] {
        &self.config
    }

    fn notify(&mut self, queue: usize, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        match queue {
            CONTROL => self.take_control(queues),
            REQUESTS => self.take_requests(queues),
            events::QUEUE => self.events.take_buffers(queues),
            _ => Ok(()),
        }
    }

    fn connect(&mut self, completer: Completer) {
        for unit in &mut self.units {
            unit.connect(completer.clone());
        }
        self.completer = Some(completer);
    }

    fn change_drive(
        &mut self,
        change: &DriveChange,
        queues: &mut Queues<'_>,
    ) -> Option<Result<(), String>> {
        self.change(change, queues)
    }

    fn complete(&mut self, _token: u64, queues: &mut Queues<'_>) -> Result<(), QueueError> {
        self.take_outcomes(queues)?;
        self.take_requests(queues)
    }

    fn has_pending_work(&self) -> bool {
        let mut media = self.units.iter().filter_map(Unit::medium);
        media.any(Medium::has_pending_work)
    }

    fn flush(&self) {
        for medium in self.units.iter().filter_map(Unit::medium) {
            medium.flush();
        }
    }

    fn save(&self) -> Value {
        let units: Vec<Saved> = self.units.iter().map(Unit::save).collect();
        serde_json::to_value((units, self.events.missed)).unwrap_or_default()
    }

    fn restore(&mut self, saved: &Value) -> bool {
        let Ok((saved, missed)) = <(Vec<Saved>, bool)>::deserialize(saved) else {
            return false;
        };
        self.events.missed = missed;
        let mut pairs = self.units.iter_mut().zip(&saved);
        let fits = pairs.all(|(unit, saved)| unit.restore(*saved));
        fits && saved.len() == self.units.len()
    }

    fn reset(&mut self) {
        // From now on the driver may reuse its memory, which the threads must no longer access.
        for medium in self.units.iter().filter_map(Unit::medium) {
            medium.wait();
        }
        self.pending.clear();
        self.pending_bytes = 0;
        self.events = Events::default();
        for unit in &mut self.units {
            unit.reset();
        }
    }
}
