//! One flash chip: its commands, its memory, and the way of what changes to memory and image.

use super::FlashImage;
use super::commands::{Change, Commands, Shown, block_of};
use super::query::{self, BLOCK_BYTES};
use crate::bus::DeviceContext;
use crate::bus::completion::Completer;
use crate::devices::chipset::rom::FirmwareRom;
use crate::devices::medium::Medium;
use serde::{Deserialize, Serialize};
use std::io;
use tollgate_disk::Operation;
use tollgate_memory::{BlockId, GuestMemory, Region, RegionKind};
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;

/// How long after a change it is on stable storage at the latest, in nanoseconds.
const SAFE_AFTER: u64 = 20_000_000;

/// The maximum number of bytes that are collected before they go to memory and image.
const MOST_COLLECTED: usize = BLOCK_BYTES as usize;

/// The maximum number of writes to the image since a wait for its thread.
const MOST_WRITES: u32 = 64;

/// A chip with its memory and its image.
#[derive(Debug)]
pub struct Unit {
    start: u64,
    bytes: u64,
    /// The contents, until there is memory for them.
    contents: Vec<u8>,
    block: Option<BlockId>,
    is_writable: bool,
    medium: Option<Medium>,
    commands: Commands,
    collected: Collected,
    /// When what was written must be on stable storage.
    due: Option<GuestTime>,
    /// The number of writes to the image since a wait for its thread.
    writes: u32,
}

/// Bytes that the guest has programmed, but which neither memory nor the image has yet.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
struct Collected {
    offset: u64,
    bytes: Vec<u8>,
}

impl Collected {
    const fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }
}

/// The saved state. The contents are in the snapshot's memory.
#[derive(Serialize, Deserialize)]
pub struct State {
    commands: Commands,
    collected: Collected,
}

impl Unit {
    /// Makes a chip whose last byte is below `end`.
    pub fn new(end: u64, image: FlashImage) -> Self {
        let bytes = image.contents.len() as u64;
        Self {
            start: end - bytes,
            bytes,
            contents: image.contents,
            block: None,
            is_writable: image.is_writable,
            medium: image.medium,
            commands: Commands::default(),
            collected: Collected::default(),
            due: None,
            writes: 0,
        }
    }

    /// Returns the first address.
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// Returns the size in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Makes the memory and fills it.
    pub fn make_memory(&mut self, memory: &mut GuestMemory) -> io::Result<()> {
        let block = memory.new_block(self.bytes).map_err(io::Error::other)?;
        memory.write_block(block, 0, &std::mem::take(&mut self.contents))?;
        self.block = Some(block);
        Ok(())
    }

    /// Returns the memory as a ROM.
    pub fn rom(&self) -> Option<FirmwareRom> {
        let bytes = self.bytes;
        self.block.map(|block| FirmwareRom { block, bytes })
    }

    /// Makes the addresses show what the commands say.
    pub fn place(&self, context: &mut DeviceContext<'_>) {
        let Some(block) = self.block else {
            return;
        };
        let (kind, block) = match self.commands.shown() {
            Shown::Array => (RegionKind::Rom, Some((block, 0))),
            _ => (RegionKind::Device, None),
        };
        context.place_region(Region {
            start: PhysicalAddress(self.start),
            bytes: self.bytes,
            kind,
            block,
        });
    }

    /// Reads bytes, of which the first is in the chip.
    pub fn read(&self, offset: u64, data: &mut [u8], context: &mut DeviceContext<'_>) {
        for (at, byte) in (offset..self.bytes).zip(data) {
            *byte = match self.commands.shown() {
                Shown::Status => self.commands.status(),
                Shown::Identifiers => 0,
                Shown::Description => query::byte(at, self.bytes),
                // The contents are memory; only an access that began before comes here.
                Shown::Array => self.content(at, context.memory()),
            };
        }
    }

    fn content(&self, offset: u64, memory: &GuestMemory) -> u8 {
        let mut byte = [0xff];
        if let Some(block) = self.block {
            let _ = memory.read_block(block, offset, &mut byte);
        }
        byte[0]
    }

