//! Tables of the experiment `interruptible`: latencies, causes of masking, the size of the monitor,
//! and the study's figures next to ours.

use super::about::{ARMS, EXEC, FORK, OFF, PIPE, RESTART, RESUME};
use crate::experiment::{CellResult, Results, Section, Verdict, columns};
use crate::statistics::Quartiles;
use tollgate_exits::latency::InterruptibleWork;

/// The tables of this experiment.
pub fn sections(results: &Results) -> Vec<Section> {
    vec![
        latencies(results),
        by_whom(results),
        masked(results),
        beside_ours(results),
        weight(),
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

fn tenth(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{value:.1}"))
}

/// From the point in time to the handler, and to the process.
fn latencies(results: &Results) -> Section {
    const SHOWN: [&str; 3] = ["p50", "p99", "max"];
    let mut columns = columns(&["", "arm"]);
    for what in ["A", "C", "host"] {
        columns.extend(SHOWN.map(|it| format!("{what} {it}")));
    }
    columns.push("B p50".into());
    let rows = measured(results).flat_map(|cell| {
        ARMS.into_iter().map(move |arm| {
            let mut row = vec![format!("{}, {}", cell.guest, cell.workload), arm.to_owned()];
            for what in ["to-handler", "process", "native"] {
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
             study measured. 'host': C of the same program on this host, without a machine: the least that a \
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

/// The study's findings and ours.
fn beside_ours(results: &Results) -> Section {
    let theirs = |workload: &str| match workload {
        FORK => ["clearly less", "at most 5 % slower"],
        EXEC => ["clearly less", "less than 1 %"],
        PIPE => ["no less", "less than 1 %"],
        _ => ["-", "-"],
    };
    let rows = measured(results).map(|cell| {
        let [masked, slower] = theirs(&cell.workload);
        let longest = |arm| in_pieces(cell, arm).unwrap_or(0.0);
        let ratio = |arm| match cell.comparison(arm) {
            None => "-".to_owned(),
            Some(it) if it.verdict == Verdict::NoDifferenceMeasured => "no difference".to_owned(),
            Some(it) if it.verdict == Verdict::NotJudged => "not judged".to_owned(),
            Some(it) => format!("{:+.1} %", (it.ratio - 1.0) * 100.0),
        };
        let event = results.host.tsc_khz as f64 / 1e3;
        let microseconds = value(cell, OFF, "event").map(|cycles| cycles / event);
        let times = microseconds.zip(value(cell, OFF, "native-event"));
        vec![
            format!("{}, {}", cell.guest, cell.workload),
            masked.to_owned(),
            ARMS.map(|arm| format!("{:.1}", longest(arm))).join(" / "),
            slower.to_owned(),
            [RESTART, RESUME].map(ratio).join(" / "),
            tenth(microseconds),
            tenth(times.map(|(guest, host)| guest / host)),
        ]
    });
    Section {
        title: "the study's figures beside ours".into(),
        columns: columns(&[
            "",
            "masked, there",
            "in pieces, off / restart / resume, ms",
            "time, there",
            "restart / resume over off",
            "event, us",
            "x native",
        ]),
        rows: rows.collect(),
        notes: vec![
            "The study's latency from handler to process was 10.96 us native, 11.48 under its monitor, 11.52 with \
             interruptible work, 11.98 under Xen. It begins in the guest's handler, so it cannot see masking: \
             it shows that stopping is free, not what it gains; that shows in A. The study resumed the \
             monitor's frame; resume here goes on from numbers that say how far the work came. 'in pieces': \
             the longest piece of each run of a section while the guest let interrupts in, all together. 'no \
             difference': none was measured."
                .into(),
            "event: processor time of one, with the monitor's; 'x native': over that of the same program \
             on this host (exec is not run there)."
                .into(),
            "With two machines each checks a canary of random bytes in its memory after each run, and when \
             one is ended the other is asked again."
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

/// The size of the monitor.
fn weight() -> Section {
    let row = |what: &str, kilobytes: Option<f64>| {
        let text = kilobytes.map_or("-".into(), |it| format!("{it:.0} kB"));
        vec![what.to_owned(), text]
    };
    Section {
        title: "what the monitor weighs".into(),
        columns: columns(&["", ""]),
        rows: vec![
            row("text of this program", status("VmExe:")),
            row("resident, all but guest RAM", status("RssAnon:")),
            vec!["guest source lines changed".into(), "0".into()],
        ],
        notes: vec!["As the last machines are gone.".into()],
    }
}
