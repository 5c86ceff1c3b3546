//! Draws the results of `tollgate cost` as a plot. For each kind, it shows which share of its
//! events cost at most a number of cycles and, next to it on a logarithmic axis, which share cost
//! more: the tail. Related kinds share a line of the plot; all lines have the same range of cycles.

mod curves;
mod panels;
mod points;

pub(super) use curves::{chart, draw_curve};
pub(super) use points::{steps, steps_of};

use super::{GuestMode, Report, Row};
use panels::PANELS;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::prelude::*;
use points::tail;
use std::cmp::Reverse;
use std::path::Path;
use tollgate_plots::{COLOURS, FONT, PlotError, PlotFormat, draw_lines, failed, tick, write};

/// The order of preference of the mode that is shown for a kind.
const PREFERRED: [GuestMode; 6] = [
    GuestMode::Paged,
    GuestMode::Ring3,
    GuestMode::Long,
    GuestMode::LongRing3,
    GuestMode::Protected,
    GuestMode::Real,
];
/// The width of a panel; each line has two panels and the names of its kinds.
const PANEL_WIDTH: u32 = 560;
const NAMES_WIDTH: u32 = 330;
/// The height of a line without names, and the height of each name.
const LINE_HEIGHT: u32 = 90;
const NAME_HEIGHT: u32 = 42;
const LIGHT: RGBColor = RGBColor(240, 240, 240);
const BOLD: RGBColor = RGBColor(205, 205, 205);
/// The minimum height of a line.
const LEAST_HEIGHT: u32 = 270;
const TITLE_HEIGHT: u32 = 126;
/// No clock resolves fewer cycles.
const LEAST_CYCLES: f64 = 10.0;
/// The length in pixels of a dash and of the gap after it, for rows that are not pinned.
const DASH: (u32, u32) = (5, 4);

/// Writes the plot of `report` to `path`.
///
/// # Errors
/// The file cannot be written.
pub fn write_plot(report: &Report, path: &Path, format: PlotFormat) -> Result<(), PlotError> {
    let panels: Vec<_> = PANELS
        .iter()
        .map(|(title, kinds)| (*title, curves(report, kinds)))
        .filter(|(_, curves)| !curves.is_empty())
        .collect();
    let heights = panels.iter().map(|(_, curves)| height(curves));
    let size = (
        2 * PANEL_WIDTH + NAMES_WIDTH,
        TITLE_HEIGHT + heights.sum::<u32>(),
    );
    write(path, format, size, |area| draw(area, report, &panels))
}

/// The height of a line with these names.
fn height(curves: &[Curves]) -> u32 {
    (LINE_HEIGHT + NAME_HEIGHT * curves.len() as u32).max(LEAST_HEIGHT)
}

/// One kind, pinned and not pinned.
struct Curves<'a> {
    kind: &'a str,
    pinned: Option<&'a Row>,
    unpinned: Option<&'a Row>,
}

fn curves<'a>(report: &'a Report, kinds: &[&'a str]) -> Vec<Curves<'a>> {
    let row = |kind: &str, pinned: bool| {
        PREFERRED.iter().find_map(|&mode| {
            report
                .rows
                .iter()
                .find(|row| row.kind == kind && row.mode == mode && row.pinned == pinned)
        })
    };
    let mut curves: Vec<_> = kinds
        .iter()
        .map(|&kind| Curves {
            kind,
            pinned: row(kind, true),
            unpinned: row(kind, false),
        })
        .filter(|curves| curves.row().is_some())
        .collect();
    // The most expensive kind comes first.
    let cost = |curves: &Curves| curves.row().map(|row| (row.single.p50, row.single.p99));
    curves.sort_by_key(|curves| Reverse(cost(curves)));
    curves
}

impl<'a> Curves<'a> {
    /// The row from which the kind's figures are taken.
    fn row(&self) -> Option<&'a Row> {
        self.pinned.or(self.unpinned)
    }
}

