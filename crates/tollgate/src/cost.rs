//! `tollgate cost`: measures what exits cost, and writes tables, files and plots of it.

use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Args;
use clap::builder::PossibleValuesParser;
use tollgate_lab::cost::{
    self, CostError, GuestMode, Observer, Options, Report, overhead, samples_csv, summary_csv,
    to_json,
};
use tollgate_plots::PlotFormat;

use crate::failure::{Failure, say};
use crate::files;
use crate::signals::{Asked, Signals};
use crate::standard_output::print;
use crate::{columns, doctor, exit_code};

/// The shortest time between two updates of the progress line on a terminal.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// The arguments of `tollgate cost`.
#[derive(Args, Debug)]
#[command(after_help = "\
Exit codes: 0 done, 1 the host refuses or the guest did not do its work, 2 a wrong flag or file,
            128+n interrupted by signal n (what was finished is shown and written).
Examples:
  What every kind of exit costs here, as a table and a plot:
    tollgate cost --plot cost.svg
  Only the bare way out and back, more precisely:
    tollgate cost --kind null-hypercall --samples 100000
  What exits cost 64-bit kernels and programs:
    tollgate cost --mode 64-bit --mode 64-ring-3
  What the ledger itself costs:
    tollgate cost --ledger-overhead")]
pub struct CostArguments {
    /// Write the table's figures as CSV
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Write every value that was measured, with how often it occurred, as CSV
    #[arg(long, value_name = "FILE")]
    pub samples_csv: Option<PathBuf>,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Draw the cumulative distributions: FILE.svg or FILE.png
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,

    /// Show the table of all figures instead of the conclusions
    #[arg(long)]
    pub full: bool,

    /// Price only this kind; may be repeated
    #[arg(long, value_name = "NAME")]
    pub kind: Vec<String>,

    /// Measure only in this mode of the guest's processor; may be repeated
    #[arg(
        long,
        value_name = "NAME",
        value_parser = PossibleValuesParser::new(GuestMode::ALL.map(GuestMode::name))
    )]
    pub mode: Vec<String>,

    /// Events timed one by one, for each kind and mode; slow kinds take a tenth
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub samples: Option<u32>,

    /// Host processor for the pinned half [default: where it happens to run]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,

    /// Take few samples, to see that everything works
    #[arg(long)]
    pub quick: bool,

    /// Measure what the ledger itself costs instead
    #[arg(
        long,
        conflicts_with_all = ["csv", "samples_csv", "json", "plot", "kind", "mode", "samples", "cpu"]
    )]
    pub ledger_overhead: bool,

    /// Write the 32-bit Linux program that repeats the null hypercall from ring 3, and end
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub write_linux_program: Option<PathBuf>,

    /// Write the same program for 64-bit Linux, and end
    #[arg(long, value_name = "FILE", exclusive = true)]
    pub write_linux_program_64: Option<PathBuf>,
}

/// The number of pairs of runs that measure the ledger's overhead.
const PAIRS: usize = 9;
/// The number of pairs of runs with `--quick`.
const QUICK_PAIRS: usize = 1;

/// Runs `tollgate cost` and returns its exit code.
pub fn run(arguments: &CostArguments) -> u8 {
    measure(arguments).unwrap_or_else(|failure| failure.report())
}

fn measure(arguments: &CostArguments) -> Result<u8, Failure> {
    let programs = [
        (
            "--write-linux-program",
            &arguments.write_linux_program,
            tollgate_lab::HYPERCALL_LINUX,
        ),
        (
            "--write-linux-program-64",
            &arguments.write_linux_program_64,
            tollgate_lab::HYPERCALL_LINUX_64,
        ),
    ];
    for (flag, path, program) in programs {
        if let Some(path) = path {
            write_program(flag, path, program)?;
            return Ok(exit_code::SUCCESS);
        }
    }
    let plot = arguments.plot.as_deref().map(plot_format).transpose()?;
    // A wrong path must be reported before the measurement begins.
    let paths = [
        ("--csv", &arguments.csv),
        ("--samples-csv", &arguments.samples_csv),
        ("--json", &arguments.json),
        ("--plot", &arguments.plot),
    ];
    let mut reserved = Vec::new();
    for (flag, path) in paths {
        if let Some(path) = path {
            reserved.push(files::reserve(path, flag)?.1);
        }
    }
    doctor::required_floor().map_err(Failure::host)?;
    let signals = Signals::block()
        .map_err(|error| Failure::host(format!("cannot receive signals: {error}")))?;
    let mut watcher = Watcher::new(signals);
    if arguments.ledger_overhead {
        let pairs = if arguments.quick { QUICK_PAIRS } else { PAIRS };
        let results = overhead::run(pairs, &mut watcher);
        watcher.clear();
        print(&overhead::table(&results.map_err(failure)?))?;
        return Ok(watcher.exit_code());
    }
    let report = cost::run(&options(arguments), &mut watcher);
    watcher.clear();
    let report = report.map_err(failure)?;
    let shown = match arguments.full {
        true => print(&cost::table(&report)),
        false => {
            let summary = cost::summary(&report);
            print(&columns::wrapped(&summary, &std::io::stdout()))
                .and_then(|()| print("All figures: --full; in files: --csv, --json, --plot.\n"))
        }
    };
    // The results go to their files even if the measurement was stopped.
    write_files(arguments, plot, &report)?;
    shown?;
    Ok(watcher.exit_code())
}

