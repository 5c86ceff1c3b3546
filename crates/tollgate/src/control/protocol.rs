//! Requests and answers of the control socket.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};
use tollgate_host_facts::file_words;
use tollgate_machine::config::{Backing, DriveOptions};
use tollgate_machine::devices::vga::screen::Screen;
use tollgate_machine::knobs::Assignment;
use tollgate_machine::marks::Span;
use tollgate_machine::vm_handle::{
    self, AfterSnapshot, DriveRequest, MediumChange, Query, QueryNumber, ReadingRequest,
    RemovableDrive, ResetRequest, ScreenRequest, Shown, SnapshotOrder, SnapshotRequest, State,
    Status, StatusRequest, VmHandle,
};

use super::command::{LATE, Name, SNAPSHOT_PATIENCE, ThenName};
use super::identity::Identity;
use super::{mouse, screen, typing};
use crate::confinement;
use crate::statistics::Reporter;

const NO_COMMANDS: &str =
    "this machine takes no commands: 'tollgate exec --keep' starts one that does";

/// A request: a command, its arguments, and an `id` that the answer repeats.
#[derive(Deserialize)]
struct Request {
    command: Name,
    #[serde(default)]
    id: Value,
    /// For `set`: names of knobs and their new values.
    #[serde(default)]
    knobs: BTreeMap<String, String>,
    /// For `mark` and `stats`: the mark that is set after the counts are read.
    mark: Option<String>,
    /// For `stats`: the marks between which events are counted.
    since: Option<String>,
    until: Option<String>,
    /// For `medium`: the drive to change.
    #[serde(default)]
    drive: String,
    /// For `medium`: the file to insert; `None` leaves the drive empty. For `snapshot`: the file to
    /// write.
    file: Option<PathBuf>,
    /// For `snapshot`: the earlier snapshot of which nothing is written again.
    base: Option<PathBuf>,
    /// For `snapshot`: what the machine does afterwards.
    #[serde(default)]
    then: ThenName,
    /// For `medium`: whether the guest cannot write to the medium.
    #[serde(default)]
    readonly: bool,
    /// For `medium`: whether what the guest writes is discarded.
    #[serde(default)]
    snapshot: bool,
    /// For `medium`: which backing files the image may name.
    #[serde(default)]
    backing: Backing,
    /// For `medium`: change the medium even if the guest has locked the drive.
    #[serde(default)]
    force: bool,
    /// For `screen`: the file that the picture is written to.
    png: Option<PathBuf>,
    /// For `type`: the characters to type.
    #[serde(default)]
    text: String,
    /// For `type`: the names of keys to press together.
    keys: Option<String>,
    /// For `type`: an action of the mouse.
    mouse: Option<String>,
}

/// An answer, and whether the client has asked for the end of the machine.
pub struct Answer {
    /// The answer as one line, without its line break.
    pub line: String,
    /// Whether the request was `quit`.
    pub quits: bool,
}

/// The objects that requests are carried out with.
#[derive(Clone, Copy)]
pub struct Reach<'a> {
    /// The machine that requests act on.
    pub handle: &'a VmHandle,
    /// Adds names and prices to statistics.
    pub reporter: &'a Reporter,
    /// Describes the machine.
    pub machine: &'a Identity,
    /// Whether the guest is kept and takes commands.
    pub takes_commands: bool,
    /// How long the vCPU thread may take to answer.
    pub patience: Duration,
}

/// The state of a request.
pub enum Progress {
    /// The request is answered.
    Answered(Answer),
    /// The request is answered, and what follows on the connection is for the guest.
    HandsOver(Answer),
    /// The vCPU thread must do something before the request can be answered.
    Waits(Pending),
}

/// A request that waits for the vCPU thread.
pub struct Pending {
    awaited: Awaited,
    id: Value,
    deadline: Instant,
}

/// What a request waits for.
enum Awaited {
    Status(StatusRequest),
    Reading(ReadingRequest),
    Query(QueryNumber),
    Reset(ResetRequest),
    Screen(ScreenRequest, Option<PathBuf>),
    Medium(DriveRequest),
    /// An order about snapshots, and whether the machine ends after it.
    Snapshot(SnapshotRequest, bool),
    Paused,
    Resumed,
    Knobs(Vec<Assignment>),
}

