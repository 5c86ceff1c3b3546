//! Draws the results of an experiment as a plot: a panel for each cell. Each arm has a line with a
//! dot for every repetition, over the middle half and the median; for arms that differ only in a
//! number there is one panel for each guest, and for workloads that do, one for each kind. Where arms are far apart, the axis is logarithmic so
//! that all are visible. An arm has the same colour in all panels.

use super::workload_plot::{self, Lines};
use super::{CellResult, Results, number_plot};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::ops::Range;
use std::path::Path;
use tollgate_plots::{FONT, PlotError, PlotFormat, colour, draw_lines, failed, svg, tick, write};

/// A common screen size. There are as many panels next to each other as needed for the picture to
/// fit it, but no more than fit its width.
const SCREEN: (u32, u32) = (1920, 1000);
/// The width of a plot on a page.
const PAGE_WIDTH: u32 = 960;
/// The minimum width of a panel without the names of its arms.
const PANEL_WIDTH: u32 = 300;
/// The height of a panel without its arms, and of each arm.
const PANEL_HEIGHT: u32 = 84;
const ARM_HEIGHT: u32 = 18;
const TITLE_HEIGHT: u32 = 70;
/// The width of a letter of an arm's name, and the minimum width for names.
const LETTER_WIDTH: u32 = 7;
const NAMES_WIDTH: u32 = 76;
/// An axis is logarithmic if the largest value is this many times the smallest.
pub(super) const FAR_APART: f64 = 15.0;
/// Half the height of a box; arms are at whole numbers.
const HALF: f64 = 0.3;

/// The part of a plot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlotPart {
    /// A panel for each cell.
    Cells,
    /// A panel for each guest with arms that differ in a number, and for each kind of workloads that
    /// do.
    Numbers,
}

/// The panels of a plot, and where they are.
struct Layout<'a> {
    cells: Vec<&'a CellResult>,
    /// The guests with a panel for arms that differ in a number.
    guests: Vec<&'a str>,
    /// The panels of workloads that differ in a number.
    by_workload: Vec<Lines>,
    /// The heights of the rows.
    lines: Vec<u32>,
    columns: usize,
    names_width: u32,
}

impl<'a> Layout<'a> {
    /// The panels of `results` that are in `parts`, for a picture of this width and height at most.
    fn of(results: &'a Results, parts: &[PlotPart], screen: Screen) -> Self {
        let cells = results.cells.iter();
        let cells: Vec<&CellResult> = cells
            .filter(|cell| parts.contains(&PlotPart::Cells) && !cell.samples().is_empty())
            .collect();
        let guests = match parts.contains(&PlotPart::Numbers) {
            true => number_plot::guests(results),
            false => Vec::new(),
        };
        let by_workload = match parts.contains(&PlotPart::Numbers) {
            true => workload_plot::panels(results),
            false => Vec::new(),
        };
        let names = results.arms.iter().map(|arm| arm.name.len() as u32);
        let names_width = (names.max().unwrap_or(0) * LETTER_WIDTH).max(NAMES_WIDTH);
        // All panels of a row are as high as its highest one.
        let mut heights: Vec<u32> = (cells.iter())
            .map(|cell| PANEL_HEIGHT + ARM_HEIGHT * cell.arms().len() as u32)
            .collect();
        heights.extend(guests.iter().map(|_| number_plot::HEIGHT));
        heights.extend(by_workload.iter().map(|_| number_plot::HEIGHT));
        let (columns, lines) = grid(&heights, PANEL_WIDTH + names_width, screen);
        Self {
            cells,
            guests,
            by_workload,
            lines,
            columns,
            names_width,
        }
    }

    fn height(&self) -> u32 {
        self.lines.iter().sum::<u32>() + TITLE_HEIGHT
    }

    fn is_empty(&self) -> bool {
        self.cells.is_empty() && self.guests.is_empty() && self.by_workload.is_empty()
    }
}

/// Writes the plot of `results` to `path`.
///
/// # Errors
/// The file cannot be written, or nothing was measured.
pub fn write_plot(results: &Results, path: &Path, format: PlotFormat) -> Result<(), PlotError> {
    let layout = Layout::of(
        results,
        &[PlotPart::Cells, PlotPart::Numbers],
        Screen::Whole,
    );
    if layout.cells.is_empty() {
        return Err(PlotError(format!(
            "{}: there is nothing to draw: no cell was measured",
            path.display()
        )));
    }
    // A single panel need not be as wide as the screen.
    let width = match layout.columns {
        1 => SCREEN.0 / 2,
        _ => SCREEN.0,
    };
    write(path, format, (width, layout.height()), |area| {
        draw(area, results, &layout)
    })
}

