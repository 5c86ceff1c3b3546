//! `tollgate lab`: runs the experiments and writes their outputs.

use std::fs::File;
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, Ordering};
use std::time::{Duration, Instant};

use clap::error::{Error, ErrorKind};
use clap::{ArgMatches, Args, Command, FromArgMatches, Subcommand};
use tollgate_lab::experiment::{
    self, About, Experiment, GuestImages, LEAST_REPETITIONS, LabError, Observer, Options, Results,
    Section, Stop, samples_csv, to_json, write_plot,
};
use tollgate_lab::experiments;
use tollgate_lab::plotting::PlotFormat;
use tollgate_machine::knobs;

use crate::failure::{Failure, say};
use crate::signals::{Asked, Signals};
use crate::{doctor, exit_code, files, host};

/// Progress is not shown more often on a terminal, and in a file.
const ON_TERMINAL: Duration = Duration::from_millis(100);
const IN_FILE: Duration = Duration::from_secs(2);

/// Flags that all experiments have.
#[derive(Args, Clone, Debug)]
pub struct ExperimentArguments {
    /// As little work as shows that everything works; its figures are worth little
    #[arg(long)]
    pub quick: bool,

    /// Repetitions of each arm for each workload on each guest [default: 5, with --quick 3]
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(i64::from(LEAST_REPETITIONS)..=1000)
    )]
    pub repetitions: Option<u32>,

    /// Run this workload only; may be repeated
    #[arg(long, value_name = "NAME")]
    pub workload: Vec<String>,

    /// Run on this guest only; may be repeated
    #[arg(long, value_name = "NAME")]
    pub guest: Vec<String>,

    /// Compare this arm only with the first; may be repeated
    #[arg(long, value_name = "NAME")]
    pub arm: Vec<String>,

    /// The file of a guest that is not part of tollgate; may be repeated
    #[arg(long, value_name = "NAME=PATH", value_parser = guest_image)]
    pub guest_image: Vec<(String, PathBuf)>,

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

fn guest_image(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), path.into()))
        }
        _ => Err("expected NAME=PATH".into()),
    }
}

/// What to do: a subcommand for each experiment in the list.
#[derive(Clone, Debug)]
pub enum LabCommand {
    /// Show the experiments.
    List,
    /// Run the one with this name.
    Run(String, Box<ExperimentArguments>),
}

impl FromArgMatches for LabCommand {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        match matches.subcommand() {
            Some(("list", _)) => Ok(Self::List),
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
        let command = command
            .subcommand_required(true)
            .disable_help_subcommand(true)
            .subcommand(list);
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
        name == "list" || experiments::find(name).is_some()
    }
}

