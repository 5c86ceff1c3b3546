//! Requests and answers of the control socket.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tollgate_machine::knobs::Assignment;
use tollgate_machine::vm_handle::{State, Status, VmHandle};

use crate::statistics::Reporter;

/// The commands, as they are written in requests and on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Name {
    /// Show what the machine is doing
    Status,
    /// Show exits, their costs, where time goes (see tollgate stats)
    Stats,
    /// Stop the processor; guest time stands still
    Pause,
    /// Go on after a pause
    Resume,
    /// End the virtual machine at once
    Quit,
    /// Press the power button: the guest may shut down
    PowerButton,
    /// Show or turn knobs: `tollgate set`.
    #[value(skip)]
    Set,
}

/// A request: a command, and whatever the client wants to see again in the answer.
#[derive(Deserialize)]
struct Request {
    command: Name,
    #[serde(default)]
    id: Value,
    /// Of `set`: names and new values.
    #[serde(default)]
    knobs: BTreeMap<String, String>,
}

/// An answer, and whether the machine was asked to end.
pub struct Answer {
    /// One line without its line break.
    pub line: String,
    /// The request was `quit`.
    pub quits: bool,
}

/// What requests are carried out with.
#[derive(Clone, Copy)]
pub struct Reach<'a> {
    /// The machine.
    pub handle: &'a VmHandle,
    /// Puts names and prices to statistics.
    pub reporter: &'a Reporter,
    /// How long the vCPU thread may take.
    pub patience: Duration,
}

/// Carries out one request line and answers it. The answer tells what the vCPU thread
/// made of it within the time it has.
pub fn answer(line: &[u8], reach: Reach<'_>) -> Answer {
    // JSON that is not an object would be accepted as a request in list form otherwise.
    let request = serde_json::from_slice::<serde_json::Map<String, Value>>(line)
        .and_then(|fields| serde_json::from_value::<Request>(Value::Object(fields)));
    match request {
        Ok(request) => carry_out(request, reach),
        Err(error) => refusal(&format!("not a request: {error}")),
    }
}

/// An answer that says what was wrong.
pub fn refusal(error: &str) -> Answer {
    Answer {
        line: json!({"ok": false, "error": error}).to_string(),
        quits: false,
    }
}

fn carry_out(request: Request, reach: Reach<'_>) -> Answer {
    let Reach {
        handle, patience, ..
    } = reach;
    let mut answer = json!({"ok": true});
    match request.command {
        Name::Status => {
            let status = handle.fresh_status(patience);
            answer["status"] = serde_json::to_value(status).unwrap_or_default();
        }
        Name::Stats => match handle.fresh_books(patience) {
            Some(books) => {
                let snapshot = reach.reporter.snapshot(&books);
                answer["stats"] = serde_json::to_value(snapshot).unwrap_or_default();
            }
            None => {
                answer["ok"] = false.into();
                answer["error"] = "the processor does not answer now".into();
            }
        },
        Name::Pause => {
            handle.pause();
            let status = handle.wait_for_status(patience, |status| {
                matches!(status.state, State::Paused | State::Stopped)
            });
            answer["state"] = serde_json::to_value(status.state).unwrap_or_default();
        }
        Name::Resume => {
            handle.resume();
            let status = handle.wait_for_status(patience, |status| status.state != State::Paused);
            answer["state"] = serde_json::to_value(status.state).unwrap_or_default();
        }
        Name::Set => match set(&request.knobs, reach) {
            Ok(knobs) => answer["knobs"] = knobs,
            Err(error) => {
                answer["ok"] = false.into();
                answer["error"] = error.into();
            }
        },
        Name::Quit => handle.quit(),
        Name::PowerButton => handle.power_button(),
    }
    if !request.id.is_null() {
        answer["id"] = request.id;
    }
    Answer {
        line: answer.to_string(),
        quits: request.command == Name::Quit,
    }
}

