//! CPUID: the answers that describe this virtual machine's processor (SDM volume 2, "CPUID"; AMD's
//! manual volume 3, appendix E).
//!
//! A [`CpuidPolicy`] is the host's own CPUID, reduced to what the monitor can execute. The
//! translator copies an instruction only if [`CpuidPolicy::offers`] permits it: the features that
//! the guest *sees* and those that it can *use* are one list. Every machine has the policy of its
//! CPU model, which for all models except `host` is a fixed list of features. Some bits depend on
//! the guest's own registers (OSXSAVE) and on the machine (APIC, x2APIC, TSC deadline); [`execute`]
//! adds those.

mod features;
mod models;

pub use models::ModelError;

use crate::Outcome;
use features::{
    FeatureWords, arch_capabilities, basic_ecx, basic_edx, extended, structured_1_eax,
    structured_ebx, structured_ecx, structured_edx, xsave_eax,
};
use iced_x86::CpuidFeature;
use std::sync::OnceLock;
use tollgate_platform::Environment;
use tollgate_x86::address::LINEAR_ADDRESS_BITS;
use tollgate_x86::local_apic_msrs::{APIC_BASE, APIC_BASE_ENABLE, TSC_DEADLINE};
use tollgate_x86::paging::PHYSICAL_ADDRESS_BITS;
use tollgate_x86::paravirtual::kvm;
use tollgate_x86::xsave::{EXTENDED, EXTENDED_REGION, component};
use tollgate_x86::{AddedFeatures, CpuModel, CpuState, Cr4, Exception, Gpr, Paravirtual};

/// Bit of leaf 6 EAX: the local APIC timer never stops.
const ARAT: u32 = 1 << 2;
/// Bit of leaf 8000_0007h EDX: the time-stamp counter runs at a constant rate.
const INVARIANT_TSC: u32 = 1 << 8;

/// State components 0 (x87) and 1 (SSE), as XCR0 numbers them.
const XCR0_X87_SSE: u64 = component::X87 | component::SSE;

/// Size in bytes of PKRU's component in the XSAVE area.
pub const PKRU_BYTES: u32 = 8;

/// First leaf of the range that hypervisors use.
const HYPERVISOR_LEAF: u32 = 0x4000_0000;
/// The leaf with the hypervisor's features (docs/reference/hypercalls.md).
const HYPERVISOR_FEATURES_LEAF: u32 = 0x4000_0001;
/// Bit of [`HYPERVISOR_FEATURES_LEAF`], EAX: VMCALL and VMMCALL are hypercalls.
const HYPERVISOR_HAS_CALLS: u32 = 1 << 0;
/// Another bit of it: a hypercall invalidates the translations of a range of pages.
const HYPERVISOR_INVALIDATES_RANGES: u32 = 1 << 1;
/// Another bit of it: a hypercall sets a mark in the statistics.
const HYPERVISOR_SETS_MARKS: u32 = 1 << 2;
/// The leaf with the frequencies of the time-stamp counter and the APIC bus, in kHz.
const HYPERVISOR_TIMING_LEAF: u32 = 0x4000_0010;
/// If the guest is shown another interface first, Tollgate's leaves are this much higher.
const BEHIND_ANOTHER_INTERFACE: u32 = 0x100;
/// The value of leaf 4000_0000h in EBX, ECX and EDX.
pub const HYPERVISOR_SIGNATURE: &[u8; 12] = b"Tollgate\0\0\0\0";
/// Frequency of the local APIC's timer without a divider, in kHz: one tick for each nanosecond of
/// guest time. The machine's APIC must use the same value.
pub const APIC_BUS_KHZ: u32 = 1_000_000;

const LEAF_AMD_CACHES: u32 = 0x8000_001d;
const LEAF_AMD_TOPOLOGY: u32 = 0x8000_001e;
const LEAF_AMD_FEATURES_2: u32 = 0x8000_0021;
/// Maximum number of cache subleaves that are kept; real processors describe four.
const CACHE_SUBLEAVES: usize = 8;

/// The maker of the host's processor; it decides what unknown leaves contain and which MSRs exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Vendor {
    /// "GenuineIntel".
    Intel,
    /// "AuthenticAMD" or "HygonGenuine".
    Amd,
    /// Any other maker.
    Other,
}

