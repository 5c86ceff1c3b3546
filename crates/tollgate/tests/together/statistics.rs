//! Tests what `--stats` and related commands report about small guests whose exits are known.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::control::{ask, command, connect_to_running, send_and_leave};
use crate::support::folder::Folder;
use crate::support::{self, PATIENCE, finish, tollgate};
use serde_json::{Value, json};

/// The number of reads of [`READS_AND_ENDS`].
const READS: u64 = 1000;

/// The code: mov dx, 3F8h; mov cx, READS; next: in al, dx; loop next; xor al, al; out F4h, al
const READS_AND_ENDS: &[u8] = &[
    0xba, 0xf8, 0x03, 0xb9, 0xe8, 0x03, 0xec, 0xe2, 0xfd, 0x30, 0xc0, 0xe6, 0xf4,
];
/// The exit code of a guest that writes 0 to isa-debug-exit.
const ENDED: Option<i32> = Some(1);

/// The code: mov dx, 3F8h; next: in al, dx; jmp next
const READS_FOR_EVER: &[u8] = &[0xba, 0xf8, 0x03, 0xec, 0xeb, 0xfd];

/// The code: mov dx, 3F8h; next: mov cx, 4000; loop to itself; in al, dx; jmp next. Exits take a
/// small part of its time.
const READS_NOW_AND_THEN: &[u8] = &[
    0xba, 0xf8, 0x03, 0xb9, 0xa0, 0x0f, 0xe2, 0xfe, 0xec, 0xeb, 0xf8,
];

/// The code: mov dx, 3F8h; next: mov cx, 20000; read: in al, dx; loop read; mov bx, 200; again: xor
/// cx, cx; loop to itself; dec bx; jnz again; jmp next. It has many exits, then none for
/// milliseconds.
const READS_AND_COMPUTES: &[u8] = &[
    0xba, 0xf8, 0x03, 0xb9, 0x20, 0x4e, 0xec, 0xe2, 0xfd, 0xbb, 0xc8, 0x00, 0x31, 0xc9, 0xe2, 0xfe,
    0x4b, 0x75, 0xf9, 0xeb, 0xee,
];

/// The address at which the BIOS loads a boot sector.
const START: u64 = 0x7c00;

fn run(folder: &Folder, code: &[u8], arguments: &[&str]) -> Command {
    let mut command = tollgate();
    command
        .args(["run", "-m", "16M", "--serial", "null", "--kernel"])
        .arg(folder.boot_sector(code))
        .args(arguments);
    command
}

/// Runs [`READS_AND_ENDS`] to its end.
#[track_caller]
fn run_to_end(folder: &Folder, arguments: &[&str]) -> Output {
    let output = finish(&mut run(folder, READS_AND_ENDS, arguments), PATIENCE);
    assert_eq!(output.status.code(), ENDED, "{output:?}");
    output
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

fn read_json(path: &Path) -> Value {
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// The row of one kind in a list.
#[track_caller]
fn row<'a>(snapshot: &'a Value, list: &str, kind: &str) -> &'a Value {
    let rows = snapshot[list].as_array().unwrap();
    let found = rows.iter().find(|row| row["kind"] == kind);
    found.unwrap_or_else(|| panic!("no {kind} in {list} of {snapshot}"))
}

/// Starts a guest that reads its port in an endless loop; returns it and its control socket.
fn running(folder: &Folder, arguments: &[&str]) -> (Child, UnixStream) {
    running_code(folder, READS_FOR_EVER, arguments)
}

fn running_code(folder: &Folder, code: &[u8], arguments: &[&str]) -> (Child, UnixStream) {
    let path = folder.path("vm.sock");
    let child = run(folder, code, arguments)
        .arg("--control")
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    (child, connect_to_running(&path))
}

#[track_caller]
fn quit(child: Child, socket: &UnixStream) -> Output {
    command(socket, "quit");
    let output = support::ended(child, PATIENCE);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    output
}

