//! CPU models: processors with fixed features, the same on every host that supports them.
//!
//! `x86-64-v1` to `-v4` are the levels of the x86-64 psABI, with additional features that an
//! operating system needs. `qemu64` is QEMU's default processor, as far as it is implemented. The
//! other names are QEMU's for processors of one maker, which must be the host's. They too have only
//! implemented features: no MONITOR and no transactions, and SMAP and protection keys only where
//! these are added ([`AddedFeatures`](tollgate_x86::AddedFeatures)).

use super::features::{
    FeatureWords, basic_ecx, basic_edx, extended, structured_1_eax, structured_ebx, structured_ecx,
    xsave_eax,
};
use super::{CpuidPolicy, Vendor};
use std::fmt;
use tollgate_x86::state::XSAVE_SIZE;
use tollgate_x86::{AddedFeatures, CpuModel};

/// Leaf 1 EAX: family 15, model 107, stepping 1, which QEMU uses for AMD.
const AMD_SIGNATURE: u32 = 0x0006_0fb1;
/// Leaf 1 EAX: family 15, model 6, stepping 1, which QEMU uses for Intel.
const INTEL_SIGNATURE: u32 = 0x0000_0f61;

/// Features of the machine and the monitor that every host supports.
const SYSTEM: FeatureWords = FeatureWords {
    basic_ecx: basic_ecx::X2APIC | basic_ecx::TSC_DEADLINE | basic_ecx::HYPERVISOR,
    basic_edx: basic_edx::DE
        | basic_edx::PSE
        | basic_edx::TSC
        | basic_edx::MSR
        | basic_edx::PAE
        | basic_edx::MCE
        | basic_edx::MCA
        | basic_edx::MTRR
        | basic_edx::APIC
        | basic_edx::SEP
        | basic_edx::PGE
        | basic_edx::PAT
        | basic_edx::CLFSH,
    structured_ebx: structured_ebx::TSC_ADJUST,
    extended_edx: extended::EDX_SYSCALL | extended::EDX_NX | extended::EDX_LM,
    ..FeatureWords::NONE
};

/// Features that the monitor implements itself and that no psABI level includes. The levels name
/// what programs may use; the additional features for operating systems are our choice.
const EMULATED: FeatureWords = FeatureWords {
    basic_ecx: basic_ecx::PCID,
    basic_edx: basic_edx::VME,
    structured_ebx: structured_ebx::FSGSBASE | structured_ebx::SMEP | structured_ebx::INVPCID,
    structured_ecx: structured_ecx::UMIP | structured_ecx::RDPID,
    extended_edx: extended::EDX_RDTSCP,
    ..FeatureWords::NONE
};

/// The feature of 1 GiB pages, for the models that have it.
const HUGE_PAGES: FeatureWords = FeatureWords {
    extended_edx: extended::EDX_PDPE1GB,
    ..FeatureWords::NONE
};

const LEVEL_1: FeatureWords = FeatureWords {
    basic_edx: basic_edx::FPU
        | basic_edx::CX8
        | basic_edx::CMOV
        | basic_edx::MMX
        | basic_edx::FXSR
        | basic_edx::SSE
        | basic_edx::SSE2,
    ..FeatureWords::NONE
};

const LEVEL_2: FeatureWords = LEVEL_1.or(FeatureWords {
    basic_ecx: basic_ecx::SSE3
        | basic_ecx::SSSE3
        | basic_ecx::CX16
        | basic_ecx::SSE4_1
        | basic_ecx::SSE4_2
        | basic_ecx::POPCNT,
    extended_ecx: extended::ECX_LAHF,
    ..FeatureWords::NONE
});

const LEVEL_3: FeatureWords = LEVEL_2.or(FeatureWords {
    basic_ecx: basic_ecx::FMA
        | basic_ecx::MOVBE
        | basic_ecx::XSAVE
        | basic_ecx::AVX
        | basic_ecx::F16C,
    structured_ebx: structured_ebx::BMI1 | structured_ebx::AVX2 | structured_ebx::BMI2,
    xsave_eax: xsave_eax::EMULATED,
    extended_ecx: extended::ECX_LZCNT,
    ..FeatureWords::NONE
});

const LEVEL_4: FeatureWords = LEVEL_3.or(FeatureWords {
    structured_ebx: structured_ebx::AVX512F
        | structured_ebx::AVX512DQ
        | structured_ebx::AVX512CD
        | structured_ebx::AVX512BW
        | structured_ebx::AVX512VL,
    ..FeatureWords::NONE
});

