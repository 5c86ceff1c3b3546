//! Runs many states, counts them by family, and shrinks and describes the first failures.

use crate::families::Family;
use crate::generate::Catalog;
use crate::guest::Continuation;
use crate::inputs;
use crate::layout::World;
use crate::oracle::Oracle;
use crate::{report, shrink};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::io;
use tollgate_engine::abi::register_map::RegisterMap;
use tollgate_test_support::Random;

/// The parameters of a run.
#[derive(Clone, Copy)]
pub struct Plan {
    /// Number of states to run.
    pub states: u64,
    /// Seed of all random choices.
    pub seed: u64,
    /// Runs only this family.
    pub family: Option<Family>,
    /// The segments and code sizes to use.
    pub worlds: &'static [World],
    /// Whether 16- and 32-bit code runs in compatibility mode.
    pub compatibility: bool,
    /// Where the guest runs each state.
    pub continuation: Continuation,
    /// Number of failures to describe before the run ends.
    pub failures: usize,
    /// The map of the guest's registers to host registers.
    pub map: &'static RegisterMap,
    /// Whether each state is written to standard error before it runs.
    pub trace: bool,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            states: 1_000_000,
            seed: 1,
            family: None,
            worlds: World::legacy(),
            compatibility: false,
            continuation: Continuation::Same,
            failures: 10,
            map: &RegisterMap::LEGACY,
            trace: false,
        }
    }
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Number of states that were run in each family.
    pub states: BTreeMap<Family, u64>,
    /// Number of these states that ended in an exception raised by the code.
    pub exceptions: BTreeMap<Family, u64>,
    /// Number of states for which the host's processor had no unique outcome.
    pub undecided: u64,
    /// Descriptions of the shrunk failures, each with its mnemonic.
    pub failures: Vec<String>,
}

/// Number of states for one case.
const STATES_PER_CASE: u64 = 24;
/// Number of states for a case that must raise #UD.
const STATES_PER_UNDEFINED: u64 = 2;

impl Summary {
    /// The number of all states.
    pub fn total(&self) -> u64 {
        self.states.values().sum()
    }

    /// One line for each family.
    pub fn table(&self) -> String {
        let mut text = format!("{:24}{:>10}{:>12}\n", "family", "states", "exceptions");
        for &family in Family::ALL {
            let states = self.states.get(&family).copied().unwrap_or(0);
            let exceptions = self.exceptions.get(&family).copied().unwrap_or(0);
            let _ = writeln!(text, "{:24}{states:>10}{exceptions:>12}", family.name());
        }
        let _ = writeln!(
            text,
            "{:24}{:>10}{:>12}",
            "total",
            self.total(),
            self.exceptions.values().sum::<u64>()
        );
        let _ = writeln!(text, "undecided by the host: {}", self.undecided);
        text
    }
}

/// Runs a plan.
///
/// # Errors
///
/// The host refused something that the test needs.
pub fn run(plan: &Plan) -> io::Result<Summary> {
    let catalog = Catalog::new(plan.worlds);
    let mut oracle = Oracle::new(plan.map)?;
    if plan.compatibility {
        oracle.use_compatibility_mode();
    }
    oracle.continue_in(plan.continuation);
    let mut random = Random::new(plan.seed);
    let mut summary = Summary::default();
    let mut known = std::collections::BTreeSet::new();
    let mut total = 0;
    while total < plan.states && summary.failures.len() < plan.failures {
        let planned = catalog.plan(plan.family, &mut random);
        let (case, code) = (&planned.case, &planned.code);
        let states = match planned.expectation {
            crate::oracle::Expectation::Undefined => STATES_PER_UNDEFINED,
            crate::oracle::Expectation::Native => STATES_PER_CASE,
        };
        oracle.load(case);
        for _ in 0..states {
            let input = inputs::generate(case.world, case.at, code, &mut random);
            if plan.trace {
                eprintln!("{}", crate::replay::write(case, &input));
            }
            let verdict = oracle.run(case, code, &input, planned.expectation);
            total += 1;
            *summary.states.entry(planned.family).or_default() += 1;
            if !verdict.expected.completed() {
                *summary.exceptions.entry(planned.family).or_default() += 1;
            }
            if verdict.undecided {
                summary.undecided += 1;
                continue;
            }
            if verdict.differences.is_empty() {
                continue;
            }
            let (small, least) = shrink::shrink(&mut oracle, case, &input, planned.expectation);
            let culprit = crate::oracle::instructions(&small)
                .last()
                .map(|one| one.instruction.mnemonic());
            if known.insert((culprit, verdict.differences[0].what.clone())) {
                let (mut text, agree) =
                    report::describe(&mut oracle, &small, &least, planned.expectation);
                if agree {
                    // The failure depends on earlier runs: report what was seen.
                    text += "seen      once, and not again:\n";
                    for difference in &verdict.differences {
                        let _ = writeln!(text, "differed  {difference}");
                    }
                }
                summary.failures.push(text);
            }
            break;
        }
    }
    Ok(summary)
}
