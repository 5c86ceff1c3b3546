//! The local APIC's model-specific registers. RDMSR and CPUID report them; the machine's local APIC
//! holds their values.

/// IA32_APIC_BASE (SDM volume 3, 11.4.4).
pub const APIC_BASE: u32 = 0x1b;
/// IA32_APIC_BASE: this is the bootstrap processor.
pub const APIC_BASE_BOOTSTRAP: u64 = 1 << 8;
/// IA32_APIC_BASE: x2APIC mode (SDM volume 3, 11.12.1).
pub const APIC_BASE_X2APIC: u64 = 1 << 10;
/// IA32_APIC_BASE: the APIC is globally enabled.
pub const APIC_BASE_ENABLE: u64 = 1 << 11;
/// Physical address of the APIC's page after reset (SDM volume 3, 11.4.1).
pub const APIC_DEFAULT_ADDRESS: u64 = 0xfee0_0000;

/// First of the MSRs that are the APIC's registers in x2APIC mode (SDM volume 3, table 11-6).
pub const X2APIC_FIRST: u32 = 0x800;
/// Last MSR of the range that is reserved for the APIC's registers.
pub const X2APIC_LAST: u32 = 0x8ff;

/// IA32_TSC_DEADLINE (SDM volume 3, 11.5.4.1).
pub const TSC_DEADLINE: u32 = 0x6e0;