    /// Obeys a store, of which the first byte is in the chip.
    pub fn write(&mut self, offset: u64, data: &[u8], context: &mut DeviceContext<'_>) {
        let room = usize::try_from(self.bytes - offset).unwrap_or(usize::MAX);
        let data = &data[..data.len().min(room)];
        let before = self.commands.shown();
        match (self.commands).write(offset, data, self.is_writable) {
            Some(Change::Program(offset, bytes)) => self.collect(offset, bytes, context),
            Some(Change::Erase(offset)) => {
                self.commit(context);
                let bytes = vec![0xff; BLOCK_BYTES as usize];
                self.collected = Collected {
                    offset: block_of(offset),
                    bytes,
                };
                self.commit(context);
            }
            None => {}
        }
        let shown = self.commands.shown();
        if shown == before {
            return;
        }
        if shown == Shown::Array {
            self.commit(context);
        }
        if shown == Shown::Array || before == Shown::Array {
            self.place(context);
        }
    }

    fn collect(&mut self, offset: u64, mut bytes: Vec<u8>, context: &mut DeviceContext<'_>) {
        bytes.truncate(usize::try_from(self.bytes - offset).unwrap_or(usize::MAX));
        if self.collected.end() != offset || self.collected.bytes.len() >= MOST_COLLECTED {
            self.commit(context);
            self.collected.offset = offset;
        }
        self.collected.bytes.extend(bytes);
        self.due = self.due.or(Some(context.now().after(SAFE_AFTER)));
    }

    /// Writes the collected bytes to memory and to the image.
    fn commit(&mut self, context: &mut DeviceContext<'_>) {
        let Collected { offset, bytes } = std::mem::take(&mut self.collected);
        if bytes.is_empty() {
            return;
        }
        if let Some(block) = self.block {
            // Only the host could fail, for a file that it holds in memory.
            let _ = context.memory().write_block(block, offset, &bytes);
        }
        self.write_image(offset, &bytes);
        self.due = self.due.or(Some(context.now().after(SAFE_AFTER)));
    }

    fn write_image(&mut self, offset: u64, bytes: &[u8]) {
        let Some(medium) = &mut self.medium else {
            return;
        };
        self.writes += 1;
        if self.writes > MOST_WRITES {
            // The guest is faster than the host's storage.
            medium.wait();
            self.writes = 0;
        }
        let mut data = medium.buffer(bytes.len());
        data.copy_from_slice(bytes);
        medium.send(Operation::Write {
            offset,
            data,
            through: false,
        });
    }

    /// Returns when what was written must be on stable storage.
    pub const fn deadline(&self) -> Option<GuestTime> {
        self.due
    }

    /// Brings what was written to stable storage, if that is due.
    pub fn advance(&mut self, context: &mut DeviceContext<'_>) {
        if self.due.is_none_or(|due| due > context.now()) {
            return;
        }
        self.commit(context);
        self.due = None;
        if let Some(medium) = &mut self.medium {
            medium.send(Operation::Flush);
        }
    }

    /// Connects the image's thread to the bus.
    pub fn connect(&mut self, completer: Completer) {
        if let Some(medium) = &mut self.medium {
            medium.connect(completer);
        }
    }

    /// Takes what the image's thread has finished. It has reported errors itself.
    pub fn take_outcomes(&self) {
        if let Some(medium) = &self.medium {
            drop(medium.take());
        }
    }

    /// Whether the image's thread works.
    pub fn has_pending_work(&self) -> bool {
        self.medium.as_ref().is_some_and(Medium::has_pending_work)
    }

    /// Brings everything that the image's thread has to stable storage.
    pub fn flush(&self) {
        if let Some(medium) = &self.medium {
            medium.flush();
        }
    }

    /// Resets the chip, which keeps its contents.
    pub fn reset(&mut self, context: &mut DeviceContext<'_>) {
        self.commit(context);
        self.commands = Commands::default();
        self.place(context);
    }

    /// Returns the saved state.
    pub fn save(&self) -> State {
        State {
            commands: self.commands.clone(),
            collected: self.collected.clone(),
        }
    }

    /// Whether a state can be one of this chip.
    pub fn accepts(&self, state: &State) -> bool {
        let Collected { offset, bytes } = &state.collected;
        let end = offset.checked_add(bytes.len() as u64);
        state.commands.is_possible(self.bytes) && end.is_some_and(|end| end <= self.bytes)
    }

    /// Restores a state that the chip accepts. The contents come from the snapshot's memory.
    pub fn restore(&mut self, state: State) {
        self.commands = state.commands;
        self.collected = state.collected;
        self.due = (!self.collected.bytes.is_empty()).then_some(GuestTime(0));
    }
}

impl Drop for Unit {
    fn drop(&mut self) {
        // The image's thread finishes what it has before it ends.
        let Collected { offset, bytes } = std::mem::take(&mut self.collected);
        if !bytes.is_empty() {
            self.write_image(offset, &bytes);
        }
    }
}