/// The features beyond level 3 that the named server processors of both makers have.
const SERVER: FeatureWords = LEVEL_3.or(FeatureWords {
    basic_ecx: basic_ecx::PCLMULQDQ | basic_ecx::AES | basic_ecx::RDRAND,
    structured_ebx: structured_ebx::RDSEED | structured_ebx::ADX | structured_ebx::CLFLUSHOPT,
    extended_ecx: extended::ECX_PREFETCHW,
    ..FeatureWords::NONE
});

const SKYLAKE_SERVER: FeatureWords = SERVER.or(LEVEL_4).or(FeatureWords {
    structured_ebx: structured_ebx::ERMS | structured_ebx::CLWB,
    ..FeatureWords::NONE
});

/// AVX-512 features that Intel added between 2019 and 2021, and AMD by 2022.
const LATER_AVX_512: FeatureWords = FeatureWords {
    structured_ebx: structured_ebx::AVX512_IFMA | structured_ebx::SHA,
    structured_ecx: structured_ecx::AVX512_VBMI
        | structured_ecx::AVX512_VBMI2
        | structured_ecx::GFNI
        | structured_ecx::VAES
        | structured_ecx::VPCLMULQDQ
        | structured_ecx::AVX512_VNNI
        | structured_ecx::AVX512_BITALG
        | structured_ecx::AVX512_VPOPCNTDQ,
    ..FeatureWords::NONE
};

const EPYC: FeatureWords = SERVER.or(FeatureWords {
    structured_ebx: structured_ebx::SHA,
    extended_ecx: extended::ECX_SSE4A | extended::ECX_TOPOLOGY,
    extended_edx: extended::EDX_MMXEXT,
    ..FeatureWords::NONE
});

const EPYC_MILAN: FeatureWords = EPYC.or(FeatureWords {
    structured_ebx: structured_ebx::CLWB | structured_ebx::ERMS,
    structured_ecx: structured_ecx::VAES | structured_ecx::VPCLMULQDQ,
    ..FeatureWords::NONE
});

const EPYC_GENOA: FeatureWords = EPYC_MILAN.or(LEVEL_4).or(LATER_AVX_512).or(FeatureWords {
    structured_1_eax: structured_1_eax::AVX512_BF16,
    ..FeatureWords::NONE
});

const QEMU64: FeatureWords = LEVEL_1.or(FeatureWords {
    basic_ecx: basic_ecx::SSE3 | basic_ecx::CX16,
    extended_ecx: extended::ECX_LAHF,
    ..FeatureWords::NONE
});

/// All features of a model; `None` for the host's own.
const fn features(model: CpuModel) -> Option<FeatureWords> {
    let words = match model {
        CpuModel::Host => return None,
        CpuModel::X86_64V1 => LEVEL_1.or(SYSTEM).or(EMULATED),
        CpuModel::X86_64V2 => LEVEL_2.or(SYSTEM).or(EMULATED),
        CpuModel::X86_64V3 => LEVEL_3.or(SYSTEM).or(EMULATED),
        CpuModel::X86_64V4 => LEVEL_4.or(SYSTEM).or(EMULATED),
        CpuModel::Qemu64 => QEMU64.or(SYSTEM),
        CpuModel::SkylakeServer => SKYLAKE_SERVER.or(SYSTEM).or(EMULATED),
        CpuModel::IcelakeServer => SKYLAKE_SERVER.or(LATER_AVX_512).or(SYSTEM).or(EMULATED),
        CpuModel::Epyc => EPYC.or(SYSTEM).or(EMULATED),
        CpuModel::EpycMilan => EPYC_MILAN.or(SYSTEM).or(EMULATED),
        CpuModel::EpycGenoa => EPYC_GENOA.or(SYSTEM).or(EMULATED),
    };
    Some(if model.has_huge_pages() {
        words.or(HUGE_PAGES)
    } else {
        words
    })
}

/// A processor product: its maker, its signature (leaf 1, EAX) and its name.
struct Product {
    vendor: Vendor,
    signature: u32,
    brand: &'static str,
}

/// The product that a model names, if any.
const fn product(model: CpuModel) -> Option<Product> {
    let (vendor, signature, brand) = match model {
        CpuModel::SkylakeServer => (Vendor::Intel, 0x0005_0654, "Intel Xeon Processor (Skylake)"),
        CpuModel::IcelakeServer => (Vendor::Intel, 0x0006_06a0, "Intel Xeon Processor (Icelake)"),
        CpuModel::Epyc => (Vendor::Amd, 0x0080_0f12, "AMD EPYC Processor"),
        CpuModel::EpycMilan => (Vendor::Amd, 0x00a0_0f11, "AMD EPYC-Milan Processor"),
        CpuModel::EpycGenoa => (Vendor::Amd, 0x00a1_0f10, "AMD EPYC-Genoa Processor"),
        _ => return None,
    };
    Some(Product {
        vendor,
        signature,
        brand,
    })
}

