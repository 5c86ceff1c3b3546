//! What the interface answers, with a machine that only notes what it is asked for.

use serde_json::{Value, json};

use crate::bodies::{
    BalloonState, Drive, Logger, Metrics, NetworkInterface, SnapshotCreate, SnapshotLoad, VmState,
};
use crate::{
    Api, ConfigFile, HttpRequest, InstanceState, Machine, Metadata, Method, Resources, Served,
};

/// A machine that notes the orders that it gets.
#[derive(Default)]
struct Noting {
    orders: Vec<String>,
    saved: Option<Resources>,
}

impl Machine for Noting {
    type Built = ();

    fn check_network(&mut self, interface: &NetworkInterface) -> Result<Option<String>, String> {
        match &*interface.host_dev_name {
            "tap0" => Ok(None),
            "tap1" => Ok(Some("user networking".into())),
            _ => Err("host_dev_name: no such interface".into()),
        }
    }
    fn set_logger(&mut self, _: &Logger) -> Result<(), String> {
        Ok(())
    }
    fn set_metrics(&mut self, _: &Metrics) -> Result<(), String> {
        Ok(())
    }
    fn flush_metrics(&mut self, requests: serde_json::Map<String, Value>) -> Result<(), String> {
        self.orders.push(Value::Object(requests).to_string());
        Ok(())
    }
    fn start(&mut self, resources: &Resources) -> Result<(), String> {
        self.orders.push(resources.command_line(true));
        Ok(())
    }
    fn set_state(&mut self, state: VmState) -> Result<(), String> {
        self.orders.push(format!("{state:?}"));
        Ok(())
    }
    fn create_snapshot(&mut self, _: &SnapshotCreate, resources: &Resources) -> Result<(), String> {
        self.saved = Some(resources.clone());
        Ok(())
    }
    fn load_snapshot(&mut self, _: &SnapshotLoad) -> Result<(Resources, ()), String> {
        Ok((self.saved.clone().ok_or("no snapshot")?, ()))
    }
    fn change_drive(&mut self, index: usize, drive: &Drive) -> Result<(), String> {
        let path = drive.path_on_host.clone().unwrap_or_default();
        if path.ends_with("none") {
            return Err("path_on_host: no such file".into());
        }
        self.orders.push(format!("{index} {}", path.display()));
        Ok(())
    }
    fn set_balloon(&mut self, pages: u32) -> Result<(), String> {
        self.orders.push(format!("{pages} pages"));
        Ok(())
    }
    fn balloon(&mut self) -> Result<BalloonState, String> {
        Ok(BalloonState {
            target_pages: 512,
            actual_pages: 300,
            statistics: vec![(4, 77), (99, 1)],
        })
    }
    fn press_ctrl_alt_delete(&mut self) -> Result<(), String> {
        self.orders.push("keys".into());
        Ok(())
    }
}

struct Client {
    api: Api,
    machine: Noting,
}

impl Client {
    fn new() -> Self {
        Self {
            api: Api::new("test", Metadata::new(100)),
            machine: Noting::default(),
        }
    }

    fn ask(&mut self, method: Method, path: &str, body: Value) -> Served<()> {
        let request = HttpRequest {
            method: Some(method),
            method_name: method.name().into(),
            path: path.into(),
            headers: Vec::new(),
            body: body.to_string().into_bytes(),
            keeps_alive: true,
        };
        self.api.serve(&request, &mut self.machine)
    }

    fn put(&mut self, path: &str, body: Value) {
        let served = self.ask(Method::Put, path, body);
        assert_eq!(served.refusal, None, "{path}");
    }

    fn refusal(&mut self, method: Method, path: &str, body: Value) -> String {
        self.ask(method, path, body).refusal.unwrap_or_default()
    }

    fn get(&mut self, path: &str) -> Value {
        let served = self.ask(Method::Get, path, json!(null));
        serde_json::from_str(&served.response.body.unwrap()).unwrap()
    }

    fn configure(&mut self) {
        self.put(
            "/boot-source",
            json!({"kernel_image_path": "k", "boot_args": ""}),
        );
        let drive = json!({"drive_id": "root", "is_root_device": true, "is_read_only": true,
                           "path_on_host": "d"});
        self.put("/drives/root", drive);
    }
}

