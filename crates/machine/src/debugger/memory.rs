//! Guest memory as a debugger sees it: by linear or physical addresses, without traces in the guest's
//! page tables, and only where RAM or ROM is.

use tollgate_memory::GuestMemory;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{AccessKind, PageTableMemory, PagingRegisters, Privilege};
use tollgate_x86::{CpuState, LinearAddress, PhysicalAddress};

/// Page tables that a walk does not change.
struct Unmarked<'a>(&'a GuestMemory);

impl PageTableMemory for Unmarked<'_> {
    fn read_u32(&mut self, address: PhysicalAddress) -> u32 {
        let mut bytes = [0xff; 4];
        self.0.read(address, &mut bytes);
        u32::from_le_bytes(bytes)
    }

    fn read_u64(&mut self, address: PhysicalAddress) -> u64 {
        let mut bytes = [0xff; 8];
        self.0.read(address, &mut bytes);
        u64::from_le_bytes(bytes)
    }

    fn set_bits(&mut self, _: PhysicalAddress, _: u32) {}
}

/// Which addresses a debugger uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Addresses {
    /// Linear ones, which the guest's page tables translate.
    #[default]
    Linear,
    /// Physical ones, past the page tables.
    Physical,
}

impl Addresses {
    /// Returns the physical address of a byte, if the guest has mapped it.
    fn physical(self, cpu: &CpuState, memory: &GuestMemory, address: u64) -> Option<u64> {
        if self == Self::Physical {
            return Some(address);
        }
        let address = match cpu.is_long_mode() {
            true => address,
            false => address & 0xffff_ffff,
        };
        // Programs' pages are shown whatever the supervisor may access.
        let registers = PagingRegisters::of(cpu).for_debugger();
        let walked = registers.walk(
            &mut Unmarked(memory),
            LinearAddress(address),
            AccessKind::Read,
            Privilege::Supervisor,
        );
        walked.ok().map(|translation| translation.physical.0)
    }

    /// Calls `access` for the part of a range in each page, until it fails or a page is not there.
    /// Returns how many bytes were accessed.
    fn for_each_page(
        self,
        cpu: &CpuState,
        memory: &mut GuestMemory,
        (address, bytes): (u64, usize),
        mut access: impl FnMut(&mut GuestMemory, PhysicalAddress, std::ops::Range<usize>) -> bool,
    ) -> usize {
        let mut done = 0;
        while done < bytes {
            let next = address.wrapping_add(done as u64);
            let Some(physical) = self.physical(cpu, memory, next) else {
                break;
            };
            let left_in_page = (PAGE_SIZE - next % PAGE_SIZE) as usize;
            let piece = left_in_page.min(bytes - done);
            if !access(memory, PhysicalAddress(physical), done..done + piece) {
                break;
            }
            done += piece;
        }
        done
    }

    /// Reads memory; returns how many bytes were there.
    pub fn read(
        self,
        cpu: &CpuState,
        memory: &mut GuestMemory,
        address: u64,
        data: &mut [u8],
    ) -> usize {
        let range = (address, data.len());
        self.for_each_page(cpu, memory, range, |memory, at, part| {
            memory.read(at, &mut data[part])
        })
    }

    /// Writes memory, and returns whether all of it is there.
    pub fn write(
        self,
        cpu: &CpuState,
        memory: &mut GuestMemory,
        address: u64,
        data: &[u8],
    ) -> bool {
        let range = (address, data.len());
        let written = self.for_each_page(cpu, memory, range, |memory, at, part| {
            memory.write(at, &data[part])
        });
        written == data.len()
    }
}
