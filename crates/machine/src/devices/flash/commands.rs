//! The commands of a flash chip: Intel's basic and standard command sets, as QEMU's pflash_cfi01
//! obeys them. Commands and data are stores to the chip's addresses:
//!
//! ```text
//!   10h or 40h, byte            program a byte           then loads show the status
//!   20h, D0h                    erase a block            then loads show the status
//!   E8h, count-1, bytes, D0h    program bytes            then loads show the status
//!   50h                         clear the status         then loads show the contents
//!   70h                                                  then loads show the status
//!   90h, 98h                                             then loads show identifiers, description
//!   FFh, F0h, 00h                                        then loads show the contents
//! ```
//!
//! Every command is finished at once. OVMF recognises a chip by a status of 0 after it has been
//! cleared, also of the bit that says that the chip is ready.

use super::query::{BLOCK_BYTES, BUFFER_BYTES};
use serde::{Deserialize, Serialize};

/// The command bytes.
mod command {
    pub const ARRAY_AS_RESET: u8 = 0x00;
    pub const PROGRAM: u8 = 0x10;
    pub const ERASE: u8 = 0x20;
    pub const ERASE_TOO: u8 = 0x28;
    pub const PROGRAM_TOO: u8 = 0x40;
    pub const CLEAR_STATUS: u8 = 0x50;
    pub const LOCK: u8 = 0x60;
    pub const LOCK_BLOCK: u8 = 0x01;
    pub const STATUS: u8 = 0x70;
    pub const IDENTIFIERS: u8 = 0x90;
    pub const DESCRIPTION: u8 = 0x98;
    pub const CONFIRM: u8 = 0xd0;
    pub const PROGRAM_BUFFER: u8 = 0xe8;
    pub const ARRAY_OF_OTHERS: u8 = 0xf0;
    pub const ARRAY: u8 = 0xff;
}

/// Bits of the status.
mod status {
    /// The chip is ready.
    pub const READY: u8 = 1 << 7;
    /// The last block could not be erased.
    pub const ERASE_ERROR: u8 = 1 << 5;
    /// The last bytes could not be programmed.
    pub const PROGRAM_ERROR: u8 = 1 << 4;
}

/// What loads show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum Shown {
    /// What was programmed, as in a ROM.
    #[default]
    Array,
    /// The status register, at every address.
    Status,
    /// The manufacturer's and the chip's identifiers.
    Identifiers,
    /// The description of [`super::query`].
    Description,
}

/// What the next store is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
enum Next {
    /// The first byte of a command.
    #[default]
    Command,
    /// The bytes to program.
    Bytes,
    /// The confirmation that the block may be erased.
    EraseConfirmation,
    /// The number of bytes in the buffer, less one.
    BufferCount,
    /// As many more bytes for the buffer.
    BufferBytes(u16),
    /// The confirmation that the buffer may be programmed.
    BufferConfirmation,
    /// What happens to the block's lock.
    LockAction,
}

/// A change of the contents.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// These bytes are programmed from an offset on.
    Program(u64, Vec<u8>),
    /// All bits of the block that contains an offset are set.
    Erase(u64),
}

/// The state of a chip, except its contents.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Commands {
    shown: Shown,
    next: Next,
    status: u8,
    /// Where the buffer is programmed, and its bytes.
    buffer: (u64, Vec<u8>),
}

impl Default for Commands {
    fn default() -> Self {
        Self {
            shown: Shown::Array,
            next: Next::Command,
            status: status::READY,
            buffer: (0, Vec::new()),
        }
    }
}

impl Commands {
    /// Returns what loads show.
    pub const fn shown(&self) -> Shown {
        self.shown
    }

    /// Returns the status.
    pub const fn status(&self) -> u8 {
        self.status
    }

    /// Whether the state is one that stores can lead to.
    pub fn is_possible(&self, chip_bytes: u64) -> bool {
        let most = match self.next {
            Next::BufferBytes(rest) => BUFFER_BYTES.saturating_sub(rest.into()),
            _ => BUFFER_BYTES,
        };
        self.buffer.1.len() <= most && self.buffer.0 < chip_bytes
    }

    /// Obeys a store of 1 or more bytes. Returns what it changes in the contents of a chip that may
    /// be written.
    pub fn write(&mut self, offset: u64, data: &[u8], is_writable: bool) -> Option<Change> {
        let first = *data.first()?;
        let next = std::mem::take(&mut self.next);
        let change = match next {
            Next::Command => {
                self.begin(first);
                None
            }
            Next::Bytes => {
                self.status |= status::READY;
                Some(Change::Program(offset, data.to_vec()))
            }
            Next::EraseConfirmation => self.confirmed(first).then_some(Change::Erase(offset)),
            Next::BufferCount => {
                self.buffer = (offset, Vec::new());
                self.next = Next::BufferBytes(u16::from(first) + 1);
                None
            }
            Next::BufferBytes(rest) => {
                self.add_to_buffer(offset, data, rest);
                None
            }
            Next::BufferConfirmation => {
                let (start, bytes) = std::mem::take(&mut self.buffer);
                (self.confirmed(first)).then_some(Change::Program(start, bytes))
            }
            Next::LockAction => {
                if first == command::LOCK_BLOCK {
                    self.status |= status::READY;
                } else {
                    self.confirmed(first);
                }
                None
            }
        };
        if change.is_some() && !is_writable {
            self.status |= match change {
                Some(Change::Erase(_)) => status::ERASE_ERROR,
                _ => status::PROGRAM_ERROR,
            };
            return None;
        }
        change
    }

