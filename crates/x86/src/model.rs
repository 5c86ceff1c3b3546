//! Names of the processors that a guest can be given.

use serde::{Deserialize, Serialize};

/// Which processor CPUID describes. What each one offers is the emulated CPUID's business;
/// two machines in one process may have different ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum CpuModel {
    /// The host's own, as far as it is implemented.
    #[default]
    Host,
    /// Level 1 of the x86-64 psABI.
    X86_64V1,
    /// Level 2 of the x86-64 psABI.
    X86_64V2,
    /// Level 3 of the x86-64 psABI.
    X86_64V3,
    /// The processor that QEMU gives by default.
    Qemu64,
    /// Level 4 of the x86-64 psABI.
    X86_64V4,
    /// Intel's server processor of 2017, by QEMU's name.
    SkylakeServer,
    /// Intel's server processor of 2021, by QEMU's name.
    IcelakeServer,
    /// AMD's server processor of 2017, family 17h, by QEMU's name.
    Epyc,
    /// AMD's server processor of 2021, family 19h, by QEMU's name.
    EpycMilan,
    /// AMD's server processor of 2022, family 19h, by QEMU's name.
    EpycGenoa,
}

bitflags::bitflags! {
    /// Features that a processor has beyond those of its model. They cost time here, and so no model has them
    /// by itself.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
    pub struct AddedFeatures: u8 {
        /// Supervisor-mode access prevention.
        const SMAP = 1 << 0;
        /// Protection keys for pages of programs.
        const PKU = 1 << 1;
        /// Protection keys for pages of the supervisor.
        const PKS = 1 << 2;
    }
}

impl AddedFeatures {
    /// Each of them with its name on the command line, which is Linux's.
    pub const NAMES: [(AddedFeatures, &'static str); 3] = [
        (AddedFeatures::SMAP, "smap"),
        (AddedFeatures::PKU, "pku"),
        (AddedFeatures::PKS, "pks"),
    ];
}

impl CpuModel {
    /// All models.
    pub const ALL: [CpuModel; 11] = [
        CpuModel::Host,
        CpuModel::X86_64V1,
        CpuModel::X86_64V2,
        CpuModel::X86_64V3,
        CpuModel::Qemu64,
        CpuModel::X86_64V4,
        CpuModel::SkylakeServer,
        CpuModel::IcelakeServer,
        CpuModel::Epyc,
        CpuModel::EpycMilan,
        CpuModel::EpycGenoa,
    ];

    /// Whether it has pages of 1 GiB. The page walker asks; CPUID says the same.
    pub const fn has_huge_pages(self) -> bool {
        !matches!(self, CpuModel::Qemu64)
    }

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            CpuModel::Host => "host",
            CpuModel::X86_64V1 => "x86-64-v1",
            CpuModel::X86_64V2 => "x86-64-v2",
            CpuModel::X86_64V3 => "x86-64-v3",
            CpuModel::Qemu64 => "qemu64",
            CpuModel::X86_64V4 => "x86-64-v4",
            CpuModel::SkylakeServer => "Skylake-Server",
            CpuModel::IcelakeServer => "Icelake-Server",
            CpuModel::Epyc => "EPYC",
            CpuModel::EpycMilan => "EPYC-Milan",
            CpuModel::EpycGenoa => "EPYC-Genoa",
        }
    }
}
