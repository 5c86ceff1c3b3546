//! RAM lent to the host, which reads or fills it while the guest runs.

use super::{GuardedRange, GuestRam};
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

/// Pieces of guest RAM for system calls, which any thread may make. The memory stays mapped for as
/// long as this value exists; the guest continues to use it.
#[derive(Debug)]
pub struct LentRam {
    pieces: Vec<(*mut u8, usize)>,
    _mapping: Arc<GuardedRange>,
}

// SAFETY: the pieces lie in the mapping, which is valid in every thread until its last owner is
// dropped.
unsafe impl Send for LentRam {}

impl LentRam {
    /// The total size in bytes of all pieces.
    pub fn bytes(&self) -> usize {
        self.pieces.iter().map(|piece| piece.1).sum()
    }

    /// The pieces in order, for a system call that reads them.
    pub fn slices(&self) -> Vec<IoSlice<'_>> {
        let slice = |&(start, bytes): &(*mut u8, usize)| {
            // SAFETY: the piece is mapped for as long as `self` exists. The guest may change the
            // bytes at any time, so only the kernel may look at them: all users of this slice pass
            // it to the kernel.
            IoSlice::new(unsafe { std::slice::from_raw_parts(start, bytes) })
        };
        self.pieces.iter().map(slice).collect()
    }

    /// The pieces in order, for a system call that fills them. They do not overlap.
    pub fn slices_to_fill(&mut self) -> Vec<IoSliceMut<'_>> {
        let slice = |&(start, bytes): &(*mut u8, usize)| {
            // SAFETY: the piece is mapped for as long as `self` exists. Nothing reads what is
            // written through the slice, and no two pieces share a byte. The monitor and the guest
            // reach the memory only through addresses.
            IoSliceMut::new(unsafe { std::slice::from_raw_parts_mut(start, bytes) })
        };
        self.pieces.iter().map(slice).collect()
    }
}

impl GuestRam {
    /// Lends these pieces of RAM. `None` if they are not all the machine's own RAM, or overlap, or if
    /// RAM is secret: the host's kernel copies from and to secret memory, but a transfer without its
    /// page cache (O_DIRECT) would fail.
    pub(crate) fn lend(&self, pieces: &[(PhysicalAddress, u64)]) -> Option<LentRam> {
        if self.is_secret() {
            return None;
        }
        let mut lent = Vec::with_capacity(pieces.len());
        for &(address, bytes) in pieces {
            let last = address.0.checked_add(bytes.checked_sub(1)?)?;
            let is_own = (address.page()..=last / PAGE_SIZE).all(|page| self.is_own_page(page));
            if !is_own {
                return None;
            }
            lent.push((self.host_range(address, bytes)?, bytes as usize));
        }
        let mut order = lent.clone();
        order.sort_unstable();
        let is_apart =
            |pair: &[(*mut u8, usize)]| pair[0].0 as usize + pair[0].1 <= pair[1].0 as usize;
        order.windows(2).all(is_apart).then(|| LentRam {
            pieces: lent,
            _mapping: Arc::clone(&self.reservation),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::io::{Read, Write};

    fn address(page: u64) -> PhysicalAddress {
        PhysicalAddress(page * PAGE_SIZE)
    }

    #[test]
    fn the_host_fills_and_reads_pieces_in_their_order() {
        let ram = GuestRam::new(4 << 20).unwrap();
        let pieces = [(address(0x201), 5), (address(0x200), 3)];
        let (mut source, mut target) = (Vec::new(), [0; 8]);
        source.write_all(b"RAM twice").unwrap();
        let mut lent = ram.lend(&pieces).unwrap();
        assert_eq!(lent.bytes(), 8);
        let count = (&source[..]).read_vectored(&mut lent.slices_to_fill());
        assert_eq!(count.unwrap(), 8);
        assert!(ram.read(address(0x201), &mut target[..5]));
        assert_eq!(&target[..5], b"RAM t");
        let mut file = File::options().write(true).open("/dev/null").unwrap();
        assert_eq!(file.write_vectored(&lent.slices()).unwrap(), 8);
    }

    #[test]
    fn only_ram_is_lent_and_no_byte_twice() {
        let ram = GuestRam::new(4 << 20).unwrap();
        for pieces in [
            &[(address(0x400), 1)][..],
            &[(address(0x3ff), 4097)],
            &[(address(0xa0), 1)],
            &[(address(0x9f), 8192)],
            &[(address(1), 0)],
            &[(PhysicalAddress(u64::MAX), 2)],
            &[(address(1), 10), (address(1), 1)],
            &[(address(2), 10), (address(1), 4097)],
        ] {
            assert!(ram.lend(pieces).is_none(), "{pieces:?}");
        }
        assert!(ram.lend(&[(address(2), 10), (address(1), 4096)]).is_some());
    }

    #[test]
    fn what_is_lent_stays_mapped_when_the_machine_is_gone() {
        let ram = GuestRam::new(4 << 20).unwrap();
        assert!(ram.write(address(1), b"still here"));
        let mut lent = ram.lend(&[(address(1), 10)]).unwrap();
        drop(ram);
        assert_eq!(Arc::strong_count(&lent._mapping), 1);
        let count = (&b"and can be"[..]).read_vectored(&mut lent.slices_to_fill());
        assert_eq!(count.unwrap(), 10);
    }
}
