//! The arguments of `tollgate lab` and its help, made from the descriptions of the experiments.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{Error, ErrorKind};
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use tollgate_lab::experiment::{About, GuestImages, LEAST_REPETITIONS, Options};
use tollgate_lab::experiments;
use tollgate_machine::knobs;

use super::all_arguments::{AllArguments, ReportArguments};

/// Flags of every run that takes samples: of one experiment, or of all studies.
#[derive(Args, Clone, Debug, Default)]
pub struct SampleArguments {
    /// Do as little work as shows that everything works; the figures are not reliable
    #[arg(long)]
    pub quick: bool,

    /// Repetitions of each arm for each workload on each guest [default: 9, with --quick 3]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(i64::from(LEAST_REPETITIONS)..=1000)
    )]
    pub repetitions: Option<u32>,

    /// The file of a guest that is not part of tollgate; may be repeated
    #[arg(long, value_name = "NAME=PATH", value_parser = guest_image)]
    pub guest_image: Vec<(String, PathBuf)>,
}

/// Flags that all experiments have.
#[derive(Args, Clone, Debug, Default)]
pub struct ExperimentArguments {
    /// How much is measured.
    #[command(flatten)]
    pub samples: SampleArguments,

    /// Run this workload only; may be repeated
    #[arg(long, value_name = "NAME")]
    pub workload: Vec<String>,

    /// Run on this guest only; may be repeated
    #[arg(long, value_name = "NAME")]
    pub guest: Vec<String>,

    /// Compare this arm only with the first; may be repeated
    #[arg(long, value_name = "NAME")]
    pub arm: Vec<String>,

    /// Show all tables instead of the conclusions
    #[arg(long)]
    pub full: bool,

    /// Keep every finished sample in this folder, and write tables, CSV, JSON and a plot there
    #[arg(long, value_name = "FOLDER")]
    pub output: Option<PathBuf>,

    /// Continue the run in the folder of --output that was interrupted: on the same host, with the
    /// same build and options, which need not be given again
    #[arg(long, requires = "output")]
    pub resume: bool,

    /// Write every sample as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw every repetition, median and quartiles: FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// The arguments of `tollgate lab show`.
#[derive(Args, Clone, Debug)]
#[command(after_help = "\
tollgate lab FILE.json is short for it.
Examples:
  tollgate lab shadow --json run.json
  tollgate lab run.json
  tollgate lab run.json --short --plot run.png")]
pub struct ShowArguments {
    /// What --json has written
    #[arg(value_name = "FILE.json")]
    pub file: PathBuf,

    /// Show the conclusions, not the tables
    #[arg(long)]
    pub short: bool,

    /// Write every sample as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Draw every repetition, median and quartiles: FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

/// Rewrites `tollgate lab FILE.json` as `tollgate lab show FILE.json`.
pub fn with_show(mut words: Vec<OsString>) -> Vec<OsString> {
    let names_file = words
        .get(2)
        .is_some_and(|word| Path::new(word).extension().is_some_and(|end| end == "json"));
    if names_file && words[1] == "lab" {
        words.insert(2, "show".into());
    }
    words
}

/// The name and the path of `--guest-image`.
fn guest_image(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), path.into()))
        }
        _ => Err("expected NAME=PATH".into()),
    }
}

/// The subcommands: `list`, `show`, `all`, `report`, and each experiment in the list.
#[derive(Clone, Debug)]
pub enum LabCommand {
    /// Show the experiments.
    List,
    /// Show the results that `--json` has written.
    Show(ShowArguments),
    /// Run all studies.
    All(Box<AllArguments>),
    /// Write the report of stored results.
    Report(ReportArguments),
    /// Run the experiment with this name.
    Run(String, Box<ExperimentArguments>),
}