/// The values of CPUID's leaves, and which instructions the guest may run. Plain data, derived only
/// from the host and the CPU model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CpuidPolicy {
    vendor: Vendor,
    /// Leaf 0: EBX, EDX and ECX.
    vendor_name: [u32; 3],
    /// Leaf 1 EAX: family, model, stepping.
    signature: u32,
    /// CLFLUSH line size, in units of 8 bytes.
    line_units: u32,
    features: FeatureWords,
    power_edx: u32,
    /// Leaf 8000_0021h, EAX.
    amd_features_2: u32,
    arat: u32,
    /// Leaf 0Dh: the offsets in the standard format of the components in [`EXTENDED`].
    component_offsets: [u32; EXTENDED.len()],
    /// Leaf 0Dh: the offset in the standard format of PKRU.
    keys_offset: u32,
    /// Leaf 2 (Intel only).
    cache_descriptors: [u32; 4],
    /// Leaf 4 (Intel) or 8000_001Dh (AMD), as caches that are not shared between processors.
    caches: [[u32; 4]; CACHE_SUBLEAVES],
    brand: [[u32; 4]; 3],
    /// Leaves 8000_0005h and 8000_0006h.
    amd_caches: [[u32; 4]; 2],
    /// Leaf 8000_001Ah: hints for the use of vector registers.
    performance_hints: u32,
}

/// Executes CPUID on the host.
fn host_cpuid(leaf: u32, subleaf: u32) -> [u32; 4] {
    let result = core::arch::x86_64::__cpuid_count(leaf, subleaf);
    [result.eax, result.ebx, result.ecx, result.edx]
}

/// XCR0 of the host, or 0 if its operating system does not use XSAVE.
fn host_xcr0() -> u64 {
    if host_cpuid(1, 0)[2] & basic_ecx::OSXSAVE == 0 {
        return 0;
    }
    let (low, high): (u32, u32);
    // SAFETY: OSXSAVE is set, so XGETBV executes at any privilege; XCR0 exists.
    unsafe {
        core::arch::asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") high,
            options(nomem, nostack, preserves_flags));
    }
    u64::from(low) | u64::from(high) << 32
}

/// The offsets of the components in XSAVE's compacted format if all components are present, which
/// is how [`tollgate_x86::xsave`] stores them.
const COMPACTED_OFFSETS: [u32; EXTENDED.len()] = {
    let [avx, opmask, zmm_high, zmm_16_to_31] = EXTENDED;
    [
        avx.start as u32,
        opmask.start as u32,
        zmm_high.start as u32,
        zmm_16_to_31.start as u32,
    ]
};

/// The offsets of the components in the standard format, from leaf 0Dh. `None` if a component
/// differs from all known processors, where each has a fixed size and no further alignment when
/// compacted.
fn component_offsets(leaf: &impl Fn(u32, u32) -> [u32; 4]) -> Option<[u32; EXTENDED.len()]> {
    let mut offsets = [0; EXTENDED.len()];
    for (offset, part) in offsets.iter_mut().zip(EXTENDED) {
        let [size, start, flags, _] = leaf(0xd, part.bit.trailing_zeros());
        if size as usize != part.size || flags & 3 != 0 {
            return None;
        }
        *offset = start;
    }
    Some(offsets)
}

/// The offset of PKRU in the standard format; after all vector registers if the host does not
/// report it.
fn keys_offset(leaf: &impl Fn(u32, u32) -> [u32; 4]) -> u32 {
    const BEHIND_ALL_OTHERS: u32 = 2688;
    match leaf(0xd, component::PKRU.trailing_zeros()) {
        [PKRU_BYTES, offset, 0, _] => offset,
        _ => BEHIND_ALL_OTHERS,
    }
}

/// A leaf of the hypervisor's range. The interface that the guest looks for comes first; if it is
/// not Tollgate's, Tollgate's own leaves are 100h higher.
fn hypervisor_leaf(paravirtual: Paravirtual, leaf: u32) -> [u32; 4] {
    let signature = |last: u32, text: &[u8; 12]| {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&text[at..at + 4]);
            u32::from_le_bytes(word)
        };
        [last, word(0), word(4), word(8)]
    };
    let base = match paravirtual {
        Paravirtual::None => 0,
        Paravirtual::Kvm => BEHIND_ANOTHER_INTERFACE,
    };
    match leaf.wrapping_sub(base) {
        HYPERVISOR_LEAF => signature(HYPERVISOR_TIMING_LEAF + base, HYPERVISOR_SIGNATURE),
        HYPERVISOR_TIMING_LEAF => [host_tsc_khz(), APIC_BUS_KHZ, 0, 0],
        HYPERVISOR_FEATURES_LEAF => [
            HYPERVISOR_HAS_CALLS | HYPERVISOR_INVALIDATES_RANGES | HYPERVISOR_SETS_MARKS,
            0,
            0,
            0,
        ],
        _ if base == 0 => [0; 4],
        _ => match leaf {
            HYPERVISOR_LEAF => signature(HYPERVISOR_FEATURES_LEAF, kvm::SIGNATURE),
            HYPERVISOR_FEATURES_LEAF => {
                let offered = kvm::CLOCK | kvm::CLOCK_IS_STABLE | kvm::NO_IO_DELAY;
                [offered, 0, 0, 0]
            }
            _ => [0; 4],
        },
    }
}

