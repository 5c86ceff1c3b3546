//! Reads the results in a folder of `--output`, and writes the report there.

use std::path::Path;

use tollgate_lab::experiment::{self, Results};
use tollgate_lab::report::{
    self, Block, COST, EarlierRun, Ink, Measured, MeasuredCost, Picture, Study,
};
use tollgate_lab::{cost, experiments};

use super::LIMIT;
use super::cost_parts::PARTS;
use super::folder::Folder;
use crate::failure::Failure;
use crate::files;

/// What a folder holds of one study.
fn stored(folder: &Folder, name: &str) -> Result<Option<Study>, Failure> {
    let path = folder.file(name, "json");
    if !path.exists() {
        return Ok(None);
    }
    let text = files::read(&path, "FOLDER", LIMIT)?;
    let wrong = |why: String| Failure::usage(format!("'{}': {why}", path.display()));
    if name == COST {
        let report = cost::from_json(&text).map_err(wrong)?;
        return Ok(Some(Study::Cost(Box::new(MeasuredCost {
            report,
            pictures: pictures(folder),
            texts: texts(folder),
        }))));
    }
    let find = |name: &str| experiments::find(name).map(|experiment| experiment.about());
    let (results, sections) = experiment::from_json(&text, find).map_err(wrong)?;
    let answers =
        experiments::find(name).map_or_else(Vec::new, |experiment| experiment.answers(&results));
    Ok(Some(Study::Experiment(Box::new(Measured {
        results,
        sections,
        answers,
    }))))
}

/// The plots of `tollgate cost`: cost.svg, and further ones that begin with its name.
fn pictures(folder: &Folder) -> Vec<Picture> {
    let Ok(entries) = std::fs::read_dir(folder.path()) else {
        return Vec::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let mut names: Vec<String> = names
        .filter(|name| name.starts_with(COST) && name.ends_with(".svg"))
        .collect();
    names.sort_by_key(|name| (name.len(), name.clone()));
    let read = |name: String| {
        Some(Picture {
            svg: std::fs::read_to_string(folder.path().join(&name)).ok()?,
            what: "Cost of exits: the share of exits that take at most this number of cycles"
                .into(),
            file: name,
            ink: Ink::OnWhite,
        })
    };
    names.into_iter().filter_map(read).collect()
}

/// The tables of the further parts of `tollgate cost`.
fn texts(folder: &Folder) -> Vec<(String, String)> {
    let parts = PARTS.iter().filter(|part| part.name != COST);
    let texts = parts.filter_map(|part| {
        let text = std::fs::read_to_string(folder.file(part.name, "txt")).ok()?;
        Some((part.title.to_owned(), text))
    });
    texts.collect()
}

/// The studies in a folder, and a reason for each other one in `expected`.
///
/// # Errors
///
/// One line says which file is not readable.
pub fn studies(folder: &Folder, expected: &[(String, String)]) -> Result<Vec<Study>, Failure> {
    let mut studies = Vec::new();
    // In the order of the studies' mention, with the costs of exits at the end.
    let mut names: Vec<&str> = super::all_arguments::studies();
    names.rotate_left(1);
    for name in names {
        match stored(folder, name)? {
            Some(study) => studies.push(study),
            None => {
                studies.extend(
                    expected
                        .iter()
                        .filter(|it| it.0 == name)
                        .map(|it| Study::NotRun {
                            name: it.0.clone(),
                            why: it.1.clone(),
                        }),
                )
            }
        }
    }
    Ok(studies)
}

/// The results in the folder of an earlier run.
///
/// # Errors
///
/// There are none.
pub fn earlier(path: &Path) -> Result<EarlierRun, Failure> {
    let folder = Folder::existing(path, "--compare")?;
    let mut results: Vec<Results> = Vec::new();
    let mut cost = None;
    let mut problems = Vec::new();
    for name in super::all_arguments::studies() {
        match stored(&folder, name) {
            Ok(Some(Study::Experiment(measured))) => results.push(measured.results),
            Ok(Some(Study::Cost(measured))) => cost = Some(measured.report),
            Ok(_) => {}
            // What another version has written may have other workloads.
            Err(failure) => problems.push(format!("Not compared: {}.", failure.message)),
        }
    }
    if results.is_empty() && cost.is_none() {
        let why = problems
            .first()
            .cloned()
            .unwrap_or_else(|| "it holds no results of 'tollgate lab --output'".into());
        return Err(Failure::usage(format!(
            "--compare: '{}': {why}",
            path.display()
        )));
    }
    let name = path.file_name().unwrap_or(path.as_os_str());
    Ok(EarlierRun {
        name: name.to_string_lossy().into_owned(),
        results,
        cost,
        problems,
    })
}

/// Writes report.html, report.md and the pictures.
///
/// # Errors
///
/// One line says which file cannot be written.
pub fn write(
    folder: &Folder,
    studies: &[Study],
    earlier: Option<&EarlierRun>,
) -> Result<(), Failure> {
    let page = report::page(studies, earlier);
    for picture in pictures_of(&page.blocks) {
        folder.replace(&folder.path().join(&picture.file), picture.svg.as_bytes())?;
    }
    folder.replace(
        &folder.file(REPORT, "md"),
        report::markdown(&page).as_bytes(),
    )?;
    folder.replace(&folder.file(REPORT, "html"), report::html(&page).as_bytes())
}

/// The name of the report's files.
pub const REPORT: &str = "report";

fn pictures_of(blocks: &[Block]) -> Vec<&Picture> {
    let each = blocks.iter().map(|block| match block {
        Block::Picture(picture) => vec![picture],
        Block::Folded { blocks, .. } => pictures_of(blocks),
        _ => Vec::new(),
    });
    each.flatten().collect()
}
