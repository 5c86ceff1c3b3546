//! Flash memory from which firmware starts and in which it keeps its variables, as QEMU's
//! pflash_cfi01 presents it: one or two chips at the top of the first 4 GiB.
//!
//! ```text
//!   unit 1   4 GiB - both sizes   firmware's variables, in a file that is written
//!   unit 0   4 GiB - its size     firmware's code, with the reset vector at its end
//! ```
//!
//! While a chip shows its contents, loads and fetches reach memory as they reach a ROM's. After
//! most commands ([`commands`]) it shows its status or its description, so its addresses become
//! those of a device until the contents are shown again. What the guest programs and erases is
//! collected as long as it is one range, and then goes to memory and to the thread of the image, in
//! the guest's order.

mod commands;
mod query;
mod unit;

use self::unit::Unit;
use super::chipset::rom::FirmwareRom;
use super::medium::Medium;
use crate::bus::completion::Completer;
use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};
use serde::{Deserialize, Serialize};
use std::io;
use tollgate_disk::{DiskError, DriveOptions};
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// The maximum number of chips.
pub const MOST_UNITS: usize = 2;

/// The contents of a chip, and the image that keeps what the guest changes.
#[derive(Debug)]
pub struct FlashImage {
    /// The contents: a positive number of whole pages.
    pub contents: Vec<u8>,
    /// Whether the guest may write.
    pub is_writable: bool,
    /// The image that keeps what the guest writes.
    pub medium: Option<Medium>,
}

impl FlashImage {
    /// Makes the contents of a chip whose changes are lost.
    pub const fn in_memory(contents: Vec<u8>) -> Self {
        Self {
            contents,
            is_writable: true,
            medium: None,
        }
    }

    /// Opens and reads an image.
    ///
    /// # Errors
    /// The image cannot be used or has a size that flash memory cannot have.
    pub fn open(unit: usize, options: &DriveOptions) -> Result<Self, DiskError> {
        let failed = |why: String| DiskError {
            path: options.path.clone(),
            why,
        };
        let image = tollgate_disk::open(options)?;
        let bytes = image.size();
        if bytes == 0 || !bytes.is_multiple_of(PAGE_SIZE) || bytes > FirmwareRom::MAX_BYTES {
            return Err(failed(format!(
                "it has {bytes} bytes: flash memory has a multiple of 4096, at most 16 MiB"
            )));
        }
        let mut contents = vec![0; bytes as usize];
        image
            .read(0, &mut contents)
            .map_err(|error| failed(error.to_string()))?;
        let is_writable = image.is_writable();
        let medium = match is_writable {
            true => {
                let name = format!("flash{unit} ({})", options.path.display());
                let started = Medium::start(name, image);
                Some(started.map_err(|error| failed(format!("no thread for it: {error}")))?)
            }
            false => None,
        };
        Ok(Self {
            contents,
            is_writable,
            medium,
        })
    }

    /// Opens the images of all chips of a machine, unit 0 first.
    ///
    /// # Errors
    /// An image cannot be used, or together they are too large.
    pub fn open_all(drives: &[DriveOptions]) -> Result<Vec<Self>, DiskError> {
        let units = drives.iter().take(MOST_UNITS).enumerate();
        let images: Vec<Self> = units
            .map(|(unit, options)| Self::open(unit, options))
            .collect::<Result<_, _>>()?;
        let bytes: usize = images.iter().map(|image| image.contents.len()).sum();
        match drives.last() {
            Some(last) if bytes as u64 > FirmwareRom::MAX_BYTES => Err(DiskError {
                path: last.path.clone(),
                why: "all flash memory together has at most 16 MiB".into(),
            }),
            _ => Ok(images),
        }
    }
}

/// All chips of a machine as one device, unit 0 first.
#[derive(Debug)]
pub struct Flash(Vec<Unit>);

impl Flash {
    /// Version of the saved state.
    const STATE_VERSION: u32 = 1;

