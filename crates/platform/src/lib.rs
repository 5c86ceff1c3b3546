//! The interface between the monitor, which runs a processor, and the machine around it.
//!
//! The monitor calls [`Platform`]; a machine implements it. Both express time as [`GuestTime`]: the
//! nanoseconds since the machine was started, which do not advance while the machine is paused.

mod bare_machine;
pub mod mark;
mod near;
mod stop;

pub use bare_machine::BareMachine;
pub use mark::MarkName;
pub use near::{DISPLAY_WINDOW, Near, NearAccess, NearRun, RunAccess, RunAction};
pub use stop::{PanicReport, ResetCause, StopRequest};

use serde::{Deserialize, Serialize};
use tollgate_x86::{CpuState, Exception, PhysicalAddress, TranslationChange};

/// Nanoseconds of guest time since the machine was started.
#[derive(
    Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default, Hash, Serialize, Deserialize,
)]
pub struct GuestTime(pub u64);

impl GuestTime {
    /// The time `nanoseconds` later, saturating.
    pub const fn after(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }

    /// Nanoseconds from `earlier` to this time; zero if `earlier` is later.
    pub const fn since(self, earlier: GuestTime) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// What the monitor asks of the machine around the processor.
///
/// All calls come from the vCPU's own thread. Only [`Self::advance_some`] and
/// [`Self::request_mark`] have defaults, so that a type that wraps a machine forwards everything
/// else. Machines for tests and tools implement [`BareMachine`].
pub trait Platform {
    /// Reads `size` (1, 2 or 4) bytes from a port; the higher bits of the result are zero.
    fn port_read(&mut self, port: u16, size: u8) -> u32;

    /// Writes `size` (1, 2 or 4) bytes to a port.
    fn port_write(&mut self, port: u16, size: u8, value: u32);

    /// Reads device memory (1 to 64 bytes); called once for each guest access. Where no device
    /// responds, bytes read as FFh.
    fn memory_read(&mut self, address: PhysicalAddress, data: &mut [u8]);