impl CpuidPolicy {
    /// The policy for guests with the processor model `host` on this host.
    pub fn of_host() -> Self {
        Self::derive(host_cpuid, host_xcr0())
    }

    /// The policy for guests of a host whose CPUID returns `host` and that has this XCR0.
    pub fn derive(host: impl Fn(u32, u32) -> [u32; 4], host_xcr0: u64) -> Self {
        let [host_max_basic, name_b, name_c, name_d] = host(0, 0);
        let vendor = match (name_b, name_d, name_c) {
            (0x756e_6547, 0x4965_6e69, 0x6c65_746e) => Vendor::Intel,
            (0x6874_7541, 0x6974_6e65, 0x444d_4163) | (0x6f67_7948, 0x6e65_476e, 0x656e_6975) => {
                Vendor::Amd
            }
            _ => Vendor::Other,
        };
        let basic = |leaf: u32, subleaf: u32| {
            if leaf <= host_max_basic {
                host(leaf, subleaf)
            } else {
                [0; 4]
            }
        };
        let host_max_extended = host(0x8000_0000, 0)[0];
        let extended = |leaf: u32, subleaf: u32| {
            if host_max_extended >= 0x8000_0000 && leaf <= host_max_extended {
                host(leaf, subleaf)
            } else {
                [0; 4]
            }
        };
        let leaf1 = basic(1, 0);
        let xsave = leaf1[2] & basic_ecx::XSAVE != 0 && host_xcr0 & XCR0_X87_SSE == XCR0_X87_SSE;
        let avx = xsave && host_xcr0 & component::AVX != 0 && leaf1[2] & basic_ecx::AVX != 0;
        let mut basic_ecx_bits = leaf1[2] & basic_ecx::HANDLED;
        let [
            last_structured,
            mut structured,
            mut structured_ecx_bits,
            mut structured_edx_bits,
        ] = basic(7, 0);
        structured_edx_bits &= structured_edx::HANDLED;
        structured &= structured_ebx::HANDLED;
        structured_ecx_bits &= structured_ecx::HANDLED;
        let mut structured_1 = match last_structured {
            0 => 0,
            _ => basic(7, 1)[0] & structured_1_eax::HANDLED,
        };
        if !xsave {
            basic_ecx_bits &= !(basic_ecx::XSAVE);
        }
        if !avx {
            basic_ecx_bits &= !(basic_ecx::AVX | basic_ecx::NEEDS_AVX);
            structured &= !structured_ebx::NEEDS_AVX;
            structured_ecx_bits &= !structured_ecx::NEEDS_AVX;
            structured_1 &= !structured_1_eax::NEEDS_AVX;
        }
        let has_evex_state = avx
            && structured & structured_ebx::AVX512F != 0
            && host_xcr0 & component::AVX_512 == component::AVX_512
            && basic(0xd, 1)[0] & xsave_eax::XSAVEC != 0;
        let component_offsets = match has_evex_state {
            true => component_offsets(&basic),
            false => None,
        };
        if component_offsets.is_none() {
            structured &= !structured_ebx::NEEDS_AVX_512;
            structured_ecx_bits &= !structured_ecx::NEEDS_AVX_512;
            structured_edx_bits = 0;
            structured_1 &= !structured_1_eax::NEEDS_AVX_512;
        }
        let leaf_extended = extended(0x8000_0001, 0);
        let emulated = basic_edx::VME
            | basic_edx::DE
            | basic_edx::APIC
            | basic_edx::PAT
            | basic_edx::SEP
            | basic_edx::MTRR
            | basic_edx::MCE
            | basic_edx::MCA;
        let basic_edx_bits = (leaf1[3] | emulated) & basic_edx::HANDLED;
        let mut extended_ecx =
            leaf_extended[2] & (extended::ECX_LAHF | extended::ECX_LZCNT | extended::ECX_PREFETCHW);
        // These features are implemented here, by the page walker and by emulated instructions, so
        // they do not depend on the host.
        let mut extended_edx = extended::EDX_EMULATED;
        if vendor == Vendor::Amd {
            extended_ecx |= leaf_extended[2] & (extended::ECX_TOPOLOGY | extended::ECX_SSE4A);
            extended_edx |= leaf_extended[3] & extended::EDX_MMXEXT;
        }
        let cache_leaf = |subleaf: usize| {
            let mut leaf = if vendor == Vendor::Amd {
                extended(LEAF_AMD_CACHES, subleaf as u32)
            } else {
                basic(4, subleaf as u32)
            };
            // Clears "shared by" and "cores in the package", which are stored minus one.
            leaf[0] &= 0x3fff;
            leaf
        };
        Self {
            vendor,
            vendor_name: [name_b, name_d, name_c],
            signature: leaf1[0],
            line_units: leaf1[1] >> 8 & 0xff,
            features: FeatureWords {
                basic_ecx: basic_ecx_bits | basic_ecx::EMULATED,
                basic_edx: basic_edx_bits,
                structured_ebx: structured | structured_ebx::EMULATED,
                structured_ecx: structured_ecx_bits | structured_ecx::EMULATED,
                structured_edx: structured_edx_bits,
                structured_1_eax: structured_1,
                xsave_eax: if xsave { xsave_eax::EMULATED } else { 0 },
                extended_ecx,
                extended_edx,
            },
            power_edx: extended(0x8000_0007, 0)[3] & INVARIANT_TSC,
            amd_features_2: extended(LEAF_AMD_FEATURES_2, 0)[0] & extended::LFENCE_SERIALIZES,
            arat: ARAT,
            component_offsets: component_offsets.unwrap_or(COMPACTED_OFFSETS),
            keys_offset: keys_offset(&basic),
            cache_descriptors: basic(2, 0),
            caches: std::array::from_fn(cache_leaf),
            brand: std::array::from_fn(|part| extended(0x8000_0002 + part as u32, 0)),
            amd_caches: [extended(0x8000_0005, 0), extended(0x8000_0006, 0)],
            performance_hints: extended(0x8000_001a, 0)[0],
        }
    }

