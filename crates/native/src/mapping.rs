//! Changes of mappings that wait for the mapper, and why they are refused or fail.

use crate::exit::Death;
use crate::layout::{BATCH_COMMANDS, COMMAND, PAGE, USER_END};
use std::fmt;
use std::io;
use std::ops::Range;

/// What a program may do with a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "each name says it")]
pub enum Rights {
    None,
    Read,
    ReadWrite,
    ReadExecute,
    ReadWriteExecute,
}

impl Rights {
    const fn protection(self) -> u64 {
        let bits = match self {
            Self::None => libc::PROT_NONE,
            Self::Read => libc::PROT_READ,
            Self::ReadWrite => libc::PROT_READ | libc::PROT_WRITE,
            Self::ReadExecute => libc::PROT_READ | libc::PROT_EXEC,
            Self::ReadWriteExecute => libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC,
        };
        bits as u64
    }
}

/// A change of the address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Maps guest RAM.
    Map {
        /// The first linear address.
        address: u64,
        /// The number of bytes.
        length: u64,
        /// Offset in the file of guest RAM.
        ram_offset: u64,
        /// What the program may do there.
        rights: Rights,
    },
    /// Removes what is mapped in a range.
    Unmap {
        /// The first linear address.
        address: u64,
        /// The number of bytes.
        length: u64,
    },
    /// Changes the rights in a range, all of which is mapped.
    Protect {
        /// The first linear address.
        address: u64,
        /// The number of bytes.
        length: u64,
        /// What the program may do there.
        rights: Rights,
    },
}

impl Command {
    const fn range(self) -> (u64, u64) {
        match self {
            Self::Map {
                address, length, ..
            }
            | Self::Unmap { address, length }
            | Self::Protect {
                address, length, ..
            } => (address, length),
        }
    }

    /// The system call: its number and arguments.
    pub(crate) const fn words(self) -> [u64; (COMMAND / 8) as usize] {
        match self {
            Self::Map {
                address,
                length,
                ram_offset,
                rights,
            } => [
                libc::SYS_mmap as u64,
                address,
                length,
                rights.protection(),
                MAP_FLAGS,
                RAM_DESCRIPTOR,
                ram_offset,
                0,
            ],
            Self::Unmap { address, length } => {
                [libc::SYS_munmap as u64, address, length, 0, 0, 0, 0, 0]
            }
            Self::Protect {
                address,
                length,
                rights,
            } => {
                let protection = rights.protection();
                let number = libc::SYS_mprotect as u64;
                [number, address, length, protection, 0, 0, 0, 0]
            }
        }
    }

    /// This command and the next as one, if that means the same.
    fn joined(self, next: Self) -> Option<Self> {
        match (self, next) {
            (
                Self::Map {
                    address,
                    length,
                    ram_offset,
                    rights,
                },
                Self::Map {
                    address: next_address,
                    length: next_length,
                    ram_offset: next_offset,
                    rights: next_rights,
                },
            ) if address + length == next_address
                && ram_offset + length == next_offset
                && rights == next_rights =>
            {
                Some(Self::Map {
                    address,
                    length: length + next_length,
                    ram_offset,
                    rights,
                })
            }
            (
                Self::Unmap { address, length },
                Self::Unmap {
                    address: next_address,
                    length: next_length,
                },
            ) if address + length == next_address => Some(Self::Unmap {
                address,
                length: length + next_length,
            }),
            (
                Self::Protect {
                    address,
                    length,
                    rights,
                },
                Self::Protect {
                    address: next_address,
                    length: next_length,
                    rights: next_rights,
                },
            ) if address + length == next_address && rights == next_rights => Some(Self::Protect {
                address,
                length: length + next_length,
                rights,
            }),
            _ => None,
        }
    }
}

/// Flags of all mappings of guest RAM; the mapper's filter allows no others.
pub const MAP_FLAGS: u64 = (libc::MAP_SHARED | libc::MAP_FIXED) as u64;
/// Guest RAM's descriptor in the process; the mapper's filter allows no other.
pub const RAM_DESCRIPTOR: u64 = 0;

/// Why a change of mappings was not made.
#[derive(Debug)]
pub struct MappingError {
    /// The first change that was not made. Those queued after it were dropped.
    pub command: Option<Command>,
    /// Why it was not made.
    pub cause: Cause,
}

