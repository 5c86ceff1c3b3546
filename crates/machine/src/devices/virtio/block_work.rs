//! The operation on the image for a request of a block device, and how the request's data is
//! transferred.
//!
//! The data of a small request is copied on the vCPU's thread. The guest RAM of a large request is
//! lent to the image's thread, which passes it to the host's system calls.

use super::chain::Chain;
use std::io::{IoSlice, IoSliceMut};
use tollgate_disk::{Buffer, Elsewhere, Operation};
use tollgate_memory::{Filling, GuestMemory, LentRam};

/// From this number of bytes on, a copy takes longer than lending guest memory.
const LENT_BYTES: u64 = 16 << 10;

/// The operation on the image for a request.
pub(super) struct Work {
    pub(super) operation: Operation,
    /// The size of the data in bytes.
    pub(super) bytes: u64,
    /// Set if the host writes the data directly into guest memory.
    pub(super) filling: Option<Filling>,
}

/// Guest memory that is lent to the thread.
#[derive(Debug)]
struct Lent(LentRam);

impl Elsewhere for Lent {
    fn slices(&self) -> Vec<IoSlice<'_>> {
        self.0.slices()
    }

    fn slices_to_fill(&mut self) -> Vec<IoSliceMut<'_>> {
        self.0.slices_to_fill()
    }
}

impl Work {
    /// Makes an operation whose data, if there is any, is copied.
    pub(super) const fn copied(operation: Operation, bytes: u64) -> Self {
        Self {
            operation,
            bytes,
            filling: None,
        }
    }

    /// Reads the data of a request from an offset of the image on, to `bytes` bytes of its chain
    /// from `start` on. The chain must have room for it.
    pub(super) fn reading(
        offset: u64,
        (chain, start, bytes): (&Chain, u64, u64),
        memory: &mut GuestMemory,
    ) -> Self {
        let length = bytes as usize;
        if bytes >= LENT_BYTES
            && let Some((lent, filling)) =
                memory.lend_to_fill(&chain.writable_pieces(start, length))
        {
            let operation = Operation::ReadTo {
                offset,
                memory: Box::new(Lent(lent)),
            };
            return Self {
                operation,
                bytes,
                filling: Some(filling),
            };
        }
        let operation = Operation::Read {
            offset,
            bytes: length,
        };
        Self::copied(operation, bytes)
    }

    /// Writes the data of a request, which are `bytes` bytes of its chain from `start` on, to an
    /// offset of the image. With `through` a flush follows. Returns `None` if not all of the data
    /// is in memory.
    pub(super) fn writing(
        (offset, through): (u64, bool),
        (chain, start, bytes): (&Chain, u64, u64),
        memory: &GuestMemory,
        buffer: impl FnOnce(usize) -> Buffer,
    ) -> Option<Self> {
        let length = bytes as usize;
        let pieces = || chain.readable_pieces(start, length);
        if bytes >= LENT_BYTES
            && let Some(lent) = memory.lend(&pieces())
        {
            let operation = Operation::WriteFrom {
                offset,
                memory: Box::new(Lent(lent)),
                through,
            };
            return Some(Self::copied(operation, bytes));
        }
        let mut data = buffer(length);
        if !chain.copy_out(memory, start, &mut data) {
            return None;
        }
        let operation = Operation::Write {
            offset,
            data,
            through,
        };
        Some(Self::copied(operation, bytes))
    }
}
