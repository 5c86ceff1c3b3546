//! The table of exits for one disk request, one packet and one system call, by devices with registers and paravirtual
//! ones.

use super::{GuestMode, Report, Row, kinds};
use std::fmt::Write;

/// What a line of the table is about, and the kinds that are compared for it.
const SUBJECTS: [(&str, &[(&str, &str)]); 3] = [
    (
        "disk request of 4 KiB",
        &[
            ("IDE", "disk-request-ide"),
            ("IDE, DMA", "disk-request-dma"),
            ("virtio", "disk-request-virtio"),
        ],
    ),
    (
        "packet sent",
        &[
            ("registers", "packet-register"),
            ("virtio", "packet-virtio"),
        ],
    ),
    (
        "system call",
        &[
            ("SYSCALL", "syscall-sysret"),
            ("SYSENTER", "sysenter-sysexit"),
            ("INT n", "int-iret"),
        ],
    ),
];
/// The order of preference of the mode that is shown for a kind: system calls come from programs.
const PREFERRED: [GuestMode; 4] = [
    GuestMode::LongRing3,
    GuestMode::Ring3,
    GuestMode::Long,
    GuestMode::Paged,
];

/// The table; empty if the report has none of these kinds.
pub fn table(report: &Report) -> String {
    let mut text = String::new();
    for (subject, ways) in SUBJECTS {
        if !ways.iter().any(|(_, kind)| row(report, kind).is_some()) {
            continue;
        }
        let mut subject = subject;
        for (way, kind) in ways {
            let Some(row) = row(report, kind) else {
                let mut missing = kinds::NOT_IN_THIS_VERSION.iter();
                if let Some((_, what)) = missing.find(|(name, _)| name == kind) {
                    let _ = writeln!(text, "{subject:<22} {way:<10} not in this version: {what}");
                    subject = "";
                }
                continue;
            };
            let _ = writeln!(
                text,
                "{subject:<22} {way:<10} {kind:<20} {:<10} {:>10.1} {:>10}  {}",
                row.mode.name(),
                row.exits_each,
                row.single.p50,
                by_kind(row)
            );
            subject = "";
        }
    }
    if text.is_empty() {
        return text;
    }
    format!(
        "exits for one request, packet and system call, pinned\n{:<22} {:<10} {:<20} {:<10} {:>10} {:>10}  of these kinds\n{text}",
        "one", "by", "kind", "mode", "exits each", "p50 cycles"
    )
}

fn row<'a>(report: &'a Report, kind: &str) -> Option<&'a Row> {
    PREFERRED.iter().find_map(|&mode| {
        let mut rows = report.rows.iter();
        rows.find(|row| row.kind == kind && row.mode == mode && row.pinned)
    })
}

/// The exits of one repetition by kind, as the ledger counted them.
fn by_kind(row: &Row) -> String {
    let batches = row.batch.as_ref();
    let repetitions = row.single.count + batches.map_or(0, |batch| batch.batches * batch.repeat);
    let counts = row.counts.iter().filter(|count| count.counted > 0);
    let counts = counts.map(|count| {
        let each = count.counted as f64 / repetitions.max(1) as f64;
        format!("{} {each:.1}", count.kind)
    });
    counts.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::comparison::example_row as any_row;
    use tollgate_host_facts::processors::HostDescription;

    #[test]
    fn registers_and_paravirtual_devices_stand_next_to_each_other() {
        let kinds = ["disk-request-ide", "disk-request-virtio", "packet-virtio"];
        let rows = kinds.map(|kind| Row {
            kind: kind.into(),
            ..any_row(&[100, 200, 300], 10.0)
        });
        let mut report = Report {
            host: HostDescription::here(2_000_000),
            pinned_to: 0,
            tsc_step: 1,
            is_complete: true,
            rows: rows.to_vec(),
        };
        let text = table(&report);
        assert!(
            text.contains("disk request of 4 KiB  IDE        disk-request-ide"),
            "{text}"
        );
        assert!(
            text.contains("packet sent            registers  not in this version"),
            "{text}"
        );
        assert!(text.contains("virtio     disk-request-virtio"), "{text}");
        assert!(text.contains("virtio     packet-virtio"), "{text}");
        assert!(!text.contains("system call "), "{text}");
        report.rows.clear();
        assert_eq!(table(&report), "");
    }
}
