//! The file that keeps what an experiment has finished, so that an interrupted run can be continued.
//!
//! Each line is a JSON value. The first says where the results come from ([`Origin`]); each further
//! line is something finished: the prices of a guest, a cell's count, one sample. A line is written
//! when its part is finished, with one write, so that a process that ends at any moment leaves whole
//! lines and at most one incomplete line at the end, which is ignored.
//!
//! A cell is continued with whole *rounds*: a round is one sample of each arm. The arms of a round
//! must alternate on the same machine, so the samples of an incomplete round are taken again. The
//! later of two lines for the same sample is valid.
//!
//! ```text
//! {"run":{"experiment":"vif","build":"0.1.0, ...","host":{...},"repetitions":9,...}}
//! {"prices":{"guest":"real","prices":[...]}}
//! {"counted":{"guest":"real","workload":"idle","counted":{...}}}
//! {"sample":{"guest":"real","workload":"idle","sample":{"arm":"vif=off","repetition":1,...}}}
//! ```

use super::{Arm, Cell, Counted, Origin, Price, Sample};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use tollgate_host_facts::file_words::{reading, writing};

/// A line of the file.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Line {
    /// Where everything that follows comes from.
    Run(Origin),
    /// All prices of a guest are measured.
    Prices { guest: String, prices: Vec<Price> },
    /// The instructions of a cell are counted.
    Counted {
        guest: String,
        workload: String,
        counted: Counted,
    },
    /// A sample of a cell is taken.
    Sample {
        guest: String,
        workload: String,
        sample: Box<Sample>,
    },
    /// The samples of a cell that precede this line are void, because its guest failed.
    Failed { guest: String, workload: String },
}

/// What is finished, and the file that keeps it.
#[derive(Default)]
pub struct Journal {
    /// The file; `None` if nothing is kept.
    file: Option<File>,
    /// When its run was begun, in seconds since 1970; `None` if that is not known.
    began_at: Option<u64>,
    lines: Vec<Line>,
}

/// Why a journal cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JournalError {
    /// Its file cannot be read or written, for this reason.
    File(String),
    /// Its content is no journal, for this reason.
    Content(String),
    /// It was measured elsewhere or otherwise: what differs.
    Differs(String),
}

impl std::fmt::Display for JournalError {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::File(why) | Self::Content(why) => formatter.write_str(why),
            Self::Differs(what) => write!(
                formatter,
                "its results cannot be continued, because {what}; measure again into another folder"
            ),
        }
    }
}

impl Journal {
    /// A journal that keeps nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// A new journal in this file, which must not exist.
    ///
    /// # Errors
    ///
    /// [`JournalError::File`] if the file exists or cannot be written.
    pub fn create(path: &Path, origin: &Origin) -> Result<Self, JournalError> {
        let mut options = OpenOptions::new();
        let file = options.write(true).create_new(true).open(path);
        let file = file.map_err(|error| JournalError::File(writing(&error)))?;
        lock(&file)?;
        let mut journal = Self {
            file: Some(file),
            began_at: Some(origin.began_at),
            lines: Vec::new(),
        };
        journal
            .keep(Line::Run(origin.clone()))
            .map_err(JournalError::File)?;
        Ok(journal)
    }

    /// The origin of the results in this file.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is no journal.
    pub fn origin(path: &Path) -> Result<Origin, JournalError> {
        let text = std::fs::read(path).map_err(|error| JournalError::File(reading(&error)))?;
        match whole_lines(&text)?.0.into_iter().next() {
            Some(Line::Run(origin)) => Ok(origin),
            _ => Err(JournalError::Content(NO_JOURNAL.into())),
        }
    }

    /// Continues the journal in this file.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written, is no journal, or was measured with another origin.
    pub fn resume(path: &Path, origin: &Origin) -> Result<Self, JournalError> {
        let cannot_read = |error| JournalError::File(reading(&error));
        let mut options = OpenOptions::new();
        let mut file = options
            .read(true)
            .write(true)
            .open(path)
            .map_err(cannot_read)?;
        lock(&file)?;
        let mut text = Vec::new();
        file.read_to_end(&mut text).map_err(cannot_read)?;
        let (lines, length) = whole_lines(&text)?;
        let began_at = match lines.first() {
            Some(Line::Run(stored)) => {
                if let Some(what) = stored.difference(origin) {
                    return Err(JournalError::Differs(what));
                }
                Some(stored.began_at).filter(|time| *time != 0)
            }
            _ => return Err(JournalError::Content(NO_JOURNAL.into())),
        };
        // The next line begins where an incomplete one may have begun.
        file.set_len(length as u64)
            .and_then(|()| file.seek(SeekFrom::End(0)))
            .map_err(|error| JournalError::File(writing(&error)))?;
        Ok(Self {
            file: Some(file),
            began_at,
            lines,
        })
    }

    /// When the run was begun, in seconds since 1970, if that is known.
    pub(super) fn began_at(&self) -> Option<u64> {
        self.began_at
    }