    /// The processor's maker.
    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// The processor's family, from the signature of leaf 1: bits 8 to 11; if these are all set,
    /// bits 20 to 27 are added (APM volume 3, CPUID Fn0000_0001_EAX; SDM volume 2, CPUID).
    pub fn family(&self) -> u32 {
        match self.signature >> 8 & 15 {
            15 => 15 + (self.signature >> 20 & 255),
            base => base,
        }
    }

    /// Whether XSAVE is offered.
    fn has_xsave(&self) -> bool {
        self.features.basic_ecx & basic_ecx::XSAVE != 0
    }

    /// Whether XGETBV with ECX = 1 returns the components in use.
    pub fn has_in_use_register(&self) -> bool {
        self.features.xsave_eax & xsave_eax::XGETBV_1 != 0
    }

    /// The offset in the standard format of the XSAVE area of the component with this index in
    /// [`EXTENDED`].
    ///
    /// # Panics
    ///
    /// Panics if the index is too large.
    pub fn component_offset(&self, index: usize) -> usize {
        self.component_offsets[index] as usize
    }

    /// The offset of PKRU in the standard format of the XSAVE area.
    pub fn keys_offset(&self) -> usize {
        self.keys_offset as usize
    }

    /// The policy with features added to the model's.
    fn with(mut self, added: AddedFeatures) -> Self {
        if added.contains(AddedFeatures::SMAP) {
            self.features.structured_ebx |= structured_ebx::SMAP;
        }
        if added.contains(AddedFeatures::PKU) {
            self.features.structured_ecx |= structured_ecx::PKU;
        }
        if added.contains(AddedFeatures::PKS) {
            self.features.structured_ecx |= structured_ecx::PKS;
        }
        self
    }

    fn has_keys(&self) -> bool {
        self.features.structured_ecx & structured_ecx::PKU != 0
    }

    /// Whether supervisor pages may have protection keys, so that IA32_PKRS exists.
    pub(crate) fn has_supervisor_keys(&self) -> bool {
        self.features.structured_ecx & structured_ecx::PKS != 0
    }

    /// The number of the last basic leaf.
    fn max_basic(&self) -> u32 {
        if self.has_xsave() { 0xd } else { 0xb }
    }

    /// The number of the last extended leaf. AMD's last one describes what null selectors do.
    fn max_extended(&self) -> u32 {
        if self.vendor == Vendor::Amd {
            LEAF_AMD_FEATURES_2
        } else {
            0x8000_0008
        }
    }

    /// XCR0 bits that XSETBV accepts; 0 without XSAVE.
    pub fn xcr0_mask(&self) -> u64 {
        let keys = match self.has_xsave() && self.has_keys() {
            true => component::PKRU,
            false => 0,
        };
        self.vector_components() | keys
    }

    /// The bits of XCR0 that stand for vector registers.
    fn vector_components(&self) -> u64 {
        if !self.has_xsave() {
            0
        } else if self.features.basic_ecx & basic_ecx::AVX == 0 {
            XCR0_X87_SSE
        } else if self.features.structured_ebx & structured_ebx::AVX512F == 0 {
            XCR0_X87_SSE | component::AVX
        } else {
            component::ALL
        }
    }

