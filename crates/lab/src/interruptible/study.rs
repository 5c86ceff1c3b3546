//! The study's figures and ours, in one table.

use super::about::{ARMS, EXEC, FORK, OFF, PIPE};
use super::linux::WAITS;
use super::paper::{in_pieces, tenth, value, weight};
use crate::experiment::{CellResult, Results, Section, Verdict, columns};
use tollgate_exits::latency::InterruptibleWork;

/// The study's three handlers, and the sections that do here what they did there. Translating and
/// linking code have no counterpart there.
const HANDLERS: [(&str, &[InterruptibleWork]); 4] = [
    (
        "privileged instructions",
        &[
            InterruptibleWork::LoadSpace,
            InterruptibleWork::Invalidate,
            InterruptibleWork::String,
        ],
    ),
    (
        "page faults",
        &[
            InterruptibleWork::MapWindow,
            InterruptibleWork::CompareWindow,
            InterruptibleWork::FillWindows,
        ],
    ),
    ("timer and devices", &[InterruptibleWork::Devices]),
    (
        "code (not there)",
        &[InterruptibleWork::Translate, InterruptibleWork::Link],
    ),
];

/// The study's programs, with what it found for each: how much less was masked, and how much longer
/// the program took.
const PROGRAMS: [(&str, &str, &str); 3] = [
    (FORK, "clearly less", "at most +5 %"),
    (EXEC, "clearly less", "less than +1 %"),
    (PIPE, "no less", "less than +1 %"),
];

/// A row: what it is, there, then here natively and with each arm.
type Row = Vec<String>;

fn row(what: String, there: &str, native: Option<f64>, arms: [String; 3]) -> Row {
    let native = native.map_or("-".into(), |value| format!("{value:.2}"));
    let mut row = vec![what, there.to_owned(), native];
    row.extend(arms);
    row
}

/// The study's figures and ours.
pub fn beside_ours(results: &Results) -> Section {
    let cells = || {
        let cells = results.cells.iter();
        cells.filter(|cell| !cell.samples().is_empty())
    };
    let program = |cell: &CellResult| PROGRAMS.iter().find(|it| it.0 == cell.workload);
    // The study compared its monitor without this with the one that stops, and with Xen.
    let there = ["11.48", "-", "11.52"].map(str::to_owned);
    let what = "there: B, us, mean".to_owned();
    let mut rows: Vec<Row> = vec![row(what, "Xen 11.98", Some(10.96), there)];
    for cell in cells().filter(|cell| program(cell).is_some()) {
        rows.extend(latencies(cell));
    }
    for (cell, (.., slower)) in cells().filter_map(|cell| Some((cell, program(cell)?))) {
        rows.extend(times(results, cell, slower));
    }
    for (cell, (_, masked, _)) in cells().filter_map(|cell| Some((cell, program(cell)?))) {
        rows.extend(masking(cell, masked));
    }
    for (what, size) in weight() {
        let arms = [size.clone(), size.clone(), size];
        rows.push(row(what.to_owned(), "-", None, arms));
    }
    Section {
        title: "the study beside ours".into(),
        columns: columns(&["", "there", "native", ARMS[0], ARMS[1], ARMS[2]]),
        rows,
        notes: vec![
            "A: from an interrupt's being due to the first instruction of its handler. C: from the moment \
             that a waiting process named until it runs. B = C - A, of the medians: from the handler to the \
             process, which is all that the study measured: it cannot see masking, and shows that stopping \
             is free, not what it gains; that shows in A. 'native': the same program on this host, without \
             a machine. Its C is the least that a guest of an ordinary process can come to. 'of' stands before \
             the number of waits; of fewer than 100, p99 is the longest."
                .into(),
            "masked: the longest piece without a look at requests of each run of a section, all together, \
             and the longest of them. 'by the monitor': while the guest let interrupts in; 'guest IF=0': while \
             the guest itself held them off, which masks nothing more and does not stop. The study resumed the \
             monitor's frame; resume here goes on from numbers that say how far the work came."
                .into(),
            "one event: processor time, with the monitor's. 'no difference': none was measured."
                .into(),
        ],
    }
}

