//! Draws the system calls as the study drew its exits: the share of calls that take at most a number of cycles.

use super::{Calls, Samples, SystemCalls};
use crate::cost::plot::{chart, draw_curve};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;
use tollgate_plots::{COLOURS, FONT, PlotError, PlotFormat, draw_lines, failed, write};

const PANEL: (u32, u32) = (560, 420);
const TITLE_HEIGHT: u32 = 150;

/// What a curve shows of a guest's samples.
type Values = fn(&Samples) -> Vec<u64>;
const CURVES: [(&str, Values); 3] = [
    ("system call that does nothing", |samples| {
        samples.nothing.clone()
    }),
    ("with the hypercall", |samples| samples.marked.clone()),
    (
        "the hypercall: without the median of nothing",
        Samples::exits,
    ),
];

/// Writes the plot to `path`: a panel for each guest that ran.
///
/// # Errors
/// The file cannot be written.
pub fn write_plot(results: &SystemCalls, path: &Path, format: PlotFormat) -> Result<(), PlotError> {
    let mut guests: Vec<&str> = Vec::new();
    for calls in results.calls.iter().filter(|calls| calls.finding.is_ok()) {
        if !guests.contains(&calls.guest) {
            guests.push(calls.guest);
        }
    }
    let size = (
        PANEL.0 * (guests.len() as u32).max(2),
        TITLE_HEIGHT + PANEL.1,
    );
    write(path, format, size, |area| draw(area, results, &guests))
}

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    results: &SystemCalls,
    guests: &[&str],
) -> Result<(), String> {
    area.fill(&WHITE).map_err(failed)?;
    let (title, body) = area.split_vertically(TITLE_HEIGHT);
    let lines = [
        (
            24,
            "Share of system calls that take at most so many cycles".to_owned(),
        ),
        (14, results.host.to_string()),
        (
            14,
            format!(
                "solid: pinned to host processor {}; dashed: not pinned. A call inside one process: no measure \
                 of hardware exits",
                results.pinned_to
            ),
        ),
    ];
    draw_lines(&title, &lines)?;
    let mut left = 20;
    for ((name, _), colour) in CURVES.iter().zip(COLOURS) {
        let y = TITLE_HEIGHT as i32 - 22;
        let line = vec![(left, y), (left + 26, y)];
        title
            .draw(&PathElement::new(line, colour.stroke_width(4)))
            .map_err(failed)?;
        let style = (FONT, 14).into_font().color(&BLACK);
        title
            .draw(&Text::new(*name, (left + 34, y - 8), style))
            .map_err(failed)?;
        left += 64 + 9 * name.len() as i32;
    }
    let panels = body.split_evenly((1, guests.len().max(1)));
    for (area, guest) in panels.iter().zip(guests) {
        let calls: Vec<&Calls> = results
            .calls
            .iter()
            .filter(|calls| calls.guest == *guest)
            .collect();
        panel(area, guest, &calls)?;
    }
    area.present().map_err(failed)
}

fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    guest: &str,
    calls: &[&Calls],
) -> Result<(), String> {
    let all = calls.iter().filter_map(|calls| {
        let samples = calls.finding.as_ref().ok()?;
        Some((calls.pinned, samples))
    });
    let all: Vec<(bool, &Samples)> = all.collect();
    let most = all.iter().flat_map(|(_, samples)| samples.marked.iter());
    let right = 10f64.powf(
        (most.copied().max().unwrap_or(10).max(1000) as f64)
            .log10()
            .ceil(),
    );
    let left = 10.0;
    let mut chart = chart(area, guest, (left, right))?;
    for (pinned, samples) in all {
        for ((_, values), colour) in CURVES.iter().zip(COLOURS) {
            let points = steps(&values(samples), left, right);
            draw_curve(&mut chart, points, colour, pinned)?;
        }
    }
    Ok(())
}

/// The corners of the cumulative distribution of ascending values.
fn steps(values: &[u64], left: f64, right: f64) -> Vec<(f64, f64)> {
    let distribution = crate::statistics::distribution(values);
    crate::cost::plot::steps_of(&distribution, left, right)
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::example;
    use super::*;

    #[test]
    fn the_picture_has_the_guests_that_ran() {
        let folder = std::env::temp_dir();
        let path = folder.join(format!("tollgate-calls-{}.svg", std::process::id()));
        write_plot(&example(), &path, PlotFormat::Svg).unwrap();
        let drawn = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(drawn.contains("linux-amd64") && drawn.contains("cumulative share"));
        assert!(!drawn.contains("linux-686"));
    }
}
