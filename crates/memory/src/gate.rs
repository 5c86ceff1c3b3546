//! The one gate through which everything except guest code writes guest memory.
//!
//! Loaders, devices, the page walker (for accessed and dirty bits) and emulated instructions all
//! write here. A write that touches translated code is recorded; before guest code runs again, the
//! monitor takes the list and drops the stale translations.

mod discard;
mod regions;
mod saved;
mod transfers;

pub use self::transfers::Filling;

use self::transfers::Transfers;
use crate::code_map::{CodeMap, pages_of};
use crate::map::REGIONS_END;
use crate::ram::{GuestRam, MemoryBacking, MemoryError};
use std::cell::{Cell, RefCell};
use std::io;
use std::rc::Rc;
use tollgate_x86::PhysicalAddress;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::PageTableMemory;

/// A write that hit translated code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CodeWrite {
    /// The number of the physical page: its address divided by 4096.
    pub page: u64,
    /// Offset of the first byte written.
    pub first: u16,
    /// Offset of the last byte written. It may be too high, but is never too low.
    pub last: u16,
}

/// Maximum number of writes to one page that are recorded separately.
const MAX_PIECES: usize = 16;

/// Guest RAM, and which parts of it hold code. A clone is another handle to the same memory.
#[derive(Clone, Debug)]
pub struct GuestMemory(Rc<Shared>);

/// The state that all handles share. Only this module borrows from its cells.
#[derive(Debug)]
struct Shared {
    ram: GuestRam,
    code: CodeMap,
    code_writes: RefCell<Vec<CodeWrite>>,
    /// Whether `code_writes` is not empty; tested before each entry of guest code.
    has_code_writes: Cell<bool>,
    transfers: RefCell<Transfers>,
    /// Ranges of pages, first and last, where other memory or devices appear now.
    map_changes: RefCell<Vec<(u64, u64)>>,
    /// Whether `map_changes` is not empty.
    has_map_changes: Cell<bool>,
}

impl GuestMemory {
    /// Makes `bytes` bytes of zeroed RAM without code.
    ///
    /// # Errors
    ///
    /// See [`GuestRam::new`].
    pub fn new(bytes: u64) -> Result<Self, MemoryError> {
        GuestRam::new(bytes).map(Self::with_ram)
    }

    /// Makes `bytes` bytes of zeroed RAM without code, which `backing` holds.
    ///
    /// # Errors
    ///
    /// See [`GuestRam::with_backing`].
    pub fn with_backing(bytes: u64, backing: MemoryBacking) -> Result<Self, MemoryError> {
        GuestRam::with_backing(bytes, backing).map(Self::with_ram)
    }

    /// Takes over RAM that holds no translated code yet.
    pub fn with_ram(ram: GuestRam) -> Self {
        let code = CodeMap::new(ram.span().max(REGIONS_END));
        Self(Rc::new(Shared {
            ram,
            code,
            code_writes: RefCell::default(),
            has_code_writes: Cell::new(false),
            transfers: RefCell::default(),
            map_changes: RefCell::default(),
            has_map_changes: Cell::new(false),
        }))
    }

    /// The RAM, for reading and for host addresses. A caller that writes through a host address
    /// must call [`GuestMemory::note_write`].
    pub fn ram(&self) -> &GuestRam {
        &self.0.ram
    }

    /// Which lines hold code.
    pub fn code(&self) -> &CodeMap {
        &self.0.code
    }

    /// Copies memory to `data`. Returns false, and copies nothing, unless loads of every byte reach
    /// memory.
    #[inline]
    pub fn read(&self, address: PhysicalAddress, data: &mut [u8]) -> bool {
        self.0.ram.read(address, data)
    }

    /// Copies `data` to memory and records writes to code. Returns false, and copies nothing,
    /// unless stores to every byte reach memory.
    #[inline]
    pub fn write(&mut self, address: PhysicalAddress, data: &[u8]) -> bool {
        let written = self.0.ram.write(address, data);
        if written {
            self.note_write(address, data.len() as u64);
        }
        written
    }