/// Turns knobs and tells how all of them stand then, or why that is not so.
fn set(knobs: &BTreeMap<String, String>, reach: Reach<'_>) -> Result<Value, String> {
    let assignments: Result<Vec<_>, _> = knobs
        .iter()
        .map(|(name, value)| Assignment::of(name, value))
        .collect();
    let assignments = assignments.map_err(|error| error.to_string())?;
    if !assignments.is_empty() {
        reach.handle.turn_knobs(&assignments);
    }
    let holds = |status: &Status| assignments.iter().all(|&a| status.settings.holds(a));
    let is_over = |status: &Status| status.state == State::Stopped;
    let status = reach
        .handle
        .wait_for_status(reach.patience, |status| holds(status) || is_over(status));
    match (holds(&status), is_over(&status)) {
        (true, _) => Ok(serde_json::to_value(status.settings).unwrap_or_default()),
        (false, true) => Err("the machine has ended".into()),
        (false, false) => Err("the processor does not answer now; it will turn them later".into()),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_exits::snapshot::Snapshot;
    use tollgate_machine::vm_handle::Command;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn reach(handle: &VmHandle) -> Reach<'_> {
        static REPORTER: Reporter = Reporter::PLAIN;
        Reach {
            handle,
            reporter: &REPORTER,
            patience: LONG,
        }
    }

    fn value(answer: &Answer) -> Value {
        serde_json::from_str(&answer.line).unwrap()
    }

    #[test]
    fn status_shows_what_the_vcpu_published() {
        let handle = VmHandle::new();
        handle.commands().publish(Status {
            state: State::Stopped,
            guest_time_ns: 7,
            exits: 9,
            ..Status::default()
        });
        let answer = value(&answer(br#"{"command":"status","id":"a"}"#, reach(&handle)));
        assert_eq!(answer["ok"], true);
        assert_eq!(answer["id"], "a");
        assert_eq!(answer["status"]["state"], "stopped");
        assert_eq!(answer["status"]["guest_time_ns"], 7);
        assert_eq!(answer["status"]["exits"], 9);
        assert!(answer["status"]["uptime_ns"].is_u64());
    }

    #[test]
    fn pause_tells_the_state_that_was_reached() {
        let handle = VmHandle::new();
        let commands = handle.commands();
        let vcpu = std::thread::spawn(move || {
            commands.wait_for_command(None);
            commands.publish(Status {
                state: State::Paused,
                ..Status::default()
            });
            commands.take()
        });
        let answer = value(&answer(br#"{"command":"pause"}"#, reach(&handle)));
        assert_eq!(answer, json!({"ok": true, "state": "paused"}));
        assert_eq!(vcpu.join().unwrap(), [Command::Pause]);
    }

    #[test]
    fn quit_and_power_button_reach_the_vcpu() {
        let handle = VmHandle::new();
        assert!(answer(br#"{"command":"quit"}"#, reach(&handle)).quits);
        assert!(!answer(br#"{"command":"power-button"}"#, reach(&handle)).quits);
        let taken = handle.commands().take();
        assert_eq!(taken, [Command::Quit, Command::PowerButton]);
    }

    #[test]
    fn knobs_are_turned_together_and_the_answer_tells_them_all() {
        let handle = VmHandle::new();
        let commands = handle.commands();
        let vcpu = std::thread::spawn(move || {
            commands.wait_for_command(None);
            let taken = commands.take();
            let mut config = tollgate_machine::config::VmConfig::default();
            for command in &taken {
                if let Command::Set(assignment) = command {
                    assignment.apply(&mut config);
                }
            }
            commands.publish(Status {
                settings: tollgate_machine::knobs::Settings::of(&config),
                ..Status::default()
            });
            taken
        });
        let request = br#"{"command":"set","knobs":{"vif":"off","transition":"trap"}}"#;
        let turned = value(&answer(request, reach(&handle)));
        assert_eq!(
            turned,
            json!({"ok": true, "knobs": {"vif": "off", "vir": "on", "transition": "trap"}})
        );
        assert_eq!(vcpu.join().unwrap().len(), 2);
        let listed = value(&answer(br#"{"command":"set"}"#, reach(&handle)));
        assert_eq!(listed, turned);
        assert!(!handle.commands().has_commands());
    }

    #[test]
    fn an_unknown_knob_or_value_turns_nothing() {
        let handle = VmHandle::new();
        for (request, known) in [
            (
                r#"{"command":"set","knobs":{"vif":"off","vid":"on"}}"#,
                "transition",
            ),
            (
                r#"{"command":"set","knobs":{"vif":"off","vir":"maybe"}}"#,
                "off, on",
            ),
        ] {
            let answer = value(&answer(request.as_bytes(), reach(&handle)));
            assert_eq!(answer["ok"], false, "{request}");
            assert!(answer["error"].as_str().unwrap().contains(known));
        }
        assert!(!handle.commands().has_commands());
    }

    #[test]
    fn a_machine_that_has_ended_turns_no_knobs() {
        let handle = VmHandle::new();
        handle.commands().publish(Status {
            state: State::Stopped,
            ..Status::default()
        });
        let request = br#"{"command":"set","knobs":{"vif":"off"}}"#;
        let answer = value(&answer(request, reach(&handle)));
        assert_eq!(answer["error"], "the machine has ended");
    }

    #[test]
    fn stats_are_the_books_with_names() {
        let handle = VmHandle::new();
        handle
            .commands()
            .publish_books(crate::statistics::tests::books());
        let answer = value(&answer(br#"{"command":"stats","id":3}"#, reach(&handle)));
        assert_eq!((&answer["ok"], &answer["id"]), (&json!(true), &json!(3)));
        assert_eq!(answer["stats"]["exit_count"], 1_241);
        assert_eq!(answer["stats"]["exits"][0]["kind"], "cli");
        let snapshot: Snapshot = serde_json::from_value(answer["stats"].clone()).unwrap();
        assert_eq!(snapshot.exits[0].count, 1_234);
    }

    #[test]
    fn a_machine_that_has_stopped_has_no_stats_to_show() {
        let handle = VmHandle::new();
        handle.commands().publish(Status {
            state: State::Stopped,
            ..Status::default()
        });
        let answer = value(&answer(br#"{"command":"stats"}"#, reach(&handle)));
        assert_eq!(answer["ok"], false);
        assert!(!answer["error"].as_str().unwrap().is_empty());
    }

    #[test]
    fn malformed_requests_get_an_error_and_do_nothing() {
        let handle = VmHandle::new();
        let deep = "[".repeat(4000);
        for line in [
            "",
            "status",
            "{}",
            "[\"quit\"]",
            "\"quit\"",
            r#"{"command":"dance"}"#,
            r#"{"command":7}"#,
            r#"{"command":"set","knobs":7}"#,
            r#"{"command":"set","knobs":{"vif":true}}"#,
            r#"{"command":"quit"} x"#,
            "\u{ff}\0",
            &deep,
        ] {
            let answer = value(&answer(line.as_bytes(), reach(&handle)));
            assert_eq!(answer["ok"], false, "{line}");
            assert!(!answer["error"].as_str().unwrap().is_empty());
        }
        assert!(!handle.commands().has_commands());
    }
}
