//! Where messages and measurements go.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::body::Body;
use crate::fault::Fault;

/// Where messages go.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Logger {
    /// The file or named pipe that lines are written to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub log_path: Option<PathBuf>,
    /// The least important level that is written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Whether a line names its level.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub show_level: Option<bool>,
    /// Whether a line names its place in the source, which makes no difference here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub show_log_origin: Option<bool>,
    /// The part of the program whose messages are written, which makes no difference here.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub module: Option<String>,
}

impl Logger {
    /// The levels, the most important first.
    pub const LEVELS: [&str; 6] = ["off", "error", "warning", "info", "debug", "trace"];
}

impl Body for Logger {
    fn check(&self) -> Result<(), Fault> {
        let Some(level) = &self.level else {
            return Ok(());
        };
        let level = level.to_ascii_lowercase();
        match Self::LEVELS.contains(&&*level) || level == "warn" {
            true => Ok(()),
            false => Err(Fault::field(
                "level",
                "expected Off, Error, Warning, Info, Debug or Trace",
            )),
        }
    }
}

/// Where measurements go.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    /// The file or named pipe that lines are written to.
    pub metrics_path: PathBuf,
}

impl Body for Metrics {}
