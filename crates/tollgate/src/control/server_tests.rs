//! Facts about the control socket, with clients that behave and clients that do not.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;
use tollgate_machine::vm_handle::{State, Status};

use super::*;

/// A path that only this test uses.
fn path() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("tollgate-{}-{number}.sock", std::process::id());
    std::env::temp_dir().join(name)
}

fn bind(path: &Path) -> Result<Server, Failure> {
    Server::bind(path, Arc::new(Reporter::PLAIN), Identity::default())
}

/// A handle of a machine that has stopped, so that each status is answered immediately.
fn stopped() -> VmHandle {
    let handle = VmHandle::new();
    handle.commands().publish(Status {
        state: State::Stopped,
        ..Status::default()
    });
    handle
}

/// Runs one turn of an event loop that does not wait.
fn turn(server: &mut Server, handle: &VmHandle) -> bool {
    let mut fds = Vec::new();
    server.add_interests(&mut fds);
    host::poll(&mut fds, Some(Duration::ZERO)).unwrap();
    server.serve(&fds, handle)
}

fn connect(server: &mut Server, handle: &VmHandle) -> UnixStream {
    let client = UnixStream::connect(&server.file.path).unwrap();
    turn(server, handle);
    client
}

fn read_answer(client: &UnixStream) -> Value {
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap()
}

#[test]
fn only_the_user_may_connect_and_the_file_goes_with_the_server() {
    let path = path();
    let server = bind(&path).unwrap();
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(server);
    assert!(!path.exists());
}

#[test]
fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let path = path();
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = bind(&path).unwrap();
    let failure = bind(&path).err().unwrap();
    assert!(failure.message.contains("another virtual machine"));
    assert!(path.exists());
    drop(server);
}

#[test]
fn a_file_that_is_no_socket_is_left_alone() {
    let path = path();
    fs::write(&path, "precious").unwrap();
    let failure = bind(&path).err().unwrap();
    assert!(failure.message.contains("no socket"));
    assert_eq!(fs::read(&path).unwrap(), b"precious");
    fs::remove_file(&path).unwrap();
}

#[test]
fn a_path_too_long_for_a_socket_is_refused() {
    let long = Path::new("/tmp").join("x".repeat(200));
    let failure = bind(&long).err().unwrap();
    assert!(failure.message.contains("may have 107"), "{failure:?}");
}

#[test]
fn a_socket_that_took_our_place_is_not_removed() {
    let path = path();
    let server = bind(&path).unwrap();
    fs::remove_file(&path).unwrap();
    let other = bind(&path).unwrap();
    drop(server);
    assert!(path.exists());
    drop(other);
}

