//! The floppy disk controller on the bus.

use super::Floppy;
use super::controller::State;
use super::drive::Mechanics;
use crate::bus::completion::Completer;
use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};
use serde::{Deserialize, Serialize};
use tollgate_platform::GuestTime;

/// The saved state. It does not include the disks: the program that restores it inserts them.
#[derive(Serialize, Deserialize)]
struct Saved {
    state: State,
    drives: Vec<Mechanics>,
}

impl Floppy {
    /// Version of the saved state.
    pub const STATE_VERSION: u32 = 1;

    fn forward(&mut self, context: &mut DeviceContext<'_>) {
        context.forward(Self::IRQ, &mut self.state.irq);
    }
}

impl Device for Floppy {
    fn name(&self) -> &str {
        "floppy"
    }

    fn claims(&self) -> Claims {
        // Port 3F6h belongs to the disk controllers.
        Claims::none()
            .with_byte_ports(0x3f0..=0x3f5)
            .with_byte_ports(0x3f7..=0x3f7)
    }

    fn port_read(&mut self, port: u16, _size: u8, context: &mut DeviceContext<'_>) -> u32 {
        let value = self.read(port, context);
        self.forward(context);
        value.into()
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        self.write(port, value as u8, context);
        self.forward(context);
    }

    fn deadline(&self, _context: &DeviceContext<'_>) -> Option<GuestTime> {
        self.next_deadline()
    }

    fn advance(&mut self, context: &mut DeviceContext<'_>) {
        self.advance_to(context);
        self.forward(context);
    }

    fn connect(&mut self, completer: Completer) {
        for disk in self.drives.iter_mut().filter_map(|d| d.disk.as_mut()) {
            disk.medium.connect(completer.clone());
        }
        self.completer = Some(completer);
    }

    fn complete(&mut self, _token: u64, context: &mut DeviceContext<'_>) {
        for drive in 0..self.drives.len() {
            let disk = self.drives[drive].disk.as_ref();
            for outcome in disk.map(|disk| disk.medium.take()).unwrap_or_default() {
                self.take_outcome(drive, outcome);
            }
        }
        self.advance_transfer(context);
        self.forward(context);
    }

    fn has_pending_work(&self) -> bool {
        let mut disks = self.drives.iter().filter_map(|drive| drive.disk.as_ref());
        disks.any(|disk| disk.medium.has_pending_work())
    }

    fn flush(&self) {
        let disks = self.drives.iter().filter_map(|drive| drive.disk.as_ref());
        disks.for_each(|disk| disk.medium.flush());
    }

    fn reset(&mut self, context: &mut DeviceContext<'_>) {
        self.reset_all(context);
    }

    fn save(&self) -> SavedState {
        SavedState::of(
            Self::STATE_VERSION,
            &Saved {
                state: self.state.clone(),
                drives: self.mechanics(),
            },
        )
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        let saved: Saved = saved.read(Self::STATE_VERSION)?;
        self.state = saved.state;
        for (drive, mechanics) in self.drives.iter_mut().zip(saved.drives) {
            drive.mechanics = mechanics;
        }
        self.work = None;
        self.settle_restored();
        Ok(())
    }
}