const START: &str = r#"{"action_type": "InstanceStart"}"#;

fn start() -> Value {
    serde_json::from_str(START).unwrap()
}

#[test]
fn a_machine_is_configured_started_paused_and_saved() {
    let mut client = Client::new();
    assert_eq!(client.get("/")["state"], "Not started");
    assert_eq!(client.get("/machine-config")["mem_size_mib"], 128);
    client.configure();
    let patch = client.ask(
        Method::Patch,
        "/machine-config",
        json!({"mem_size_mib": 256}),
    );
    assert!(patch.response.is_good());
    client.put("/actions", start());
    assert_eq!(client.machine.orders, ["root=/dev/vda ro"]);
    assert_eq!(
        client.get("/vm/config")["machine-config"]["mem_size_mib"],
        256
    );
    let save = json!({"snapshot_path": "s", "mem_file_path": "m"});
    let early = client.refusal(Method::Put, "/snapshot/create", save.clone());
    assert!(early.contains("Pause"), "{early}");
    let paused = client.ask(Method::Patch, "/vm", json!({"state": "Paused"}));
    assert!(paused.response.is_good());
    assert_eq!(client.get("/")["state"], "Paused");
    client.put("/snapshot/create", save);
    let mut clone = Client::new();
    clone.machine.saved = client.machine.saved.take();
    clone.put("/logger", json!({"level": "Debug", "log_path": "l"}));
    let load = json!({"snapshot_path": "s", "mem_backend":
                      {"backend_type": "File", "backend_path": "m"}, "resume_vm": true});
    clone.put("/snapshot/load", load);
    assert_eq!(clone.api.state(), InstanceState::Running);
    assert_eq!(clone.get("/vm/config")["drives"][0]["drive_id"], "root");
    assert_eq!(clone.get("/vm/config")["logger"]["level"], "Debug");
}

