//! Tests that requests are answered immediately in the same way as by the threads.

use crate::client::{Client, Folder, quads, text, u64_at, words};
use std::os::unix::fs::symlink;
use tollgate_share::protocol::{ROOT, opcode};

const CAPACITY: usize = 1 << 16;

fn at_once(client: &Client, opcode: u32, node: u64, body: &[u8]) -> Option<Vec<u8>> {
    let request = client.request(opcode, node, &[body]);
    client.server.handle_at_once(&request, CAPACITY)
}

fn by_a_thread(client: &Client, opcode: u32, node: u64, body: &[u8]) -> Vec<u8> {
    let request = client.request(opcode, node, &[body]);
    client.server.handle(&request, CAPACITY)
}

/// Checks an immediate answer. A request may only lack one on a file system that does not support
/// it.
fn assert_same(client: &Client, opcode: u32, node: u64, body: &[u8]) {
    let answer = at_once(client, opcode, node, body);
    let expected = by_a_thread(client, opcode, node, body);
    if let Some(answer) = answer {
        assert_eq!(answer, expected, "{opcode}");
    }
}

fn reading(handle: u64, offset: u64, size: u32) -> Vec<u8> {
    let tail = [words(&[size, 0]), quads(&[0]), words(&[0, 0])];
    [quads(&[handle, offset]), tail.concat()].concat()
}

#[test]
fn answers_are_the_same() {
    let folder = Folder::new();
    folder.write("a", b"some content");
    std::fs::create_dir(folder.shared("d")).unwrap();
    symlink("a", folder.shared("link")).unwrap();
    for options in [folder.options(), {
        let mut options = folder.options();
        options.readonly = true;
        options.reads_unopened = true;
        options
    }] {
        let client = Client::new(tollgate_share::Server::open(&options).unwrap());
        for name in ["a", "d", "link", "missing"] {
            assert_same(&client, opcode::LOOKUP, ROOT, &text(name));
        }
        let [file, link] = ["a", "link"].map(|name| client.lookup(ROOT, name).unwrap().node);
        for node in [ROOT, file, link, 999] {
            assert_same(&client, opcode::GETATTR, node, &quads(&[0, 0]));
            assert_same(&client, opcode::READLINK, node, &[]);
            for size in [0, 100] {
                let asked = [words(&[size, 0]), text("security.capability")].concat();
                assert_same(&client, opcode::GETXATTR, node, &asked);
            }
        }
        let handle = match options.reads_unopened {
            true => 0,
            false => client.open(file, 0).unwrap(),
        };
        for (offset, size) in [(0, 4096), (5, 3), (12, 100), (4096, 100), (u64::MAX, 1)] {
            let reading = reading(handle, offset, size);
            assert_same(&client, opcode::READ, file, &reading);
            assert_same(&client, opcode::READ, ROOT, &reading);
        }
    }
}

#[test]
fn a_directory_is_read_on_at_once() {
    let folder = Folder::new();
    for number in 0..300 {
        folder.write(&format!("file-{number:03}"), b"");
    }
    let client = folder.client();
    let handle = u64_at(&by_a_thread(&client, opcode::OPENDIR, ROOT, &[0; 8]), 16);
    let (mut seen, mut offset, mut first) = (0, 0, true);
    loop {
        let body = reading(handle, offset, 1000);
        let answer = at_once(&client, opcode::READDIRPLUS, ROOT, &body);
        // Nothing is known of entries that were not read.
        assert!(!first || answer.is_none());
        first = false;
        let answer =
            answer.unwrap_or_else(|| by_a_thread(&client, opcode::READDIRPLUS, ROOT, &body));
        let mut entries = &answer[16..];
        if entries.is_empty() {
            break;
        }
        while !entries.is_empty() {
            let name_bytes = crate::client::u32_at(entries, 128 + 16) as usize;
            offset = u64_at(entries, 128 + 8);
            entries = &entries[128 + (24 + name_bytes).next_multiple_of(8)..];
            seen += 1;
        }
    }
    assert_eq!(seen, 302);
    assert_eq!(client.server.known_files(), 301);
    // A listing from the start reads the directory again.
    folder.write("later", b"");
    assert_eq!(client.list(ROOT, 1000, true).len(), 303);
}

#[test]
fn what_may_wait_is_left_to_threads() {
    let folder = Folder::new();
    folder.write("a", b"content");
    let client = folder.client();
    let file = client.lookup(ROOT, "a").unwrap().node;
    let names = [text("new"), text("newer")].concat();
    for kind in 0..60 {
        let answered = [
            opcode::LOOKUP,
            opcode::GETATTR,
            opcode::GETXATTR,
            opcode::READLINK,
            opcode::FORGET,
            opcode::OPEN,
            opcode::OPENDIR,
            opcode::READ,
            opcode::READDIR,
            opcode::READDIRPLUS,
            opcode::RELEASE,
            opcode::RELEASEDIR,
        ];
        if !answered.contains(&kind) {
            assert_eq!(at_once(&client, kind, ROOT, &names), None, "{kind}");
        }
    }
    // The file is opened for writing or is truncated.
    for flags in [1, 2, 0o1000] {
        assert_eq!(
            at_once(&client, opcode::OPEN, file, &words(&[flags, 0])),
            None
        );
    }
    let handle = client.open(file, 2).unwrap();
    let release = quads(&[handle, 0, 0]);
    assert_eq!(at_once(&client, opcode::RELEASE, file, &release), None);
    // These are files of a file system that is not local, here those of the host's kernel.
    let root = Client::new(
        tollgate_share::Server::open(&tollgate_share::ShareOptions::new("/", "root")).unwrap(),
    );
    assert_eq!(at_once(&root, opcode::LOOKUP, ROOT, &text("proc")), None);
}
