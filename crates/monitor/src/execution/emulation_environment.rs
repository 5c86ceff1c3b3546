//! What emulated instructions can reach: the [`Environment`] of a running vCPU.

use crate::execution::timed_platform::Metered;
use crate::execution::watched::Watched;
use crate::memory::guest_view::{GuestView, Target};
use std::ops::Range;
use std::sync::atomic::Ordering;
use tollgate_emulate::operand::system_mask;
use tollgate_engine::requests::Requests;
use tollgate_exits::blame::DeviceAddress;
use tollgate_exits::latency::InterruptibleWork;
use tollgate_platform::{Environment, Platform};
use tollgate_tlb::Derived;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{CpuState, Exception, LinearAddress, PhysicalAddress, Space, TranslationChange};

/// Longest access that a device receives, in bytes; see [`Platform::memory_read`].
const DEVICE_ACCESS: usize = 64;

/// Borrowed parts of a vCPU, for the time of one emulated instruction.
pub struct EmulationEnvironment<'a> {
    /// Guest memory through the guest's page tables.
    pub view: &'a mut GuestView,
    /// The machine. The time that its devices take is counted.
    pub platform: Metered<'a>,
    /// The data that the runner has derived from translations.
    pub derived: &'a mut dyn Derived,
    /// A value other than zero means that a request to leave guest code is pending.
    pub pending: &'a Requests,
    /// The kind of interruptible work that the instruction is, if any.
    pub work: Option<InterruptibleWork>,
    /// Whether a device was accessed.
    pub touched_device: bool,
    /// Whether device memory was written.
    pub wrote_device: bool,
    /// Breakpoints that accesses have hit, as bits of DR6.
    pub breakpoint_hits: &'a mut u64,
    /// What a debugger outside of the machine watches.
    pub watched: &'a mut Watched,
}

impl EmulationEnvironment<'_> {
    fn watch(&mut self, state: &CpuState, address: LinearAddress, size: usize, write: bool) {
        if state.has_breakpoints() {
            *self.breakpoint_hits |= state.data_breakpoints_in(address.0, size as u64, write);
        }
        if state.debugged.accesses {
            self.watched.note_access(address.0, size as u64, write);
        }
    }

    fn watch_ports(&mut self, state: &CpuState, port: u16, size: u8) {
        if state.has_breakpoints() {
            *self.breakpoint_hits |= state.port_breakpoints_in(port, u32::from(size));
        }
    }

    /// Calls `access` for each page of a range in turn.
    fn for_each_page(
        &mut self,
        state: &CpuState,
        (address, size): (LinearAddress, usize),
        kind: AccessKind,
        privilege: Privilege,
        mut access: impl FnMut(&mut Self, Target, Range<usize>),
    ) -> Result<(), Exception> {
        let mut done = 0;
        while done < size {
            let at = LinearAddress(address.0.wrapping_add(done as u64) & system_mask(state));
            let length = (size - done).min((PAGE_SIZE - at.page_offset()) as usize);
            let target = self.view.resolve(state, at, kind, privilege)?;
            access(self, target, done..done + length);
            done += length;
        }
        Ok(())
    }

    /// Calls `access` for each page of a range, after all pages are known to allow the access.
    fn in_pieces(
        &mut self,
        state: &CpuState,
        range: (LinearAddress, usize),
        kind: AccessKind,
        privilege: Privilege,
        access: impl FnMut(&mut Self, Target, Range<usize>),
    ) -> Result<(), Exception> {
        if range.0.page_offset() as usize + range.1 > PAGE_SIZE as usize {
            self.for_each_page(state, range, kind, privilege, |_, _, _| {})?;
        }
        self.for_each_page(state, range, kind, privilege, access)
    }

    fn read_piece(&mut self, target: Target, data: &mut [u8]) {
        match target {
            Target::Ram(host) => crate::memory::ram_copies::copy_from(host, data),
            Target::Code(physical) => {
                self.view.memory.read(physical, data);
            }
            Target::Device(physical) => {
                self.touched_device = true;
                for (index, piece) in data.chunks_mut(DEVICE_ACCESS).enumerate() {
                    let address = physical.0.wrapping_add((index * DEVICE_ACCESS) as u64);
                    let at = PhysicalAddress(address);
                    self.platform
                        .access(DeviceAddress::Memory(at.0), |machine| {
                            machine.memory_read(at, piece)
                        });
                }
            }
        }
    }

    fn write_piece(&mut self, target: Target, data: &[u8]) {
        match target {
            Target::Ram(host) => crate::memory::ram_copies::copy_to(host, data),
            Target::Code(physical) => {
                self.view.memory.write(physical, data);
            }
            Target::Device(physical) => {
                self.touched_device = true;
                self.wrote_device = true;
                for (index, piece) in data.chunks(DEVICE_ACCESS).enumerate() {
                    let address = physical.0.wrapping_add((index * DEVICE_ACCESS) as u64);
                    let at = PhysicalAddress(address);
                    self.platform
                        .access(DeviceAddress::Memory(at.0), |machine| {
                            machine.memory_write(at, piece)
                        });
                }
            }
        }
    }
}

