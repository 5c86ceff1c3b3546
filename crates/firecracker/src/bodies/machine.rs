//! Processor and memory.

use serde::{Deserialize, Serialize};

use super::body::Body;
use crate::fault::Fault;

/// What backs the guest's memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum HugePages {
    /// Small pages.
    #[default]
    None,
    /// Large pages where the host likes to.
    Transparent,
    /// Pages of 2 MiB that the host has set aside, which are refused.
    #[serde(rename = "2M")]
    TwoMebibytes,
}

/// A named selection of processor features.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub enum CpuTemplate {
    /// All features that Tollgate offers.
    #[default]
    None,
    /// A selection, which is refused.
    C3,
    /// A selection, which is refused.
    T2,
    /// A selection, which is refused.
    T2S,
    /// A selection, which is refused.
    T2CL,
    /// A selection, which is refused.
    T2A,
    /// A selection, which is refused.
    V1N1,
}

/// Processor and memory of the machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineConfig {
    /// The number of processors: 1.
    pub vcpu_count: u64,
    /// The size of memory in MiB.
    pub mem_size_mib: u64,
    /// Whether each processor is one of two of a core, which makes no difference to one.
    #[serde(default)]
    pub smt: bool,
    /// A selection of processor features.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_template: Option<CpuTemplate>,
    /// Whether differences between snapshots are wanted, which are always possible here.
    #[serde(default)]
    pub track_dirty_pages: bool,
    /// What backs the memory.
    #[serde(default)]
    pub huge_pages: HugePages,
}

impl Default for MachineConfig {
    fn default() -> Self {
        Self {
            vcpu_count: 1,
            mem_size_mib: 128,
            smt: false,
            cpu_template: None,
            track_dirty_pages: false,
            huge_pages: HugePages::None,
        }
    }
}

impl Body for MachineConfig {
    fn check(&self) -> Result<(), Fault> {
        if self.vcpu_count != 1 {
            let why = "a guest of Tollgate has one processor; give 1";
            return Err(Fault::field("vcpu_count", why));
        }
        if self.mem_size_mib == 0 {
            return Err(Fault::field("mem_size_mib", "a guest needs memory"));
        }
        if self.cpu_template.is_some_and(|it| it != CpuTemplate::None) {
            let why = "Tollgate has no CPU templates; give None, and --cpu MODEL for a processor that is \
                       the same on every host";
            return Err(Fault::field("cpu_template", why));
        }
        if self.huge_pages == HugePages::TwoMebibytes {
            let why = "Tollgate uses no pages of hugetlbfs; give None or Transparent";
            return Err(Fault::field("huge_pages", why));
        }
        Ok(())
    }
}

/// A change of some of these.
#[derive(Clone, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MachineConfigUpdate {
    vcpu_count: Option<u64>,
    mem_size_mib: Option<u64>,
    smt: Option<bool>,
    cpu_template: Option<CpuTemplate>,
    track_dirty_pages: Option<bool>,
    huge_pages: Option<HugePages>,
}

impl Body for MachineConfigUpdate {}

impl MachineConfigUpdate {
    /// The configuration after the change.
    ///
    /// # Errors
    /// A field has a value that cannot be used.
    pub fn applied_to(&self, before: &MachineConfig) -> Result<MachineConfig, Fault> {
        let after = MachineConfig {
            vcpu_count: self.vcpu_count.unwrap_or(before.vcpu_count),
            mem_size_mib: self.mem_size_mib.unwrap_or(before.mem_size_mib),
            smt: self.smt.unwrap_or(before.smt),
            cpu_template: self.cpu_template.or(before.cpu_template),
            track_dirty_pages: self.track_dirty_pages.unwrap_or(before.track_dirty_pages),
            huge_pages: self.huge_pages.unwrap_or(before.huge_pages),
        };
        after.check()?;
        Ok(after)
    }
}
