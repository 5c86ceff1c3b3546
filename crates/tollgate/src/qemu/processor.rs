//! The processor of a machine in QEMU's words.

use tollgate_machine::cpu::{self, AddedFeatures, Cpu, CpuModel};
use tollgate_qemu_words::{Configuration, model_level};

/// The processor, whether the guest is shown KVM's interface, and what could not be had.
pub struct Chosen {
    /// The processor's model and added features.
    pub cpu: Cpu,
    /// Whether the guest is offered KVM's clock.
    pub kvm: bool,
    /// Lines about what could not be had.
    pub warnings: Vec<String>,
}

/// Words of `-cpu` that are no features of the processor and make no difference.
const INDIFFERENT: &[&str] = &[
    "check",
    "enforce",
    "migratable",
    "host-cache-info",
    "l3-cache",
    "topoext",
    "pmu",
    "full-cpuid-auto-level",
    "fill-mtrr-mask",
    "host-phys-bits",
    "tcg-cpuid",
    "legacy-cache",
    "cpuid-0xb",
    "vmware-cpuid-freq",
    "start-powered-off",
    "hypervisor",
    "invtsc",
    "kvmclock",
];

/// Finds the processor.
pub fn chosen(config: &Configuration) -> Chosen {
    let wanted = &config.processor;
    let mut warnings = Vec::new();
    let mut cpu = Cpu {
        model: model(&wanted.model, &mut warnings),
        added: AddedFeatures::empty(),
    };
    let mut kvm = true;
    for feature in &wanted.features {
        let name = feature.name.as_str();
        let added = AddedFeatures::NAMES
            .iter()
            .find(|(_, known)| *known == name);
        match (added, feature.is_on) {
            (Some((feature, _)), is_on) => cpu.added.set(*feature, is_on),
            (None, is_on) if name == "kvm" => kvm = is_on,
            _ if INDIFFERENT.contains(&name) => {}
            (None, is_on) => {
                let shown = cpu::shown_features(&cpu).iter().any(|it| alike(it, name));
                if shown != is_on {
                    let what = if is_on { "added" } else { "removed" };
                    warnings.push(format!("feature {name} of the processor cannot be {what}"));
                }
            }
        }
    }
    Chosen { cpu, kvm, warnings }
}

/// Whether two names are one feature: QEMU's have dashes where others have points or nothing.
fn alike(ours: &str, theirs: &str) -> bool {
    let plain = |name: &str| name.replace(['-', '_', '.'], "");
    plain(ours) == plain(theirs)
}

fn model(name: &str, warnings: &mut Vec<String>) -> CpuModel {
    if let Ok(cpu) = cpu::find(name)
        && cpu::check(cpu.model).is_ok()
    {
        return cpu.model;
    }
    let Some(level) = model_level(name) else {
        return CpuModel::Host;
    };
    let fitting = (1..=level).rev().find_map(|level| {
        let cpu = cpu::find(&format!("x86-64-v{level}")).ok()?;
        cpu::check(cpu.model).ok().map(|()| cpu.model)
    });
    let model = fitting.unwrap_or(CpuModel::Host);
    if !name.starts_with("x86-64-") {
        warnings.push(format!(
            "the processor is {} instead of {name}",
            model.name()
        ));
    }
    model
}