fn options(arguments: &CostArguments) -> Options {
    let defaults = if arguments.quick {
        Options::quick()
    } else {
        Options::default()
    };
    Options {
        samples: arguments
            .samples
            .map_or(defaults.samples, |samples| samples as usize),
        kinds: arguments.kind.clone(),
        modes: GuestMode::ALL
            .into_iter()
            .filter(|mode| arguments.mode.iter().any(|name| name == mode.name()))
            .collect(),
        processor: arguments.cpu,
        ..defaults
    }
}

fn failure(error: CostError) -> Failure {
    match error {
        CostError::UnknownKind(_) | CostError::NothingChosen => Failure::usage(error.to_string()),
        CostError::Host(_) | CostError::WorkNotDone(_) => Failure::host(error.to_string()),
    }
}

fn plot_format(path: &Path) -> Result<(PlotFormat, &Path), Failure> {
    let format = PlotFormat::of(path).ok_or_else(|| {
        Failure::usage(format!(
            "--plot: '{}' must end in .svg or .png",
            path.display()
        ))
    })?;
    Ok((format, path))
}

fn write_files(
    arguments: &CostArguments,
    plot: Option<(PlotFormat, &Path)>,
    report: &Report,
) -> Result<(), Failure> {
    let texts = [
        (
            "--csv",
            &arguments.csv,
            summary_csv as fn(&Report) -> String,
        ),
        ("--samples-csv", &arguments.samples_csv, samples_csv),
        ("--json", &arguments.json, to_json),
    ];
    for (flag, path, text) in texts {
        if let Some(path) = path {
            std::fs::write(path, text(report)).map_err(|error| cannot_write(flag, path, &error))?;
        }
    }
    if let Some((format, path)) = plot {
        cost::write_plot(report, path, format)
            .map_err(|error| Failure::usage(format!("--plot: {error}")))?;
    }
    Ok(())
}

fn cannot_write(flag: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::usage(format!(
        "{flag}: cannot write '{}': {}",
        path.display(),
        tollgate_host_facts::file_words::writing(error)
    ))
}

fn write_program(flag: &str, path: &Path, program: &[u8]) -> Result<(), Failure> {
    std::fs::OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o755)
        .open(path)
        .and_then(|mut file| file.write_all(program))
        .map_err(|error| cannot_write(flag, path, &error))
}

/// Shows progress and notices signals.
struct Watcher {
    signals: Signals,
    signal: Option<i32>,
    is_terminal: bool,
    shown: Option<Instant>,
    last_tenth: usize,
}

impl Watcher {
    fn new(signals: Signals) -> Self {
        Self {
            signals,
            signal: None,
            is_terminal: std::io::stderr().is_terminal(),
            shown: None,
            last_tenth: 0,
        }
    }

    /// Erases the progress line.
    fn clear(&mut self) {
        if self.is_terminal && self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn exit_code(&self) -> u8 {
        self.signal
            .map_or(exit_code::SUCCESS, exit_code::for_signal)
    }
}

impl Observer for Watcher {
    fn progress(&mut self, done: usize, total: usize, next: &str) {
        if self.is_terminal {
            if self
                .shown
                .is_none_or(|shown| shown.elapsed() >= PROGRESS_INTERVAL)
            {
                self.shown = Some(Instant::now());
                let _ = write!(
                    std::io::stderr(),
                    "\r\x1b[Ktollgate: {done} of {total}: {next}"
                );
            }
            return;
        }
        let tenth = done * 10 / total.max(1);
        if tenth > self.last_tenth {
            self.last_tenth = tenth;
            say(&format!("{done} of {total} rows measured"));
        }
    }

    fn is_interrupted(&mut self) -> bool {
        while let Some(asked) = self.signals.next() {
            if let Asked::Signal(signal) = asked {
                self.signal.get_or_insert(signal);
            }
        }
        self.signal.is_some()
    }
}