/// A part of the plot as SVG, for a page; `None` if there is nothing to draw.
pub fn plot_svg(results: &Results, part: PlotPart) -> Option<String> {
    let layout = Layout::of(results, &[part], Screen::Page);
    if layout.is_empty() {
        return None;
    }
    // A picture that cannot be drawn is omitted; the tables next to it have its figures.
    svg((PAGE_WIDTH, layout.height()), |area| {
        draw(area, results, &layout)
    })
    .ok()
}

/// Where a plot is shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Screen {
    /// It should fit a whole screen.
    Whole,
    /// It is part of a page, which is as high as necessary.
    Page,
}

/// How many panels are next to each other, and the heights of the resulting rows: the smallest
/// number with which all fit a screen.
fn grid(heights: &[u32], width: u32, screen: Screen) -> (usize, Vec<u32>) {
    let lines = |columns: usize| -> Vec<u32> {
        let lines = heights.chunks(columns);
        lines
            .map(|line| line.iter().copied().max().unwrap_or(0))
            .collect()
    };
    let most = |all: u32| ((all / width).max(1) as usize).min(heights.len()).max(1);
    let columns = match screen {
        Screen::Page => most(PAGE_WIDTH),
        Screen::Whole => {
            let most = most(SCREEN.0);
            let fits =
                |columns: &usize| lines(*columns).iter().sum::<u32>() + TITLE_HEIGHT <= SCREEN.1;
            (1..=most).find(fits).unwrap_or(most)
        }
    };
    (columns, lines(columns))
}

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    results: &Results,
    layout: &Layout,
) -> Result<(), String> {
    area.fill(&WHITE).map_err(failed)?;
    let (title, body) = area.split_vertically(TITLE_HEIGHT);
    let host = &results.host;
    let interrupted = match results.interrupted {
        true => format!("; interrupted: {} of {}", results.finished, results.planned),
        false => String::new(),
    };
    draw_lines(
        &title,
        &[
            (
                20,
                format!("lab {}: {}", results.experiment, results.about.one_line),
            ),
            (
                13,
                format!(
                    "{}, {}; dots: repetitions ({}), boxes: middle half and median; less is better{interrupted}",
                    host.processor, host.kernel, results.repetitions
                ),
            ),
        ],
    )?;
    let mut areas = Vec::new();
    let mut rest = body;
    for height in &layout.lines {
        let (line, below) = rest.split_vertically(*height);
        areas.extend(line.split_evenly((1, layout.columns)));
        rest = below;
    }
    for (area, cell) in areas.iter().zip(&layout.cells) {
        panel(area, results, cell, layout.names_width)?;
    }
    let mut left = areas.iter().skip(layout.cells.len());
    for (guest, area) in layout.guests.iter().zip(&mut left) {
        number_plot::panel(area, results, guest)?;
    }
    for (lines, area) in layout.by_workload.iter().zip(left) {
        workload_plot::panel(area, results, lines)?;
    }
    area.present().map_err(failed)
}

fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    results: &Results,
    cell: &CellResult,
    names_width: u32,
) -> Result<(), String> {
    let arms = cell.arms();
    let all = || arms.iter().flat_map(|arm| cell.values(arm));
    let most = all().fold(0.0, f64::max).max(1e-12);
    let least = all().fold(most, f64::min);
    let mut builder = ChartBuilder::on(area);
    builder
        .caption(format!("{}, {}", cell.guest, cell.workload), (FONT, 15))
        .margin(8)
        .margin_right(24)
        .x_label_area_size(36)
        .y_label_area_size(names_width);
    let down = -0.6..arms.len() as f64 - 0.4;
    if least > 0.0 && most / least > FAR_APART {
        let range = decades(least * 0.8, most * 1.25).log_scale();
        let chart = builder.build_cartesian_2d(range, down).map_err(failed)?;
        return draw_arms(chart, results, cell);
    }
    let chart = builder
        .build_cartesian_2d(from_zero(most), down)
        .map_err(failed)?;
    draw_arms(chart, results, cell)
}

/// A range from zero to a little more than `most`. It starts invisibly below zero, because the axis
/// may show no number at its start.
pub(super) fn from_zero(most: f64) -> Range<f64> {
    -most * 1e-4..most * 1.08
}

