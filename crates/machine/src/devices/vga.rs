//! The display adapter: a VGA with Bochs' frame buffer extension, like QEMU's standard adapter.
//!
//! Display memory is plain memory wherever an address stands for a single byte of it: in text
//! modes, in linear 256-colour modes, and in the extension's modes. A store causes no exit there.
//! In the planar modes, where a store may change four bytes and a load fills latches, translated
//! code calls the device for each access ([`Device::is_near`]).
//!
//! ```text
//!   registers say              window at A0000h-BFFFFh is      the truth is in
//!   text, plain                a block: character, attribute   that block; fonts in `planes`
//!   256 colours, chained       the first bytes of `video`      `video`
//!   the extension's mode       a bank of `video`               `video`
//!   anything else              a device: `planes`              `planes`
//! ```
//!
//! When the registers change what the window is, its contents are copied. The base address register
//! of [`pci`] maps all of `video`.

pub mod dispi;
mod lines;
pub mod pci;
mod planes;
mod registers;
pub mod screen;

use crate::bus::{Claims, Device, DeviceContext, PortWidth, SavedState, StateError};
use dispi::{Dispi, VIDEO_BYTES};
use planes::{CELLS, Planes};
use registers::{Registers, graphics, output, sequencer};
use screen::Picture;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tollgate_memory::layout::{DISPLAY_END, DISPLAY_START};
use tollgate_memory::{BlockId, GuestMemory, MemoryError, Region, RegionKind};
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;

/// The size of the text in the window in bytes: a character and an attribute for each cell.
const TEXT_BYTES: usize = 0x8000;
/// The number of bytes that planes and `video` share.
const SHARED_BYTES: usize = 4 * CELLS;

/// Blocks of memory that are not RAM.
#[derive(Clone, Copy, Debug)]
struct Blocks {
    /// The contents of the frame buffer.
    video: BlockId,
    /// Characters and attributes.
    text: BlockId,
}

/// What the window at A0000h is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Window {
    /// No memory and no device answers.
    Closed,
    /// The block of text, from B0000h or B8000h on.
    Text(u64),
    /// A part of `video`: its offset, the address in the window, and the size in bytes.
    Linear(u64, u64, u64),
    /// The planes: the address in the window, and the size in bytes.
    Planes(u64, u64),
}

/// The display adapter without its PCI function.
pub struct Vga {
    registers: Registers,
    dispi: Dispi,
    planes: Planes,
    blocks: Option<Blocks>,
    window: Window,
    /// Whether registers or planes were written since the last picture was drawn.
    is_touched: bool,
    /// The last picture, which is valid until something is written.
    last_picture: Option<Arc<Picture>>,
}

#[derive(Serialize, Deserialize)]
struct State {
    registers: Registers,
    dispi: Dispi,
}

impl Default for Vga {
    fn default() -> Self {
        Self {
            registers: Registers::new(),
            dispi: Dispi::default(),
            planes: Planes::default(),
            blocks: None,
            window: Window::Closed,
            is_touched: true,
            last_picture: None,
        }
    }
}

impl Vga {
    /// The version of the saved state, which does not include memory.
    const STATE_VERSION: u32 = 1;

    /// Allocates the adapter's memory and returns the block of the frame buffer.
    ///
    /// # Errors
    /// The host has no memory for it.
    pub fn make_memory(&mut self, memory: &GuestMemory) -> Result<BlockId, MemoryError> {
        let blocks = Blocks {
            video: memory.new_block(VIDEO_BYTES)?,
            text: memory.new_block(TEXT_BYTES as u64)?,
        };
        self.blocks = Some(blocks);
        Ok(blocks.video)
    }

