//! A device's interrupt request line, as the interrupt controllers must see it.
//!
//! A line may fall and rise again inside one register access (a UART whose holding register is
//! filled and immediately drained) or many times inside one step of guest time (a timer). Its final
//! level does not show this, so the rising edges are counted as well.

use serde::{Deserialize, Serialize};

/// The level of an interrupt line and the rising edges not yet forwarded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IrqLine {
    level: bool,
    rises: u64,
}

impl IrqLine {
    /// Makes a line that is low and has no edges to forward.
    pub const fn low() -> Self {
        Self {
            level: false,
            rises: 0,
        }
    }

    /// Drives the line; a change from low to high counts as one rising edge.
    pub fn set(&mut self, level: bool) {
        if level && !self.level {
            self.rises = self.rises.saturating_add(1);
        }
        self.level = level;
    }

    /// Records that `rises` rising edges happened and that the line is now at `level`.
    pub fn record(&mut self, rises: u64, level: bool) {
        self.rises = self.rises.saturating_add(rises);
        self.level = level;
    }

    /// Returns the present level: `true` requests an interrupt.
    pub const fn level(&self) -> bool {
        self.level
    }

    /// Returns the rising edges since the last call of this function or of [`IrqLine::forward`].
    pub fn take_edges(&mut self) -> u64 {
        std::mem::take(&mut self.rises)
    }

    /// Forwards the line to an input of an interrupt controller: `set_line` is called with every
    /// level that the input must see, so that no edge is missed. Returns how many rising edges
    /// there were; the controller sees one edge for all of them.
    pub fn forward(&mut self, mut set_line: impl FnMut(bool)) -> u64 {
        let rises = self.take_edges();
        if rises > 0 {
            set_line(false);
            set_line(true);
        }
        set_line(self.level);
        rises
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_fell_and_rose_again_is_forwarded_as_an_edge() {
        let mut line = IrqLine::default();
        line.set(true);
        line.forward(|_| {});
        line.set(false);
        line.set(true);
        let mut seen = Vec::new();
        assert_eq!(line.forward(|level| seen.push(level)), 1);
        assert_eq!(seen, [false, true, true]);
    }

    #[test]
    fn a_line_that_pulsed_is_forwarded_as_a_pulse() {
        let mut line = IrqLine::default();
        line.record(3, false);
        let mut seen = Vec::new();
        assert_eq!(line.forward(|level| seen.push(level)), 3);
        assert_eq!(seen, [false, true, false]);
        assert_eq!(line.take_edges(), 0);
    }

    #[test]
    fn a_line_that_stays_high_is_no_new_edge() {
        let mut line = IrqLine::default();
        line.set(true);
        line.set(true);
        assert_eq!(line.take_edges(), 1);
        assert!(line.level());
    }
}