impl Environment for EmulationEnvironment<'_> {
    fn call_machine(&mut self, call: &mut dyn FnMut(&mut dyn Platform)) {
        self.touched_device = true;
        self.platform.call(call);
    }

    fn port_read(&mut self, state: &CpuState, port: u16, size: u8) -> u32 {
        self.watch_ports(state, port, size);
        self.touched_device = true;
        let call = |machine: &mut dyn Platform| machine.port_read(port, size);
        self.platform.access(DeviceAddress::Port(port), call)
    }

    fn port_write(&mut self, state: &CpuState, port: u16, size: u8, value: u32) {
        self.watch_ports(state, port, size);
        self.touched_device = true;
        let call = |machine: &mut dyn Platform| machine.port_write(port, size, value);
        self.platform.access(DeviceAddress::Port(port), call);
    }

    fn read(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        data: &mut [u8],
        privilege: Privilege,
    ) -> Result<(), Exception> {
        self.watch(state, address, data.len(), false);
        let (range, kind) = ((address, data.len()), AccessKind::Read);
        self.in_pieces(state, range, kind, privilege, |this, target, range| {
            this.read_piece(target, &mut data[range]);
        })
    }

    fn write(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        data: &[u8],
        privilege: Privilege,
    ) -> Result<(), Exception> {
        self.watch(state, address, data.len(), true);
        let (range, kind) = ((address, data.len()), AccessKind::Write);
        self.in_pieces(state, range, kind, privilege, |this, target, range| {
            this.write_piece(target, &data[range]);
        })
    }

    fn probe_write(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        size: u32,
        privilege: Privilege,
    ) -> Result<(), Exception> {
        let range = (address, size as usize);
        self.for_each_page(state, range, AccessKind::Write, privilege, |_, _, _| {})
    }

    fn ram(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        bytes: u32,
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<Option<(*mut u8, u32)>, Exception> {
        let room = (PAGE_SIZE - address.page_offset()) as u32;
        Ok(match self.view.resolve(state, address, kind, privilege)? {
            // If memory is watched, the instruction accesses it element by element.
            Target::Ram(_) | Target::Code(_) if state.watches_memory() => None,
            Target::Ram(host) => Some((host, room)),
            Target::Code(physical) => {
                let bytes = u64::from(bytes.min(room));
                self.view.memory.note_write(physical, bytes);
                self.view
                    .memory
                    .ram()
                    .host_range(physical, bytes)
                    .map(|host| (host, room))
            }
            Target::Device(_) => None,
        })
    }

    fn read_physical_u64(&mut self, address: PhysicalAddress) -> u64 {
        self.view.memory.read_u64(address)
    }

    fn prepare_change(&mut self, state: &CpuState, change: TranslationChange) -> bool {
        let pending = self.pending;
        // Work that may not stop, perhaps of an interrupt handler, leaves the stopped work of
        // others as it is.
        let Some(work) = self.work.filter(|_| pending.checkpoints().may_stop()) else {
            return true;
        };
        let GuestView {
            memory,
            translations,
            ..
        } = &mut *self.view;
        let loaded = Space::loaded(state);
        let stops = || pending.stops(work);
        translations.prepare(loaded, change, self.derived, memory, stops)
    }

    fn translations_changed(&mut self, state: &CpuState, change: TranslationChange) {
        let loaded = Space::loaded(state);
        let GuestView {
            memory,
            translations,
            ..
        } = &mut *self.view;
        let purging = translations.purging_cycles();
        translations.change(loaded, change, self.derived, memory);
        let purging = translations.purging_cycles() - purging;
        if purging > 0 {
            self.platform.ledger.purged(purging);
        }
    }

    fn key_rights_changed(&mut self, state: &CpuState, of_key_0: bool) {
        if of_key_0 || self.view.translations.may_depend_on_keys() {
            self.translations_changed(state, TranslationChange::Everything);
        }
    }

    fn sync_vector_state(&mut self, _state: &mut CpuState) {
        // The vector registers need not be synchronised: every exit saves them if they were live.
    }

    fn is_interrupted(&self) -> bool {
        match self.work {
            Some(work) => self.pending.pauses(work),
            // An instruction that is not interruptible work is executed in small steps.
            None => self.pending.load(Ordering::Relaxed) != 0,
        }
    }
}
