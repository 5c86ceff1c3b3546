//! A vCPU and the machine that it runs in, for tests that have no other owner of both.

use crate::user_code;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tollgate_memory::GuestMemory;
use tollgate_monitor::access_policy::{MemoryAccess, UserCode};
use tollgate_monitor::{Kick, Vcpu, VcpuStop};
use tollgate_platform::Platform;
use tollgate_x86::CpuState;

/// Sets a flag when it is dropped, even if the thread panics.
struct SetAtEnd<'a>(&'a AtomicBool);

impl Drop for SetAtEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// How vCPUs of tests access guest memory: `TOLLGATE_TEST_MEMORY_ACCESS=direct` in the environment
/// makes the same tests run with shadow windows.
///
/// # Panics
///
/// Panics if the variable has another value.
pub fn memory_access() -> MemoryAccess {
    match std::env::var("TOLLGATE_TEST_MEMORY_ACCESS").as_deref() {
        Err(_) | Ok("checked") => MemoryAccess::Checked,
        Ok("direct") => MemoryAccess::Direct,
        Ok(other) => panic!("TOLLGATE_TEST_MEMORY_ACCESS={other}: checked or direct"),
    }
}

/// A vCPU, which this dereferences to ([`Deref`]), in a machine `P`.
pub struct Computer<P> {
    vcpu: Vcpu,
    platform: P,
}

impl<P: Platform> Computer<P> {
    /// Makes a vCPU in this machine, like [`Vcpu::new`]. With `verify_code`, cached translations
    /// are checked too.
    ///
    /// # Errors
    ///
    /// Those of [`Vcpu::new`].
    pub fn new(
        state: CpuState,
        memory: GuestMemory,
        platform: P,
        code_cache_bytes: usize,
        verify_code: bool,
    ) -> io::Result<Self> {
        let mut vcpu = Vcpu::new(state, memory, code_cache_bytes, verify_code)?;
        vcpu.change_settings(|settings| {
            settings.memory_access = memory_access();
            settings.user_code = match user_code() {
                None | Some("translated") => UserCode::Translated,
                Some("native") => UserCode::Native,
                Some(_) => UserCode::Adaptive,
            };
        });
        vcpu.set_verify_shadow(verify_code);
        Ok(Self { vcpu, platform })
    }

    /// The machine around the vCPU.
    pub fn platform(&self) -> &P {
        &self.platform
    }

    /// The machine around the vCPU, to be changed.
    pub fn platform_mut(&mut self) -> &mut P {
        &mut self.platform
    }

    /// Calls [`Vcpu::run`] with this machine.
    pub fn run(&mut self) -> VcpuStop {
        self.vcpu.run(&mut self.platform)
    }

    /// Does the same as [`Computer::run`], while another thread calls `act` repeatedly. `act` must
    /// pause long enough between two kicks for the guest to make progress.
    pub fn run_beside(&mut self, mut act: impl FnMut(&Kick) + Send) -> VcpuStop {
        let kick = self.vcpu.kick();
        let over = &AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                while !over.load(Ordering::SeqCst) {
                    act(&kick);
                }
            });
            let _end = SetAtEnd(over);
            self.run()
        })
    }

    /// Does the same as [`Computer::run`], while another thread kicks the vCPU, rarely enough that
    /// the guest makes progress.
    pub fn run_kicked(&mut self) -> VcpuStop {
        self.run_beside(|kick| {
            kick.kick();
            let next = Instant::now() + Duration::from_micros(30);
            while Instant::now() < next {
                std::hint::spin_loop();
            }
        })
    }

    /// Calls [`Vcpu::step_one`] with this machine.
    ///
    /// # Errors
    ///
    /// Those of [`Vcpu::step_one`].
    pub fn step_one(&mut self) -> Result<(), VcpuStop> {
        self.vcpu.step_one(&mut self.platform)
    }

    /// Calls [`Vcpu::deliver_interrupt`] with this machine.
    ///
    /// # Errors
    ///
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
