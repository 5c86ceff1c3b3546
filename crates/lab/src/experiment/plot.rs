//! The results as a plot: a panel for each cell, in it for each arm every repetition as a
//! dot over the middle half and the median.

use super::{CellResult, Results};
use crate::plotting::{COLOURS, FONT, PlotError, PlotFormat, draw_lines, failed, provide_font};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

const COLUMNS: usize = 2;
const PANEL: (u32, u32) = (760, 400);
const TITLE_HEIGHT: u32 = 96;
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
    let columns = COLUMNS.min(cells.len());
    let lines = cells.len().div_ceil(columns);
    let size = (
        PANEL.0 * COLUMNS as u32,
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
    for (area, cell) in body.split_evenly(grid).iter().zip(cells) {
        panel(area, cell)?;
    }
    area.present().map_err(failed)
}

fn panel<B: DrawingBackend>(area: &DrawingArea<B, Shift>, cell: &CellResult) -> Result<(), String> {
    let arms = cell.arms();
    let all = arms.iter().flat_map(|arm| cell.values(arm));
    let most = all.fold(0.0, f64::max).max(1e-12) * 1.08;
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}, {}", cell.guest, cell.workload), (FONT, 20))
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(-0.6..arms.len() as f64 - 0.4, 0.0..most)
        .map_err(failed)?;
    let name = |position: &f64| {
        let index = position.round();
        let is_arm = (position - index).abs() < 0.01 && index >= 0.0;
        let arm = is_arm.then(|| arms.get(index as usize)).flatten();
        arm.map_or(String::new(), |arm| (*arm).to_owned())
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .x_labels(arms.len() * 2)
        .x_label_formatter(&name)
        .y_labels(6)
        .y_desc(format!("{} ({})", cell.metric.name(), cell.metric.unit()))
        .label_style((FONT, 13))
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
