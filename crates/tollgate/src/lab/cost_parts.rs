//! The parts of `tollgate cost` that `tollgate lab all` measures, each into files of its own.

use std::path::Path;

use tollgate_lab::cost::{self, CostError, Observer, Options};
use tollgate_lab::report::COST;
use tollgate_plots::{PlotError, PlotFormat};

/// A part of `tollgate cost`.
pub struct Part {
    /// The name of its files.
    pub name: &'static str,
    /// What it measures.
    pub title: &'static str,
    /// The function that measures this part.
    pub run: fn(&Options, &mut dyn Observer) -> Result<Measured, CostError>,
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
pub const PARTS: &[Part] = &[Part {
    name: COST,
    title: "What each kind of exit costs",
    run: exits,
}];

fn exits(options: &Options, observer: &mut dyn Observer) -> Result<Measured, CostError> {
    let report = cost::run(options, observer)?;
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
