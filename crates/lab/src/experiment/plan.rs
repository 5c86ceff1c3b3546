//! Which cells are run, and the order of their arms.

use super::{About, Arm, Guest, LabError, Workload};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Repetitions of each arm in each cell. With five, one in five comparisons of an arm with itself
/// would find a difference, as `chance_of_difference` computes.
pub const REPETITIONS: u32 = 9;
/// The minimum number of repetitions: with fewer, quartiles make no sense.
pub const LEAST_REPETITIONS: u32 = 3;

/// The options of an experiment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Repetitions of each arm in each cell, at least [`LEAST_REPETITIONS`].
    pub repetitions: u32,
    /// Does the minimum of work that shows that everything works.
    pub quick: bool,
    /// Runs only these workloads; if empty, all.
    pub workloads: Vec<String>,
    /// Runs only these guests; if empty, all.
    pub guests: Vec<String>,
    /// Runs only these arms in addition to the first; if empty, all.
    pub arms: Vec<String>,
    /// Files of guests that we cannot distribute.
    pub images: GuestImages,
    /// The time that the experiment may take, approximately; `None` for any time. Cells that take
    /// longer than their part get fewer repetitions.
    pub time: Option<Duration>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            repetitions: REPETITIONS,
            quick: false,
            workloads: Vec::new(),
            guests: Vec::new(),
            arms: Vec::new(),
            images: GuestImages::default(),
            time: None,
        }
    }
}

impl Options {
    /// Options for few repetitions of little work.
    pub fn quick() -> Self {
        Self {
            repetitions: LEAST_REPETITIONS,
            quick: true,
            ..Self::default()
        }
    }
}

/// Files that the user supplies: the guests' names and the paths.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GuestImages(BTreeMap<String, PathBuf>);

impl GuestImages {
    /// Makes this list of names and paths.
    pub fn of(images: impl IntoIterator<Item = (String, PathBuf)>) -> Self {
        Self(images.into_iter().collect())
    }

    /// The file for the guest with this name.
    pub fn path(&self, guest: &str) -> Option<&Path> {
        self.0.get(guest).map(PathBuf::as_path)
    }

    /// All names with their files.
    pub fn all(&self) -> impl Iterator<Item = (&str, &Path)> {
        self.0.iter().map(|(name, path)| (&**name, &**path))
    }

    /// The names of the guests.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// One workload on one guest.
#[derive(Clone, Copy)]
pub struct Cell {
    /// The guest that runs the workload.
    pub guest: &'static Guest,
    /// The workload that the guest runs.
    pub workload: &'static Workload,
}

/// The cells and arms that were requested.
pub(super) struct Plan {
    pub cells: Vec<Cell>,
    arms: Vec<&'static Arm>,
    repetitions: u32,
    images: GuestImages,
}

impl Plan {
    /// The plan that `options` describe.
    ///
    /// # Errors
    ///
    /// A name is unknown, or nothing remains to be done.
    pub fn of(about: &'static About, options: &Options) -> Result<Self, LabError> {
        check(("--workload", "workload"), &options.workloads, || {
            about.workloads.iter().map(|workload| workload.name)
        })?;
        let guests = || about.guests.iter().map(|guest| guest.name);
        check(("--guest", "guest"), &options.guests, guests)?;
        let images: Vec<String> = options.images.names().map(str::to_owned).collect();
        check(("--guest-image", "guest"), &images, guests)?;
        check(("--arm", "arm"), &options.arms, || {
            about.arms.iter().map(|arm| arm.name)
        })?;
        let cells = about.guests.iter().flat_map(|guest| {
            let workloads = about.workloads.iter();
            workloads.map(move |workload| Cell { guest, workload })
        });
        let cells: Vec<Cell> = cells
            .filter(|cell| is_chosen(&options.guests, cell.guest.name))
            .filter(|cell| is_chosen(&options.workloads, cell.workload.name))
            .filter(|cell| {
                let guests = cell.workload.guests;
                guests.is_empty() || guests.contains(&cell.guest.name)
            })
            .collect();
        let arms = about.arms.iter().enumerate();
        let arms: Vec<&Arm> = arms
            .filter(|(index, arm)| *index == 0 || is_chosen(&options.arms, arm.name))
            .map(|(_, arm)| arm)
            .collect();
        if cells.is_empty() {
            return Err(LabError::NotRun(
                "this workload does not run on this guest: nothing is left to do".into(),
            ));
        }
        Ok(Self {
            cells,
            arms,
            repetitions: options.repetitions.max(LEAST_REPETITIONS),
            images: options.images.clone(),
        })
    }