    /// The value of IA32_ARCH_CAPABILITIES; `None` if there is no such register (AMD).
    ///
    /// It denies those speculative leaks whose mitigations in a guest would change nothing here but
    /// cost exits: a guest never runs on its own page tables, its VERW is emulated, and its
    /// branches are not the host's. It is no promise that such leaks do not exist: the host must
    /// defend itself against them.
    pub fn arch_capabilities(&self) -> Option<u64> {
        (self.vendor != Vendor::Amd).then_some(arch_capabilities::OFFERED)
    }

    /// CR4 bits that the guest may set.
    pub fn cr4_mask(&self) -> Cr4 {
        let mut mask = Cr4::TSD | Cr4::PCE;
        mask.set(
            Cr4::VME | Cr4::PVI,
            self.features.basic_edx & basic_edx::VME != 0,
        );
        mask.set(Cr4::MCE, self.features.basic_edx & basic_edx::MCE != 0);
        mask.set(Cr4::DE, self.features.basic_edx & basic_edx::DE != 0);
        mask.set(Cr4::PSE, self.features.basic_edx & basic_edx::PSE != 0);
        mask.set(Cr4::PAE, self.features.basic_edx & basic_edx::PAE != 0);
        mask.set(Cr4::PGE, self.features.basic_edx & basic_edx::PGE != 0);
        mask.set(Cr4::OSFXSR, self.features.basic_edx & basic_edx::FXSR != 0);
        mask.set(
            Cr4::OSXMMEXCPT,
            self.features.basic_edx & basic_edx::SSE != 0,
        );
        mask.set(Cr4::OSXSAVE, self.has_xsave());
        mask.set(Cr4::PCIDE, self.features.basic_ecx & basic_ecx::PCID != 0);
        mask.set(
            Cr4::FSGSBASE,
            self.features.structured_ebx & structured_ebx::FSGSBASE != 0,
        );
        mask.set(
            Cr4::SMEP,
            self.features.structured_ebx & structured_ebx::SMEP != 0,
        );
        mask.set(
            Cr4::SMAP,
            self.features.structured_ebx & structured_ebx::SMAP != 0,
        );
        mask.set(Cr4::PKE, self.has_keys());
        mask.set(Cr4::PKS, self.has_supervisor_keys());
        mask.set(
            Cr4::UMIP,
            self.features.structured_ecx & structured_ecx::UMIP != 0,
        );
        mask
    }

    /// EAX, EBX, ECX and EDX of a leaf. The bits for APIC and TSC deadline are set as if the
    /// machine had them; OSXSAVE and the size of the XSAVE area depend on `state`.
    pub fn leaf(&self, state: &CpuState, leaf: u32, subleaf: u32) -> [u32; 4] {
        match leaf {
            0x4000_0000..=0x4000_ffff => hypervisor_leaf(state.paravirtual, leaf),
            0x8000_0000..=0x8000_ffff if leaf <= self.max_extended() => {
                self.extended_leaf(state, leaf, subleaf)
            }
            0..=0xff if leaf <= self.max_basic() => self.basic_leaf(state, leaf, subleaf),
            // Beyond the last leaf, AMD returns zeros and Intel the last basic leaf.
            _ if self.vendor == Vendor::Intel => self.basic_leaf(state, self.max_basic(), subleaf),
            _ => [0; 4],
        }
    }

    fn basic_leaf(&self, state: &CpuState, leaf: u32, subleaf: u32) -> [u32; 4] {
        match leaf {
            0 => {
                let [b, d, c] = self.vendor_name;
                [self.max_basic(), b, c, d]
            }
            1 => {
                let mut ecx = self.features.basic_ecx;
                if state.cr4().contains(Cr4::OSXSAVE) {
                    ecx |= basic_ecx::OSXSAVE;
                }
                // One logical processor with APIC identifier 0.
                let ebx = self.line_units << 8 | 1 << 16;
                [self.signature, ebx, ecx, self.features.basic_edx]
            }
            2 => self.cache_descriptors,
            4 if self.vendor != Vendor::Amd => self.cache(subleaf),
            6 => [self.arat, 0, 0, 0],
            7 if subleaf == 0 => {
                let words = self.features;
                let mut edx = words.structured_edx;
                if self.arch_capabilities().is_some() {
                    edx |= structured_edx::ARCH_CAPABILITIES;
                }
                let mut ecx = words.structured_ecx;
                if state.cr4().contains(Cr4::PKE) {
                    ecx |= structured_ecx::OSPKE;
                }
                let last = u32::from(words.structured_1_eax != 0);
                [last, words.structured_ebx, ecx, edx]
            }
            7 if subleaf == 1 => [self.features.structured_1_eax, 0, 0, 0],
            0xb => match subleaf {
                // One thread in the core, one core in the package, x2APIC identifier 0.
                0 => [0, 1, 1 << 8, 0],
                1 => [0, 1, 2 << 8 | 1, 0],
                _ => [0, 0, subleaf & 0xff, 0],
            },
            0xd => self.xsave_leaf(state, subleaf),
            _ => [0; 4],
        }
    }

