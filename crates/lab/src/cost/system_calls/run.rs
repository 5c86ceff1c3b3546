//! Boots the guests and runs the program that times both system calls.

use super::{Calls, Samples, SystemCalls};
use crate::cost::pinning::Pinning;
use crate::cost::{CostError, Options};
use crate::experiment::{self, LabError, Observer, Stop};
use crate::linux_guest::{AMD64, Extra, I686, LinuxGuest, Program, Ran, System};
use tollgate_exits::ExitKind;
use tollgate_host_facts::processors::HostDescription;
use tollgate_machine::config::VmConfig;

/// The name of the module, which `scripts/get-modules` builds.
const MODULE: &str = "cost_calls";
/// The program that times the calls.
const PROGRAM: Program = Program {
    name: "two-calls",
    narrow: include_bytes!(concat!(env!("OUT_DIR"), "/linux-two-calls.bin")),
    wide: include_bytes!(concat!(env!("OUT_DIR"), "/linux-two-calls-64.bin")),
};
/// The program's calls of each kind before it times any, and the most that it times.
const WARM_UP: u64 = 100;
const MOST: usize = 20_000;

/// Runs the experiment in every Linux guest, pinned and not.
///
/// # Errors
///
/// The host refuses resources. A guest that is missing or did not do its work is no error: the result says why.
pub fn run(
    options: &Options,
    stop: &Stop,
    observer: &mut dyn Observer,
) -> Result<SystemCalls, CostError> {
    let pinning = Pinning::new(options.processor)?;
    let mut calls = Vec::new();
    let mut is_complete = true;
    let cells = [true, false].map(|is_pinned| [(AMD64.name, is_pinned), (I686.name, is_pinned)]);
    let cells = cells.concat();
    let count = options.samples.clamp(1, MOST);
    let mut tsc_khz = None;
    for (index, (guest, is_pinned)) in cells.iter().copied().enumerate() {
        let place = if is_pinned { "pinned" } else { "not pinned" };
        observer.progress(index, cells.len(), &format!("{guest}, {place}"));
        // The machine's threads inherit the set of processors; this thread only waits for them.
        pinning.apply(is_pinned)?;
        let booted = boot(guest, stop);
        pinning.apply(false)?;
        let finding = booted.and_then(|mut guest| {
            let line = format!("insmod /lab/{MODULE}.ko && /lab/{} {count}", PROGRAM.name);
            let ran = guest.run(&line)?;
            tsc_khz = Some(ran.reading.tsc_khz);
            samples(&ran, count)
        });
        calls.push(Calls {
            guest,
            pinned: is_pinned,
            finding: match finding {
                Ok(samples) => Ok(samples),
                Err(_) if stop.is_requested() => {
                    is_complete = false;
                    break;
                }
                Err(LabError::Host(why)) => return Err(CostError::Host(why)),
                Err(LabError::WorkNotDone(why)) => {
                    return Err(CostError::WorkNotDone(format!("{guest}: {why}")));
                }
                Err(LabError::NotRun(why)) => Err(why),
                Err(other) => Err(other.to_string()),
            },
        });
    }
    Ok(SystemCalls {
        host: HostDescription {
            processors: pinning.processors(),
            ..HostDescription::here(tsc_khz.unwrap_or(0))
        },
        pinned_to: pinning.processor,
        is_complete,
        calls,
    })
}

fn boot(guest: &str, stop: &Stop) -> Result<LinuxGuest, LabError> {
    let options = experiment::Options::default();
    let module = |folder: &std::path::Path, is_wide| {
        Ok(vec![Extra::kernel_module(folder, is_wide, MODULE)?])
    };
    let system = System::open_with(guest, &[PROGRAM], &options, module)?;
    LinuxGuest::boot(&system, &VmConfig::default(), stop)
}

/// The values that the program printed, which must be as many as it was asked for and as the ledger counted hypercalls.
fn samples(ran: &Ran, count: usize) -> Result<Samples, LabError> {
    let kinds = ran.reading.kinds.iter();
    let hypercalls = kinds
        .filter(|kind| kind.kind == ExitKind::NullHypercall)
        .map(|kind| kind.count)
        .sum();
    let samples = Samples {
        nothing: values(&ran.output, "nothing ")?,
        marked: values(&ran.output, "marked ")?,
        hypercalls,
    };
    let expected = count as u64 + WARM_UP;
    if samples.nothing.len() != count || samples.marked.len() != count || hypercalls != expected {
        return Err(LabError::WorkNotDone(format!(
            "{} and {} values instead of {count}, {hypercalls} hypercalls instead of {expected}",
            samples.nothing.len(),
            samples.marked.len()
        )));
    }
    Ok(samples)
}

/// The values of the line that begins with this word: `VALUE*TIMES` each.
fn values(output: &str, word: &str) -> Result<Vec<u64>, LabError> {
    let lost = || LabError::WorkNotDone(format!("the program's output has no line '{word}...'"));
    let mut lines = output.lines().map(str::trim);
    let line = lines.find_map(|line| line.strip_prefix(word));
    let mut values = Vec::new();
    for part in line.ok_or_else(lost)?.split_whitespace() {
        let (value, times) = part.split_once('*').ok_or_else(lost)?;
        let (value, times): (u64, usize) = (
            value.parse().map_err(|_| lost())?,
            times.parse().map_err(|_| lost())?,
        );
        if times > MOST {
            return Err(lost());
        }
        values.extend(std::iter::repeat_n(value, times));
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_read_with_their_numbers() {
        let output = "insmod\r\nnothing 390*2 416*1\r\nmarked 780*3\r\n";
        assert_eq!(values(output, "nothing "), Ok(vec![390, 390, 416]));
        assert_eq!(values(output, "marked "), Ok(vec![780; 3]));
        for wrong in ["", "marked 780", "marked x*1", "marked 1*99999999"] {
            assert!(matches!(
                values(wrong, "marked "),
                Err(LabError::WorkNotDone(_))
            ));
        }
    }
}