    fn begin(&mut self, first: u8) {
        let (shown, next) = match first {
            command::PROGRAM | command::PROGRAM_TOO => (Shown::Status, Next::Bytes),
            command::ERASE | command::ERASE_TOO => (Shown::Status, Next::EraseConfirmation),
            command::LOCK => (Shown::Status, Next::LockAction),
            command::STATUS => (Shown::Status, Next::Command),
            command::PROGRAM_BUFFER => {
                self.status |= status::READY;
                (Shown::Status, Next::BufferCount)
            }
            command::IDENTIFIERS => (Shown::Identifiers, Next::Command),
            command::DESCRIPTION => (Shown::Description, Next::Command),
            command::CLEAR_STATUS => {
                self.status = 0;
                (Shown::Array, Next::Command)
            }
            command::ARRAY_AS_RESET | command::ARRAY_OF_OTHERS | command::ARRAY => {
                (Shown::Array, Next::Command)
            }
            // An unknown command, after which QEMU's chip shows its contents.
            _ => (Shown::Array, Next::Command),
        };
        (self.shown, self.next) = (shown, next);
    }

    /// Whether a store confirms the command; if not, the command is dropped.
    fn confirmed(&mut self, first: u8) -> bool {
        let is_confirmed = first == command::CONFIRM;
        match is_confirmed {
            true => self.status |= status::READY,
            false => self.shown = Shown::Array,
        }
        is_confirmed
    }

    /// Adds bytes to the buffer, whose first byte decides where it is programmed. Bytes that do not
    /// follow it are refused.
    fn add_to_buffer(&mut self, offset: u64, data: &[u8], rest: u16) {
        let (start, bytes) = &mut self.buffer;
        if bytes.is_empty() {
            *start = offset;
        }
        let taken = data.len().min(rest.into());
        if offset.wrapping_sub(*start) != bytes.len() as u64 {
            self.status |= status::PROGRAM_ERROR;
            self.shown = Shown::Status;
            self.buffer = (0, Vec::new());
            return;
        }
        bytes.extend(&data[..taken]);
        self.next = match rest - taken as u16 {
            0 => Next::BufferConfirmation,
            rest => Next::BufferBytes(rest),
        };
    }
}

/// Returns the first offset of the block that contains an offset.
pub const fn block_of(offset: u64) -> u64 {
    offset - offset % BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chip(stores: &[(u64, u8)]) -> (Commands, Vec<Change>) {
        let mut chip = Commands::default();
        let changes = stores
            .iter()
            .filter_map(|(offset, byte)| chip.write(*offset, &[*byte], true));
        let changes = changes.collect();
        (chip, changes)
    }

    #[test]
    fn ovmf_recognises_the_chip() {
        let (mut chip, changes) = chip(&[(5, 0x50)]);
        assert_eq!(chip.shown(), Shown::Array);
        chip.write(5, &[0x70], true);
        assert_eq!((chip.shown(), chip.status()), (Shown::Status, 0));
        chip.write(5, &[0xff], true);
        assert_eq!(chip.shown(), Shown::Array);
        assert!(changes.is_empty());
    }

    #[test]
    fn a_byte_is_programmed_and_a_block_erased() {
        let (chip, changes) = chip(&[(9, 0x40), (9, 0x20), (0x1234, 0x20), (0x1234, 0xd0)]);
        let expected = [Change::Program(9, vec![0x20]), Change::Erase(0x1234)];
        assert_eq!(changes, expected);
        assert_eq!((chip.shown(), chip.status()), (Shown::Status, 0x80));
        assert_eq!(block_of(0x1234), 0x1000);
    }

    #[test]
    fn erasing_needs_a_confirmation() {
        let (chip, changes) = chip(&[(0, 0x20), (0, 0xff)]);
        assert!(changes.is_empty());
        assert_eq!(chip.shown(), Shown::Array);
    }

    #[test]
    fn a_buffer_is_programmed_as_a_whole() {
        let mut chip = Commands::default();
        chip.write(0x100, &[0xe8], true);
        chip.write(0x100, &[5], true);
        chip.write(0x110, &[1, 2, 3, 4], true);
        chip.write(0x114, &[5, 6, 7, 8], true);
        let change = chip.write(0x110, &[0xd0], true);
        let expected = Change::Program(0x110, vec![1, 2, 3, 4, 5, 6]);
        assert_eq!(change, Some(expected));
        // Bytes elsewhere are refused, and the confirmation is a command then.
        for (offset, byte) in [(0, 0xe8), (0, 1), (0, 1), (7, 2)] {
            chip.write(offset, &[byte], true);
        }
        assert_eq!(chip.status() & status::PROGRAM_ERROR, status::PROGRAM_ERROR);
        assert_eq!(chip.write(0, &[0xd0], true), None);
    }

    #[test]
    fn a_chip_that_is_only_read_reports_errors() {
        let mut chip = Commands::default();
        for byte in [0x10, 1, 0x20, 0xd0] {
            assert_eq!(chip.write(0, &[byte], false), None);
        }
        assert_eq!(chip.status(), 0xb0);
    }
}