/// Runs `tollgate stats` for the machine in `folder`.
#[track_caller]
fn stats(folder: &Folder, arguments: &[&str]) -> String {
    let mut command = tollgate();
    command
        .arg("stats")
        .arg(folder.path("vm.sock"))
        .args(arguments);
    let output = finish(&mut command, PATIENCE);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn json_in_a_file_has_the_exact_count() {
    let folder = Folder::new();
    let path = folder.path("stats.json");
    let output = run_to_end(
        &folder,
        &["--stats-format", "json", "--stats-file", text(&path)],
    );
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let snapshot = read_json(&path);
    let port_in = row(&snapshot, "exits", "port-in");
    assert_eq!(port_in["count"], READS);
    assert_eq!(port_in["hardware_exit"], "I/O instruction (30)");
    assert!(port_in["assist"].as_str().unwrap().contains("virtio"));
    let origin = row(&snapshot, "origins", "port-in");
    assert_eq!(origin["address"], format!("{:#x}", START + 6));
    assert_eq!(origin["device"], "com1");
    let sum: u64 = snapshot["exits"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["count"].as_u64().unwrap())
        .sum();
    assert_eq!(snapshot["exit_count"], sum);
}

#[test]
fn exports_of_a_paused_machine_agree_to_the_count() {
    let folder = Folder::new();
    let (child, socket) = running(&folder, &[]);
    // A machine that is paused before its first exit has nothing to compare.
    support::eventually("an exit", || {
        let answer = command(&socket, "stats");
        (answer["stats"]["exit_count"].as_u64().unwrap() > 0).then_some(())
    });
    command(&socket, "pause");
    // Answers may be up to 20 ms old, so those from before the pause must expire.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let from_json: Value = serde_json::from_str(&stats(&folder, &["--format", "json"])).unwrap();
    let from_csv = stats(&folder, &["--format", "csv"]);
    let from_table = stats(&folder, &[]);
    let from_socket = command(&socket, "stats")["stats"].clone();
    assert_eq!(from_socket, from_json);
    let rows = from_json["exits"].as_array().unwrap();
    assert!(!rows.is_empty());
    for row in rows {
        let (kind, count) = (row["kind"].as_str().unwrap(), &row["count"]);
        assert!(
            from_csv.contains(&format!("\nexit,{kind},{count},")),
            "{from_csv}"
        );
        let line = from_table.lines().find(|line| line.starts_with(kind));
        let digits: String = line.unwrap().replace(',', "");
        let shown = digits.split_whitespace().nth(1).unwrap();
        assert_eq!(shown, count.to_string());
    }
    quit(child, &socket);
}

#[test]
fn statistics_begin_anew_when_somebody_asks() {
    let folder = Folder::new();
    let (child, socket) = running(&folder, &[]);
    let count = || {
        command(&socket, "stats")["stats"]["exit_count"]
            .as_u64()
            .unwrap()
    };
    support::eventually("exits", || (count() > 0).then_some(()));
    command(&socket, "pause");
    // Answers may be up to 20 ms old, so those from before the pause must expire.
    std::thread::sleep(std::time::Duration::from_millis(100));
    let all = count();
    let status = || {
        command(&socket, "status")["status"]["exits"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(status(), all);
    let said = stats(&folder, &["--reset"]);
    assert_eq!((said.as_str(), count()), ("", 0));
    // The counts of the status continue.
    assert_eq!(status(), all);
    command(&socket, "resume");
    support::eventually("exits again", || (count() > 0).then_some(()));
    quit(child, &socket);
}

#[test]
fn a_reader_that_asks_and_leaves_does_not_harm_the_machine() {
    let folder = Folder::new();
    let (child, socket) = running(&folder, &[]);
    for _ in 0..200 {
        send_and_leave(&folder.path("vm.sock"), b"{\"command\":\"stats\"}\n");
    }
    // On a busy host the vCPU may answer late.
    let count = |answer: &Value| answer["stats"]["exit_count"].as_u64();
    let first = support::eventually("an answer", || {
        let answer = ask(&socket, &json!({"command": "stats", "id": 1}));
        assert_eq!(answer["id"], 1);
        count(&answer)
    });
    support::eventually("more exits", || {
        count(&command(&socket, "stats")).filter(|count| *count > first)
    });
    quit(child, &socket);
}

#[test]
fn symbols_name_the_instructions_that_exits_come_from() {
    let folder = Folder::new();
    let map = folder.file("System.map", b"00007c00 T start\n00007c06 t poll\n");
    let path = folder.path("stats.json");
    let arguments = [
        "--symbols",
        text(&map),
        "--stats-format",
        "json",
        "--stats-file",
        text(&path),
    ];
    run_to_end(&folder, &arguments);
    let snapshot = read_json(&path);
    assert_eq!(row(&snapshot, "origins", "port-in")["symbol"], "poll+0x0");
    assert_eq!(row(&snapshot, "symbols", "port-in")["device"], "com1");
    let by_symbol = row(&snapshot, "symbols", "port-in");
    assert_eq!(by_symbol["symbol"], "poll");
    assert_eq!(
        by_symbol["exits"],
        row(&snapshot, "exits", "port-in")["attributed"]
    );
    // The same symbols fit a guest that is 100h lower.
    let low = folder.file("low.map", b"00007b00 T start\n00007b06 t poll\n");
    let moved = format!("{}@0x100", text(&low));
    let output = run_to_end(&folder, &["--symbols", &moved, "--stats"]);
    let table = String::from_utf8(output.stderr).unwrap();
    assert!(table.contains("poll+0x0"), "{table}");
    assert!(table.contains("exits by symbol"), "{table}");
}

#[test]
fn names_can_be_given_when_statistics_are_shown() {
    let folder = Folder::new();
    let map = folder.file("System.map", b"00007c00 T start\n00007c03 t poll\n");
    let (child, socket) = running(&folder, &[]);
    // The guest has no paging, so its only address space is that of CR3 0.
    let shown = |symbols: &str| stats(&folder, &["--symbols", symbols, "--format", "json"]);
    support::eventually("an origin", || {
        shown(text(&map)).contains("\"poll+").then_some(())
    });
    let here = shown(&format!("{},space=0x0", map.display()));
    assert!(here.contains("\"symbol\": \"poll\""), "{here}");
    let elsewhere = shown(&format!("{},space=0x1000", map.display()));
    assert!(!elsewhere.contains("poll"), "{elsewhere}");
    quit(child, &socket);
}

#[test]
fn saved_statistics_are_shown_with_names_and_prices() {
    let folder = Folder::new();
    let path = folder.path("stats.json");
    let arguments = ["--stats-format", "json", "--stats-file", text(&path)];
    run_to_end(&folder, &arguments);
    let shown = |path: &Path, arguments: &[&str]| {
        finish(tollgate().arg("stats").arg(path).args(arguments), PATIENCE)
    };
    let said = |output: Output| {
        assert_eq!(output.status.code(), Some(0), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let same = said(shown(&path, &["--format", "json"]));
    assert_eq!(
        serde_json::from_str::<Value>(&same).unwrap(),
        read_json(&path)
    );
    let map = folder.file("System.map", b"00007c00 T start\n00007c06 t poll\n");
    let prices = folder.file("prices.csv", b"machine,Old\nkhz,1000\nport-in,1650\n");
    let flags = ["--symbols", text(&map), "--price-table", text(&prices)];
    let table = said(shown(&path, &flags));
    for part in ["poll+0x0", "exits by symbol", "Old", "1,000"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    // Flags that need a machine are refused, and so are files without statistics.
    let refused = |path: &Path, arguments: &[&str]| {
        let output = shown(path, arguments);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    for flags in [&["--reset"][..], &["--interval", "1"], &["--since", "x"]] {
        let message = refused(&path, flags);
        assert!(
            message.contains(flags[0]) && message.contains("running machine"),
            "{message}"
        );
    }
    for (content, why) in [
        (&b"no"[..], "no JSON"),
        (b"{}", "no version"),
        (b"{\"version\":1}", "version is 1"),
        (b"{\"version\":2}", "missing field"),
    ] {
        let message = refused(&folder.file("other", content), &[]);
        assert!(message.contains(why), "{message}");
    }
}

#[test]
fn a_trace_has_every_exit_with_its_time() {
    let folder = Folder::new();
    let path = folder.path("trace.json");
    let output = run_to_end(&folder, &["--trace", text(&path)]);
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let trace = read_json(&path);
    let events = trace["traceEvents"].as_array().unwrap();
    let named = |name: &str| events.iter().filter(|e| e["name"] == name).count();
    assert_eq!(named("port-in") as u64, READS);
    assert_eq!(named("port-out"), 1);
    let complete: Vec<(f64, f64)> = events
        .iter()
        .filter(|event| event["ph"] == "X")
        .map(|event| {
            (
                event["ts"].as_f64().unwrap(),
                event["dur"].as_f64().unwrap(),
            )
        })
        .collect();
    assert_eq!(trace["otherData"]["events"], complete.len());
    // Times increase, and an event that begins inside an exit ends there.
    let mut open: Vec<f64> = Vec::new();
    let mut latest = 0.0;
    for (start, length) in complete {
        assert!(start >= latest && length >= 0.0);
        latest = start;
        open.retain(|end| *end > start + 1e-4);
        assert!(open.iter().all(|end| start + length <= *end + 1e-4));
        open.push(start + length);
    }
}

/// Expects that every entry has the form that the format's description demands, and that two slices
/// of a track either do not overlap or are nested. Perfetto would drop any other slice.
#[track_caller]
fn check_form(trace: &Value) {
    let mut tracks: BTreeMap<(u64, u64), Vec<(f64, f64)>> = BTreeMap::new();
    let mut names: BTreeMap<(&str, u64, u64), &str> = BTreeMap::new();
    assert!(["ms", "ns"].contains(&trace["displayTimeUnit"].as_str().unwrap()));
    assert!(trace["otherData"].is_object());
    for event in trace["traceEvents"].as_array().unwrap() {
        let number = |key: &str| {
            event[key]
                .as_f64()
                .unwrap_or_else(|| panic!("{key}: {event}"))
        };
        let track = (number("pid") as u64, number("tid") as u64);
        assert!(event["name"].is_string(), "{event}");
        match event["ph"].as_str() {
            Some("M") => {
                let name = event["name"].as_str().unwrap();
                assert!(["process_name", "thread_name"].contains(&name), "{event}");
                let given = event["args"]["name"].as_str();
                let given = given.unwrap_or_else(|| panic!("{event}"));
                let before = names.insert((name, track.0, track.1), given);
                assert!(before.is_none(), "named twice: {event}");
            }
            Some("X") => {
                assert!(event["cat"].is_string(), "{event}");
                let times = (number("ts"), number("dur"));
                assert!(times.0 >= 0.0 && times.1 >= 0.0, "{event}");
                let arguments = event.get("args");
                assert!(arguments.is_none_or(Value::is_object), "{event}");
                tracks.entry(track).or_default().push(times);
            }
            _ => panic!("{event}"),
        }
    }
    for (track, mut slices) in tracks {
        let is_named = |what, thread| names.contains_key(&(what, track.0, thread));
        assert!(is_named("process_name", 0), "{track:?}");
        assert!(is_named("thread_name", track.1), "{track:?}");
        slices.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.total_cmp(&a.1)));
        let mut open: Vec<f64> = Vec::new();
        for (start, length) in slices {
            open.retain(|end| *end > start + 1e-4);
            assert!(
                open.iter().all(|end| start + length <= *end + 1e-4),
                "{track:?}"
            );
            open.push(start + length);
        }
    }
}

#[test]
fn a_trace_has_tracks_by_space_and_kind_and_the_names_of_instructions() {
    let folder = Folder::new();
    let path = folder.path("trace.json");
    let symbols = folder.file("map", b"00007c00 T sta\"rt\n00007c06 t poll\n");
    let arguments = ["--trace", text(&path), "--symbols", text(&symbols)];
    run_to_end(&folder, &arguments);
    let trace = read_json(&path);
    check_form(&trace);
    // A trace that keeps the last events has the same form.
    let ring = folder.path("ring.json");
    let few = ["--trace-ring", "--trace-limit", "64K"];
    run_to_end(&folder, &[&["--trace", text(&ring)], &few[..]].concat());
    check_form(&read_json(&ring));
    let events = trace["traceEvents"].as_array().unwrap();
    let reads: Vec<_> = events
        .iter()
        .filter(|event| event["name"] == "port-in")
        .collect();
    assert_eq!(reads.len() as u64, READS);
    assert!(
        reads
            .iter()
            .all(|event| event["args"]["symbol"] == "poll+0x0")
    );
    let named = |what: &str, key: &str| {
        let of_read = |event: &&Value| event["name"] == what && event[key] == reads[0][key];
        let found = events
            .iter()
            .filter(of_read)
            .map(|event| &event["args"]["name"]);
        found
            .filter_map(Value::as_str)
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    assert_eq!(named("process_name", "pid"), ["space 00000000"]);
    assert!(named("thread_name", "tid").contains(&"port-in".to_owned()));
}

#[test]
fn pictures_are_drawn_of_a_run_and_of_a_machine_that_runs() {
    let folder = Folder::new();
    let (svg, png) = (folder.path("run.svg"), folder.path("now.png"));
    run_to_end(&folder, &["--stats-plot", text(&svg)]);
    let drawn = fs::read_to_string(&svg).unwrap();
    for part in [
        "<svg",
        "all exits",
        ", com1:",
        "port-in",
        "translating",
        "</svg>",
    ] {
        assert!(drawn.contains(part), "{part}: {drawn}");
    }
    let (child, socket) = running(&folder, &[]);
    stats(&folder, &["--plot", text(&png)]);
    quit(child, &socket);
    let drawn = fs::read(&png).unwrap();
    assert!(drawn.starts_with(b"\x89PNG") && drawn.len() > 5_000);
}

/// The number of attempts that the ledger has to balance: a host that is a virtual machine itself
/// loses time without knowing it, and a loss in a sample counts for all exits that it stands for.
///
/// So these tests only show that a real clock, a real host and a real vCPU can be brought into
/// balance. They do not catch a wrong booking of less than two per cent of the time, one that
/// misses some runs, or one between two accounts, because only the sum is compared. Those are
/// caught in the ledger's own tests, under a simulated clock: `tests/exact.rs` compares every
/// account with what really passed.
const TRIES: u64 = 8;

#[test]
fn the_ledger_balances_on_a_loaded_host() {
    // Two programs for each processor do nothing but run.
    let ended = Arc::new(AtomicBool::new(false));
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let load: Vec<_> = (0..2 * processors)
        .map(|_| {
            let ended = Arc::clone(&ended);
            std::thread::spawn(move || {
                while !ended.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let balanced = readings_that_balance(READS_NOW_AND_THEN);
    ended.store(true, Ordering::Relaxed);
    for thread in load {
        thread.join().unwrap();
    }
    balanced.unwrap();
}

#[test]
fn the_ledger_balances_of_a_guest_that_does_nothing_but_exits() {
    // Reading the clock makes exits longer by a twelfth.
    readings_that_balance(READS_FOR_EVER).unwrap();
}

#[test]
fn the_ledger_balances_of_a_guest_with_few_long_stretches_between_many_exits() {
    let reading = readings_that_balance(READS_AND_COMPUTES).unwrap();
    let cycles = |key: &str| reading[key].as_u64().unwrap();
    let (guest, exits) = (cycles("guest_cycles"), cycles("exit_cycles"));
    // Neither is negligible.
    assert!(guest > exits / 10 && exits > guest / 100, "{guest} {exits}");
}

/// Runs this guest until the ledger of one run balances and returns that ledger; if none balances,
/// returns the difference and the waiting time of each.
fn readings_that_balance(code: &[u8]) -> Result<Value, String> {
    let folder = Folder::new();
    let path = folder.path("reading.json");
    let mut shares = Vec::new();
    for _ in 0..TRIES {
        let arguments = ["--stats-file", text(&path), "--stats-format", "json"];
        let (child, socket) = running_code(&folder, code, &arguments);
        std::thread::sleep(Duration::from_secs(2));
        quit(child, &socket);
        let reading = read_json(&path);
        let number = |key: &str| reading[key].as_f64().unwrap();
        let missing = number("remainder_cycles") / number("wall_cycles");
        shares.push((missing, number("waiting_cycles") / number("wall_cycles")));
        if missing.abs() < 0.02 {
            return Ok(reading);
        }
    }
    Err(format!("missing, waiting: {shares:?}"))
}

#[test]
fn a_trace_keeps_its_limit_and_says_what_is_missing() {
    let folder = Folder::new();
    let path = folder.path("trace.json");
    let arguments = ["--trace", text(&path), "--trace-limit", "64K"];
    let output = run_to_end(&folder, &arguments);
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(errors.lines().count(), 1, "{errors}");
    assert!(errors.contains("--trace-limit"), "{errors}");
    assert!(fs::metadata(&path).unwrap().len() <= 64 << 10);
    assert_eq!(read_json(&path)["otherData"]["full"], true);
}

#[test]
fn a_full_disk_does_not_harm_the_machine_and_shows_in_the_exit_code() {
    let folder = Folder::new();
    let file = "--stats-file";
    let output = run_to_end(&folder, &[file, "/dev/full"]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("the statistics are lost"));
    // A trace's space is reserved before the guest runs.
    let output = finish(
        &mut run(&folder, READS_AND_ENDS, &["--trace", "/dev/full"]),
        PATIENCE,
    );
    assert_eq!(output.status.code(), Some(2), "{output:?}");

    // The code: mov al, 'x'; out E9h, al; next: in al, dx; jmp next
    const WRITES_AND_READS: &[u8] = &[0xb0, b'x', 0xe6, 0xe9, 0xec, 0xeb, 0xfd];
    let console = ["--debug-console", "file:/dev/full"];
    for (code, arguments) in [
        (READS_FOR_EVER, [file, "/dev/full"]),
        (WRITES_AND_READS, console),
    ] {
        let path = folder.path("vm.sock");
        let child = run(&folder, code, &arguments)
            .arg("--control")
            .arg(&path)
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let socket = connect_to_running(&path);
        support::eventually("an exit", || {
            let answer = command(&socket, "status");
            (answer["status"]["exits"].as_u64().unwrap() > 1).then_some(())
        });
        command(&socket, "quit");
        let output = support::ended(child, PATIENCE);
        assert_eq!(output.status.code(), Some(8), "{output:?}");
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(errors.contains(arguments[0]), "{errors}");
    }
}

#[test]
fn a_trace_is_valid_whenever_the_machine_is_killed() {
    let folder = Folder::new();
    let path = folder.path("trace.json");
    for round in 0..4 {
        let arguments = ["--trace", text(&path), "--trace-limit", "1M"];
        let (mut child, socket) = running(&folder, &arguments);
        // The process is killed some exits later in each round; none of them may have been written
        // yet.
        support::eventually("exits", || {
            let answer = command(&socket, "status");
            (answer["status"]["exits"].as_u64().unwrap() > round * 1500).then_some(())
        });
        child.kill().unwrap();
        child.wait().unwrap();
        let trace = read_json(&path);
        let events = trace["traceEvents"].as_array().unwrap().iter();
        let exits = events.filter(|event| event["ph"] == "X").count() as u64;
        let told = trace["otherData"]["events"].as_u64().unwrap();
        assert!(told <= exits, "{told} of {exits}");
    }
}

#[test]
fn a_price_table_gives_an_estimate() {
    let folder = Folder::new();
    let prices = folder.file("prices", b"machine,Old One\nkhz,1000\nport-in,100\n");
    let path = folder.path("stats.json");
    let arguments = [
        "--price-table",
        text(&prices),
        "--stats-format",
        "json",
        "--stats-file",
        text(&path),
    ];
    run_to_end(&folder, &arguments);
    let estimate = read_json(&path)["estimate"].clone();
    assert_eq!(estimate["machine"], "Old One");
    assert_eq!(estimate["exit_cycles"], READS * 100);
    // The price is 100,000 cycles, at 1 MHz.
    assert_eq!(estimate["exit_ns"], READS * 100 * 1000);
    assert!(estimate["unpriced_exits"].as_u64().unwrap() > 0);
    let output = run_to_end(&folder, &["--price-table", text(&prices), "--stats"]);
    let table = String::from_utf8(output.stderr).unwrap();
    assert!(table.contains("estimate: this run's exits at the prices of Old One"));
    assert!(table.contains("not in the price table"), "{table}");
}

#[test]
fn a_perf_map_names_translated_code() {
    let folder = Folder::new();
    let child = run(&folder, READS_AND_ENDS, &["--perf-map"])
        .stdin(Stdio::null())
        .spawn()
        .unwrap();
    let path = format!("/tmp/perf-{}.map", child.id());
    assert_eq!(support::ended(child, PATIENCE).status.code(), ENDED);
    let map = fs::read_to_string(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let line = map.lines().find(|line| line.ends_with(" guest_00007c00"));
    let fields: Vec<&str> = line.unwrap().split(' ').collect();
    for number in &fields[..2] {
        assert!(u64::from_str_radix(number, 16).unwrap() > 0, "{map}");
    }
}

#[test]
fn files_that_cannot_be_used_are_refused_with_one_line() {
    let folder = Folder::new();
    let map = folder.file("map", b"00007c00 T start\nnonsense\n");
    let prices = folder.file("prices", b"machine,x\nkhz,1\n\nport-in,cheap\n");
    let guest = folder.boot_sector(READS_AND_ENDS);
    let nowhere = folder.path("nowhere/file");
    let nowhere = text(&nowhere);
    for (flag, path, reason) in [
        ("--symbols", nowhere, "no such file"),
        ("--symbols", text(folder.as_path()), "it is a folder"),
        ("--symbols", text(&map), "line 2: expected"),
        ("--symbols", text(&guest), "line 1"),
        ("--symbols", "map@0xyz", "hexadecimal"),
        ("--price-table", nowhere, "no such file"),
        ("--price-table", text(&prices), "line 4: 'cheap'"),
        ("--price-table", "/dev/null", "line 1"),
        ("--trace", nowhere, "folder does not exist"),
        ("--stats-file", text(folder.as_path()), "it is a folder"),
        ("--stats-format", "xml", "table, json, csv"),
        ("--trace-limit", "1K", "at least 64K"),
    ] {
        let output = finish(&mut run(&folder, READS_AND_ENDS, &[flag, path]), PATIENCE);
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{flag} {path}: {errors}");
        assert_eq!(errors.lines().count(), 1, "{flag} {path}: {errors}");
        assert!(errors.contains(flag), "{flag} {path}: {errors}");
        assert!(errors.contains(reason), "{flag} {path}: {errors}");
    }
}

#[test]
fn a_machine_that_is_not_there_has_no_stats() {
    let folder = Folder::new();
    let mut command = tollgate();
    command.arg("stats").arg(folder.path("vm.sock"));
    let output = finish(&mut command, PATIENCE);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no such socket"));
}

#[test]
fn instructions_are_counted_if_that_is_asked_for() {
    let folder = Folder::new();
    let file = folder.path("stats.json");
    let write = ["--stats-format", "json", "--stats-file", text(&file)];
    run_to_end(&folder, &write);
    assert!(read_json(&file).get("instructions").is_none());

    let mut arguments = write.to_vec();
    arguments.extend(["--count-instructions", "--verify-code"]);
    run_to_end(&folder, &arguments);
    // Two instructions precede the loop of two, and two follow it. Each IN exits and counts once.
    // Nothing in this guest faults, and no timer is set.
    let counted = read_json(&file);
    assert_eq!(counted["instructions"], 2 + 2 * READS + 2);
    // An IN becomes two host instructions, a store of 8 bytes and a jump of 4; a LOOP becomes at
    // least two.
    let host = |field: &str| counted["host_code"][field].as_u64().unwrap();
    assert!(host("instructions") >= 4 * READS, "{counted}");
    assert!(host("bytes") >= (8 + 4 + 2) * READS, "{counted}");
}
