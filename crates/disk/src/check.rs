//! Checks whether the reference counts of a qcow2 image agree with its tables.
//!
//! All clusters in use are found from the header: tables of reference counts, L1 and L2 tables,
//! data, and snapshots. A cluster that is counted more often than it is used is a *leak*, which
//! only wastes space. A cluster that is used more often than it is counted may be allocated again,
//! which is *damage*. Damage are also references outside of the file, and reserved bits that are
//! set.
//!
//! Damage is a *hazard* if writes to the disk could spread it. An image without hazards stays sound
//! under all writes: free clusters are really free, no table is also used as something else, and
//! shared clusters are known to be shared, so that they are copied before they change. This is why
//! an image is checked before it is opened for writing.

mod counts;
mod finding;
mod uses;

use crate::error::{DiskError, explain};
use crate::header::{Header, INCOMPATIBLE_OFFSET, incompatible};
use crate::host_file::{file_bytes, open_file};
use counts::Counts;
use finding::Finding;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use uses::Uses;

/// The maximum number of clusters of a file that are checked, because of the memory for their
/// counts.
const MAX_CLUSTERS: u64 = 1 << 28;

/// What the check repairs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Repair {
    /// Nothing: the image is only read.
    Nothing,
    /// Leaked clusters are freed. If there is no damage, the marks "dirty" and "corrupt" are
    /// removed.
    Leaks,
}

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CheckReport {
    /// The number of defects that can lose data.
    pub damage: u64,
    /// The number of clusters that are counted but not used.
    pub leaks: u64,
    /// The number of leaks that were repaired. [`CheckReport::leaks`] are the others.
    pub mended_leaks: u64,
    /// The number of marks that were removed from the header: "dirty", "corrupt".
    pub removed_marks: u64,
    /// The number of clusters of the disk that have data in the image.
    pub allocated: u64,
    /// The number of clusters of the disk.
    pub total: u64,
}

/// Why an image must not be written.
pub(crate) struct Hazards {
    /// The number of hazards, at least one.
    pub count: u64,
    /// A description of the first one.
    pub first: String,
}

/// Checks a qcow2 image and calls `say` with a description of each defect.
///
/// # Errors
/// [`DiskError`]: the image is in use, is not qcow2, or uses a feature that the check does not
/// support.
pub fn check(
    path: &Path,
    repair: Repair,
    mut say: impl FnMut(String),
) -> Result<CheckReport, DiskError> {
    check_file(path, repair, &mut say).map_err(|error| DiskError {
        path: path.to_owned(),
        why: explain(&error),
    })
}

fn check_file(path: &Path, repair: Repair, say: &mut dyn FnMut(String)) -> io::Result<CheckReport> {
    let file = open_file(path, repair == Repair::Leaks)?;
    let Some(header) = Header::read(&file, file_bytes(&file)?)? else {
        let why = "it is not qcow2; only qcow2 images have something to check";
        return Err(io::Error::other(why));
    };
    refuse_unknown(&header)?;
    let mut report = CheckReport::default();
    let survey = survey(&file, &header, &mut |finding| match finding {
        // This leak is not reported, because the repair below frees it.
        Finding::Leak(_) if repair == Repair::Leaks => {}
        Finding::Leak(line) => {
            report.leaks += 1;
            say(line);
        }
        Finding::Harmless(line) | Finding::Uncounted(line) | Finding::Hazard(line) => {
            report.damage += 1;
            say(line);
        }
    })?;
    report.allocated = survey.uses.allocated;
    report.total = header.size.div_ceil(header.cluster_bytes());
    if repair == Repair::Leaks {
        for (cluster, uses) in &survey.leaks {
            survey.counts.set(&file, *cluster, *uses)?;
        }
        report.mended_leaks = survey.leaks.len() as u64;
        file.sync_all()?;
    }
    if repair == Repair::Leaks && report.damage == 0 {
        report.removed_marks = remove_marks(&file, &header)?;
    } else {
        for (mark, name) in MARKS {
            if header.has(mark) {
                report.damage += 1;
                say(format!("the image is marked as {name}"));
            }
        }
    }
    Ok(report)
}

