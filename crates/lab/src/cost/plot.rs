//! The result as a plot: for each kind, which share of its events cost at most so many
//! cycles. Kinds of one subject share a panel.

use super::{GuestMode, Report, Row};
use crate::plotting::{COLOURS, FONT, PlotError, PlotFormat, draw_lines, failed, provide_font};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::path::Path;

/// Panels: a title and its kinds.
const PANELS: &[(&str, &[&str])] = &[
    (
        "Leaving and returning",
        &["null-hypercall", "hypercall", "cpuid", "rdtsc"],
    ),
    (
        "Devices",
        &[
            "port-in",
            "port-in-serial",
            "port-out",
            "mmio-read",
            "mmio-write",
            "eoi",
        ],
    ),
    ("Flags", &["cli", "sti", "pushf", "popf"]),
    (
        "Control transfers",
        &[
            "int",
            "iret",
            "int-iret",
            "sysenter-sysexit",
            "syscall-sysret",
            "far-jump",
            "far-call-return",
        ],
    ),
    (
        "Segments and system registers",
        &[
            "segment-load",
            "segment-store",
            "cr0-read",
            "cr0-write",
            "msr-read",
            "msr-write",
            "sgdt",
        ],
    ),
    (
        "Memory",
        &[
            "tlb-miss-read",
            "tlb-miss-write",
            "invlpg",
            "cr3-load",
            "cr3-load-touch-16",
            "slow-access",
        ],
    ),
    (
        "64-bit code",
        &[
            "syscall",
            "swapgs",
            "fs-base-msr-write",
            "fs-base-write",
            "cr8-write",
            "cr3-load-keep",
            "invpcid",
        ],
    ),
    (
        "Faults and code",
        &[
            "page-fault",
            "invalid-opcode",
            "divide-error",
            "code-write",
            "patch-and-call",
            "link-miss",
            "indirect-miss",
        ],
    ),
    (
        "Interrupts, strings, vector registers",
        &[
            "self-ipi",
            "timer-interrupt",
            "hlt-to-timer",
            "string",
            "string-down",
            "fxsave",
            "vector-load",
        ],
    ),
];
/// Modes in the order in which a kind's curve is chosen from them.
const PREFERRED: [GuestMode; 6] = [
    GuestMode::Paged,
    GuestMode::Ring3,
    GuestMode::Long,
    GuestMode::LongRing3,
    GuestMode::Protected,
    GuestMode::Real,
];
const COLUMNS: usize = 2;
const PANEL: (u32, u32) = (920, 380);
const TITLE_HEIGHT: u32 = 120;

/// Writes the plot of `report` to `path`.
///
/// # Errors
/// The file cannot be written.
pub fn write_plot(report: &Report, path: &Path, format: PlotFormat) -> Result<(), PlotError> {
    provide_font();
    let panels: Vec<_> = PANELS
        .iter()
        .map(|(title, kinds)| (*title, curves(report, kinds)))
        .filter(|(_, curves)| !curves.is_empty())
        .collect();
    let columns = COLUMNS.min(panels.len().max(1));
    let lines = panels.len().div_ceil(columns).max(1);
    let size = (
        PANEL.0 * columns.max(COLUMNS) as u32,
        PANEL.1 * lines as u32 + TITLE_HEIGHT,
    );
    match format {
        PlotFormat::Svg => draw(
            &SVGBackend::new(path, size).into_drawing_area(),
            report,
            &panels,
            (lines, columns),
        ),
        PlotFormat::Png => draw(
            &BitMapBackend::new(path, size).into_drawing_area(),
            report,
            &panels,
            (lines, columns),
        ),
    }
    .map_err(|error| PlotError(format!("{}: {error}", path.display())))
}

/// One kind, pinned and not.
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
    kinds
        .iter()
        .map(|&kind| Curves {
            kind,
            pinned: row(kind, true),
            unpinned: row(kind, false),
        })
        .filter(|curves| curves.pinned.or(curves.unpinned).is_some())
        .collect()
}

type Panels<'a> = [(&'a str, Vec<Curves<'a>>)];

fn draw<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    report: &Report,
    panels: &Panels,
    grid: (usize, usize),
) -> Result<(), String> {
    area.fill(&WHITE).map_err(failed)?;
    let (title, body) = area.split_vertically(TITLE_HEIGHT);
    let host = &report.host;
    let lines = [
        (
            30,
            "What an exit costs in Tollgate: share of events that cost at most so many cycles"
                .to_owned(),
        ),
        (
            19,
            format!(
                "{}, {}, {}, time-stamp counter {:.3} GHz{}; \
                 no-op path subtracted; 32-bit guest with paging",
                host.processor,
                host.processors_in_words(),
                host.kernel,
                host.tsc_khz as f64 / 1e6,
                report.steps_in_words()
            ),
        ),
        (
            19,
            format!(
                "solid: pinned to host processor {}, thin: not pinned. Call-outs inside one \
                 process, no protection boundary crossed: not a measure of hardware exits",
                report.pinned_to
            ),
        ),
    ];
    draw_lines(&title, &lines)?;
    for (cell, (title, curves)) in body.split_evenly(grid).iter().zip(panels) {
        panel(cell, report, title, curves)?;
    }
    area.present().map_err(failed)
}

