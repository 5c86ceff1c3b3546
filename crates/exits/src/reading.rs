//! The ledger's content at one moment, as the vCPU thread hands it out.
//!
//! It is taken between two instructions, so that must be fast: nothing is sorted, named or
//! formatted here. The receiver makes a [`crate::snapshot::Snapshot`] of it.

use crate::ExitKind;
use crate::blame::{Blamed, BlamedSpace, DeviceAddress, GivenUp};
use crate::latency::Durations;
use crate::ledger::{Accounts, Cost, Ledger, TimeShares};
use crate::steps::StepCost;
use serde::{Deserialize, Serialize};

/// The count and cost of one kind of exit.
#[derive(Clone, PartialEq, Debug)]
pub struct KindReading {
    /// The kind of exit.
    pub kind: ExitKind,
    /// The exact number of exits.
    pub count: u64,
    /// The cost of these exits; `None` if none was timed.
    pub cost: Option<Cost>,
}

/// Counts, costs, time and origins at one instruction boundary.
#[derive(Clone, PartialEq, Debug)]
pub struct Reading {
    /// Frequency of the time-stamp counter in kilohertz.
    pub tsc_khz: u64,
    /// Where the time went.
    pub shares: TimeShares,
    /// The kinds that occurred, most frequent first.
    pub kinds: Vec<KindReading>,
    /// The origins of the exits, unsorted; at most [`crate::blame::MAX_PLACES`].
    pub blame: Vec<Blamed>,
    /// The names of the devices that were accessed, where known, in the order of their addresses.
    pub devices: Vec<(DeviceAddress, String)>,
    /// The exits by address space, unsorted.
    pub spaces: Vec<BlamedSpace>,
    /// Names of the programs in address spaces, as far as they are known: CR3 and the names.
    pub programs: Vec<(u64, String)>,
    /// Exits whose rows were discarded.
    pub given_up: Vec<GivenUp>,
    /// The guest's SYSENTER_EIP, or its LSTAR in IA-32e mode, which shows where its kernel lies; 0
    /// if not set.
    pub system_call_entry: u64,
    /// The settings of the machine's knobs: names and values.
    pub settings: Vec<(&'static str, &'static str)>,
    /// Whether a knob had another setting earlier in the run.
    pub settings_changed: bool,
    /// Number of guest instructions that were started; `None` if they were not counted.
    pub instructions: Option<u64>,
    /// The host code for these instructions; `None` if they were not counted.
    pub host_code: Option<HostCode>,
    /// Instructions that fast paths executed and that would have been exits otherwise: the kind of
    /// that exit, and the number.
    pub fast_paths: Vec<(&'static str, u64)>,
    /// Number of loads of CR3, by what was cached for the space.
    pub space_loads: Vec<(&'static str, u64)>,
    /// Number of operations on tables that are derived from the guest's page tables.
    pub shadow_tables: Vec<(&'static str, u64)>,
    /// How exits looked up the instructions that they emulated, in runs where they must look them
    /// up.
    pub instruction_cache: Vec<(&'static str, u64)>,
    /// The cost of each step of these look-ups.
    pub instruction_steps: Vec<StepCost>,
    /// Number of requests to shared directories, by kind.
    pub share_requests: Vec<(&'static str, u64)>,
    /// How long interrupts waited, for what, and how long the monitor's sections took.
    pub interrupts: InterruptReading,
}

/// How long interrupts waited, and for what.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct InterruptReading {
    /// The waits in total (`to-handler`), and for `host`, `guest` and `monitor`.
    pub waits: Vec<Durations>,
    /// The waits for the monitor, by what it was doing.
    pub maskers: Vec<Durations>,
    /// The monitor's long sections, whether or not an interrupt waited.
    pub sections: Vec<Durations>,
    /// For each section the time without a look at requests while the guest let interrupts in.
    pub masked: Vec<Durations>,
    /// For each section the time without a look at requests while the guest held interrupts off.
    pub within: Vec<Durations>,
    /// How often each section stopped for an interrupt.
    pub stops: Vec<(&'static str, u64)>,
    /// How often each section resumed where it had stopped, and how often the guest did not return
    /// to it.
    pub resumed: Vec<(&'static str, u64)>,
    /// The number of cycles that a section must have run before it stops.
    pub break_even: u64,
}

/// The amount of host code for guest instructions; each is counted every time it is started.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HostCode {
    /// Number of host instructions.
    pub instructions: u64,
    /// Size of these instructions in bytes.
    pub bytes: u64,
}

impl Reading {
    /// The present content of the ledger.
    pub fn of(ledger: &Ledger, tsc_khz: u64, system_call_entry: u64) -> Self {
        Self::of_accounts(ledger.accounts(), tsc_khz, system_call_entry)
    }

    /// Converts these accounts.
    pub fn of_accounts(accounts: &Accounts, tsc_khz: u64, system_call_entry: u64) -> Self {
        Self {
            tsc_khz,
            shares: accounts.shares(),
            kinds: accounts
                .counts()
                .ranked()
                .into_iter()
                .map(|(kind, count)| KindReading {
                    kind,
                    count,
                    cost: accounts.cost(kind),
                })
                .collect(),
            blame: accounts.blame().rows().collect(),
            devices: Vec::new(),
            spaces: accounts.blame().spaces().collect(),
            programs: Vec::new(),
            given_up: accounts.blame().given_up(),
            system_call_entry,
            settings: Vec::new(),
            settings_changed: false,
            instructions: None,
            host_code: None,
            fast_paths: Vec::new(),
            space_loads: Vec::new(),
            shadow_tables: Vec::new(),
            instruction_cache: Vec::new(),
            instruction_steps: Vec::new(),
            share_requests: Vec::new(),
            interrupts: InterruptReading {
                waits: accounts.latency().waits(),
                maskers: accounts.latency().maskers(),
                sections: accounts.latency().durations(),
                masked: accounts.latency().masked(),
                within: accounts.latency().within(),
                stops: Vec::new(),
                resumed: Vec::new(),
                break_even: 0,
            },
        }
    }

    /// Adds what was counted outside the ledger.
    pub fn with_counters(self, counters: Counters) -> Self {
        Self {
            fast_paths: counters.fast_paths,
            space_loads: counters.space_loads,
            shadow_tables: counters.shadow_tables,
            instruction_cache: counters.instruction_cache,
            share_requests: counters.share_requests,
            instructions: counters.instructions,
            host_code: counters.host_code,
            interrupts: InterruptReading {
                stops: counters.stops,
                resumed: counters.resumed,
                break_even: counters.break_even,
                ..self.interrupts
            },
            ..self
        }
    }
}

/// Everything that is counted outside the ledger, at one moment.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Counters {
    /// See [`Reading::fast_paths`].
    pub fast_paths: Vec<(&'static str, u64)>,
    /// See [`Reading::space_loads`].
    pub space_loads: Vec<(&'static str, u64)>,
    /// See [`Reading::shadow_tables`].
    pub shadow_tables: Vec<(&'static str, u64)>,
    /// See [`Reading::instruction_cache`].
    pub instruction_cache: Vec<(&'static str, u64)>,
    /// See [`Reading::share_requests`].
    pub share_requests: Vec<(&'static str, u64)>,
    /// See [`InterruptReading::stops`].
    pub stops: Vec<(&'static str, u64)>,
    /// See [`InterruptReading::resumed`].
    pub resumed: Vec<(&'static str, u64)>,
    /// The present value of [`InterruptReading::break_even`].
    pub break_even: u64,
    /// See [`Reading::instructions`].
    pub instructions: Option<u64>,
    /// See [`Reading::host_code`].
    pub host_code: Option<HostCode>,
}

impl Counters {
    /// The difference to `before`, an earlier state of these counters.
    pub fn since(mut self, before: &Self) -> Self {
        let since = |rows: &mut Vec<(&'static str, u64)>, before: &[(&'static str, u64)]| {
            for (name, count) in rows {
                let earlier = before.iter().find(|row| row.0 == *name);
                *count = count.saturating_sub(earlier.map_or(0, |row| row.1));
            }
        };
        since(&mut self.fast_paths, &before.fast_paths);
        since(&mut self.space_loads, &before.space_loads);
        since(&mut self.shadow_tables, &before.shadow_tables);
        since(&mut self.instruction_cache, &before.instruction_cache);
        since(&mut self.share_requests, &before.share_requests);
        since(&mut self.stops, &before.stops);
        since(&mut self.resumed, &before.resumed);
        if let (Some(now), Some(before)) = (&mut self.instructions, before.instructions) {
            *now = now.saturating_sub(before);
        }
        if let (Some(now), Some(before)) = (&mut self.host_code, before.host_code) {
            now.instructions = now.instructions.saturating_sub(before.instructions);
            now.bytes = now.bytes.saturating_sub(before.bytes);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_go_on_from_where_they_stood() {
        let counters = |fast_paths: &[(&'static str, u64)], instructions| Counters {
            fast_paths: fast_paths.to_vec(),
            instructions: Some(instructions),
            ..Counters::default()
        };
        let before = counters(&[("cli", 5)], 100);
        let since = counters(&[("cli", 7), ("sti", 3)], 150).since(&before);
        assert_eq!(since.fast_paths, [("cli", 2), ("sti", 3)]);
        assert_eq!(since.instructions, Some(50));
    }
}
