//! What a hypervisor reports to its guests in addition to what a processor does: the MSRs and CPUID
//! bits of KVM's interface (Linux, Documentation/virt/kvm/x86/cpuid.rst and msr.rst).

use serde::{Deserialize, Serialize};

/// Which paravirtual interface a guest finds in CPUID.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Paravirtual {
    /// Only Tollgate's own interface, which no operating system looks for.
    #[default]
    None,
    /// KVM's interface. Only its clock, and its hint that ports need no delays, are implemented.
    Kvm,
}

/// Constants of KVM's interface.
pub mod kvm {
    /// The value of CPUID leaf 4000_0000h in EBX, ECX and EDX.
    pub const SIGNATURE: &[u8; 12] = b"KVMKVMKVM\0\0\0";
    /// Leaf 4000_0001h, EAX: accesses to ports need no delay.
    pub const NO_IO_DELAY: u32 = 1 << 1;
    /// Leaf 4000_0001h, EAX: the MSRs [`WALL_CLOCK`] and [`SYSTEM_TIME`] exist.
    pub const CLOCK: u32 = 1 << 3;
    /// Leaf 4000_0001h, EAX: the clock's flag [`TSC_IS_STABLE`] can be relied on.
    pub const CLOCK_IS_STABLE: u32 = 1 << 24;

    /// MSR: the address where the monitor writes the wall-clock time of the machine's start.
    pub const WALL_CLOCK: u32 = 0x4b56_4d00;
    /// MSR: the address where the monitor writes the clock's parameters; bit 0 enables this.
    pub const SYSTEM_TIME: u32 = 0x4b56_4d01;
    /// Bit of [`SYSTEM_TIME`]: the monitor keeps the parameters up to date.
    pub const IS_ENABLED: u64 = 1;
    /// Flag in the clock's parameters: all processors compute the same time from them.
    pub const TSC_IS_STABLE: u8 = 1;

    /// Result of a hypercall that does not exist: -KVM_ENOSYS.
    pub const NO_SUCH_CALL: i64 = -1000;
    /// Result of every hypercall that a user program makes: -KVM_EPERM.
    pub const NOT_PERMITTED: i64 = -1;
}
