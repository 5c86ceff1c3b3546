//! The chapter of one experiment: question, what was done then, what stands for what, the study's
//! figures, ours, and the verdict.

use super::background::Background;
use super::overview::overview;
use super::page::{Block, Ink, Picture};
use crate::experiment::parts::{arms_in_words, busy_remark, early_end, few_repetitions, times};
use crate::experiment::{
    CellOutcome, CellResult, PlotPart, Results, Section, Verdict, columns, plot_svg, rounded,
};

/// What an experiment has measured, with what it says about it.
pub struct Measured {
    /// The results of the experiment.
    pub results: Results,
    /// The experiment's own tables.
    pub sections: Vec<Section>,
    /// The answers to its question.
    pub answers: Vec<String>,
}

/// The title of an experiment's chapter.
pub(super) fn title(experiment: &str) -> String {
    Background::of(experiment).map_or_else(
        || experiment.to_owned(),
        |study| format!("{}: {}", experiment, study.title),
    )
}

/// The chapter of an experiment.
pub(super) fn chapter(measured: &Measured) -> Vec<Block> {
    let results = &measured.results;
    let (about, name) = (results.about, results.experiment.as_str());
    let mut blocks = vec![Block::chapter(&title(name), name)];
    blocks.push(Block::part("The question", name));
    blocks.push(Block::Paragraph(about.question.to_owned()));
    blocks.extend(then(name, about.source));
    blocks.push(Block::Table(arms(results)));
    blocks.extend(their_figures(name));
    blocks.push(Block::part("Our figures", name));
    blocks.extend(warnings(results).into_iter().map(Block::Warning));
    blocks.extend(picture(results));
    blocks.push(Block::table(ratios(results)));
    blocks.extend(plot(results, PlotPart::Numbers).map(Block::Picture));
    let sections = measured.sections.iter().filter(|it| it.has_content());
    blocks.extend(sections.cloned().map(Block::table));
    blocks.extend(not_run(results));
    blocks.extend(every_repetition(results));
    blocks.push(Block::part("The verdict", name));
    blocks.push(Block::List(verdict(measured)));
    blocks.push(Block::Links(files(name)));
    blocks
}

/// What was done then, and what stands for what.
pub(super) fn then(name: &str, source: &str) -> Vec<Block> {
    let mut blocks = vec![Block::part("What was done then", name)];
    blocks.push(Block::Paragraph(format!("The study: {source}.")));
    if let Some(study) = Background::of(name) {
        let done = study.done.iter();
        blocks.extend(done.map(|words| Block::Paragraph((*words).to_owned())));
    }
    blocks.push(Block::part("What stands for what", name));
    blocks.extend(Background::of(name).map(|study| Block::Table(study.stands_for())));
    blocks
}

/// The study's figures.
pub(super) fn their_figures(name: &str) -> Vec<Block> {
    Background::of(name).map_or_else(Vec::new, |study| {
        vec![
            Block::part("Their figures", name),
            Block::Table(study.figures()),
        ]
    })
}

/// The files with an experiment's figures.
fn files(name: &str) -> Vec<(String, String)> {
    [
        ("all tables", "txt"),
        ("every sample as CSV", "csv"),
        ("everything as JSON", "json"),
        ("the plot", "svg"),
    ]
    .map(|(what, ending)| (what.to_owned(), format!("{name}.{ending}")))
    .into()
}

/// What the reader must know before the figures.
pub(super) fn warnings(results: &Results) -> Vec<String> {
    let early = early_end(results).map(|early| format!("Not complete: {early}."));
    let remarks = [busy_remark(results), few_repetitions(results), early];
    let failures = results.failures().into_iter();
    let failures = failures.map(|why| format!("Failed: {why}"));
    remarks.into_iter().flatten().chain(failures).collect()
}

fn arms(results: &Results) -> Section {
    let first = results.arms.first();
    let rows = results.arms.iter().enumerate().map(|(index, arm)| {
        let is_shown = |knob: &str, value: &str| {
            let of_first = first.and_then(|first| first.settings.get(knob));
            index == 0 || of_first.is_none_or(|other| other != value)
        };
        let settings = arm.settings.iter();
        let settings: Vec<String> = settings
            .filter(|(knob, value)| is_shown(knob, value))
            .map(|(knob, value)| format!("{knob}={value}"))
            .collect();
        vec![arm.name.clone(), arm.what.clone(), settings.join(" ")]
    });
    Section {
        title: "The arms: settings of one machine that are compared on the same work".into(),
        columns: columns(&["arm", "what it is", "knobs that differ from the first arm"]),
        rows: rows.collect(),
        ..Section::default()
    }
}

