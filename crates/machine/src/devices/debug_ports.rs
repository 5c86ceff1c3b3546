//! Ports for debugging a guest: byte consoles, usually at E9h and 402h, the POST code at 80h and the
//! exit port, usually at F4h.

use crate::bus::{Claims, Device, DeviceContext, NearUse, SavedState, StateError};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;
use tollgate_platform::StopRequest;

/// A console with one port: each byte written is a character.
///
/// Reads return E9h at either port, by which a guest detects the console.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DebugConsole {
    output: Vec<u8>,
    lost: u64,
}

impl DebugConsole {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// The port that Bochs introduced.
    pub const BOCHS_PORT: u16 = 0xE9;
    /// The port of SeaBIOS and OVMF.
    pub const FIRMWARE_PORT: u16 = 0x402;

    /// The maximum number of bytes that wait for the owner. More bytes are lost.
    pub const OUTPUT_LIMIT: usize = 64 << 10;

    const PRESENT: u8 = 0xE9;

    /// Reads the port.
    pub const fn read(&self) -> u8 {
        Self::PRESENT
    }

    /// Writes one character.
    pub fn write(&mut self, byte: u8) {
        if self.output.len() < Self::OUTPUT_LIMIT {
            self.output.push(byte);
        } else {
            self.lost = self.lost.saturating_add(1);
        }
    }

    /// Returns what was written and not taken yet.
    pub fn output(&self) -> &[u8] {
        &self.output
    }

    /// Takes what was written.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.output)
    }

    /// Returns how many bytes were lost because no reader took the output.
    pub const fn lost(&self) -> u64 {
        self.lost
    }
}

/// Port 80h, where firmware shows its progress and which Linux writes in order to wait.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct PostCode {
    code: u8,
}

impl PostCode {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// The customary port of POST codes.
    pub const PORT: u16 = 0x80;

    /// Reads the last code.
    pub const fn read(&self) -> u8 {
        self.code
    }

    /// Shows a code.
    pub const fn write(&mut self, code: u8) {
        self.code = code;
    }
}

/// The exit port: a write ends the machine with an exit code that is computed from the value.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DebugExit {
    request: Option<u8>,
}

impl DebugExit {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 1;

    /// The ports, at which QEMU's users usually place its isa-debug-exit.
    pub const PORTS: PortRange = PortRange {
        first: 0xF4,
        last: 0xF7,
    };

    /// The ports read as zero.
    pub const fn read(&self) -> u8 {
        0
    }

    /// Requests the end of the machine. If several bytes are written before the request is taken,
    /// the first one counts, which is the lowest of a wider write.
    pub fn write(&mut self, value: u8) {
        self.request.get_or_insert(value);
    }

    /// Returns the value that was written since the last call.
    pub fn take_request(&mut self) -> Option<u8> {
        self.request.take()
    }
}

/// Ports that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct PortRange {
    /// The first port.
    pub first: u16,
    /// The last port.
    pub last: u16,
}

impl From<PortRange> for RangeInclusive<u16> {
    fn from(range: PortRange) -> Self {
        range.first..=range.last
    }
}

/// Where a machine has its ports for debugging.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct DebugPlaces {
    /// The ports of the consoles.
    pub consoles: Vec<u16>,
    /// The ports at which a write ends the machine.
    pub exit: Option<PortRange>,
}

impl Default for DebugPlaces {
    fn default() -> Self {
        Self {
            consoles: vec![DebugConsole::BOCHS_PORT, DebugConsole::FIRMWARE_PORT],
            exit: Some(DebugExit::PORTS),
        }
    }
}

/// All these ports as one device on the bus.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DebugPorts {
    places: DebugPlaces,
    console: DebugConsole,
    post_code: PostCode,
    exit: DebugExit,
}

impl DebugPorts {
    /// Version of the serialized state.
    pub const STATE_VERSION: u32 = 2;

    /// Makes the ports at these places.
    pub fn new(places: DebugPlaces) -> Self {
        Self {
            places,
            ..Self::default()
        }
    }

    fn is_exit(&self, port: u16) -> bool {
        let exit = self.places.exit.map(RangeInclusive::from);
        exit.is_some_and(|exit| exit.contains(&port))
    }
}

impl Device for DebugPorts {
    fn name(&self) -> &str {
        "debug-ports"
    }

    fn claims(&self) -> Claims {
        let post = Claims::none().with_byte_ports(PostCode::PORT..=PostCode::PORT);
        let consoles = self.places.consoles.iter();
        let consoles = consoles.fold(post, |claims, port| claims.with_byte_ports(*port..=*port));
        let all = match self.places.exit {
            Some(exit) => consoles.with_byte_ports(exit.into()),
            None => consoles,
        };
        all.with_near(PostCode::PORT..=PostCode::PORT, NearUse::all())
    }

    fn port_read(&mut self, port: u16, _size: u8, _context: &mut DeviceContext<'_>) -> u32 {
        let value = match port {
            PostCode::PORT => self.post_code.read(),
            port if self.is_exit(port) => self.exit.read(),
            _ => self.console.read(),
        };
        value.into()
    }

    fn port_write(&mut self, port: u16, _size: u8, value: u32, context: &mut DeviceContext<'_>) {
        let value = value as u8;
        match port {
            // Kernels write to this port to let time pass, so nothing else may happen.
            PostCode::PORT => self.post_code.write(value),
            port if self.is_exit(port) => {
                self.exit.write(value);
                if let Some(code) = self.exit.take_request() {
                    context.request_stop(StopRequest::DebugExit(code));
                }
            }
            _ => {
                self.console.write(value);
                context.debug_output(&self.console.take_output());
            }
        }
    }

    fn reset(&mut self, _context: &mut DeviceContext<'_>) {
        *self = Self::new(std::mem::take(&mut self.places));
    }

    fn save(&self) -> SavedState {
        SavedState::of(Self::STATE_VERSION, self)
    }

    fn restore(&mut self, saved: &SavedState) -> Result<(), StateError> {
        *self = saved.read(Self::STATE_VERSION)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_console_says_that_it_is_there_and_keeps_what_is_written() {
        let mut console = DebugConsole::default();
        assert_eq!(console.read(), 0xE9);
        b"hi\n".iter().for_each(|&byte| console.write(byte));
        assert_eq!(console.output(), b"hi\n");
        assert_eq!(console.take_output(), b"hi\n");
        assert!(console.output().is_empty());
    }

    #[test]
    fn console_output_that_nobody_takes_is_bounded() {
        let mut console = DebugConsole::default();
        (0..DebugConsole::OUTPUT_LIMIT + 3).for_each(|_| console.write(b'.'));
        assert_eq!(console.take_output().len(), DebugConsole::OUTPUT_LIMIT);
        assert_eq!(console.lost(), 3);
    }

    #[test]
    fn port_80h_reads_the_last_code() {
        let mut post = PostCode::default();
        post.write(0x12);
        post.write(0x34);
        assert_eq!(post.read(), 0x34);
    }

    #[test]
    fn the_exit_port_reports_its_first_value_once() {
        let mut exit = DebugExit::default();
        assert_eq!((exit.read(), exit.take_request()), (0, None));
        exit.write(0x2A);
        exit.write(0x00);
        assert_eq!(exit.take_request(), Some(0x2A));
        assert_eq!(exit.take_request(), None);
    }
}