    /// Makes all RAM zero, as in a machine that was just switched on. All code counts as written.
    ///
    /// # Errors
    ///
    /// The host's error; the contents are then undefined.
    pub fn clear(&mut self) -> io::Result<()> {
        self.0.ram.clear()?;
        let mut writes = self.0.code_writes.borrow_mut();
        for page in 0..self.0.ram.span() / PAGE_SIZE {
            if self.0.code.page_has_code(page) {
                writes.push(CodeWrite {
                    page,
                    first: 0,
                    last: PAGE_SIZE as u16 - 1,
                });
            }
        }
        self.0.has_code_writes.set(!writes.is_empty());
        Ok(())
    }

    /// Records that `length` bytes were written through a host address.
    #[inline]
    pub fn note_write(&mut self, address: PhysicalAddress, length: u64) {
        let last = address.0.wrapping_add(length.wrapping_sub(1));
        if length != 0
            && address.page() == last / PAGE_SIZE
            && !self.0.code.page_has_code(address.page())
        {
            return;
        }
        self.note_write_slow(address, length);
    }

    #[cold]
    fn note_write_slow(&mut self, address: PhysicalAddress, length: u64) {
        let length = length.min(self.0.ram.span().max(REGIONS_END));
        let end = address.0.saturating_add(length);
        let mut writes = self.0.code_writes.borrow_mut();
        for (page, mask) in pages_of(address, length) {
            if self.0.code.lines(page) & mask == 0 {
                continue;
            }
            let start = page * PAGE_SIZE;
            let first = address.0.saturating_sub(start) as u16;
            let last = (end - start).min(PAGE_SIZE) as u16 - 1;
            let crowded = writes.len() >= MAX_PIECES;
            match writes.last_mut() {
                Some(known)
                    if known.page == page
                        && (crowded || (first <= known.last + 1 && known.first <= last + 1)) =>
                {
                    known.first = known.first.min(first);
                    known.last = known.last.max(last);
                }
                _ => writes.push(CodeWrite { page, first, last }),
            }
        }
        self.0.has_code_writes.set(!writes.is_empty());
    }

    /// Whether code was written since the last [`GuestMemory::take_code_writes`].
    #[inline]
    pub fn has_code_writes(&self) -> bool {
        self.0.has_code_writes.get()
    }

    /// Takes the list of writes to code. The lines stay marked until the translations are dropped,
    /// which clears them.
    pub fn take_code_writes(&mut self) -> Vec<CodeWrite> {
        self.0.has_code_writes.set(false);
        self.0.code_writes.take()
    }