/// The marks in a header that prevent an image from being written.
const MARKS: [(u64, &str); 2] = [
    (incompatible::DIRTY, "dirty: it was not closed cleanly"),
    (incompatible::CORRUPT, "corrupt: damage was found in it"),
];

/// Removes the marks of an image without defects, and returns how many there were.
fn remove_marks(file: &File, header: &Header) -> io::Result<u64> {
    let marks = header.incompatible & (incompatible::DIRTY | incompatible::CORRUPT);
    if marks != 0 {
        let rest = header.incompatible & !marks;
        file.write_all_at(&rest.to_be_bytes(), INCOMPATIBLE_OFFSET)?;
        file.sync_all()?;
    }
    Ok(marks.count_ones().into())
}

fn refuse_unknown(header: &Header) -> io::Result<()> {
    let what = if header.encryption.is_some() {
        "it is encrypted"
    } else if header.has_bitmaps {
        "it has bitmaps"
    } else {
        return Ok(());
    };
    Err(io::Error::other(format!("{what}; qemu-img check knows it")))
}

/// Checks an image that will be written. Returns its hazards, or `None` if there are none. Tables
/// that were not counted, because a process was killed before it could, are counted here.
///
/// # Errors
/// An error of the host, or the image is too large.
pub(crate) fn prepare_writing(file: &File, header: &Header) -> io::Result<Option<Hazards>> {
    let mut hazards: Option<Hazards> = None;
    let survey = survey(file, header, &mut |finding| {
        if let Finding::Hazard(line) = finding {
            let known = hazards.get_or_insert(Hazards {
                count: 0,
                first: line,
            });
            known.count += 1;
        }
    })?;
    if hazards.is_none() && !survey.uncounted.is_empty() {
        for cluster in &survey.uncounted {
            survey.counts.set(file, *cluster, 1)?;
        }
        file.sync_all()?;
    }
    Ok(hazards)
}

/// The findings about an image.
struct Survey {
    counts: Counts,
    uses: Uses,
    /// Clusters that are counted too often, each with the number of its uses.
    leaks: Vec<(u64, u64)>,
    /// Tables that are used once and not counted.
    uncounted: Vec<u64>,
}

/// Checks an image.
fn survey(file: &File, header: &Header, find: &mut dyn FnMut(Finding)) -> io::Result<Survey> {
    let counts = Counts::read(file, header)?;
    let in_file = file_bytes(file)?.div_ceil(header.cluster_bytes());
    let clusters = in_file.max(counts.clusters());
    if clusters > MAX_CLUSTERS {
        return Err(io::Error::other("it is too large to be checked"));
    }
    let uses = Uses::count(file, header, [in_file, clusters], find)?;
    let mut survey = Survey {
        counts,
        uses,
        leaks: Vec::new(),
        uncounted: Vec::new(),
    };
    survey.compare(find);
    survey
        .uses
        .compare_copied(file, header, &survey.counts, find)?;
    Ok(survey)
}

impl Survey {
    /// Compares counts with uses.
    fn compare(&mut self, find: &mut dyn FnMut(Finding)) {
        for (cluster, used) in (0..).zip(self.uses.all().iter().copied().map(u64::from)) {
            let count = self.counts.get(cluster);
            if count == used {
                continue;
            }
            let line = format!("cluster {cluster} is counted {count} times, but used {used} times");
            if count > used {
                self.leaks.push((cluster, used));
                find(Finding::Leak(format!(
                    "leaked cluster {cluster}: counted {count}, used {used} times"
                )));
            } else if self.uses.is_uncounted_table(cluster, &self.counts) {
                self.uncounted.push(cluster);
                find(Finding::Uncounted(line));
            } else {
                find(Finding::Hazard(line));
            }
        }
    }
}
