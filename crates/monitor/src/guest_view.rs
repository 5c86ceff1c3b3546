//! Guest memory as the processor sees it: paging in front, RAM or devices behind.

use tollgate_emulate::operand::linear_mask;
use tollgate_memory::GuestMemory;
use tollgate_tlb::{Entry, LongTlb, SoftwareTlb, Stores, View};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::paging::{AccessKind, PagingRegisters, Privilege, Translation};
use tollgate_x86::{CpuState, Exception, LinearAddress, PhysicalAddress, SegmentRegister};

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

/// Whether generated code may access memory itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inline {
    /// The software TLB has what it needs.
    Yes,
    /// If the monitor lets the store pass: the page of this address, which holds all of the
    /// store, holds translated code.
    Code(PhysicalAddress),
    /// The access must be made out of line.
    No,
}

/// RAM, its gate and the software TLB in front of it.
pub struct GuestView {
    /// RAM and the map of translated code.
    pub memory: GuestMemory,
    /// What generated code looks pages up in.
    pub tlb: SoftwareTlb,
    /// The same in IA-32e mode.
    pub long_tlb: LongTlb,
}

/// The linear address of the instruction at CS:RIP.
pub fn code_address(state: &CpuState) -> u64 {
    let base = state.segment_base(SegmentRegister::Cs);
    base.wrapping_add(state.rip) & linear_mask(state)
}

/// The view that serves accesses of this privilege.
pub const fn view_of(privilege: Privilege) -> View {
    match privilege {
        Privilege::Supervisor => View::Supervisor,
        Privilege::User => View::User,
    }
}

impl GuestView {
    /// What generated code needs in R14.
    pub fn table(&self, state: &CpuState, view: View) -> u64 {
        if state.is_long_mode() {
            self.long_tlb.table(view)
        } else {
            self.tlb.table(view)
        }
    }

    /// Forgets all entries but global ones: CR3 was loaded.
    pub fn clear_local(&mut self) {
        self.tlb.clear_local();
        self.long_tlb.clear_local();
    }

    /// Forgets everything.
    pub fn clear_all(&mut self) {
        self.tlb.clear_all();
        self.long_tlb.clear_all();
    }

    /// Forgets one page, and all that was derived from the same large page.
    pub fn clear_page(&mut self, linear: LinearAddress) {
        self.tlb.clear_page(linear);
        self.long_tlb.clear_page(linear);
    }

    /// Has every entry that leads to this host page allow only stores beside code.
    pub fn protect_host_page(&mut self, host_page: u64) {
        self.tlb.protect_host_page(host_page);
        self.long_tlb.protect_host_page(host_page);
    }

    fn look_up(
        &self,
        state: &CpuState,
        view: View,
        write: bool,
        linear: LinearAddress,
    ) -> Option<u64> {
        if state.is_long_mode() {
            self.long_tlb.look_up(view, write, linear)
        } else {
            self.tlb.look_up(view, write, linear)
        }
    }

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
            && let Some(host) = self.look_up(state, view, write, linear)
        {
            return Ok(Target::Ram(host as *mut u8));
        }
        let translation = self.walk(state, linear, kind, privilege)?;
        let physical = translation.physical;
        let Some(host_page) = self.memory.ram().host_page(physical.page()) else {
            return Ok(Target::Device(physical));
        };
        let holds_code = self.memory.code().page_has_code(physical.page());
        let watched = holds_code
            || (self.memory.code().is_watched(physical.page())
                && !(write && self.memory.code_mut().may_unwatch(physical.page())));
        let stores = match (translation.writable_now, watched) {
            (false, _) => Stores::Never,
            (true, true) => Stores::BesideCode,
            (true, false) => Stores::Always,
        };
        let entry = Entry {
            linear,
            host_page: host_page as u64,
            stores,
            global: translation.global,
            page_size: translation.page_size,
        };
        if state.is_long_mode() {
            self.long_tlb.fill(view, entry);
        } else {
            self.tlb.fill(view, entry);
        }
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

    /// Whether generated code may now access `size` bytes at `linear` inline; fills the
    /// software TLB on the way. `tested`: it tests whether a store hits code.
    ///
    /// # Errors
    /// The page fault.
    pub fn make_inline(
        &mut self,
        state: &CpuState,
        linear: LinearAddress,
        size: u32,
        kind: AccessKind,
        tested: bool,
        privilege: Privilege,
    ) -> Result<Inline, Exception> {
        let last = u64::from(size.max(1) - 1);
        match self.resolve(state, linear, kind, privilege)? {
            Target::Ram(_) => {}
            Target::Code(physical) if tested && physical.page_offset() + last < PAGE_SIZE => {
                return Ok(Inline::Code(physical));
            }
            Target::Code(_) | Target::Device(_) => return Ok(Inline::No),
        }
        if linear.page_offset() + last >= PAGE_SIZE {
            // Nothing that wraps is in the tables.
            let fits = linear.0.checked_add(last).is_some_and(|end| {
                if state.is_long_mode() {
                    is_canonical(end)
                } else {
                    end <= u64::from(u32::MAX)
                }
            });
            if !fits {
                return Ok(Inline::No);
            }
            let next = LinearAddress(linear.page_base().0 + PAGE_SIZE);
            let Target::Ram(_) = self.resolve(state, next, kind, privilege)? else {
                return Ok(Inline::No);
            };
        }
        let write = kind == AccessKind::Write;
        let view = view_of(privilege);
        let allowed = if state.is_long_mode() {
            self.long_tlb.allows(view, write, tested, linear, size)
        } else {
            self.tlb.allows(view, write, tested, linear, size)
        };
        Ok(if allowed { Inline::Yes } else { Inline::No })
    }
}
