//! One row of `tollgate doctor`: what was looked at, what was found, and what a lack costs.

use serde::Serialize;

/// Whether Tollgate can run without the thing that is checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Need {
    /// Tollgate does not run without this.
    Required,
    /// Tollgate runs without this, at a cost.
    Optional,
}

/// One row: what was checked, the result, and what the lack of it costs.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// The thing that was checked.
    pub what: &'static str,
    /// Whether Tollgate can run without it.
    pub need: Need,
    /// Whether the check succeeded.
    pub ok: bool,
    /// The result in words.
    pub found: String,
    /// The cost if it is missing.
    pub cost: &'static str,
}

impl Check {
    pub(super) fn required(
        what: &'static str,
        ok: bool,
        found: impl Into<String>,
        cost: &'static str,
    ) -> Self {
        Self {
            what,
            need: Need::Required,
            ok,
            found: found.into(),
            cost,
        }
    }

    pub(super) fn optional(
        what: &'static str,
        ok: bool,
        found: impl Into<String>,
        cost: &'static str,
    ) -> Self {
        Self {
            need: Need::Optional,
            ..Self::required(what, ok, found, cost)
        }
    }

    pub(super) fn verdict(&self) -> &'static str {
        match (self.ok, self.need) {
            (true, _) => "ok",
            (false, Need::Required) => "MISSING",
            (false, Need::Optional) => "lacking",
        }
    }
}

/// The content of a small file of /proc or /sys, trimmed; empty if the file is missing.
pub(super) fn read_setting(path: &str) -> String {
    std::fs::read_to_string(path)
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}