    /// The arms that are run in a cell.
    pub fn arms(&self, cell: &Cell) -> Vec<&'static Arm> {
        let chosen = cell.workload.arms;
        let arms = self.arms.iter().copied();
        arms.filter(|arm| chosen.is_empty() || chosen.contains(&arm.name))
            .filter(|arm| arm.guests.is_empty() || arm.guests.contains(&cell.guest.name))
            .collect()
    }

    /// Whether the user must supply the cell's guest, and has not done so.
    pub fn lacks_image(&self, cell: &Cell) -> bool {
        cell.guest.needs_image && self.images.path(cell.guest.name).is_none()
    }

    /// The runs of a cell in their order: every arm once, then every arm again. Empty if its guest
    /// is missing.
    pub fn turns(&self, cell: &Cell) -> Vec<(u32, &'static Arm)> {
        if self.lacks_image(cell) {
            return Vec::new();
        }
        let arms = self.arms(cell);
        let rounds = (1..=self.repetitions).zip(0_usize..);
        rounds
            .flat_map(|(repetition, round)| {
                let mut arms = arms.clone();
                let first = round % arms.len().max(1);
                arms.rotate_left(first);
                arms.into_iter().map(move |arm| (repetition, arm))
            })
            .collect()
    }

    /// The number of all samples to be taken.
    pub fn samples(&self) -> usize {
        self.cells.iter().map(|cell| self.turns(cell).len()).sum()
    }
}

/// The number of samples that a run with these options takes; 0 if the options are wrong.
pub fn planned_samples(about: &'static About, options: &Options) -> usize {
    Plan::of(about, options).map_or(0, |plan| plan.samples())
}

fn is_chosen(chosen: &[String], name: &str) -> bool {
    chosen.is_empty() || chosen.iter().any(|chosen| chosen == name)
}

fn check<I: Iterator<Item = &'static str>>(
    (flag, what): (&'static str, &'static str),
    names: &[String],
    known: impl Fn() -> I,
) -> Result<(), LabError> {
    match names
        .iter()
        .find(|name| !known().any(|known| known == *name))
    {
        None => Ok(()),
        Some(name) => Err(LabError::Unknown {
            flag,
            what,
            name: name.clone(),
            known: known().collect(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::test_experiment::ABOUT;
    use super::*;

    fn turns(options: &Options) -> Vec<(u32, &'static str)> {
        let plan = Plan::of(&ABOUT, options).unwrap();
        let turns = plan.turns(&plan.cells[0]).into_iter();
        turns.map(|(turn, arm)| (turn, arm.name)).collect()
    }

    #[test]
    fn arms_alternate_and_each_round_begins_with_the_next_one() {
        let expected = [(1, "a"), (1, "b"), (2, "b"), (2, "a"), (3, "a"), (3, "b")];
        assert_eq!(turns(&Options::quick()), expected);
        assert_eq!(turns(&Options::default()).len(), 2 * REPETITIONS as usize);
    }

    #[test]
    fn fewer_repetitions_than_make_quartiles_are_not_run() {
        let options = Options {
            repetitions: 1,
            ..Options::default()
        };
        assert_eq!(turns(&options).len(), 2 * LEAST_REPETITIONS as usize);
    }

    #[test]
    fn the_first_arm_is_always_there_to_compare_with() {
        let options = Options {
            arms: vec!["b".into()],
            ..Options::quick()
        };
        assert_eq!(turns(&options)[..2], [(1, "a"), (1, "b")]);
    }

    #[test]
    fn names_that_are_not_known_are_answered_with_those_that_are() {
        let error = |options: Options| Plan::of(&ABOUT, &options).err().unwrap().to_string();
        assert_eq!(
            error(Options {
                workloads: vec!["dance".into()],
                ..Options::default()
            }),
            "--workload: no workload is called 'dance'; there are: spin, count"
        );
        assert_eq!(
            error(Options {
                images: GuestImages::of([("os2".into(), "x".into())]),
                ..Options::default()
            }),
            "--guest-image: no guest is called 'os2'; there are: ours, theirs"
        );
    }

    #[test]
    fn a_workload_runs_on_its_guests_only() {
        let plan = Plan::of(&ABOUT, &Options::default()).unwrap();
        let names: Vec<_> = plan
            .cells
            .iter()
            .map(|cell| (cell.guest.name, cell.workload.name))
            .collect();
        assert_eq!(
            names,
            [("ours", "spin"), ("ours", "count"), ("theirs", "spin")]
        );
        // The guest's image is missing.
        assert_eq!(plan.samples(), 2 * 2 * REPETITIONS as usize);
    }
}
