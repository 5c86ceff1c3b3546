//! Guest memory for instructions that fast paths execute: only the pages that the software TLB has.

use crate::memory::addresses::view_of;
use crate::memory::guest_view::GuestView;
use crate::memory::ram_copies;
use tollgate_platform::{Environment, Platform};
use tollgate_tlb::LookUpFor;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{CpuState, Exception, LinearAddress, PhysicalAddress, TranslationChange};

/// Guest memory that refuses an access to a page for which the software TLB has no entry. The
/// refusal is an exception that never reaches the guest: the exit executes the instruction again.
pub(in crate::translated) struct KnownPages<'a> {
    pub(in crate::translated) view: &'a mut GuestView,
}

/// Refuses an access, so that the exit is taken.
fn refused<T>() -> Result<T, Exception> {
    Err(Exception::general_protection(0))
}

impl KnownPages<'_> {
    /// The host address of memory that generated code may access in this way, in at most two pages.
    fn find(
        &self,
        state: &CpuState,
        address: LinearAddress,
        size: usize,
        wanted: LookUpFor,
        privilege: Privilege,
    ) -> Result<*mut u8, Exception> {
        let translations = &self.view.translations;
        let view = view_of(privilege);
        let is_in_page = address.0 & 0xfff <= 0x1000 - size as u64;
        if self.view.memory.has_map_changes()
            || size > 16
            || !is_in_page && !translations.allows(state, view, wanted, address, size as u32)
        {
            return refused();
        }
        match translations.look_up(state, view, wanted == LookUpFor::Store, address) {
            Some(host) => Ok(host as *mut u8),
            None => refused(),
        }
    }
}

impl Environment for KnownPages<'_> {
    fn call_machine(&mut self, _call: &mut dyn FnMut(&mut dyn Platform)) {}

    fn port_read(&mut self, _state: &CpuState, _port: u16, _size: u8) -> u32 {
        0
    }

    fn port_write(&mut self, _state: &CpuState, _port: u16, _size: u8, _value: u32) {}

    fn read(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        data: &mut [u8],
        privilege: Privilege,
    ) -> Result<(), Exception> {
        let host = self.find(state, address, data.len(), LookUpFor::Load, privilege)?;
        ram_copies::copy_from(host, data);
        Ok(())
    }

    fn write(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        data: &[u8],
        privilege: Privilege,
    ) -> Result<(), Exception> {
        let host = self.find(state, address, data.len(), LookUpFor::Store, privilege)?;
        ram_copies::copy_to(host, data);
        Ok(())
    }

    fn probe_write(
        &mut self,
        _state: &CpuState,
        _address: LinearAddress,
        _size: u32,
        _privilege: Privilege,
    ) -> Result<(), Exception> {
        refused()
    }

    fn ram(
        &mut self,
        _state: &CpuState,
        _address: LinearAddress,
        _bytes: u32,
        _kind: AccessKind,
        _privilege: Privilege,
    ) -> Result<Option<(*mut u8, u32)>, Exception> {
        refused()
    }

    fn read_physical_u64(&mut self, _address: PhysicalAddress) -> u64 {
        0
    }

    fn translations_changed(&mut self, _state: &CpuState, _change: TranslationChange) {}

    fn sync_vector_state(&mut self, _state: &mut CpuState) {}

    fn is_interrupted(&self) -> bool {
        false
    }
}
