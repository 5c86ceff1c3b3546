//! Panels for arms that differ in a number: the medians of a guest's workloads against it.

use super::about::Numbers;
use super::{CellResult, Results};
use crate::plotting::{COLOURS, FONT, failed, tick};
use plotters::coord::Shift;
use plotters::prelude::*;

/// The guests that have workloads with such arms, in their order.
pub(super) fn guests(results: &Results) -> Vec<&str> {
    let Some(numbers) = &results.about.numbers else {
        return Vec::new();
    };
    let mut guests: Vec<&str> = Vec::new();
    for cell in &results.cells {
        if points(cell, numbers).len() > 1 && !guests.contains(&cell.guest.as_str()) {
            guests.push(&cell.guest);
        }
    }
    guests
}

/// Numbers and medians.
fn points(cell: &CellResult, numbers: &Numbers) -> Vec<(f64, f64)> {
    let arms = numbers.of_arms.iter();
    arms.filter_map(|(arm, number)| Some((f64::from(*number), cell.quartiles(arm)?.median)))
        .filter(|(_, median)| *median > 0.0)
        .collect()
}

/// Draws the panel of one guest.
pub(super) fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    results: &Results,
    guest: &str,
) -> Result<(), String> {
    let Some(numbers) = &results.about.numbers else {
        return Ok(());
    };
    let lines: Vec<(&CellResult, Vec<(f64, f64)>)> = results
        .cells
        .iter()
        .filter(|cell| cell.guest == guest)
        .map(|cell| (cell, points(cell, numbers)))
        .filter(|(_, points)| points.len() > 1)
        .collect();
    let all = || lines.iter().flat_map(|(_, points)| points.iter());
    let Some((first, _)) = lines.first() else {
        return Ok(());
    };
    let (least, most) = all().fold((f64::MAX, 0f64), |(least, most), (_, median)| {
        (least.min(*median), most.max(*median))
    });
    let last = all().fold(1f64, |last, (number, _)| last.max(*number));
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("{guest}, by the number of {}", numbers.what),
            (FONT, 20),
        )
        .margin(12)
        .x_label_area_size(44)
        .y_label_area_size(76)
        .build_cartesian_2d(0.0..last + 0.5, (least * 0.7..most * 1.4).log_scale())
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_labels(last as usize / 2 + 1)
        .x_label_formatter(&|number| format!("{number:.0}"))
        .y_label_formatter(&|value| tick(*value))
        .x_desc(numbers.what)
        .y_desc(format!("{} ({})", first.metric.name(), first.metric.unit()))
        .label_style((FONT, 13))
        .axis_desc_style((FONT, 15))
        .light_line_style(RGBColor(245, 245, 245))
        .bold_line_style(RGBColor(210, 210, 210))
        .draw()
        .map_err(failed)?;
    for (index, (cell, points)) in lines.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        // With more lines than colours the later ones have hollow dots.
        let is_again = index >= COLOURS.len();
        chart
            .draw_series(LineSeries::new(points.clone(), colour.stroke_width(2)))
            .map_err(failed)?
            .label(cell.workload.clone())
            .legend(move |(x, y)| {
                PathElement::new(vec![(x, y), (x + 18, y)], colour.stroke_width(2))
            });
        let dots = points.iter().map(|point| match is_again {
            true => Circle::new(*point, 4, colour.stroke_width(1)),
            false => Circle::new(*point, 4, colour.filled()),
        });
        chart.draw_series(dots).map_err(failed)?;
    }
    chart
        .configure_series_labels()
        .label_font((FONT, 13))
        .background_style(WHITE.mix(0.85))
        .border_style(RGBColor(210, 210, 210))
        .position(SeriesLabelPosition::UpperRight)
        .draw()
        .map_err(failed)
}
