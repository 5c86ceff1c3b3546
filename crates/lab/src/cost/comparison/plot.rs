//! Draws the comparison of machines as the study drew its exits: the share of events that cost at most a number of cycles,
//! one panel for each kind, one colour for each machine.

use super::{Comparison, Finding, Line};
use crate::cost::plot::{chart, draw_curve, steps};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;
use tollgate_plots::{COLOURS, FONT, PlotError, PlotFormat, draw_lines, failed, write};

/// The panels in a row of the picture.
const COLUMNS: usize = 3;
const PANEL: (u32, u32) = (480, 330);
const TITLE_HEIGHT: u32 = 150;
/// No clock resolves fewer cycles.
const LEAST_CYCLES: f64 = 10.0;

/// Writes the plot to `path`.
///
/// # Errors
/// The file cannot be written.
pub fn write_plot(
    comparison: &Comparison,
    path: &Path,
    format: PlotFormat,
) -> Result<(), PlotError> {
    let panels = panels(comparison);
    let rows = panels.len().div_ceil(COLUMNS).max(1) as u32;
    let size = (COLUMNS as u32 * PANEL.0, TITLE_HEIGHT + rows * PANEL.1);
    write(path, format, size, |area| draw(area, comparison, &panels))
}

/// A kind, and its lines that were measured.
type Panel<'a> = (&'a str, Vec<&'a Line>);

fn panels(comparison: &Comparison) -> Vec<Panel<'_>> {
    let mut panels: Vec<Panel> = Vec::new();
    for line in &comparison.lines {
        if matches!(line.finding, Finding::None(_)) {
            continue;
        }
        match panels.iter_mut().find(|(kind, _)| *kind == line.kind) {
            Some((_, lines)) => lines.push(line),
            None => panels.push((line.kind, vec![line])),
        }
    }
    panels
}

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    comparison: &Comparison,
    panels: &[Panel],
) -> Result<(), String> {
    area.fill(&WHITE).map_err(failed)?;
    let (title, body) = area.split_vertically(TITLE_HEIGHT);
    let lines = [
        (
            28,
            "Share of events that cost at most so many cycles".to_owned(),
        ),
        (17, format!("{}; empty loop subtracted", comparison.host)),
        (
            17,
            format!(
                "solid: pinned to host processor {}; dashed: not pinned. Calls inside one process \
                 are no measure of hardware exits: comparable is the time for the same work",
                comparison.pinned_to
            ),
        ),
    ];
    draw_lines(&title, &lines)?;
    legend(&title, comparison)?;
    let rows = panels.len().div_ceil(COLUMNS).max(1);
    let cycles = range(panels);
    for (area, panel) in body.split_evenly((rows, COLUMNS)).iter().zip(panels) {
        draw_panel(area, comparison, panel, cycles)?;
    }
    area.present().map_err(failed)
}

fn legend<B: DrawingBackend>(
    title: &DrawingArea<B, Shift>,
    comparison: &Comparison,
) -> Result<(), String> {
    let mut left = 20;
    for (machine, colour) in comparison.machines.iter().zip(COLOURS) {
        let y = TITLE_HEIGHT as i32 - 22;
        let line = vec![(left, y), (left + 30, y)];
        title
            .draw(&PathElement::new(line, colour.stroke_width(4)))
            .map_err(failed)?;
        let text = match &machine.not_run {
            None => machine.name.to_owned(),
            Some(_) => format!("{} (not run)", machine.name),
        };
        left += 60 + 11 * text.len() as i32;
        let at = (left - 20 - 11 * text.len() as i32, y - 9);
        let style = (FONT, 17).into_font().color(&BLACK);
        title.draw(&Text::new(text, at, style)).map_err(failed)?;
    }
    Ok(())
}

/// The horizontal range, the same for all panels: whole powers of ten around most events' costs.
fn range(panels: &[Panel]) -> (f64, f64) {
    let lines = panels.iter().flat_map(|(_, lines)| lines);
    let (mut least, mut most) = (f64::INFINITY, LEAST_CYCLES);
    for line in lines {
        if let Finding::Measured(measured) = &line.finding {
            least = least.min(measured.row.single.min as f64);
            most = most.max(measured.row.single.p99 as f64 * 3.0);
        }
    }
    let least = 10f64.powf(least.clamp(LEAST_CYCLES, most).log10().floor());
    (least, 10f64.powf(most.log10().ceil()).max(least * 10.0))
}

fn draw_panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    comparison: &Comparison,
    (kind, lines): &Panel,
    (left, right): (f64, f64),
) -> Result<(), String> {
    let mode = lines.first().map_or("", |line| line.mode);
    let title = format!("{kind} ({mode})");
    let mut chart = chart(area, &title, (left, right))?;
    // Lines that are not pinned come first, so that the others cover them.
    for pinned in [false, true] {
        for line in lines.iter().filter(|line| line.pinned == pinned) {
            let mut machines = comparison.machines.iter().zip(COLOURS);
            let colour = machines
                .find(|(machine, _)| machine.name == line.machine)
                .map_or(BLACK, |(_, colour)| colour);
            let Finding::Measured(measured) = &line.finding else {
                continue;
            };
            let points = steps(&measured.row, left, right);
            draw_curve(&mut chart, points, colour, pinned)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::comparison;
    use super::*;

    #[test]
    fn each_kind_has_a_panel_with_the_machines_that_have_it() {
        let comparison = comparison();
        let panels = panels(&comparison);
        assert_eq!(panels.len(), 1);
        assert_eq!(panels[0].0, "null-hypercall");
        assert_eq!(panels[0].1.len(), 1);
        assert!(comparison.machines.len() <= COLOURS.len());
    }

    #[test]
    fn the_picture_says_what_did_not_run() {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("tollgate-comparison-{}.svg", std::process::id()));
        write_plot(&comparison(), &path, PlotFormat::Svg).unwrap();
        let drawn = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        for words in [
            "kvm (not run)",
            "null-hypercall",
            "cumulative share",
            "cycles",
        ] {
            assert!(drawn.contains(words), "{words}");
        }
    }
}
