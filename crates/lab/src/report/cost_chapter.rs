//! The chapter of `tollgate cost`.

use super::page::{Block, Picture};
use super::study::{their_figures, then, title};
use crate::cost::{Report, summary};
use crate::experiment::{Section, columns, grouped};

/// The name of the study, and of its files.
pub const NAME: &str = "cost";

/// What was measured by `tollgate cost`, and its pictures.
pub struct MeasuredCost {
    /// The report of the bare transitions.
    pub report: Report,
    /// The plots of the costs.
    pub pictures: Vec<Picture>,
    /// The tables of further parts: what they are about, and the text.
    pub texts: Vec<(String, String)>,
}

/// The chapter of `tollgate cost`.
pub(super) fn chapter(measured: &MeasuredCost) -> Vec<Block> {
    let report = &measured.report;
    let mut blocks = vec![Block::chapter(&title(NAME), NAME)];
    blocks.push(Block::part("The question", NAME));
    blocks.push(Block::Paragraph(
        "How many cycles does each kind of exit take, from the guest's instruction until the guest continues, and how \
         wide is the spread?"
            .into(),
    ));
    blocks.extend(then(
        NAME,
        "\"The Cost of Virtualization Exits\" (i7-3960X, KVM)",
    ));
    blocks.extend(their_figures(NAME));
    blocks.push(Block::part("Our figures", NAME));
    if !report.is_complete {
        blocks.push(Block::Warning(
            "Not complete: the measurement was interrupted.".into(),
        ));
    }
    let pictures = measured.pictures.iter().cloned();
    blocks.extend(pictures.map(Block::Picture));
    blocks.push(Block::Folded {
        title: format!("All {} rows", report.rows.len()),
        blocks: vec![Block::Table(rows(report))],
    });
    for (title, text) in &measured.texts {
        blocks.push(Block::Folded {
            title: title.clone(),
            blocks: vec![Block::Text(text.clone())],
        });
    }
    blocks.push(Block::part("The verdict", NAME));
    blocks.push(Block::List(sentences(report)));
    blocks.push(Block::Links(vec![
        ("all tables".into(), "cost.txt".into()),
        ("the table as CSV".into(), "cost.csv".into()),
        ("every value as CSV".into(), "cost.values.csv".into()),
        ("everything as JSON".into(), "cost.json".into()),
    ]));
    blocks
}

/// The summary, a sentence each.
pub(super) fn sentences(report: &Report) -> Vec<String> {
    let text = summary(report);
    let mut sentences: Vec<String> = Vec::new();
    for line in text.lines() {
        let continues = line.starts_with(|first: char| first == ' ' || first.is_lowercase());
        match sentences.last_mut() {
            Some(last) if continues => {
                // Lines below each other that end with a unit in brackets are a list.
                last.push_str(if last.ends_with(')') { ", " } else { " " });
                last.push_str(line.trim_start());
            }
            _ => sentences.push(line.to_owned()),
        }
    }
    sentences
}

fn rows(report: &Report) -> Section {
    let cycles = |value: u64| grouped(value as f64);
    let rows = report.rows.iter().map(|row| {
        let single = &row.single;
        let pinned = if row.pinned { "yes" } else { "no" };
        let batch = row.batch.as_ref();
        vec![
            row.kind.clone(),
            row.mode.name().to_owned(),
            pinned.to_owned(),
            cycles(single.min),
            cycles(single.p50),
            cycles(single.p95),
            cycles(single.p99),
            cycles(single.max),
            batch.map_or("-".into(), |batch| grouped(batch.median)),
        ]
    });
    Section {
        title: "Cycles of one exit, the empty measurement subtracted".into(),
        columns: columns(&[
            "kind",
            "mode",
            "pinned",
            "min",
            "p50",
            "p95",
            "p99",
            "max",
            "in batches",
        ]),
        rows: rows.collect(),
        ..Section::default()
    }
}