    /// The prices of a guest, if they are measured.
    pub(super) fn prices(&self, guest: &str) -> Option<&[Price]> {
        self.lines.iter().rev().find_map(|line| match line {
            Line::Prices { guest: its, prices } if its == guest => Some(&prices[..]),
            _ => None,
        })
    }

    /// The count of a cell, if it is counted.
    pub(super) fn counted(&self, cell: &Cell) -> Option<&Counted> {
        self.lines.iter().rev().find_map(|line| match line {
            Line::Counted {
                guest,
                workload,
                counted,
            } if is_of(cell, guest, workload) => Some(counted),
            _ => None,
        })
    }

    /// The samples of a cell in whole rounds of these arms, in the order in which they were taken.
    pub(super) fn samples(&self, cell: &Cell, arms: &[&Arm]) -> Vec<Sample> {
        let mut samples: Vec<Sample> = Vec::new();
        for line in &self.lines {
            match line {
                Line::Sample {
                    guest,
                    workload,
                    sample,
                } if is_of(cell, guest, workload) => {
                    let is_same = |other: &Sample| {
                        (&other.arm, other.repetition) == (&sample.arm, sample.repetition)
                    };
                    samples.retain(|other| !is_same(other));
                    samples.push((**sample).clone());
                }
                Line::Failed { guest, workload } if is_of(cell, guest, workload) => samples.clear(),
                _ => {}
            }
        }
        let taken: Vec<(String, u32)> = samples
            .iter()
            .map(|sample| (sample.arm.clone(), sample.repetition))
            .collect();
        samples.retain(|sample| {
            let is_taken = |arm: &&Arm| {
                let mut taken = taken.iter();
                taken.any(|(name, number)| name == arm.name && *number == sample.repetition)
            };
            arms.iter().all(is_taken)
        });
        samples
    }

    /// The largest number of a sample.
    pub(super) fn last_order(&self) -> usize {
        let orders = self.lines.iter().map(|line| match line {
            Line::Sample { sample, .. } => sample.order,
            _ => 0,
        });
        orders.max().unwrap_or(0)
    }

    /// Keeps the prices of a guest.
    pub(super) fn keep_prices(&mut self, guest: &str, prices: &[Price]) -> Result<(), String> {
        self.keep(Line::Prices {
            guest: guest.to_owned(),
            prices: prices.to_vec(),
        })
    }

    /// Keeps the count of a cell.
    pub(super) fn keep_counted(&mut self, cell: &Cell, counted: &Counted) -> Result<(), String> {
        self.keep(Line::Counted {
            guest: cell.guest.name.to_owned(),
            workload: cell.workload.name.to_owned(),
            counted: counted.clone(),
        })
    }

    /// Keeps a sample of a cell.
    pub(super) fn keep_sample(&mut self, cell: &Cell, sample: &Sample) -> Result<(), String> {
        self.keep(Line::Sample {
            guest: cell.guest.name.to_owned(),
            workload: cell.workload.name.to_owned(),
            sample: Box::new(sample.clone()),
        })
    }

    /// Keeps that a cell failed, so that it is measured again from its beginning.
    pub(super) fn keep_failure(&mut self, cell: &Cell) -> Result<(), String> {
        self.keep(Line::Failed {
            guest: cell.guest.name.to_owned(),
            workload: cell.workload.name.to_owned(),
        })
    }

    /// Writes one line. Lines that this process writes are not read again, so they are only in the
    /// file.
    fn keep(&mut self, line: Line) -> Result<(), String> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let mut text = serde_json::to_vec(&line).map_err(|error| error.to_string())?;
        text.push(b'\n');
        let written = file.write_all(&text);
        written.map_err(|error| format!("the finished samples' file: {}", writing(&error)))
    }
}

const NO_JOURNAL: &str = "it does not hold the finished samples of an experiment";

/// Two processes must not write to one file. A file system without locks is accepted.
fn lock(file: &File) -> Result<(), JournalError> {
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Err(JournalError::File(
            "another tollgate is writing to it".into(),
        )),
        _ => Ok(()),
    }
}

fn is_of(cell: &Cell, guest: &str, workload: &str) -> bool {
    cell.guest.name == guest && cell.workload.name == workload
}

/// The lines of the text, and the number of bytes that they have; an incomplete last line is
/// ignored.
fn whole_lines(text: &[u8]) -> Result<(Vec<Line>, usize), JournalError> {
    let length = text
        .iter()
        .rposition(|byte| *byte == b'\n')
        .map_or(0, |at| at + 1);
    let lines = text[..length].split_inclusive(|byte| *byte == b'\n');
    let lines: Result<Vec<Line>, JournalError> = lines
        .enumerate()
        .map(|(index, line)| {
            serde_json::from_slice(line).map_err(|error| {
                JournalError::Content(format!("{NO_JOURNAL}: line {}: {error}", index + 1))
            })
        })
        .collect();
    Ok((lines?, length))
}