/// Starts to carry out one request line. This waits for nothing.
pub fn begin(line: &[u8], reach: Reach<'_>) -> Progress {
    // A map is demanded, because the parser would otherwise accept a JSON list as a request.
    let request = serde_json::from_slice::<serde_json::Map<String, Value>>(line)
        .and_then(|fields| serde_json::from_value::<Request>(Value::Object(fields)));
    match request {
        Ok(request) => carry_out(request, reach),
        Err(error) => Progress::Answered(refusal(&format!("not a request: {error}"))),
    }
}

/// An answer that says what was wrong.
pub fn refusal(error: &str) -> Answer {
    Answer {
        line: json!({"ok": false, "error": error}).to_string(),
        quits: false,
    }
}

/// [`refusal`] with the `id` that the client wants in the answer.
fn refused(error: &str, id: &Value) -> Progress {
    Progress::Answered(Answer {
        line: with_id(json!({"ok": false, "error": error}), id),
        quits: false,
    })
}

impl Request {
    fn has_no_mark(&self) -> bool {
        [&self.mark, &self.since, &self.until]
            .iter()
            .all(|name| name.is_none())
    }

    /// The query that `mark` and `stats` send to the vCPU thread.
    fn query(&self) -> Result<Query, String> {
        let name = |name: &Option<String>| name.as_deref().map(str::parse).transpose();
        let span = Span {
            since: name(&self.since)?,
            until: name(&self.until)?,
        };
        Ok(Query {
            span: (self.command == Name::Stats).then_some(span),
            mark: name(&self.mark)?,
        })
    }
}

fn carry_out(request: Request, reach: Reach<'_>) -> Progress {
    let handle = reach.handle;
    let done = |quits| {
        Progress::Answered(Answer {
            line: with_id(json!({"ok": true}), &request.id),
            quits,
        })
    };
    let awaited = match request.command {
        Name::Exec if reach.takes_commands => {
            return Progress::HandsOver(Answer {
                line: with_id(json!({"ok": true}), &request.id),
                quits: false,
            });
        }
        Name::Exec => return refused(NO_COMMANDS, &request.id),
        Name::Status => Awaited::Status(handle.request_status()),
        Name::Stats if request.has_no_mark() => Awaited::Reading(handle.request_reading()),
        Name::Stats | Name::Mark => match request.query() {
            Ok(query) => Awaited::Query(handle.query(query)),
            Err(error) => return refused(&error, &request.id),
        },
        Name::ResetStats => Awaited::Reset(handle.request_reset_of_ledger()),
        Name::Pause => {
            handle.pause();
            Awaited::Paused
        }
        Name::Resume => {
            handle.resume();
            Awaited::Resumed
        }
        Name::Set => match turn_knobs(&request.knobs, handle) {
            Ok(assignments) => Awaited::Knobs(assignments),
            Err(error) => return refused(&error, &request.id),
        },
        Name::Medium => match medium_change(&request) {
            Ok(change) => Awaited::Medium(handle.request_drives(change)),
            Err(error) => return refused(&error, &request.id),
        },
        Name::Snapshot => match request.file {
            Some(path) => {
                let ends = request.then == ThenName::Quit;
                let then = if ends {
                    AfterSnapshot::Pause
                } else {
                    AfterSnapshot::Resume
                };
                let base = request.base;
                let order = SnapshotOrder::Write { path, base, then };
                Awaited::Snapshot(handle.request_snapshot(order), ends)
            }
            None => return refused("a snapshot needs a file", &request.id),
        },
        Name::Reset => Awaited::Snapshot(handle.request_snapshot(SnapshotOrder::PutBack), false),
        Name::Screen => {
            let wants_picture = request.png.is_some();
            Awaited::Screen(handle.request_screen(wants_picture), request.png)
        }
        Name::Type => {
            let typed = match (&request.keys, &request.mouse) {
                (Some(keys), _) => typing::type_keys(keys, handle).map(usize::from),
                (None, Some(action)) => mouse::act(action, handle).map(usize::from),
                (None, None) => typing::type_text(&request.text, handle),
            };
            let answer = match typed {
                Ok(typed) => json!({"ok": true, "typed": typed}),
                Err(error) => json!({"ok": false, "error": error}),
            };
            return Progress::Answered(Answer {
                line: with_id(answer, &request.id),
                quits: false,
            });
        }
        Name::Refused => {
            let refused = serde_json::to_value(handle.refused()).unwrap_or_default();
            return Progress::Answered(Answer {
                line: with_id(json!({"ok": true, "refused": refused}), &request.id),
                quits: false,
            });
        }
        Name::Quit => {
            handle.quit();
            return done(true);
        }
        Name::PowerButton => {
            handle.power_button();
            return done(false);
        }
    };
    let patience = match awaited {
        Awaited::Snapshot(..) => reach.patience.max(SNAPSHOT_PATIENCE),
        _ => reach.patience,
    };
    let pending = Pending {
        awaited,
        id: request.id,
        deadline: Instant::now() + patience,
    };
    match pending.answer(reach) {
        Some(answer) => Progress::Answered(answer),
        None => Progress::Waits(pending),
    }
}

