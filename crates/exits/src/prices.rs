//! Price tables: what exits cost on another machine, and what a run would take there.
//!
//! A table consists of lines of comma-separated fields; `#` starts a comment:
//!
//! ```text
//! machine,Intel Core i7-3960X
//! khz,3300000
//! source,The Cost of Virtualization Exits
//! kind,cycles,hardware exit
//! port-in,1650,I/O instruction (30)
//! link-miss,none,the guest runs on
//! ```
//!
//! `none` says that the machine has no such exit. The result is an *estimate*: the counts are those
//! of this run, and the time outside exits is taken to be the same as here.

use crate::ExitKind;
use crate::snapshot::Snapshot;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Maximum cycles of one exit, so that no sum can overflow.
const MOST_CYCLES: u64 = 1 << 40;
/// Highest frequency that a table may name, in kilohertz.
const MOST_KHZ: u64 = 1_000_000_000;

/// The cost of one kind of exit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Price {
    /// The cycles of one exit.
    Cycles(u64),
    /// The machine has no such exit.
    NoExit,
}

/// The costs of exits on one machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PriceTable {
    machine: String,
    source: String,
    khz: u64,
    prices: Vec<Option<Price>>,
}

/// The error in a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PriceError {
    /// The line number, starting at 1.
    pub line: usize,
    /// What is wrong in this line.
    pub reason: String,
}

impl fmt::Display for PriceError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "line {}: {}", self.line, self.reason)
    }
}

impl std::error::Error for PriceError {}

impl PriceTable {
    /// Parses a table.
    ///
    /// # Errors
    ///
    /// [`PriceError`] describes the first invalid line.
    pub fn parse(text: &str) -> Result<Self, PriceError> {
        let mut table = Self {
            machine: String::new(),
            source: String::new(),
            khz: 0,
            prices: vec![None; ExitKind::ALL.len()],
        };
        let mut lines = 0;
        for (index, line) in text.lines().enumerate() {
            lines = index + 1;
            table.take(line.trim()).map_err(|reason| PriceError {
                line: lines,
                reason,
            })?;
        }
        let missing = |what: &str| PriceError {
            line: lines.max(1),
            reason: format!("the table ends without a line '{what}'"),
        };
        if table.machine.is_empty() {
            return Err(missing("machine,NAME"));
        }
        if table.khz == 0 {
            return Err(missing("khz,NUMBER"));
        }
        if table.prices.iter().all(Option::is_none) {
            return Err(missing("KIND,CYCLES"));
        }
        Ok(table)
    }

    fn take(&mut self, line: &str) -> Result<(), String> {
        if line.is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let Some((name, rest)) = line.split_once(',') else {
            return Err("expected KIND,CYCLES".into());
        };
        let (name, rest) = (name.trim(), rest.trim());
        let first = rest.split(',').next().unwrap_or_default().trim();
        match name {
            "machine" if !self.machine.is_empty() => Err("a second machine".into()),
            "machine" if rest.is_empty() => Err("the machine has no name".into()),
            "machine" => {
                self.machine = unquoted(rest);
                Ok(())
            }
            "source" => {
                self.source = unquoted(rest);
                Ok(())
            }
            "khz" if self.khz != 0 => Err("a second frequency".into()),
            "khz" => {
                self.khz = number(first, 1, MOST_KHZ)?;
                Ok(())
            }
            // This is the line with the column titles.
            "kind" if first == "cycles" => Ok(()),
            _ => self.take_price(name, first),
        }
    }

    fn take_price(&mut self, name: &str, cycles: &str) -> Result<(), String> {
        let Some(kind) = ExitKind::of_name(name) else {
            return Err(format!("'{name}' is not a kind of exit"));
        };
        let price = match cycles {
            "none" => Price::NoExit,
            digits => Price::Cycles(number(digits, 0, MOST_CYCLES)?),
        };
        match self.prices[kind as usize].replace(price) {
            Some(_) => Err(format!("a second price for '{name}'")),
            None => Ok(()),
        }
    }

    /// The cost of one exit of this kind; `None` if the table does not contain it.
    pub fn price(&self, kind: ExitKind) -> Option<Price> {
        self.prices[kind as usize]
    }

    /// Computes the cost of a run's exits on the other machine.
    pub fn estimate(&self, snapshot: &Snapshot) -> Estimate {
        let mut exits = Vec::new();
        let mut exit_cycles = 0u64;
        let mut unpriced_exits = 0u64;
        for row in &snapshot.exits {
            let price = ExitKind::of_name(&row.kind).and_then(|kind| self.price(kind));
            let each = match price {
                Some(Price::Cycles(cycles)) => Some(cycles),
                _ => None,
            };
            let cycles = row.count.saturating_mul(each.unwrap_or(0));
            exit_cycles = exit_cycles.saturating_add(cycles);
            if price.is_none() {
                unpriced_exits = unpriced_exits.saturating_add(row.count);
            }
            exits.push(EstimateRow {
                kind: row.kind.clone(),
                count: row.count,
                priced: match price {
                    Some(Price::Cycles(_)) => Priced::Exit,
                    Some(Price::NoExit) => Priced::NoHardwareExit,
                    None => Priced::NotInTable,
                },
                cycles_each: each.unwrap_or(0),
                cycles,
                hardware_exit: row.hardware_exit.clone(),
            });
        }
        let exit_ns = nanoseconds(exit_cycles, self.khz);
        let outside = snapshot
            .guest_cycles
            .saturating_add(snapshot.device_cycles)
            .saturating_add(snapshot.halted_cycles);
        let outside_ns = nanoseconds(outside, snapshot.tsc_khz);
        Estimate {
            machine: self.machine.clone(),
            source: self.source.clone(),
            khz: self.khz,
            exits,
            exit_cycles,
            exit_ns,
            outside_ns,
            run_ns: exit_ns.saturating_add(outside_ns),
            unpriced_exits,
        }
    }
}

