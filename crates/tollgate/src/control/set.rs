//! `tollgate set`: shows or changes the knobs of a running machine.

use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};
use tollgate_machine::knobs::{self, Assignment, KNOBS};

use super::client::{exit_code_of, talk};
use super::command::Name;
use crate::failure::{Failure, one_line};
use crate::standard_output::print;

/// The arguments of `tollgate set`.
#[derive(Args, Debug)]
#[command(after_help = help())]
pub struct SetArguments {
    /// The path given to tollgate run --control
    #[arg(value_name = "PATH")]
    pub socket: PathBuf,

    /// A knob and its new value; without one all knobs are shown
    #[arg(value_name = "KNOB=VALUE")]
    pub assignments: Vec<String>,

    /// Print the machine's answer as JSON
    #[arg(long)]
    pub json: bool,
}

/// The last sections of the help.
fn help() -> String {
    let mut text = String::from("Knobs:\n");
    for knob in KNOBS {
        let name = format!("{}={}", knob.name, knob.values.join("|"));
        text.push_str(&format!("  {name:<28} {}\n", knob.what));
    }
    text.push_str(
        "
Exit codes: 0 done, 1 the machine refused, 2 no such knob or value, or no machine listens at PATH.
Examples:
  All knobs and their values:
    tollgate set vm.sock
  Let every sensitive instruction exit from now on, and back:
    tollgate set vm.sock vif=off
    tollgate set vm.sock vif=on",
    );
    text
}

/// Runs `tollgate set` and returns its exit code.
pub fn run(arguments: &SetArguments) -> u8 {
    set(arguments).unwrap_or_else(|failure| failure.report())
}

fn set(arguments: &SetArguments) -> Result<u8, Failure> {
    let wrong = |error: knobs::KnobError| Failure::usage(error.to_string());
    let assignments = arguments.assignments.iter();
    let assignments: Result<Vec<_>, _> = assignments.map(|text| Assignment::parse(text)).collect();
    let assignments = assignments.map_err(wrong)?;
    knobs::check_distinct(&assignments).map_err(wrong)?;
    let values: Map<String, Value> = assignments
        .iter()
        .map(|assignment| (assignment.knob().name.to_owned(), assignment.value().into()))
        .collect();
    let answer = talk(
        &arguments.socket,
        &json!({"command": Name::Set, "knobs": values}),
    )?;
    if arguments.json {
        print(&format!("{answer}\n"))?;
    } else if assignments.is_empty() {
        print(&listed(&answer))?;
    }
    Ok(exit_code_of(&answer))
}

/// The machine's knobs with their values.
fn listed(answer: &Value) -> String {
    let mut text = String::new();
    for (name, value) in answer["knobs"].as_object().into_iter().flatten() {
        let value = one_line(value.as_str().unwrap_or("?"));
        let knob = knobs::find(name);
        let (values, what) =
            knob.map_or_else(Default::default, |knob| (knob.values.join("|"), knob.what));
        let name = one_line(name);
        text.push_str(&format!("{name:<12} {value:<6} {values:<16} {what}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_tells_name_value_values_and_meaning() {
        let answer = json!({"ok": true, "knobs": {"vif": "off", "later": "x"}});
        let text = listed(&answer);
        assert!(
            text.contains("vif          off    off|on           CLI, STI"),
            "{text}"
        );
        // A knob that only a newer version of Tollgate knows is shown too.
        assert!(text.contains("later        x "), "{text}");
    }

    #[test]
    fn the_help_names_every_knob_and_value() {
        let text = help();
        for knob in KNOBS {
            assert!(text.contains(knob.name), "{text}");
            assert!(knob.values.iter().all(|value| text.contains(value)));
        }
    }
}
