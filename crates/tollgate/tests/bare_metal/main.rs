//! Runs the bare-metal guests of `tests/guests`. Each states facts about the processor and the
//! machine, and leaves with exit code 33 if all of them hold. All emitted code is verified.
//!
//! They are a program of their own, because no other test may run at the same time as the guest
//! that measures time.

mod guests;
#[allow(dead_code, reason = "other tests use the rest")]
#[path = "../together/support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::process::Output;
use std::sync::{PoisonError, RwLock};

use support::{GUEST_PATIENCE, finish, tail, tollgate, user_code_flags};

/// The exit code that isa-debug-exit makes of 10h, which a guest writes if all its facts hold.
const ALL_FACTS_HOLD: i32 = 33;
/// The exit code that it makes of 11h, if some facts do not hold.
const SOME_FACTS_FAIL: i32 = 35;
/// The guest that compares rates of clocks by polling them all the time.
const MEASURES_TIME: &str = "timers";
/// The maximum number of runs of that guest.
const ATTEMPTS: usize = 8;

/// Lets the guest that measures time run without the others.
static PROCESSOR: RwLock<()> = RwLock::new(());

/// Runs a guest with these arguments and expects all its facts to hold.
#[track_caller]
fn facts_hold(name: &str, arguments: &[&str]) {
    if name == MEASURES_TIME {
        let _alone = PROCESSOR.write().unwrap_or_else(PoisonError::into_inner);
        return each_fact_holds_once(name, arguments);
    }
    let _together = PROCESSOR.read().unwrap_or_else(PoisonError::into_inner);
    let output = run(name, arguments);
    let facts = Facts::of(&output);
    assert_eq!(
        (output.status.code(), facts.failed),
        (Some(ALL_FACTS_HOLD), BTreeSet::new()),
        "{name} {arguments:?}: {}",
        tail(&facts.text)
    );
    // A guest may skip facts about what a processor does not offer, but on the host's processor it
    // must not skip all.
    let is_host = !arguments.contains(&"--cpu");
    assert!(
        facts.held.len() > 1 || !is_host,
        "{name} states next to nothing"
    );
}

/// Runs a guest until each of its facts has held, perhaps in different runs: a host that gives the
/// processor to another process for 50 ms takes ticks from a guest that counts them. A clock that
/// is wrong is wrong in every run.
#[track_caller]
fn each_fact_holds_once(name: &str, arguments: &[&str]) {
    let mut missing: Option<BTreeSet<String>> = None;
    for attempt in 1..=ATTEMPTS {
        let output = run(name, arguments);
        let facts = Facts::of(&output);
        let code = output.status.code();
        assert!(
            code == Some(ALL_FACTS_HOLD) || code == Some(SOME_FACTS_FAIL),
            "{name} {arguments:?}: exit code {code:?}: {}",
            tail(&facts.text)
        );
        let still_missing = match missing {
            None => facts.failed,
            Some(missing) => missing.difference(&facts.held).cloned().collect(),
        };
        if still_missing.is_empty() {
            return;
        }
        println!("run {attempt}:\n{}", facts.text);
        missing = Some(still_missing);
    }
    panic!("{name} {arguments:?}: in none of {ATTEMPTS} runs: {missing:?}");
}

#[track_caller]
fn run(name: &str, arguments: &[&str]) -> Output {
    let mut command = tollgate();
    command.args(["run", "--verify-code", "--kernel"]);
    command.arg(guests::bare_metal(name)).args(arguments);
    command.args(user_code_flags());
    let output = finish(&mut command, GUEST_PATIENCE);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(errors, "", "{name} {arguments:?}");
    output
}

/// The facts that a guest has stated, by their names.
struct Facts {
    held: BTreeSet<String>,
    failed: BTreeSet<String>,
    /// Everything that the guest wrote.
    text: String,
}

impl Facts {
    /// Parses the facts. The guest's last line has their number, so none can be lost.
    #[track_caller]
    fn of(output: &Output) -> Self {
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let held: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("ok "))
            .collect();
        let failed: Vec<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("FAIL "))
            .map(|line| line.split(": expected").next().unwrap_or(line))
            .collect();
        let total = held.len() + failed.len();
        let last = format!("{} of {total} facts hold", held.len());
        assert_eq!(text.lines().last(), Some(last.as_str()), "{}", tail(&text));
        let names = |facts: &[&str]| facts.iter().map(|&fact| fact.to_owned()).collect();
        let (held, failed) = (names(&held), names(&failed));
        Self { held, failed, text }
    }
}

macro_rules! guests {
    ($($name:ident)*) => {
        $(mod $name {
            #[test]
            fn facts_hold() {
                super::facts_hold(stringify!($name), &[]);
            }

            #[test]
            fn facts_hold_with_the_smallest_code_cache() {
                super::facts_hold(stringify!($name), &["--code-cache", "1M"]);
            }
        })*

        /// The guests that have tests above.
        const TESTED: &[&str] = &[$(stringify!($name)),*];
    };
}

guests! {
    alignment
    apic
    breakpoints
    code16
    codechange
    descriptors
    faulting
    faults
    fpu
    fpuerr
    frames
    gates
    hello
    hpet
    instructions
    interrupts
    limits
    lines
    long_canonical
    long_compatibility
    long_debug
    long_descriptors
    long_events
    long_extensions
    long_faulting
    long_interrupts
    long_operands
    long_paging
    long_pcid
    long_programs
    long_pvi
    long_registers
    long_selfmodify
    long_sparse
    long_stacks
    long_system
    longmode
    nmi
    operands
    pae
    paging
    ports
    priority
    privilege
    pvi
    realedges
    realmode
    segments
    selfmodify
    shadow
    smep
    stacks
    strings
    taskevents
    tasks
    timers
    tlb
    trap
    umip
    vm86
    vm86io
    vme
    vmepages
    x2apic
}

/// Runs the guests whose facts follow what CPUID offers.
#[test]
fn what_a_model_does_not_offer_is_not_there() {
    for model in ["qemu64", "x86-64-v1"] {
        for guest in [
            "long_extensions",
            "long_paging",
            "long_pcid",
            "long_system",
            "ports",
            "smep",
            "umip",
        ] {
            facts_hold(guest, &["--cpu", model]);
        }
    }
}

#[test]
fn every_guest_is_tested() {
    let mut tested: Vec<_> = TESTED.iter().collect();
    tested.sort();
    let names = guests::bare_metal_names();
    assert_eq!(names.iter().collect::<Vec<_>>(), tested);
}

/// Their programs have the segments, flags and registers that Linux gives to its own, so they run
/// natively as far as their pages allow it.
#[test]
fn programs_of_64_bits_hold_their_facts_natively() {
    if user_code_flags().is_empty() {
        for guest in TESTED.iter().filter(|guest| guest.starts_with("long_")) {
            facts_hold(guest, &["--knob", "user-code=native"]);
        }
    }
}

/// An access of 32-bit code that crosses the end of 4 GiB continues at 0, even if the next window
/// follows there.
#[test]
fn compatibility_mode_holds_its_facts_with_windows() {
    facts_hold("long_compatibility", &["--knob", "memory-access=direct"]);
}
