//! Tests that a guest may know more files than the process has descriptors. They need a process of
//! their own, because descriptors are counted in the whole process.

#[allow(dead_code, reason = "other tests use the rest")]
#[path = "together/client.rs"]
mod client;

use client::{Client, Folder};
use tollgate_share::protocol::ROOT;
use tollgate_share::{Server, limits};

const LIMIT: usize = 200;
const FILES: usize = 700;
const ENFILE: i32 = 23;
const ESTALE: i32 = 116;

#[test]
fn descriptors_that_run_short_are_closed_and_opened_again() {
    let folder = Folder::new();
    let client = Client::new(Server::with_limit(&folder.options(), LIMIT).unwrap());
    let directory = client.mkdir(ROOT, "d", 0o755).unwrap();
    let name = |number: usize| format!("d/file-{number}");
    let mut nodes = Vec::new();
    for number in 0..FILES {
        folder.write(&name(number), number.to_string().as_bytes());
        nodes.push(client.walk(&name(number)).unwrap().node);
        assert!(limits::open() <= LIMIT);
    }
    assert_eq!(client.server.known_files(), FILES + 2);
    for (number, node) in nodes.iter().enumerate() {
        assert_eq!(
            client.content(*node).unwrap(),
            number.to_string().as_bytes()
        );
        assert!(limits::open() <= LIMIT);
    }
    // A directory that was moved, and a file that the guest renamed, are found.
    client.rename(ROOT, "d", ROOT, "e", 0).unwrap();
    client
        .rename(directory.node, "file-0", ROOT, "zero", 0)
        .unwrap();
    assert_eq!(client.getattr(nodes[0]).unwrap().size, 1);
    assert_eq!(client.content(nodes[1]).unwrap(), b"1");
    // If another file has the name of a file whose descriptor is closed, it is not mistaken for it.
    for node in nodes.iter().skip(300) {
        client.getattr(*node).unwrap();
    }
    folder.write("new", b"other");
    std::fs::rename(folder.shared("new"), folder.shared("e/file-2")).unwrap();
    assert_eq!(client.getattr(nodes[2]), Err(ESTALE));
    // Open files are never closed. When no descriptor is left, the guest gets an error.
    let opened: Vec<_> = (0..LIMIT)
        .map(|index| client.open(nodes[600 - index], 0))
        .collect();
    assert!(opened.contains(&Err(ENFILE)));
    assert!(limits::open() <= LIMIT);
    for handle in opened.into_iter().flatten() {
        assert!(!client.read(handle, 0, 10).unwrap().is_empty());
        client.release(handle);
    }
    assert_eq!(client.content(nodes[699]).unwrap(), b"699");
    drop(client);
    assert_eq!(limits::open(), 0);
}