/// The answer as a line, with the `id` that the client wants in it.
fn with_id(mut answer: Value, id: &Value) -> String {
    if !id.is_null() {
        answer["id"] = id.clone();
    }
    answer.to_string()
}

impl Pending {
    /// The time at which the request is answered with what is known by then.
    pub fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The answer, if the vCPU thread has done what was asked or has no time left.
    pub fn answer(&self, reach: Reach<'_>) -> Option<Answer> {
        let answer = match self.try_answer(reach) {
            Some(answer) => answer,
            None if Instant::now() >= self.deadline => self.late_answer(reach),
            None => return None,
        };
        let quits = matches!(self.awaited, Awaited::Snapshot(_, true)) && answer["ok"] == true;
        if quits {
            reach.handle.quit();
        }
        Some(Answer {
            line: with_id(answer, &self.id),
            quits,
        })
    }

    fn try_answer(&self, reach: Reach<'_>) -> Option<Value> {
        let handle = reach.handle;
        let status = handle.status();
        let is_over = status.state == State::Stopped;
        match &self.awaited {
            Awaited::Status(request) => handle
                .status_after(*request)
                .map(|status| status_answer(status, reach.machine)),
            Awaited::Reading(request) => match handle.reading_after(*request) {
                Some(reading) => {
                    let snapshot = reach.reporter.snapshot(&reading);
                    let stats = serde_json::to_value(snapshot).unwrap_or_default();
                    Some(json!({"ok": true, "stats": stats}))
                }
                None => is_over.then(no_answer),
            },
            Awaited::Query(number) => match handle.fetch(*number) {
                Some(answer) => Some(query_answer(answer, reach.reporter)),
                None => is_over.then(no_answer),
            },
            Awaited::Reset(request) => match handle.has_reset_ledger(*request) {
                true => Some(json!({"ok": true})),
                false => is_over.then(no_answer),
            },
            Awaited::Screen(request, png) => match handle.screen_after(*request) {
                Some(shown) => Some(screen_answer(&shown, png.as_deref())),
                None => is_over.then(no_answer),
            },
            Awaited::Medium(request) => match handle.drives_after(*request) {
                Some(Ok(())) => Some(json!({"ok": true})),
                Some(Err(error)) => Some(json!({"ok": false, "error": error})),
                None => is_over.then(no_answer),
            },
            Awaited::Snapshot(request, _) => match handle.snapshot_after(*request) {
                Some(Ok(())) => Some(json!({"ok": true})),
                Some(Err(error)) => Some(json!({"ok": false, "error": error})),
                None => is_over.then(no_answer),
            },
            Awaited::Paused => {
                (is_over || status.state == State::Paused).then(|| state_answer(status.state))
            }
            Awaited::Resumed => match status.state {
                State::Paused => None,
                // A halted machine runs too: it waits for an interrupt.
                State::Halted => Some(state_answer(State::Running)),
                state => Some(state_answer(state)),
            },
            Awaited::Knobs(assignments) => {
                if assignments.iter().all(|&a| status.settings.holds(a)) {
                    let knobs = serde_json::to_value(status.settings).unwrap_or_default();
                    Some(json!({"ok": true, "knobs": knobs}))
                } else {
                    is_over.then(|| json!({"ok": false, "error": "the machine has ended"}))
                }
            }
        }
    }

