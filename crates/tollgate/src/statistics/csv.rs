//! Writes statistics as CSV (RFC 4180 with line feeds): one type of row for each `record`.

use std::collections::BTreeSet;
use std::fmt::Display;

use tollgate_exits::prices::Priced;
use tollgate_exits::snapshot::Snapshot;

/// The header line.
const COLUMNS: &str =
    "record,kind,count,samples,cycles,p50,p95,p99,max,address,space,symbol,note\n";

/// The columns that follow `record` and `kind`. Those that a row does not have stay empty.
#[derive(Default)]
struct Row {
    count: String,
    samples: String,
    cycles: String,
    quantiles: [String; 4],
    address: String,
    space: String,
    symbol: String,
    note: String,
}

impl Row {
    fn write(self, text: &mut String, record: &str, kind: &str) {
        let [p50, p95, p99, max] = self.quantiles;
        let fields = [
            record.to_owned(),
            kind.to_owned(),
            self.count,
            self.samples,
            self.cycles,
            p50,
            p95,
            p99,
            max,
            self.address,
            self.space,
            quoted(&self.symbol),
            quoted(&self.note),
        ];
        text.push_str(&fields.join(","));
        text.push('\n');
    }
}

/// Quotes a field that may contain commas, quotes and line breaks.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field.to_owned()
    }
}

fn hexadecimal(number: u64) -> String {
    format!("{number:#010x}")
}

/// The whole snapshot as CSV.
pub fn csv(snapshot: &Snapshot) -> String {
    let mut text = COLUMNS.to_owned();
    times(&mut text, snapshot);
    for exit in &snapshot.exits {
        let timed = |cycles: u64| match exit.samples {
            0 => String::new(),
            _ => cycles.to_string(),
        };
        let row = Row {
            count: exit.count.to_string(),
            samples: exit.samples.to_string(),
            cycles: timed(exit.cycles),
            quantiles: [exit.p50, exit.p95, exit.p99, exit.max].map(timed),
            note: exit.assist.clone(),
            ..Row::default()
        };
        row.write(&mut text, "exit", &exit.kind);
    }
    origins(&mut text, snapshot);
    estimate(&mut text, snapshot);
    text
}

fn times(text: &mut String, snapshot: &Snapshot) {
    let mut time = |kind: &str, cycles: &dyn Display| {
        let row = Row {
            cycles: cycles.to_string(),
            ..Row::default()
        };
        row.write(text, "time", kind);
    };
    time("guest", &snapshot.guest_cycles);
    time("fast-paths", &snapshot.fast_path_call_cycles);
    time("exits", &snapshot.exit_cycles);
    time("devices", &snapshot.device_cycles);
    time("translating", &snapshot.translating_cycles);
    time("halted", &snapshot.halted_cycles);
    time("waiting", &snapshot.waiting_cycles);
    time("signals", &snapshot.signal_cycles);
    time("start-end", &snapshot.start_end_cycles);
    time("ledger", &snapshot.ledger_cycles);
    time("remainder", &snapshot.remainder_cycles);
    time("wall", &snapshot.wall_cycles);
    let khz = Row {
        count: snapshot.tsc_khz.to_string(),
        ..Row::default()
    };
    khz.write(text, "clock", "tsc-khz");
    for (name, value) in &snapshot.knobs {
        let row = Row {
            note: value.clone(),
            ..Row::default()
        };
        row.write(text, "knob", name);
    }
    let total = Row {
        count: snapshot.exit_count.to_string(),
        cycles: snapshot.exit_cycles.to_string(),
        ..Row::default()
    };
    total.write(text, "total", "exits");
    if let Some(instructions) = snapshot.instructions {
        let row = Row {
            count: instructions.to_string(),
            ..Row::default()
        };
        row.write(text, "total", "instructions");
    }
    for (kind, count) in &snapshot.space_loads {
        let row = Row {
            count: count.to_string(),
            ..Row::default()
        };
        row.write(text, "space-load", kind);
    }
    for (name, count) in &snapshot.shadow_tables {
        let row = Row {
            count: count.to_string(),
            ..Row::default()
        };
        row.write(text, "shadow-table", name);
    }
    for (name, count) in &snapshot.instruction_cache {
        let row = Row {
            count: count.to_string(),
            ..Row::default()
        };
        row.write(text, "instruction-cache", name);
    }
    for (kind, count) in &snapshot.share_requests {
        let row = Row {
            count: count.to_string(),
            ..Row::default()
        };
        row.write(text, "share-request", kind);
    }
    for step in &snapshot.instruction_steps {
        let row = Row {
            samples: step.samples.to_string(),
            quantiles: [
                step.p50.to_string(),
                String::new(),
                String::new(),
                String::new(),
            ],
            ..Row::default()
        };
        row.write(text, "instruction-step", &step.step);
    }
    let interrupts = &snapshot.interrupts;
    for (record, rows) in [
        ("interrupt-wait", &interrupts.waits),
        ("interrupt-masker", &interrupts.maskers),
        ("monitor-section", &interrupts.sections),
        ("masked-section", &interrupts.masked),
        ("section-within-guest", &interrupts.within),
    ] {
        for durations in rows {
            let [p50, p99, max] =
                [durations.p50, durations.p99, durations.max].map(|cycles| cycles.to_string());
            let row = Row {
                count: durations.count.to_string(),
                cycles: durations.cycles.to_string(),
                quantiles: [p50, String::new(), p99, max],
                note: durations.p999.to_string(),
                ..Row::default()
            };
            row.write(text, record, &durations.name);
        }
    }
    for (record, counts) in [
        ("section-stop", &interrupts.stops),
        ("section-resume", &interrupts.resumed),
    ] {
        for (name, count) in counts {
            let row = Row {
                count: count.to_string(),
                ..Row::default()
            };
            row.write(text, record, name);
        }
    }
    let row = Row {
        cycles: interrupts.break_even_cycles.to_string(),
        ..Row::default()
    };
    row.write(text, "break-even", "");
    let timed = snapshot.fast_path_cycles.keys();
    for kind in snapshot
        .fast_paths
        .keys()
        .chain(timed)
        .collect::<BTreeSet<_>>()
    {
        let cycles = snapshot.fast_path_cycles.get(kind);
        let row = Row {
            count: snapshot.fast_paths.get(kind).unwrap_or(&0).to_string(),
            cycles: cycles.map_or(String::new(), u64::to_string),
            ..Row::default()
        };
        row.write(text, "fast-path", kind);
    }
    if let Some(code) = snapshot.host_code {
        for (name, count) in [
            ("host instructions", code.instructions),
            ("host bytes", code.bytes),
        ] {
            let row = Row {
                count: count.to_string(),
                ..Row::default()
            };
            row.write(text, "total", name);
        }
    }
}