impl FromArgMatches for LabCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        match matches.subcommand() {
            Some(("list", _)) => Ok(Self::List),
            Some(("show", matches)) => Ok(Self::Show(ShowArguments::from_arg_matches(matches)?)),
            Some(("all", matches)) => Ok(Self::All(Box::new(AllArguments::from_arg_matches(
                matches,
            )?))),
            Some(("report", matches)) => {
                Ok(Self::Report(ReportArguments::from_arg_matches(matches)?))
            }
            Some((name, matches)) => Ok(Self::Run(
                name.to_owned(),
                Box::new(ExperimentArguments::from_arg_matches(matches)?),
            )),
            None => Err(Error::new(ErrorKind::MissingSubcommand)),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for LabCommand {
    fn augment_subcommands(command: Command) -> Command {
        let list = Command::new("list").about("Show the experiments, their arms and knobs");
        let show = ShowArguments::augment_args(Command::new("show"))
            .about("Show a run's tables again, from what --json has written");
        let all = AllArguments::augment_args(Command::new("all"))
            .about("Run all studies into one folder, with one report of them");
        let report = ReportArguments::augment_args(Command::new("report"))
            .about("Write the report of the results in a folder again");
        let command = command
            .subcommand_required(true)
            .disable_help_subcommand(true)
            .subcommand(list)
            .subcommand(show)
            .subcommand(all)
            .subcommand(report);
        experiments::all()
            .into_iter()
            .fold(command, |command, experiment| {
                let about = experiment.about();
                let one = ExperimentArguments::augment_args(Command::new(about.name))
                    .about(about.one_line)
                    .long_about(format!("{}\n\n{}", about.one_line, about.question))
                    .after_help(run_help(about));
                command.subcommand(one)
            })
    }

    fn augment_subcommands_for_update(command: Command) -> Command {
        Self::augment_subcommands(command)
    }

    fn has_subcommand(name: &str) -> bool {
        ["list", "show", "all", "report"].contains(&name) || experiments::find(name).is_some()
    }
}

/// The arguments of `tollgate lab`.
#[derive(Args, Debug)]
#[command(after_help = "\
An experiment compares settings of one machine ('arms') on the same work, in turns, and says
'no difference measured' where there is none. docs/measured/lab.md tells how to read its tables.")]
pub struct LabArguments {
    /// The subcommand and its arguments.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The last sections of an experiment's help.
fn run_help(about: &About) -> String {
    let name = about.name;
    format!(
        "{}
Ctrl-C ends it: what is finished is shown and written. With --output FOLDER each sample is kept
when it is finished, and --resume continues the run after an interrupt, a crash or a missing guest.

Exit codes: 0 done, 1 nothing could be run, a guest did not do its work or the host refuses,
            2 a wrong flag or file, 128+n interrupted by signal n.
Examples:
  Everything, with a plot and all samples:
    tollgate lab {name} --plot {name}.svg --csv {name}.csv
  One workload, more precisely:
    tollgate lab {name} --workload {} --repetitions 15
  To see that it works:
    tollgate lab {name} --quick
  A long run that can be interrupted, and continued:
    tollgate lab {name} --output {name}-results
    tollgate lab {name} --output {name}-results --resume",
        description(about),
        about
            .workloads
            .first()
            .map_or("NAME", |workload| workload.name),
    )
}

/// Lists the arms, workloads, guests and knobs of an experiment.
pub fn description(about: &About) -> String {
    let mut text = String::new();
    let mut part = |title: &str, rows: Vec<(String, &str)>| {
        text.push_str(&format!("{title}:\n"));
        let width = rows.iter().map(|row| row.0.len()).max().unwrap_or(0);
        for (name, what) in rows {
            text.push_str(&format!("  {name:<width$}  {what}\n"));
        }
    };
    let arms = about.arms.iter();
    part(
        "Arms",
        arms.map(|arm| (arm.name.to_owned(), arm.what)).collect(),
    );
    let workloads = about.workloads.iter();
    part(
        "Workloads",
        workloads
            .map(|workload| (workload.name.to_owned(), workload.what))
            .collect(),
    );
    let guests = about.guests.iter();
    part(
        "Guests",
        guests
            .map(|guest| (guest.name.to_owned(), guest.what))
            .collect(),
    );
    let knobs = knobs::KNOBS
        .iter()
        .filter(|knob| knob.experiment == about.name);
    part(
        "Knobs",
        knobs
            .map(|knob| {
                (
                    format!("{}={}", knob.name, knob.values.join("|")),
                    knob.what,
                )
            })
            .collect(),
    );
    text
}

/// The experiment's options, from its arguments.
pub fn options(arguments: &ExperimentArguments) -> Options {
    let samples = &arguments.samples;
    let defaults = if samples.quick {
        Options::quick()
    } else {
        Options::default()
    };
    Options {
        repetitions: samples.repetitions.unwrap_or(defaults.repetitions),
        workloads: arguments.workload.clone(),
        guests: arguments.guest.clone(),
        arms: arguments.arm.clone(),
        images: GuestImages::of(samples.guest_image.iter().cloned()),
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use tollgate_lab::experiment::REPETITIONS;

    use super::*;

    #[test]
    fn an_image_is_a_name_and_a_path() {
        assert_eq!(
            guest_image("dos=a=b.img"),
            Ok(("dos".into(), "a=b.img".into()))
        );
        for bad in ["dos", "=x", "dos="] {
            assert!(guest_image(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_file_of_json_behind_lab_is_shown() {
        let words = |words: &[&str]| -> Vec<OsString> { words.iter().map(Into::into).collect() };
        let shown = with_show(words(&["tollgate", "lab", "run.json", "--short"]));
        assert_eq!(
            shown,
            words(&["tollgate", "lab", "show", "run.json", "--short"])
        );
        for others in [
            &["tollgate", "lab", "shadow"][..],
            &["tollgate", "stats", "run.json"],
            &["tollgate", "lab"],
        ] {
            assert_eq!(with_show(words(others)), words(others));
        }
    }

    #[test]
    fn quick_means_fewer_repetitions_unless_they_are_given() {
        let arguments = |words: &[&str]| {
            let command = ExperimentArguments::augment_args(Command::new("x"));
            let words = ["x"].iter().chain(words);
            let matches = command.try_get_matches_from(words)?;
            ExperimentArguments::from_arg_matches(&matches)
        };
        let repetitions = |words: &[&str]| options(&arguments(words).unwrap()).repetitions;
        assert_eq!(repetitions(&[]), REPETITIONS);
        assert_eq!(repetitions(&["--quick"]), LEAST_REPETITIONS);
        assert_eq!(repetitions(&["--quick", "--repetitions", "7"]), 7);
        assert!(arguments(&["--repetitions", "2"]).is_err());
    }
}