/// A, B and C with each arm.
fn latencies(cell: &CellResult) -> Vec<Row> {
    const SHOWN: [&str; 3] = ["p50", "p99", "max"];
    let name = format!("{}, {}", cell.guest, cell.workload);
    let all = |arm, what: &str| {
        SHOWN
            .map(|it| tenth(value(cell, arm, &format!("{what}-{it}"))))
            .join(" / ")
    };
    let counted = |arm, what, count| match value(cell, arm, count) {
        None => all(arm, what),
        Some(count) => format!("{} of {count:.0}", all(arm, what)),
    };
    let both = |arm| {
        let [from, to] = ["to-handler-p50", "process-p50"].map(|it| value(cell, arm, it));
        tenth(to.zip(from).map(|(to, from)| to - from))
    };
    let mut process = row(
        format!("{name}: C, us, p50 / p99 / max of waits"),
        "-",
        None,
        ARMS.map(|arm| counted(arm, "process", WAITS)),
    );
    process[2] = counted(OFF, "native", "native-count");
    vec![
        row(
            format!("{name}: A, us, p50 / p99 / max of waits"),
            "-",
            None,
            ARMS.map(|arm| counted(arm, "to-handler", "to-handler-count")),
        ),
        row(format!("{name}: B, us, p50"), "-", None, ARMS.map(both)),
        process,
    ]
}

/// The time of one event, and how much longer it takes with each arm.
fn times(results: &Results, cell: &CellResult, slower: &str) -> Vec<Row> {
    let name = format!("{}, {}", cell.guest, cell.workload);
    let per_microsecond = results.host.tsc_khz as f64 / 1e3;
    let event = |arm| tenth(value(cell, arm, "event").map(|cycles| cycles / per_microsecond));
    let over = |arm| match cell.comparison(arm) {
        None => "-".to_owned(),
        Some(it) if it.verdict == Verdict::NoDifferenceMeasured => "no difference".to_owned(),
        Some(it) if it.verdict == Verdict::NotJudged => "not judged".to_owned(),
        Some(it) => format!("{:+.1} %", (it.ratio - 1.0) * 100.0),
    };
    vec![
        row(
            format!("{name}: one event, us"),
            "-",
            value(cell, OFF, "native-event"),
            ARMS.map(event),
        ),
        row(
            format!("{name}: its time over '{OFF}'"),
            slower,
            None,
            ARMS.map(over),
        ),
    ]
}

/// For how long interrupts were masked, by whom and by which handler.
fn masking(cell: &CellResult, there: &str) -> Vec<Row> {
    let name = format!("{}, {}", cell.guest, cell.workload);
    let of = |arm, pieces: &str, works: &[InterruptibleWork]| {
        let values = |what| {
            let names = works.iter().map(move |work| work.name());
            names.filter_map(move |work| value(cell, arm, &format!("{pieces}-{work}-{what}")))
        };
        let sum: f64 = values("sum").sum();
        let longest = values("max").fold(0.0, f64::max);
        match values("count").next() {
            None => "-".to_owned(),
            Some(_) => format!("{:.1} / {longest:.1}", sum / 1e3),
        }
    };
    let all = |arm| tenth(in_pieces(cell, arm));
    let mut rows = vec![row(
        format!("{name}: masked by the monitor, ms"),
        there,
        None,
        ARMS.map(all),
    )];
    rows.extend(HANDLERS.into_iter().map(|(handler, works)| {
        row(
            format!("{name}: of that {handler}, sum ms / longest us"),
            "-",
            None,
            ARMS.map(|arm| of(arm, "masked", works)),
        )
    }));
    rows.push(row(
        format!("{name}: the monitor's work while guest IF=0, sum ms / longest us"),
        "-",
        None,
        ARMS.map(|arm| of(arm, "within", &InterruptibleWork::ALL)),
    ));
    rows
}