    /// Reads 4 bytes, little-endian; returns all ones unless all are RAM.
    #[inline]
    pub fn read_u32(&self, address: PhysicalAddress) -> u32 {
        let mut bytes = [0xff; 4];
        self.0.ram.read(address, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    /// Reads 8 bytes, little-endian; returns all ones unless all are RAM.
    #[inline]
    pub fn read_u64(&self, address: PhysicalAddress) -> u64 {
        let mut bytes = [0xff; 8];
        self.0.ram.read(address, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    /// Writes 4 bytes, little-endian. Returns false unless all are RAM.
    #[inline]
    pub fn write_u32(&mut self, address: PhysicalAddress, value: u32) -> bool {
        self.write(address, &value.to_le_bytes())
    }

    /// Writes 8 bytes, little-endian. Returns false unless all are RAM.
    #[inline]
    pub fn write_u64(&mut self, address: PhysicalAddress, value: u64) -> bool {
        self.write(address, &value.to_le_bytes())
    }
}

impl PageTableMemory for GuestMemory {
    fn read_u32(&mut self, address: PhysicalAddress) -> u32 {
        GuestMemory::read_u32(self, address)
    }

    fn read_u64(&mut self, address: PhysicalAddress) -> u64 {
        GuestMemory::read_u64(self, address)
    }

    fn set_bits(&mut self, address: PhysicalAddress, bits: u32) {
        let old = GuestMemory::read_u32(self, address);
        if old & bits != bits {
            self.write_u32(address, old | bits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> GuestMemory {
        GuestMemory::new(2 << 20).unwrap()
    }

    #[test]
    fn a_clone_reaches_the_same_memory_and_its_writes_pass_the_same_gate() {
        let memory = memory();
        let mut device = memory.clone();
        memory.code().mark(PhysicalAddress(0x1000), 1);
        device.write_u32(PhysicalAddress(0x1000), 7);
        assert_eq!(memory.read_u32(PhysicalAddress(0x1000)), 7);
        assert!(memory.has_code_writes());
    }

    #[test]
    fn a_write_to_data_leaves_no_trace() {
        let mut memory = memory();
        memory.code().mark(PhysicalAddress(0x10_0000), 64);
        assert!(memory.write_u32(PhysicalAddress(0x10_0040), 7));
        assert!(memory.write_u32(PhysicalAddress(0x20_0000 - 4), 7));
        assert!(!memory.has_code_writes());
        assert_eq!(memory.read_u32(PhysicalAddress(0x10_0040)), 7);
    }

    #[test]
    fn a_write_to_code_is_reported_once_with_its_bytes() {
        let mut memory = memory();
        memory.code().mark(PhysicalAddress(0x10_0fc0), 128);
        assert!(memory.write(PhysicalAddress(0x10_0ffe), &[0x90; 4]));
        assert_eq!(
            memory.take_code_writes(),
            [
                CodeWrite {
                    page: 0x100,
                    first: 0xffe,
                    last: 0xfff
                },
                CodeWrite {
                    page: 0x101,
                    first: 0,
                    last: 1
                }
            ]
        );
        assert!(!memory.has_code_writes());
    }

    #[test]
    fn neighbouring_writes_are_merged_and_so_are_many() {
        let mut memory = memory();
        memory.code().mark(PhysicalAddress(0x10_0000), 4096);
        for byte in (0x100..0x110).rev().chain(0x110..0x120) {
            assert!(memory.write(PhysicalAddress(0x10_0000 + byte), &[0]));
        }
        let merged = CodeWrite {
            page: 0x100,
            first: 0x100,
            last: 0x11f,
        };
        assert_eq!(memory.take_code_writes(), [merged]);
        for line in 0..64 {
            assert!(memory.write(PhysicalAddress(0x10_0000 + line * 64), &[0]));
        }
        let writes = memory.take_code_writes();
        assert!(writes.len() <= MAX_PIECES);
        for line in 0..64 {
            assert!(
                writes
                    .iter()
                    .any(|w| (w.first..=w.last).contains(&(line * 64)))
            );
        }
    }

    #[test]
    fn setting_bits_in_a_page_table_passes_the_gate() {
        let mut memory = memory();
        memory.write_u32(PhysicalAddress(0x1000), 0x8000_0001);
        memory.code().mark(PhysicalAddress(0x1000), 4);
        memory.set_bits(PhysicalAddress(0x1000), 0x60);
        assert_eq!(memory.read_u32(PhysicalAddress(0x1000)), 0x8000_0061);
        assert!(memory.has_code_writes());
    }

    #[test]
    fn cleared_memory_is_zero_and_its_code_is_stale() {
        let mut memory = memory();
        memory.write_u32(PhysicalAddress(0x3000), 7);
        memory.code().mark(PhysicalAddress(0x3000), 1);
        memory.clear().unwrap();
        assert_eq!(memory.read_u32(PhysicalAddress(0x3000)), 0);
        let whole = CodeWrite {
            page: 3,
            first: 0,
            last: 4095,
        };
        assert_eq!(memory.take_code_writes(), [whole]);
    }

    #[test]
    fn outside_memory_reads_are_all_ones_and_writes_are_ignored() {
        let mut memory = memory();
        let outside = PhysicalAddress(0xfee0_0000);
        assert_eq!(memory.read_u32(outside), u32::MAX);
        assert_eq!(memory.read_u64(PhysicalAddress(0x1f_fffc)), u64::MAX);
        assert!(!memory.write_u64(outside, 0));
        memory.set_bits(outside, 0x20);
        memory.note_write(PhysicalAddress(u64::MAX), u64::MAX);
        assert!(!memory.has_code_writes());
    }
}
