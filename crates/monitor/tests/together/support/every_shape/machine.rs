//! A machine that ends at port F4h, stops when it is interrupted, and otherwise always returns the
//! same values.

use super::Guest;
use tollgate_memory::GuestMemory;
use tollgate_monitor::access_policy::MemoryAccess;
use tollgate_platform::{BareMachine, Near, NearAccess, StopRequest};
use tollgate_test_support::Computer;
use tollgate_x86::PhysicalAddress;

/// Size of the code cache in bytes.
const CODE_CACHE: usize = 1 << 20;

#[derive(Default)]
pub struct Machine {
    /// Whether the guest has reached its end.
    pub ended: bool,
    /// Whether a request has reached the vCPU.
    pub interrupted: bool,
    /// The number of interrupts that wait, with vector 20h.
    pub interrupts: u32,
    /// Whether a request raises such an interrupt instead of stopping the vCPU.
    pub raises: bool,
    /// Whether the vCPU is beginning to run, in which case it asks the machine for events once.
    begins: bool,
    /// The accesses to devices, in order. Each access counts once.
    pub accesses: Vec<(u64, Vec<u8>)>,
}

impl BareMachine for Machine {
    fn port_read(&mut self, port: u16, _size: u8) -> u32 {
        self.accesses.push((port.into(), Vec::new()));
        0xff
    }
    fn port_write(&mut self, port: u16, _size: u8, value: u32) {
        self.ended |= port == 0xf4;
        self.accesses
            .push((port.into(), value.to_le_bytes().to_vec()));
    }
    fn memory_read(&mut self, address: PhysicalAddress, data: &mut [u8]) {
        self.accesses.push((address.0, Vec::new()));
        data.fill(0x5a);
    }
    fn memory_write(&mut self, address: PhysicalAddress, data: &[u8]) {
        self.accesses.push((address.0, data.to_vec()));
    }
    /// All ports are near except the one that ends the guest.
    fn near(&mut self, access: NearAccess) -> Near {
        match access {
            NearAccess::PortRead { port, size } => Near::Done(self.port_read(port, size).into()),
            NearAccess::PortWrite { port, size, value } if port != 0xf4 => {
                self.port_write(port, size, value);
                Near::Done(0)
            }
            _ => Near::No,
        }
    }
    fn interrupt_pending(&mut self) -> bool {
        self.interrupts != 0
    }
    fn acknowledge_interrupt(&mut self) -> Option<u8> {
        self.interrupts = self.interrupts.checked_sub(1)?;
        Some(0x20)
    }
    fn advance(&mut self) {
        let is_request = !std::mem::take(&mut self.begins);
        if self.raises {
            self.interrupts |= u32::from(is_request);
        } else {
            self.interrupted |= is_request;
        }
    }
    fn take_stop_request(&mut self) -> Option<StopRequest> {
        if self.ended {
            return Some(StopRequest::DebugExit(0));
        }
        self.interrupted.then_some(StopRequest::Quit)
    }
}

impl Machine {
    /// Prepares the machine for a run. Must be called before the vCPU runs.
    pub fn begin(&mut self) {
        self.begins = true;
        self.interrupted = false;
    }
}

/// A vCPU at the start of a guest. All its emitted code is verified.
pub fn vcpu(guest: &Guest) -> Computer<Machine> {
    let mut memory = GuestMemory::new(1 << 20).unwrap();
    guest.fill(&mut memory);
    let state = guest.state.clone();
    let mut vcpu = Computer::new(state, memory, Machine::default(), CODE_CACHE, true).unwrap();
    if guest.is_direct {
        vcpu.change_settings(|settings| settings.memory_access = MemoryAccess::Direct);
    }
    vcpu.set_register_map(guest.map);
    vcpu.change_settings(|settings| settings.virtual_interrupts = guest.virtual_interrupts);
    vcpu
}
