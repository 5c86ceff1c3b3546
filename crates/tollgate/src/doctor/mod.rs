//! `tollgate doctor`: checks whether this host can run virtual machines, and what would make them
//! faster.
//!
//! Each check is one row. The required checks are the least that Tollgate needs; `tollgate run`
//! makes them before it starts.

mod check;
mod kernel;
mod kvm;
mod memory;
mod native;
mod processor;

use std::os::fd::AsFd;

use check::{Check, Need};
use clap::Args;

use crate::standard_output::print_and_end;
use crate::{columns, exit_code, host};

/// The arguments of `tollgate doctor`.
#[derive(Args, Debug)]
#[command(after_help = "Exit codes: 0 if tollgate can run here, 1 if not.")]
pub struct DoctorArguments {
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// The checks without whose success nothing runs.
fn required() -> Vec<Check> {
    let mut checks = processor::required();
    checks.extend(kernel::required());
    checks.extend(memory::required());
    checks
}

/// All checks, the required ones first.
fn all() -> Vec<Check> {
    let mut checks = required();
    checks.extend(processor::optional());
    checks.extend(kernel::optional());
    checks.extend(memory::optional());
    checks.push(native::optional());
    checks.push(kvm::optional());
    checks
}

/// Checks whether this host can run virtual machines at all.
///
/// # Errors
/// One line that names everything that is missing.
pub fn required_floor() -> Result<(), String> {
    let missing: Vec<String> = required()
        .iter()
        .filter(|check| !check.ok)
        .map(|check| format!("{} ({})", check.what, check.found))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!(
        "this host lacks what tollgate needs: {}; 'tollgate doctor' explains",
        missing.join(", ")
    ))
}

/// Warns of what makes guests slow but does not keep them from running.
pub fn warn() {
    if let Some(line) = memory::address_space_warning() {
        crate::failure::say(&line);
    }
}

/// Runs `tollgate doctor` and returns its exit code.
pub fn run(arguments: &DoctorArguments) -> u8 {
    let checks = all();
    let can_run = checks
        .iter()
        .all(|check| check.ok || check.need == Need::Optional);
    let text = if arguments.json {
        let report = serde_json::json!({"can_run": can_run, "checks": checks});
        format!("{report:#}\n")
    } else {
        let width = host::window_size(std::io::stdout().as_fd());
        table(
            &checks,
            can_run,
            width.map_or(usize::MAX, |(width, _)| width),
        )
    };
    let code = match can_run {
        true => exit_code::SUCCESS,
        false => exit_code::HOST,
    };
    print_and_end(&text, code)
}

/// The rows for people, in lines of `columns` columns where possible. A row that fails is followed
/// by its cost.
fn table(checks: &[Check], can_run: bool, columns: usize) -> String {
    let width = checks.iter().map(|check| check.what.len()).max();
    let width = width.unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let need = match check.need {
            Need::Required => "required",
            Need::Optional => "optional",
        };
        let row = format!("{:<7}  {need}  {:<width$}  ", check.verdict(), check.what);
        let found = crate::failure::one_line(&check.found);
        text.push_str(&columns::indented(&row, &found, columns));
        if !check.ok {
            let row = format!("{:21}without it: ", "");
            text.push_str(&columns::indented(&row, check.cost, columns));
        }
    }
    text.push_str(if can_run {
        "\ntollgate can run virtual machines on this host.\n"
    } else {
        "\ntollgate cannot run virtual machines on this host: see MISSING above.\n"
    });
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_says_what_a_lack_costs() {
        for check in all() {
            assert!(!check.found.is_empty(), "{}", check.what);
            assert!(!check.cost.is_empty(), "{}", check.what);
        }
    }

    #[test]
    fn the_floor_holds_exactly_when_no_required_row_is_missing() {
        let lacks = required().iter().any(|check| !check.ok);
        assert_eq!(required_floor().is_err(), lacks);
    }

    #[test]
    fn the_cost_is_shown_only_where_something_lacks() {
        let good = Check::optional("PMU", true, "usable", "no counters");
        let bad = Check::required("AVX2", false, "not offered", "no translation");
        let text = table(&[good, bad], false, usize::MAX);
        let expected = "\
ok       optional  PMU   usable
MISSING  required  AVX2  not offered
                     without it: no translation

tollgate cannot run virtual machines on this host: see MISSING above.
";
        assert_eq!(text, expected);
    }

    #[test]
    fn long_rows_are_as_wide_as_the_terminal() {
        let bad = Check::optional("PMU", false, "not offered", "some words that are many more");
        let text = table(&[bad], true, 56);
        let expected = "\
lacking  optional  PMU  not offered
                     without it: some words that are
                                 many more

tollgate can run virtual machines on this host.
";
        assert_eq!(text, expected);
    }
}
