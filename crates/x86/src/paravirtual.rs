//! What a hypervisor says to its guests beside what a processor does, and the MSRs and CPUID
//! bits of KVM's interface (Linux, Documentation/virt/kvm/x86/cpuid.rst and msr.rst).

use serde::{Deserialize, Serialize};

/// Which paravirtual interface a guest finds in CPUID.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Paravirtual {
    /// Tollgate's own alone, which no system looks for.
    #[default]
    None,
    /// KVM's, of which the clock and the hint about ports are there.
    Kvm,
}

/// KVM's interface.
pub mod kvm {
    /// What CPUID leaf 4000_0000h answers in EBX, ECX, EDX.
    pub const SIGNATURE: &[u8; 12] = b"KVMKVMKVM\0\0\0";
    /// Leaf 4000_0001h, EAX: accesses to ports need no delay.
    pub const NO_IO_DELAY: u32 = 1 << 1;
    /// Leaf 4000_0001h, EAX: [`WALL_CLOCK`] and [`SYSTEM_TIME`] are there.
    pub const CLOCK: u32 = 1 << 3;
    /// Leaf 4000_0001h, EAX: the clock's [`TSC_IS_STABLE`] can be relied on.
    pub const CLOCK_IS_STABLE: u32 = 1 << 24;

    /// MSR: where the guest wants to find the wall-clock time of the machine's start.
    pub const WALL_CLOCK: u32 = 0x4b56_4d00;
    /// MSR: where the guest wants to find the clock's parameters; bit 0: it wants them.
    pub const SYSTEM_TIME: u32 = 0x4b56_4d01;
    /// Bit of [`SYSTEM_TIME`].
    pub const IS_ENABLED: u64 = 1;
    /// Flag in the clock's parameters: all processors compute the same time from them.
    pub const TSC_IS_STABLE: u8 = 1;

    /// Answer of a hypercall that does not exist: -KVM_ENOSYS.
    pub const NO_SUCH_CALL: i64 = -1000;
    /// Answer of every hypercall to a program: -KVM_EPERM.
    pub const NOT_PERMITTED: i64 = -1;
}
