//! Panels for arms that differ in a number: the medians of a guest's workloads by this number, with
//! their quartiles.

use super::about::Numbers;
use super::plot::{FAR_APART, decades, from_zero};
use super::{CellResult, Results};
use crate::statistics::Quartiles;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{Ranged, ValueFormatter};
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use tollgate_plots::{FONT, colour, failed, tick};

/// The height of a panel.
pub(super) const HEIGHT: u32 = 320;
/// The width of the workloads' names, which are drawn next to the lines.
const NAMES_WIDTH: i32 = 190;
const NAME_HEIGHT: i32 = 18;

/// The guests that have workloads with such arms, in their order.
pub(super) fn guests(results: &Results) -> Vec<&str> {
    let Some(numbers) = &results.about.numbers else {
        return Vec::new();
    };
    let mut guests: Vec<&str> = Vec::new();
    for cell in &results.cells {
        if !points(cell, numbers).is_empty() && !guests.contains(&cell.guest.as_str()) {
            guests.push(&cell.guest);
        }
    }
    guests
}

/// The values of a line: numbers, and quartiles of the arms with them.
type Points = Vec<(f64, Quartiles)>;

/// The numbers and quartiles of a cell's arms, for each series that the cell has.
fn points(cell: &CellResult, numbers: &Numbers) -> Vec<(String, Points)> {
    let others = numbers.others.iter();
    let others = others.map(|(name, arms)| (format!("{}, {name}", cell.workload), *arms));
    std::iter::once((cell.workload.clone(), numbers.of_arms))
        .chain(others)
        .map(|(name, arms)| {
            let arms = arms.iter();
            let points =
                arms.filter_map(|(arm, number)| Some((f64::from(*number), cell.quartiles(arm)?)));
            (
                name,
                points.filter(|(_, it)| it.median > 0.0).collect::<Points>(),
            )
        })
        .filter(|(_, points)| points.len() > 1)
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
    // A workload has the same colour for all guests.
    let mut names: Vec<String> = Vec::new();
    for (name, _) in results.cells.iter().flat_map(|cell| points(cell, numbers)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let cells = results.cells.iter().filter(|cell| cell.guest == guest);
    let mut lines: Vec<(&CellResult, String, Points)> = cells
        .flat_map(|cell| {
            let lines = points(cell, numbers).into_iter();
            lines.map(move |(name, points)| (cell, name, points))
        })
        .collect();
    // The names are in the order of the lines' ends, from the top.
    let end = |points: &Points| points.last().map_or(0.0, |(_, it)| it.median);
    lines.sort_by(|(.., a), (.., b)| end(b).total_cmp(&end(a)));
    let all = || lines.iter().flat_map(|(.., points)| points.iter());
    let Some((first, ..)) = lines.first() else {
        return Ok(());
    };
    let (least, most) = all().fold((f64::MAX, 0f64), |(least, most), (_, it)| {
        (least.min(it.lower), most.max(it.upper))
    });
    let last = all().fold(1f64, |last, (number, _)| last.max(*number));
    let width = area.dim_in_pixel().0 as i32;
    let (area, beside) = area.split_horizontally(width - NAMES_WIDTH);
    let mut builder = ChartBuilder::on(&area);
    builder
        .caption(
            format!("{guest}, by the number of {}", numbers.what),
            (FONT, 15),
        )
        .margin(8)
        .x_label_area_size(36)
        .y_label_area_size(60);
    let across = 0.0..last + 0.5;
    let unit = format!("{} ({})", first.metric.name(), first.metric.unit());
    let panel = Panel {
        lines: &lines,
        names: &names,
        beside: &beside,
        last,
        what: numbers.what,
        unit: &unit,
    };
    if most / least > FAR_APART {
        let range = decades(least * 0.7, most * 1.4).log_scale();
        return panel.draw(builder.build_cartesian_2d(across, range).map_err(failed)?);
    }
    let chart = builder.build_cartesian_2d(across, from_zero(most));
    panel.draw(chart.map_err(failed)?)
}

/// The parameters of a panel.
struct Panel<'a, B: DrawingBackend> {
    lines: &'a [(&'a CellResult, String, Points)],
    /// All names; the index of a name determines its line's colour.
    names: &'a [String],
    /// The area for the names of the lines.
    beside: &'a DrawingArea<B, Shift>,
    /// The largest number of an arm.
    last: f64,
    what: &'a str,
    unit: &'a str,
}

impl<B: DrawingBackend> Panel<'_, B> {
    fn draw<Y>(
        &self,
        mut chart: ChartContext<B, Cartesian2d<RangedCoordf64, Y>>,
    ) -> Result<(), String>
    where
        Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
    {
        chart
            .configure_mesh()
            .x_labels(self.last as usize / 2 + 1)
            .x_label_formatter(&|number| format!("{number:.0}"))
            .y_label_formatter(&|value| tick(*value))
            .x_desc(self.what)
            .y_desc(self.unit)
            .label_style((FONT, 11))
            .axis_desc_style((FONT, 12))
            .light_line_style(RGBColor(245, 245, 245))
            .bold_line_style(RGBColor(210, 210, 210))
            .draw()
            .map_err(failed)?;
        for (index, (_, name, points)) in self.lines.iter().enumerate() {
            let known = self.names.iter().position(|it| it == name);
            let colour = colour(known.unwrap_or(index));
            let medians = points.iter().map(|(number, it)| (*number, it.median));
            chart
                .draw_series(LineSeries::new(medians.clone(), colour.stroke_width(2)))
                .map_err(failed)?;
            chart
                .draw_series(medians.map(|point| Circle::new(point, 3, colour.filled())))
                .map_err(failed)?;
            let quartiles = points.iter().map(|(number, it)| {
                let ends = vec![(*number, it.lower), (*number, it.upper)];
                PathElement::new(ends, colour.stroke_width(1))
            });
            chart.draw_series(quartiles).map_err(failed)?;
            let top = 36 + NAME_HEIGHT * index as i32;
            let line = vec![(0, top + 6), (18, top + 6)];
            self.beside
                .draw(&PathElement::new(line, colour.stroke_width(3)))
                .map_err(failed)?;
            let style = (FONT, 11).into_font().color(&BLACK);
            self.beside
                .draw(&Text::new(name.as_str(), (24, top), style))
                .map_err(failed)?;
        }
        Ok(())
    }
}
