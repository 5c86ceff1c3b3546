//! Tests monitors with a machine that only notes what it is told.

use super::*;
use crate::configuration::{Cache, Configuration, Drive, Interface};
use serde_json::{Value, json};

struct Noted {
    config: Configuration,
    state: RunState,
    told: Vec<String>,
    events: Vec<Event>,
}

impl Noted {
    fn new() -> Self {
        let drive = Drive {
            id: "cd".into(),
            interface: Interface::IdeCdRom,
            place: None,
            file: Some("a.iso".into()),
            format: None,
            readonly: true,
            snapshot: false,
            cache: Cache::Writeback,
            discard: false,
            serial: String::new(),
            boot_index: None,
        };
        Self {
            config: Configuration {
                drives: vec![drive],
                name: Some("n".into()),
                ..Configuration::default()
            },
            state: RunState::Running,
            told: Vec::new(),
            events: Vec::new(),
        }
    }

    fn note(&mut self, what: String) -> Result<(), String> {
        self.told.push(what);
        Ok(())
    }
}

impl Machine for Noted {
    fn configuration(&self) -> &Configuration {
        &self.config
    }

    fn media(&self) -> Vec<Option<String>> {
        vec![Some("a.iso".into())]
    }

    fn labels(&self) -> Vec<String> {
        Vec::new()
    }

    fn state(&self) -> RunState {
        self.state
    }

    fn stop(&mut self) -> Result<(), String> {
        self.state = RunState::Paused;
        Ok(())
    }

    fn resume(&mut self) -> Result<(), String> {
        self.state = RunState::Running;
        Ok(())
    }

    fn power_button(&mut self) {
        self.told.push("power".into());
    }

    fn reset(&mut self) {
        self.told.push("reset".into());
    }

    fn quit(&mut self) {
        self.told.push("quit".into());
    }

    fn change_medium(
        &mut self,
        drive: usize,
        file: Option<&str>,
        force: bool,
    ) -> Result<(), String> {
        self.note(format!("medium {drive} {file:?} {force}"))
    }

    fn picture(&mut self, path: &str, form: PictureForm) -> Result<(), String> {
        self.note(format!("picture {path} {form:?}"))
    }

    fn press(&mut self, keys: &[&str]) -> Result<(), String> {
        self.note(format!("press {}", keys.join("+")))
    }

    fn key(&mut self, key: &str, down: bool) -> Result<(), String> {
        self.note(format!("key {key} {down}"))
    }

    fn save(&mut self, path: &str) -> Result<(), String> {
        self.note(format!("save {path}"))
    }

    fn read_ring(&mut self, id: &str, _count: usize) -> Result<Vec<u8>, String> {
        Err(format!("no ring {id}"))
    }

    fn tell(&mut self, event: Event) {
        self.events.push(event);
    }
}

