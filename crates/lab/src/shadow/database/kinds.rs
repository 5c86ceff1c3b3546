//! The three kinds of guest of the study: one that does not page, one with one address space, and
//! one with many.

use super::super::about::{FILES, NO_PAGING, ONE_SPACE, WIDE};
use super::super::arms::{BY_NUMBER, CONVENTIONAL};
use super::paper::best;
use super::workloads::{AMD64, I386, POSTGRES_JOBS};
use crate::experiment::{
    Arm, Bench, CellResult, Comparison, LabError, Results, Section, Stop, Timed, columns,
};
use crate::paged_guest::{Images, PagedGuest, Width};
use crate::small_system::{Mode, Setup, SmallSystemError, Workload, run};
use tollgate_machine::config::VmConfig;

/// The small system, which copies files and does not page.
pub struct Files {
    rounds: u16,
}

impl Files {
    /// With little work if `quick`.
    pub const fn open(quick: bool) -> Self {
        Self {
            rounds: if quick { 20 } else { 200 },
        }
    }
}

impl Bench for Files {
    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        let setup = Setup {
            workload: Workload::CopyType {
                rounds: self.rounds,
            },
            mode: Mode::Real,
            rate: None,
        };
        let config = arm.config(&VmConfig::default())?;
        let ran = run(&setup, &config)
            .map_err(|error: SmallSystemError| LabError::WorkNotDone(error.to_string()))?;
        let shares = &ran.reading.shares;
        let idle = shares.halted + shares.waiting + shares.translating;
        let cycles = shares.wall.saturating_sub(idle);
        let mut timed = Timed::of_events(u64::from(self.rounds), cycles, &ran.reading);
        timed.work.insert("rounds".into(), u64::from(self.rounds));
        Ok(timed)
    }
}

/// Our 64-bit kernel, which accesses a device in its only address space.
pub struct OneSpace {
    rounds: u64,
}

/// A loop of accesses to the local APIC's registers.
const DEVICE: Images = Images {
    wide: include_bytes!(concat!(env!("OUT_DIR"), "/apic-loop-64.bin")),
    narrow: include_bytes!(concat!(env!("OUT_DIR"), "/apic-loop.bin")),
};
/// The low byte of the version register, which the loop adds up (SDM volume 3, 11.4.8).
const VERSION: u64 = 0x14;

impl OneSpace {
    /// With little work if `quick`.
    pub const fn open(quick: bool) -> Self {
        Self {
            rounds: if quick { 5_000 } else { 100_000 },
        }
    }

    fn run(guest: &mut PagedGuest, rounds: u64, stop: &Stop) -> Result<u64, LabError> {
        let parameters = [guest.places().local_apic, rounds, 0, 0, 0, 0, 0, 0];
        guest.run(0, 1, parameters, rounds * VERSION, stop)
    }
}

impl Bench for OneSpace {
    fn measure(&mut self, arm: &Arm, stop: &Stop) -> Result<Timed, LabError> {
        let config = arm.config(&VmConfig::default())?;
        let mut guest = PagedGuest::new(Width::Wide, DEVICE, &config)?;
        Self::run(&mut guest, self.rounds / 20, stop)?;
        guest.reset_ledger();
        let cycles = Self::run(&mut guest, self.rounds, stop)?;
        let mut timed = Timed::of_events(self.rounds, cycles, &guest.reading());
        timed.work.insert("rounds".into(), self.rounds);
        timed.add_counts(&guest.counts());
        Ok(timed)
    }
}

/// The kinds of guest: what is expected, and the cell that shows it.
const KINDS: [(&str, &str, &str, &str); 4] = [
    ("no paging", "none", NO_PAGING, FILES),
    ("one address space", "none", WIDE, ONE_SPACE),
    ("many spaces", "large", AMD64.name, POSTGRES_JOBS),
    ("many spaces", "large", I386.name, POSTGRES_JOBS),
];

/// The expected gain of each kind next to the measured one; `None` if none of them ran.
pub fn section(results: &Results) -> Option<Section> {
    let rows: Vec<Vec<String>> = KINDS
        .iter()
        .filter_map(|&(kind, expected, guest, workload)| {
            let cell = results.cell(guest, workload)?;
            Some(vec![
                kind.to_owned(),
                format!("{guest}, {workload}"),
                expected.to_owned(),
                gain(cell)?,
            ])
        })
        .collect();
    (!rows.is_empty()).then(|| Section {
        title: "three kinds of guest: the expected gain of all mechanisms, and the measured one".into(),
        columns: columns(&["kind", "guest, workload", "expected", "measured"]),
        rows,
        notes: vec![
            "The time of an event with all mechanisms, at the best number of tables, against conventional \
             tables at theirs."
                .into(),
        ],
    })
}

/// The comparison of all mechanisms with conventional tables, each at its own best number.
fn gain(cell: &CellResult) -> Option<String> {
    let (_, without) = best(cell, CONVENTIONAL)?;
    let (_, with) = best(cell, BY_NUMBER)?;
    let comparison = Comparison::of(&cell.values(with), &cell.values(without))?;
    Some(comparison.to_string())
}
