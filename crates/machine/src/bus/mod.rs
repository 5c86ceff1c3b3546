//! The bus: it finds the device that answers at a port or an address, and calls it with its
//! surroundings.
//!
//! A [`Device`] claims ports and memory. The [`Bus`] keeps a table with an entry for each port and
//! a sorted list of memory ranges, forwards every access to its device together with a
//! [`DeviceContext`], and remembers when each device next needs attention. The state that all
//! devices share is the [`Board`].
//!
//! Ports and addresses that no device claims read as ones and ignore writes.

pub mod completion;
mod context;
mod device;
mod near;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

pub use crate::board::{SavedState, StateError};
use crate::devices::virtio::drive_change::DriveChange;
pub use context::DeviceContext;
pub use device::{Claims, Device, MemoryClaim, NearUse, PortClaim, PortWidth};

use crate::board::{Board, GuestClock};
use completion::{Completion, Completions, KickFunction};
use std::any::Any;
use std::collections::VecDeque;
use std::time::{Duration, Instant};
use tollgate_exits::blame::DeviceAddress;
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;

/// The maximum number of devices on a bus. Each device drives a bit of its own in a shared line.
pub const MAX_DEVICES: usize = 64;

/// The number of ports.
const PORTS: usize = 1 << 16;

/// An entry of the port table: the device's slot plus one, or zero if no device claims the port.
type PortEntry = u8;
/// Flag in an entry: accesses arrive as the guest makes them.
const WHOLE: PortEntry = 1 << 7;

/// A claimed range of memory: its first and its last byte.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct MemoryRange {
    first: u64,
    last: u64,
    slot: u8,
}

struct Slot {
    device: Box<dyn Device>,
    deadline: Option<GuestTime>,
}

/// There is no room for a device on the bus, or its name is taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BusError {
    /// The name of the device.
    pub device: String,
}

impl std::fmt::Display for BusError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "device '{}' cannot be added: its name is taken, or there are {MAX_DEVICES} devices",
            self.device
        )
    }
}

impl std::error::Error for BusError {}

/// All devices, and which of them answers at each port and address.
pub struct Bus {
    slots: Vec<Slot>,
    /// An entry for each port.
    ports: Box<[PortEntry]>,
    /// The near accesses for each port. It has no meaning where no device answers.
    near: Box<[NearUse]>,
    /// Claims of accesses of one width: port, bytes, slot.
    exact_ports: Vec<(u16, u8, u8)>,
    /// Claimed memory in ascending order, without overlaps.
    memory: Vec<MemoryRange>,
    /// The earliest deadline of all devices.
    deadline: Option<GuestTime>,
    completions: Completions,
    /// Completions that were taken from the queue but not yet handed to devices.
    taken: VecDeque<Completion>,
}

impl Default for Bus {
    fn default() -> Self {
        Self::new()
    }
}

impl Bus {
    /// Makes a bus without devices.
    pub fn new() -> Self {
        Self {
            slots: Vec::new(),
            ports: vec![0; PORTS].into_boxed_slice(),
            near: vec![NearUse::all(); PORTS].into_boxed_slice(),
            exact_ports: Vec::new(),
            memory: Vec::new(),
            deadline: None,
            completions: Completions::new(),
            taken: VecDeque::new(),
        }
    }

    /// Adds a device to the bus, after all others.
    ///
    /// # Errors
    /// There are [`MAX_DEVICES`] devices already, or one has this name.
    pub fn add(
        &mut self,
        mut device: Box<dyn Device>,
        board: &mut Board,
        clock: &GuestClock,
    ) -> Result<(), BusError> {
        let name = device.name();
        if self.slots.len() == MAX_DEVICES || self.names().any(|taken| taken == name) {
            return Err(BusError {
                device: name.to_owned(),
            });
        }
        let slot = self.slots.len();
        device.connect(self.completions.completer(slot as u8));
        let claims = device.claims();
        self.slots.push(Slot {
            device,
            deadline: None,
        });
        self.enter(slot as u8, &claims);
        self.sort_memory();
        self.enter_near(slot as u8, &claims);
        self.call(slot, board, clock, |_, _| ());
        Ok(())
    }

