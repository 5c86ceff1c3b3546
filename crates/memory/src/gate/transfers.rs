//! RAM that the host fills by itself while the guest runs, as the controller of a disk does.
//!
//! A write by the gate is known to the monitor before guest code runs again. What the host fills
//! changes at any time until it is done, and is known then: until the driver is told so, no guest may
//! expect to find the new bytes or the old ones. What reads guest memory to keep what it has read must
//! ask [`GuestMemory::is_being_filled`] whether it may change before it counts as written.

use super::GuestMemory;
use crate::ram::LentRam;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// A transfer to guest RAM: dropping it says that it is over.
#[derive(Debug)]
pub struct Filling {
    memory: GuestMemory,
    number: u64,
}

/// Addresses, and the bytes that lie at each.
type Pieces = Box<[(PhysicalAddress, u64)]>;

/// Transfers under way.
#[derive(Default, Debug)]
pub(super) struct Transfers {
    under_way: Vec<(u64, Pieces)>,
    /// How many there have been.
    count: u64,
}

impl GuestMemory {
    /// Lends RAM that the host is to read. `None` unless all of these pieces, an address and its
    /// bytes each, are RAM of the machine's own and apart.
    pub fn lend(&self, pieces: &[(PhysicalAddress, u64)]) -> Option<LentRam> {
        self.0.ram.lend(pieces)
    }

    /// Lends RAM that the host is to fill. What comes second is to be dropped once it has, or will
    /// not: the bytes count as written then.
    pub fn lend_to_fill(
        &mut self,
        pieces: &[(PhysicalAddress, u64)],
    ) -> Option<(LentRam, Filling)> {
        let lent = self.0.ram.lend(pieces)?;
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
