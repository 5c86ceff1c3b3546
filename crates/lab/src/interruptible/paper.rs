//! Tables of the experiment `interruptible`: latencies, causes of masking, the size of the monitor.

use super::about::{ARMS, is_pair};
use super::linux::{BEHIND, WAITS};
use super::study;
use crate::experiment::{CellResult, Results, Section, columns, whole};
use crate::statistics::Quartiles;
use std::cmp::Ordering::Equal;
use std::collections::BTreeSet;
use tollgate_exits::latency::InterruptibleWork;

/// The tables of this experiment.
pub fn sections(results: &Results) -> Vec<Section> {
    vec![
        study::beside_ours(results),
        latencies(results),
        by_whom(results),
        by_section(results),
        masked(results),
        side_by_side(results),
    ]
}

/// The median of a value in an arm's samples.
pub(super) fn value(cell: &CellResult, arm: &str, name: &str) -> Option<f64> {
    let samples = cell.samples().iter().filter(|sample| sample.arm == arm);
    let values: Vec<f64> = samples
        .filter_map(|sample| sample.timed.values.get(name).copied())
        .collect();
    Some(Quartiles::of(&values)?.median)
}

fn measured(results: &Results) -> impl Iterator<Item = &CellResult> {
    let cells = results.cells.iter();
    cells.filter(|cell| !cell.samples().is_empty())
}

pub(super) fn tenth(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.1}"))
}

/// From the point in time to the handler, and to the process.
fn latencies(results: &Results) -> Section {
    const SHOWN: [&str; 3] = ["p50", "p99", "max"];
    let mut columns = columns(&["", "arm"]);
    for what in ["A", "C", "host"] {
        columns.push(format!("{what} count"));
        columns.extend(SHOWN.map(|it| format!("{what} {it}")));
    }
    columns.push("B p50".into());
    let rows = measured(results).flat_map(|cell| {
        ARMS.into_iter().map(move |arm| {
            let mut row = vec![format!("{}, {}", cell.guest, cell.workload), arm.to_owned()];
            for (what, count) in [
                ("to-handler", "to-handler-count"),
                ("process", WAITS),
                ("native", "native-count"),
            ] {
                row.push(whole(value(cell, arm, count)));
                row.extend(SHOWN.map(|it| tenth(value(cell, arm, &format!("{what}-{it}")))));
            }
            let [handler, process] =
                ["to-handler-p50", "process-p50"].map(|it| value(cell, arm, it));
            row.push(tenth(process.zip(handler).map(|(to, from)| to - from)));
            row
        })
    });
    Section {
        title: "latencies, us".into(),
        columns,
        rows: rows.collect(),
        notes: vec![
            "Medians of the repetitions. A: from an interrupt's being due to the first instruction of its \
             handler, of all interrupts. C: from the moment that the waiting process named until it runs, by \
             the guest's clock. B = C - A, of the medians: from the handler to the process, which is what the \
             study measured. count: how many waits the percentiles are of; of fewer than 100, p99 is the \
             longest. 'host': C of the same program on this host, without a machine: the least that a \
             guest of an ordinary process can come to."
                .into(),
        ],
    }
}

/// What interrupts waited for.
fn by_whom(results: &Results) -> Section {
    const SHOWN: [(&str, &str); 9] = [
        ("host p50", "host-p50"),
        ("host p99", "host-p99"),
        ("guest p50", "guest-p50"),
        ("guest p99", "guest-p99"),
        ("guest max", "guest-max"),
        ("monitor p50", "monitor-p50"),
        ("monitor p99", "monitor-p99"),
        ("monitor p99.9", "monitor-p999"),
        ("monitor max", "monitor-max"),
    ];
    let mut columns = columns(&["", "arm"]);
    columns.extend(SHOWN.map(|it| it.0.to_owned()));
    let rows = measured(results).flat_map(|cell| {
        ARMS.into_iter().map(move |arm| {
            let mut row = vec![format!("{}, {}", cell.guest, cell.workload), arm.to_owned()];
            row.extend(SHOWN.map(|it| tenth(value(cell, arm, it.1))));
            row
        })
    });
    Section {
        title: "for whom interrupts waited until their handler, us".into(),
        columns,
        rows: rows.collect(),
        notes: vec![
            "host: until its timer has fired and the machine's thread runs. guest: its interrupt flag is \
             clear. monitor: until the next boundary of the guest's instructions."
                .into(),
        ],
    }
}

/// What in the monitor interrupts waited for.
fn by_section(results: &Results) -> Section {
    const SHOWN: [&str; 4] = ["p50", "p99", "p999", "max"];
    let mut rows = Vec::new();
    for cell in measured(results) {
        for arm in ARMS {
            let samples = cell.samples().iter().filter(|sample| sample.arm == arm);
            let named: BTreeSet<&str> = samples
                .flat_map(|sample| sample.timed.values.keys())
                .filter_map(|name| name.strip_prefix(BEHIND)?.strip_suffix("-sum"))
                .collect();
            let of = |name: &str, what: &str| value(cell, arm, &format!("{BEHIND}{name}-{what}"));
            let mut named: Vec<_> = named.into_iter().collect();
            named.sort_by(|a, b| of(b, "sum").partial_cmp(&of(a, "sum")).unwrap_or(Equal));
            rows.extend(named.into_iter().map(|name| {
                let mut row = vec![
                    format!("{}, {}", cell.guest, cell.workload),
                    arm.to_owned(),
                    name.to_owned(),
                    whole(of(name, "count")),
                    tenth(of(name, "sum").map(|sum| sum / 1e3)),
                ];
                row.extend(SHOWN.map(|what| tenth(of(name, what))));
                row
            }));
        }
    }
    let mut columns = columns(&["", "arm", "behind", "interrupts", "sum ms"]);
    columns.extend(["p50", "p99", "p99.9", "max"].map(str::to_owned));
    Section {
        title: "what in the monitor interrupts waited for, us".into(),
        columns,
        rows,
        notes: vec![
            "Medians of the repetitions that have it. 'behind': the section that took most of the wait, or \
             else the kind of exit; 'interrupted' is the way out of guest code."
                .into(),
        ],
    }
}