fn picture(results: &Results) -> Option<Block> {
    let svg = overview(&[results])?;
    Some(Block::Picture(Picture {
        svg,
        file: format!("{}-overview.svg", results.experiment),
        what: format!(
            "Experiment {}: each arm next to the first; a mark is a workload on a guest",
            results.experiment
        ),
        ink: Ink::OfPage,
    }))
}

/// The part of the experiment's plot, if there is something to draw.
fn plot(results: &Results, part: PlotPart) -> Option<Picture> {
    let (file, what) = match part {
        PlotPart::Cells => (
            "cells",
            "every repetition, quartiles and median of each arm",
        ),
        PlotPart::Numbers => ("numbers", "medians by the number that the arms differ in"),
    };
    Some(Picture {
        svg: plot_svg(results, part)?,
        file: format!("{}-{file}.svg", results.experiment),
        what: format!("Experiment {}: {what}", results.experiment),
        ink: Ink::OnWhite,
    })
}

fn name(cell: &CellResult) -> String {
    format!("{}, {}", cell.guest, cell.workload)
}

/// The ratio of each arm to the first in each cell.
fn ratios(results: &Results) -> Section {
    let measured = || {
        let cells = results.cells.iter();
        cells.filter(|cell| !cell.samples().is_empty())
    };
    let arms = results.arms.iter().map(|arm| arm.name.as_str());
    let arms: Vec<&str> = arms
        .filter(|arm| measured().any(|cell| cell.comparison(arm).is_some()))
        .collect();
    let rows = measured().map(|cell| {
        let first = cell.arms().first().map_or("-".to_owned(), |arm| {
            let median = cell.quartiles(arm).map(|quartiles| quartiles.median);
            let median = median.map_or("-".into(), rounded);
            format!("{median} {}", cell.metric.unit())
        });
        let mut row = vec![name(cell), first];
        row.extend(arms.iter().map(|arm| {
            cell.comparison(arm)
                .map_or(String::new(), |it| match it.verdict {
                    Verdict::NoDifferenceMeasured => "=".into(),
                    Verdict::NotJudged => format!("{:.2}?", it.ratio),
                    Verdict::Less | Verdict::More => format!("{:.2}", it.ratio),
                })
        }));
        row
    });
    let mut names = columns(&["guest, workload", "first arm, median"]);
    names.extend(arms.iter().map(|arm| (*arm).to_owned()));
    Section {
        title: "Each arm next to the first: ratio of the medians, less is better".into(),
        columns: names,
        rows: rows.collect(),
        notes: vec![
            "\"=\": no difference measured, because the middle halves of the repetitions overlap. \"?\": \
             not judged, because the host was busy with other programs."
                .into(),
        ],
    }
}

fn not_run(results: &Results) -> Option<Block> {
    let rows = results.cells.iter().filter_map(|cell| {
        let why = match &cell.outcome {
            CellOutcome::NotRun(why) => format!("not run: {why}"),
            CellOutcome::Failed(why) => format!("failed: {why}"),
            CellOutcome::Measured { samples, .. } if samples.is_empty() => {
                "not run: the experiment ended before".into()
            }
            CellOutcome::Measured { .. } => return None,
        };
        Some(vec![name(cell), why])
    });
    let rows: Vec<Vec<String>> = rows.collect();
    (!rows.is_empty()).then(|| {
        Block::table(Section {
            title: "What was not measured".into(),
            columns: columns(&["guest, workload", "why"]),
            rows,
            ..Section::default()
        })
    })
}

fn every_repetition(results: &Results) -> Option<Block> {
    let cells = results.cells.iter();
    let tables = cells.filter(|cell| !cell.samples().is_empty()).map(|cell| {
        Block::Table(Section {
            title: name(cell),
            ..times(cell)
        })
    });
    let mut blocks: Vec<Block> = plot(results, PlotPart::Cells)
        .map(Block::Picture)
        .into_iter()
        .collect();
    blocks.extend(tables);
    (!blocks.is_empty()).then(|| Block::Folded {
        title: "Every repetition, as a plot and as tables".into(),
        blocks,
    })
}

/// The answers, and how often each arm took less or more.
fn verdict(measured: &Measured) -> Vec<String> {
    let mut lines = measured.answers.clone();
    lines.extend(arms_in_words(&measured.results));
    if lines.is_empty() {
        lines.push("Nothing was compared, so there is no verdict.".into());
    }
    lines
}
