//! Tables of the experiment `shadow`: the study's figures and ours, by the number of tables, in the
//! study's unit, and by mechanism.

use super::about::*;
use super::arms::*;
use crate::experiment::{CellResult, Results, Section, columns, whole};
use crate::paged_guest::PAGES;

/// The tables of this experiment.
pub fn sections(results: &Results) -> Vec<Section> {
    let mut sections = vec![by_number(results)];
    for guest in [WIDE, NARROW] {
        let found = Found { results, guest };
        if found.has_anything() {
            sections.push(in_units(&found));
            sections.push(beside_ours(&found));
        }
    }
    sections
}

/// Median cycles of one event on one guest.
pub(super) struct Found<'a> {
    pub results: &'a Results,
    pub guest: &'static str,
}

impl Found<'_> {
    pub fn cell(&self, workload: &str) -> Option<&CellResult> {
        let mut cells = self.results.cells.iter();
        cells.find(|cell| cell.guest == self.guest && cell.workload == workload)
    }

    fn has_anything(&self) -> bool {
        let mut cells = self.results.cells.iter();
        cells.any(|cell| cell.guest == self.guest && !cell.samples().is_empty())
    }

    pub fn event(&self, workload: &str, arm: &str) -> Option<f64> {
        Some(self.cell(workload)?.quartiles(arm)?.median)
    }

    /// Medians by the number of tables, in ascending order.
    pub fn by_number(&self, workload: &str) -> Vec<(u32, f64)> {
        self.cell(workload).map_or_else(Vec::new, medians_by_number)
    }

    /// The cost of reading the pages in a space with cached translations.
    fn hits(&self) -> Option<f64> {
        let (with, without) = (self.event(SWITCH, SIX)?, self.event(SWITCH_ONLY, SIX)?);
        Some((with - without).max(0.0))
    }

    /// The cost of filling one entry, of 16 that were invalidated one by one.
    fn validation(&self) -> Option<f64> {
        let pages = PAGES as f64;
        let invalidations = pages * self.event(INVALIDATE_ONLY, SIX)?;
        let filling = self.event(RANGE, SIX)? - invalidations - self.hits()?;
        let entry = filling / pages;
        (entry > 0.0).then_some(entry)
    }
}

fn ratio(over: Option<f64>, under: Option<f64>) -> String {
    match (over, under) {
        (Some(over), Some(under)) if under > 0.0 => format!("{:.2}", over / under),
        _ => "-".into(),
    }
}

/// Medians of a cell by the number of tables, in ascending order.
pub(super) fn medians_by_number(cell: &CellResult) -> Vec<(u32, f64)> {
    let arms = BY_NUMBER.iter();
    arms.filter_map(|(arm, number)| Some((*number, cell.quartiles(arm)?.median)))
        .collect()
}

/// The smallest number of tables whose median is within a twentieth of the lowest.
pub(super) fn enough_tables(medians: &[(u32, f64)]) -> Option<u32> {
    let (_, least) = *medians.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let enough = medians.iter().find(|(_, median)| *median <= least * 1.05)?;
    Some(enough.0)
}

/// Whether the cell is about switches of processes with much code, in a run too short to show them.
fn is_unanswered(results: &Results, cell: &CellResult) -> bool {
    let mut much = CODE_PAGES.iter();
    results.quick && !cell.samples().is_empty() && much.any(|it| it.0 == cell.workload)
}

/// The cost of an event by the number of tables, and the number with the lowest cost.
fn by_number(results: &Results) -> Section {
    let row = |cell: &CellResult| {
        let medians = medians_by_number(cell);
        let enough = enough_tables(&medians)?;
        let of = |number| {
            let found = medians.iter().find(|(other, _)| *other == number);
            whole(found.map(|(_, median)| *median))
        };
        let mut row = vec![format!("{}, {}", cell.guest, cell.workload)];
        row.extend(BY_NUMBER.iter().map(|(_, number)| of(*number)));
        if is_unanswered(results, cell) {
            row[0].push_str(" (quick: no answer)");
            row.push("-".into());
        } else {
            row.push(enough.to_string());
        }
        Some(row)
    };
    let mut notes = vec![
        "All without exits where none is needed. An event is one load of CR3 (of Linux: one turn \
         of a process, with its system calls), one invalidation of a page, of 16, or of all \
         spaces (in 'double' with two loads), and the reads behind it, with whatever must be \
         filled again. 'enough': the least N whose median is within 5 % of the least."
            .into(),
    ];
    if results
        .cells
        .iter()
        .any(|cell| is_unanswered(results, cell))
    {
        notes.push(
            "no answer: with --quick a process has so few turns that most of their time is the first run of its \
             pages of code, not the switch; ratios between arms in these rows compare that too."
                .into(),
        );
    }
    let mut names = vec!["".to_owned()];
    names.extend(BY_NUMBER.iter().map(|(_, number)| format!("N={number}")));
    names.push("enough".into());
    Section {
        title: "cycles of one event with its reads, by the number of tables N".into(),
        columns: names,
        rows: results.cells.iter().filter_map(row).collect(),
        notes,
    }
}

