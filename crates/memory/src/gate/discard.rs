//! Returning pages of guest memory to the host.

use super::GuestMemory;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

impl GuestMemory {
    /// Returns to the host all pages that lie wholly in `length` bytes at `address`. Those that are
    /// RAM read as zero afterwards and count as written. Other pages, and pages that the host
    /// refuses to take, stay unchanged.
    pub fn discard(&mut self, address: PhysicalAddress, length: u64) {
        let span = self.0.ram.span();
        let end = address.0.saturating_add(length).min(span) / PAGE_SIZE;
        let mut page = address.0.min(span).div_ceil(PAGE_SIZE);
        while page < end {
            let first = page;
            while page < end && self.0.ram.is_own_page(page) {
                page += 1;
            }
            let bytes = (page - first) * PAGE_SIZE;
            let start = first * PAGE_SIZE;
            if bytes != 0 && self.0.ram.discard(start, bytes).is_ok() {
                self.note_write(PhysicalAddress(start), bytes);
            }
            // Skip the page that ended the run.
            page += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::HIGH_RAM_START;
    use std::os::fd::AsFd;
    use std::os::unix::fs::MetadataExt;

    const MIB: u64 = 1 << 20;

    /// The number of bytes of RAM for which the host has memory.
    fn held(memory: &GuestMemory) -> u64 {
        let file = memory.ram().fd().as_fd().try_clone_to_owned().unwrap();
        std::fs::File::from(file).metadata().unwrap().blocks() * 512
    }

    fn content(memory: &GuestMemory, address: u64) -> u8 {
        let mut byte = [0];
        assert!(memory.read(PhysicalAddress(address), &mut byte));
        byte[0]
    }

    #[test]
    fn the_host_gets_whole_pages_and_the_guest_zeros() {
        let mut memory = GuestMemory::new(16 * MIB).unwrap();
        assert!(memory.write(PhysicalAddress(2 * MIB), &vec![7; 8 * MIB as usize]));
        let before = held(&memory);
        assert!(before >= 8 * MIB);
        // The range starts and ends in the middle of a page.
        memory.discard(PhysicalAddress(2 * MIB + 100), 8 * MIB - 200);
        assert!(before - held(&memory) >= 8 * MIB - 8192);
        assert_eq!(content(&memory, 2 * MIB + 4095), 7);
        assert_eq!(content(&memory, 2 * MIB + 4096), 0);
        assert_eq!(content(&memory, 10 * MIB - 4097), 0);
        assert_eq!(content(&memory, 10 * MIB - 4096), 7);
        // The memory can be used again.
        assert!(memory.write(PhysicalAddress(4 * MIB), &[9]));
        assert_eq!(content(&memory, 4 * MIB), 9);
    }

    #[test]
    fn code_in_a_discarded_page_counts_as_written() {
        let mut memory = GuestMemory::new(16 * MIB).unwrap();
        memory.code().mark(PhysicalAddress(0x5010), 4);
        memory.discard(PhysicalAddress(0x4000), 0x1000);
        assert!(!memory.has_code_writes());
        memory.discard(PhysicalAddress(0x4000), 0x4000);
        let writes = memory.take_code_writes();
        assert_eq!(writes.len(), 1);
        assert_eq!(
            (writes[0].page, writes[0].first, writes[0].last),
            (5, 0, 4095)
        );
    }

    #[test]
    fn what_is_not_ram_is_left_alone() {
        let mut memory = GuestMemory::new(4 * MIB).unwrap();
        for (address, length) in [
            (0, u64::MAX),
            (u64::MAX, u64::MAX),
            (4 * MIB, 1 << 40),
            (HIGH_RAM_START, 4096),
            (0xa_0000, 0x2_0000),
            (5, 0),
        ] {
            memory.discard(PhysicalAddress(address), length);
        }
        assert!(memory.write(PhysicalAddress(MIB), &[1]));
    }
}