/// Why a CPU model is not available.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ModelError {
    /// No model has this name.
    Unknown(String),
    /// The model is a processor of this maker, and the host's is from another one.
    OtherMaker(CpuModel, Vendor),
    /// No feature that can be added to a model has this name.
    UnknownFeature(String),
    /// The host lacks these features of the model.
    Missing(CpuModel, Vec<&'static str>),
}

impl fmt::Display for ModelError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ModelError::Unknown(name) => {
                let names = CpuModel::ALL.map(CpuModel::name).join(", ");
                write!(
                    formatter,
                    "there is no CPU model {name:?}: choose one of {names}"
                )
            }
            ModelError::UnknownFeature(word) => {
                let names = AddedFeatures::NAMES.map(|(_, name)| format!("+{name}"));
                write!(
                    formatter,
                    "{word:?} is not a feature that can be added to a CPU model: choose from {}",
                    names.join(", ")
                )
            }
            ModelError::OtherMaker(model, vendor) => write!(
                formatter,
                "CPU model {} needs one of {} processors, and this host's is not",
                model.name(),
                if *vendor == Vendor::Amd {
                    "AMD's"
                } else {
                    "Intel's"
                }
            ),
            ModelError::Missing(model, features) => write!(
                formatter,
                "CPU model {} needs features that this host lacks: {}",
                model.name(),
                features.join(", ")
            ),
        }
    }
}

impl std::error::Error for ModelError {}

/// Text in the form of leaves 8000_0002h to 8000_0004h.
fn brand(text: &str) -> [[u32; 4]; 3] {
    let mut bytes = [0; 48];
    let used = text.len().min(47);
    bytes[..used].copy_from_slice(&text.as_bytes()[..used]);
    std::array::from_fn(|leaf| {
        std::array::from_fn(|register| {
            let at = leaf * 16 + register * 4;
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        })
    })
}

impl CpuidPolicy {
    /// The model with this name, if this host supports it.
    ///
    /// # Errors
    ///
    /// [`ModelError`], which lists the possible names or the missing features.
    pub fn of_model(name: &str) -> Result<CpuModel, ModelError> {
        let model = CpuModel::ALL
            .into_iter()
            .find(|model| model.name() == name)
            .ok_or_else(|| ModelError::Unknown(name.to_owned()))?;
        super::policy_of(CpuModel::Host).check(model)?;
        Ok(model)
    }

    /// The names of all models, each with the features that it has here.
    pub fn models() -> Vec<(&'static str, Vec<&'static str>)> {
        CpuModel::ALL
            .into_iter()
            .map(|model| {
                let words =
                    features(model).unwrap_or_else(|| super::policy_of(CpuModel::Host).features);
                (model.name(), words.names())
            })
            .collect()
    }

    /// Checks whether a host with this policy has everything that a model needs.
    ///
    /// # Errors
    ///
    /// [`ModelError::OtherMaker`] or [`ModelError::Missing`].
    pub fn check(&self, model: CpuModel) -> Result<(), ModelError> {
        if let Some(product) = product(model)
            && product.vendor != self.vendor
        {
            return Err(ModelError::OtherMaker(model, product.vendor));
        }
        let missing = features(model)
            .unwrap_or_default()
            .without(self.features)
            .names();
        if missing.is_empty() {
            Ok(())
        } else {
            Err(ModelError::Missing(model, missing))
        }
    }

    /// Reduces a host's own policy to a model.
    pub(super) fn restricted_to(mut self, model: CpuModel) -> Self {
        let Some(words) = features(model) else {
            return self;
        };
        // The layout is the same on every host: as if no component were left out between others.
        self.component_offsets = super::COMPACTED_OFFSETS;
        self.keys_offset = XSAVE_SIZE as u32;
        if let Some(product) = product(model) {
            self.signature = product.signature;
            self.brand = brand(product.brand);
            self.features = self.features.and(words);
            return self;
        }
        if model == CpuModel::Qemu64 {
            self.vendor = Vendor::Amd;
            self.vendor_name = [0x6874_7541, 0x6974_6e65, 0x444d_4163];
            self.brand = brand("QEMU Virtual CPU version 2.5+");
        } else {
            self.brand = brand(&format!("Tollgate {} processor", model.name()));
        }
        self.signature = if self.vendor == Vendor::Amd {
            AMD_SIGNATURE
        } else {
            INTEL_SIGNATURE
        };
        self.features = self.features.and(words);
        self
    }
}
