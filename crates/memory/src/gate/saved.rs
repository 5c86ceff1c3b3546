//! RAM of a restored machine, whose contents are in a snapshot's file until they are written.

use super::GuestMemory;
use crate::ram::{PIECE_BYTES, PageSpan, SavedRun};
use std::fs::File;
use std::io;
use std::rc::Rc;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;

impl GuestMemory {
    /// Maps ranges of RAM from a snapshot's files: nothing is copied until something is stored there.
    ///
    /// # Errors
    ///
    /// See [`GuestRam`](crate::GuestRam); the contents of RAM are then undefined. Also refused if there is another
    /// handle to this memory.
    pub fn map_saved(&mut self, files: Vec<File>, runs: &[SavedRun]) -> io::Result<()> {
        let shared = Rc::get_mut(&mut self.0).ok_or(io::ErrorKind::ResourceBusy)?;
        shared.ram.map_saved(files, runs)
    }

    /// The address of the first piece of RAM from `address` on that may have contents other than
    /// zero; pieces have [`PIECE_BYTES`](crate::ram::PIECE_BYTES). `None` if there is none.
    pub fn next_piece(&self, address: PhysicalAddress) -> Option<PhysicalAddress> {
        self.0.ram.next_piece(address.0).map(PhysicalAddress)
    }

    /// Reads a piece of RAM, also where a region hides it. What lies after the end of RAM is zero.
    ///
    /// # Errors
    ///
    /// There is no RAM, the address is no multiple of the size, or the host's error.
    pub fn read_piece(
        &self,
        address: PhysicalAddress,
        bytes: &mut [u8; PIECE_BYTES as usize],
    ) -> io::Result<()> {
        self.0.ram.read_piece(address.0, bytes)
    }

    /// Makes a physical page (address divided by 4096) the machine's own before it is written
    /// through its host address, if its contents are still in a snapshot's file.
    #[inline]
    pub fn take_own(&mut self, page: u64) {
        self.0.ram.own(PhysicalAddress(page * PAGE_SIZE), PAGE_SIZE);
    }

    /// Copies pages that are still in a snapshot's file and are expected to be written soon. Any
    /// list will do: other pages are left alone, and the number of copies is limited.
    ///
    /// # Errors
    ///
    /// The host has no memory, or cannot read the file.
    pub fn copy_ahead(&mut self, pages: &[PageSpan]) -> io::Result<()> {
        self.0.ram.copy_ahead(pages)
    }

    /// Starts to record which pages are copied from a snapshot's file because they are written.
    pub fn record_copies(&mut self) {
        self.0.ram.record_copies();
    }

    /// The pages that were copied first since [`GuestMemory::record_copies`], as
    /// [`GuestMemory::copy_ahead`] takes them.
    pub fn take_record_of_copies(&mut self) -> Vec<PageSpan> {
        self.0.ram.take_record()
    }

    /// Whether pages have moved from a snapshot's file to the machine's own since the last
    /// [`GuestMemory::take_moved`]. Their host addresses are the same, but what else is mapped from
    /// the snapshot's file has their old contents.
    #[inline]
    pub fn has_moved(&self) -> bool {
        self.0.ram.has_moved()
    }

    /// Takes the list of the pages that have moved from a snapshot's file to the machine's own.
    pub fn take_moved(&mut self) -> Vec<PageSpan> {
        self.0.ram.take_moved()
    }

    /// Gives all RAM the contents that it had when the machine was restored from a snapshot. Returns
    /// the number of pages that were written, or `None` if the machine was not restored.
    ///
    /// # Errors
    ///
    /// The host's error; parts of RAM may have the present contents then.
    pub fn put_back(&mut self) -> io::Result<Option<u64>> {
        let mut pages = 0;
        // Pages are compared one after the other, and a page is written when its comparison is over.
        let mut memory = self.clone();
        let was_restored = (self.0.ram).compare_with_saved(|address, before| {
            pages += 1;
            memory.write(address, before);
        })?;
        Ok(was_restored.then_some(pages))
    }
}
