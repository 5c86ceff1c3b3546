//! The processors that a machine can have.

use serde::{Deserialize, Serialize};
use tollgate_emulate::cpuid::{CpuidPolicy, policy_of};

pub use tollgate_emulate::cpuid::ModelError;
pub use tollgate_x86::{AddedFeatures, CpuModel};

/// A processor: a model, and the features that were added to it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Cpu {
    /// The processor's model.
    pub model: CpuModel,
    /// The features that the model alone does not have.
    pub added: AddedFeatures,
}

/// Returns the processor with this name if this host supports it. A name is a model's, followed by
/// `,+FEATURE` for each feature that is added.
///
/// # Errors
/// [`ModelError`].
pub fn find(name: &str) -> Result<Cpu, ModelError> {
    let (model, added) = match name.split_once(',') {
        Some((model, added)) => (model, added),
        None => (name, ""),
    };
    let mut cpu = Cpu {
        model: CpuidPolicy::of_model(model)?,
        added: AddedFeatures::empty(),
    };
    for word in added.split(',').filter(|_| name.contains(',')) {
        let known = AddedFeatures::NAMES
            .iter()
            .find(|(_, name)| word.strip_prefix('+') == Some(name));
        let (feature, _) = known.ok_or_else(|| ModelError::UnknownFeature(word.to_owned()))?;
        cpu.added |= *feature;
    }
    Ok(cpu)
}

/// Checks whether this host supports a model.
///
/// # Errors
/// [`ModelError::Missing`].
pub fn check(model: CpuModel) -> Result<(), ModelError> {
    policy_of(CpuModel::Host).check(model)
}

/// Returns the names of all models, each with the features that it has on this host.
pub fn models() -> Vec<(&'static str, Vec<&'static str>)> {
    CpuidPolicy::models()
}

/// Returns the names of the features that a guest with this processor is shown on this host. The
/// first one says who made the processor, which the guest is shown too.
pub fn shown_features(cpu: &Cpu) -> Vec<String> {
    let models = models();
    let of_model = models.iter().find(|(name, _)| *name == cpu.model.name());
    let of_model = of_model.map_or(&[][..], |(_, names)| names);
    let added = AddedFeatures::NAMES.iter();
    let added = added.filter(|(feature, _)| cpu.added.contains(*feature));
    let vendor = format!("{:?} processor", policy_of(cpu.model).vendor());
    let names = of_model.iter().copied().chain(added.map(|(_, name)| *name));
    std::iter::once(vendor)
        .chain(names.map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn features_are_added_by_name() {
        let added = |name: &str| find(name).map(|cpu| (cpu.model, cpu.added));
        let (smap, pku) = (AddedFeatures::SMAP, AddedFeatures::PKU);
        assert_eq!(added("host"), Ok((CpuModel::Host, AddedFeatures::empty())));
        assert_eq!(added("x86-64-v1,+smap"), Ok((CpuModel::X86_64V1, smap)));
        assert_eq!(added("host,+pku,+smap"), Ok((CpuModel::Host, smap | pku)));
        for word in ["", "smap", "+", "+avx"] {
            let refused = Err(ModelError::UnknownFeature(word.to_owned()));
            assert_eq!(added(&format!("host,{word}")), refused);
        }
    }
}