#[test]
fn what_comes_too_early_or_too_late_is_refused() {
    let mut client = Client::new();
    let none = client.refusal(Method::Put, "/actions", start());
    assert!(none.contains("without kernel"), "{none}");
    let early = client.refusal(Method::Patch, "/vm", json!({"state": "Paused"}));
    assert!(early.contains("before starting"), "{early}");
    client.configure();
    let load = json!({"snapshot_path": "s", "mem_file_path": "m"});
    let late = client.refusal(Method::Put, "/snapshot/load", load);
    assert!(late.contains("not allowed after configuring"), "{late}");
    client.put("/actions", start());
    for (path, body) in [
        ("/actions", start()),
        ("/vsock", json!({"guest_cid": 3, "uds_path": "v"})),
        ("/boot-source", json!({"kernel_image_path": "k"})),
        (
            "/machine-config",
            json!({"vcpu_count": 1, "mem_size_mib": 1}),
        ),
    ] {
        let late = client.refusal(Method::Put, path, body);
        assert!(late.contains("after starting"), "{path}: {late}");
    }
    client.put("/actions", json!({"action_type": "SendCtrlAltDel"}));
    client.put("/actions", json!({"action_type": "FlushMetrics"}));
    assert!(client.machine.orders[2].contains(r#""put_api_requests":{"actions_count":4"#));
}

#[test]
fn a_balloon_is_configured_before_and_filled_after_the_start() {
    let mut client = Client::new();
    client.configure();
    let none = client.refusal(Method::Get, "/balloon", json!(null));
    assert!(none.contains("No balloon"), "{none}");
    let balloon = |amount: u64, interval: u64| {
        json!({"amount_mib": amount, "deflate_on_oom": true,
               "stats_polling_interval_s": interval})
    };
    let large = client.refusal(Method::Put, "/balloon", balloon(129, 1));
    assert!(large.starts_with("amount_mib: "), "{large}");
    client.put("/balloon", balloon(1, 1));
    let early = client.refusal(Method::Patch, "/balloon", json!({"amount_mib": 2}));
    assert!(early.contains("before starting"), "{early}");
    client.put("/actions", start());
    client.machine.orders.clear();
    for (amount, is_good) in [(2, true), (129, false)] {
        let patch = client.ask(Method::Patch, "/balloon", json!({"amount_mib": amount}));
        assert_eq!(patch.response.is_good(), is_good);
    }
    assert_eq!(client.machine.orders, ["512 pages"]);
    assert_eq!(client.get("/balloon")["amount_mib"], 2);
    assert_eq!(
        client.get("/balloon/statistics"),
        json!({"target_pages": 512, "actual_pages": 300, "target_mib": 2, "actual_mib": 1,
               "free_memory": 77})
    );
    for (interval, is_good) in [(5, true), (0, false)] {
        let body = json!({"stats_polling_interval_s": interval});
        let patch = client.ask(Method::Patch, "/balloon/statistics", body);
        assert_eq!(patch.response.is_good(), is_good);
    }
    assert_eq!(client.get("/balloon")["stats_polling_interval_s"], 5);
}

#[test]
fn a_drive_gets_another_image_while_the_machine_runs() {
    let mut client = Client::new();
    client.configure();
    let patch = |path: &str| json!({"drive_id": "root", "path_on_host": path});
    let early = client.refusal(Method::Patch, "/drives/root", patch("e"));
    assert!(early.contains("before starting"), "{early}");
    client.put("/actions", start());
    client.machine.orders.clear();
    let done = client.ask(Method::Patch, "/drives/root", patch("e"));
    assert!(done.response.is_good());
    let wrong = client.refusal(Method::Patch, "/drives/root", patch("none"));
    assert!(wrong.starts_with("path_on_host: "), "{wrong}");
    assert_eq!(client.machine.orders, ["0 e"]);
    let drives = &client.get("/vm/config")["drives"];
    assert_eq!(drives[0]["path_on_host"], "e");
    let unknown = json!({"drive_id": "other", "path_on_host": "e"});
    let unknown = client.refusal(Method::Patch, "/drives/other", unknown);
    assert!(unknown.starts_with("drive_id: "), "{unknown}");
}

#[test]
fn metadata_is_no_part_of_a_snapshot_but_its_configuration_is() {
    let mut client = Client::new();
    client.configure();
    let config = json!({"network_interfaces": ["e"], "version": "V2"});
    let none = client.refusal(Method::Put, "/mmds/config", config.clone());
    assert!(none.starts_with("network_interfaces: "), "{none}");
    let interface = json!({"iface_id": "e", "host_dev_name": "tap0"});
    client.put("/network-interfaces/e", interface);
    for (field, value) in [
        ("network_interfaces", json!([])),
        ("ipv4_address", json!("192.0.2.1")),
        ("ipv4_address", json!("169.254.0.1")),
        ("ipv4_address", json!("169.254.255.1")),
    ] {
        let mut wrong = config.clone();
        wrong[field] = value;
        let why = client.refusal(Method::Put, "/mmds/config", wrong);
        assert!(why.starts_with(field), "{why}");
    }
    client.put("/mmds/config", config.clone());
    let early = client.refusal(Method::Patch, "/mmds", json!({"a": 1}));
    assert!(early.contains("not initialized"), "{early}");
    assert_eq!(client.get("/mmds"), Value::Null);
    client.put("/mmds", json!({"a": "b", "c": "d"}));
    client.put("/actions", start());
    let late = client.refusal(Method::Put, "/mmds/config", config);
    assert!(late.contains("after starting"), "{late}");
    let patch = client.ask(Method::Patch, "/mmds", json!({"a": null}));
    assert!(patch.response.is_good());
    assert_eq!(client.get("/mmds"), json!({"c": "d"}));
    let large = client.ask(Method::Put, "/mmds", json!("x".repeat(100)));
    assert!(large.response.bytes(true).starts_with(b"HTTP/1.1 413 "));

    client.ask(Method::Patch, "/vm", json!({"state": "Paused"}));
    client.put(
        "/snapshot/create",
        json!({"snapshot_path": "s", "mem_file_path": "m"}),
    );
    let mut clone = Client::new();
    clone.machine.saved = client.machine.saved.take();
    clone.put(
        "/snapshot/load",
        json!({"snapshot_path": "s", "mem_file_path": "m"}),
    );
    assert_eq!(clone.get("/mmds"), Value::Null);
    assert_eq!(
        clone.get("/vm/config")["mmds-config"],
        json!({"version": "V2", "network_interfaces": ["e"],
               "ipv4_address": "169.254.169.254", "imds_compat": false})
    );
}

#[test]
fn a_refusal_names_the_field() {
    let limiter = json!({"bandwidth": {"size": 1, "refill_time": 1}});
    let drive = |field: &str, value: Value| {
        let mut drive = json!({"drive_id": "d", "is_root_device": false, "path_on_host": "p"});
        drive[field] = value;
        ("/drives/d", drive)
    };
    let machine = |field: &str, value: Value| {
        let mut machine = json!({"vcpu_count": 1, "mem_size_mib": 128});
        machine[field] = value;
        ("/machine-config", machine)
    };
    let interface = |field: &str, value: Value| {
        let mut interface = json!({"iface_id": "e", "host_dev_name": "tap0"});
        interface[field] = value;
        ("/network-interfaces/e", interface)
    };
    for ((path, body), name) in [
        (machine("vcpu_count", json!(2)), "vcpu_count: "),
        (machine("mem_size_mib", json!(0)), "mem_size_mib: "),
        (machine("cpu_template", json!("T2")), "cpu_template: "),
        (machine("huge_pages", json!("2M")), "huge_pages: "),
        (
            machine("ht_enabled", json!(true)),
            "unknown field `ht_enabled`",
        ),
        (
            drive("rate_limiter", limiter.clone()),
            "rate_limiter.bandwidth: ",
        ),
        (drive("socket", json!("s")), "socket: "),
        (drive("drive_id", json!("e")), "drive_id: "),
        (interface("mtu", json!(1500)), "mtu: "),
        (
            interface("tx_rate_limiter", limiter),
            "tx_rate_limiter.bandwidth: ",
        ),
        (interface("host_dev_name", json!("x")), "host_dev_name: "),
        (
            ("/vsock", json!({"guest_cid": 2, "uds_path": "v"})),
            "guest_cid: ",
        ),
        (("/vsock", json!({"guest_cid": 3})), "uds_path"),
        (("/logger", json!({"level": "Loud"})), "level: "),
        (
            ("/boot-source", json!({"kernel_image_path": ""})),
            "kernel_image_path: ",
        ),
        (("/vsock", json!([])), "expected an object"),
        (("/cpu-config", json!({})), "CPU templates"),
        (
            ("/nothing", json!({})),
            "Invalid request method and/or path: PUT /nothing",
        ),
    ] {
        let mut client = Client::new();
        let refusal = client.refusal(Method::Put, path, body);
        assert!(refusal.contains(name), "{path}: {refusal}");
        assert_eq!(client.api.resources(), &Resources::default());
    }
    let limits_nothing = json!({"bandwidth": {"size": 0, "refill_time": 0}, "ops": null});
    let (path, body) = drive("rate_limiter", limits_nothing);
    Client::new().put(path, body);
}

#[test]
fn another_network_is_named_in_the_answer() {
    let mut client = Client::new();
    let body = json!({"iface_id": "eth0", "host_dev_name": "tap1"});
    let served = client.ask(Method::Put, "/network-interfaces/eth0", body);
    assert_eq!(served.response.note.as_deref(), Some("user networking"));
}

#[test]
fn a_configuration_file_says_the_same_as_requests() {
    let mut client = Client::new();
    let file = json!({
        "boot-source": {"kernel_image_path": "k", "boot_args": "a"},
        "drives": [{"drive_id": "d", "is_root_device": true, "path_on_host": "p"}],
        "network-interfaces": [{"iface_id": "e", "host_dev_name": "tap1"}],
        "machine-config": {"vcpu_count": 1, "mem_size_mib": 64},
        "cpu-config": null,
    });
    let parsed = ConfigFile::parse(file.to_string().as_bytes()).unwrap();
    client.api.start_from(parsed, &mut client.machine).unwrap();
    assert_eq!(client.machine.orders, ["a root=/dev/vda rw"]);
    let mut wrong = file.clone();
    wrong["machine-config"]["vcpu_count"] = json!(4);
    let parsed = ConfigFile::parse(wrong.to_string().as_bytes()).unwrap();
    let fault = Client::new().api.start_from(parsed, &mut Noting::default());
    assert!(fault.unwrap_err().message.starts_with("vcpu_count: "));
    let mut unknown = file;
    unknown["drive"] = json!([]);
    let fault = ConfigFile::parse(unknown.to_string().as_bytes()).unwrap_err();
    assert!(
        fault.message.contains("unknown field `drive`"),
        "{}",
        fault.message
    );
}
