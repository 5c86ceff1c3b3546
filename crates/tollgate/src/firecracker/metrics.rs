//! The measurements of `tollgate-firecracker`: lines of JSON.

use std::fs::File;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Map, Value, json};
use tollgate_exits::reading::Reading;

use crate::statistics::Reporter;

/// One line of measurements: the time, the counts of requests, and the ledger under a key of its own.
pub fn line(requests: Map<String, Value>, reading: Option<&Reading>) -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let mut all = requests;
    let now = since.map_or(0, |since| since.as_millis() as u64);
    all.insert("utc_timestamp_ms".into(), json!(now));
    let ledger = reading.map(|reading| Reporter::PLAIN.snapshot(reading));
    all.insert("tollgate".into(), json!(ledger));
    Value::Object(all).to_string()
}

/// Writes a line of measurements.
///
/// # Errors
/// One line.
pub fn write(file: &File, line: &str) -> Result<(), String> {
    let mut file = file;
    (file.write_all(format!("{line}\n").as_bytes()))
        .map_err(|error| format!("the metrics cannot be written: {error}"))
}