/// The reason why a change of mappings was not made.
#[derive(Debug)]
pub enum Cause {
    /// Address, length or offset are not multiples of a page, or the length is 0.
    Unaligned,
    /// The range leaves the addresses of programs, overlaps the stub, or is outside guest RAM.
    OutOfRange,
    /// The host's kernel refused: ENOMEM if the process has too many mappings (vm.max_map_count).
    Host(io::Error),
    /// The process is gone.
    Died(Death),
}

impl fmt::Display for MappingError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.command {
            Some(command) => write!(formatter, "{command:x?}: ")?,
            None => formatter.write_str("changing the memory of a guest program: ")?,
        }
        match &self.cause {
            Cause::Unaligned => formatter.write_str("not whole pages"),
            Cause::OutOfRange => formatter.write_str("outside what a guest program can have"),
            Cause::Host(error) => write!(formatter, "{error}"),
            Cause::Died(death) => write!(formatter, "the process {death}"),
        }
    }
}

impl std::error::Error for MappingError {}

/// The changes that are not made yet, in their order.
#[derive(Default)]
pub struct Queue {
    commands: Vec<Command>,
    /// The first change that made no sense; what came after it is not queued.
    refused: Option<MappingError>,
}

impl Queue {
    /// Adds a change, joined with the last one if possible.
    pub fn push(&mut self, command: Command, reserved: &Range<u64>, ram_size: u64) {
        if self.refused.is_some() {
            return;
        }
        if let Err(cause) = check(command, reserved, ram_size) {
            self.refused = Some(MappingError {
                command: Some(command),
                cause,
            });
            return;
        }
        if let Some(last) = self.commands.last_mut()
            && let Some(joined) = last.joined(command)
        {
            *last = joined;
            return;
        }
        self.commands.push(command);
    }

    /// Whether there is nothing to do or report.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty() && self.refused.is_none()
    }

    /// Takes the first batch.
    pub fn take_batch(&mut self) -> Vec<Command> {
        let count = self.commands.len().min(BATCH_COMMANDS);
        self.commands.drain(..count).collect()
    }

    /// Takes the refusal, once the changes before it have been made.
    pub fn take_refusal(&mut self) -> Option<MappingError> {
        self.refused.take()
    }

    /// Drops all changes that are left.
    pub fn clear(&mut self) {
        self.commands.clear();
        self.refused = None;
    }
}

fn check(command: Command, reserved: &Range<u64>, ram_size: u64) -> Result<(), Cause> {
    let (address, length) = command.range();
    if !address.is_multiple_of(PAGE) || !length.is_multiple_of(PAGE) || length == 0 {
        return Err(Cause::Unaligned);
    }
    let end = address.checked_add(length).filter(|end| *end <= USER_END);
    if end.is_none_or(|end| address < reserved.end && end > reserved.start) {
        return Err(Cause::OutOfRange);
    }
    if let Command::Map { ram_offset, .. } = command {
        if !ram_offset.is_multiple_of(PAGE) {
            return Err(Cause::Unaligned);
        }
        let end = ram_offset.checked_add(length);
        if end.is_none_or(|end| end > ram_size) {
            return Err(Cause::OutOfRange);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESERVED: Range<u64> = 0x10_0000..0x11_0000;

    fn queue(commands: &[Command]) -> Queue {
        let mut queue = Queue::default();
        for command in commands {
            queue.push(*command, &RESERVED, 0x10_0000);
        }
        queue
    }

    const fn page(address: u64, ram_offset: u64) -> Command {
        Command::Map {
            address,
            length: PAGE,
            ram_offset,
            rights: Rights::Read,
        }
    }

    #[test]
    fn neighbours_are_mapped_together() {
        let mut queue = queue(&[page(0x1000, 0x4000), page(0x2000, 0x5000), page(0x3000, 0)]);
        let batch = queue.take_batch();
        assert_eq!(batch.len(), 2);
        assert_eq!(batch[0].range(), (0x1000, 0x2000));
    }

    #[test]
    fn the_stub_and_what_is_outside_guest_ram_cannot_be_mapped() {
        for command in [
            page(0x10_f000, 0),
            page(0x1000, 0x10_0000),
            page(USER_END, 0),
            Command::Unmap {
                address: 0,
                length: 0x10_1000,
            },
        ] {
            let refusal = queue(&[command]).take_refusal().expect("refused");
            assert!(matches!(refusal.cause, Cause::OutOfRange), "{refusal}");
        }
        let refusal = queue(&[page(0x1001, 0)]).take_refusal().expect("refused");
        assert!(matches!(refusal.cause, Cause::Unaligned));
    }
}