    fn cache(&self, subleaf: u32) -> [u32; 4] {
        self.caches
            .get(subleaf as usize)
            .copied()
            .unwrap_or_default()
    }

    fn xsave_leaf(&self, state: &CpuState, subleaf: u32) -> [u32; 4] {
        let mask = self.xcr0_mask();
        let parts: Vec<(u64, u32, u32)> = EXTENDED
            .iter()
            .zip(self.component_offsets)
            .map(|(part, start)| (part.bit, start, part.size as u32))
            .chain([(component::PKRU, self.keys_offset, PKRU_BYTES)])
            .collect();
        let extended = |enabled: u64| {
            let parts = parts.iter().copied();
            parts.filter(move |&(bit, ..)| enabled & bit != 0)
        };
        let size = |enabled: u64| {
            let ends = extended(enabled).map(|(_, start, size)| start + size);
            ends.max().unwrap_or(EXTENDED_REGION as u32)
        };
        match subleaf {
            0 => [mask as u32, size(state.xcr0), size(mask), 0],
            1 => {
                let compacted: u32 = extended(state.xcr0).map(|(.., size)| size).sum();
                let compacts = self.features.xsave_eax & xsave_eax::XSAVEC != 0;
                let size = match compacts {
                    true => EXTENDED_REGION as u32 + compacted,
                    false => 0,
                };
                [self.features.xsave_eax, size, 0, 0]
            }
            2..63 => extended(mask)
                .find(|&(bit, ..)| bit == 1 << subleaf)
                .map_or([0; 4], |(_, start, size)| [size, start, 0, 0]),
            _ => [0; 4],
        }
    }

    fn extended_leaf(&self, state: &CpuState, leaf: u32, subleaf: u32) -> [u32; 4] {
        let amd = self.vendor == Vendor::Amd;
        match leaf {
            0x8000_0000 => {
                let [b, d, c] = if amd { self.vendor_name } else { [0; 3] };
                [self.max_extended(), b, c, d]
            }
            0x8000_0001 => {
                let signature = if amd { self.signature } else { 0 };
                let mut edx = self.features.extended_edx;
                if amd {
                    edx |= self.features.basic_edx & basic_edx::REPEATED_BY_AMD;
                } else if !state.is_64_bit() {
                    // Intel's processors have SYSCALL only in 64-bit mode, and report it only
                    // there.
                    edx &= !extended::EDX_SYSCALL;
                }
                [signature, 0, self.features.extended_ecx, edx]
            }
            0x8000_0002..=0x8000_0004 => self.brand[(leaf - 0x8000_0002) as usize],
            0x8000_0005 if amd => self.amd_caches[0],
            0x8000_0006 => self.amd_caches[1],
            0x8000_0007 => [0, 0, 0, self.power_edx],
            // There is one core.
            0x8000_0008 => {
                let sizes = PHYSICAL_ADDRESS_BITS | LINEAR_ADDRESS_BITS << 8;
                let amd_features = extended::BTC_NO | extended::ERROR_POINTERS_RESTORED;
                [sizes, if amd { amd_features } else { 0 }, 0, 0]
            }
            0x8000_001a if amd => [self.performance_hints, 0, 0, 0],
            LEAF_AMD_CACHES if self.features.extended_ecx & extended::ECX_TOPOLOGY != 0 => {
                self.cache(subleaf)
            }
            // Identifier 0, one thread in the core, one node: all zero.
            LEAF_AMD_TOPOLOGY => [0; 4],
            // For the same reason as in `arch_capabilities`: the guest's own mitigations would
            // change nothing.
            LEAF_AMD_FEATURES_2 if amd => {
                let eax = self.amd_features_2 | extended::NULL_CLEARS_BASE | extended::SRSO_NO;
                [eax, 0, extended::TSA_NO, 0]
            }
            _ => [0; 4],
        }
    }

