//! The arguments of `tollgate lab all` and `tollgate lab report`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use tollgate_lab::experiments;
use tollgate_lab::report::COST;

use super::arguments::{ExperimentArguments, SampleArguments};

/// The arguments of `tollgate lab all`.
#[derive(Args, Clone, Debug, Default)]
#[command(after_help = "\
Each study is an experiment of 'tollgate lab list', and 'cost' is 'tollgate cost'. The folder gets, for
each of them, NAME.samples.jsonl (each sample when it is finished), NAME.json, .csv, .svg and .txt; and
report.html (one page with its pictures inside) and report.md, which are written again after each study.

A full run takes a night. --quick does little work, with three repetitions, in at most about an hour.
A guest that is missing or fails does not end the run: the report says 'not run' and why.
Ctrl-C keeps what is finished; --resume continues, also after a crash, and measures guests that were
missing. Only the same build on the same host with the same options can continue a run.
Run it with nothing else to do on the host: the report gives no verdict where the host was busy.

Exit codes: 0 done, 1 a guest did not do its work or the host refuses, 2 a wrong flag or file,
            128+n interrupted by signal n.
Examples:
  To see that everything works:
    tollgate lab all --quick --output quick-results
  Everything, overnight, and continued after an interrupt:
    tollgate lab all --output results
    tollgate lab all --output results --resume
  What a change of Tollgate or of the host has changed:
    tollgate lab all --output new-results --compare results
  In at most six hours, with a DOS:
    tollgate lab all --output results --hours 6 --guest-image dos=floppy.img")]
pub struct AllArguments {
    /// The folder for results and report; it is made if it does not exist
    #[arg(long, value_name = "FOLDER", required = true)]
    pub output: PathBuf,

    /// Continue the run in the folder that was interrupted
    #[arg(long)]
    pub resume: bool,

    /// How much is measured.
    #[command(flatten)]
    pub samples: SampleArguments,

    /// The time for everything: slow workloads get fewer repetitions, and what does not fit is not
    /// run [default: with --quick 1, else any time]
    #[arg(long, value_name = "HOURS", value_parser = hours)]
    pub hours: Option<f64>,

    /// Run this study only; may be repeated
    #[arg(long, value_name = "NAME", value_parser = PossibleValuesParser::new(studies()))]
    pub study: Vec<String>,

    /// Compare with the run in this folder: for each workload, guest and arm, and each kind of exit
    #[arg(long, value_name = "FOLDER")]
    pub compare: Option<PathBuf>,
}

/// The arguments of `tollgate lab report`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
Examples:
  tollgate lab report results
  tollgate lab report results --compare older-results")]
pub struct ReportArguments {
    /// The folder of --output
    #[arg(value_name = "FOLDER")]
    pub folder: PathBuf,

    /// Compare with the run in this folder
    #[arg(long, value_name = "FOLDER")]
    pub compare: Option<PathBuf>,
}

/// The names of all studies, in the order in which they are run.
pub fn studies() -> Vec<&'static str> {
    let experiments = experiments::all().into_iter();
    let names = experiments.map(|experiment| experiment.about().name);
    // What exits cost takes minutes, so its figures are there first.
    std::iter::once(COST).chain(names).collect()
}

fn hours(text: &str) -> Result<f64, String> {
    let hours: f64 = text.parse().map_err(|_| "expected a number of hours")?;
    match (0.01..=1000.0).contains(&hours) {
        true => Ok(hours),
        false => Err("expected 0.01 to 1000 hours".into()),
    }
}

impl AllArguments {
    /// The chosen studies, in the order in which they are run.
    pub fn chosen(&self) -> Vec<&'static str> {
        let is_chosen =
            |name: &&str| self.study.is_empty() || self.study.iter().any(|it| it == name);
        studies().into_iter().filter(is_chosen).collect()
    }

    /// The time for everything.
    pub fn time(&self) -> Option<Duration> {
        let hours = self.hours.or(self.samples.quick.then_some(1.0))?;
        Some(Duration::from_secs_f64(hours * 3600.0))
    }

    /// The arguments of one experiment that has these guests.
    pub fn of_experiment(&self, guests: &[&str]) -> ExperimentArguments {
        let mut samples = self.samples.clone();
        samples
            .guest_image
            .retain(|(name, _)| guests.contains(&name.as_str()));
        ExperimentArguments {
            samples,
            ..ExperimentArguments::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn studies_run_in_their_order_whatever_the_order_of_the_flags() {
        assert_eq!(studies()[..2], ["cost", "vif"]);
        let arguments = AllArguments {
            study: vec!["shadow".into(), "cost".into()],
            ..AllArguments::default()
        };
        assert_eq!(arguments.chosen(), ["cost", "shadow"]);
    }

    #[test]
    fn a_quick_run_has_an_hour_unless_another_time_is_given() {
        let time = |quick, hours| {
            let arguments = AllArguments {
                samples: SampleArguments {
                    quick,
                    ..SampleArguments::default()
                },
                hours,
                ..AllArguments::default()
            };
            arguments.time().map(|time| time.as_secs())
        };
        assert_eq!(time(false, None), None);
        assert_eq!(time(true, None), Some(3600));
        assert_eq!(time(true, Some(0.5)), Some(1800));
        assert!(hours("0").is_err() && hours("x").is_err() && hours("0.5").is_ok());
    }
}
