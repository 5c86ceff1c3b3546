//! `tollgate cost`: measures what exits cost, and writes tables, files and plots of it.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::PossibleValuesParser;
use tollgate_lab::cost::comparison::{Comparison, OtherMachine, Request};
use tollgate_lab::cost::system_calls::{self, SystemCalls};
use tollgate_lab::cost::{
    self, CostError, GuestMode, Options, Report, comparison, overhead, samples_csv, summary_csv,
    to_json,
};
use tollgate_lab::experiment::Stop;
use tollgate_plots::PlotFormat;

use crate::failure::Failure;
use crate::files;
use crate::interruption::Interruption;
use crate::lab::Progress;
use crate::standard_output::print;
use crate::{columns, doctor, exit_code};

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
  The same guest in QEMU's translator and on KVM, with the distributions in one picture:
    tollgate cost --with qemu,kvm --plot machines.svg
  The hypercall as a system call of a Linux guest, minus one that does nothing:
    tollgate cost --system-calls --plot calls.svg
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

    /// Compare with other machines in turns: native, qemu (its translator), kvm (QEMU on it); with
    /// commas. The seven nanobenchmarks of Adams and Agesen are among the kinds
    #[arg(
        long,
        value_name = "MACHINE,...",
        value_delimiter = ',',
        value_parser = PossibleValuesParser::new(OtherMachine::ALL.map(OtherMachine::name))
    )]
    pub with: Vec<String>,

    /// Price the hypercall as the study did, by two system calls of a module in Linux guests:
    /// scripts/get-guests and scripts/get-modules fetch and build them
    #[arg(long, conflicts_with_all = ["kind", "mode", "with", "ledger_overhead"])]
    pub system_calls: bool,

    /// Take few samples, to see that everything works
    #[arg(long)]
    pub quick: bool,

    /// Measure what the ledger itself costs instead
    #[arg(
        long,
        conflicts_with_all = ["csv", "samples_csv", "json", "plot", "kind", "mode", "samples", "cpu", "with"]
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
    let stop = Stop::new();
    let interruption = Interruption::of(&stop)?;
    let measured = if arguments.ledger_overhead {
        measure_ledger(arguments, &stop)
    } else if !arguments.with.is_empty() {
        compare(arguments, plot, &stop)
    } else if arguments.system_calls {
        price_system_calls(arguments, plot, &stop)
    } else {
        price_exits(arguments, plot, &stop)
    };
    match measured {
        Err(Ended::Failed(failure)) => Err(failure),
        // What was interrupted at its start has nothing to show.
        Ok(()) | Err(Ended::Interrupted) => {
            Ok(interruption.exit_code().unwrap_or(exit_code::SUCCESS))
        }
    }
}

/// Why a measurement has ended without all of its results.
enum Ended {
    Interrupted,
    Failed(Failure),
}

impl From<Failure> for Ended {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<CostError> for Ended {
    fn from(error: CostError) -> Self {
        Self::Failed(match error {
            CostError::Interrupted => return Self::Interrupted,
            CostError::UnknownKind(_) | CostError::NothingChosen => {
                Failure::usage(error.to_string())
            }
            CostError::Host(_) | CostError::WorkNotDone(_) => Failure::host(error.to_string()),
        })
    }
}

/// Measures the cost of the ledger itself.
fn measure_ledger(arguments: &CostArguments, stop: &Stop) -> Result<(), Ended> {
    let pairs = if arguments.quick { QUICK_PAIRS } else { PAIRS };
    let mut progress = Progress::new();
    let results = overhead::run(pairs, stop, &mut progress);
    progress.clear();
    Ok(print(&overhead::table(&results?))?)
}

/// Prices each kind of exit in Tollgate.
fn price_exits(
    arguments: &CostArguments,
    plot: Option<(PlotFormat, &Path)>,
    stop: &Stop,
) -> Result<(), Ended> {
    let mut progress = Progress::new();
    let report = cost::run(&options(arguments), stop, &mut progress);
    progress.clear();
    let report = report?;
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
    Ok(shown?)
}

/// Runs the same guest in other machines too.
fn compare(
    arguments: &CostArguments,
    plot: Option<(PlotFormat, &Path)>,
    stop: &Stop,
) -> Result<(), Ended> {
    let is_asked_for = |machine: &OtherMachine| {
        // What the host itself takes is always shown.
        let is_native = *machine == OtherMachine::Native;
        is_native || arguments.with.iter().any(|name| name == machine.name())
    };
    let request = Request {
        options: options(arguments),
        machines: OtherMachine::ALL.into_iter().filter(is_asked_for).collect(),
    };
    let mut progress = Progress::new();
    let compared = comparison::run(&request, stop, &mut progress);
    progress.clear();
    let compared = compared?;
    let shown = print(&comparison::table(&compared));
    let texts: [Text<Comparison>; 3] = [
        ("--csv", &arguments.csv, comparison::summary_csv),
        (
            "--samples-csv",
            &arguments.samples_csv,
            comparison::samples_csv,
        ),
        ("--json", &arguments.json, comparison::to_json),
    ];
    write_texts(texts, &compared)?;
    if let Some((format, path)) = plot {
        comparison::write_plot(&compared, path, format)
            .map_err(|error| Failure::usage(format!("--plot: {error}")))?;
    }
    Ok(shown?)
}

/// Prices the hypercall by two system calls of Linux guests.
fn price_system_calls(
    arguments: &CostArguments,
    plot: Option<(PlotFormat, &Path)>,
    stop: &Stop,
) -> Result<(), Ended> {
    let mut progress = Progress::new();
    let results = system_calls::run(&options(arguments), stop, &mut progress);
    progress.clear();
    let results = results?;
    let shown = print(&system_calls::table(&results));
    let texts: [Text<SystemCalls>; 3] = [
        ("--csv", &arguments.csv, system_calls::summary_csv),
        (
            "--samples-csv",
            &arguments.samples_csv,
            system_calls::samples_csv,
        ),
        ("--json", &arguments.json, system_calls::to_json),
    ];
    write_texts(texts, &results)?;
    if let Some((format, path)) = plot {
        system_calls::write_plot(&results, path, format)
            .map_err(|error| Failure::usage(format!("--plot: {error}")))?;
    }
    Ok(shown?)
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

fn plot_format(path: &Path) -> Result<(PlotFormat, &Path), Failure> {
    let format = PlotFormat::of(path).ok_or_else(|| {
        Failure::usage(format!(
            "--plot: '{}' must end in .svg or .png",
            path.display()
        ))
    })?;
    Ok((format, path))
}

/// A flag with the file that it names, and what makes the file's text of a result.
type Text<'a, R> = (&'a str, &'a Option<PathBuf>, fn(&R) -> String);

fn write_texts<R>(texts: [Text<R>; 3], result: &R) -> Result<(), Failure> {
    for (flag, path, text) in texts {
        if let Some(path) = path {
            std::fs::write(path, text(result)).map_err(|error| cannot_write(flag, path, &error))?;
        }
    }
    Ok(())
}

fn write_files(
    arguments: &CostArguments,
    plot: Option<(PlotFormat, &Path)>,
    report: &Report,
) -> Result<(), Failure> {
    let texts: [Text<Report>; 3] = [
        ("--csv", &arguments.csv, summary_csv),
        ("--samples-csv", &arguments.samples_csv, samples_csv),
        ("--json", &arguments.json, to_json),
    ];
    write_texts(texts, report)?;
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
