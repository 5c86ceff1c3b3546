//! The ledger as plain data, for tables, JSON, CSV and the control socket.
//!
//! docs/reference/stats.md describes every field for readers of the JSON.

mod renamed;

use crate::ExitKind;
use crate::blame::{Blamed, DeviceAddress, Place};
use crate::hexadecimal;
use crate::latency::Durations;
use crate::ledger::Cost;
use crate::prices::Estimate;
use crate::reading::{HostCode, InterruptReading, KindReading, Reading};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

/// The version of a snapshot's format. It increases when the format of a field changes, but not for
/// new fields. In version 1, `address` and `space` were numbers.
pub const VERSION: u32 = 2;

/// Number of origins in a snapshot, of each sort: this number with the highest cost, and this
/// number with the most exits.
pub const ORIGIN_LINES: usize = 200;

/// The symbol of a linear address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SymbolAt<'a> {
    /// The name of the symbol at or before the address.
    pub name: &'a str,
    /// The distance in bytes from the symbol to the address.
    pub distance: u64,
}

/// The count and costs of one kind of exit.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ExitRow {
    /// The kind's name.
    pub kind: String,
    /// The exact number of exits.
    pub count: u64,
    /// The number of exits that were timed.
    pub samples: u64,
    /// Cycles of all these exits (estimated from the samples).
    pub cycles: u64,
    /// Median cycles.
    pub p50: u64,
    /// 95th percentile.
    pub p95: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Longest.
    pub max: u64,
    /// Number of exits that the origins of this kind stand for, including discarded ones
    /// (estimated): the total of which their `exits` are shares.
    pub attributed: u64,
    /// The hardware exits that correspond to this kind; empty if none do.
    pub hardware_exit: String,
    /// What a processor with hardware virtualization offers to remove these exits.
    pub assist: String,
}

/// One origin: a guest instruction in an address space.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct OriginRow {
    /// The kind's name.
    pub kind: String,
    /// Linear address of the guest instruction.
    #[serde(with = "hexadecimal")]
    pub address: u64,
    /// The symbol at or before the address, and the distance: `name+0x12`; empty if not known.
    pub symbol: String,
    /// The value of CR3; 0 for the kernel's code.
    #[serde(with = "hexadecimal")]
    pub space: u64,
    /// The program that ran in the space; if there were several, with commas and the newest first.
    /// Empty if not known, and for the kernel's code.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// Whether it is the kernel's code, which all spaces share.
    #[serde(default, skip_serializing_if = "is_false")]
    pub kernel: bool,
    /// The device that was accessed; empty if none was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// Number of exits (estimated from the samples).
    pub exits: u64,
    /// Cycles of these exits (estimated from the samples).
    pub cycles: u64,
}

/// Exits of one kind from one guest symbol, to one device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SymbolRow {
    /// The kind's name.
    pub kind: String,
    /// The symbol's name; empty for all places without one.
    pub symbol: String,
    /// The device that was accessed; empty if none was.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// Number of exits (estimated from the samples).
    pub exits: u64,
    /// Cycles of these exits (estimated from the samples).
    pub cycles: u64,
}

/// Exits of one kind from one address space.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct SpaceRow {
    /// The kind's name.
    pub kind: String,
    /// The value of CR3.
    #[serde(with = "hexadecimal")]
    pub space: u64,
    /// The program that ran in the space; if there were several, with commas and the newest first.
    /// Empty if not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub program: String,
    /// Number of exits (estimated from the samples).
    pub exits: u64,
    /// Cycles of these exits (estimated from the samples).
    pub cycles: u64,
}

/// The cost of one step of looking an instruction up again.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct StepRow {
    /// The step's name.
    pub step: String,
    /// How often it was timed.
    pub samples: u64,
    /// Median cycles.
    pub p50: u64,
}

/// Statistics of one set of durations, in cycles.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct DurationRow {
    /// What was timed.
    pub name: String,
    /// The number of durations.
    pub count: u64,
    /// The sum of the durations.
    pub cycles: u64,
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// 99.9th percentile.
    pub p999: u64,
    /// Longest.
    pub max: u64,
}

impl DurationRow {
    fn of(durations: &Durations) -> Self {
        let &Durations {
            name,
            count,
            cycles,
            p50,
            p99,
            p999,
            max,
        } = durations;
        Self {
            name: name.to_owned(),
            count,
            cycles,
            p50,
            p99,
            p999,
            max,
        }
    }
}

