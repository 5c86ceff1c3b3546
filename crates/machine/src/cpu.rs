//! The processors that a machine can have.

use tollgate_emulate::cpuid::{CpuidPolicy, policy_of};

pub use tollgate_emulate::cpuid::ModelError;
pub use tollgate_x86::CpuModel;

/// The model with this name, if this host can give it.
///
/// # Errors
/// [`ModelError`].
pub fn find(name: &str) -> Result<CpuModel, ModelError> {
    CpuidPolicy::of_model(name)
}

/// Whether this host can give a model.
///
/// # Errors
/// [`ModelError::Missing`].
pub fn check(model: CpuModel) -> Result<(), ModelError> {
    policy_of(CpuModel::Host).check(model)
}

/// All models' names, each with the names of its features here.
pub fn models() -> Vec<(&'static str, Vec<&'static str>)> {
    CpuidPolicy::models()
}
