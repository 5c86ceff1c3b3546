//! Orders to a machine that exists.

use serde::{Deserialize, Serialize};

use super::body::Body;

/// What a client may order a machine to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum Action {
    /// Start the machine.
    InstanceStart,
    /// Write the metrics now.
    FlushMetrics,
    /// Press Ctrl-Alt-Delete.
    SendCtrlAltDel,
}

/// The body of an order.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ActionInfo {
    /// What the machine shall do.
    pub action_type: Action,
}

impl Body for ActionInfo {}

/// A state that a client may ask for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub enum VmState {
    /// The machine stands still.
    Paused,
    /// The machine runs.
    Resumed,
}

/// A request for a state.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VmUpdate {
    /// What the client asks for.
    pub state: VmState,
}

impl Body for VmUpdate {}
