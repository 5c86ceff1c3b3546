//! Compares the costs of exits with those of an earlier run: for each kind, mode and pinning, single events then and now.

use super::against::{Hosts, SHOWN, hosts};
use super::cost_chapter::NAME;
use super::page::Block;
use crate::cost::{Report, Row};
use crate::experiment::{Section, Verdict, columns, grouped};
use crate::statistics::Quartiles;

/// A row of both runs.
struct Found<'a> {
    then: &'a Row,
    now: &'a Row,
    verdict: Verdict,
}

impl Found<'_> {
    /// The median now over the median then; `None` if either is too short for the clock.
    fn ratio(&self) -> Option<f64> {
        let (then, now) = (self.then.single.p50, self.now.single.p50);
        (then > 0 && now > 0).then(|| now as f64 / then as f64)
    }

    /// How different the medians are, however they differ. Where one of them is too short for the clock, their
    /// difference counts in cycles.
    fn size(&self) -> f64 {
        let cycles = |row: &Row| row.single.p50.max(1) as f64;
        (cycles(self.now) / cycles(self.then)).ln().abs()
    }
}

/// The comparison of two reports.
pub(super) fn blocks(now: &Report, then: &Report) -> Vec<Block> {
    let mut blocks = vec![Block::part(&format!("{NAME}, then and now"), "compare")];
    let (hosts, warning) = hosts(&now.host, &then.host);
    blocks.extend(warning);
    let mut found = all(now, then);
    if found.is_empty() {
        blocks.push(Block::Paragraph(
            "The two runs have no kind of exit in a mode in common.".into(),
        ));
        return blocks;
    }
    blocks.push(Block::Paragraph(in_words(&found, hosts)));
    let table = section("Everything that both runs have", &found, hosts);
    found.retain(|it| matches!(it.verdict, Verdict::Less | Verdict::More));
    found.sort_by(|a, b| b.size().total_cmp(&a.size()));
    found.truncate(SHOWN);
    if !found.is_empty() && hosts == Hosts::Same {
        let title = "The greatest differences";
        blocks.push(Block::Table(section(title, &found, hosts)));
    }
    blocks.push(Block::Folded {
        title: format!("All {} comparisons", table.rows.len()),
        blocks: vec![Block::Table(table)],
    });
    blocks
}

fn all<'a>(now: &'a Report, then: &'a Report) -> Vec<Found<'a>> {
    let step = now.tsc_step.max(then.tsc_step) as f64;
    let rows = now.rows.iter().filter_map(|row| {
        let mut earlier = then.rows.iter();
        let earlier = earlier
            .find(|it| (&it.kind, it.mode, it.pinned) == (&row.kind, row.mode, row.pinned))?;
        Some(Found {
            then: earlier,
            now: row,
            verdict: verdict(&quartiles(row)?, &quartiles(earlier)?, step),
        })
    });
    rows.collect()
}

/// The quartiles of the values of single events.
fn quartiles(row: &Row) -> Option<Quartiles> {
    let values = row.distribution.iter();
    let values = values.flat_map(|&(cycles, times)| {
        let times = usize::try_from(times).unwrap_or(usize::MAX);
        std::iter::repeat_n(cycles as f64, times)
    });
    Quartiles::of(&values.collect::<Vec<f64>>())
}

/// Two middle halves that are one step of the clock apart are not different: an event that takes the same time falls now
/// on this, now on that reading.
fn verdict(now: &Quartiles, then: &Quartiles, step: f64) -> Verdict {
    if now.lower > then.upper + step {
        Verdict::More
    } else if now.upper + step < then.lower {
        Verdict::Less
    } else {
        Verdict::NoDifferenceMeasured
    }
}

fn in_words(found: &[Found], hosts: Hosts) -> String {
    if hosts == Hosts::Different {
        return format!("{} medians stand next to each other.", found.len());
    }
    let count = |verdict| found.iter().filter(|it| it.verdict == verdict).count();
    format!(
        "Of {} rows, {} cost less than then, {} more, and in {} no difference was measured: the middle halves of the \
         single events overlap, or are no more than one step of the clock apart. Costs of exits are not judged by how \
         busy the host was.",
        found.len(),
        count(Verdict::Less),
        count(Verdict::More),
        count(Verdict::NoDifferenceMeasured),
    )
}

fn section(title: &str, found: &[Found], hosts: Hosts) -> Section {
    let cycles = |value: u64| grouped(value as f64);
    let rows = found.iter().map(|it| {
        let (then, now) = (&it.then.single, &it.now.single);
        let pinned = if it.now.pinned { "yes" } else { "no" };
        vec![
            it.now.kind.clone(),
            it.now.mode.name().to_owned(),
            pinned.to_owned(),
            cycles(then.p50),
            cycles(now.p50),
            it.ratio().map_or("-".into(), |ratio| format!("{ratio:.3}")),
            cycles(then.p99),
            cycles(now.p99),
            match (hosts, it.verdict) {
                (Hosts::Different, _) => "another host",
                (_, Verdict::Less) => "less",
                (_, Verdict::More) => "more",
                _ => "no difference measured",
            }
            .to_owned(),
        ]
    });
    Section {
        title: title.to_owned(),
        columns: columns(&[
            "kind", "mode", "pinned", "p50 then", "p50 now", "ratio", "p99 then", "p99 now",
            "verdict",
        ]),
        rows: rows.collect(),
        notes: vec!["Cycles of one exit, the empty measurement subtracted.".into()],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn constant(value: f64) -> Quartiles {
        Quartiles::of(&[value]).unwrap()
    }

    #[test]
    fn one_step_of_the_clock_is_no_difference() {
        let judged = |now, then| verdict(&constant(now), &constant(then), 26.0);
        assert_eq!(judged(126.0, 100.0), Verdict::NoDifferenceMeasured);
        assert_eq!(judged(74.0, 100.0), Verdict::NoDifferenceMeasured);
        assert_eq!(judged(152.0, 100.0), Verdict::More);
        assert_eq!(judged(48.0, 100.0), Verdict::Less);
    }
}
