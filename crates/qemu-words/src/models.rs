//! QEMU's processor models.

/// What takes the place of a processor model.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Model {
    /// The host's processor.
    Host,
    /// A model of this name, or the level if Tollgate lacks the name.
    Level(u8),
}

use Model::{Host, Level};

/// QEMU's models, each with the psABI level that it includes.
pub const MODELS: &[(&str, Model)] = &[
    ("max", Host),
    ("host", Host),
    ("base", Level(1)),
    ("qemu64", Level(1)),
    ("qemu32", Level(1)),
    ("kvm64", Level(1)),
    ("kvm32", Level(1)),
    ("486", Level(1)),
    ("pentium", Level(1)),
    ("pentium2", Level(1)),
    ("pentium3", Level(1)),
    ("coreduo", Level(1)),
    ("core2duo", Level(1)),
    ("n270", Level(1)),
    ("athlon", Level(1)),
    ("phenom", Level(1)),
    ("Conroe", Level(1)),
    ("Penryn", Level(1)),
    ("Nehalem", Level(2)),
    ("Nehalem-IBRS", Level(2)),
    ("Westmere", Level(2)),
    ("Westmere-IBRS", Level(2)),
    ("SandyBridge", Level(2)),
    ("SandyBridge-IBRS", Level(2)),
    ("IvyBridge", Level(2)),
    ("IvyBridge-IBRS", Level(2)),
    ("Haswell", Level(3)),
    ("Haswell-IBRS", Level(3)),
    ("Haswell-noTSX", Level(3)),
    ("Haswell-noTSX-IBRS", Level(3)),
    ("Broadwell", Level(3)),
    ("Broadwell-IBRS", Level(3)),
    ("Broadwell-noTSX", Level(3)),
    ("Broadwell-noTSX-IBRS", Level(3)),
    ("Skylake-Client", Level(3)),
    ("Skylake-Client-IBRS", Level(3)),
    ("Skylake-Client-noTSX-IBRS", Level(3)),
    ("Skylake-Server", Level(4)),
    ("Skylake-Server-IBRS", Level(4)),
    ("Skylake-Server-noTSX-IBRS", Level(4)),
    ("Cascadelake-Server", Level(4)),
    ("Cascadelake-Server-noTSX", Level(4)),
    ("Cooperlake", Level(4)),
    ("Icelake-Client", Level(4)),
    ("Icelake-Server", Level(4)),
    ("Icelake-Server-noTSX", Level(4)),
    ("SapphireRapids", Level(4)),
    ("GraniteRapids", Level(4)),
    ("SierraForest", Level(3)),
    ("ClearwaterForest", Level(3)),
    ("Denverton", Level(2)),
    ("Snowridge", Level(2)),
    ("KnightsMill", Level(3)),
    ("Opteron_G1", Level(1)),
    ("Opteron_G2", Level(1)),
    ("Opteron_G3", Level(1)),
    ("Opteron_G4", Level(2)),
    ("Opteron_G5", Level(2)),
    ("EPYC", Level(3)),
    ("EPYC-IBPB", Level(3)),
    ("EPYC-Rome", Level(3)),
    ("EPYC-Milan", Level(3)),
    ("EPYC-Genoa", Level(4)),
    ("EPYC-Turin", Level(4)),
    ("Dhyana", Level(3)),
    ("YongFeng", Level(3)),
    // Tollgate's own names.
    ("x86-64-v1", Level(1)),
    ("x86-64-v2", Level(2)),
    ("x86-64-v3", Level(3)),
    ("x86-64-v4", Level(4)),
];

/// The psABI level that a model includes; `None` for the host's processor.
pub fn model_level(name: &str) -> Option<u8> {
    let name = without_version(name);
    let mut models = MODELS.iter();
    let (_, model) = models.find(|(known, _)| *known == name)?;
    match model {
        Model::Host => None,
        Model::Level(level) => Some(*level),
    }
}

/// A model's name without its version, such as `-v2`.
pub fn without_version(name: &str) -> &str {
    match name.rsplit_once("-v") {
        Some((base, version))
            if !version.is_empty()
                && version.bytes().all(|it| it.is_ascii_digit())
                && base != "x86-64" =>
        {
            base
        }
        _ => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_left_out() {
        assert_eq!(without_version("Haswell-v2"), "Haswell");
        assert_eq!(without_version("Haswell"), "Haswell");
        assert_eq!(without_version("x86-64-v3"), "x86-64-v3");
        assert_eq!(without_version("a-vx"), "a-vx");
    }
}