    /// The answer from what is known without the vCPU thread.
    fn late_answer(&self, reach: Reach<'_>) -> Value {
        let handle = reach.handle;
        match self.awaited {
            Awaited::Status(_) => status_answer(handle.status(), reach.machine),
            Awaited::Reading(_) | Awaited::Query(_) | Awaited::Screen(..) => no_answer(),
            Awaited::Reset(_) => {
                let error = "the processor does not answer now; it will begin them anew later";
                json!({"ok": false, "error": error})
            }
            Awaited::Medium(_) => {
                let error = "the processor does not answer now; it will change the medium later";
                json!({"ok": false, "error": error})
            }
            Awaited::Snapshot(..) => {
                let error = "the processor does not answer now; it will carry out the order later";
                json!({"ok": false, "error": error})
            }
            Awaited::Paused | Awaited::Resumed => state_answer(handle.status().state),
            Awaited::Knobs(_) => {
                let error = "the processor does not answer now; it will turn them later";
                json!({"ok": false, "error": error})
            }
        }
    }
}

/// The change of a medium that a request asks for, or what is wrong with it.
fn medium_change(request: &Request) -> Result<MediumChange, String> {
    let drive = RemovableDrive::named(&request.drive)
        .ok_or_else(|| format!("no drive '{}': expected a, b, or d to g", request.drive))?;
    let image = request.file.as_ref().map(|file| DriveOptions {
        readonly: request.readonly,
        snapshot: request.snapshot,
        backing: request.backing,
        ..DriveOptions::new(file)
    });
    Ok(MediumChange {
        drive,
        image,
        force: request.force,
    })
}

fn status_answer(status: Status, machine: &Identity) -> Value {
    let mut status = serde_json::to_value(status).unwrap_or_default();
    status["machine"] = serde_json::to_value(machine).unwrap_or_default();
    json!({"ok": true, "status": status})
}

fn query_answer(answer: vm_handle::Answer, reporter: &Reporter) -> Value {
    let reading = match answer.reading.transpose() {
        Ok(reading) => reading,
        Err(error) => return json!({"ok": false, "error": error}),
    };
    let marks = answer.marks.iter();
    let marks = marks.filter(|(name, _)| !name.as_str().starts_with('.'));
    let marks: Vec<Value> = marks
        .map(|(name, at)| json!({"name": name.as_str(), "guest_time_ns": at}))
        .collect();
    let mut value = json!({"ok": true, "marks": marks});
    if let Some(reading) = reading {
        value["stats"] = serde_json::to_value(reporter.snapshot(&reading)).unwrap_or_default();
    }
    value
}

fn state_answer(state: State) -> Value {
    let state = serde_json::to_value(state).unwrap_or_default();
    json!({"ok": true, "state": state})
}

/// The content of the screen. A picture of it is written to the file.
fn screen_answer(shown: &Shown, png: Option<&Path>) -> Value {
    let refused = |error: String| json!({"ok": false, "error": error});
    if let Some(path) = png {
        let Some(picture) = &shown.picture else {
            return refused("nothing is on the screen".into());
        };
        if let Err(error) = screen::write_png(path, picture) {
            let why = file_words::writing(&error);
            return refused(format!("cannot write '{}': {why}", path.display()));
        }
    }
    let mut described = serde_json::to_value(&shown.screen).unwrap_or_default();
    if let Screen::Text(text) = &shown.screen {
        described["lines"] = text.lines().collect();
    }
    json!({"ok": true, "screen": described})
}

fn no_answer() -> Value {
    json!({"ok": false, "error": LATE})
}