type Panels<'a> = [(&'a str, Vec<Curves<'a>>)];

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    report: &Report,
    panels: &Panels,
) -> Result<(), String> {
    area.fill(&WHITE).map_err(failed)?;
    let (title, body) = area.split_vertically(TITLE_HEIGHT);
    let lines = [
        (
            30,
            "What an exit costs in Tollgate: share of events that cost at most so many cycles"
                .to_owned(),
        ),
        (
            19,
            format!(
                "{}{}; no-op path subtracted; 32-bit guest with paging",
                report.host,
                report.steps_in_words()
            ),
        ),
        (
            19,
            format!(
                "solid: pinned to host processor {}; dashed: not pinned. Call-outs inside one \
                 process, no protection boundary crossed: not a measure of hardware exits",
                report.pinned_to
            ),
        ),
    ];
    draw_lines(&title, &lines)?;
    let cycles = range(panels);
    let mut rest = body;
    for (title, curves) in panels {
        let (line, below) = rest.split_vertically(height(curves));
        rest = below;
        let (plots, names) = line.split_horizontally(2 * PANEL_WIDTH);
        let (shares, tail) = plots.split_horizontally(PANEL_WIDTH);
        share_panel(&shares, title, curves, cycles)?;
        tail_panel(&tail, curves, cycles)?;
        for (index, curve) in curves.iter().enumerate() {
            name(&names, report, curve, index)?;
        }
    }
    area.present().map_err(failed)
}

/// The first percentile of the costs; at least one cycle.
fn first_percent(row: &Row) -> u64 {
    let mut below = 0;
    for &(cycles, times) in &row.distribution {
        below += times;
        if below * 100 >= row.single.count {
            return cycles.max(1);
        }
    }
    1
}

/// The horizontal range: whole powers of ten around most events' costs, of pinned rows if there are
/// any. The first and the last hundredth of the events may lie outside.
fn range(panels: &Panels) -> (f64, f64) {
    let curves = || panels.iter().flat_map(|(_, curves)| curves);
    let rows = || curves().filter_map(Curves::row);
    let least = rows().map(first_percent).min().unwrap_or(1) as f64;
    let most = rows().map(|row| row.single.p99 * 3).max().unwrap_or(10);
    let least = 10f64.powf(least.max(LEAST_CYCLES).log10().floor());
    let most = 10f64.powf((most.max(10) as f64).log10().ceil());
    (least, most.max(least * 10.0))
}

/// Draws which share of the events cost at most a number of cycles.
fn share_panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    curves: &[Curves],
    (left, right): (f64, f64),
) -> Result<(), String> {
    let chart = builder(area, title, 22)
        .build_cartesian_2d((left..right).log_scale(), 0f64..100f64)
        .map_err(failed)?;
    let panel = Panel {
        counts: "events up to there",
        label: &|share| format!("{share:.0}%"),
        curves,
        points: &|row| steps(row, left, right),
    };
    panel.draw(chart)
}

/// Draws which share of the events cost more than a number of cycles.
fn tail_panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    curves: &[Curves],
    (left, right): (f64, f64),
) -> Result<(), String> {
    let rows = curves.iter().flat_map(|c| [c.pinned, c.unpinned]).flatten();
    let most = rows.map(|row| row.single.count).max().unwrap_or(1);
    // For the kind with the most events, a single event is still visible.
    let least = 10f64.powf((100.0 / most.max(100) as f64).log10().floor());
    let chart = builder(area, "the tail", 18)
        .build_cartesian_2d((left..right).log_scale(), (least..100.0).log_scale())
        .map_err(failed)?;
    let panel = Panel {
        counts: "events beyond",
        label: &percent,
        curves,
        points: &|row| tail(steps(row, left, right), least),
    };
    panel.draw(chart)
}