    /// Whether the guest may execute instructions of this feature. The translator checks modes and
    /// control registers.
    pub fn offers(&self, feature: CpuidFeature) -> bool {
        use CpuidFeature as F;
        let edx = |bit: u32| self.features.basic_edx & bit != 0;
        let ecx = |bit: u32| self.features.basic_ecx & bit != 0;
        let structured = |bit: u32| self.features.structured_ebx & bit != 0;
        let structured_c = |bit: u32| self.features.structured_ecx & bit != 0;
        let structured_d = |bit: u32| self.features.structured_edx & bit != 0;
        let structured_1 = |bit: u32| self.features.structured_1_eax & bit != 0;
        match feature {
            F::INTEL8086
            | F::INTEL186
            | F::INTEL286
            | F::INTEL386
            | F::INTEL486
            | F::CPUID
            | F::RDPMC
            | F::PAUSE
            // Only ENDBR is needed from it, which does nothing where CET is not enabled.
            | F::CET_IBT
            | F::MULTIBYTENOP => true,
            F::FPU | F::FPU287 | F::FPU387 => edx(basic_edx::FPU),
            F::TSC => edx(basic_edx::TSC),
            F::MSR => edx(basic_edx::MSR),
            F::CX8 => edx(basic_edx::CX8),
            F::SEP => edx(basic_edx::SEP),
            F::CMOV => edx(basic_edx::CMOV),
            F::CLFSH => edx(basic_edx::CLFSH),
            F::MMX => edx(basic_edx::MMX),
            F::FXSR => edx(basic_edx::FXSR),
            F::SSE => edx(basic_edx::SSE),
            F::SSE2 => edx(basic_edx::SSE2),
            F::SSE3 => ecx(basic_ecx::SSE3),
            F::PCLMULQDQ => ecx(basic_ecx::PCLMULQDQ),
            F::SSSE3 => ecx(basic_ecx::SSSE3),
            F::FMA => ecx(basic_ecx::FMA),
            F::CMPXCHG16B => ecx(basic_ecx::CX16),
            F::SSE4_1 => ecx(basic_ecx::SSE4_1),
            F::SSE4_2 => ecx(basic_ecx::SSE4_2),
            F::MOVBE => ecx(basic_ecx::MOVBE),
            F::POPCNT => ecx(basic_ecx::POPCNT),
            F::AES => ecx(basic_ecx::AES),
            F::XSAVE => ecx(basic_ecx::XSAVE),
            F::XSAVEOPT => self.features.xsave_eax & xsave_eax::XSAVEOPT != 0,
            F::XSAVEC => self.features.xsave_eax & xsave_eax::XSAVEC != 0,
            F::XSAVES => self.features.xsave_eax & xsave_eax::XSAVES != 0,
            F::AVX => ecx(basic_ecx::AVX),
            F::F16C => ecx(basic_ecx::F16C),
            F::RDRAND => ecx(basic_ecx::RDRAND),
            F::BMI1 => structured(structured_ebx::BMI1),
            F::AVX2 => structured(structured_ebx::AVX2),
            F::BMI2 => structured(structured_ebx::BMI2),
            F::RDSEED => structured(structured_ebx::RDSEED),
            F::INVPCID => structured(structured_ebx::INVPCID),
            F::ADX => structured(structured_ebx::ADX),
            F::SMAP => structured(structured_ebx::SMAP),
            F::PKU => self.has_keys(),
            F::CLFLUSHOPT => structured(structured_ebx::CLFLUSHOPT),
            F::CLWB => structured(structured_ebx::CLWB),
            F::SHA => structured(structured_ebx::SHA),
            F::GFNI => structured_c(structured_ecx::GFNI),
            F::VAES => structured_c(structured_ecx::VAES),
            F::VPCLMULQDQ => structured_c(structured_ecx::VPCLMULQDQ),
            F::RDPID => structured_c(structured_ecx::RDPID),
            F::MOVDIRI => structured_c(structured_ecx::MOVDIRI),
            F::AVX_VNNI => structured_1(structured_1_eax::AVX_VNNI),
            F::AVX_IFMA => structured_1(structured_1_eax::AVX_IFMA),
            F::AVX512F => structured(structured_ebx::AVX512F),
            F::AVX512DQ => structured(structured_ebx::AVX512DQ),
            F::AVX512_IFMA => structured(structured_ebx::AVX512_IFMA),
            F::AVX512CD => structured(structured_ebx::AVX512CD),
            F::AVX512BW => structured(structured_ebx::AVX512BW),
            F::AVX512VL => structured(structured_ebx::AVX512VL),
            F::AVX512_VBMI => structured_c(structured_ecx::AVX512_VBMI),
            F::AVX512_VBMI2 => structured_c(structured_ecx::AVX512_VBMI2),
            F::AVX512_VNNI => structured_c(structured_ecx::AVX512_VNNI),
            F::AVX512_BITALG => structured_c(structured_ecx::AVX512_BITALG),
            F::AVX512_VPOPCNTDQ => structured_c(structured_ecx::AVX512_VPOPCNTDQ),
            F::AVX512_VP2INTERSECT => structured_d(structured_edx::AVX512_VP2INTERSECT),
            F::AVX512_FP16 => structured_d(structured_edx::AVX512_FP16),
            F::AVX512_BF16 => structured_1(structured_1_eax::AVX512_BF16),
            F::SSE4A => self.features.extended_ecx & extended::ECX_SSE4A != 0,
            F::X64 => self.features.extended_edx & extended::EDX_LM != 0,
            F::SYSCALL => self.features.extended_edx & extended::EDX_SYSCALL != 0,
            F::RDTSCP => self.features.extended_edx & extended::EDX_RDTSCP != 0,
            F::FSGSBASE => structured(structured_ebx::FSGSBASE),
            F::LZCNT => self.features.extended_ecx & extended::ECX_LZCNT != 0,
            F::PREFETCHW => self.features.extended_ecx & extended::ECX_PREFETCHW != 0,
            _ => false,
        }
    }