    /// Returns the names of all devices, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.slots.iter().map(|slot| slot.device.name())
    }

    /// Returns the name of the device that answers at a port or an address.
    pub fn name_at(&self, address: DeviceAddress) -> Option<&str> {
        let slot = match address {
            DeviceAddress::Port(port) => self.port_slot(port),
            DeviceAddress::Memory(at) => self.memory_slot(PhysicalAddress(at)),
        }?;
        let slot = self.slots.get(slot)?;
        Some(slot.device.name_at(address))
    }

    /// Returns the first device of a type.
    pub fn get<T: Device>(&self) -> Option<&T> {
        self.slots
            .iter()
            .find_map(|slot| (&*slot.device as &dyn Any).downcast_ref())
    }

    /// Calls the first device of a type for an event from outside, such as a pressed key. Returns
    /// `None` if there is no such device.
    pub fn with<T: Device, R>(
        &mut self,
        board: &mut Board,
        clock: &GuestClock,
        call: impl FnOnce(&mut T, &mut DeviceContext<'_>) -> R,
    ) -> Option<R> {
        let slot = self
            .slots
            .iter()
            .position(|slot| (&*slot.device as &dyn Any).is::<T>())?;
        self.call(slot, board, clock, |device, context| {
            let device = (device as &mut dyn Any).downcast_mut()?;
            Some(call(device, context))
        })?
    }

    /// Changes a drive of a virtio device; see [`Device::change_drive`]. Returns `None` if there is no
    /// such drive.
    pub fn change_drive(
        &mut self,
        change: &DriveChange,
        board: &mut Board,
        clock: &GuestClock,
    ) -> Option<Result<(), String>> {
        (0..self.slots.len()).find_map(|slot| {
            self.call(slot, board, clock, |device, context| {
                device.change_drive(change, context)
            })?
        })
    }

    /// Reads `size` (1, 2 or 4) bytes from a port. The other bits are zero.
    pub fn port_read(&mut self, port: u16, size: u8, board: &mut Board, clock: &GuestClock) -> u32 {
        let mask = u32::MAX >> (32 - 8 * u32::from(size.clamp(1, 4)));
        if let Some(slot) = self.whole_access(port, size) {
            let value = self.call(slot, board, clock, |device, context| {
                device.port_read(port, size, context)
            });
            return value.unwrap_or(u32::MAX) & mask;
        }
        let mut value = 0;
        for position in 0..size.min(4) {
            let port = port.wrapping_add(u16::from(position));
            let byte = self.port_slot(port).and_then(|slot| {
                self.call(slot, board, clock, |device, context| {
                    device.port_read(port, 1, context) as u8
                })
            });
            value |= u32::from(byte.unwrap_or(0xff)) << (8 * position);
        }
        value
    }

    /// Writes `size` (1, 2 or 4) bytes to a port.
    pub fn port_write(
        &mut self,
        port: u16,
        size: u8,
        value: u32,
        board: &mut Board,
        clock: &GuestClock,
    ) {
        if let Some(slot) = self.whole_access(port, size) {
            let mask = u32::MAX >> (32 - 8 * u32::from(size.clamp(1, 4)));
            self.call(slot, board, clock, |device, context| {
                device.port_write(port, size, value & mask, context);
            });
            return;
        }
        for position in 0..size.min(4) {
            let byte = value >> (8 * position) & 0xff;
            let port = port.wrapping_add(u16::from(position));
            if let Some(slot) = self.port_slot(port) {
                self.call(slot, board, clock, |device, context| {
                    device.port_write(port, 1, byte, context);
                });
            }
        }
    }

    /// Reads memory that is not RAM.
    pub fn memory_read(
        &mut self,
        address: PhysicalAddress,
        data: &mut [u8],
        board: &mut Board,
        clock: &GuestClock,
    ) {
        match self.memory_slot(address) {
            Some(slot) => {
                self.call(slot, board, clock, |device, context| {
                    device.memory_read(address, data, context);
                });
            }
            None => data.fill(0xff),
        }
    }

    /// Writes memory that is not RAM.
    pub fn memory_write(
        &mut self,
        address: PhysicalAddress,
        data: &[u8],
        board: &mut Board,
        clock: &GuestClock,
    ) {
        if let Some(slot) = self.memory_slot(address) {
            self.call(slot, board, clock, |device, context| {
                device.memory_write(address, data, context);
            });
        }
    }

    /// Returns when [`Bus::advance`] is next needed.
    pub const fn deadline(&self) -> Option<GuestTime> {
        self.deadline
    }

    /// Brings every device to the present time.
    pub fn advance(&mut self, board: &mut Board, clock: &GuestClock) {
        self.call_all(board, clock, |device, context| device.advance(context));
    }

    /// Advances only the devices whose deadlines have come. That is enough if nothing came from
    /// outside, and a timer's interrupt then touches the memory of one device, not of all.
    pub fn advance_due(&mut self, board: &mut Board, clock: &GuestClock, now: GuestTime) {
        for slot in 0..self.slots.len() {
            if self.slots[slot].deadline.is_some_and(|due| due <= now) {
                self.call(slot, board, clock, |device, context| {
                    device.advance(context)
                });
            }
        }
    }

    /// Sets the function that makes the vCPU's thread leave guest code when a device's thread has
    /// finished some work. `None` means that the guest does not run.
    pub fn set_kick(&self, kick: Option<KickFunction>) {
        self.completions.set_kick(kick);
    }

    /// Hands completions to their devices.
    pub fn take_completions(&mut self, board: &mut Board, clock: &GuestClock) {
        self.take_completions_until(board, clock, |_| false);
    }

    /// Hands completions to their devices until none are left or `stops` returns true. Returns
    /// whether some are left.
    pub fn take_completions_until(
        &mut self,
        board: &mut Board,
        clock: &GuestClock,
        stops: impl Fn(&Board) -> bool,
    ) -> bool {
        self.taken.extend(self.completions.take());
        while let Some((slot, token)) = self.taken.pop_front() {
            self.call(usize::from(slot), board, clock, |device, context| {
                device.complete(token, context);
            });
            if !self.taken.is_empty() && stops(board) {
                return true;
            }
        }
        false
    }

    /// Waits until no device's threads have unfinished work.
    ///
    /// # Errors
    /// [`StateError::Busy`] after `patience`.
    pub fn quiesce(
        &mut self,
        board: &mut Board,
        clock: &GuestClock,
        patience: Duration,
    ) -> Result<(), StateError> {
        let end = Instant::now() + patience;
        loop {
            self.take_completions(board, clock);
            let mut devices = self.slots.iter().map(|slot| &slot.device);
            let Some(busy) = devices.find(|device| device.has_pending_work()) else {
                return Ok(());
            };
            if Instant::now() >= end {
                return Err(StateError::Busy {
                    part: busy.name().to_owned(),
                });
            }
            self.completions.wait_until(end);
        }
    }

    /// Resets every device. The board has been reset before.
    pub fn reset(&mut self, board: &mut Board, clock: &GuestClock) {
        self.call_all(board, clock, |device, context| device.reset(context));
        self.rebuild();
    }

    /// Writes to the host's files what is kept of the guest's data, and checks that a saved state
    /// would contain all that the guest uses. No device may have unfinished work.
    ///
    /// # Errors
    /// [`StateError::InUse`].
    pub fn can_be_saved(&self) -> Result<(), StateError> {
        for slot in &self.slots {
            slot.device.flush();
            if let Some(why) = slot.device.cannot_be_saved() {
                return Err(StateError::InUse {
                    part: slot.device.name().to_owned(),
                    why,
                });
            }
        }
        Ok(())
    }

    /// Returns the name and the state of every device, in order.
    pub fn save(&self) -> Vec<(String, SavedState)> {
        let state = |slot: &Slot| (slot.device.name().to_owned(), slot.device.save());
        self.slots.iter().map(state).collect()
    }

    /// Restores the states of [`Bus::save`]. The board has been restored before. [`Bus::settle`]
    /// must be called afterwards.
    ///
    /// # Errors
    /// The state is that of other devices, or a device's state has another layout. All devices are
    /// unchanged then.
    pub fn restore(&mut self, saved: &[(String, SavedState)]) -> Result<(), StateError> {
        if !self.names().eq(saved.iter().map(|(name, _)| name.as_str())) {
            return Err(StateError::Devices {
                found: saved.iter().map(|(name, _)| name.clone()).collect(),
                expected: self.names().map(str::to_owned).collect(),
            });
        }
        let before = self.save();
        let result = self.put(saved);
        if result.is_err() {
            // A device can read the state that it has just written, so this cannot fail.
            let _ = self.put(&before);
        }
        self.rebuild();
        result
    }

    /// Asks all devices for their deadlines again.
    pub fn settle(&mut self, board: &mut Board, clock: &GuestClock) {
        self.call_all(board, clock, |_, _| ());
    }

    fn put(&mut self, saved: &[(String, SavedState)]) -> Result<(), StateError> {
        self.slots
            .iter_mut()
            .zip(saved)
            .try_for_each(|(slot, (name, state))| {
                let restored = slot.device.restore(state);
                restored.map_err(|error| error.of_part(name))
            })
    }

    /// Returns the slot of the device that takes an access as the guest makes it.
    #[inline]
    fn whole_access(&self, port: u16, size: u8) -> Option<usize> {
        let entry = self.ports[usize::from(port)];
        if size > 1 {
            let exact = self
                .exact_ports
                .iter()
                .find(|claim| (claim.0, claim.1) == (port, size));
            if let Some((_, _, slot)) = exact {
                return Some(usize::from(*slot));
            }
        }
        (entry & WHOLE != 0).then(|| usize::from((entry & !WHOLE) - 1))
    }

    #[inline]
    fn port_slot(&self, port: u16) -> Option<usize> {
        let entry = self.ports[usize::from(port)] & !WHOLE;
        usize::from(entry).checked_sub(1)
    }

    #[inline]
    fn memory_slot(&self, address: PhysicalAddress) -> Option<usize> {
        let behind = self
            .memory
            .partition_point(|range| range.first <= address.0);
        let range = self.memory[..behind].last()?;
        (address.0 <= range.last).then_some(usize::from(range.slot))
    }

    /// Calls a device, and updates its deadline and claims afterwards.
    #[inline]
    fn call<R>(
        &mut self,
        slot: usize,
        board: &mut Board,
        clock: &GuestClock,
        call: impl FnOnce(&mut dyn Device, &mut DeviceContext<'_>) -> R,
    ) -> Option<R> {
        let Slot { device, deadline } = self.slots.get_mut(slot)?;
        let mut context = DeviceContext::new(board, clock, slot as u8);
        let result = call(&mut **device, &mut context);
        let changed = context.has_changed_claims();
        let next = device.deadline(&context);
        if next != *deadline {
            *deadline = next;
            self.find_deadline();
        }
        if changed {
            self.rebuild();
        }
        Some(result)
    }

    fn call_all(
        &mut self,
        board: &mut Board,
        clock: &GuestClock,
        mut call: impl FnMut(&mut dyn Device, &mut DeviceContext<'_>),
    ) {
        for slot in 0..self.slots.len() {
            self.call(slot, board, clock, &mut call);
        }
    }

    fn find_deadline(&mut self) {
        self.deadline = self.slots.iter().filter_map(|slot| slot.deadline).min();
    }

    /// Asks all devices again where they answer.
    fn rebuild(&mut self) {
        self.ports.fill(0);
        self.exact_ports.clear();
        self.memory.clear();
        self.near.fill(NearUse::all());
        for slot in 0..self.slots.len() {
            let claims = self.slots[slot].device.claims();
            self.enter(slot as u8, &claims);
            self.enter_near(slot as u8, &claims);
        }
        self.sort_memory();
    }

    /// Enters the claims of a device for ports and addresses that no other device claims.
    fn enter(&mut self, slot: u8, claims: &Claims) {
        for claim in &claims.ports {
            let whole = match claim.width {
                PortWidth::Byte => 0,
                PortWidth::Any => WHOLE,
                PortWidth::Exactly(size) => {
                    let port = *claim.ports.start();
                    self.exact_ports.push((port, size, slot));
                    continue;
                }
            };
            for port in claim.ports.clone() {
                let entry = &mut self.ports[usize::from(port)];
                if *entry == 0 {
                    *entry = (slot + 1) | whole;
                }
            }
        }
        for claim in claims.memory.iter().filter(|claim| claim.bytes != 0) {
            let first = claim.start.0;
            self.enter_memory(MemoryRange {
                first,
                last: first.saturating_add(claim.bytes - 1),
                slot,
            });
        }
    }

    /// Enters the pieces of a range that do not overlap earlier claims.
    fn enter_memory(&mut self, range: MemoryRange) {
        let mut rest = vec![range];
        for taken in &self.memory {
            rest = rest
                .into_iter()
                .flat_map(|piece| piece.without(taken))
                .collect();
        }
        self.memory.extend(rest);
    }

    fn sort_memory(&mut self) {
        self.memory.sort_unstable_by_key(|range| range.first);
    }
}

impl MemoryRange {
    /// Returns the parts of this range that lie outside of another one.
    fn without(self, other: &Self) -> impl Iterator<Item = Self> + use<> {
        let below = (self.first < other.first).then(|| Self {
            last: self.last.min(other.first - 1),
            ..self
        });
        let above = (self.last > other.last).then(|| Self {
            first: self.first.max(other.last + 1),
            ..self
        });
        below.into_iter().chain(above)
    }
}
