//! The report that a user gets when the two sides differ.

use crate::comparer::Parting;
use crate::history::History;
use std::fmt::Write;

/// One paragraph for a difference that is ignored.
pub fn summary(parting: &Parting, history: &History) -> String {
    let mut text = format!(
        "passed over: {}",
        history.lines().pop().unwrap_or_default().trim()
    );
    for difference in &parting.differences {
        let _ = write!(
            text,
            "\n  {:<20} Tollgate {:08x}   QEMU {:08x}",
            difference.name, difference.ours, difference.theirs
        );
    }
    for line in parting.before.lines() {
        let _ = write!(text, "\n    before: {line}");
    }
    text
}

/// The complete report.
pub fn report(parting: &Parting, history: &History) -> String {
    let mut text = String::from("\nlast instructions, with the number of each:\n");
    for line in history.lines() {
        let _ = writeln!(text, "{line}");
    }
    let _ = writeln!(text, "\nthey differ after the last one:");
    if let Some(remark) = &parting.remark {
        let _ = writeln!(text, "  {remark}");
    }
    for difference in &parting.differences {
        let _ = writeln!(
            text,
            "  {:<20} Tollgate {:08x}   QEMU {:08x}   (bits {:08x})",
            difference.name,
            difference.ours,
            difference.theirs,
            difference.ours ^ difference.theirs
        );
    }
    for (title, registers) in [
        ("before", &parting.before),
        ("Tollgate", &parting.ours),
        ("QEMU", &parting.theirs),
    ] {
        let _ = writeln!(text, "\n{title}:");
        for line in registers.lines() {
            let _ = writeln!(text, "  {line}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::differences;
    use crate::registers::Registers;

    #[test]
    fn a_report_names_what_differs_and_shows_both() {
        let (ours, theirs) = (
            Registers::default(),
            Registers {
                rip: 0x1234,
                ..Registers::default()
            },
        );
        let parting = Parting {
            before: Registers::default(),
            differences: differences(&ours, &theirs, 0),
            ours,
            theirs,
            remark: None,
        };
        let text = report(&parting, &History::default());
        assert!(
            text.contains("RIP                  Tollgate 00000000   QEMU 00001234"),
            "{text}"
        );
        assert!(text.contains("before:") && text.contains("QEMU:"));
    }
}
