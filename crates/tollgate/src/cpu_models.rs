//! `--cpu`: parses the name of a processor's model and lists the models.

use std::ffi::OsString;

use tollgate_machine::cpu::{self, AddedFeatures, Cpu, CpuModel, ModelError};

use crate::words;

/// The maximum width of a line of the list.
const WIDTH: usize = 96;

/// The processor model with this name.
///
/// # Errors
///
/// The reason, for a line that names the flag and the value.
pub fn parse(name: &str) -> Result<Cpu, String> {
    cpu::find(name).map_err(|error| match error {
        ModelError::Unknown(_) => {
            let names = CpuModel::ALL.map(CpuModel::name).join(", ");
            format!("expected one of {names}; --cpu help tells their features")
        }
        ModelError::UnknownFeature(_) | ModelError::Missing(..) | ModelError::OtherMaker(..) => {
            error.to_string()
        }
    })
}

/// Whether the words are `tollgate run --cpu help`, as QEMU's users type it. No kernel is needed
/// then.
pub fn are_asked_for(words: &[OsString]) -> bool {
    words::ask_for_help_on("--cpu", words)
}

/// The models and their features, for people.
pub fn list() -> String {
    let mut text = String::new();
    for (name, features) in cpu::models() {
        let lack = match cpu::find(name) {
            Ok(_) => "",
            Err(_) => " (this host lacks some of its features)",
        };
        text.push_str(&format!("{name}{lack}\n"));
        let mut line = String::from("   ");
        for feature in features {
            if line.len() + 1 + feature.len() > WIDTH {
                text.push_str(&format!("{line}\n"));
                line = String::from("   ");
            }
            line.push(' ');
            line.push_str(feature);
        }
        text.push_str(&format!("{line}\n"));
    }
    let added = AddedFeatures::NAMES.map(|(_, name)| format!(",+{name}"));
    text.push_str(&format!("with any of them: {}\n", added.join(" ")));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_model_is_listed_with_features_in_narrow_lines() {
        let text = list();
        for model in CpuModel::ALL {
            assert!(text.lines().any(|line| line.starts_with(model.name())));
        }
        assert!(text.lines().all(|line| line.len() <= WIDTH));
        assert!(text.contains(" lm"), "{text}");
    }

    #[test]
    fn help_is_asked_for_in_either_form_of_the_flag() {
        let asked = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            are_asked_for(&words)
        };
        assert!(asked("tollgate run --cpu help"));
        assert!(asked("tollgate run --kernel k --cpu=help"));
        assert!(!asked("tollgate run --cpu host --append help"));
        assert!(!asked("tollgate stats --cpu help"));
    }
}
