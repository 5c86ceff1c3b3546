//! Guest memory as the processor sees it: paging in front, RAM or devices behind.

use tollgate_memory::GuestMemory;
use tollgate_shadow::{Entry, SoftwareTlb, View};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{AccessKind, PagingRegisters, Privilege, Translation};
use tollgate_x86::{CpuState, Exception, LinearAddress, PhysicalAddress};

/// What lies behind a linear address.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    /// RAM; loads, and stores if the access was a write, may go straight to it.
    Ram(*mut u8),
    /// RAM that holds translated code, and the access is a write: through the gate.
    Code(PhysicalAddress),
    /// No RAM: a device, or nothing.
    Device(PhysicalAddress),
}

/// RAM, its gate and the software TLB in front of it.
pub struct GuestView {
    /// RAM and the map of translated code.
    pub memory: GuestMemory,
    /// What generated code looks pages up in.
    pub tlb: SoftwareTlb,
}

/// The view that serves accesses of this privilege.
pub const fn view_of(privilege: Privilege) -> View {
    match privilege {
        Privilege::Supervisor => View::Supervisor,
        Privilege::User => View::User,
    }
}

impl GuestView {
    /// Walks the guest's tables and fills the software TLB where RAM lies behind.
    ///
    /// # Errors
    /// The page fault.
    pub fn resolve(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<Target, Exception> {
        let view = view_of(privilege);
        let write = kind == AccessKind::Write;
        if kind != AccessKind::Fetch
            && let Some(host) = self.tlb.look_up(view, write, linear)
        {
            return Ok(Target::Ram(host as *mut u8));
        }
        let translation = self.walk(state, linear, kind, privilege)?;
        let physical = translation.physical;
        let Some(host_page) = self.memory.ram().host_page(physical.page()) else {
            return Ok(Target::Device(physical));
        };
        let holds_code = self.memory.code().page_has_code(physical.page());
        self.tlb.fill(
            view,
            Entry {
                linear,
                host_page: host_page as u64,
                writable: translation.writable_now && !holds_code,
                global: translation.global,
                large: translation.page_size > PAGE_SIZE,
            },
        );
        if write && holds_code {
            return Ok(Target::Code(physical));
        }
        Ok(Target::Ram(
            host_page.wrapping_add(physical.page_offset() as usize),
        ))
    }

    /// Walks the guest's tables.
    ///
    /// # Errors
    /// The page fault.
    pub fn walk(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<Translation, Exception> {
        PagingRegisters::of(state).walk(&mut self.memory, linear, kind, privilege)
    }

    /// Whether `size` bytes at `linear` are one piece of host memory that generated
    /// code may now access inline; fills the software TLB on the way.
    ///
    /// # Errors
    /// The page fault.
    pub fn make_inline(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        size: u32,
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<bool, Exception> {
        let Target::Ram(first) = self.resolve(state, linear, kind, privilege)? else {
            return Ok(false);
        };
        let last = u64::from(size.max(1) - 1);
        if linear.page_offset() + last < PAGE_SIZE {
            return Ok(true);
        }
        if linear.0 + last > u64::from(u32::MAX) {
            return Ok(false);
        }
        let next = LinearAddress(linear.page_base().0 + PAGE_SIZE);
        let Target::Ram(second) = self.resolve(state, next, kind, privilege)? else {
            return Ok(false);
        };
        let rest = (PAGE_SIZE - linear.page_offset()) as usize;
        Ok(first.wrapping_add(rest) == second)
    }
}