/// Starts a chart with the same margins for its axes as the others.
fn builder<'a, 'b, B: DrawingBackend>(
    area: &'a DrawingArea<B, Shift>,
    title: &str,
    height: u32,
) -> ChartBuilder<'a, 'b, B> {
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(title, (FONT, height))
        .margin(12)
        .margin_right(24)
        .x_label_area_size(46)
        .y_label_area_size(78);
    builder
}

/// The parameters of a panel.
struct Panel<'a> {
    /// What the vertical axis shows.
    counts: &'a str,
    /// Formats a number on the vertical axis.
    label: &'a dyn Fn(f64) -> String,
    curves: &'a [Curves<'a>],
    /// The points of a kind's line.
    points: &'a dyn Fn(&Row) -> Vec<(f64, f64)>,
}

impl Panel<'_> {
    fn draw<B, X, Y>(&self, mut chart: ChartContext<B, Cartesian2d<X, Y>>) -> Result<(), String>
    where
        B: DrawingBackend,
        X: Ranged<ValueType = f64> + ValueFormatter<f64>,
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        chart
            .configure_mesh()
            .x_desc("cycles")
            .y_desc(self.counts)
            .x_label_formatter(&|value| tick(*value))
            .y_label_formatter(&|value| (self.label)(*value))
            .y_labels(6)
            .y_max_light_lines(2)
            .label_style((FONT, 15))
            .axis_desc_style((FONT, 15))
            .light_line_style(LIGHT)
            .bold_line_style(BOLD)
            .draw()
            .map_err(failed)?;
        for (colour, curve) in COLOURS.iter().zip(self.curves) {
            if let Some(row) = curve.unpinned {
                let (style, (dash, gap)) = (colour.stroke_width(1), DASH);
                let points = (self.points)(row).into_iter();
                chart
                    .draw_series(DashedLineSeries::new(points, dash, gap, style))
                    .map_err(failed)?;
            }
            if let Some(row) = curve.pinned {
                let points = (self.points)(row);
                chart
                    .draw_series(LineSeries::new(points, colour.stroke_width(2)))
                    .map_err(failed)?;
            }
        }
        Ok(())
    }
}

/// A share in per cent on a logarithmic axis: 10%, 0.01%.
fn percent(value: f64) -> String {
    let places = (-value.log10()).ceil().max(0.0) as usize;
    format!("{value:.places$}%")
}

/// Draws the name and the figures of the kind with this index in its line.
fn name<B: DrawingBackend>(
    names: &DrawingArea<B, Shift>,
    report: &Report,
    curve: &Curves,
    index: usize,
) -> Result<(), String> {
    let colour = COLOURS[index % COLOURS.len()];
    let top = 46 + NAME_HEIGHT as i32 * index as i32;
    let line = [(0, top + 9), (26, top + 9)];
    names
        .draw(&PathElement::new(line.to_vec(), colour.stroke_width(3)))
        .map_err(failed)?;
    let label = |text: String, y: i32, height: i32, colour: RGBColor| {
        let style = (FONT, height).into_font().color(&colour);
        names.draw(&Text::new(text, (34, y), style)).map_err(failed)
    };
    let Some(row) = curve.row() else {
        return Ok(());
    };
    let mode = match row.mode {
        GuestMode::Paged => String::new(),
        mode => format!(" ({})", mode.name()),
    };
    label(format!("{}{mode}", curve.kind), top, 17, BLACK)?;
    let (p50, p99) = (row.single.p50, row.single.p99);
    let nanoseconds = report.nanoseconds(p50 as f64);
    let detail = format!("p50 {p50} cycles ({nanoseconds:.0} ns), p99 {p99}");
    label(detail, top + 19, 13, RGBColor(90, 90, 90))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_tail_have_the_places_that_they_need() {
        let texts = [100.0, 10.0, 1.0, 0.1, 0.001].map(percent);
        assert_eq!(texts, ["100%", "10%", "1%", "0.1%", "0.001%"]);
    }
}