/// How long interrupts waited, and for what.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Interrupts {
    /// The waits in total (`to-handler`), and for `host`, `guest` and `monitor`.
    pub waits: Vec<DurationRow>,
    /// The waits for the monitor: for a section, or the work at a kind of exit; longest sum first.
    pub maskers: Vec<DurationRow>,
    /// The monitor's long sections, whether or not an interrupt waited.
    pub sections: Vec<DurationRow>,
    /// How long sections did not check for requests: for each run, the longest such time. Runs
    /// while the guest held interrupts off are not included.
    pub masked: Vec<DurationRow>,
    /// How long sections did not check for requests in runs while the guest held interrupts off.
    #[serde(default)]
    pub within: Vec<DurationRow>,
    /// How often sections stopped for an interrupt.
    pub stops: BTreeMap<String, u64>,
    /// How often sections resumed where they had stopped; `dropped`: how often the guest did not
    /// return to such work.
    #[serde(default)]
    pub resumed: BTreeMap<String, u64>,
    /// The number of cycles that a section must have run before it stops.
    #[serde(default)]
    pub break_even_cycles: u64,
}

impl Interrupts {
    fn of(reading: &InterruptReading) -> Self {
        let rows = |durations: &[Durations]| durations.iter().map(DurationRow::of).collect();
        let counts = |counts: &[(&'static str, u64)]| {
            let counts = counts.iter().filter(|row| row.1 != 0);
            counts.map(|row| (row.0.to_owned(), row.1)).collect()
        };
        Self {
            waits: rows(&reading.waits),
            maskers: rows(&reading.maskers),
            sections: rows(&reading.sections),
            masked: rows(&reading.masked),
            within: rows(&reading.within),
            stops: counts(&reading.stops),
            resumed: counts(&reading.resumed),
            break_even_cycles: reading.break_even,
        }
    }
}

/// How the time of a run was spent. Cycles are those of the time-stamp counter.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// The format of the snapshot: [`VERSION`].
    pub version: u32,
    /// Frequency of the time-stamp counter in kilohertz.
    pub tsc_khz: u64,
    /// The cycles from start to end (or until now).
    pub wall_cycles: u64,
    /// The cycles in guest code, without fast-path calls (estimated).
    pub guest_cycles: u64,
    /// The cycles in functions of the monitor that guest code called without an exit (estimated).
    #[serde(default)]
    pub fast_path_call_cycles: u64,
    /// The cycles of translating (measured).
    pub translating_cycles: u64,
    /// The cycles in devices (estimated).
    pub device_cycles: u64,
    /// The cycles of sleep in HLT (measured).
    pub halted_cycles: u64,
    /// The cycles in which the vCPU was ready and the host ran something else (measured).
    pub waiting_cycles: u64,
    /// The cycles between exits in which a signal interrupted guest code (estimated).
    #[serde(default)]
    pub signal_cycles: u64,
    /// The cycles from the start of each run to its first guest code, and at its end (measured).
    #[serde(default)]
    pub start_end_cycles: u64,
    /// The cycles of the ledger's own work (measured).
    #[serde(default, alias = "books_cycles")]
    pub ledger_cycles: u64,
    /// The cycles in exits, without devices and translation (estimated).
    pub exit_cycles: u64,
    /// Wall time minus all of the above.
    pub remainder_cycles: i64,
    /// Number of all exits (exact).
    pub exit_count: u64,
    /// The kinds that occurred, those with the highest cost first.
    pub exits: Vec<ExitRow>,
    /// The origins of the exits, those with the highest cost first; see [`ORIGIN_LINES`].
    pub origins: Vec<OriginRow>,
    /// The exits by guest symbol; empty without symbols.
    pub symbols: Vec<SymbolRow>,
    /// The exits by address space.
    pub spaces: Vec<SpaceRow>,
    /// Exits (estimated) whose rows were discarded, because there were too many places.
    pub elsewhere: u64,
    /// Cycles of these exits (estimated).
    #[serde(default)]
    pub elsewhere_cycles: u64,
    /// The guest's SYSENTER_EIP, or its LSTAR in IA-32e mode, which shows where its kernel lies.
    #[serde(default, with = "hexadecimal", skip_serializing_if = "is_not_set")]
    pub system_call_entry: u64,
    /// The settings of the machine's knobs: names and values.
    #[serde(default)]
    pub knobs: BTreeMap<String, String>,
    /// Whether a knob had another setting earlier in the run.
    #[serde(default)]
    pub knobs_changed: bool,
    /// Number of guest instructions that were started, if they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub instructions: Option<u64>,
    /// The host code for these instructions, if they were counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_code: Option<HostCode>,
    /// Instructions that fast paths executed, by the kind of exit that they would have been
    /// otherwise.
    #[serde(default)]
    pub fast_paths: BTreeMap<String, u64>,
    /// The cycles in `fast_path_call_cycles`, by the same kinds (estimated).
    #[serde(default)]
    pub fast_path_cycles: BTreeMap<String, u64>,
    /// The part of the exits' cycles in which tables of whole spaces were emptied (measured), by
    /// the kind of exit.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub purging_cycles: BTreeMap<String, u64>,
    /// Loads of CR3: `kept` (the space's translations were kept), `same` (it was the loaded space);
    /// of these two, `inline` (without an exit). `flushed` (the guest wants them dropped), `missed`
    /// (there were none); of these two, `stolen` (the tables were taken from another space, which
    /// had some until then).
    #[serde(default)]
    pub space_loads: BTreeMap<String, u64>,
    /// Operations on tables that are derived from the guest's page tables. Invalidations of a page
    /// of the loaded space (`page-inline` in a fast path, `page-selective`, `page-full` with
    /// everything in its space), of an `other-space`, the `loaded-space`, `all-spaces`; physical
    /// pages whose entries were found (`physical-by-map`) or for which everything was purged
    /// (`physical-full`); tables `purged` completely, of these `purged-twice`, and `spared`; runs
    /// of pages in shadow windows (`window-mapped`, `window-unmapped`), windows `window-emptied`
    /// and set aside (`window-aside`).
    #[serde(default)]
    pub shadow_tables: BTreeMap<String, u64>,
    /// How exits found the instructions that they emulated: `found-anew` is the total; of these,
    /// `hits` of the dictionary, `missed-new` and `missed-void`, or `walked` without a dictionary;
    /// `disagreed` with what had been translated; entries `dropped-code`, `dropped-tables`,
    /// `dropped-full`, `dropped-all`. Empty if exits know their instructions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub instruction_cache: BTreeMap<String, u64>,
    /// The cost of looking these instructions up, by step.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub instruction_steps: Vec<StepRow>,
    /// Number of requests to shared directories, by kind.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub share_requests: BTreeMap<String, u64>,
    /// How long interrupts waited, and for what.
    #[serde(default)]
    pub interrupts: Interrupts,
    /// What the run would take on another machine, if that was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimate: Option<Estimate>,
}