/// Changes all of the knobs or none; returns their new values, or why that is impossible.
fn turn_knobs(
    knobs: &BTreeMap<String, String>,
    handle: &VmHandle,
) -> Result<Vec<Assignment>, String> {
    let assignments: Result<Vec<_>, _> = knobs
        .iter()
        .map(|(name, value)| Assignment::of(name, value))
        .collect();
    let assignments = assignments.map_err(|error| error.to_string())?;
    confinement::allows(&assignments)?;
    if !assignments.is_empty() {
        handle.turn_knobs(&assignments);
    }
    Ok(assignments)
}

#[cfg(test)]
mod tests {
    use std::sync::{Condvar, LazyLock, Mutex};

    use tollgate_exits::snapshot::Snapshot;
    use tollgate_machine::vm_handle::Command;

    use super::*;

    const LONG: Duration = Duration::from_secs(20);

    fn reach(handle: &VmHandle) -> Reach<'_> {
        static REPORTER: Reporter = Reporter::PLAIN;
        static MACHINE: LazyLock<Identity> = LazyLock::new(|| {
            let kernel = Some(Path::new("/boot/vmlinuz"));
            Identity::new(64 << 20, kernel, None, "quiet")
        });
        Reach {
            handle,
            reporter: &REPORTER,
            machine: &MACHINE,
            takes_commands: false,
            patience: LONG,
        }
    }

    /// Carries out a request and waits for the answer as an event loop does.
    fn answer(line: &[u8], reach: Reach<'_>) -> Answer {
        let published = std::sync::Arc::new((Mutex::new(0), Condvar::new()));
        let listener = std::sync::Arc::clone(&published);
        reach.handle.add_listener(std::sync::Arc::new(move || {
            *listener.0.lock().unwrap() += 1;
            listener.1.notify_all();
        }));
        let pending = match begin(line, reach) {
            Progress::Answered(answer) | Progress::HandsOver(answer) => return answer,
            Progress::Waits(pending) => pending,
        };
        let mut count = published.0.lock().unwrap();
        loop {
            if let Some(answer) = pending.answer(reach) {
                return answer;
            }
            let before = *count;
            let left = pending.deadline().saturating_duration_since(Instant::now());
            count = published
                .1
                .wait_timeout_while(count, left, |count| *count == before)
                .unwrap()
                .0;
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
        let machine = &answer["status"]["machine"];
        assert_eq!(machine["pid"], std::process::id());
        assert_eq!(machine["memory_bytes"], 64 << 20);
        assert_eq!(machine["kernel"], "/boot/vmlinuz");
        assert_eq!(machine["command_line"], "quiet");
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
    fn a_processor_that_waits_for_an_interrupt_goes_on_after_a_pause() {
        let handle = VmHandle::new();
        handle.commands().publish(Status {
            state: State::Halted,
            ..Status::default()
        });
        let resumed = value(&answer(br#"{"command":"resume"}"#, reach(&handle)));
        assert_eq!(resumed, json!({"ok": true, "state": "running"}));
        handle.commands().take();
    }

    #[test]
    fn a_processor_without_time_left_is_answered_for() {
        let handle = VmHandle::new();
        let impatient = Reach {
            takes_commands: false,
            patience: Duration::ZERO,
            ..reach(&handle)
        };
        for (command, ok) in [
            (r#"{"command":"status"}"#, true),
            (r#"{"command":"pause"}"#, true),
            (r#"{"command":"stats"}"#, false),
            (r#"{"command":"set","knobs":{"vif":"off"}}"#, false),
        ] {
            let Progress::Answered(answer) = begin(command.as_bytes(), impatient) else {
                panic!("{command} waits");
            };
            assert_eq!(value(&answer)["ok"], ok, "{command}");
        }
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
            json!({"ok": true, "knobs": {
                "vif": "off", "vir": "on", "transition": "trap", "memory-access": "adaptive", "anchors": "on", "user-code": "translated", "switch": "inline",
                "shadow-tables": "auto",
                "invalidation": "inline", "reverse-map": "on",
                "double-invalidation": "entry-count", "compare-entries": "on", "icache": "fast-path", "interruptible": "restart"
            }})
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
    fn stats_are_the_ledger_with_names() {
        let handle = VmHandle::new();
        handle
            .commands()
            .publish_reading(crate::statistics::tests::reading());
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
