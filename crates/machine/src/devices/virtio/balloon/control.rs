//! The control of a balloon by other threads: how many pages the guest shall give, and what its
//! driver reports.

use crate::bus::completion::Completer;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What a balloon offers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct BalloonOptions {
    /// The number of pages that the guest shall give from the beginning.
    pub target_pages: u32,
    /// Whether a guest that has no memory left may take pages back.
    pub deflate_on_oom: bool,
    /// Whether the driver can be asked for statistics.
    pub statistics: bool,
    /// Whether the guest reports free pages without being asked.
    pub page_reporting: bool,
}

/// What a driver reports by number (5.5.6.4): pages that were swapped, faults, memory.
pub type Statistics = BTreeMap<u16, u64>;

/// Pages and statistics of a balloon.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BalloonReading {
    /// The number of pages that the guest shall give.
    pub target_pages: u32,
    /// The number of pages that the guest has given, as its driver says.
    pub actual_pages: u32,
    /// The latest value of each number that the driver has reported.
    pub statistics: Statistics,
}

#[derive(Default)]
struct State {
    reading: BalloonReading,
    /// Whether the driver shall report again.
    asks: bool,
    /// Whether the device was notified and has not looked yet.
    is_told: bool,
    way: Option<Completer>,
}

/// The control, which any thread may hold except the processor's.
#[derive(Clone, Default)]
pub struct BalloonControl(Arc<Mutex<State>>);

impl std::fmt::Debug for BalloonControl {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "BalloonControl({:?})", self.state().reading)
    }
}

impl BalloonControl {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the guest to give this number of pages. Its driver does so when it can.
    pub fn set_target(&self, pages: u32) {
        self.tell(|state| state.reading.target_pages = pages);
    }

    /// Asks the guest's driver for statistics.
    pub fn ask_for_statistics(&self) {
        self.tell(|state| state.asks = true);
    }

    /// Returns what is known.
    pub fn reading(&self) -> BalloonReading {
        self.state().reading.clone()
    }

    fn tell(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.state();
        change(&mut state);
        // One notification is enough until the device looks.
        let way = match std::mem::replace(&mut state.is_told, true) {
            true => None,
            false => state.way.clone(),
        };
        drop(state);
        // A machine that has ended needs no notification.
        let _ = way.map(|way| way.send(0));
    }

    pub(super) fn connect(&self, way: Completer) {
        self.state().way = Some(way);
    }

    /// Returns the wanted number of pages, and whether the driver shall report again.
    pub(super) fn look(&self) -> (u32, bool) {
        let mut state = self.state();
        state.is_told = false;
        (state.reading.target_pages, std::mem::take(&mut state.asks))
    }

    pub(super) fn set_pages(&self, target: u32, actual: u32) {
        let mut state = self.state();
        state.reading.target_pages = target;
        state.reading.actual_pages = actual;
    }

    pub(super) fn set_actual(&self, pages: u32) {
        self.state().reading.actual_pages = pages;
    }

    pub(super) fn report(&self, statistics: Statistics) {
        self.state().reading.statistics.extend(statistics);
    }
}