impl Snapshot {
    /// The ledger's content as plain data. `symbol` names the places of instructions.
    pub fn of<'a>(reading: &Reading, symbol: impl Fn(Place) -> Option<SymbolAt<'a>>) -> Self {
        let shares = &reading.shares;
        let mut exits: Vec<ExitRow> = reading
            .kinds
            .iter()
            .map(|kind| row(kind, reading))
            .collect();
        exits.sort_by_key(|row| Reverse((row.cycles, row.count)));
        Self {
            version: VERSION,
            tsc_khz: reading.tsc_khz,
            wall_cycles: shares.wall,
            guest_cycles: shares.guest,
            fast_path_call_cycles: shares.all_fast_path_calls(),
            translating_cycles: shares.translating,
            device_cycles: shares.devices,
            halted_cycles: shares.halted,
            waiting_cycles: shares.waiting,
            signal_cycles: shares.signals,
            start_end_cycles: shares.start_end,
            ledger_cycles: shares.own_cost,
            exit_cycles: shares.exits.iter().map(|exit| exit.1).sum(),
            remainder_cycles: shares.remainder(),
            exit_count: reading.kinds.iter().map(|kind| kind.count).sum(),
            exits,
            origins: places(reading, &symbol),
            symbols: by_symbol(reading, &symbol),
            spaces: gathered(reading.spaces.iter().map(|row| {
                let sum = Sum {
                    exits: row.exits,
                    cycles: row.cycles,
                };
                ((row.kind, row.space), sum)
            }))
            .into_iter()
            .map(|((kind, space), sum)| SpaceRow {
                kind: kind.name().to_owned(),
                space,
                program: program_in(reading, space),
                exits: sum.exits,
                cycles: sum.cycles,
            })
            .collect(),
            elsewhere: reading.given_up.iter().map(|row| row.exits).sum(),
            elsewhere_cycles: reading.given_up.iter().map(|row| row.cycles).sum(),
            system_call_entry: reading.system_call_entry,
            knobs: reading
                .settings
                .iter()
                .map(|&(name, value)| (name.to_owned(), value.to_owned()))
                .collect(),
            knobs_changed: reading.settings_changed,
            instructions: reading.instructions,
            host_code: reading.host_code,
            fast_paths: (reading.fast_paths.iter())
                .filter(|fast_path| fast_path.1 != 0)
                .map(|&(name, count)| (name.to_owned(), count))
                .collect(),
            fast_path_cycles: (shares.fast_path_calls.iter())
                .map(|&(kind, cycles)| (kind.name().to_owned(), cycles))
                .collect(),
            purging_cycles: (shares.purging.iter())
                .map(|&(kind, cycles)| (kind.name().to_owned(), cycles))
                .collect(),
            space_loads: (reading.space_loads.iter())
                .filter(|loads| loads.1 != 0)
                .map(|&(name, count)| (name.to_owned(), count))
                .collect(),
            shadow_tables: (reading.shadow_tables.iter())
                .filter(|counted| counted.1 != 0)
                .map(|&(name, count)| (name.to_owned(), count))
                .collect(),
            instruction_cache: (reading.instruction_cache.iter())
                .filter(|counted| counted.1 != 0)
                .map(|&(name, count)| (name.to_owned(), count))
                .collect(),
            instruction_steps: (reading.instruction_steps.iter())
                .map(|cost| StepRow {
                    step: cost.step.name().to_owned(),
                    samples: cost.samples,
                    p50: cost.p50,
                })
                .collect(),
            share_requests: (reading.share_requests.iter())
                .filter(|requests| requests.1 != 0)
                .map(|&(name, count)| (name.to_owned(), count))
                .collect(),
            interrupts: Interrupts::of(&reading.interrupts),
            estimate: None,
        }
    }
}

