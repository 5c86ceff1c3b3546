//! The picture of the whole report: for each arm, the ratio to the first arm of its experiment in
//! every cell.
//!
//! ```text
//!                      less is better
//!                0.1        1        10
//! vif            |          |         |
//!   vif=on       |   o  oo  |         |     o less, more   + no difference measured
//!   vif=on+hooks |  oo o    |         |     x not judged
//! ```

use super::html::escaped;
use crate::experiment::{Comparison, Results, Verdict};
use std::fmt::Write;

/// The size of the picture in its own units, which are about pixels.
const WIDTH: f64 = 520.0;
const NAMES: f64 = 168.0;
/// The maximum number of letters of an arm's name.
const LETTERS: usize = 24;
const ROW: f64 = 24.0;
const TOP: f64 = 58.0;
const BOTTOM: f64 = 14.0;
const RIGHT: f64 = 18.0;
/// Ratios beyond these are drawn at the edge.
const LEAST: f64 = 0.001;
const MOST: f64 = 1000.0;

/// A row of the picture.
enum Row<'a> {
    /// The name of an experiment.
    Experiment(&'a str),
    /// An arm with its comparisons.
    Arm(&'a str, Vec<(String, Comparison)>),
}

/// The picture as SVG; `None` if nothing was compared.
pub fn overview(all: &[&Results]) -> Option<String> {
    let rows = rows(all);
    let ratios = rows.iter().flat_map(|row| match row {
        Row::Arm(_, found) => found.iter().map(|(_, it)| it.ratio).collect(),
        Row::Experiment(_) => Vec::new(),
    });
    let ratios: Vec<f64> = ratios
        .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
        .collect();
    if ratios.is_empty() {
        return None;
    }
    let bound = |first: f64, choose: fn(f64, f64) -> f64| {
        let all = ratios.iter().copied().fold(first, choose);
        all.clamp(LEAST, MOST)
    };
    let (from, to) = (bound(0.5, f64::min), bound(2.0, f64::max));
    let scale = Scale {
        from: (from * 0.85).ln(),
        to: (to * 1.18).ln(),
    };
    let height = TOP + ROW * rows.len() as f64 + BOTTOM;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"system-ui, sans-serif\" font-size=\"13\" fill=\"currentColor\">\n"
    );
    let _ = writeln!(
        svg,
        "<text x=\"0\" y=\"16\" font-weight=\"600\">Time or cost over that of the first arm; left of 1 is less</text>\n\
         <g transform=\"translate(0 32)\"><circle cx=\"6\" cy=\"-4\" r=\"5\" fill=\"#2b8cd8\"/><text x=\"16\">less</text>\
         <circle cx=\"66\" cy=\"-4\" r=\"5\" fill=\"#e07020\"/><text x=\"76\">more</text>\
         <g transform=\"translate(132 -4)\">{NONE}</g><text x=\"142\">no difference measured</text>\
         <g transform=\"translate(312 -4)\">{UNJUDGED}</g><text x=\"322\">not judged: busy host</text></g>"
    );
    scale_lines(&mut svg, &scale, height);
    for (index, row) in rows.iter().enumerate() {
        let middle = TOP + ROW * (index as f64 + 0.5);
        match row {
            Row::Experiment(name) => {
                let _ = writeln!(
                    svg,
                    "<text x=\"0\" y=\"{:.1}\" font-weight=\"600\">{}</text>",
                    middle + 5.0,
                    escaped(name)
                );
            }
            Row::Arm(name, found) => {
                let _ = writeln!(
                    svg,
                    "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"12\">{}</text>",
                    NAMES - 12.0,
                    middle + 4.0,
                    escaped(&shortened(name))
                );
                for (cell, comparison) in found {
                    mark(
                        &mut svg,
                        scale.place(comparison.ratio),
                        middle,
                        cell,
                        comparison,
                    );
                }
            }
        }
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// The marks for arms that are not different, and for cells without a verdict.
const NONE: &str = "<path d=\"M-5 0H5M0 -5V5\" stroke=\"currentColor\" stroke-width=\"1.6\"/>";
const UNJUDGED: &str = "<path d=\"M-4 -4L4 4M-4 4L4 -4\" stroke=\"#888888\" stroke-width=\"1.6\"/>";

/// The name, without its end if it has too many letters.
fn shortened(name: &str) -> String {
    match name.chars().count() > LETTERS {
        true => name.chars().take(LETTERS - 1).chain(['…']).collect(),
        false => name.to_owned(),
    }
}

fn rows<'a>(all: &[&'a Results]) -> Vec<Row<'a>> {
    let mut rows = Vec::new();
    for results in all {
        let arms = results.arms.iter().filter_map(|arm| {
            let found: Vec<(String, Comparison)> = results
                .cells
                .iter()
                .filter_map(|cell| {
                    let name = format!("{}, {}", cell.guest, cell.workload);
                    Some((name, cell.comparison(&arm.name)?))
                })
                .collect();
            (!found.is_empty()).then_some(Row::Arm(&arm.name, found))
        });
        let arms: Vec<Row> = arms.collect();
        if !arms.is_empty() {
            rows.push(Row::Experiment(&results.experiment));
            rows.extend(arms);
        }
    }
    rows
}

/// A logarithmic scale.
struct Scale {
    from: f64,
    to: f64,
}

impl Scale {
    fn place(&self, ratio: f64) -> f64 {
        let share = (ratio.clamp(LEAST, MOST).ln() - self.from) / (self.to - self.from);
        NAMES + share * (WIDTH - NAMES - RIGHT)
    }
}

fn scale_lines(svg: &mut String, scale: &Scale, height: f64) {
    let fits = |ratio: &&f64| (scale.from..=scale.to).contains(&ratio.ln());
    let wide = [0.001, 0.01, 0.1, 1.0, 10.0, 100.0, 1000.0];
    let narrow = [0.5, 0.7, 1.0, 1.5, 2.0];
    let marks: Vec<&f64> = match wide.iter().filter(fits).count() {
        0 | 1 => narrow.iter().filter(fits).collect(),
        _ => wide.iter().filter(fits).collect(),
    };
    for ratio in marks {
        let (x, end) = (scale.place(*ratio), height - BOTTOM);
        let opacity = if *ratio == 1.0 { 0.7 } else { 0.18 };
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} {:.1}V{end:.1}\" stroke=\"currentColor\" stroke-opacity=\"{opacity}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"12\">{ratio}</text>",
            TOP - 4.0,
            TOP - 8.0
        );
    }
}

fn mark(svg: &mut String, x: f64, y: f64, cell: &str, comparison: &Comparison) {
    let shape = match comparison.verdict {
        Verdict::Less => "<circle r=\"5\" fill=\"#2b8cd8\" fill-opacity=\"0.75\"/>",
        Verdict::More => "<circle r=\"5\" fill=\"#e07020\" fill-opacity=\"0.75\"/>",
        Verdict::NoDifferenceMeasured => NONE,
        Verdict::NotJudged => UNJUDGED,
    };
    let _ = writeln!(
        svg,
        "<g transform=\"translate({x:.1} {y:.1})\"><title>{}: {:.3}, {comparison}</title>{shape}</g>",
        escaped(cell),
        comparison.ratio
    );
}