    /// Whether the guest may execute LAHF and SAHF in 64-bit code.
    pub fn offers_lahf_in_64_bit_code(&self) -> bool {
        self.features.extended_ecx & extended::ECX_LAHF != 0
    }
}

/// The policy of a CPU model on this host.
///
/// The values may be global to the process although the state of a VM never is: they are derived
/// from the host's processor alone, are the same for every VM in the process that has this model,
/// and never change. [`CpuidPolicy::of_model`] checks that the host has everything that a model
/// needs; missing features are left out here.
pub fn policy_of(model: CpuModel) -> &'static CpuidPolicy {
    policy_with(model, AddedFeatures::empty())
}

/// The policy of a processor.
pub fn policy(state: &CpuState) -> &'static CpuidPolicy {
    policy_with(state.model, state.added_features)
}

/// The policy of a CPU model on this host with features added, see [`policy_of`].
pub fn policy_with(model: CpuModel, added: AddedFeatures) -> &'static CpuidPolicy {
    const CHOICES: usize = AddedFeatures::all().bits() as usize + 1;
    static POLICIES: [[OnceLock<CpuidPolicy>; CHOICES]; CpuModel::ALL.len()] =
        [const { [const { OnceLock::new() }; CHOICES] }; CpuModel::ALL.len()];
    let choice = (added & AddedFeatures::all()).bits();
    POLICIES[model as usize][usize::from(choice)]
        .get_or_init(|| CpuidPolicy::of_host().restricted_to(model).with(added))
}

/// The frequency in kHz of the host's time-stamp counter, measured against the host's clock for 10
/// ms at the first call. Like [`policy`], this is a fact about the host.
pub fn host_tsc_khz() -> u32 {
    static FREQUENCY: OnceLock<u32> = OnceLock::new();
    *FREQUENCY.get_or_init(|| {
        let sample = || {
            // SAFETY: on Linux, RDTSC is executable in user mode.
            let ticks = unsafe { core::arch::x86_64::_rdtsc() };
            (std::time::Instant::now(), ticks)
        };
        let (start, start_ticks) = sample();
        std::thread::sleep(std::time::Duration::from_millis(10));
        let (end, end_ticks) = sample();
        let nanoseconds = end.duration_since(start).as_nanos().max(1);
        let ticks = u128::from(end_ticks.wrapping_sub(start_ticks));
        u32::try_from(ticks * 1_000_000 / nanoseconds).unwrap_or(u32::MAX)
    })
}

/// Whether the values of a leaf may depend on ECX. Beyond the last leaf, Intel's processors repeat
/// one that does (SDM volume 2, CPUID).
pub fn may_have_subleaves(leaf: u32) -> bool {
    !matches!(
        leaf,
        0..=3 | 5 | 6 | 8..=0xa | 0x4000_0000..=0x4000_ffff | 0x8000_0000..=0x8000_0008
    )
}

/// CPUID: EAX and ECX select the leaf; EAX, EBX, ECX and EDX receive it.
///
/// # Errors
///
/// It never fails at present.
pub fn execute(
    state: &mut CpuState,
    environment: &mut dyn Environment,
) -> Result<Outcome, Exception> {
    let leaf = state.register(Gpr::Rax) as u32;
    let subleaf = state.register(Gpr::Rcx) as u32;
    let mut answer = policy(state).leaf(state, leaf, subleaf);
    if leaf == 1 {
        let (base, deadline) = environment.machine(|machine| {
            let base = machine.msr_read(APIC_BASE);
            (base, machine.msr_read(TSC_DEADLINE))
        });
        let apic_enabled = base.is_some_and(|base| base & APIC_BASE_ENABLE != 0);
        if !apic_enabled {
            answer[3] &= !basic_edx::APIC;
            answer[2] &= !basic_ecx::X2APIC;
        }
        if !apic_enabled || deadline.is_none() {
            answer[2] &= !basic_ecx::TSC_DEADLINE;
        }
    }
    for (register, value) in [Gpr::Rax, Gpr::Rbx, Gpr::Rcx, Gpr::Rdx]
        .into_iter()
        .zip(answer)
    {
        state.gpr[register as usize] = u64::from(value);
    }
    Ok(Outcome::Next)
}

#[cfg(test)]
mod tests;
