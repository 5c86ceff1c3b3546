//! A vCPU and the machine that it runs in, for tests that build no other owner of both.

use std::io;
use std::ops::{Deref, DerefMut};
use tollgate_memory::GuestMemory;
use tollgate_monitor::{Vcpu, VcpuStop};
use tollgate_platform::Platform;
use tollgate_x86::CpuState;

/// A vCPU, which this stands for ([`Deref`]), in a machine `P`.
pub struct Computer<P> {
    vcpu: Vcpu,
    platform: P,
}

impl<P: Platform> Computer<P> {
    /// As [`Vcpu::new`], in this machine.
    ///
    /// # Errors
    /// Those of [`Vcpu::new`].
    pub fn new(
        state: CpuState,
        memory: GuestMemory,
        platform: P,
        code_cache_bytes: usize,
        verify_code: bool,
    ) -> io::Result<Self> {
        let vcpu = Vcpu::new(state, memory, code_cache_bytes, verify_code)?;
        Ok(Self { vcpu, platform })
    }

    /// The machine.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// The machine.
    pub fn platform_mut(&mut self) -> &mut P {
        &mut self.platform
    }

    /// [`Vcpu::run`] in this machine.
    pub fn run(&mut self) -> VcpuStop {
        self.vcpu.run(&mut self.platform)
    }

    /// [`Vcpu::step_one`] in this machine.
    ///
    /// # Errors
    /// Those of [`Vcpu::step_one`].
    pub fn step_one(&mut self) -> Result<(), VcpuStop> {
        self.vcpu.step_one(&mut self.platform)
    }

    /// [`Vcpu::deliver_interrupt`] in this machine.
    ///
    /// # Errors
    /// Those of [`Vcpu::deliver_interrupt`].
    pub fn deliver_interrupt(&mut self, vector: u8) -> Result<(), VcpuStop> {
        self.vcpu.deliver_interrupt(&mut self.platform, vector)
    }
}

impl<P> Deref for Computer<P> {
    type Target = Vcpu;

    fn deref(&self) -> &Vcpu {
        &self.vcpu
    }
}

impl<P> DerefMut for Computer<P> {
    fn deref_mut(&mut self) -> &mut Vcpu {
        &mut self.vcpu
    }
}
