//! Compares a run with an earlier one: for each cell and arm, the ratio of the medians.

use super::page::Block;
use crate::experiment::parts::{chance_of_difference, is_too_busy};
use crate::experiment::{Comparison, Results, Section, Verdict, columns, rounded};
use tollgate_host_facts::processors::HostDescription;

/// The number of differences that are shown without unfolding all.
pub(super) const SHOWN: usize = 15;

/// The comparison of an arm in a cell of both runs.
struct Found {
    cell: String,
    arm: String,
    then: f64,
    now: f64,
    comparison: Comparison,
}

/// Whether two runs can be judged together.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Hosts {
    Same,
    Different,
}

/// Compares the hosts of two runs, with a warning if they differ.
pub(super) fn hosts(now: &HostDescription, then: &HostDescription) -> (Hosts, Option<Block>) {
    let is_same = (&now.processor, now.processors) == (&then.processor, then.processors);
    if !is_same {
        let warning = format!(
            "The earlier run was on another host ({}, {}): the ratios are those of the hosts, and no verdict is \
             given.",
            then.processor,
            then.processors_in_words()
        );
        return (Hosts::Different, Some(Block::Warning(warning)));
    }
    let warning = (now.kernel != then.kernel).then(|| {
        let (then, now) = (&then.kernel, &now.kernel);
        Block::Warning(format!(
            "The host had another kernel then: {then}, now {now}."
        ))
    });
    (Hosts::Same, warning)
}

/// The comparison of two runs of one experiment.
pub(super) fn blocks(now: &Results, then: &Results) -> Vec<Block> {
    let name = &now.experiment;
    let mut blocks = vec![Block::part(&format!("{name}, then and now"), "compare")];
    let (hosts, warning) = hosts(&now.host, &then.host);
    blocks.extend(warning);
    if now.quick != then.quick {
        blocks.push(Block::Warning(
            "One of the two runs was quick and did less work: their figures cannot be compared."
                .into(),
        ));
        return blocks;
    }
    let mut found = all(now, then);
    if found.is_empty() {
        blocks.push(Block::Paragraph(
            "The two runs have no workload on a guest with an arm in common.".into(),
        ));
        return blocks;
    }
    blocks.push(Block::Paragraph(in_words(&found, now, hosts)));
    let table = Section {
        title: "Everything that both runs have".into(),
        ..section(&found, hosts)
    };
    found.retain(|it| matches!(it.comparison.verdict, Verdict::Less | Verdict::More));
    let size = |it: &Found| it.comparison.ratio.ln().abs();
    found.sort_by(|a, b| size(b).total_cmp(&size(a)));
    found.truncate(SHOWN);
    if !found.is_empty() && hosts == Hosts::Same {
        blocks.push(Block::Table(Section {
            title: "The greatest differences".into(),
            ..section(&found, hosts)
        }));
    }
    blocks.push(Block::Folded {
        title: format!("All {} comparisons", table.rows.len()),
        blocks: vec![Block::Table(table)],
    });
    blocks
}

fn all(now: &Results, then: &Results) -> Vec<Found> {
    let mut found = Vec::new();
    for cell in &now.cells {
        let Some(earlier) = then.cell(&cell.guest, &cell.workload) else {
            continue;
        };
        for arm in cell.arms() {
            let (values, before) = (cell.values(arm), earlier.values(arm));
            let Some(mut comparison) = Comparison::of(&values, &before) else {
                continue;
            };
            if is_too_busy(cell) || is_too_busy(earlier) {
                comparison.verdict = Verdict::NotJudged;
            }
            let (Some(median), Some(median_then)) = (cell.quartiles(arm), earlier.quartiles(arm))
            else {
                continue;
            };
            found.push(Found {
                cell: format!("{}, {}", cell.guest, cell.workload),
                arm: arm.to_owned(),
                then: median_then.median,
                now: median.median,
                comparison,
            });
        }
    }
    found
}

fn verdict(comparison: &Comparison, hosts: Hosts) -> String {
    match (hosts, comparison.verdict) {
        (Hosts::Different, _) => "another host".into(),
        (Hosts::Same, Verdict::NotJudged) => "host was busy".into(),
        (Hosts::Same, _) => comparison.to_string(),
    }
}

fn section(found: &[Found], hosts: Hosts) -> Section {
    let rows = found.iter().map(|it| {
        let pairs = &it.comparison.pairs;
        vec![
            it.cell.clone(),
            it.arm.clone(),
            rounded(it.then),
            rounded(it.now),
            format!("{:.3}", it.comparison.ratio),
            format!("{:.3} to {:.3}", pairs.lower, pairs.upper),
            verdict(&it.comparison, hosts),
        ]
    });
    Section {
        columns: columns(&[
            "guest, workload",
            "arm",
            "then",
            "now",
            "ratio",
            "quartiles",
            "verdict",
        ]),
        rows: rows.collect(),
        ..Section::default()
    }
}

fn in_words(found: &[Found], now: &Results, hosts: Hosts) -> String {
    if hosts == Hosts::Different {
        return format!("{} medians stand next to each other.", found.len());
    }
    let count = |verdict| {
        let found = found.iter();
        found.filter(|it| it.comparison.verdict == verdict).count()
    };
    format!(
        "Of {} comparisons, {} take less than then, {} take more, in {} no difference was measured, and in {} the \
         host was busy. With {} repetitions, two runs that are the same differ by chance in {:.1} % of comparisons. \
         Ratio: the median now over the median then; quartiles: of the ratios of the repetitions in their order.",
        found.len(),
        count(Verdict::Less),
        count(Verdict::More),
        count(Verdict::NoDifferenceMeasured),
        count(Verdict::NotJudged),
        now.repetitions,
        chance_of_difference(now.repetitions) * 100.0
    )
}
