//! Panels for workloads that differ in a number: for each kind of them and each guest the arms'
//! medians by this number, with their quartiles. Both axes are logarithmic.

use super::Results;
use super::plot::decades;
use crate::statistics::Quartiles;
use plotters::coord::Shift;
use plotters::prelude::*;
use tollgate_plots::{FONT, colour, failed, tick};

/// The lines of one panel.
pub(super) struct Lines {
    guest: String,
    kind: &'static str,
    what: &'static str,
    unit: String,
    /// For each arm, by its place in the experiment's list: the numbers and the quartiles.
    arms: Vec<(usize, Vec<(f64, Quartiles)>)>,
}

/// The panels that have lines.
pub(super) fn panels(results: &Results) -> Vec<Lines> {
    let Some(by_workload) = &results.about.by_workload else {
        return Vec::new();
    };
    let guests = results.about.guests.iter();
    guests
        .flat_map(|guest| by_workload.kinds.iter().map(move |kind| (guest, kind)))
        .filter_map(|(guest, (kind, workloads))| {
            let cells = || {
                let workloads = workloads.iter();
                workloads.filter_map(|(workload, number)| {
                    Some((*number, results.cell(guest.name, workload)?))
                })
            };
            let (_, first) = cells().next()?;
            let arms = results.arms.iter().enumerate();
            let arms: Vec<_> = arms
                .map(|(place, arm)| {
                    let points = cells().filter_map(|(number, cell)| {
                        Some((f64::from(number), cell.quartiles(&arm.name)?))
                    });
                    let points = points.filter(|(_, it)| it.lower > 0.0);
                    (place, points.collect::<Vec<_>>())
                })
                .filter(|(_, points)| points.len() > 1)
                .collect();
            (!arms.is_empty()).then(|| Lines {
                guest: guest.name.to_owned(),
                kind,
                what: by_workload.what,
                unit: format!("{} ({})", first.metric.name(), first.metric.unit()),
                arms,
            })
        })
        .collect()
}

/// Draws one panel.
pub(super) fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    results: &Results,
    lines: &Lines,
) -> Result<(), String> {
    let all = || lines.arms.iter().flat_map(|(_, points)| points);
    let ends = |value: fn(&(f64, Quartiles)) -> (f64, f64)| {
        all().map(value).fold((f64::MAX, 0f64), |ends, it| {
            (ends.0.min(it.0), ends.1.max(it.1))
        })
    };
    let (first, last) = ends(|(number, _)| (*number, *number));
    let (least, most) = ends(|(_, it)| (it.lower, it.upper));
    let across = decades(first * 0.9, last * 1.1).log_scale();
    let up = decades(least * 0.7, most * 1.4).log_scale();
    let mut chart = ChartBuilder::on(area)
        .caption(
            format!("{}, {}, by {}", lines.guest, lines.kind, lines.what),
            (FONT, 15),
        )
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(60)
        .build_cartesian_2d(across, up)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_label_formatter(&|value| tick(*value))
        .y_label_formatter(&|value| tick(*value))
        .x_desc(lines.what)
        .y_desc(&lines.unit)
        .label_style((FONT, 11))
        .axis_desc_style((FONT, 12))
        .light_line_style(RGBColor(245, 245, 245))
        .bold_line_style(RGBColor(210, 210, 210))
        .draw()
        .map_err(failed)?;
    for (place, points) in &lines.arms {
        let colour = colour(*place);
        let medians = points.iter().map(|(number, it)| (*number, it.median));
        chart
            .draw_series(LineSeries::new(medians.clone(), colour.stroke_width(2)))
            .map_err(failed)?
            .label(results.arms[*place].name.clone())
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(3)));
        chart
            .draw_series(medians.map(|point| Circle::new(point, 3, colour.filled())))
            .map_err(failed)?;
        let quartiles = points.iter().map(|(number, it)| {
            let ends = vec![(*number, it.lower), (*number, it.upper)];
            PathElement::new(ends, colour.stroke_width(1))
        });
        chart.draw_series(quartiles).map_err(failed)?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .label_font((FONT, 12))
        .border_style(RGBColor(210, 210, 210))
        .background_style(WHITE)
        .draw()
        .map_err(failed)
}