/// `tollgate lab`.
#[derive(Args, Debug)]
#[command(after_help = "\
An experiment compares settings of one machine ('arms') on the same work, in turns, and says
'no difference measured' where there is none. docs/lab.md tells how to read its tables.")]
pub struct LabArguments {
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The last sections of an experiment's help.
fn run_help(about: &About) -> String {
    let name = about.name;
    format!(
        "{}
Ctrl-C ends it: what is finished is shown and written.
Exit codes: 0 done, 1 a guest did not do its work or the host refuses, 2 a wrong flag or file,
            128+n interrupted by signal n.
Examples:
  Everything, with a plot and all samples:
    tollgate lab {name} --plot {name}.svg --csv {name}.csv
  One workload, more precisely:
    tollgate lab {name} --workload {} --repetitions 15
  To see that it works:
    tollgate lab {name} --quick",
        description(about),
        about
            .workloads
            .first()
            .map_or("NAME", |workload| workload.name),
    )
}

/// Arms, workloads, guests and knobs.
fn description(about: &About) -> String {
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

/// Runs `tollgate lab` and returns its exit code.
pub fn run(arguments: &LabArguments) -> u8 {
    match &arguments.command {
        LabCommand::List => list(),
        LabCommand::Run(name, arguments) => {
            experiment(name, arguments).unwrap_or_else(|failure| failure.report())
        }
    }
}

fn list() -> u8 {
    let mut text = String::new();
    for experiment in experiments::all() {
        let about = experiment.about();
        text.push_str(&format!("{}: {}\n", about.name, about.one_line));
        for line in description(about).lines() {
            text.push_str(&format!("  {line}\n"));
        }
        text.push('\n');
    }
    print(text.trim_end());
    exit_code::SUCCESS
}

fn print(text: &str) {
    // A reader that has seen enough closes the pipe: `tollgate lab vif | head`.
    let _ = writeln!(std::io::stdout(), "{}", text.trim_end());
}

fn experiment(name: &str, arguments: &ExperimentArguments) -> Result<u8, Failure> {
    let experiment = experiments::find(name)
        .ok_or_else(|| Failure::usage(format!("no experiment is called '{name}'")))?;
    // Whatever is wrong with the files is known before an hour has passed.
    let outputs = Outputs::open(arguments)?;
    doctor::required_floor().map_err(Failure::host)?;
    let signals = Signals::block()
        .map_err(|error| Failure::host(format!("cannot receive signals: {error}")))?;
    let stop = Stop::new();
    let signal = watch(signals, stop.clone())
        .map_err(|error| Failure::host(format!("cannot start a thread: {error}")))?;
    let mut progress = Progress::new();
    let results = experiment::run(&*experiment, &options(arguments), &stop, &mut progress);
    progress.clear();
    let results = results.map_err(|error| match error {
        LabError::Unknown { .. } | LabError::NotRun(_) => Failure::usage(error.to_string()),
        _ => Failure::host(error.to_string()),
    })?;
    let written = report(&*experiment, &results, outputs);
    match (signal.load(Ordering::SeqCst), results.failures().first()) {
        (0, None) => written.map(|()| exit_code::SUCCESS),
        (0, Some(failure)) => Err(Failure::host(failure.clone())),
        (signal, _) => written.map(|()| exit_code::for_signal(signal)),
    }
}

fn report(experiment: &dyn Experiment, results: &Results, outputs: Outputs) -> Result<(), Failure> {
    let sections = experiment.sections(results);
    print(&experiment::table(results, &sections));
    outputs.write(results, &sections)
}

fn options(arguments: &ExperimentArguments) -> Options {
    let defaults = if arguments.quick {
        Options::quick()
    } else {
        Options::default()
    };
    Options {
        repetitions: arguments.repetitions.unwrap_or(defaults.repetitions),
        workloads: arguments.workload.clone(),
        guests: arguments.guest.clone(),
        arms: arguments.arm.clone(),
        images: GuestImages::of(arguments.guest_image.iter().cloned()),
        ..defaults
    }
}

/// The files to be written.
struct Outputs {
    csv: Option<(File, PathBuf)>,
    json: Option<(File, PathBuf)>,
    plot: Option<(PlotFormat, PathBuf)>,
}

impl Outputs {
    fn open(arguments: &ExperimentArguments) -> Result<Self, Failure> {
        let open = |path: &Option<PathBuf>, flag| -> Result<Option<(File, PathBuf)>, Failure> {
            let path = path.as_ref();
            path.map(|path| Ok((files::create(path, flag)?, path.clone())))
                .transpose()
        };
        let plot = |path: &Path| -> Result<(PlotFormat, PathBuf), Failure> {
            let name = path.display();
            let format = PlotFormat::of(path).ok_or_else(|| {
                Failure::usage(format!("--plot: '{name}' must end in .svg or .png"))
            })?;
            files::create(path, "--plot")?;
            Ok((format, path.to_owned()))
        };
        Ok(Self {
            plot: arguments.plot.as_deref().map(plot).transpose()?,
            csv: open(&arguments.csv, "--csv")?,
            json: open(&arguments.json, "--json")?,
        })
    }

    fn write(self, results: &Results, sections: &[Section]) -> Result<(), Failure> {
        let texts = [
            ("--csv", self.csv, samples_csv(results)),
            ("--json", self.json, to_json(results, sections)),
        ];
        for (flag, file, text) in texts {
            if let Some((mut file, path)) = file {
                file.write_all(text.as_bytes()).map_err(|error| {
                    let path = path.display();
                    Failure::usage(format!("{flag}: cannot write '{path}': {error}"))
                })?;
            }
        }
        let is_empty = results.cells.iter().all(|cell| cell.samples().is_empty());
        if let Some((format, path)) = self.plot.filter(|_| !is_empty) {
            write_plot(results, &path, format)
                .map_err(|error| Failure::usage(format!("--plot: {error}")))?;
        }
        Ok(())
    }
}

/// Has a signal end the experiment; a second one ends the process. Returns where the
/// signal's number will stand.
fn watch(signals: Signals, stop: Stop) -> std::io::Result<Arc<AtomicI32>> {
    let number = Arc::new(AtomicI32::new(0));
    let seen = Arc::clone(&number);
    let wait = move || {
        loop {
            use std::os::fd::AsRawFd;
            let mut fds = [host::interest(signals.as_raw_fd(), libc::POLLIN)];
            if host::poll(&mut fds, None).is_err() {
                return;
            }
            while let Some(asked) = signals.next() {
                let Asked::End(signal) = asked else { continue };
                if seen.swap(signal, Ordering::SeqCst) != 0 {
                    std::process::exit(exit_code::for_signal(signal).into());
                }
                stop.request();
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(wait)?;
    Ok(number)
}

/// Shows what is done on standard error.
struct Progress {
    is_terminal: bool,
    shown: Option<Instant>,
}

impl Progress {
    fn new() -> Self {
        Self {
            is_terminal: std::io::stderr().is_terminal(),
            shown: None,
        }
    }

    /// Takes the line away.
    fn clear(&mut self) {
        if self.is_terminal && self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

impl Observer for Progress {
    fn progress(&mut self, done: usize, total: usize, next: &str) {
        let pause = if self.is_terminal {
            ON_TERMINAL
        } else {
            IN_FILE
        };
        if self.shown.is_some_and(|shown| shown.elapsed() < pause) {
            return;
        }
        self.shown = Some(Instant::now());
        let line = format!("[{}/{total}] {next}", (done + 1).min(total));
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[Ktollgate: {line}");
        } else {
            say(&line);
        }
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
