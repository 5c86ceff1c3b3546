//! Shows statistics for `--stats` and `tollgate stats`: the ledger with the guest's symbols and
//! another machine's prices, as a table, JSON or CSV.

mod arguments;
mod csv;
mod interrupts;
mod picture;
mod prices;
mod symbols;
mod table;
mod text;
mod view;

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tollgate_exits::prices::PriceTable;
use tollgate_exits::reading::Reading;
use tollgate_exits::snapshot::Snapshot;
use tollgate_machine::marks::Span;
use tollgate_machine::vm::Vm;

use crate::failure::{Failure, say};
use crate::files;
use crate::lost_output::is_reader_gone;

pub use arguments::{StatisticsArguments, top};
pub use picture::Picture;
pub use prices::read_price_table;
pub use symbols::{Names, SymbolFiles, SymbolSource};
pub use view::{Format, Sort, View};

/// A snapshot in one of the formats, ending with a line break.
pub fn written(snapshot: &Snapshot, format: Format, view: View) -> String {
    match format {
        Format::Table => table::table(snapshot, view),
        Format::Json => {
            let mut text = serde_json::to_string_pretty(snapshot)
                .expect("a snapshot consists of numbers, texts and lists");
            text.push('\n');
            text
        }
        Format::Csv => csv::csv(snapshot),
    }
}

/// The settings of a run's command line for statistics, with the contents of the files that they
/// name.
pub struct Reporter {
    symbols: SymbolFiles,
    prices: Option<PriceTable>,
}

impl Reporter {
    /// A reporter without names and prices.
    pub const PLAIN: Self = Self {
        symbols: SymbolFiles::NONE,
        prices: None,
    };

    /// Reads the files that `arguments` name.
    ///
    /// # Errors
    ///
    /// One line says which file cannot be used, and why.
    pub fn open(arguments: &StatisticsArguments) -> Result<Self, Failure> {
        let prices = arguments.price_table.as_deref().map(read_price_table);
        Ok(Self {
            symbols: SymbolFiles::read(&arguments.symbols)?,
            prices: prices.transpose()?,
        })
    }

    /// A reading with names and prices added.
    pub fn snapshot(&self, reading: &Reading) -> Snapshot {
        let names = self.names(reading.system_call_entry);
        let mut snapshot = Snapshot::of(reading, |place| names.at(place));
        snapshot.estimate = self
            .prices
            .as_ref()
            .map(|prices| prices.estimate(&snapshot));
        snapshot
    }

    /// Names for the addresses of a guest with this SYSENTER_EIP or LSTAR.
    pub fn names(&self, system_call_entry: u64) -> Names<'_> {
        self.symbols.names(system_call_entry)
    }

    /// [`Self::names`] without the names of a kernel whose address is not known yet.
    pub fn names_once_known(&self, system_call_entry: u64) -> Names<'_> {
        self.symbols.names_once_known(system_call_entry)
    }
}

/// The report of statistics at the end of a run.
pub struct FinalReport {
    reporter: Arc<Reporter>,
    format: Format,
    view: View,
    span: Span,
    /// The file and its name; `None` for standard error.
    file: Option<(File, PathBuf)>,
    picture: Option<Picture>,
}

impl FinalReport {
    /// The report that `arguments` ask for; `None` if they ask for no statistics. A file is created
    /// now, so that a wrong path is reported before the guest runs.
    ///
    /// # Errors
    ///
    /// One line says that the file cannot be written.
    pub fn open(
        arguments: &StatisticsArguments,
        reporter: &Arc<Reporter>,
    ) -> Result<Option<Self>, Failure> {
        if !arguments.wants_report() {
            return Ok(None);
        }
        let create = |path: &PathBuf| {
            let file = files::create(path, "--stats-file")?;
            Ok((file, path.clone()))
        };
        let picture = arguments.stats_plot.as_ref();
        let picture = picture.map(|path| Picture::create(path, "--stats-plot"));
        Ok(Some(Self {
            reporter: Arc::clone(reporter),
            format: arguments.stats_format.unwrap_or_default(),
            view: View {
                sort: arguments.stats_sort,
                top: arguments.stats_top,
            },
            span: arguments.span(),
            file: arguments.stats_file.as_ref().map(create).transpose()?,
            picture: picture.transpose()?,
        }))
    }

    /// Writes the report. If a file cannot be written, this reports it and returns false.
    pub fn write(&self, vm: &Vm, start_up: Duration) -> bool {
        let reading = vm.reading_of(self.span).unwrap_or_else(|error| {
            say(&format!(
                "--stats-since, --stats-until: {error}; the statistics are those of the whole run"
            ));
            vm.reading()
        });
        let snapshot = self.reporter.snapshot(&reading);
        let mut text = written(&snapshot, self.format, self.view);
        if self.format == Format::Table {
            text.push_str(&format!("confined: {}\n", crate::confinement::line()));
            text.push_str(&crate::refusals::for_statistics(&vm.refused()));
            let milliseconds = start_up.as_secs_f64() * 1000.0;
            text.push_str(&format!("start-up: {milliseconds:.1} ms\n"));
        }
        let drawn = (self.picture.as_ref()).map_or(Ok(()), |picture| picture.write(&snapshot));
        if let Err(failure) = &drawn {
            say(&failure.message);
        }
        match &self.file {
            None => {
                let mut errors = std::io::stderr();
                if let Err(error) = errors.write_all(fitted(text, &errors).as_bytes())
                    && !is_reader_gone(&error, &errors)
                {
                    // Standard error may have room for one line again.
                    say("--stats: cannot write standard error; the statistics are lost");
                    return false;
                }
            }
            Some((file, path)) => {
                let mut file: &File = file;
                if let Err(error) = file.write_all(text.as_bytes()) {
                    say(&cannot_write(path, &error));
                    return false;
                }
            }
        }
        drawn.is_ok()
    }
}