    /// Returns what the window should be according to the registers.
    fn wanted(&self) -> Window {
        if self.registers.output & output::MEMORY == 0 || self.blocks.is_none() {
            return Window::Closed;
        }
        if self.dispi.is_enabled() {
            let bank = self.dispi.bank_offset();
            let has_planes = self.dispi.mode().is_some_and(|mode| mode.depth == 4);
            return match has_planes {
                true => Window::Planes(DISPLAY_START, 0x1_0000),
                false => Window::Linear(bank, DISPLAY_START, 0x1_0000),
            };
        }
        let (start, bytes) = match self.registers.graphics[graphics::MISCELLANEOUS] >> 2 & 3 {
            0 => (0xa_0000, 0x2_0000),
            1 => (0xa_0000, 0x1_0000),
            2 => (0xb_0000, 0x8000),
            _ => (0xb_8000, 0x8000),
        };
        const CHAIN_4: u8 = 1 << 3;
        const ODD_EVEN: u8 = 1 << 4;
        let mask = self.registers.sequencer[sequencer::MAP_MASK];
        let mode = self.registers.graphics[graphics::MODE];
        if self.registers.sequencer[sequencer::MEMORY_MODE] & CHAIN_4 != 0 {
            // A chained store ignores everything except the mask.
            if mask & 0xf == 0xf {
                return Window::Linear(0, start, bytes);
            }
        } else if mode & ODD_EVEN != 0
            && mask & 3 == 3
            && self.registers.graphics[graphics::READ_MAP] & 2 == 0
            && bytes == TEXT_BYTES as u64
        {
            return Window::Text(start);
        }
        Window::Planes(start, bytes)
    }

    /// Makes the window follow the registers. This is called after each write to them, and after a
    /// restore.
    pub fn follow(&mut self, context: &mut DeviceContext<'_>) {
        let wanted = self.wanted();
        let Some(blocks) = self.blocks.filter(|_| wanted != self.window) else {
            return;
        };
        let stays_linear = matches!(
            (self.window, wanted),
            (Window::Linear(..), Window::Linear(..))
        );
        if !stays_linear {
            self.take_contents(context.memory());
        }
        let display = PhysicalAddress(DISPLAY_START);
        // The range consists of whole pages below 4 GiB, so clearing it cannot fail.
        let _ = (context.memory()).clear_region(display, DISPLAY_END - DISPLAY_START);
        self.window = wanted;
        if !stays_linear {
            self.give_contents(context.memory());
        }
        let (start, bytes, block) = match wanted {
            Window::Closed | Window::Planes(..) => return,
            Window::Text(start) => (start, TEXT_BYTES as u64, (blocks.text, 0)),
            Window::Linear(offset, start, bytes) => (start, bytes, (blocks.video, offset)),
        };
        context.place_region(Region {
            start: PhysicalAddress(start),
            bytes,
            kind: RegionKind::Display,
            block: Some(block),
        });
    }

    /// Copies the contents of the window's block to the planes.
    fn take_contents(&mut self, memory: &GuestMemory) {
        let Some(blocks) = self.blocks else {
            return;
        };
        match self.window {
            Window::Text(_) => {
                let mut bytes = vec![0; TEXT_BYTES];
                if memory.read_block(blocks.text, 0, &mut bytes).is_ok() {
                    for (cell, pair) in self.planes.cells.iter_mut().zip(bytes.chunks(2)) {
                        cell[..2].copy_from_slice(pair);
                    }
                }
            }
            Window::Linear(..) => {
                let mut bytes = vec![0; SHARED_BYTES];
                if memory.read_block(blocks.video, 0, &mut bytes).is_ok() {
                    for (cell, four) in self.planes.cells.iter_mut().zip(bytes.chunks(4)) {
                        cell.copy_from_slice(four);
                    }
                }
            }
            Window::Closed | Window::Planes(..) => {}
        }
    }

    /// Copies the planes to the window's block. The host's own memory cannot refuse.
    fn give_contents(&self, memory: &mut GuestMemory) {
        let Some(blocks) = self.blocks else {
            return;
        };
        match self.window {
            Window::Text(_) => {
                let cells = self.planes.cells[..TEXT_BYTES / 2].iter();
                let bytes: Vec<u8> = cells.flat_map(|cell| [cell[0], cell[1]]).collect();
                let _ = memory.write_block(blocks.text, 0, &bytes);
            }
            Window::Linear(..) => {
                let _ = memory.write_block(blocks.video, 0, self.planes.cells.as_flattened());
            }
            Window::Closed | Window::Planes(..) => {}
        }
    }

