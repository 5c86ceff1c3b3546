//! A chart of cumulative distributions on the study's axes: a number of cycles, and the share of events that cost at most this number.

use super::{BOLD, DASH, LIGHT};
use plotters::coord::Shift;
use plotters::coord::combinators::LogCoord;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use tollgate_plots::{FONT, failed, tick};

/// A chart with cycles on a logarithmic axis and per cent on the other.
pub type Chart<'a, B> = ChartContext<'a, B, Cartesian2d<LogCoord<f64>, RangedCoordf64>>;

/// Draws the axes of a chart for this range of cycles.
///
/// # Errors
/// The drawing failed.
pub fn chart<'a, B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    title: &str,
    (left, right): (f64, f64),
) -> Result<Chart<'a, B>, String> {
    let mut chart = ChartBuilder::on(area)
        .caption(title, (FONT, 19))
        .margin(10)
        .margin_right(22)
        .x_label_area_size(40)
        .y_label_area_size(62)
        .build_cartesian_2d((left..right).log_scale(), 0f64..100f64)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc("cycles")
        .y_desc("cumulative share")
        .x_label_formatter(&|value| tick(*value))
        .y_label_formatter(&|value| format!("{value:.0}%"))
        .y_labels(5)
        .y_max_light_lines(1)
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 13))
        .light_line_style(LIGHT)
        .bold_line_style(BOLD)
        .draw()
        .map_err(failed)?;
    Ok(chart)
}

/// Draws a distribution: a solid line if the machine was pinned, a thin dashed one if not.
///
/// # Errors
/// The drawing failed.
pub fn draw_curve<'a, B: DrawingBackend + 'a>(
    chart: &mut Chart<'a, B>,
    points: Vec<(f64, f64)>,
    colour: RGBColor,
    is_pinned: bool,
) -> Result<(), String> {
    match is_pinned {
        true => chart
            .draw_series(LineSeries::new(points, colour.stroke_width(2)))
            .map(drop),
        false => chart
            .draw_series(DashedLineSeries::new(
                points,
                DASH.0,
                DASH.1,
                colour.stroke_width(1),
            ))
            .map(drop),
    }
    .map_err(failed)
}