/// Longest times without a check, by section.
fn masked(results: &Results) -> Section {
    let columns = columns(&[
        "",
        "section",
        "arm",
        "IF",
        "times",
        "sum ms",
        "p99",
        "p99.9",
        "longest",
        "stops",
        "resumed",
        "break-even",
    ]);
    let mut rows = Vec::new();
    for cell in measured(results) {
        for section in InterruptibleWork::ALL.map(InterruptibleWork::name) {
            for (arm, set) in ARMS.into_iter().flat_map(|arm| [(arm, true), (arm, false)]) {
                let pieces = if set { "masked" } else { "within" };
                let of = |what: &str| value(cell, arm, &format!("{pieces}-{section}-{what}"));
                let Some(count) = of("count") else {
                    continue;
                };
                let happened = |what: &str| match set {
                    true => {
                        let count = value(cell, arm, &format!("{what}-{section}"));
                        format!("{:.0}", count.unwrap_or(0.0))
                    }
                    false => String::new(),
                };
                rows.push(vec![
                    format!("{}, {}", cell.guest, cell.workload),
                    section.to_owned(),
                    arm.to_owned(),
                    if set { "set" } else { "clear" }.to_owned(),
                    format!("{count:.0}"),
                    tenth(of("sum").map(|sum| sum / 1e3)),
                    tenth(of("p99")),
                    tenth(of("p999")),
                    tenth(of("max")),
                    happened("stops"),
                    happened("resumed"),
                    tenth(value(cell, arm, "break-even")),
                ]);
            }
        }
    }
    Section {
        title: "for how long the monitor's sections look at no request, us".into(),
        columns,
        rows,
        notes: vec![
            "Of each run of a section its longest piece; what the host ran in between is taken off as far as \
             the thread's processor time tells. IF: the guest's own flag meanwhile; where it is clear no \
             interrupt could be delivered, so the section masks nothing itself, and does not stop. \
             'break-even': what it takes from a point to the handler's first instruction (median): a section \
             stops only if it has run for as long."
                .into(),
        ],
    }
}

/// The sum in milliseconds, over all runs of sections while the guest let interrupts in, of each
/// run's longest time without a check.
pub(super) fn in_pieces(cell: &CellResult, arm: &str) -> Option<f64> {
    let names = InterruptibleWork::ALL.map(InterruptibleWork::name);
    let of = |name| value(cell, arm, &format!("masked-{name}-sum"));
    let sums: Vec<f64> = names.into_iter().filter_map(of).collect();
    (!sums.is_empty()).then(|| sums.iter().sum::<f64>() / 1e3)
}

/// The measured guest next to its neighbour, and after the neighbour was killed.
fn side_by_side(results: &Results) -> Section {
    let per_microsecond = results.host.tsc_khz as f64 / 1e3;
    let pairs = measured(results).filter(|cell| is_pair(&cell.workload));
    let rows = pairs.flat_map(|cell| {
        ARMS.into_iter().map(move |arm| {
            let of = |name: &str| value(cell, arm, name);
            let mut row = vec![format!("{}, {}", cell.guest, cell.workload), arm.to_owned()];
            for (event, late) in [("event", "process"), ("alone-event", "alone")] {
                row.push(tenth(of(event).map(|cycles| cycles / per_microsecond)));
                row.push(whole(of(match late {
                    "process" => WAITS,
                    _ => "alone-count",
                })));
                row.extend(["p50", "p99", "max"].map(|it| tenth(of(&format!("{late}-{it}")))));
            }
            let canaries = cell.samples().iter().filter(|sample| sample.arm == arm);
            let canaries = canaries.filter_map(|sample| sample.timed.values.get("canaries"));
            row.push(whole(canaries.copied().reduce(f64::max)));
            row
        })
    });
    Section {
        title: "two machines, us".into(),
        columns: columns(&[
            "",
            "arm",
            "beside: event",
            "C count",
            "C p50",
            "C p99",
            "C max",
            "after the kill: event",
            "C count",
            "C p50",
            "C p99",
            "C max",
            "canaries",
        ]),
        rows: rows.collect(),
        notes: vec![
            "beside: the measured guest while its neighbour starts processes too, pinned to the same processor \
             of the host or to another. after the kill: first another neighbour was killed in the middle of \
             its work, like a power cut; the measured guest went on, and this is its next run, alone. event: \
             processor time of one; C: as above. canaries: how often random bytes in both guests' memory were \
             compared with their checksums; a difference, or a guest that does not go on, would have \
             failed the run."
                .into(),
        ],
    }
}

/// A field of /proc/self/status, in kB.
fn status(field: &str) -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find(|line| line.starts_with(field))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

/// The size of the monitor, as the last machines are gone.
pub(super) fn weight() -> [(&'static str, String); 3] {
    let kilobytes = |field| status(field).map_or("-".into(), |it| format!("{it:.0} kB"));
    [
        ("text of this program", kilobytes("VmExe:")),
        ("resident, all but guest RAM", kilobytes("RssAnon:")),
        ("guest source lines changed", "0".into()),
    ]
}
