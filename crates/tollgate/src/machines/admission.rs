//! Admission: a machine starts only if this host's memory is enough for its beginning.
//!
//! A guest takes the host's memory as it uses it, so the sum of what machines were promised says
//! little. What one takes in any case is known, though: its monitor and a booted system. Machines
//! that were admitted a moment ago have not taken theirs yet, and count with it.

use std::fs::{self, File};
use std::path::Path;

use super::entry;
use crate::control::run_time;
use crate::failure::Failure;

const MIB: u64 = 1 << 20;
/// The size of a page.
const PAGE_BYTES: u64 = 4096;
/// What a monitor takes, with the code that it has translated.
const MONITOR_BYTES: u64 = 64 * MIB;
/// What a guest takes that has booted, at most.
const BEGINNING_BYTES: u64 = 128 * MIB;

/// While this lives, no other machine is admitted.
pub struct Admitted(#[expect(dead_code, reason = "the lock ends with it")] File);

/// Waits for its turn and admits a machine with this much RAM; `None` if this host does not say how
/// much memory it has.
///
/// # Errors
/// One line says how much is missing.
pub fn admit(memory_bytes: u64) -> Result<Option<Admitted>, Failure> {
    let turn = run_time::made()
        .and_then(|folder| File::open(folder).ok())
        .filter(|turn| turn.lock().is_ok());
    let Some(available) = available() else {
        return Ok(turn.map(Admitted));
    };
    let machines = entry::all();
    let not_taken_yet: u64 = machines
        .iter()
        .map(|facts| {
            let taken = resident_bytes(facts.pid).unwrap_or(u64::MAX);
            beginning(facts.memory_bytes).saturating_sub(taken)
        })
        .sum();
    let needed = beginning(memory_bytes);
    if needed.saturating_add(not_taken_yet) <= available {
        return Ok(turn.map(Admitted));
    }
    let others = match machines.len() {
        0 => String::new(),
        count => format!(", of which {count} machines take {}", mib(not_taken_yet)),
    };
    Err(Failure::host(format!(
        "this host has {} of memory left{others}: a machine with {} needs {} to begin with; end \
         others ('tollgate ps' lists them), or use --admission off",
        mib(available),
        mib(memory_bytes),
        mib(needed)
    )))
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes / MIB)
}

/// What a machine takes once its guest has booted.
fn beginning(memory_bytes: u64) -> u64 {
    MONITOR_BYTES + memory_bytes.min(BEGINNING_BYTES)
}

/// Bytes of the host's memory that a process has, with what it shares with others.
pub fn resident_bytes(pid: u32) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/statm")).ok()?;
    let pages: u64 = text.split(' ').nth(1)?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

/// Bytes that processes can still take: of the host, or of the control group with the least.
fn available() -> Option<u64> {
    let text = fs::read_to_string("/proc/meminfo").ok()?;
    let host = number_after(&text, "MemAvailable:")? * 1024;
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let mut least = host;
    let root = Path::new("/sys/fs/cgroup");
    let mut group = root.join(own.unwrap_or_default());
    while group.starts_with(root) {
        if let Some(left) = left_in(&group) {
            least = least.min(left);
        }
        if !group.pop() {
            break;
        }
    }
    Some(least)
}

/// Bytes that the processes of a control group can still take; `None` if it has no limit.
fn left_in(group: &Path) -> Option<u64> {
    let read = |name: &str| fs::read_to_string(group.join(name)).ok();
    let most: u64 = read("memory.max")?.trim().parse().ok()?;
    let taken: u64 = read("memory.current")?.trim().parse().ok()?;
    // The kernel gives up cached files first.
    let cached = number_after(&read("memory.stat")?, "inactive_file").unwrap_or(0);
    Some(most.saturating_sub(taken.saturating_sub(cached)))
}

/// The number that follows a word at the beginning of a line.
fn number_after(text: &str, word: &str) -> Option<u64> {
    let rest = text.lines().find_map(|line| line.strip_prefix(word))?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_says_what_it_has() {
        assert!(available().unwrap() > 0);
        assert!(resident_bytes(std::process::id()).unwrap() > 0);
        assert_eq!(number_after("a: 1\nb:  22 kB\n", "b:"), Some(22));
    }

    #[test]
    fn a_machine_needs_its_monitor_and_a_booted_guest() {
        assert_eq!(beginning(32 * MIB), 96 * MIB);
        assert_eq!(beginning(8 << 30), 192 * MIB);
    }
}
