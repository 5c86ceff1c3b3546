//! One report of several experiments, for readers who do not know the studies that they repeat: as
//! a page of HTML with its pictures inside, and as Markdown.
//!
//! ```text
//! results of each experiment -> chapters of blocks (study.rs, cost_chapter.rs) \
//! an earlier run             -> a comparison (against.rs, cost_against.rs)      > Page -> html, markdown
//! all ratios                 -> one picture (overview.rs)                      /
//! ```

mod against;
mod background;
mod cost_against;
mod cost_chapter;
mod date;
mod html;
mod markdown;
mod overview;
mod page;
mod study;
#[cfg(test)]
mod tests;

pub use cost_chapter::{MeasuredCost, NAME as COST};
pub use html::html;
pub use markdown::markdown;
pub use page::{Block, Ink, Page, Picture};
pub use study::Measured;

use crate::cost::Report;
use crate::experiment::Results;
use crate::experiment::parts::{self, place};
use overview::overview;

/// A study of the report.
pub enum Study {
    /// An experiment of `tollgate lab`.
    Experiment(Box<Measured>),
    /// The costs of exits.
    Cost(Box<MeasuredCost>),
    /// A study that was not run, and why.
    NotRun {
        /// The study's name.
        name: String,
        /// Why it was not run.
        why: String,
    },
}

/// An earlier run with which the report compares.
pub struct EarlierRun {
    /// The name of its folder.
    pub name: String,
    /// The results of its experiments.
    pub results: Vec<Results>,
    /// The costs of exits, if it measured them.
    pub cost: Option<Report>,
    /// What could not be read of it.
    pub problems: Vec<String>,
}

/// The report of these studies, compared with an earlier run.
pub fn page(studies: &[Study], earlier: Option<&EarlierRun>) -> Page {
    let measured: Vec<&Measured> = studies
        .iter()
        .filter_map(|study| match study {
            Study::Experiment(measured) => Some(&**measured),
            Study::Cost(_) | Study::NotRun { .. } => None,
        })
        .collect();
    let mut blocks = in_short(studies, &measured);
    if let Some(earlier) = earlier {
        blocks.extend(compared(studies, earlier));
    }
    for study in studies {
        blocks.extend(match study {
            Study::Experiment(measured) => study::chapter(measured),
            Study::Cost(cost) => cost_chapter::chapter(cost),
            Study::NotRun { name, why } => vec![
                Block::chapter(&study::title(name), name),
                Block::Warning(format!("Not run: {why}")),
            ],
        });
    }
    Page {
        title: "What exits cost a virtual machine monitor: five studies, measured again".into(),
        lines: origin(studies, &measured),
        blocks,
    }
}

/// Host, build and settings.
fn origin(studies: &[Study], measured: &[&Measured]) -> Vec<String> {
    let mut lines = Vec::new();
    let mut add = |line: String| {
        if !lines.contains(&line) {
            lines.push(line);
        }
    };
    for one in measured {
        let results = &one.results;
        add(format!("Host: {}", place(results)));
    }
    for study in studies {
        if let Study::Cost(cost) = study
            && measured.is_empty()
        {
            add(format!("Host: {}.", cost.report.host));
        }
    }
    for one in measured {
        add(format!("Tollgate {}.", one.results.build));
    }
    for one in measured {
        let results = &one.results;
        let size = if results.quick {
            "quick, little work"
        } else {
            "full"
        };
        add(format!(
            "{}: {size}, {} repetitions of each arm in turns, {} of {} samples, measured {}.",
            results.experiment,
            results.repetitions,
            results.finished,
            results.planned,
            date::span_in_words(results.began_at, results.measured_at)
        ));
    }
    let mut guests: Vec<&str> = Vec::new();
    for guest in measured.iter().flat_map(|one| &one.results.guest_versions) {
        if !guests.contains(&guest.as_str()) {
            guests.push(guest);
        }
    }
    if !guests.is_empty() {
        lines.push(format!("Guests that are not ours: {}.", guests.join("; ")));
    }
    lines
}

