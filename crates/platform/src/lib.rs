//! The seam between the monitor, which runs a processor, and the machine around it.
//!
//! The monitor calls [`Platform`]; a machine implements it. Time crosses the
//! seam as [`GuestTime`]: nanoseconds since the machine was started, which stand
//! still while the machine is paused.

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
    /// `nanoseconds` later, saturating.
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
/// All calls come from the vCPU's own thread. No method has a default: a type that wraps a
/// machine cannot lose one. Machines of tests and tools implement [`BareMachine`].
pub trait Platform {
    /// Reads `size` (1, 2 or 4) bytes from a port; bits above are zero.
    fn port_read(&mut self, port: u16, size: u8) -> u32;

    /// Writes `size` (1, 2 or 4) bytes to a port.
    fn port_write(&mut self, port: u16, size: u8, value: u32);

    /// Reads device memory (1 to 64 bytes); called once for each guest access.
    /// Where nothing answers, bytes read as FFh.
    fn memory_read(&mut self, address: PhysicalAddress, data: &mut [u8]);

    /// Writes device memory (1 to 64 bytes); called once for each guest access.
    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]);

    /// Makes an access if it is [near](NearAccess). It is then all that the monitor does for the
    /// guest's instruction, unless the answer asks for more.
    fn near(&mut self, access: NearAccess) -> Near;

    /// The page of device memory in which there are registers that are near, if there is one.
    fn near_page(&self) -> Option<PhysicalAddress>;

    /// Where display memory begins if accesses to it may be near: [`DISPLAY_WINDOW`] bytes from a
    /// multiple of them. What is near to loads there is so to stores, and all of 32 KiB is or nothing. An
    /// access that was just made may be made again, and changes nothing then.
    fn near_display(&self) -> Option<PhysicalAddress>;

    /// Makes accesses to display memory if it is near there, all of them or none.
    fn near_run(&mut self, run: NearRun<'_>) -> Near;

    /// Reads an MSR that belongs to the machine (local APIC base, TSC deadline ...).
    /// `None`: not the machine's.
    fn msr_read(&mut self, index: u32) -> Option<u64>;

    /// Writes an MSR that belongs to the machine. `None`: not the machine's;
    /// `Some(false)`: the value is refused with #GP(0).
    fn msr_write(&mut self, index: u32, value: u64) -> Option<bool>;

    /// The task priority class, 0 to 15: what CR8 shows. CR8 and the local APIC's task
    /// priority register are one register (SDM volume 3, 11.8.6.1; AMD's manual volume 2,
    /// 16.6.4); while the APIC is disabled it can be reached through CR8 alone.
    fn task_priority(&mut self) -> u8;

    /// Sets the task priority class, 0 to 15; the lower half of the task priority register
    /// becomes zero.
    fn set_task_priority(&mut self, class: u8);

    /// Whether a maskable interrupt waits for the processor (INTR is asserted).
    fn interrupt_pending(&mut self) -> bool;

    /// Acknowledges the waiting interrupt and returns its vector; `None` if it went away.
    fn acknowledge_interrupt(&mut self) -> Option<u8>;

    /// Takes a non-maskable interrupt, if one waits.
    fn take_nmi(&mut self) -> bool;

    /// Guest time now.
    fn now(&self) -> GuestTime;

    /// When the machine next needs [`Platform::advance`], if ever.
    fn next_deadline(&self) -> Option<GuestTime>;

    /// Lets timers fire up to the present and takes in what came from outside.
    fn advance(&mut self);

    /// The same while the guest lets interrupts in: if it takes long and one waits, what can wait is
    /// left, and [`Platform::next_deadline`] is soon.
    fn advance_some(&mut self) {
        self.advance();
    }

    /// The guest's time-stamp counter, with no processor offset applied.
    fn time_stamp(&self) -> u64;

    /// What must be added to the host's time-stamp counter to get [`Platform::time_stamp`],
    /// modulo 2^64, for translated code that reads the host's. One value, not the difference
    /// of two readings: between those the host may run something else. It changes when
    /// guest time is stopped and started.
    fn host_time_stamp_offset(&self) -> u64;

    /// A20 is enabled.
    fn a20_enabled(&self) -> bool;

    /// The guest sets a mark in the statistics: [`StopRequest::Mark`] is to come. Nothing, for
    /// machines without statistics.
    fn request_mark(&mut self, _name: MarkName) {}

    /// A stop was requested since the last call.
    fn take_stop_request(&mut self) -> Option<StopRequest>;

    /// FERR# is asserted: an x87 error with CR0.NE clear (goes to IRQ 13).
    fn signal_fpu_error(&mut self);

    /// IGNNE# is asserted: the x87 error that is pending with CR0.NE clear is ignored.
    fn ignores_fpu_error(&self) -> bool;

    /// FERR# is no longer asserted: no x87 error is pending.
    fn fpu_error_cleared(&mut self);
}

