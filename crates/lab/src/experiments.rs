//! The list of experiments.

use crate::experiment::Experiment;
use crate::icache::InstructionCache;
use crate::interruptible::Interruptible;
use crate::native_code::NativeCode;
use crate::shadow::Shadow;
use crate::vif::Vif;

/// All experiments of `tollgate lab`.
pub fn all() -> Vec<Box<dyn Experiment>> {
    vec![
        Box::new(Vif),
        Box::new(Shadow),
        Box::new(InstructionCache),
        Box::new(Interruptible),
        Box::new(NativeCode),
    ]
}

/// The experiment with this name, if there is one.
pub fn find(name: &str) -> Option<Box<dyn Experiment>> {
    let mut experiments = all().into_iter();
    experiments.find(|experiment| experiment.about().name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::{Arm, Workload};
    use tollgate_machine::config::VmConfig;
    use tollgate_machine::knobs::{Settings, find};

    #[test]
    fn each_experiment_describes_itself_consistently() {
        for experiment in all() {
            let about = experiment.about();
            assert!(about.arms.len() > 1 && !about.workloads.is_empty());
            assert!(!about.guests.is_empty() && !about.kinds.is_empty());
            let is_arm = |name: &&str| about.arms.iter().any(|arm| arm.name == *name);
            let is_guest = |name: &&str| about.guests.iter().any(|guest| guest.name == *name);
            let names_fit = |workload: &Workload| {
                workload.arms.iter().all(is_arm) && workload.guests.iter().all(is_guest)
            };
            assert!(about.workloads.iter().all(names_fit), "{}", about.name);
        }
    }

    #[test]
    fn arms_differ_in_known_knobs_of_their_experiment() {
        for experiment in all() {
            let about = experiment.about();
            let settings: Vec<Settings> = about
                .arms
                .iter()
                .map(|arm| Settings::of(&arm.config(&VmConfig::default()).unwrap()))
                .collect();
            for (index, (arm, set)) in about.arms.iter().zip(&settings).enumerate() {
                let is_same = |(other, its): (&Arm, &Settings)| {
                    (other.checks, other.hooks) == (arm.checks, arm.hooks) && its == set
                };
                let mut earlier = about.arms.iter().zip(&settings).take(index);
                assert!(!earlier.any(is_same), "{}", arm.name);
                // An arm must not leave a knob to its default if another arm sets it.
                for other in about.arms {
                    for (knob, _) in other.settings {
                        assert!(arm.settings.iter().any(|(name, _)| name == knob));
                    }
                }
                for (knob, _) in arm.settings {
                    assert_eq!(find(knob).unwrap().experiment, about.name);
                }
            }
        }
    }
}