/// A logarithmic range that contains these values. Axes have numbers at powers of ten, and the
/// range contains at least two of them.
pub(super) fn decades(least: f64, most: f64) -> Range<f64> {
    let (first, last) = (least.log10().ceil(), most.log10().floor());
    match last - first >= 1.0 {
        true => least..most,
        false => 10f64.powf(least.log10().floor())..10f64.powf(most.log10().ceil()),
    }
}

fn draw_arms<B, X>(
    mut chart: ChartContext<B, Cartesian2d<X, RangedCoordf64>>,
    results: &Results,
    cell: &CellResult,
) -> Result<(), String>
where
    B: DrawingBackend,
    X: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let arms = cell.arms();
    // The first arm is at the top.
    let line = |index: usize| (arms.len() - 1 - index) as f64;
    let name = |position: &f64| {
        let index = position.round();
        let is_arm = (position - index).abs() < 0.01 && index >= 0.0;
        let arm = is_arm
            .then(|| arms.iter().rev().nth(index as usize))
            .flatten();
        arm.map_or(String::new(), |arm| (*arm).to_owned())
    };
    chart
        .configure_mesh()
        .disable_y_mesh()
        .y_labels(arms.len() * 2)
        .y_label_formatter(&name)
        .x_labels(5)
        .x_label_formatter(&|value| tick(*value))
        .x_desc(format!("{} ({})", cell.metric.name(), cell.metric.unit()))
        .label_style((FONT, 11))
        .axis_desc_style((FONT, 12))
        .light_line_style(RGBColor(240, 240, 240))
        .bold_line_style(RGBColor(210, 210, 210))
        .draw()
        .map_err(failed)?;
    for (index, arm) in arms.iter().enumerate() {
        let Some(quartiles) = cell.quartiles(arm) else {
            continue;
        };
        let known = results.arms.iter().position(|known| known.name == *arm);
        let (middle, colour) = (line(index), colour(known.unwrap_or(index)));
        let (below, above) = (middle - HALF, middle + HALF);
        let corners = [(quartiles.lower, below), (quartiles.upper, above)];
        let median = [(quartiles.median, below), (quartiles.median, above)];
        let values = cell.values(arm);
        let count = values.len() as f64;
        let dots = values.iter().enumerate().map(|(run, &value)| {
            let up = middle + HALF * ((run as f64 + 0.5) / count - 0.5);
            Circle::new((value, up), 2, colour.filled())
        });
        chart
            .draw_series([Rectangle::new(corners, colour.mix(0.25).filled())])
            .map_err(failed)?;
        chart
            .draw_series([PathElement::new(median.to_vec(), colour.stroke_width(3))])
            .map_err(failed)?;
        chart.draw_series(dots).map_err(failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_stand_beside_each_other_until_all_fit_a_screen() {
        assert_eq!(grid(&[300], 416, Screen::Whole), (1, vec![300]));
        assert_eq!(
            grid(&[300, 200, 250], 416, Screen::Whole),
            (1, vec![300, 200, 250])
        );
        assert_eq!(
            grid(&[300, 400, 250, 100], 416, Screen::Whole),
            (2, vec![400, 250])
        );
        let (columns, lines) = grid(&[330; 20], 447, Screen::Whole);
        assert_eq!((columns, lines), (4, vec![330; 5]));
        assert_eq!(grid(&[300; 2], 5_000, Screen::Whole), (1, vec![300; 2]));
    }

    #[test]
    fn on_a_page_panels_fill_its_width() {
        assert_eq!(grid(&[300; 3], 416, Screen::Page), (2, vec![300, 300]));
        assert_eq!(grid(&[300; 2], 5_000, Screen::Page), (1, vec![300; 2]));
    }

    #[test]
    fn a_linear_axis_has_a_number_at_zero() {
        for hundreds in 1..2000 {
            let range = RangedCoordf64::from(from_zero(f64::from(hundreds) * 100.0));
            let points = range.key_points(6);
            assert!(points.iter().any(|point| point.abs() < 1e-9), "{points:?}");
        }
    }

    #[test]
    fn a_logarithmic_axis_has_two_numbers_at_least() {
        assert_eq!(decades(8.0, 2000.0), 8.0..2000.0);
        let range = decades(140.0, 9000.0);
        assert!((range.start - 100.0).abs() < 1e-6 && (range.end - 10_000.0).abs() < 1e-6);
    }
}