/// The most important sentence of each study, and the picture of all.
fn in_short(studies: &[Study], measured: &[&Measured]) -> Vec<Block> {
    let mut blocks = vec![
        Block::chapter("In short", "in-short"),
        Block::Paragraph(
            "Tollgate is a virtual machine monitor that translates the guest's code and needs no hardware support. \
             An exit is the moment when the guest stops running and the monitor must act. Five published studies \
             measured what exits cost on their machines and proposed how to have fewer of them, or cheaper ones. \
             This report repeats their experiments: in each, the settings that a study compared (arms) run the same \
             work on the same guest in turns."
                .into(),
        ),
    ];
    let lines = studies.iter().map(|study| match study {
        Study::Experiment(measured) => {
            let name = &measured.results.experiment;
            let first = measured.answers.first().cloned().unwrap_or_else(|| {
                let lines = parts::arms_in_words(&measured.results);
                lines.into_iter().next().unwrap_or("no result.".into())
            });
            format!("{name}: {first}")
        }
        Study::Cost(cost) => {
            let sentences = cost_chapter::sentences(&cost.report);
            let bare = sentences
                .iter()
                .find(|it| it.starts_with("Out of guest code"));
            format!(
                "cost: {}",
                bare.or(sentences.first()).cloned().unwrap_or_default()
            )
        }
        Study::NotRun { name, why } => format!("{name}: not run: {why}"),
    });
    blocks.push(Block::List(lines.collect()));
    blocks.extend(reservations(measured).into_iter().map(Block::Warning));
    let results: Vec<&Results> = measured.iter().map(|one| &one.results).collect();
    blocks.extend(overview(&results).map(|svg| {
        Block::Picture(Picture {
            svg,
            file: "overview.svg".into(),
            what: "All experiments: each arm next to the first arm of its experiment; a mark is a workload on a \
                   guest"
                .into(),
            ink: Ink::OfPage,
        })
    }));
    blocks
}

/// What the reader must know before the figures, once for all studies; their chapters say more.
fn reservations(measured: &[&Measured]) -> Vec<String> {
    let names = |has: fn(&Results) -> bool| {
        let has = measured.iter().filter(|one| has(&one.results));
        let names: Vec<&str> = has.map(|one| one.results.experiment.as_str()).collect();
        (!names.is_empty()).then(|| names.join(", "))
    };
    let busy = names(|results| parts::busy_remark(results).is_some()).map(|names| {
        format!(
            "The host was busy with other programs ({names}), so many differences are not judged. Run it again \
             with nothing else to do."
        )
    });
    let few = names(|results| parts::few_repetitions(results).is_some()).map(|names| {
        format!("Few repetitions or little work ({names}): the verdicts are not reliable.")
    });
    let early = names(|results| parts::early_end(results).is_some())
        .map(|names| format!("Not complete: {names}."));
    let failed = names(|results| !results.failures().is_empty()).map(|names| {
        format!("A guest did not do its work, or the host refused something: {names}.")
    });
    [busy, few, early, failed].into_iter().flatten().collect()
}

/// The comparison with an earlier run.
fn compared(studies: &[Study], earlier: &EarlierRun) -> Vec<Block> {
    let mut blocks = vec![Block::chapter(
        &format!("Next to the run in {}", earlier.name),
        "compare",
    )];
    let problems = earlier.problems.iter().cloned();
    blocks.extend(problems.map(Block::Warning));
    for study in studies {
        match study {
            Study::Experiment(one) => {
                let mut runs = earlier.results.iter();
                if let Some(then) = runs.find(|run| run.experiment == one.results.experiment) {
                    blocks.extend(then_and_now(&one.results, then));
                }
            }
            Study::Cost(cost) => {
                let then = earlier.cost.iter();
                blocks.extend(then.flat_map(|then| cost_against::blocks(&cost.report, then)));
            }
            Study::NotRun { .. } => {}
        }
    }
    blocks
}

/// The comparison of two runs of one experiment, with when they were made and by what.
fn then_and_now(now: &Results, then: &Results) -> Vec<Block> {
    let mut blocks = vec![Block::Paragraph(format!(
        "Then: Tollgate {}, until {}. Now: Tollgate {}, until {}.",
        then.build,
        date::in_words(then.measured_at),
        now.build,
        date::in_words(now.measured_at)
    ))];
    blocks.extend(against::blocks(now, then));
    blocks
}
