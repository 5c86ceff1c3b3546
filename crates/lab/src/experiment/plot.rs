//! The results as a plot: a panel for each cell, in it for each arm every repetition as a
//! dot over the middle half and the median; and for arms that differ in a number alone one for
//! each guest. Where arms are far apart the axis is logarithmic, so that all are seen.

use super::{CellResult, Results, number_plot};
use crate::plotting::{
    COLOURS, FONT, PlotError, PlotFormat, draw_lines, failed, provide_font, tick,
};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::path::Path;

const COLUMNS: usize = 2;
const PANEL: (u32, u32) = (760, 400);
const TITLE_HEIGHT: u32 = 96;
/// Axes are logarithmic where the largest value is that many times the least.
const FAR_APART: f64 = 15.0;
/// Half the width of a box; arms stand at whole numbers.
const HALF: f64 = 0.3;

/// Writes the plot of `results` to `path`.
///
/// # Errors
/// The file cannot be written, or nothing was measured.
pub fn write_plot(results: &Results, path: &Path, format: PlotFormat) -> Result<(), PlotError> {
    provide_font();
    let cells = results.cells.iter();
    let cells: Vec<&CellResult> = cells.filter(|cell| !cell.samples().is_empty()).collect();
    if cells.is_empty() {
        return Err(PlotError(format!(
            "{}: there is nothing to draw: no cell was measured",
            path.display()
        )));
    }
    let panels = cells.len() + number_plot::guests(results).len();
    let columns = COLUMNS.min(panels);
    let lines = panels.div_ceil(columns);
    let size = (
        PANEL.0 * columns as u32,
        PANEL.1 * lines as u32 + TITLE_HEIGHT,
    );
    let grid = (lines, columns);
    match format {
        PlotFormat::Svg => {
            let area = SVGBackend::new(path, size).into_drawing_area();
            draw(&area, results, &cells, grid)
        }
        PlotFormat::Png => {
            let area = BitMapBackend::new(path, size).into_drawing_area();
            draw(&area, results, &cells, grid)
        }
    }
    .map_err(|error| PlotError(format!("{}: {error}", path.display())))
}

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    results: &Results,
    cells: &[&CellResult],
    grid: (usize, usize),
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
                28,
                format!("lab {}: {}", results.experiment, results.about.one_line),
            ),
            (
                17,
                format!(
                    "{}, {}; dots: repetitions ({}), boxes: middle half and median; less is better{interrupted}",
                    host.processor, host.kernel, results.repetitions
                ),
            ),
        ],
    )?;
    let areas = body.split_evenly(grid);
    for (area, cell) in areas.iter().zip(cells) {
        panel(area, cell)?;
    }
    let left = areas.iter().skip(cells.len());
    for (area, guest) in left.zip(number_plot::guests(results)) {
        number_plot::panel(area, results, guest)?;
    }
    area.present().map_err(failed)
}

fn panel<B: DrawingBackend>(area: &DrawingArea<B, Shift>, cell: &CellResult) -> Result<(), String> {
    let arms = cell.arms();
    let all = || arms.iter().flat_map(|arm| cell.values(arm));
    let most = all().fold(0.0, f64::max).max(1e-12);
    let least = all().fold(most, f64::min);
    let mut builder = ChartBuilder::on(area);
    let names_height = if names_fit(&arms) { 44 } else { 150 };
    builder
        .caption(format!("{}, {}", cell.guest, cell.workload), (FONT, 20))
        .margin(12)
        .x_label_area_size(names_height)
        .y_label_area_size(76);
    let across = -0.6..arms.len() as f64 - 0.4;
    if least > 0.0 && most / least > FAR_APART {
        let range = (least * 0.8..most * 1.25).log_scale();
        let chart = builder.build_cartesian_2d(across, range).map_err(failed)?;
        return draw_arms(chart, cell, &arms);
    }
    let chart = builder
        .build_cartesian_2d(across, 0.0..most * 1.08)
        .map_err(failed)?;
    draw_arms(chart, cell, &arms)
}

/// Whether the names of all arms stand beside each other below a panel.
fn names_fit(arms: &[&str]) -> bool {
    const LETTERS: usize = 80;
    let longest = arms.iter().map(|arm| arm.len()).max().unwrap_or(0);
    (longest + 1) * arms.len() <= LETTERS
}

fn draw_arms<B, Y>(
    mut chart: ChartContext<B, Cartesian2d<RangedCoordf64, Y>>,
    cell: &CellResult,
    arms: &[&str],
) -> Result<(), String>
where
    B: DrawingBackend,
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let name = |position: &f64| {
        let index = position.round();
        let is_arm = (position - index).abs() < 0.01 && index >= 0.0;
        let arm = is_arm.then(|| arms.get(index as usize)).flatten();
        arm.map_or(String::new(), |arm| (*arm).to_owned())
    };
    let names_style = (FONT, 13).into_font();
    let names_style = match names_fit(arms) {
        true => names_style,
        false => names_style.transform(FontTransform::Rotate90),
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(arms.len() * 2)
        .x_label_formatter(&name)
        .y_labels(6)
        .y_label_formatter(&|value| tick(*value))
        .y_desc(format!("{} ({})", cell.metric.name(), cell.metric.unit()))
        .label_style((FONT, 13))
        .x_label_style(names_style)
        .axis_desc_style((FONT, 15))
        .light_line_style(RGBColor(240, 240, 240))
        .bold_line_style(RGBColor(210, 210, 210))
        .draw()
        .map_err(failed)?;
    for (index, arm) in arms.iter().enumerate() {
        let Some(quartiles) = cell.quartiles(arm) else {
            continue;
        };
        let (middle, colour) = (index as f64, COLOURS[index % COLOURS.len()]);
        let (left, right) = (middle - HALF, middle + HALF);
        let corners = [(left, quartiles.lower), (right, quartiles.upper)];
        let median = [(left, quartiles.median), (right, quartiles.median)];
        let values = cell.values(arm);
        let count = values.len() as f64;
        let dots = values.iter().enumerate().map(|(run, &value)| {
            let across = middle + HALF * ((run as f64 + 0.5) / count - 0.5);
            Circle::new((across, value), 3, colour.filled())
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