/// Takes a reference because serde passes one.
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Takes a reference because serde passes one.
fn is_not_set(address: &u64) -> bool {
    *address == 0
}

fn row(kind: &KindReading, reading: &Reading) -> ExitRow {
    let of = |value: fn(Cost) -> u64| kind.cost.map_or(0, value);
    let kept = reading.blame.iter().map(|row| (row.kind, row.exits));
    let given_up = reading.given_up.iter().map(|row| (row.kind, row.exits));
    let attributed = kept
        .chain(given_up)
        .filter(|row| row.0 == kind.kind)
        .fold(0, |sum: u64, row| sum.saturating_add(row.1));
    ExitRow {
        kind: kind.kind.name().to_owned(),
        count: kind.count,
        samples: of(|cost| cost.samples),
        cycles: of(|cost| cost.total),
        p50: of(|cost| cost.p50),
        p95: of(|cost| cost.p95),
        p99: of(|cost| cost.p99),
        max: of(|cost| cost.max),
        attributed,
        hardware_exit: kind.kind.hardware_exit().to_owned(),
        assist: kind.kind.assist().to_owned(),
    }
}

/// The name of the program in a space.
fn program_in(reading: &Reading, space: u64) -> String {
    let mut programs = reading.programs.iter();
    let program = programs.find(|row| row.0 == space);
    program.map_or(String::new(), |row| row.1.clone())
}

/// The name of a device.
fn device_at(reading: &Reading, address: Option<DeviceAddress>) -> &str {
    let Some(address) = address else {
        return "";
    };
    let index = reading.devices.binary_search_by_key(&address, |row| row.0);
    let row = index.ok().and_then(|index| reading.devices.get(index));
    row.map_or("(no device)", |(_, name)| name)
}

