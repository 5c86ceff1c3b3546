//! Inline device access: device registers that are near, which the guest reaches without an exit.

use crate::GuestTime;
use tollgate_x86::PhysicalAddress;

/// An access of the guest to a device. It is *near* if the register only holds a value, reads a
/// clock, or is a byte of display memory. A near access does not change guest memory, the memory
/// map or address line 20, and stops nothing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NearAccess {
    /// Reads `size` (1, 2 or 4) bytes from a port.
    PortRead {
        /// The first port.
        port: u16,
        /// Size of the access in bytes.
        size: u8,
    },
    /// Writes `size` (1, 2 or 4) bytes to a port.
    PortWrite {
        /// The first port.
        port: u16,
        /// Size of the access in bytes.
        size: u8,
        /// The value; bits above `size` bytes are zero.
        value: u32,
    },
    /// Reads `size` (1 to 8) bytes of device memory.
    MemoryRead {
        /// The first byte; the last one lies in the same page.
        address: PhysicalAddress,
        /// Size of the access in bytes.
        size: u8,
    },
    /// Writes `size` (1 to 8) bytes of device memory.
    MemoryWrite {
        /// The first byte; the last one lies in the same page.
        address: PhysicalAddress,
        /// Size of the access in bytes.
        size: u8,
        /// The value; bits above `size` bytes are zero.
        value: u64,
    },
    /// Reads a model-specific register.
    MsrRead(u32),
    /// Writes a model-specific register.
    MsrWrite(u32, u64),
}

/// The accesses of a repeated string instruction to elements of display memory, one after the
/// other, in one page. Each has the effect of a separate access.
#[derive(PartialEq, Eq, Debug)]
pub struct NearRun<'a> {
    /// Size in bytes of an element: 1, 2, 4 or 8.
    pub size: u8,
    /// Whether each element lies below the one before it, instead of above it.
    pub backward: bool,
    /// What the instruction does with the elements.
    pub action: RunAction<'a>,
}

/// The action of a [`NearRun`]. Addresses are those of the first element that is accessed; data is
/// in the order of the accesses, and consists of whole elements.
#[derive(PartialEq, Eq, Debug)]
pub enum RunAction<'a> {
    /// Stores the same element this number of times.
    Fill(PhysicalAddress, [u8; 8], usize),
    /// Stores these elements.
    Store(PhysicalAddress, &'a [u8]),
    /// Loads elements to this slice.
    Load(PhysicalAddress, &'a mut [u8]),
    /// Loads this number of elements at the first address, and stores each at the second.
    Copy(PhysicalAddress, PhysicalAddress, usize),
}

/// A single access of a run.
#[derive(Debug)]
pub enum RunAccess<'a> {
    /// Loads an element at this address.
    Load(PhysicalAddress, &'a mut [u8]),
    /// Stores an element at this address.
    Store(PhysicalAddress, &'a [u8]),
}

impl NearRun<'_> {
    /// Calls `access` for each access, in order.
    pub fn each(self, mut access: impl FnMut(RunAccess<'_>)) {
        let size = usize::from(self.size).clamp(1, 8);
        let backward = self.backward;
        let place = |first: PhysicalAddress, index: usize| {
            let distance = (index * size) as u64;
            PhysicalAddress(match backward {
                true => first.0.wrapping_sub(distance),
                false => first.0.wrapping_add(distance),
            })
        };
        match self.action {
            RunAction::Fill(first, element, count) => {
                for index in 0..count {
                    access(RunAccess::Store(place(first, index), &element[..size]));
                }
            }
            RunAction::Store(first, data) => {
                for (index, element) in data.chunks_exact(size).enumerate() {
                    access(RunAccess::Store(place(first, index), element));
                }
            }
            RunAction::Load(first, data) => {
                for (index, element) in data.chunks_exact_mut(size).enumerate() {
                    access(RunAccess::Load(place(first, index), element));
                }
            }
            RunAction::Copy(from, to, count) => {
                let mut element = [0; 8];
                for index in 0..count {
                    let element = &mut element[..size];
                    access(RunAccess::Load(place(from, index), element));
                    access(RunAccess::Store(place(to, index), element));
                }
            }
        }
    }

    /// The addresses of the first elements that are loaded or stored.
    pub fn places(&self) -> [Option<PhysicalAddress>; 2] {
        match self.action {
            RunAction::Fill(first, ..) | RunAction::Store(first, _) | RunAction::Load(first, _) => {
                [Some(first), None]
            }
            RunAction::Copy(from, to, _) => [Some(from), Some(to)],
        }
    }
}

/// Size in bytes of the window of display memory.
pub const DISPLAY_WINDOW: u64 = 0x2_0000;

/// The result of a [`NearAccess`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Near {
    /// The register is not near, and nothing was done.
    No,
    /// The access was made; the value is what was read, or zero. A pending interrupt may have
    /// appeared or disappeared.
    Done(u64),
    /// Like [`Near::Done`], and the machine's next deadline is earlier than before.
    DoneAndDue(u64),
}

impl Near {
    /// The result of an access that read `read` and changed the next deadline from `before` to
    /// `after`. A deadline that became later or was removed needs no action: the monitor asks again
    /// when it reaches the earlier one.
    #[inline]
    pub fn done(read: u64, before: Option<GuestTime>, after: Option<GuestTime>) -> Self {
        match (before, after) {
            (_, None) => Self::Done(read),
            (Some(before), Some(after)) if before <= after => Self::Done(read),
            _ => Self::DoneAndDue(read),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The accesses of a run; the loads read 1, 2, 3 and so on.
    fn accesses(run: NearRun<'_>) -> Vec<(char, u64, Vec<u8>)> {
        let mut all = Vec::new();
        run.each(|access| match access {
            RunAccess::Load(address, data) => {
                data.fill(all.len() as u8 + 1);
                all.push(('l', address.0, data.to_vec()));
            }
            RunAccess::Store(address, data) => all.push(('s', address.0, data.to_vec())),
        });
        all
    }

    fn run(size: u8, backward: bool, action: RunAction<'_>) -> NearRun<'_> {
        NearRun {
            size,
            backward,
            action,
        }
    }

    #[test]
    fn a_run_is_its_accesses_one_after_the_other() {
        let [at, to] = [0x1000, 0x2000].map(PhysicalAddress);
        let filled = accesses(run(
            2,
            true,
            RunAction::Fill(at, [1, 2, 3, 4, 5, 6, 7, 8], 2),
        ));
        assert_eq!(
            filled,
            [('s', 0x1000, vec![1, 2]), ('s', 0xffe, vec![1, 2])]
        );
        let stored = accesses(run(1, false, RunAction::Store(at, &[7, 8])));
        assert_eq!(stored, [('s', 0x1000, vec![7]), ('s', 0x1001, vec![8])]);
        let mut data = [0; 8];
        accesses(run(4, true, RunAction::Load(at, &mut data)));
        assert_eq!(data, [1, 1, 1, 1, 2, 2, 2, 2]);
        let copied = accesses(run(1, false, RunAction::Copy(at, to, 2)));
        let expected = [
            ('l', 0x1000, vec![1]),
            ('s', 0x2000, vec![1]),
            ('l', 0x1001, vec![3]),
            ('s', 0x2001, vec![3]),
        ];
        assert_eq!(copied, expected);
    }
}