/// Shortens lines to the width of the terminal that the text is written to, if the output is one.
pub fn fitted(text: String, output: &impl AsFd) -> String {
    let Some((width, _)) = crate::host::window_size(output.as_fd()) else {
        return text;
    };
    let fit = |line: &str| line.chars().take(width).chain(['\n']).collect::<String>();
    text.lines().map(fit).collect()
}

fn cannot_write(path: &Path, error: &std::io::Error) -> String {
    let path = path.display();
    let why = tollgate_host_facts::file_words::writing(error);
    format!("--stats-file: cannot write '{path}': {why}; the statistics are lost")
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use tollgate_exits::ExitKind;
    use tollgate_exits::blame::{Blamed, BlamedSpace, Place};
    use tollgate_exits::latency::Durations;
    use tollgate_exits::ledger::{Cost, TimeShares};
    use tollgate_exits::reading::{HostCode, InterruptReading, KindReading};
    use tollgate_exits::snapshot::SymbolAt;
    use tollgate_exits::steps::{Step, StepCost};

    /// The reading of an invented run: CLI from two places, CPUID never timed.
    pub fn reading() -> Reading {
        let blamed = |linear, exits, cycles| Blamed {
            kind: ExitKind::Cli,
            place: Place {
                linear,
                space: 0x1000,
                is_kernel: false,
            },
            device: None,
            exits,
            cycles,
        };
        Reading {
            tsc_khz: 1000,
            shares: TimeShares {
                wall: 100_000,
                guest: 57_000,
                fast_path_calls: vec![(ExitKind::Msr, 2_500), (ExitKind::Invlpg, 500)],
                translating: 10_000,
                devices: 5_000,
                halted: 5_000,
                waiting: 0,
                exits: vec![(ExitKind::Cli, 19_000)],
                ..TimeShares::default()
            },
            kinds: vec![
                KindReading {
                    kind: ExitKind::Cli,
                    count: 1_234,
                    cost: Some(Cost {
                        samples: 20,
                        total: 19_000,
                        p50: 15,
                        p95: 20,
                        p99: 30,
                        max: 40,
                    }),
                },
                KindReading {
                    kind: ExitKind::Cpuid,
                    count: 7,
                    cost: None,
                },
            ],
            blame: vec![
                blamed(0xc100_0004, 600, 9_000),
                blamed(0xc100_0008, 600, 6_000),
            ],
            devices: Vec::new(),
            spaces: vec![BlamedSpace {
                kind: ExitKind::Cli,
                space: 0x1000,
                exits: 1_200,
                cycles: 15_000,
            }],
            programs: Vec::new(),
            given_up: Vec::new(),
            system_call_entry: 0,
            settings: vec![("vif", "off"), ("vir", "on")],
            settings_changed: false,
            instructions: Some(50_000),
            host_code: Some(HostCode {
                instructions: 200_000,
                bytes: 1_000_000,
            }),
            fast_paths: vec![("cpuid", 5_000), ("msr", 100), ("segment-load", 0)],
            space_loads: vec![("kept", 700), ("inline", 600), ("stolen", 0)],
            shadow_tables: vec![("page-inline", 12), ("page-full", 0)],
            instruction_cache: vec![("found-anew", 90), ("hits", 80), ("walked", 0)],
            instruction_steps: vec![StepCost {
                step: Step::Walk,
                samples: 9,
                p50: 150,
            }],
            share_requests: vec![("lookup", 40), ("read", 1), ("open", 0)],
            interrupts: InterruptReading {
                waits: vec![Durations {
                    name: "to-handler",
                    count: 9,
                    cycles: 5_000,
                    p50: 100,
                    p99: 2_000,
                    p999: 3_000,
                    max: 3_100,
                }],
                ..InterruptReading::default()
            },
        }
    }

    /// A snapshot of [`reading`] with names and prices.
    pub fn snapshot() -> Snapshot {
        let mut snapshot = Snapshot::of(&reading(), |place| {
            Some(SymbolAt {
                name: "start, \"really\"",
                distance: place.linear - 0xc100_0000,
            })
        });
        let prices = PriceTable::parse("machine,Old One\nkhz,1000\ncli,none\ncpuid,1650\n");
        snapshot.estimate = Some(prices.unwrap().estimate(&snapshot));
        snapshot
    }

    #[test]
    fn json_comes_back_as_it_was() {
        let text = written(&snapshot(), Format::Json, View::default());
        let back: Snapshot = serde_json::from_str(&text).unwrap();
        assert_eq!(back, snapshot());
    }

    #[test]
    fn two_exports_agree_to_the_count() {
        let json = written(&snapshot(), Format::Json, View::default());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let csv = written(&snapshot(), Format::Csv, View::default());
        let rows = csv.lines().filter(|line| line.starts_with("exit,"));
        let from_csv: Vec<(&str, u64)> = rows
            .map(|line| {
                let fields: Vec<&str> = line.split(',').collect();
                (fields[1], fields[2].parse().unwrap())
            })
            .collect();
        let from_json: Vec<(&str, u64)> = json["exits"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| {
                (
                    row["kind"].as_str().unwrap(),
                    row["count"].as_u64().unwrap(),
                )
            })
            .collect();
        assert_eq!(from_csv, from_json);
        assert_eq!(from_csv, [("cli", 1_234), ("cpuid", 7)]);
    }

    #[test]
    fn addresses_in_json_are_texts() {
        let json = written(&snapshot(), Format::Json, View::default());
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["version"], 2);
        assert_eq!(json["origins"][0]["address"], "0xc1000004");
        assert_eq!(json["spaces"][0]["space"], "0x1000");
    }
}