/// The origins by instruction, space and device; the registers of one device are not distinguished.
fn places<'a>(
    reading: &Reading,
    symbol: &impl Fn(Place) -> Option<SymbolAt<'a>>,
) -> Vec<OriginRow> {
    let rows = gathered(reading.blame.iter().map(|blamed| {
        let group = (blamed.place, device_at(reading, blamed.device));
        ((blamed.kind, group), Sum::of(blamed))
    }));
    let row = |((kind, (place, device)), sum): ((ExitKind, (Place, &str)), Sum)| OriginRow {
        kind: kind.name().to_owned(),
        address: place.linear,
        symbol: symbol(place)
            .map(|at| format!("{}+{:#x}", at.name, at.distance))
            .unwrap_or_default(),
        space: place.space,
        program: match place.is_kernel {
            true => String::new(),
            false => program_in(reading, place.space),
        },
        kernel: place.is_kernel,
        device: device.to_owned(),
        exits: sum.exits,
        cycles: sum.cycles,
    };
    rows.into_iter().map(row).collect()
}

fn by_symbol<'a>(
    reading: &Reading,
    symbol: &impl Fn(Place) -> Option<SymbolAt<'a>>,
) -> Vec<SymbolRow> {
    let rows = gathered(reading.blame.iter().map(|blamed| {
        let name = symbol(blamed.place).map_or("", |at| at.name);
        let group = (name, device_at(reading, blamed.device));
        ((blamed.kind, group), Sum::of(blamed))
    }));
    if rows.iter().all(|((_, (name, _)), _)| name.is_empty()) {
        return Vec::new();
    }
    rows.into_iter()
        .map(|((kind, (name, device)), sum)| SymbolRow {
            kind: kind.name().to_owned(),
            symbol: name.to_owned(),
            device: device.to_owned(),
            exits: sum.exits,
            cycles: sum.cycles,
        })
        .collect()
}

/// Exits and cycles of several places.
#[derive(Clone, Copy, Default)]
struct Sum {
    exits: u64,
    cycles: u64,
}

impl Sum {
    fn of(blamed: &Blamed) -> Self {
        Self {
            exits: blamed.exits,
            cycles: blamed.cycles,
        }
    }
}

