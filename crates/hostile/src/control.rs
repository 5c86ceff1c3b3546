//! Hostile input for the control socket: random bytes from a client.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use tollgate_exits::ExitKind;
use tollgate_exits::blame::{Blamed, Place};
use tollgate_exits::ledger::{Cost, Ledger};
use tollgate_exits::reading::{KindReading, Reading};
use tollgate_machine::vm_handle::{State, Status, VmHandle};

/// More bytes than a socket accepts without a reader.
const MAX_BYTES: usize = 64 << 10;

/// Sends the input to a server and reads its answers.
///
/// # Panics
///
/// Panics if the server breaks a promise: an answer is not a line of JSON with a status, or there
/// are more answers than requests.
pub fn run(data: &[u8]) {
    let (mut client, server) = UnixStream::pair().expect("a pair of sockets");
    let data = &data[..data.len().min(MAX_BYTES)];
    client.write_all(data).expect("room in the socket");
    client
        .shutdown(Shutdown::Write)
        .expect("a connected socket");
    // Nothing runs: the machine has stopped, and the last thing it did was to publish its ledger.
    let handle = VmHandle::new();
    let commands = handle.commands();
    commands.publish(Status {
        state: State::Stopped,
        ..Status::default()
    });
    commands.publish_reading(reading());
    tollgate::serve_connection(server, &handle).expect("a connected socket");

    let mut answers = Vec::new();
    // A server that has not read all input resets the connection when it closes it.
    let _ = client.read_to_end(&mut answers);
    let answers: Vec<&[u8]> = answers.split_inclusive(|byte| *byte == b'\n').collect();
    let requests = data.split(|byte| *byte == b'\n');
    assert!(answers.len() <= requests.count());
    for answer in answers {
        if answer.ends_with(b"\n") {
            check(answer);
        }
    }
}

fn check(answer: &[u8]) {
    let value: serde_json::Value = serde_json::from_slice(answer).expect("a line of JSON");
    let is_ok = value["ok"].as_bool().expect("whether all is well");
    assert_eq!(is_ok, value["error"].is_null(), "{value}");
}

/// A ledger with numbers at their limits.
fn reading() -> Reading {
    let ledger = Ledger::new(Default::default, Default::default());
    let mut reading = Reading::of(&ledger, u64::MAX, u64::MAX);
    reading.kinds.push(KindReading {
        kind: ExitKind::ALL[0],
        count: u64::MAX,
        cost: Some(Cost {
            samples: 1,
            total: u64::MAX,
            p50: 0,
            p95: u64::MAX,
            p99: u64::MAX,
            max: u64::MAX,
        }),
    });
    reading.blame.push(Blamed {
        kind: ExitKind::ALL[0],
        place: Place {
            linear: u64::MAX,
            space: 0,
            is_kernel: false,
        },
        device: None,
        exits: u64::MAX,
        cycles: u64::MAX,
    });
    reading
}

/// All requests, and texts that resemble a request.
pub fn seeds() -> Vec<(String, Vec<u8>)> {
    let all = b"{\"command\":\"status\"}\n{\"command\":\"stats\",\"id\":1}\n\
        {\"command\":\"pause\"}\n{\"command\":\"resume\",\"id\":[1,{}]}\n\
        {\"command\":\"mark\",\"mark\":\"a\"}\n{\"command\":\"stats\",\"since\":\"a\"}\n\
        {\"command\":\"power-button\"}\n{\"command\":\"quit\",\"id\":\"x\"}\n";
    let seeds: [(&str, &[u8]); 7] = [
        ("all", all),
        (
            "knobs",
            b"{\"command\":\"set\"}\n{\"command\":\"set\",\"knobs\":{\"vif\":\"off\",\"vir\":\"\"}}\n",
        ),
        ("blank", b"\n\r\n  \n{\"command\":\"status\"}\r\n"),
        ("list", b"[\"quit\"]\n\"quit\"\nnull\n{}\n"),
        (
            "escapes",
            b"{\"command\":\"st\\u0061tus\",\"id\":\"\\ud83d\\ude00\\u0000\"}\n",
        ),
        (
            "numbers",
            b"{\"id\":1e999,\"command\":\"stats\"}\n{\"id\":-0.0,\"command\":\"stats\"}\n",
        ),
        (
            "incomplete",
            b"{\"command\":\"status\",\"command\":\"quit\"}\n{\"command\":",
        ),
    ];
    let mut seeds: Vec<_> = seeds
        .iter()
        .map(|(name, bytes)| ((*name).to_owned(), bytes.to_vec()))
        .collect();
    seeds.push(("deep".into(), [b"[".repeat(4000), b"\n".to_vec()].concat()));
    seeds.push(("long".into(), vec![b'x'; 4097]));
    seeds
}