/// Costs of events in units of filling one entry.
fn in_units(found: &Found) -> Section {
    let unit = found.validation();
    let row = |what: &str, cost: Option<f64>, theirs: &str| {
        vec![
            what.to_owned(),
            whole(cost),
            ratio(cost, unit),
            theirs.to_owned(),
        ]
    };
    let less = |one: Option<f64>, other: Option<f64>| Some((one? - other?).max(0.0));
    let hits = found.hits();
    let one = found.event(INVALIDATE_ONLY, SIX);
    let full_purge = less(found.event(INVALIDATE, FULL), hits);
    let refill = unit.map(|unit| unit * PAGES as f64);
    let unused = 10.0;
    let twice = less(found.event(TWICE, ALLOW), found.event(TWICE, COUNT));
    Section {
        title: format!("{}: events in units of one entry validated", found.guest),
        columns: columns(&["event", "cycles", "units", "there"]),
        rows: vec![
            row("one entry validated", unit, "1"),
            row(
                "one page invalidated, by an exit",
                found.event(INVALIDATE_ONLY, SELECTIVE),
                "0.8",
            ),
            row("one page invalidated, without an exit", one, "-"),
            row(
                "all of a space invalidated for one page, by an exit",
                less(full_purge, refill),
                "90",
            ),
            row(
                "switch to a known space, by an exit",
                found.event(SWITCH_ONLY, SELECTIVE),
                "1 + 0.06 N",
            ),
            row(
                "switch to a known space, without an exit",
                found.event(SWITCH_ONLY, SIX),
                "-",
            ),
            row(
                "switch to a space whose table was stolen",
                found.event(SWITCH_ONLY, "tables=3"),
                "-",
            ),
            row(
                "double invalidation, for each unused table",
                twice.map(|cycles| cycles / unused),
                "90",
            ),
        ],
        notes: vec![
            "One entry validated: what reading 16 invalidated pages takes more than reading them \
             again, for each. Guests of 32 bits have no process-context identifiers, so that each of \
             their loads of CR3 invalidates all that is not global."
                .into(),
        ],
    }
}

/// The study's ratios next to ours.
fn beside_ours(found: &Found) -> Section {
    let of = |workload, arm| found.event(workload, arm);
    let row =
        |what: &str, theirs: &str, ours: String| vec![what.to_owned(), theirs.to_owned(), ours];
    Section {
        title: format!("{}: the original study beside ours", found.guest),
        columns: columns(&["", "there", "here"]),
        rows: vec![
            row(
                "switch: by an exit over without, tables kept",
                "24.4 (at 3 tables)",
                ratio(of(SWITCH_ONLY, SELECTIVE), of(SWITCH_ONLY, SIX)),
            ),
            row(
                "switch and use: one table over six",
                "-",
                ratio(of(SWITCH, ONE), of(SWITCH, SIX)),
            ),
            row(
                "the same, the host's page tables: one over six",
                "-",
                ratio(of(SWITCH, DIRECT_ONE), of(SWITCH, DIRECT_SIX)),
            ),
            row(
                "one page: by an exit over without",
                "3.4 (at 6 tables)",
                ratio(of(INVALIDATE_ONLY, SELECTIVE), of(INVALIDATE_ONLY, SIX)),
            ),
            row(
                "one page and use: all of its space over that page without an exit",
                "about 140 (at 6 tables, without use)",
                ratio(of(INVALIDATE, FULL), of(INVALIDATE, SIX)),
            ),
            row(
                "16 pages and use: one by one over one hypercall (the handshake)",
                "-",
                ratio(of(RANGE, SIX), of(RANGE_BY_CALL, SIX)),
            ),
            row(
                "double invalidation: allowed over selection flag",
                "90 entries' work for each unused table",
                ratio(of(TWICE, ALLOW), of(TWICE, FLAG)),
            ),
            row(
                "double invalidation: allowed over counted entries",
                "called most desirable, not built",
                ratio(of(TWICE, ALLOW), of(TWICE, COUNT)),
            ),
            row(
                "switch and use: everything checked over not",
                "-",
                ratio(of(SWITCH, CHECKER), of(SWITCH, SIX)),
            ),
        ],
        notes: vec![
            "There: microcode and a simulator of a Hitachi M-series machine. Here: the software TLB's \
             tables of each space stand for 2-0 tables, or with 'direct' the host's own page tables; \
             translated code without an exit stands for the assist."
                .into(),
        ],
    }
}