/// Sums by kind and group, those with the highest cost first. If there are too many, those that are
/// neither costly nor frequent are left out.
fn gathered<T: Copy + Eq + Hash + Ord>(
    rows: impl Iterator<Item = ((ExitKind, T), Sum)>,
) -> Vec<((ExitKind, T), Sum)> {
    let mut sums: HashMap<(ExitKind, T), Sum> = HashMap::new();
    for (key, row) in rows {
        let sum = sums.entry(key).or_default();
        sum.exits = sum.exits.saturating_add(row.exits);
        sum.cycles = sum.cycles.saturating_add(row.cycles);
    }
    let mut rows: Vec<_> = sums.into_iter().collect();
    let order = |(kind, group): (ExitKind, T)| (kind as u8, group);
    rows.sort_by_key(|&(key, sum)| (Reverse((sum.cycles, sum.exits)), order(key)));
    if rows.len() > ORIGIN_LINES {
        let mut others = rows.split_off(ORIGIN_LINES);
        others.sort_by_key(|&(key, sum)| (Reverse((sum.exits, sum.cycles)), order(key)));
        others.truncate(ORIGIN_LINES);
        others.sort_by_key(|&(key, sum)| (Reverse((sum.cycles, sum.exits)), order(key)));
        rows.append(&mut others);
    }
    rows
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::blame::{BlamedSpace, GivenUp};
    use crate::ledger::TimeShares;

    fn reading() -> Reading {
        let blamed = |linear, space, exits| Blamed {
            kind: ExitKind::Cli,
            place: Place {
                linear,
                space,
                is_kernel: false,
            },
            device: None,
            exits,
            cycles: 10 * exits,
        };
        let in_space = |space, exits| BlamedSpace {
            kind: ExitKind::Cli,
            space,
            exits,
            cycles: 10 * exits,
        };
        Reading {
            tsc_khz: 1000,
            shares: TimeShares {
                wall: 100_000,
                guest: 58_000,
                fast_path_calls: vec![(ExitKind::Msr, 1_500), (ExitKind::Cr3Load, 500)],
                translating: 10_000,
                devices: 5_000,
                halted: 5_000,
                waiting: 0,
                signals: 7,
                start_end: 8,
                own_cost: 9,
                exits: vec![(ExitKind::Cli, 19_000)],
                purging: Vec::new(),
            },
            kinds: vec![KindReading {
                kind: ExitKind::Cli,
                count: 1_000,
                cost: Some(Cost {
                    samples: 20,
                    total: 19_000,
                    p50: 15,
                    p95: 20,
                    p99: 30,
                    max: 40,
                }),
            }],
            blame: vec![
                blamed(0x104, 1, 300),
                blamed(0x108, 2, 400),
                blamed(0x208, 2, 250),
                blamed(0x900, 2, 50),
            ],
            devices: Vec::new(),
            spaces: vec![in_space(1, 300), in_space(2, 700)],
            programs: vec![(2, "make".into())],
            given_up: Vec::new(),
            system_call_entry: 0,
            settings: vec![("vif", "off")],
            settings_changed: false,
            instructions: None,
            host_code: None,
            fast_paths: Vec::new(),
            space_loads: Vec::new(),
            shadow_tables: Vec::new(),
            instruction_cache: Vec::new(),
            instruction_steps: Vec::new(),
            share_requests: Vec::new(),
            interrupts: InterruptReading::default(),
        }
    }

    pub(crate) fn snapshot() -> Snapshot {
        Snapshot::of(&reading(), |place| match place.linear >> 8 {
            1 => Some(SymbolAt {
                name: "first",
                distance: place.linear & 0xff,
            }),
            2 => Some(SymbolAt {
                name: "second",
                distance: place.linear & 0xff,
            }),
            _ => None,
        })
    }

    #[test]
    fn origins_are_told_by_instruction_symbol_and_space() {
        let snapshot = snapshot();
        assert_eq!(snapshot.exits[0].attributed, 1_000);
        assert_eq!(snapshot.remainder_cycles, 976);
        let place = &snapshot.origins[0];
        assert_eq!((place.symbol.as_str(), place.exits), ("first+0x8", 400));
        let symbols: Vec<_> = snapshot
            .symbols
            .iter()
            .map(|row| (row.symbol.as_str(), row.exits))
            .collect();
        assert_eq!(symbols, [("first", 700), ("second", 250), ("", 50)]);
        let spaces: Vec<_> = snapshot
            .spaces
            .iter()
            .map(|row| (row.space, row.exits))
            .collect();
        assert_eq!(spaces, [(2, 700), (1, 300)]);
        let programs: Vec<_> = snapshot.spaces.iter().map(|row| &*row.program).collect();
        assert_eq!(programs, ["make", ""]);
        assert_eq!(snapshot.origins[0].program, "make");
    }

    #[test]
    fn origins_name_the_device_and_tells_its_registers_not_apart() {
        let mut reading = reading();
        let [disk, adapter] = [0x1000, 0x2000].map(DeviceAddress::Memory);
        let other = DeviceAddress::Memory(0x1004);
        for (row, device) in reading.blame.iter_mut().zip([disk, adapter, other]) {
            row.place = Place {
                linear: 0x104,
                space: 1,
                is_kernel: false,
            };
            row.device = Some(device);
        }
        reading.devices = vec![(disk, "disk".into()), (other, "disk".into())];
        let snapshot = Snapshot::of(&reading, |_| {
            Some(SymbolAt {
                name: "notify",
                distance: 0,
            })
        });
        let rows = snapshot.origins.iter();
        let rows: Vec<_> = rows.map(|row| (row.device.as_str(), row.exits)).collect();
        assert_eq!(rows, [("disk", 550), ("(no device)", 400), ("", 50)]);
        let symbol = &snapshot.symbols[0];
        assert_eq!((&*symbol.symbol, &*symbol.device), ("notify", "disk"));
    }

    #[test]
    fn shares_of_a_kind_are_of_all_its_exits_also_of_those_whose_places_were_given_up() {
        let mut reading = reading();
        reading.given_up = vec![GivenUp {
            kind: ExitKind::Cli,
            exits: 4_000,
            cycles: 9_000,
        }];
        let snapshot = Snapshot::of(&reading, |_| None);
        assert_eq!(snapshot.exits[0].attributed, 5_000);
        assert_eq!(
            (snapshot.elsewhere, snapshot.elsewhere_cycles),
            (4_000, 9_000)
        );
    }

    #[test]
    fn without_symbols_there_are_no_origins_by_symbol() {
        let snapshot = Snapshot::of(&reading(), |_| None);
        assert!(snapshot.symbols.is_empty());
        assert_eq!(snapshot.origins[0].symbol, "");
    }
}