fn unquoted(text: &str) -> String {
    let inside = text
        .strip_prefix('"')
        .and_then(|text| text.strip_suffix('"'));
    inside.unwrap_or(text).trim().to_owned()
}

fn number(text: &str, least: u64, most: u64) -> Result<u64, String> {
    match text.parse::<u64>() {
        Ok(number) if (least..=most).contains(&number) => Ok(number),
        Ok(number) => Err(format!("{number} is not from {least} to {most}")),
        Err(_) => Err(format!("'{text}' is not a whole number")),
    }
}

fn nanoseconds(cycles: u64, khz: u64) -> u64 {
    let nanoseconds = u128::from(cycles) * 1_000_000 / u128::from(khz.max(1));
    u64::try_from(nanoseconds).unwrap_or(u64::MAX)
}

/// How a kind was priced.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Priced {
    /// The table has the cycles of the kind.
    Exit,
    /// The machine has no such exit: it costs nothing.
    NoHardwareExit,
    /// The table has no line for the kind: it counts as zero, so the estimate is too low.
    NotInTable,
}

/// One kind of exit at the other machine's price.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct EstimateRow {
    /// The kind's name.
    pub kind: String,
    /// The exact number of exits in this run.
    pub count: u64,
    /// How the kind was priced.
    pub priced: Priced,
    /// Cycles of one exit in the table; 0 if it is not priced.
    pub cycles_each: u64,
    /// Cycles of all these exits.
    pub cycles: u64,
    /// The hardware exits that correspond to this kind; empty if none do.
    pub hardware_exit: String,
}

/// An estimate of what a run would take on another machine.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Estimate {
    /// The machine's name.
    pub machine: String,
    /// The source of the prices.
    pub source: String,
    /// The machine's frequency in kilohertz.
    pub khz: u64,
    /// The kinds that occurred, most frequent first.
    pub exits: Vec<EstimateRow>,
    /// Cycles of all exits there.
    pub exit_cycles: u64,
    /// Time of all exits there, in nanoseconds.
    pub exit_ns: u64,
    /// Nanoseconds in guest code, in devices and asleep, as measured here.
    pub outside_ns: u64,
    /// The sum of the exits' time and the time outside, in nanoseconds.
    pub run_ns: u64,
    /// Exits of kinds that the table does not contain.
    pub unpriced_exits: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "# a comment\nmachine,Old One\nkhz,1000\nsource,\"A, B\"\n\
        kind,cycles,hardware exit\nport-in,100,I/O\nlink-miss,none\n";

    fn wrong(text: &str) -> (usize, String) {
        let error = PriceTable::parse(text).unwrap_err();
        (error.line, error.reason)
    }

    #[test]
    fn a_table_prices_kinds_and_knows_what_is_no_exit() {
        let table = PriceTable::parse(TABLE).unwrap();
        assert_eq!(table.price(ExitKind::PortIn), Some(Price::Cycles(100)));
        assert_eq!(table.price(ExitKind::LinkMiss), Some(Price::NoExit));
        assert_eq!(table.price(ExitKind::Cpuid), None);
        assert_eq!((table.source.as_str(), table.khz), ("A, B", 1000));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        assert_eq!(wrong("machine,x\nport-in\n").0, 2);
        assert_eq!(wrong("machine,x\n\ndance,3\n").0, 3);
        assert!(wrong("dance,3").1.contains("'dance' is not a kind of exit"));
        assert!(wrong("port-in,many").1.contains("'many' is not a whole"));
        assert!(wrong("port-in,-1").1.contains("'-1' is not a whole"));
        assert!(wrong("port-in,1\nport-in,2").1.contains("a second price"));
        assert!(wrong("khz,0").1.contains("not from 1"));
        assert!(wrong("port-in,99999999999999").1.contains("not from 0"));
        assert!(wrong("").1.contains("machine,NAME"));
        assert!(wrong("machine,x\nport-in,1").1.contains("khz,NUMBER"));
        assert!(wrong("machine,x\nkhz,5\n").1.contains("KIND,CYCLES"));
    }

    #[test]
    fn a_run_is_priced_at_the_other_machines_frequency() {
        let mut snapshot = crate::snapshot::tests::snapshot();
        snapshot.exits[0].kind = "port-in".into();
        snapshot.exits[0].count = 20;
        let estimate = PriceTable::parse(TABLE).unwrap().estimate(&snapshot);
        assert_eq!(estimate.exit_cycles, 2000);
        // 2000 cycles at 1 MHz.
        assert_eq!(estimate.exit_ns, 2_000_000);
        // This excludes the 2 ms of fast-path calls, which the other machine does not have.
        assert_eq!(estimate.outside_ns, 68_000_000);
        assert_eq!(estimate.run_ns, 70_000_000);
        snapshot.exits[0].kind = "cpuid".into();
        let estimate = PriceTable::parse(TABLE).unwrap().estimate(&snapshot);
        assert_eq!((estimate.exit_cycles, estimate.unpriced_exits), (0, 20));
        assert_eq!(estimate.exits[0].priced, Priced::NotInTable);
    }
}