#[test]
fn requests_in_pieces_and_several_in_one_are_answered_in_order() {
    let handle = stopped();
    let mut server = bind(&path()).unwrap();
    let mut client = connect(&mut server, &handle);
    client.write_all(br#"{"command":"sta"#).unwrap();
    assert!(!turn(&mut server, &handle));
    client
        .write_all(b"tus\",\"id\":1}\r\n\nnonsense\n{\"command\":\"quit\",\"id\":2}\n")
        .unwrap();
    assert!(turn(&mut server, &handle));
    let mut lines = BufReader::new(&client).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    assert_eq!(next()["id"], 1);
    assert_eq!(next()["ok"], false);
    assert_eq!(next()["id"], 2);
}

#[test]
fn an_endless_line_is_refused_and_the_client_dropped() {
    let handle = stopped();
    let mut server = bind(&path()).unwrap();
    let mut client = connect(&mut server, &handle);
    client.write_all(&[b'x'; MAX_LINE + 1]).unwrap();
    turn(&mut server, &handle);
    turn(&mut server, &handle);
    assert_eq!(read_answer(&client)["ok"], false);
    assert!(server.clients.is_empty());
}

#[test]
fn a_client_that_never_reads_is_dropped_and_others_are_served() {
    let handle = stopped();
    let mut server = bind(&path()).unwrap();
    let mut deaf = connect(&mut server, &handle);
    let mut client = connect(&mut server, &handle);
    deaf.set_nonblocking(true).unwrap();
    for _ in 0..100_000 {
        let sent = deaf.write(b"{\"command\":\"status\"}\n");
        if sent.is_err() {
            turn(&mut server, &handle);
        }
        if server.clients.len() < 2 {
            break;
        }
    }
    assert_eq!(server.clients.len(), 1);
    client.write_all(b"{\"command\":\"status\"}\n").unwrap();
    turn(&mut server, &handle);
    assert_eq!(read_answer(&client)["ok"], true);
}

#[test]
fn a_client_that_leaves_is_forgotten_after_its_requests() {
    let handle = stopped();
    let mut server = bind(&path()).unwrap();
    let mut client = connect(&mut server, &handle);
    client.write_all(b"{\"command\":\"quit\"}\n").unwrap();
    drop(client);
    assert!(turn(&mut server, &handle));
    turn(&mut server, &handle);
    assert!(server.clients.is_empty());
}

#[test]
fn one_client_too_many_is_told_so() {
    let handle = stopped();
    let mut server = bind(&path()).unwrap();
    let clients: Vec<_> = (0..MAX_CLIENTS)
        .map(|_| connect(&mut server, &handle))
        .collect();
    let late = connect(&mut server, &handle);
    assert_eq!(read_answer(&late)["error"], "too many clients");
    assert_eq!(server.clients.len(), clients.len());
}

#[test]
fn a_client_that_asks_for_statistics_and_leaves_harms_nobody() {
    let handle = stopped();
    let mut server = bind(&path()).unwrap();
    for _ in 0..100 {
        let mut hasty = connect(&mut server, &handle);
        handle
            .commands()
            .publish_reading(crate::statistics::tests::reading());
        hasty.write_all(b"{\"command\":\"stats\"}\n").unwrap();
        drop(hasty);
        turn(&mut server, &handle);
    }
    turn(&mut server, &handle);
    assert!(server.clients.is_empty());
    let mut client = connect(&mut server, &handle);
    client.write_all(b"{\"command\":\"status\"}\n").unwrap();
    turn(&mut server, &handle);
    assert_eq!(read_answer(&client)["ok"], true);
}

/// A server that never stops waiting for the vCPU thread.
fn patient() -> Server {
    let mut server = bind(&path()).unwrap();
    server.patience = Duration::from_secs(600);
    server
}

#[test]
fn a_request_that_waits_for_the_processor_holds_up_nobody_else() {
    let handle = VmHandle::new();
    let mut server = patient();
    let mut asking = connect(&mut server, &handle);
    asking.set_nonblocking(true).unwrap();
    asking
        .write_all(b"{\"command\":\"status\",\"id\":1}\n{\"command\":\"quit\",\"id\":2}\n")
        .unwrap();
    assert!(!turn(&mut server, &handle));
    let nothing = asking.read(&mut [0; 1]).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::WouldBlock);
    assert!(server.deadline().is_some());

    let mut other = connect(&mut server, &handle);
    other
        .write_all(b"{\"command\":\"power-button\"}\n")
        .unwrap();
    turn(&mut server, &handle);
    assert_eq!(read_answer(&other)["ok"], true);

    // The answer comes in the turn after the vCPU's, and the next request is carried out after it.
    handle.commands().publish(Status {
        state: State::Running,
        exits: 7,
        ..Status::default()
    });
    assert!(turn(&mut server, &handle));
    let mut lines = BufReader::new(&asking).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let first = next();
    assert_eq!(
        (&first["id"], &first["status"]["exits"]),
        (&1.into(), &7.into())
    );
    assert_eq!(next()["id"], 2);
    assert_eq!(server.deadline(), None);
}

#[test]
fn a_client_that_leaves_while_its_request_waits_is_forgotten_after_it() {
    let handle = VmHandle::new();
    let mut server = patient();
    let mut client = connect(&mut server, &handle);
    client
        .write_all(b"{\"command\":\"pause\"}\n{\"command\":\"quit\"}\n")
        .unwrap();
    assert!(!turn(&mut server, &handle));
    drop(client);
    let mut fds = Vec::new();
    server.add_interests(&mut fds);
    host::poll(&mut fds, Some(Duration::ZERO)).unwrap();
    assert!(fds.iter().all(|fd| fd.revents == 0), "the loop would spin");
    assert!(!server.serve(&fds, &handle));
    handle.commands().publish(Status {
        state: State::Paused,
        ..Status::default()
    });
    assert!(
        turn(&mut server, &handle),
        "what was sent before is carried out"
    );
    turn(&mut server, &handle);
    assert!(server.clients.is_empty());
}
