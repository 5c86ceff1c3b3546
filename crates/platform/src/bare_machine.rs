//! Machines for tests and tools that need only a few devices.

use crate::{GuestTime, Near, NearAccess, NearRun, Platform, StopRequest};
use tollgate_x86::PhysicalAddress;

/// A machine without devices, interrupts or time. An implementation overrides the methods of what
/// its machine has; each implementation is also a [`Platform`].
///
/// Do not implement this for a type that wraps another machine: a method that it does not override
/// would hide that part of the wrapped machine.
pub trait BareMachine {
    /// See [`Platform::port_read`]. No device is there: all bits read as ones.
    fn port_read(&mut self, _port: u16, size: u8) -> u32 {
        u32::MAX >> (32 - 8 * u32::from(size.clamp(1, 4)))
    }

    /// See [`Platform::port_write`]. No device is there: the write is ignored.
    fn port_write(&mut self, _port: u16, _size: u8, _value: u32) {}

    /// See [`Platform::memory_read`]. No device is there: bytes read as FFh.
    fn memory_read(&mut self, _address: PhysicalAddress, data: &mut [u8]) {
        data.fill(0xff);
    }

    /// See [`Platform::memory_write`]. No device is there: the write is ignored.
    fn memory_write(&mut self, _address: PhysicalAddress, _data: &[u8]) {}

    /// See [`Platform::near`]. Every access takes the general path.
    fn near(&mut self, _access: NearAccess) -> Near {
        Near::No
    }

    /// See [`Platform::near_page`]. No register has inline device access.
    fn near_page(&self) -> Option<PhysicalAddress> {
        None
    }

    /// See [`Platform::near_display`]. Display memory has no inline device access.
    fn near_display(&self) -> Option<PhysicalAddress> {
        None
    }

    /// See [`Platform::near_run`]. Each access is made separately.
    fn near_run(&mut self, _run: NearRun<'_>) -> Near {
        Near::No
    }

    /// See [`Platform::msr_read`]. The machine has no MSRs.
    fn msr_read(&mut self, _index: u32) -> Option<u64> {
        None
    }

    /// See [`Platform::msr_write`]. The machine has no MSRs.
    fn msr_write(&mut self, _index: u32, _value: u64) -> Option<bool> {
        None
    }

    /// See [`Platform::task_priority`]. There is no local APIC, so the class is zero.
    fn task_priority(&mut self) -> u8 {
        0
    }

    /// See [`Platform::set_task_priority`]. There is no local APIC, so the write is ignored.
    fn set_task_priority(&mut self, _class: u8) {}

    /// See [`Platform::interrupt_pending`]. No interrupt is ever pending.
    fn interrupt_pending(&mut self) -> bool {
        false
    }

    /// See [`Platform::acknowledge_interrupt`]. No interrupt is ever pending.
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        None
    }

    /// See [`Platform::take_nmi`]. No NMI is ever pending.
    fn take_nmi(&mut self) -> bool {
        false
    }

    /// See [`Platform::now`]. Time stands still.
    fn now(&self) -> GuestTime {
        GuestTime(0)
    }

    /// See [`Platform::next_deadline`]. Nothing ever becomes due.
    fn next_deadline(&self) -> Option<GuestTime> {
        None
    }

    /// See [`Platform::advance`]. Nothing ever becomes due.
    fn advance(&mut self) {}

    /// See [`Platform::time_stamp`]. Time stands still.
    fn time_stamp(&self) -> u64 {
        0
    }

    /// See [`Platform::host_time_stamp_offset`]. The guest's counter equals the host's.
    fn host_time_stamp_offset(&self) -> u64 {
        0
    }

    /// See [`Platform::a20_enabled`]. Address line 20 is always enabled.
    fn a20_enabled(&self) -> bool {
        true
    }

    /// See [`Platform::take_stop_request`]. No stop is ever requested.
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        None
    }

    /// See [`Platform::signal_fpu_error`]. FERR# is not connected.
    fn signal_fpu_error(&mut self) {}

    /// See [`Platform::ignores_fpu_error`]. IGNNE# is never asserted.
    fn ignores_fpu_error(&self) -> bool {
        false
    }

    /// See [`Platform::fpu_error_cleared`]. FERR# is not connected.
    fn fpu_error_cleared(&mut self) {}
}

impl<M: BareMachine> Platform for M {
    #[inline]
    fn port_read(&mut self, port: u16, size: u8) -> u32 {
        BareMachine::port_read(self, port, size)
    }
    #[inline]
    fn port_write(&mut self, port: u16, size: u8, value: u32) {
        BareMachine::port_write(self, port, size, value);
    }
    #[inline]
    fn memory_read(&mut self, address: PhysicalAddress, data: &mut [u8]) {
        BareMachine::memory_read(self, address, data);
    }
    #[inline]
    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]) {
        BareMachine::memory_write(self, address, data);
    }
    #[inline]
    fn near(&mut self, access: NearAccess) -> Near {
        BareMachine::near(self, access)
    }
    #[inline]
    fn near_page(&self) -> Option<PhysicalAddress> {
        BareMachine::near_page(self)
    }
    #[inline]
    fn near_display(&self) -> Option<PhysicalAddress> {
        BareMachine::near_display(self)
    }
    #[inline]
    fn near_run(&mut self, run: NearRun<'_>) -> Near {
        BareMachine::near_run(self, run)
    }
    #[inline]
    fn msr_read(&mut self, index: u32) -> Option<u64> {
        BareMachine::msr_read(self, index)
    }
    #[inline]
    fn msr_write(&mut self, index: u32, value: u64) -> Option<bool> {
        BareMachine::msr_write(self, index, value)
    }
    #[inline]
    fn task_priority(&mut self) -> u8 {
        BareMachine::task_priority(self)
    }
    #[inline]
    fn set_task_priority(&mut self, class: u8) {
        BareMachine::set_task_priority(self, class);
    }
    #[inline]
    fn interrupt_pending(&mut self) -> bool {
        BareMachine::interrupt_pending(self)
    }
    #[inline]
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        BareMachine::acknowledge_interrupt(self)
    }
    #[inline]
    fn take_nmi(&mut self) -> bool {
        BareMachine::take_nmi(self)
    }
    #[inline]
    fn now(&self) -> GuestTime {
        BareMachine::now(self)
    }
    #[inline]
    fn next_deadline(&self) -> Option<GuestTime> {
        BareMachine::next_deadline(self)
    }
    #[inline]
    fn advance(&mut self) {
        BareMachine::advance(self);
    }
    #[inline]
    fn time_stamp(&self) -> u64 {
        BareMachine::time_stamp(self)
    }
    #[inline]
    fn host_time_stamp_offset(&self) -> u64 {
        BareMachine::host_time_stamp_offset(self)
    }

    #[inline]
    fn a20_enabled(&self) -> bool {
        BareMachine::a20_enabled(self)
    }
    #[inline]
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        BareMachine::take_stop_request(self)
    }
    #[inline]
    fn signal_fpu_error(&mut self) {
        BareMachine::signal_fpu_error(self);
    }
    #[inline]
    fn ignores_fpu_error(&self) -> bool {
        BareMachine::ignores_fpu_error(self)
    }
    #[inline]
    fn fpu_error_cleared(&mut self) {
        BareMachine::fpu_error_cleared(self);
    }
}