/// What a client gets for bytes.
fn answers(client: &mut Qmp, text: &str, machine: &mut Noted) -> Vec<Value> {
    let bytes = client.take(text.as_bytes(), machine);
    let lines = String::from_utf8(bytes).unwrap();
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn ready(machine: &mut Noted) -> Qmp {
    let mut client = Qmp::new(false);
    client.open();
    let answer = answers(&mut client, r#"{"execute": "qmp_capabilities"}"#, machine);
    assert_eq!(answer, [json!({"return": {}})]);
    client
}

#[test]
fn a_client_is_greeted_and_negotiates_before_it_orders() {
    let mut machine = Noted::new();
    let mut client = Qmp::new(false);
    let greeting: Value = serde_json::from_slice(&client.open()).unwrap();
    assert_eq!(greeting["QMP"]["version"]["qemu"]["major"], VERSION_MAJOR);
    assert_eq!(client.event(Event::Stop), b"");
    let early = answers(&mut client, r#"{"execute": "stop", "id": 1}"#, &mut machine);
    assert_eq!(early[0]["error"]["class"], "CommandNotFound");
    assert_eq!(early[0]["id"], 1);
    let again = answers(
        &mut ready(&mut machine),
        r#"{"execute": "qmp_capabilities"}"#,
        &mut machine,
    );
    assert_eq!(again[0]["error"]["class"], "CommandNotFound");
}

const VERSION_MAJOR: u32 = crate::help::VERSION.0;

#[test]
fn requests_arrive_in_pieces_and_several_together() {
    let mut machine = Noted::new();
    let mut client = ready(&mut machine);
    let none = answers(&mut client, r#"{"execute": "query-"#, &mut machine);
    assert!(none.is_empty());
    let text = "status\", \"id\": \"a\"}{\"execute\": \"stop\"}\n{\"execute\": \"query-status\"}";
    let all = answers(&mut client, text, &mut machine);
    assert_eq!(all[0]["return"]["status"], "running");
    assert_eq!(all[0]["id"], "a");
    assert_eq!(all[1], json!({"return": {}}));
    assert_eq!(all[2]["return"]["status"], "paused");
    assert_eq!(machine.events, [Event::Stop]);
}

#[test]
fn what_is_wrong_has_a_class_and_the_next_line_counts() {
    let mut machine = Noted::new();
    let mut client = ready(&mut machine);
    let text = "{wrong}\n{\"execute\": \"nothing\"}[1]{\"a\": 1}{\"execute\": \"eject\", \"arguments\": {\"device\": \"x\"}}";
    let all = answers(&mut client, text, &mut machine);
    let classes: Vec<_> = all
        .iter()
        .map(|it| it["error"]["class"].as_str().unwrap())
        .collect();
    let generic = "GenericError";
    assert_eq!(
        classes,
        [
            generic,
            "CommandNotFound",
            generic,
            generic,
            "DeviceNotFound"
        ]
    );
}

#[test]
fn orders_reach_the_machine() {
    let mut machine = Noted::new();
    let mut client = ready(&mut machine);
    for request in [
        json!({"execute": "send-key", "arguments": {"keys": [
            {"type": "qcode", "data": "ctrl"}, {"type": "qcode", "data": "c"}]}}),
        json!({"execute": "blockdev-change-medium", "arguments": {"id": "cd", "filename": "b"}}),
        json!({"execute": "eject", "arguments": {"device": "cd", "force": true}}),
        json!({"execute": "screendump", "arguments": {"filename": "s", "format": "png"}}),
        json!({"execute": "migrate", "arguments": {"uri": "file:m"}}),
        json!({"execute": "system_powerdown"}),
        json!({"execute": "system_reset"}),
        json!({"execute": "quit"}),
    ] {
        let answer = answers(&mut client, &request.to_string(), &mut machine);
        assert_eq!(answer, [json!({"return": {}})], "{request}");
    }
    let told = [
        "press ctrl+c",
        "medium 0 Some(\"b\") false",
        "medium 0 None true",
        "picture s Png",
        "save m",
        "power",
        "reset",
        "quit",
    ];
    assert_eq!(machine.told, told);
    let block = answers(&mut client, r#"{"execute": "query-block"}"#, &mut machine);
    assert_eq!(block[0]["return"][0]["inserted"]["file"], "a.iso");
    let event: Value = serde_json::from_slice(&client.event(Event::Reset(true))).unwrap();
    assert_eq!(
        (&event["event"], &event["data"]["guest"]),
        (&json!("RESET"), &json!(true))
    );
    assert!(event["timestamp"]["seconds"].is_u64());
}

#[test]
fn every_command_in_the_list_is_known() {
    let mut machine = Noted::new();
    let mut client = ready(&mut machine);
    let listed = answers(
        &mut client,
        r#"{"execute": "query-commands"}"#,
        &mut machine,
    );
    for command in listed[0]["return"].as_array().unwrap() {
        let name = &command["name"];
        let request = json!({"execute": name}).to_string();
        let answer = answers(&mut client, &request, &mut machine);
        let is_known = answer[0]["error"]["class"] != "CommandNotFound";
        assert!(is_known || name == "qmp_capabilities", "{name}");
    }
}

#[test]
fn a_person_types_lines_after_a_prompt() {
    let mut machine = Noted::new();
    let mut person = Hmp::default();
    let greeting = String::from_utf8(person.open()).unwrap();
    assert!(greeting.starts_with("QEMU ") && greeting.ends_with("\r\n(qemu) "));
    assert_eq!(person.open(), b"(qemu) ");
    let shown = person.take(b"infx\x7fo status\r\n", &mut machine);
    let shown = String::from_utf8(shown).unwrap();
    assert!(
        shown.ends_with("\r\nVM status: running\r\n(qemu) "),
        "{shown:?}"
    );
    person.take(b"stop\nsendkey ctrl-alt-f1\nquit\n", &mut machine);
    assert_eq!(machine.told, ["press ctrl+alt+f1", "quit"]);
    assert_eq!(
        Hmp::line("info status", &mut machine),
        "VM status: paused\n"
    );
    assert_eq!(Hmp::line("info name", &mut machine), "n\n");
    assert_eq!(Hmp::line("foo 1", &mut machine), "unknown command: 'foo'\n");
    assert!(Hmp::line("eject x", &mut machine).starts_with("Error: Device 'x'"));
    assert!(Hmp::line("info block", &mut machine).starts_with("cd: a.iso (raw, read-only)"));
}