fn origins(text: &mut String, snapshot: &Snapshot) {
    for origin in &snapshot.origins {
        let row = Row {
            count: origin.exits.to_string(),
            cycles: origin.cycles.to_string(),
            address: hexadecimal(origin.address),
            space: match origin.kernel {
                true => "kernel".to_owned(),
                false => hexadecimal(origin.space),
            },
            symbol: origin.symbol.clone(),
            note: origin.device.clone(),
            ..Row::default()
        };
        row.write(text, "origin", &origin.kind);
    }
    if snapshot.elsewhere > 0 {
        let row = Row {
            count: snapshot.elsewhere.to_string(),
            cycles: snapshot.elsewhere_cycles.to_string(),
            ..Row::default()
        };
        row.write(text, "total", "not-attributed");
    }
    for origin in &snapshot.symbols {
        let row = Row {
            count: origin.exits.to_string(),
            cycles: origin.cycles.to_string(),
            symbol: origin.symbol.clone(),
            note: origin.device.clone(),
            ..Row::default()
        };
        row.write(text, "symbol", &origin.kind);
    }
    for origin in &snapshot.spaces {
        let row = Row {
            count: origin.exits.to_string(),
            cycles: origin.cycles.to_string(),
            space: hexadecimal(origin.space),
            note: origin.program.clone(),
            ..Row::default()
        };
        row.write(text, "space", &origin.kind);
    }
}

fn estimate(text: &mut String, snapshot: &Snapshot) {
    let Some(estimate) = &snapshot.estimate else {
        return;
    };
    for exit in &estimate.exits {
        let note = match exit.priced {
            Priced::Exit => &exit.hardware_exit,
            Priced::NoHardwareExit => "no hardware exit",
            Priced::NotInTable => "not in the price table",
        };
        let row = Row {
            count: exit.count.to_string(),
            cycles: exit.cycles.to_string(),
            note: note.to_owned(),
            ..Row::default()
        };
        row.write(text, "estimate", &exit.kind);
    }
    let total = Row {
        cycles: estimate.exit_cycles.to_string(),
        note: format!("estimate for {} at {} kHz", estimate.machine, estimate.khz),
        ..Row::default()
    };
    total.write(text, "estimate-total", "exits");
}

#[cfg(test)]
mod tests {
    use super::super::tests::snapshot;
    use super::*;

    #[test]
    fn rows_have_as_many_fields_as_the_header() {
        let mut snapshot = snapshot();
        // Fields have no commas here, so that every comma is a separator.
        for row in &mut snapshot.origins {
            row.symbol = "start+0x4".into();
        }
        for row in &mut snapshot.symbols {
            row.symbol = "start".into();
        }
        for row in &mut snapshot.exits {
            row.assist = "none".into();
        }
        let text = csv(&snapshot);
        for line in text.lines() {
            assert_eq!(line.matches(',').count(), 12, "{line}");
        }
        assert!(text.contains("\nexit,cli,1234,20,19000,15,20,30,40,,,,none\n"));
        assert!(text.contains("\nexit,cpuid,7,0,,,,,,,,,none\n"));
        assert!(text.contains("\ntime,remainder,,,1000,,,,,,,,\n"));
        assert!(text.contains("\nknob,vif,,,,,,,,,,,off\n"));
        assert!(text.contains("\norigin,cli,600,,9000,,,,,0xc1000004,0x00001000,start+0x4,\n"));
    }

    #[test]
    fn fields_with_commas_and_quotes_are_quoted() {
        assert!(csv(&snapshot()).contains("\"start, \"\"really\"\"\""));
    }

    #[test]
    fn an_estimate_is_called_one() {
        let text = csv(&snapshot());
        assert!(text.contains("\nestimate,cli,1234,,0,,,,,,,,no hardware exit\n"));
        assert!(text.contains("\nestimate,cpuid,7,,11550,"), "{text}");
        assert!(text.contains("estimate for Old One"));
    }
}