    /// Writes device memory (1 to 64 bytes); called once for each guest access.
    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]);

    /// Makes an access if it is [near](NearAccess). The monitor then does nothing else for the
    /// guest's instruction, unless the result asks for more.
    fn near(&mut self, access: NearAccess) -> Near;

    /// The page of device memory that contains near registers, if there is one.
    fn near_page(&self) -> Option<PhysicalAddress>;

    /// The start of display memory if accesses to it may be near: [`DISPLAY_WINDOW`] bytes, at a
    /// multiple of that size. Where loads are near, stores are too, and each 32 KiB are near as a
    /// whole or not at all. An access that was just made may be repeated, which then changes
    /// nothing.
    fn near_display(&self) -> Option<PhysicalAddress>;

    /// Makes accesses to display memory, all of them or none, if the memory is near.
    fn near_run(&mut self, run: NearRun<'_>) -> Near;

    /// Reads an MSR that belongs to the machine (local APIC base, TSC deadline ...). `None` for
    /// other MSRs.
    fn msr_read(&mut self, index: u32) -> Option<u64>;

    /// Writes an MSR that belongs to the machine. `None` for other MSRs; `Some(false)` if the value
    /// is refused with #GP(0).
    fn msr_write(&mut self, index: u32, value: u64) -> Option<bool>;

    /// The task priority class, 0 to 15, which CR8 shows. CR8 and the local APIC's task priority
    /// register are one register (SDM volume 3, 11.8.6.1; AMD's manual volume 2, 16.6.4); while the
    /// APIC is disabled, it can be reached only through CR8.
    fn task_priority(&mut self) -> u8;

    /// Sets the task priority class, 0 to 15; the lower half of the task priority register becomes
    /// zero.
    fn set_task_priority(&mut self, class: u8);

    /// Whether a maskable interrupt is pending for the processor (INTR is asserted).
    fn interrupt_pending(&mut self) -> bool;

    /// Acknowledges the pending interrupt and returns its vector; `None` if it is no longer
    /// pending.
    fn acknowledge_interrupt(&mut self) -> Option<u8>;

    /// Takes a pending non-maskable interrupt. Returns whether there was one.
    fn take_nmi(&mut self) -> bool;

    /// The present guest time.
    fn now(&self) -> GuestTime;

    /// The time at which the machine next needs [`Platform::advance`], if any.
    fn next_deadline(&self) -> Option<GuestTime>;

    /// Lets timers fire up to the present time and handles input from outside.
    fn advance(&mut self);

    /// Does the same as [`Platform::advance`] while the guest accepts interrupts: if it takes long
    /// and an interrupt is pending, work that can wait is postponed, and
    /// [`Platform::next_deadline`] is soon.
    fn advance_some(&mut self) {
        self.advance();
    }

    /// The guest's time-stamp counter, without the processor's own offset.
    fn time_stamp(&self) -> u64;

    /// The number to add to the host's time-stamp counter to get [`Platform::time_stamp`], modulo
    /// 2^64, for translated code that reads the host's counter. It is stored, not computed from two
    /// readings, because the host may run something else between two readings. It changes when
    /// guest time is stopped and started.
    fn host_time_stamp_offset(&self) -> u64;

    /// Whether address line 20 is enabled.
    fn a20_enabled(&self) -> bool;

    /// Requests [`StopRequest::Mark`], since the guest sets a mark in the statistics. Does nothing
    /// in machines without statistics.
    fn request_mark(&mut self, _name: MarkName) {}

    /// Takes a stop that was requested since the last call.
    fn take_stop_request(&mut self) -> Option<StopRequest>;

    /// Asserts FERR#: an x87 error occurred with CR0.NE clear. It is wired to IRQ 13.
    fn signal_fpu_error(&mut self);

    /// Whether IGNNE# is asserted: an x87 error that is pending with CR0.NE clear is then ignored.
    fn ignores_fpu_error(&self) -> bool;

    /// Deasserts FERR#: no x87 error is pending.
    fn fpu_error_cleared(&mut self);
}

/// The elements that a repeated string instruction accesses one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elements {
    /// Number of elements: at least one.
    pub count: u64,
    /// Size in bytes of each element: 1, 2, 4 or 8.
    pub size: u32,
    /// Whether each element lies below the one before it.
    pub backward: bool,
}

/// What an emulated instruction can access in addition to the registers: memory at linear addresses
/// (segmentation has been applied), ports, and the monitor's translation caches.
///
/// Every memory call first checks the *whole* range (all pages, with accessed and dirty bits set as
/// the processor would), and moves data only if the whole range is accessible.
pub trait Environment {
    /// Calls the machine around the processor once, with the time counted as that of its devices.
    /// Instructions use [`machine`](#method.machine), which returns the machine's result.
    fn call_machine(&mut self, call: &mut dyn FnMut(&mut dyn Platform));

    /// Reads `size` (1, 2 or 4) bytes from a port, like [`Platform::port_read`]; records hits of
    /// breakpoints on these ports.
    fn port_read(&mut self, state: &CpuState, port: u16, size: u8) -> u32;

    /// Writes `size` (1, 2 or 4) bytes to a port, like [`Platform::port_write`]; records hits of
    /// breakpoints on these ports.
    fn port_write(&mut self, state: &CpuState, port: u16, size: u8, value: u32);

    /// Reads guest memory at a linear address.
    ///
    /// # Errors
    /// The page fault for the first byte that cannot be read.
    fn read(
        &mut self,
        state: &CpuState,
        address: tollgate_x86::LinearAddress,
        data: &mut [u8],
        privilege: tollgate_x86::paging::Privilege,
    ) -> Result<(), Exception>;

    /// Writes guest memory at a linear address.
    ///
    /// # Errors
    /// The page fault for the first byte that cannot be written; nothing was written.
    fn write(
        &mut self,
        state: &CpuState,
        address: tollgate_x86::LinearAddress,
        data: &[u8],
        privilege: tollgate_x86::paging::Privilege,
    ) -> Result<(), Exception>;

