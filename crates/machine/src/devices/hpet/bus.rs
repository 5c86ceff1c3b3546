//! The high-precision event timer on the bus.

use super::{BASE_ADDRESS, Hpet, REGISTER_BYTES, REPLACED_LINES, TIMERS, timer::Timer};
use crate::bus::{Claims, Device, DeviceContext, SavedState, StateError};
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;

impl Hpet {
    /// Drives all lines. A line that a comparator no longer uses becomes low.
    fn forward(&mut self, before: [Option<u8>; TIMERS], context: &mut DeviceContext<'_>) {
        let now = context.now();
        context.replace_legacy_lines(self.replaces_legacy());
        let lines = self.lines();
        for line in before.into_iter().flatten() {
            if !lines.contains(&Some(line)) {
                context.set_line(line, false);
            }
        }
        for (index, number) in lines.into_iter().enumerate() {
            let Some(number) = number else {
                self.timers[index].line.take_edges();
                continue;
            };
            let Timer { line, .. } = &mut self.timers[index];
            let edges = context.forward(number, line);
            if number == REPLACED_LINES[0] {
                self.lost_ticks.saw(edges, now);
                if self.lost_ticks.take(now) {
                    line.record(1, line.level());
                    context.forward(number, line);
                }
            }
        }
    }

    /// Returns the line of each comparator.
    fn lines(&self) -> [Option<u8>; TIMERS] {
        std::array::from_fn(|timer| self.line_of(timer))
    }
}

impl Device for Hpet {
    fn name(&self) -> &str {
        "hpet"
    }

    fn claims(&self) -> Claims {
        Claims::none().with_memory(BASE_ADDRESS, REGISTER_BYTES)
    }

    fn memory_read(
        &mut self,
        address: PhysicalAddress,
        data: &mut [u8],
        context: &mut DeviceContext<'_>,
    ) {
        let lines = self.lines();
        self.read(address.0.wrapping_sub(BASE_ADDRESS), data, context.now());
        self.forward(lines, context);
    }

    fn memory_write(
        &mut self,
        address: PhysicalAddress,
        data: &[u8],
        context: &mut DeviceContext<'_>,
    ) {
        let lines = self.lines();
        self.write(address.0.wrapping_sub(BASE_ADDRESS), data, context.now());
        self.forward(lines, context);
    }

    fn deadline(&self, context: &DeviceContext<'_>) -> Option<GuestTime> {
        self.next_deadline(context.now())
    }

    fn advance(&mut self, context: &mut DeviceContext<'_>) {
        let lines = self.lines();
        self.advance(context.now());
        self.forward(lines, context);
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
