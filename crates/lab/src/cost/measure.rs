//! Makes the measurements of `tollgate cost` in Tollgate, by mode and pinning.

use super::bench::{Bench, find};
use super::guest::Guest;
use super::image::{self, GuestMode, Loops};
use super::kinds::{KINDS, Kind};
use super::pinning::Pinning;
use super::{CostError, Options, Report};
use crate::experiment::{Observer, Stop};
use crate::statistics::{clock_step, distribution};
use tollgate_host_facts::processors::HostDescription;

/// Runs the experiment on the calling thread.
///
/// # Errors
///
/// An unknown kind, a host that refuses resources, or a guest that did not do its work; or `stop`
/// was requested before there was a row. A later interruption is not an error: the report then says
/// that it is not complete.
pub fn run(
    options: &Options,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<Report, CostError> {
    let mut report = None;
    let ended = fill(&mut report, options, stop, observer);
    match (ended, report) {
        (Ok(()), Some(report)) => Ok(Report {
            is_complete: true,
            ..report
        }),
        (Ok(()), None) => Err(CostError::NothingChosen),
        (Err(CostError::Interrupted), Some(report)) => Ok(report),
        (Err(error), _) => Err(error),
    }
}

/// Adds rows to the report, which begins with the first machine.
fn fill(
    report: &mut Option<Report>,
    options: &Options,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<(), CostError> {
    for name in &options.kinds {
        if !KINDS.iter().any(|kind| kind.name == name) {
            return Err(CostError::UnknownKind(name.clone()));
        }
    }
    let pinning = Pinning::new(options.processor)?;

    let table = image::table();
    let passes: Vec<(bool, GuestMode)> = [true, false]
        .into_iter()
        .flat_map(|is_pinned| GuestMode::ALL.map(|mode| (is_pinned, mode)))
        .filter(|(_, mode)| options.modes.is_empty() || options.modes.contains(mode))
        .collect();
    let total = passes
        .iter()
        .map(|&(_, mode)| chosen(options, &table, mode).len())
        .sum();

    let mut done = 0;
    for (is_pinned, mode) in passes {
        let kinds = chosen(options, &table, mode);
        if kinds.is_empty() {
            continue;
        }
        pinning.apply(is_pinned)?;
        let guest = Guest::start(mode, stop)?;
        let mut bench = Bench::new(guest, (options, stop), &table, mode)?;
        let report = report.get_or_insert_with(|| Report {
            // The host must be described before the thread is pinned, which leaves one processor.
            host: HostDescription {
                processors: pinning.processors(),
                ..HostDescription::here(bench.tsc_khz())
            },
            pinned_to: pinning.processor,
            tsc_step: 0,
            is_complete: false,
            rows: Vec::new(),
        });
        for (kind, loops) in kinds {
            let place = if is_pinned { "pinned" } else { "unpinned" };
            observer.progress(
                done,
                total,
                &format!("{} ({}, {place})", kind.name, mode.name()),
            );
            report.rows.push(bench.row(kind, loops, is_pinned)?);
            if report.tsc_step == 0 {
                report.tsc_step = clock_step(&distribution(&bench.no_op));
            }
            done += 1;
        }
    }
    Ok(())
}

fn chosen<'a>(
    options: &Options,
    table: &'a [Loops],
    mode: GuestMode,
) -> Vec<(&'static Kind, &'a Loops)> {
    KINDS
        .iter()
        .filter(|kind| {
            options.kinds.is_empty() || options.kinds.iter().any(|name| name == kind.name)
        })
        .filter_map(|kind| Some((kind, find(table, kind.name, mode)?)))
        .collect()
}