    /// Checks that `size` bytes could be written, without writing.
    ///
    /// # Errors
    /// The page fault for the first byte that cannot be written.
    fn probe_write(
        &mut self,
        state: &CpuState,
        address: tollgate_x86::LinearAddress,
        size: u32,
        privilege: tollgate_x86::paging::Privilege,
    ) -> Result<(), Exception>;

    /// Guest RAM at a linear address, for bulk string moves: the host pointer, and the number of
    /// contiguous bytes (1 to 4096, never past the page) that may be accessed there. `bytes` (1 to
    /// 4096) is how many bytes the caller is going to access: if it declares a write, their
    /// translations become stale. `Ok(None)` if the memory is not plain RAM; use
    /// [`Environment::read`] or [`Environment::write`] then.
    ///
    /// The pointer is valid until the next call of any method of this trait.
    ///
    /// # Errors
    ///
    /// The page fault for the first byte.
    fn ram(
        &mut self,
        state: &CpuState,
        address: tollgate_x86::LinearAddress,
        bytes: u32,
        kind: tollgate_x86::paging::AccessKind,
        privilege: tollgate_x86::paging::Privilege,
    ) -> Result<Option<(*mut u8, u32)>, Exception>;

    /// Moves several elements of a repeated instruction at once. Returns how many, or zero. The
    /// elements of each range lie in one page; the addresses are those of the first elements
    /// accessed.
    fn move_elements(
        &mut self,
        _state: &CpuState,
        _places: [tollgate_x86::LinearAddress; 2],
        _elements: Elements,
        _privilege: tollgate_x86::paging::Privilege,
    ) -> u64 {
        0
    }

    /// Stores `value` to several elements of a repeated instruction at once. Returns how many, or
    /// zero, as [`Environment::move_elements`] does.
    fn store_elements(
        &mut self,
        _state: &CpuState,
        _place: tollgate_x86::LinearAddress,
        _elements: Elements,
        _value: u64,
        _privilege: tollgate_x86::paging::Privilege,
    ) -> u64 {
        0
    }

    /// Reads 8 bytes of physical memory (for PDPTEs); returns all ones outside memory.
    fn read_physical_u64(&mut self, address: PhysicalAddress) -> u64;

    /// Does the slow part of a change in advance. The instruction has not changed anything yet, and
    /// `state` is as before it. Returns false if something else is due: nothing that the guest
    /// could see has happened, and the instruction must be started again after that.
    fn prepare_change(&mut self, _state: &CpuState, _change: TranslationChange) -> bool {
        true
    }

    /// Drops cached translations. `state` already contains the registers that the instruction has
    /// changed.
    fn translations_changed(&mut self, state: &CpuState, change: TranslationChange);

    /// PKRU has changed; `of_key_0` says whether its bits for key 0 have. Translations of pages
    /// with a key whose rights have changed must be dropped.
    fn key_rights_changed(&mut self, state: &CpuState, of_key_0: bool) {
        let _ = of_key_0;
        self.translations_changed(state, TranslationChange::Everything);
    }

    /// Makes `state.vector` hold the guest's x87/SSE/AVX registers, which may still be in host
    /// registers. Must be called before `state.vector` is read or written.
    fn sync_vector_state(&mut self, state: &mut CpuState);

    /// Whether something outside the instruction is due (an interrupt, a stop): long repeated
    /// instructions then stop at the next iteration.
    fn is_interrupted(&self) -> bool;
}

impl dyn Environment + '_ {
    /// The result of a call to the machine around the processor (ports, MSRs, time stamps).
    #[inline]
    pub fn machine<T: Default>(&mut self, mut call: impl FnMut(&mut dyn Platform) -> T) -> T {
        let mut answer = T::default();
        self.call_machine(&mut |machine| answer = call(machine));
        answer
    }
}
