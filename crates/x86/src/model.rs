//! The processor models that a guest can be given.

use serde::{Deserialize, Serialize};

/// The processor model that CPUID describes. The emulated CPUID decides which features each model
/// has; two machines in one process may have different models.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash, Serialize, Deserialize)]
#[repr(u32)]
pub enum CpuModel {
    /// The host's own processor, as far as its features are implemented.
    #[default]
    Host,
    /// Level 1 of the x86-64 psABI.
    X86_64V1,
    /// Level 2 of the x86-64 psABI.
    X86_64V2,
    /// Level 3 of the x86-64 psABI.
    X86_64V3,
    /// QEMU's default processor.
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
    /// Features that a processor has in addition to those of its model. They slow down guests here,
    /// so no model includes them.
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
    /// Each feature with its name on the command line, which is Linux's name for it.
    pub const NAMES: [(AddedFeatures, &'static str); 3] = [
        (AddedFeatures::SMAP, "smap"),
        (AddedFeatures::PKU, "pku"),
        (AddedFeatures::PKS, "pks"),
    ];
}

impl CpuModel {
    /// All models, in the order in which they are listed to users.
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

    /// Whether the model has pages of 1 GiB. Both the page walker and CPUID use this.
    pub const fn has_huge_pages(self) -> bool {
        !matches!(self, CpuModel::Qemu64)
    }

    /// The model's name on the command line.
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
