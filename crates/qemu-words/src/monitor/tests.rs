//! Tests monitors with a machine that only notes what it is told.

mod pci_devices;

use super::*;
use crate::configuration::{Configuration, Drive, Interface, Plugged, PluggedKind, Spare};
use serde_json::{Value, json};

struct Noted {
    config: Configuration,
    state: RunState,
    told: Vec<String>,
    events: Vec<Event>,
    tags: Vec<String>,
    jobs: Vec<Job>,
    spare: Spare,
    slots: Vec<u8>,
}

impl Noted {
    fn new() -> Self {
        let drive = Drive {
            id: "cd".into(),
            file: Some("a.iso".into()),
            ..Drive::empty(Interface::IdeCdRom)
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
            tags: Vec::new(),
            jobs: Vec::new(),
            spare: Spare::default(),
            slots: Vec::new(),
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

    fn resize(&mut self, drive: usize, bytes: u64) -> Result<(), String> {
        self.note(format!("resize {drive} {bytes}"))
    }

    fn plug_in(&mut self, drive: Drive) -> Result<(), String> {
        self.told.push(format!("plug in {}", drive.id));
        self.config.drives.push(drive);
        Ok(())
    }

    fn unplug(&mut self, drive: usize) -> Result<(), String> {
        let drive = self.config.drives.remove(drive);
        self.note(format!("unplug {}", drive.id))
    }

    fn slots(&self) -> Vec<u8> {
        self.slots.clone()
    }

    fn plug_into_bus(&mut self, device: Plugged) -> Result<(), String> {
        if let PluggedKind::Disk(drive) = &device.kind {
            self.config.drives.push(drive.clone());
        }
        self.told.push(format!("plug into {}", device.slot));
        self.config.plugged.push(device);
        Ok(())
    }

    fn ask_for_ejection(&mut self, slot: u8) -> Result<(), String> {
        self.note(format!("eject {slot}"))
    }

    fn forget(&mut self, slot: u8) -> Option<Plugged> {
        self.config.drives.retain(|drive| drive.slot != Some(slot));
        let mut plugged = self.config.plugged.iter();
        let place = plugged.position(|it| it.slot == slot)?;
        Some(self.config.plugged.remove(place))
    }

    fn spare(&mut self) -> &mut Spare {
        &mut self.spare
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

    fn mouse(&mut self, motion: Motion) -> Result<(), String> {
        self.note(format!("mouse {motion:?}"))
    }

    fn save(&mut self, path: &str) -> Result<(), String> {
        self.note(format!("save {path}"))
    }

    fn read_ring(&mut self, id: &str, _count: usize) -> Result<Vec<u8>, String> {
        Err(format!("no ring {id}"))
    }

    fn registers(&mut self) -> Result<String, String> {
        Ok("RIP=0000000000007c00\n".into())
    }

    fn register(&mut self, name: &str) -> Result<Option<u64>, String> {
        Ok((name == "rip").then_some(0x7c00))
    }

    fn code_bits(&mut self) -> Result<u32, String> {
        Ok(64)
    }

    fn memory(&mut self, address: u64, bytes: usize, _physical: bool) -> Result<Vec<u8>, String> {
        Ok((0..bytes)
            .map(|place| (address as usize + place) as u8)
            .collect())
    }

    fn write_memory(
        &mut self,
        address: u64,
        bytes: u64,
        physical: bool,
        path: &str,
    ) -> Result<(), String> {
        self.note(format!("memory {address:#x} {bytes} {physical} {path}"))
    }

    fn pages(&mut self) -> Result<Option<Vec<Page>>, String> {
        Ok(None)
    }

    fn interrupts(&mut self, _local: bool) -> Result<String, String> {
        Ok("pic0: irr=00\n".into())
    }

    fn save_tag(&mut self, name: &str) -> Result<(), String> {
        self.tags.push(name.to_owned());
        Ok(())
    }

    fn load_tag(&mut self, name: &str) -> Result<(), String> {
        match self.tags.iter().any(|tag| tag == name) {
            true => self.note(format!("load {name}")),
            false => Err(format!("no snapshot '{name}'")),
        }
    }

    fn delete_tag(&mut self, name: &str) -> Result<(), String> {
        self.tags.retain(|tag| tag != name);
        Ok(())
    }

    fn tags(&self) -> Result<Vec<Tag>, String> {
        let tag = |name: &String| Tag {
            name: name.clone(),
            bytes: 1 << 20,
            seconds: 0,
        };
        Ok(self.tags.iter().map(tag).collect())
    }

    fn jobs(&mut self) -> &mut Vec<Job> {
        &mut self.jobs
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

/// Gives an order. Returns why it is refused, or nothing.
fn refusal(client: &mut Qmp, name: &str, arguments: Value, machine: &mut Noted) -> String {
    let request = json!({"execute": name, "arguments": arguments}).to_string();
    let answer = answers(client, &request, machine).remove(0);
    let why = answer["error"]["desc"].as_str();
    why.unwrap_or_default().to_owned()
}

#[test]
fn a_client_is_greeted_and_negotiates_before_it_orders() {
    let mut machine = Noted::new();
    let mut client = Qmp::new(false);
    let greeting: Value = serde_json::from_slice(&client.open()).unwrap();
    assert_eq!(greeting["QMP"]["version"]["qemu"]["major"], VERSION_MAJOR);
    assert_eq!(client.event(&Event::Stop), b"");
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
        json!({"execute": "block_resize", "arguments": {"device": "cd", "size": 4096}}),
        json!({"execute": "input-send-event", "arguments": {"events": [
            {"type": "rel", "data": {"axis": "x", "value": 3}},
            {"type": "rel", "data": {"axis": "y", "value": -2}},
            {"type": "btn", "data": {"button": "left", "down": true}},
            {"type": "btn", "data": {"button": "wheel-up", "down": true}}]}}),
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
        "resize 0 4096",
        "mouse Motion { right: 3, down: -2, wheel: -1, buttons: [(Left, true)] }",
        "power",
        "reset",
        "quit",
    ];
    assert_eq!(machine.told, told);
    let block = answers(&mut client, r#"{"execute": "query-block"}"#, &mut machine);
    assert_eq!(block[0]["return"][0]["inserted"]["file"], "a.iso");
    let event: Value = serde_json::from_slice(&client.event(&Event::Reset(true))).unwrap();
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

#[test]
fn memory_and_registers_are_shown() {
    let mut machine = Noted::new();
    let mut line = |text: &str| Hmp::line(text, &mut machine);
    assert_eq!(line("info registers"), "RIP=0000000000007c00\n");
    assert_eq!(
        line("x /5xh $rip+0x10"),
        "0000000000007c10: 0x1110 0x1312 0x1514 0x1716 0x1918\n"
    );
    assert_eq!(line("xp /2xb 0x10"), "0000000000000010: 0x10 0x11\n");
    // The bytes are those of their addresses.
    assert_eq!(
        line("x /2i 0x50"),
        format!(
            "0x00000050:  {:<24} push     rax\n0x00000051:  {:<24} push     rcx\n",
            "50", "51"
        )
    );
    assert!(line("x /i 6").contains(" (bad)"));
    assert_eq!(line("x $foo"), "Error: unknown register: 'foo'\n");
    assert_eq!(line("info mem"), "PG disabled\n");
    assert_eq!(line("info pic"), "pic0: irr=00\n");
    assert!(line("device_add virtio-rng-pci").contains("does not support hotplugging"));
    assert!(line("device_add i6300esb").contains("come and go"));
    assert!(line("device_add scsi-hd,drive=a").contains("No 'SCSI' bus"));
}

#[test]
fn drives_come_and_go_at_the_scsi_controller() {
    let mut machine = Noted::new();
    machine.config.scsi_controller = true;
    let mut client = ready(&mut machine);
    let mut order = |name: &str, arguments: Value, machine: &mut Noted| {
        refusal(&mut client, name, arguments, machine)
    };
    let node = json!({"driver": "raw", "node-name": "n",
        "file": {"driver": "file", "filename": "a.img"}, "read-only": true});
    assert_eq!(order("blockdev-add", node.clone(), &mut machine), "");
    assert!(order("blockdev-add", node, &mut machine).contains("Duplicate nodes"));
    let device = json!({"driver": "scsi-hd", "id": "d", "drive": "n", "bus": "s.0",
        "scsi-id": 3, "lun": 1});
    assert_eq!(order("device_add", device.clone(), &mut machine), "");
    assert!(order("device_add", device, &mut machine).contains("Duplicate device ID"));
    let drive = machine.config.drives[1].clone();
    assert_eq!(
        (drive.place, drive.unit, drive.readonly),
        (Some(3), 1, true)
    );
    assert!(order("blockdev-del", json!({"node-name": "n"}), &mut machine).contains("in use"));
    assert_eq!(
        order(
            "block_resize",
            json!({"device": "d", "size": 1}),
            &mut machine
        ),
        ""
    );
    assert_eq!(order("device_del", json!({"id": "d"}), &mut machine), "");
    assert!(order("device_del", json!({"id": "d"}), &mut machine).contains("not found"));
    assert_eq!(machine.events, [Event::DeviceDeleted(Some("d".into()))]);
    assert_eq!(
        order("blockdev-del", json!({"node-name": "n"}), &mut machine),
        ""
    );
    let wrong = json!({"driver": "scsi-hd", "drive": "n"});
    assert!(order("device_add", wrong, &mut machine).contains("can't find value 'n'"));
    assert_eq!(machine.told, ["plug in n", "resize 1 1", "unplug n"]);
    machine.told.clear();
    // A drive in -drive's words goes with its device.
    let mut line = |text: &str| Hmp::line(text, &mut machine);
    assert_eq!(
        line("drive_add 0 if=none,id=x,file=b.img,format=raw"),
        "OK\n"
    );
    assert!(line("drive_add 0 if=virtio,file=b.img").starts_with("Error: "));
    assert_eq!(line("device_add scsi-hd,drive=x,id=e,serial=S"), "");
    assert_eq!(line("device_del e"), "");
    assert!(line("drive_del x").contains("Failed to find node"));
    assert_eq!(line("block_resize cd 2"), "");
    assert_eq!(line("mouse_move 1 2 -3"), "");
    assert_eq!(
        machine.told,
        [
            "plug in x",
            "unplug x",
            "resize 0 2097152",
            "mouse Motion { right: 1, down: 2, wheel: 3, buttons: [] }"
        ]
    );
}

#[test]
fn snapshots_have_names_and_jobs() {
    let mut machine = Noted::new();
    assert_eq!(Hmp::line("savevm", &mut machine), "");
    assert_eq!(Hmp::line("savevm b", &mut machine), "");
    let list = Hmp::line("info snapshots", &mut machine);
    assert!(
        list.contains("vm-1 ") && list.contains("1970-01-01"),
        "{list}"
    );
    let mut client = ready(&mut machine);
    let job = |name: &str, tag: &str| {
        format!(
            r#"{{"execute": "{name}", "arguments": {{"job-id": "{name}-{tag}", "tag": "{tag}",
                "vmstate": "d", "devices": ["d"]}}}}"#
        )
    };
    for (name, tag) in [
        ("snapshot-save", "c"),
        ("snapshot-load", "x"),
        ("snapshot-delete", "b"),
    ] {
        let answer = answers(&mut client, &job(name, tag), &mut machine);
        assert_eq!(answer, [json!({"return": {}})]);
    }
    assert_eq!(machine.tags, ["vm-1", "c"]);
    let answer = answers(&mut client, r#"{"execute": "query-jobs"}"#, &mut machine);
    let jobs = answer[0]["return"].as_array().unwrap().clone();
    assert_eq!(jobs[0].get("error"), None);
    assert_eq!(jobs[1]["error"], "no snapshot 'x'");
    let dismiss = r#"{"execute": "job-dismiss", "arguments": {"id": "snapshot-load-x"}}"#;
    answers(&mut client, dismiss, &mut machine);
    assert_eq!(machine.jobs.len(), 2);
    assert!(
        machine
            .events
            .contains(&Event::JobConcluded("snapshot-save-c".into()))
    );
}
