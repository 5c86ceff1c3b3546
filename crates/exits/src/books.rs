//! The books at one moment: what the vCPU thread hands out.
//!
//! Taken between two instructions, so it must not take long: nothing is sorted,
//! named or formatted here. Whoever asked makes a [`crate::snapshot::Snapshot`] of it.

use crate::ExitKind;
use crate::blame::{Blamed, BlamedSpace, DeviceAddress, GivenUp};
use crate::latency::Durations;
use crate::ledger::{Accounts, Cost, Ledger, TimeShares};
use crate::steps::StepCost;
use serde::{Deserialize, Serialize};

/// One kind of exit.
#[derive(Clone, PartialEq, Debug)]
pub struct KindBooks {
    /// The kind.
    pub kind: ExitKind,
    /// How many (exact).
    pub count: u64,
    /// What they cost; `None` if none was timed.
    pub cost: Option<Cost>,
}

/// Counts, costs, time and origins, as they were at one instruction boundary.
#[derive(Clone, PartialEq, Debug)]
pub struct Books {
    /// Kilohertz of the time-stamp counter.
    pub tsc_khz: u64,
    /// Where the time went.
    pub shares: TimeShares,
    /// Kinds that occurred, most frequent first.
    pub kinds: Vec<KindBooks>,
    /// Where they came from, in no order; at most [`crate::blame::MAX_PLACES`].
    pub blame: Vec<Blamed>,
    /// What the devices are called that were accessed, where there is one, in the order of their
    /// addresses.
    pub devices: Vec<(DeviceAddress, String)>,
    /// The same by address space.
    pub spaces: Vec<BlamedSpace>,
    /// What the programs in address spaces are called, as far as that is known: CR3 and names.
    pub programs: Vec<(u64, String)>,
    /// Exits whose places were given up for others.
    pub given_up: Vec<GivenUp>,
    /// The guest's SYSENTER_EIP, or in IA-32e mode its LSTAR, which tells where its kernel lies; 0 if
    /// not set.
    pub system_call_entry: u64,
    /// How the machine's knobs stand: names and values.
    pub settings: Vec<(&'static str, &'static str)>,
    /// They stood otherwise earlier in the run.
    pub settings_changed: bool,
    /// Guest instructions begun; `None` if they were not counted.
    pub instructions: Option<u64>,
    /// The host code that stood for them; `None` if they were not counted.
    pub host_code: Option<HostCode>,
    /// Instructions that leaves did, which would else have been exits: the kind that they would
    /// have been, and how many.
    pub leaves: Vec<(&'static str, u64)>,
    /// Loads of CR3, by what was known of the space, and how many.
    pub space_loads: Vec<(&'static str, u64)>,
    /// What was done to tables derived from the guest's, and how often.
    pub shadow_tables: Vec<(&'static str, u64)>,
    /// How exits found the instructions that they emulated, if they had to find them anew.
    pub instruction_cache: Vec<(&'static str, u64)>,
    /// What that cost, step by step.
    pub instruction_steps: Vec<StepCost>,
    /// Requests to shared directories by kind.
    pub share_requests: Vec<(&'static str, u64)>,
    /// How long interrupts waited, for whom, and how long the monitor's sections are.
    pub interrupts: InterruptBooks,
}

/// How long interrupts waited.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct InterruptBooks {
    /// In all (`to-handler`), and for `host`, `guest` and `monitor`.
    pub waits: Vec<Durations>,
    /// For what of the monitor.
    pub maskers: Vec<Durations>,
    /// Its long sections, whether or not an interrupt waited.
    pub sections: Vec<Durations>,
    /// For how long each did not look at requests while the guest let interrupts in.
    pub masked: Vec<Durations>,
    /// The same while it held them off.
    pub within: Vec<Durations>,
    /// How often each stopped for one.
    pub stops: Vec<(&'static str, u64)>,
    /// How often each went on where it had stopped, and how often the guest did not come back.
    pub resumed: Vec<(&'static str, u64)>,
    /// Cycles for which a section must have run before it stops.
    pub break_even: u64,
}

/// How much host code stood for guest instructions, each as often as it was begun.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct HostCode {
    /// Host instructions.
    pub instructions: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl Books {
    /// The books as they are.
    pub fn of(ledger: &Ledger, tsc_khz: u64, system_call_entry: u64) -> Self {
        Self::of_accounts(ledger.accounts(), tsc_khz, system_call_entry)
    }

    /// The books that these accounts make.
    pub fn of_accounts(accounts: &Accounts, tsc_khz: u64, system_call_entry: u64) -> Self {
        Self {
            tsc_khz,
            shares: accounts.shares(),
            kinds: accounts
                .counts()
                .ranked()
                .into_iter()
                .map(|(kind, count)| KindBooks {
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
            leaves: Vec::new(),
            space_loads: Vec::new(),
            shadow_tables: Vec::new(),
            instruction_cache: Vec::new(),
            instruction_steps: Vec::new(),
            share_requests: Vec::new(),
            interrupts: InterruptBooks {
                waits: accounts.latency().waits(),
                maskers: accounts.latency().maskers(),
                sections: accounts.latency().sections(),
                masked: accounts.latency().masked(),
                within: accounts.latency().within(),
                stops: Vec::new(),
                resumed: Vec::new(),
                break_even: 0,
            },
        }
    }

    /// The same with what was counted outside the ledger.
    pub fn with_counters(self, counters: Counters) -> Self {
        Self {
            leaves: counters.leaves,
            space_loads: counters.space_loads,
            shadow_tables: counters.shadow_tables,
            instruction_cache: counters.instruction_cache,
            share_requests: counters.share_requests,
            instructions: counters.instructions,
            host_code: counters.host_code,
            interrupts: InterruptBooks {
                stops: counters.stops,
                resumed: counters.resumed,
                break_even: counters.break_even,
                ..self.interrupts
            },
            ..self
        }
    }
}

/// Everything that is counted outside the ledger, as it stood at one moment.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Counters {
    /// See [`Books::leaves`].
    pub leaves: Vec<(&'static str, u64)>,
    /// See [`Books::space_loads`].
    pub space_loads: Vec<(&'static str, u64)>,
    /// See [`Books::shadow_tables`].
    pub shadow_tables: Vec<(&'static str, u64)>,
    /// See [`Books::instruction_cache`].
    pub instruction_cache: Vec<(&'static str, u64)>,
    /// See [`Books::share_requests`].
    pub share_requests: Vec<(&'static str, u64)>,
    /// See [`InterruptBooks::stops`].
    pub stops: Vec<(&'static str, u64)>,
    /// See [`InterruptBooks::resumed`].
    pub resumed: Vec<(&'static str, u64)>,
    /// See [`InterruptBooks::break_even`]: as it is now.
    pub break_even: u64,
    /// See [`Books::instructions`].
    pub instructions: Option<u64>,
    /// See [`Books::host_code`].
    pub host_code: Option<HostCode>,
}

impl Counters {
    /// What was counted since these counters stood as `before`.
    pub fn since(mut self, before: &Self) -> Self {
        let since = |rows: &mut Vec<(&'static str, u64)>, before: &[(&'static str, u64)]| {
            for (name, count) in rows {
                let earlier = before.iter().find(|row| row.0 == *name);
                *count = count.saturating_sub(earlier.map_or(0, |row| row.1));
            }
        };
        since(&mut self.leaves, &before.leaves);
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
        let counters = |leaves: &[(&'static str, u64)], instructions| Counters {
            leaves: leaves.to_vec(),
            instructions: Some(instructions),
            ..Counters::default()
        };
        let before = counters(&[("cli", 5)], 100);
        let since = counters(&[("cli", 7), ("sti", 3)], 150).since(&before);
        assert_eq!(since.leaves, [("cli", 2), ("sti", 3)]);
        assert_eq!(since.instructions, Some(50));
    }
}
