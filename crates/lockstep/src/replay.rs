//! The machine around our processor: our own devices, which determine the memory map, and QEMU's
//! log, which takes precedence over them for what the guest reads.

use crate::device_log::{DeviceByte, DeviceLog};
use crate::floppy_dma::{FloppyDma, Written};
use tollgate_machine::pc::Pc;
use tollgate_platform::{GuestTime, MarkName, Near, NearAccess, NearRun, Platform, StopRequest};
use tollgate_x86::PhysicalAddress;

/// A PC whose answers are QEMU's, as far as its log contains them. Its interrupts are never
/// delivered.
pub struct Replay {
    /// Our own PC.
    pub pc: Pc,
    /// The accesses of QEMU's devices during the next instruction.
    pub expected: DeviceLog,
    /// The bytes that were written to our devices.
    pub written: Vec<DeviceByte>,
    floppy_dma: FloppyDma,
    /// Memory that the floppy drive has written since this was last taken.
    pub moved: Option<Written>,
}

impl Replay {
    /// The machine, initially without a log.
    pub fn new(pc: Pc) -> Self {
        Self {
            pc,
            expected: DeviceLog::default(),
            written: Vec::new(),
            floppy_dma: FloppyDma::default(),
            moved: None,
        }
    }
}

impl Platform for Replay {
    fn port_read(&mut self, port: u16, size: u8) -> u32 {
        let ours = self.pc.port_read(port, size);
        self.moved = self.floppy_dma.port_read(port).or(self.moved);
        let mut data = [0; 4];
        let bytes = &mut data[..size.into()];
        if self.expected.next_read(port.into(), bytes) {
            u32::from_le_bytes(data)
        } else {
            ours
        }
    }

    fn port_write(&mut self, port: u16, size: u8, value: u32) {
        self.pc.port_write(port, size, value);
        if size == 1 {
            self.floppy_dma.port_write(port, value as u8);
        }
        let bytes = (u64::from(port)..).zip(value.to_le_bytes());
        let bytes = bytes.map(|(address, value)| DeviceByte { address, value });
        self.written.extend(bytes.take(size.into()));
    }

    fn memory_read(&mut self, address: PhysicalAddress, data: &mut [u8]) {
        self.pc.memory_read(address, data);
        self.expected.next_read(address.0, data);
    }

    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]) {
        self.pc.memory_write(address, data);
    }

    fn near(&mut self, _access: NearAccess) -> Near {
        Near::No
    }

    fn near_page(&self) -> Option<PhysicalAddress> {
        None
    }

    fn near_display(&self) -> Option<PhysicalAddress> {
        None
    }

    fn near_run(&mut self, _run: NearRun<'_>) -> Near {
        Near::No
    }

    fn msr_read(&mut self, index: u32) -> Option<u64> {
        self.pc.msr_read(index)
    }

    fn msr_write(&mut self, index: u32, value: u64) -> Option<bool> {
        self.pc.msr_write(index, value)
    }

    fn task_priority(&mut self) -> u8 {
        self.pc.task_priority()
    }

    fn set_task_priority(&mut self, class: u8) {
        self.pc.set_task_priority(class);
    }

    fn interrupt_pending(&mut self) -> bool {
        false
    }

    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        None
    }

    fn take_nmi(&mut self) -> bool {
        false
    }

    fn now(&self) -> GuestTime {
        self.pc.now()
    }

    fn next_deadline(&self) -> Option<GuestTime> {
        self.pc.next_deadline()
    }

    fn advance(&mut self) {
        self.pc.advance();
    }

    fn time_stamp(&self) -> u64 {
        self.pc.time_stamp()
    }

    fn host_time_stamp_offset(&self) -> u64 {
        self.pc.host_time_stamp_offset()
    }

    fn a20_enabled(&self) -> bool {
        self.pc.a20_enabled()
    }

    fn request_mark(&mut self, name: MarkName) {
        self.pc.request_mark(name);
    }

    fn take_stop_request(&mut self) -> Option<StopRequest> {
        self.pc.take_stop_request()
    }

    fn signal_fpu_error(&mut self) {
        self.pc.signal_fpu_error();
    }

    fn ignores_fpu_error(&self) -> bool {
        self.pc.ignores_fpu_error()
    }

    fn fpu_error_cleared(&mut self) {
        self.pc.fpu_error_cleared();
    }
}
