//! Writes the results of `tollgate cost --system-calls` as a table for people and as files for programs.

use super::super::export::json_in_cycles;
use super::SystemCalls;
use crate::statistics::{distribution, percentile};
use std::fmt::Write;

/// The percentiles that are shown; 0 is the smallest value, 100 the largest.
const PERCENTILES: [u32; 9] = [0, 1, 5, 25, 50, 75, 95, 99, 100];

/// The table, with what stands for what.
pub fn table(results: &SystemCalls) -> String {
    let mut text = format!("{}\n{STANDS_FOR}", results.host);
    if !results.is_complete {
        text.push_str("INTERRUPTED: only what was finished is shown.\n");
    }
    let _ = write!(text, "\n{:<12} {:<10} {:<10}", "guest", "", "cycles");
    for percent in PERCENTILES {
        let name = match percent {
            0 => "min".to_owned(),
            100 => "max".to_owned(),
            _ => format!("p{percent}"),
        };
        let _ = write!(text, " {name:>8}");
    }
    text.push('\n');
    for calls in &results.calls {
        let pinning = if calls.pinned { "pinned" } else { "not pinned" };
        let samples = match &calls.finding {
            Ok(samples) => samples,
            Err(why) => {
                let _ = writeln!(text, "{:<12} {pinning:<10} not run: {why}", calls.guest);
                continue;
            }
        };
        for (name, values) in [("nothing", &samples.nothing), ("marked", &samples.marked)] {
            let _ = write!(text, "{:<12} {pinning:<10} {name:<10}", calls.guest);
            for percent in PERCENTILES {
                let cycles = percentile(values, percent.max(1)).unwrap_or(0);
                let cycles = if percent == 0 {
                    values.first().copied().unwrap_or(0)
                } else {
                    cycles
                };
                let _ = write!(text, " {cycles:>8}");
            }
            text.push('\n');
        }
        let _ = write!(
            text,
            "{:<12} {pinning:<10} {:<10}",
            calls.guest, "difference"
        );
        for percent in PERCENTILES {
            let cycles = samples.difference(percent).unwrap_or(0);
            let _ = write!(text, " {cycles:>8}");
        }
        text.push('\n');
        if let Some((least, most)) = samples.usual() {
            let _ = writeln!(
                text,
                "{:<12} {pinning:<10} 95 % of {} hypercalls take {least} to {most} cycles more than the median of nothing",
                calls.guest,
                samples.marked.len()
            );
        }
    }
    text.push_str(DIFFERENCES);
    text
}

const DIFFERENCES: &str = "difference: between the same percentiles of both calls, not of two calls that belong together: \
it can be negative at the\nend, where the longest call is one that the host interrupted.\n";

const STANDS_FOR: &str = "Two system calls of a Linux guest: one makes the marked hypercall, the other does nothing. \
The study's guest had two new\nnumbers in its table of system calls; here they are two ioctl commands of a module's file, \
because that table is closed to\nmodules. The study's hypervisor was KVM on hardware, whose exits took 1,600 to 1,700 cycles in about 95 % \
of all cases\nwhere the machine was pinned; here the way out is a call inside one process, which crosses no protection boundary: the\n\
figures are not comparable with its. The shape is: a steep rise, and a tail that is longer where the machine may migrate.\n";

/// One line for each guest, pinning and call.
pub fn summary_csv(results: &SystemCalls) -> String {
    let names: Vec<String> = PERCENTILES.map(|it| format!("p{it}")).to_vec();
    let mut text = format!("guest,pinned,call,samples,{},none\n", names.join(","));
    for calls in &results.calls {
        let samples = match &calls.finding {
            Ok(samples) => samples,
            Err(why) => {
                let commas = ",".repeat(PERCENTILES.len());
                let why = why.replace(['"', '\n'], " ");
                let _ = writeln!(text, "{},{},,{commas},\"{why}\"", calls.guest, calls.pinned);
                continue;
            }
        };
        for (name, values) in [("nothing", &samples.nothing), ("marked", &samples.marked)] {
            let _ = write!(
                text,
                "{},{},{name},{}",
                calls.guest,
                calls.pinned,
                values.len()
            );
            for percent in PERCENTILES {
                let _ = write!(text, ",{}", percentile(values, percent).unwrap_or(0));
            }
            text.push_str(",\n");
        }
    }
    text
}

/// Every value, with its number of occurrences.
pub fn samples_csv(results: &SystemCalls) -> String {
    let mut text = String::from("guest,pinned,call,cycles,times\n");
    for calls in &results.calls {
        let Ok(samples) = &calls.finding else {
            continue;
        };
        for (name, values) in [("nothing", &samples.nothing), ("marked", &samples.marked)] {
            for (cycles, times) in distribution(values) {
                let (guest, pinned) = (calls.guest, calls.pinned);
                let _ = writeln!(text, "{guest},{pinned},{name},{cycles},{times}");
            }
        }
    }
    text
}

/// All results, with every value.
pub fn to_json(results: &SystemCalls) -> String {
    json_in_cycles(results)
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::example;
    use super::*;
    use serde_json::Value;

    #[test]
    fn differences_are_shown_by_percentile_and_missing_guests_with_the_reason() {
        let text = table(&example());
        assert!(
            text.contains("linux-686    pinned     not run: no kernel module"),
            "{text}"
        );
        let difference = text
            .lines()
            .find(|line| line.contains("difference"))
            .unwrap();
        let words: Vec<&str> = difference.split_whitespace().collect();
        assert_eq!(
            words[3..],
            [
                "301", "301", "305", "325", "350", "375", "395", "399", "400"
            ]
        );
        assert!(
            text.contains("95 % of 100 hypercalls take 301 to 395 cycles"),
            "{text}"
        );
    }

    #[test]
    fn files_have_one_number_of_columns() {
        for csv in [summary_csv(&example()), samples_csv(&example())] {
            let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
            assert!(columns.iter().all(|count| *count == columns[0]), "{csv}");
        }
        let json: Value = serde_json::from_str(&to_json(&example())).unwrap();
        assert_eq!(json["calls"][0]["finding"]["Ok"]["hypercalls"], 200);
    }
}