    /// Makes the chips, unit 0 first. They have no memory yet.
    pub fn new(images: Vec<FlashImage>) -> Self {
        let mut end = 1 << 32;
        let units = images.into_iter().take(MOST_UNITS).map(|image| {
            let unit = Unit::new(end, image);
            end = unit.start();
            unit
        });
        Self(units.collect())
    }

    /// Makes the memory of the chips, fills it with their contents and places it. Returns that of
    /// unit 0, whose last part the chip set also shows below 1 MiB.
    ///
    /// # Errors
    /// The host has no memory for them.
    pub fn make_memory(
        &mut self,
        context: &mut DeviceContext<'_>,
    ) -> io::Result<Option<FirmwareRom>> {
        for unit in &mut self.0 {
            unit.make_memory(context.memory())?;
        }
        self.place_regions(context);
        Ok(self.0.first().and_then(Unit::rom))
    }

    /// Makes the addresses of all chips show what their commands say.
    pub fn place_regions(&mut self, context: &mut DeviceContext<'_>) {
        for unit in &mut self.0 {
            unit.place(context);
        }
    }

    fn unit_at(&mut self, address: PhysicalAddress) -> Option<(&mut Unit, u64)> {
        self.0.iter_mut().find_map(|unit| {
            let offset = address.0.checked_sub(unit.start())?;
            (offset < unit.bytes()).then_some((unit, offset))
        })
    }
}

#[derive(Serialize, Deserialize)]
struct State(Vec<unit::State>);

impl Device for Flash {
    fn name(&self) -> &str {
        "flash"
    }

    fn claims(&self) -> Claims {
        let units = self.0.iter();
        units.fold(Claims::none(), |claims, unit| {
            claims.with_memory(unit.start(), unit.bytes())
        })
    }

    fn memory_read(
        &mut self,
        address: PhysicalAddress,
        data: &mut [u8],
        context: &mut DeviceContext<'_>,
    ) {
        data.fill(0xff);
        if let Some((unit, offset)) = self.unit_at(address) {
            unit.read(offset, data, context);
        }
    }

    fn memory_write(
        &mut self,
        address: PhysicalAddress,
        data: &[u8],
        context: &mut DeviceContext<'_>,
    ) {
        if let Some((unit, offset)) = self.unit_at(address) {
            unit.write(offset, data, context);
        }
    }

    fn deadline(&self, _context: &DeviceContext<'_>) -> Option<GuestTime> {
        self.0.iter().filter_map(Unit::deadline).min()
    }

    fn advance(&mut self, context: &mut DeviceContext<'_>) {
        for unit in &mut self.0 {
            unit.advance(context);
        }
    }

    fn connect(&mut self, completer: Completer) {
        for (part, unit) in (0..).zip(&mut self.0) {
            unit.connect(completer.for_part(part));
        }
    }

    fn complete(&mut self, token: u64, _context: &mut DeviceContext<'_>) {
        let (part, _) = Completer::part_of(token);
        if let Some(unit) = self.0.get(usize::from(part)) {
            unit.take_outcomes();
        }
    }

    fn has_pending_work(&self) -> bool {
        self.0.iter().any(Unit::has_pending_work)
    }

    fn flush(&self) {
        self.0.iter().for_each(Unit::flush);
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        for unit in &mut self.0 {
            unit.reset(context);
        }
    }

    fn save(&self) -> SavedState {
        let units = self.0.iter().map(Unit::save);
        SavedState::of(Self::STATE_VERSION, &State(units.collect()))
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        let State(states) = saved.read(Self::STATE_VERSION)?;
        let fits = states.len() == self.0.len()
            && (self.0.iter().zip(&states)).all(|(unit, state)| unit.accepts(state));
        if !fits {
            return Err(StateError::Unreadable {
                part: self.name().into(),
                why: "the state is that of other flash memory".into(),
            });
        }
        for (unit, state) in self.0.iter_mut().zip(states) {
            unit.restore(state);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
