//! `tollgate ps`: lists the machines of this user.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::json;

use super::admission::resident_bytes;
use super::entry::{self, Facts};
use crate::exit_code;
use crate::failure::one_line;
use crate::standard_output::print_and_end;

/// The arguments of `tollgate ps`.
#[derive(Args, Debug)]
#[command(after_help = "\
Machines are found in $XDG_RUNTIME_DIR/tollgate, or without that variable in /tmp/tollgate-UID. Files
that killed machines have left there are removed.
Example:    tollgate ps --quiet | xargs -r tollgate kill")]
pub struct PsArguments {
    /// Print the names alone
    #[arg(short, long, conflicts_with = "json")]
    pub quiet: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Runs `tollgate ps` and returns its exit code.
pub fn run(arguments: &PsArguments) -> u8 {
    let machines = entry::all();
    // This removes the sockets of machines that had no entries.
    let _ = crate::control::run_time::sockets();
    let text = if arguments.json {
        let machines: Vec<_> = machines.iter().map(as_json).collect();
        format!("{}\n", json!(machines))
    } else if arguments.quiet {
        machines.iter().map(|it| format!("{}\n", it.name)).collect()
    } else {
        table(&machines)
    };
    print_and_end(&text, exit_code::SUCCESS)
}

fn as_json(facts: &Facts) -> serde_json::Value {
    let mut value = serde_json::to_value(facts).unwrap_or_default();
    value["resident_bytes"] = resident_bytes(facts.pid).into();
    value
}

fn table(machines: &[Facts]) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let now = now.map_or(0, |now| now.as_secs());
    let width = machines.iter().map(|it| it.name.len()).max();
    let width = width.unwrap_or(0).max(12);
    let mut text = format!(
        "{:width$}  {:>7}  {:>9}  {:>7}  {:>8}  COMMAND\n",
        "NAME", "PROCESS", "RUNNING", "MEMORY", "RESIDENT"
    );
    for it in machines {
        let mib = |bytes: u64| format!("{}M", bytes >> 20);
        let resident = resident_bytes(it.pid).map_or("-".into(), mib);
        text.push_str(&format!(
            "{:width$}  {:>7}  {:>9}  {:>7}  {resident:>8}  {}\n",
            it.name,
            it.pid,
            duration(now.saturating_sub(it.started)),
            mib(it.memory_bytes),
            one_line(&it.what)
        ));
    }
    text
}

/// A time in its two largest units.
fn duration(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m {}s", seconds / 60, seconds % 60),
        3600..86400 => format!("{}h {}m", seconds / 3600, seconds / 60 % 60),
        _ => format!("{}d {}h", seconds / 86400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_what_a_machine_is() {
        assert_eq!(duration(59), "59s");
        assert_eq!(duration(3 * 86400 + 7300), "3d 2h");
        let facts = Facts {
            name: "web".into(),
            pid: 0,
            started: 0,
            memory_bytes: 1 << 30,
            what: "make\tcheck".into(),
            socket: None,
            log: None,
        };
        let text = table(&[facts]);
        assert!(text.contains("web"), "{text}");
        assert!(text.contains("1024M         -  make check\n"), "{text}");
    }
}