/// Elements that a repeated string instruction accesses one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Elements {
    /// How many: at least one.
    pub count: u64,
    /// Bytes of each: 1, 2, 4 or 8.
    pub size: u32,
    /// Each lies below the one before.
    pub backward: bool,
}

/// What an emulated instruction may touch beside the registers: memory through
/// segmentation-free linear addresses, ports, and the monitor's translation caches.
///
/// Every memory call checks the *whole* range first (all pages, with accessed and
/// dirty bits set as the processor would), and moves data only if the range is good.
pub trait Environment {
    /// Calls the machine around the processor once, on its devices' account. Instructions
    /// use [`machine`](#method.machine), which returns what the machine answered.
    fn call_machine(&mut self, call: &mut dyn FnMut(&mut dyn Platform));

    /// Reads `size` (1, 2 or 4) ports from `port` on, as [`Platform::port_read`]; breakpoints
    /// on them count as met.
    fn port_read(&mut self, state: &CpuState, port: u16, size: u8) -> u32;

    /// Writes `size` (1, 2 or 4) ports from `port` on, as [`Platform::port_write`];
    /// breakpoints on them count as met.
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

    /// Guest RAM behind a linear address, for bulk string moves: host pointer and how
    /// many contiguous bytes (1 to 4096, never past the page) may be accessed there.
    /// `bytes` (1 to 4096) is how many the caller is going to access: if it says that it
    /// writes, what was translated from them is stale from now on.
    /// `Ok(None)`: not plain RAM; use [`Environment::read`] or [`Environment::write`].
    ///
    /// The pointer is valid until the next call of any method of this trait.
    ///
    /// # Errors
    /// The page fault for the first byte.
    fn ram(
        &mut self,
        state: &CpuState,
        address: tollgate_x86::LinearAddress,
        bytes: u32,
        kind: tollgate_x86::paging::AccessKind,
        privilege: tollgate_x86::paging::Privilege,
    ) -> Result<Option<(*mut u8, u32)>, Exception>;

    /// Moves elements of a repeated instruction from one place to another, some of them at once: how
    /// many, or zero. Those of each place lie in one page; the addresses are those of the first ones
    /// that are accessed.
    fn move_elements(
        &mut self,
        _state: &CpuState,
        _places: [tollgate_x86::LinearAddress; 2],
        _elements: Elements,
        _privilege: tollgate_x86::paging::Privilege,
    ) -> u64 {
        0
    }

    /// The same of elements that store `value`.
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

    /// Reads 8 bytes of physical memory (PDPTEs). All ones outside memory.
    fn read_physical_u64(&mut self, address: PhysicalAddress) -> u64;

    /// Does beforehand what can be done of a change that takes long. The instruction has not changed
    /// anything yet, and `state` is as it was. False: something else is due; nothing that the guest
    /// could see has happened, and the instruction is to be begun again behind that.
    fn prepare_change(&mut self, _state: &CpuState, _change: TranslationChange) -> bool {
        true
    }

    /// Cached translations must be forgotten. `state` holds what the instruction has changed
    /// of the registers.
    fn translations_changed(&mut self, state: &CpuState, change: TranslationChange);

    /// PKRU is another one; `of_key_0`: its bits for key 0 are. What was derived from pages with
    /// a key whose rights have changed must be forgotten.
    fn key_rights_changed(&mut self, state: &CpuState, of_key_0: bool) {
        let _ = of_key_0;
        self.translations_changed(state, TranslationChange::Everything);
    }

    /// Makes `state.vector` hold the guest's x87/SSE/AVX registers, which may still
    /// be live in host registers. Call before reading or writing `state.vector`.
    fn sync_vector_state(&mut self, state: &mut CpuState);

    /// Something outside the instruction is due (an interrupt, a stop): long
    /// repeated instructions stop at the next iteration when this is true.
    fn is_interrupted(&self) -> bool;
}

impl dyn Environment + '_ {
    /// What the machine around the processor (ports, MSRs, time stamps) answers.
    #[inline]
    pub fn machine<T: Default>(&mut self, mut call: impl FnMut(&mut dyn Platform) -> T) -> T {
        let mut answer = T::default();
        self.call_machine(&mut |machine| answer = call(machine));
        answer
    }
}
