//! The parts of `tollgate cost` that `tollgate lab all` measures, each into files of its own.

use std::path::Path;

use tollgate_lab::cost::comparison::{self, OtherMachine, Request};
use tollgate_lab::cost::{self, CostError, Options, system_calls};
use tollgate_lab::experiment::{Observer, Stop};
use tollgate_lab::report::COST;
use tollgate_plots::{PlotError, PlotFormat};

/// A part of `tollgate cost`.
pub struct Part {
    /// The name of its files.
    pub name: &'static str,
    /// What it measures.
    pub title: &'static str,
    /// The function that measures this part.
    pub run: fn(&Options, &Stop, &mut dyn Observer) -> Result<Measured, CostError>,
}

/// Draws a plot into a file.
type Draw = Box<dyn FnOnce(&Path) -> Result<(), PlotError>>;

/// What a part has measured.
pub struct Measured {
    /// The texts of its files, by the ends of their names.
    pub texts: Vec<(&'static str, String)>,
    /// Draws its plot into this file.
    pub draw: Draw,
}

/// All parts. The first is the table of all exits, from which the report makes its own tables; of
/// the others it shows the text.
pub const PARTS: &[Part] = &[
    Part {
        name: COST,
        title: "What each kind of exit costs",
        run: exits,
    },
    Part {
        name: "cost-machines",
        title: "The same guest natively, in QEMU's translator and on KVM, with the seven \
                nanobenchmarks of Adams and Agesen",
        run: machines,
    },
    Part {
        name: "cost-system-calls",
        title: "The hypercall as the study priced it: by two system calls of a Linux guest",
        run: calls,
    },
];

fn exits(
    options: &Options,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Measured, CostError> {
    let report = cost::run(options, stop, observer)?;
    Ok(Measured {
        texts: vec![
            ("csv", cost::summary_csv(&report)),
            ("values.csv", cost::samples_csv(&report)),
            ("txt", cost::table(&report)),
            ("json", cost::to_json(&report)),
        ],
        draw: Box::new(move |path| match report.rows.is_empty() {
            true => Ok(()),
            false => cost::write_plot(&report, path, PlotFormat::Svg),
        }),
    })
}

fn machines(
    options: &Options,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Measured, CostError> {
    let request = Request {
        options: options.clone(),
        machines: OtherMachine::ALL.into(),
    };
    let compared = comparison::run(&request, stop, observer)?;
    Ok(Measured {
        texts: vec![
            ("csv", comparison::summary_csv(&compared)),
            ("values.csv", comparison::samples_csv(&compared)),
            ("txt", comparison::table(&compared)),
            ("json", comparison::to_json(&compared)),
        ],
        draw: Box::new(move |path| comparison::write_plot(&compared, path, PlotFormat::Svg)),
    })
}

fn calls(
    options: &Options,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Measured, CostError> {
    let results = system_calls::run(options, stop, observer)?;
    Ok(Measured {
        texts: vec![
            ("csv", system_calls::summary_csv(&results)),
            ("values.csv", system_calls::samples_csv(&results)),
            ("txt", system_calls::table(&results)),
            ("json", system_calls::to_json(&results)),
        ],
        draw: Box::new(
            move |path| match results.calls.iter().any(|calls| calls.finding.is_ok()) {
                true => system_calls::write_plot(&results, path, PlotFormat::Svg),
                false => Ok(()),
            },
        ),
    })
}