/// What all but a hundredth of the events cost at least; not less than one cycle.
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

/// The horizontal range: whole powers of ten around what most events cost. The first
/// and the last hundredth may lie outside.
fn range(curves: &[Curves]) -> (f64, f64) {
    let rows = || curves.iter().flat_map(|c| [c.pinned, c.unpinned]).flatten();
    let least = rows().map(first_percent).min().unwrap_or(1);
    let most = rows().map(|row| row.single.p99 * 3).max().unwrap_or(10);
    let least = 10f64.powf((least as f64).log10().floor());
    let most = 10f64.powf((most.max(10) as f64).log10().ceil());
    (least, most.max(least * 10.0))
}

fn panel<B: DrawingBackend>(
    area: &DrawingArea<B, Shift>,
    report: &Report,
    title: &str,
    curves: &[Curves],
) -> Result<(), String> {
    let (left, right) = range(curves);
    // The curves' names stand beside them, not over them.
    let (plot, names) = area.split_horizontally(PANEL.0 - 320);
    let mut chart = ChartBuilder::on(&plot)
        .caption(title, (FONT, 22))
        .margin(12)
        .x_label_area_size(46)
        .y_label_area_size(58)
        .build_cartesian_2d((left..right).log_scale(), 0f64..100f64)
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc("cycles (logarithmic)")
        .y_desc("per cent of events")
        .x_label_formatter(&|value| cycles_label(*value))
        .y_label_formatter(&|value| format!("{value:.0}"))
        .y_labels(6)
        .label_style((FONT, 16))
        .axis_desc_style((FONT, 16))
        .light_line_style(RGBColor(238, 238, 238))
        .bold_line_style(RGBColor(205, 205, 205))
        .draw()
        .map_err(failed)?;
    for (index, curve) in curves.iter().enumerate() {
        let colour = COLOURS[index % COLOURS.len()];
        let styles = [
            (curve.unpinned, colour.mix(0.55).stroke_width(1)),
            (curve.pinned, colour.stroke_width(3)),
        ];
        for (row, style) in styles {
            let Some(row) = row else { continue };
            chart
                .draw_series(LineSeries::new(steps(row, left, right), style))
                .map_err(failed)?;
        }
        let top = 58 + 36 * index as i32;
        let row = curve.pinned.or(curve.unpinned);
        let p50 = row.map_or(0, |row| row.single.p50);
        let line = [(0, top + 9), (26, top + 9)];
        names
            .draw(&PathElement::new(line.to_vec(), colour.stroke_width(3)))
            .map_err(failed)?;
        let label = |text: String, y: i32, height: i32, colour: RGBColor| {
            let style = (FONT, height).into_font().color(&colour);
            names.draw(&Text::new(text, (34, y), style)).map_err(failed)
        };
        label(curve.kind.to_owned(), top, 17, BLACK)?;
        let detail = format!(
            "p50 {p50} cycles, {:.0} ns{}",
            report.nanoseconds(p50 as f64),
            match row.map(|row| row.mode) {
                Some(GuestMode::Paged) | None => String::new(),
                Some(mode) => format!(", {}", mode.name()),
            }
        );
        label(detail, top + 18, 14, RGBColor(90, 90, 90))?;
    }
    Ok(())
}

/// The corners of a cumulative distribution.
fn steps(row: &Row, left: f64, right: f64) -> Vec<(f64, f64)> {
    let total = row.single.count.max(1) as f64;
    let mut points = vec![(left, 0.0)];
    let (mut below, mut height) = (0, 0.0);
    for &(cycles, times) in &row.distribution {
        let cycles = (cycles as f64).max(left);
        if cycles > right {
            break;
        }
        below += times;
        points.push((cycles, height));
        height = below as f64 * 100.0 / total;
        points.push((cycles, height));
    }
    points.push((right, height));
    points
}

fn cycles_label(value: f64) -> String {
    if value >= 1e6 {
        format!("{:.0}M", value / 1e6)
    } else if value >= 1e3 {
        format!("{:.0}k", value / 1e3)
    } else {
        format!("{value:.0}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::kinds::KINDS;

    #[test]
    fn panels_name_kinds_and_have_a_colour_for_each() {
        for (title, kinds) in PANELS {
            assert!(kinds.len() <= COLOURS.len(), "{title}");
            for name in *kinds {
                assert!(KINDS.iter().any(|kind| kind.name == *name), "{name}");
            }
        }
    }
}