    fn clear_video(&mut self, memory: &mut GuestMemory) {
        self.planes = Planes::default();
        if let Some(blocks) = self.blocks {
            let _ = memory.write_block(blocks.video, 0, &vec![0; VIDEO_BYTES as usize]);
        }
    }

    /// Returns the offset of an address in the window of the planes.
    fn planes_offset(&self, address: u64) -> Option<usize> {
        let Window::Planes(start, bytes) = self.window else {
            return None;
        };
        let offset = address.wrapping_sub(start);
        (offset < bytes).then_some(offset as usize)
    }

    /// Returns input status 1, which depends on the position of the beam at 70 frames per second of
    /// 449 lines.
    fn status(&self, now: GuestTime) -> u8 {
        const LINE: u64 = 31_778;
        const LINES: u64 = 449;
        const RETRACE: u8 = 1 << 3;
        const BLANK: u8 = 1 << 0;
        let line = now.0 / LINE % LINES;
        let beyond = now.0 % LINE > LINE * 8 / 10;
        match line {
            0..400 if beyond => BLANK,
            0..400 => 0,
            412..414 => RETRACE | BLANK,
            _ => BLANK,
        }
    }
}

impl Device for Vga {
    fn name(&self) -> &str {
        "vga"
    }

    fn claims(&self) -> Claims {
        let ports = Registers::FIRST_PORT..=Registers::LAST_PORT;
        let claims = Claims::none()
            .with_byte_ports(ports)
            .with_memory(DISPLAY_START, DISPLAY_END - DISPLAY_START);
        let dispi = [
            Dispi::INDEX_PORT,
            Dispi::DATA_PORTS[0],
            Dispi::DATA_PORTS[1],
        ];
        dispi.into_iter().fold(claims, |claims, port| {
            claims.with_ports(port..=port, PortWidth::Exactly(2))
        })
    }

    fn port_read(&mut self, port: u16, _size: u8, context: &mut DeviceContext<'_>) -> u32 {
        match port {
            Registers::FIRST_PORT..=Registers::LAST_PORT => {
                let status = match port {
                    0x3ba | 0x3da => self.status(context.now()),
                    _ => 0,
                };
                self.registers.read(port, status).into()
            }
            _ => self.dispi.read(port).into(),
        }
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        self.is_touched = true;
        match port {
            Registers::FIRST_PORT..=Registers::LAST_PORT => {
                self.registers.write(port, value as u8);
                // Neither the palette nor the CRT controller moves the window.
                if !matches!(port, 0x3c2 | 0x3c5 | 0x3cf) {
                    return;
                }
            }
            _ => {
                if self.dispi.write(port, value as u16) {
                    self.take_contents(context.memory());
                    self.clear_video(context.memory());
                    self.window = Window::Closed;
                }
            }
        }
        self.follow(context);
    }

    fn memory_read(
        &mut self,
        address: PhysicalAddress,
        data: &mut [u8],
        _context: &mut DeviceContext<'_>,
    ) {
        for (at, byte) in (address.0..).zip(data) {
            *byte = match self.planes_offset(at) {
                Some(offset) => self.planes.load(&self.registers, offset),
                None => 0xff,
            };
        }
    }

    fn memory_write(
        &mut self,
        address: PhysicalAddress,
        data: &[u8],
        _context: &mut DeviceContext<'_>,
    ) {
        for (at, byte) in (address.0..).zip(data) {
            if let Some(offset) = self.planes_offset(at) {
                self.is_touched = true;
                self.planes.store(&self.registers, offset, *byte);
            }
        }
    }

    /// Only accesses to planes are near: their effect depends on registers and latches alone.
    fn is_near(&self, address: PhysicalAddress) -> bool {
        self.planes_offset(address.0).is_some()
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        self.is_touched = true;
        self.take_contents(context.memory());
        self.registers = Registers::new();
        self.dispi = Dispi::default();
        self.follow(context);
    }

    fn save(&self) -> SavedState {
        let state = State {
            registers: self.registers.clone(),
            dispi: self.dispi.clone(),
        };
        SavedState::of(Self::STATE_VERSION, &state)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        let state: State = saved.read(Self::STATE_VERSION)?;
        self.is_touched = true;
        if state.registers.is_valid() {
            self.registers = state.registers;
            self.dispi = state.dispi;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
