//! What `tollgate cost` measures.

use super::image::GuestMode;

/// The options of an experiment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Number of single events for each kind, mode and pinning.
    pub samples: usize,
    /// Number of batches for each kind, mode and pinning.
    pub batches: usize,
    /// Number of events in a batch.
    pub repeat: usize,
    /// How often each machine is started in a comparison of machines.
    pub rounds: usize,
    /// Measures only these kinds; if empty, all.
    pub kinds: Vec<String>,
    /// Measures only these modes; if empty, all.
    pub modes: Vec<GuestMode>,
    /// The host processor to which the thread is pinned; `None` for the one where it runs.
    pub processor: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            samples: 10_000,
            batches: 50,
            repeat: 1000,
            rounds: 5,
            kinds: Vec::new(),
            modes: Vec::new(),
            processor: None,
        }
    }
}

impl Options {
    /// Options for few samples, which suffice to see that everything works.
    pub fn quick() -> Self {
        Self {
            samples: 200,
            batches: 5,
            repeat: 50,
            rounds: 2,
            ..Self::default()
        }
    }
}
