//! RAM that the host fills on its own while the guest runs, as a disk controller does.
//!
//! The monitor learns of a write through the gate before guest code runs again. RAM that the host
//! fills can change at any time until the transfer is complete, and counts as written only then:
//! until the driver is notified, no guest may rely on finding the new bytes or the old ones. Code
//! that reads guest memory and keeps the result must ask [`GuestMemory::is_being_filled`] whether
//! the memory may change before it counts as written.

use super::GuestMemory;
use crate::ram::LentRam;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// A transfer to guest RAM. Dropping it ends the transfer.
#[derive(Debug)]
pub struct Filling {
    memory: GuestMemory,
    number: u64,
}

/// Addresses, and the number of bytes at each.
type Pieces = Box<[(PhysicalAddress, u64)]>;

/// The transfers that have not ended.
#[derive(Default, Debug)]
pub(super) struct Transfers {
    under_way: Vec<(u64, Pieces)>,
    /// The number of transfers that have been started so far.
    count: u64,
}

impl GuestMemory {
    /// Lends RAM to the host, which reads it. `None` unless all of these pieces (an address and a
    /// length in bytes) are the machine's own RAM and do not overlap.
    pub fn lend(&self, pieces: &[(PhysicalAddress, u64)]) -> Option<LentRam> {
        self.0.ram.lend(pieces)
    }

    /// Lends RAM to the host, which fills it. The caller drops the [`Filling`] when the transfer
    /// has completed or failed: the bytes count as written then.
    pub fn lend_to_fill(
        &mut self,
        pieces: &[(PhysicalAddress, u64)],
    ) -> Option<(LentRam, Filling)> {
        let lent = self.0.ram.lend(pieces)?;
        for &(address, bytes) in pieces {
            self.0.ram.own(address, bytes);
        }
        let mut transfers = self.0.transfers.borrow_mut();
        transfers.count += 1;
        let number = transfers.count;
        transfers.under_way.push((number, pieces.into()));
        let memory = self.clone();
        Some((lent, Filling { memory, number }))
    }

    /// Whether the host may be filling a physical page (address divided by 4096).
    pub fn is_being_filled(&self, page: u64) -> bool {
        let transfers = self.0.transfers.borrow();
        let mut pieces = transfers.under_way.iter().flat_map(|it| it.1.iter());
        pieces.any(|&(address, bytes)| {
            (address.page()..=(address.0 + (bytes - 1)) / PAGE_SIZE).contains(&page)
        })
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        let mut transfers = self.memory.0.transfers.borrow_mut();
        let mut all = transfers.under_way.iter();
        let Some(index) = all.position(|it| it.0 == self.number) else {
            return;
        };
        let (_, pieces) = transfers.under_way.swap_remove(index);
        drop(transfers);
        for &(address, bytes) in &pieces {
            self.memory.note_write(address, bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    const CODE: PhysicalAddress = PhysicalAddress(0x10_0ffe);

    #[test]
    fn what_the_host_fills_counts_as_written_when_it_is_done() {
        let mut memory = GuestMemory::new(2 << 20).unwrap();
        memory.code().mark(PhysicalAddress(0x10_1000), 4);
        let pieces = [(PhysicalAddress(0x11_0000), 2), (CODE, 4)];
        let (mut lent, filling) = memory.lend_to_fill(&pieces).unwrap();
        let (_, other) = memory.lend_to_fill(&pieces[..1]).unwrap();
        let is_filled = |memory: &GuestMemory| {
            [0x100, 0x101, 0x102, 0x110].map(|page| memory.is_being_filled(page))
        };
        assert_eq!(is_filled(&memory), [true, true, false, true]);
        let count = (&b"abcdef"[..]).read_vectored(&mut lent.slices_to_fill());
        assert_eq!(count.unwrap(), 6);
        assert!(!memory.has_code_writes());
        drop(filling);
        assert_eq!(is_filled(&memory), [false, false, false, true]);
        assert_eq!(memory.read_u32(CODE), u32::from_le_bytes(*b"cdef"));
        let writes = memory.take_code_writes();
        assert_eq!(writes.len(), 1);
        assert_eq!(
            (writes[0].page, writes[0].first, writes[0].last),
            (0x101, 0, 1)
        );
        drop(other);
        assert_eq!(is_filled(&memory), [false; 4]);
        assert!(!memory.has_code_writes());
    }

    #[test]
    fn nothing_else_is_lent_to_be_filled() {
        let mut memory = GuestMemory::new(2 << 20).unwrap();
        assert!(
            memory
                .lend_to_fill(&[(PhysicalAddress(0xa_0000), 1)])
                .is_none()
        );
        assert!(memory.lend(&[(PhysicalAddress(0x20_0000), 1)]).is_none());
        assert!(!memory.is_being_filled(0xa0));
        assert!(memory.lend(&[(PhysicalAddress(0), 1)]).is_some());
    }
}
