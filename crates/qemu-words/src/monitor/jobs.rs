//! Snapshots by name: QMP's jobs, which are done when their command returns, and HMP's list.

use super::fault::Fault;
use super::machine::{Event, Job, Machine};
use serde_json::{Value, json};
use std::fmt::Write;

/// Does what `snapshot-save`, `snapshot-load` or `snapshot-delete` orders.
///
/// # Errors
/// A parameter is missing, or a job has this name.
pub fn snapshot(name: &str, arguments: &Value, machine: &mut dyn Machine) -> Result<(), Fault> {
    let text = |key: &str| {
        let text = arguments.get(key).and_then(Value::as_str);
        text.ok_or_else(|| Fault::generic(format!("Parameter '{key}' is missing")))
    };
    let (id, tag) = (text("job-id")?.to_owned(), text("tag")?);
    if machine.jobs().iter().any(|job| job.id == id) {
        return Err(Fault::generic(format!("Job ID '{id}' already in use")));
    }
    let (kind, done) = match name {
        "snapshot-save" => (
            "snapshot-save",
            match machine.tags()?.iter().any(|known| known.name == tag) {
                true => Err(format!("Snapshot '{tag}' already exists")),
                false => machine.save_tag(tag),
            },
        ),
        "snapshot-load" => ("snapshot-load", machine.load_tag(tag)),
        _ => ("snapshot-delete", machine.delete_tag(tag)),
    };
    let error = done.err();
    machine.tell(Event::JobConcluded(id.clone()));
    machine.jobs().push(Job { id, kind, error });
    Ok(())
}

/// The answer to `query-jobs`.
pub fn query(machine: &mut dyn Machine) -> Value {
    let jobs = machine.jobs().iter().map(|job| {
        let mut it = json!({
            "id": job.id, "type": job.kind, "status": "concluded",
            "current-progress": 1, "total-progress": 1,
        });
        if let Some(error) = &job.error {
            it["error"] = json!(error);
        }
        it
    });
    jobs.collect()
}

/// Does what `job-dismiss` orders.
///
/// # Errors
/// There is no such job.
pub fn dismiss(arguments: &Value, machine: &mut dyn Machine) -> Result<(), Fault> {
    let id = arguments.get("id").and_then(Value::as_str);
    let id = id.ok_or_else(|| Fault::generic("Parameter 'id' is missing"))?;
    let jobs = machine.jobs();
    let place = jobs.iter().position(|job| job.id == id);
    let place = place.ok_or_else(|| Fault::generic("Job not found"))?;
    jobs.remove(place);
    Ok(())
}

/// A name that no snapshot has.
pub fn unused_tag(machine: &dyn Machine) -> String {
    let tags = machine.tags().unwrap_or_default();
    let mut names = (1..).map(|number: u32| format!("vm-{number}"));
    let is_free = |name: &String| tags.iter().all(|tag| tag.name != *name);
    names.find(is_free).unwrap_or_default()
}

/// The text of `info snapshots`.
///
/// # Errors
/// The machine has no disk whose snapshots are kept.
pub fn list(machine: &dyn Machine) -> Result<String, String> {
    let tags = machine.tags()?;
    if tags.is_empty() {
        return Ok("There is no snapshot available.\n".into());
    }
    let mut text = "List of snapshots present on all disks:\n".to_owned();
    text += "ID        TAG               VM SIZE                DATE     VM CLOCK     ICOUNT\n";
    for tag in tags {
        let size = format!("{:.3} MiB", tag.bytes as f64 / f64::from(1 << 20));
        let date = date(tag.seconds);
        let _ = writeln!(text, "--        {:<17} {size:>12} {date}", tag.name);
    }
    Ok(text)
}

/// A moment as `2026-11-29 07:00:00` (UTC).
fn date(seconds: u64) -> String {
    let (days, of_day) = (seconds / 86_400, seconds % 86_400);
    // The civil calendar, with years that begin in March: eras of 400 years have 146,097 days.
    let since = days + 719_468;
    let (era, of_era) = (since / 146_097, since % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 {
        from_march + 3
    } else {
        from_march - 9
    };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (of_day / 3600, of_day / 60 % 60, of_day % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00:00");
        assert_eq!(date(951_782_399), "2000-02-28 23:59:59");
        assert_eq!(date(951_782_400), "2000-02-29 00:00:00");
        assert_eq!(date(1_795_935_600), "2026-11-29 07:00:00");
    }
}
