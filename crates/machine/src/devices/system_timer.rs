//! The system timer: the 8254 with the port that gates its third channel (61h), and the interrupts
//! that the guest could not take in time.

use super::lost_ticks::LostTicks;
use super::pit::Pit;
use super::speaker_port::SpeakerPort;
use crate::bus::{Claims, Device, DeviceContext, NearUse, SavedState, StateError};
use serde::{Deserialize, Serialize};
use tollgate_platform::GuestTime;

/// Interval timer and system control port B.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SystemTimer {
    pit: Pit,
    lost_ticks: LostTicks,
    speaker_port: SpeakerPort,
}

impl SystemTimer {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// Drives the timer's line, including a late edge if one is due.
    fn forward(&mut self, context: &mut DeviceContext<'_>) {
        let now = context.now();
        let line = self.pit.irq_line();
        let edges = context.forward(Pit::IRQ, line);
        self.lost_ticks.saw(edges, now);
        if self.lost_ticks.take(now) {
            line.record(1, line.level());
            context.forward(Pit::IRQ, line);
        }
    }
}

impl Device for SystemTimer {
    fn name(&self) -> &str {
        "system-timer"
    }

    fn claims(&self) -> Claims {
        Claims::none()
            .with_byte_ports(Pit::PORTS)
            .with_byte_ports(SpeakerPort::PORTS)
            .with_near(Pit::PORTS, NearUse::all())
            .with_near(SpeakerPort::PORTS, NearUse::all())
    }

    fn port_read(&mut self, port: u16, _size: u8, context: &mut DeviceContext<'_>) -> u32 {
        let now = context.now();
        if SpeakerPort::PORTS.contains(&port) {
            return self.speaker_port.read(&mut self.pit, now).into();
        }
        let value = self.pit.read(port, now);
        self.forward(context);
        value.into()
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        let (value, now) = (value as u8, context.now());
        if SpeakerPort::PORTS.contains(&port) {
            return self.speaker_port.write(value, &mut self.pit, now);
        }
        self.pit.write(port, value, now);
        self.forward(context);
        if Pit::sets_timer_interrupt(port, value) {
            self.lost_ticks.forget();
        }
    }

    fn deadline(&self, _context: &DeviceContext<'_>) -> Option<GuestTime> {
        let deadlines = [self.pit.next_deadline(), self.lost_ticks.next_deadline()];
        deadlines.into_iter().flatten().min()
    }

    fn advance(&mut self, context: &mut DeviceContext<'_>) {
        self.pit.advance(context.now());
        self.forward(context);
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        *self = Self::default();
    }

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        *self = saved.read(Self::STATE_VERSION)?;
        Ok(())
    }
}
