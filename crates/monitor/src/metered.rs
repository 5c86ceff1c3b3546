//! The machine, with the time that its devices take told to the ledger.

use tollgate_exits::ledger::Ledger;
use tollgate_platform::{GuestTime, Platform, StopRequest};
use tollgate_x86::PhysicalAddress;

/// A machine whose device accesses are timed when the current exit is.
pub struct Metered<'a> {
    /// The machine.
    pub inner: &'a mut dyn Platform,
    /// The books.
    pub ledger: &'a mut Ledger,
}

impl Metered<'_> {
    #[inline]
    fn timed<T>(&mut self, call: impl FnOnce(&mut dyn Platform) -> T) -> T {
        if !self.ledger.is_sampling() {
            return call(self.inner);
        }
        let start = self.ledger.now();
        let result = call(self.inner);
        self.ledger
            .in_devices(self.ledger.now().wrapping_sub(start));
        result
    }
}

impl Platform for Metered<'_> {
    fn port_read(&mut self, port: u16, size: u8) -> u32 {
        self.timed(|machine| machine.port_read(port, size))
    }
    fn port_write(&mut self, port: u16, size: u8, value: u32) {
        self.timed(|machine| machine.port_write(port, size, value));
    }
    fn memory_read(&mut self, address: PhysicalAddress, data: &mut [u8]) {
        self.timed(|machine| machine.memory_read(address, data));
    }
    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]) {
        self.timed(|machine| machine.memory_write(address, data));
    }
    fn msr_read(&mut self, index: u32) -> Option<u64> {
        self.timed(|machine| machine.msr_read(index))
    }
    fn msr_write(&mut self, index: u32, value: u64) -> Option<bool> {
        self.timed(|machine| machine.msr_write(index, value))
    }
    fn task_priority(&mut self) -> u8 {
        self.timed(|machine| machine.task_priority())
    }
    fn set_task_priority(&mut self, class: u8) {
        self.timed(|machine| machine.set_task_priority(class));
    }
    fn interrupt_pending(&mut self) -> bool {
        self.inner.interrupt_pending()
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.timed(|machine| machine.acknowledge_interrupt())
    }
    fn take_nmi(&mut self) -> bool {
        self.inner.take_nmi()
    }
    fn now(&self) -> GuestTime {
        self.inner.now()
    }
    fn next_deadline(&self) -> Option<GuestTime> {
        self.inner.next_deadline()
    }
    fn advance(&mut self) {
        self.timed(|machine| machine.advance());
    }
    fn time_stamp(&self) -> u64 {
        self.inner.time_stamp()
    }
    fn host_time_stamp_offset(&self) -> u64 {
        self.inner.host_time_stamp_offset()
    }
    fn a20_enabled(&self) -> bool {
        self.inner.a20_enabled()
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.inner.take_stop_request()
    }
    fn signal_fpu_error(&mut self) {
        self.inner.signal_fpu_error();
    }
    fn ignores_fpu_error(&self) -> bool {
        self.inner.ignores_fpu_error()
    }
    fn fpu_error_cleared(&mut self) {
        self.inner.fpu_error_cleared();
    }
}
