//! Writes the comparison of machines for programs: CSV of the lines, CSV of every value, JSON of everything.

use super::super::export::json_in_cycles;
use super::{Comparison, Finding};
use std::fmt::Write;

/// One line for each kind, machine and pinning. Where there is no figure, the last column says why.
pub fn summary_csv(comparison: &Comparison) -> String {
    let mut text = String::from(
        "kind,mode,machine,pinned,batch_median_cycles,samples,min_cycles,p50_cycles,p95_cycles,p99_cycles,max_cycles,\
no_op_cycles,rounds,none\n",
    );
    for line in &comparison.lines {
        let (kind, mode, machine, pinned) = (line.kind, line.mode, line.machine, line.pinned);
        let _ = write!(text, "{kind},{mode},{machine},{pinned},");
        let _ = match &line.finding {
            Finding::Measured(measured) => {
                let single = &measured.row.single;
                let rounds: Vec<String> = measured
                    .rounds
                    .iter()
                    .map(|it| format!("{it:.2}"))
                    .collect();
                writeln!(
                    text,
                    "{:.2},{},{},{},{},{},{},{},{},",
                    measured.cycles(),
                    single.count,
                    single.min,
                    single.p50,
                    single.p95,
                    single.p99,
                    single.max,
                    measured.row.baseline,
                    rounds.join(" ")
                )
            }
            Finding::None(why) => {
                let why = why.replace(['"', '\n'], " ");
                writeln!(text, ",,,,,,,,,\"{why}\"")
            }
        };
    }
    text
}

/// Every value, with its number of occurrences.
pub fn samples_csv(comparison: &Comparison) -> String {
    let mut text = String::from("kind,mode,machine,pinned,cycles,times\n");
    for line in &comparison.lines {
        let Finding::Measured(measured) = &line.finding else {
            continue;
        };
        let (kind, mode, machine, pinned) = (line.kind, line.mode, line.machine, line.pinned);
        for (cycles, times) in &measured.row.distribution {
            let _ = writeln!(text, "{kind},{mode},{machine},{pinned},{cycles},{times}");
        }
    }
    text
}

/// The whole comparison.
pub fn to_json(comparison: &Comparison) -> String {
    json_in_cycles(comparison)
}

#[cfg(test)]
mod tests {
    use super::super::result::tests::comparison;
    use super::*;
    use serde_json::Value;

    #[test]
    fn every_line_has_the_same_columns() {
        let csv = summary_csv(&comparison());
        let columns: Vec<usize> = csv.lines().map(|line| line.split(',').count()).collect();
        assert!(columns.iter().all(|&count| count == 14), "{csv}");
        assert!(
            csv.contains("null-hypercall,64-bit,qemu,true,,,,,,,,,,\"none"),
            "{csv}"
        );
    }

    #[test]
    fn values_are_kept_with_their_numbers() {
        let csv = samples_csv(&comparison());
        assert!(
            csv.ends_with("null-hypercall,64-bit,tollgate,true,9,1\n"),
            "{csv}"
        );
        let json: Value = serde_json::from_str(&to_json(&comparison())).unwrap();
        assert_eq!(json["lines"][0]["machine"], "tollgate");
        assert!(json["lines"][1]["finding"]["none"].is_string());
    }
}
