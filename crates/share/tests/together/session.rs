//! Tests of sessions that another server continues.

use std::fs;

use crate::client::{Client, Folder, words};
use tollgate_share::protocol::{ROOT, opcode};
use tollgate_share::{Server, ShareOptions};

const ENOSYS: i32 = 38;
const ESTALE: i32 = 116;

fn unopened(folder: &Folder) -> ShareOptions {
    ShareOptions {
        readonly: true,
        reads_unopened: true,
        lists_unopened: true,
        ..folder.options()
    }
}

#[test]
fn a_session_that_knows_only_the_root_is_continued_by_another_server() {
    let folder = Folder::new();
    let client = Client::new(Server::open(&unopened(&folder)).unwrap());
    client.call(opcode::STATFS, ROOT, &[]).unwrap();
    let session = client.server.saved_session().unwrap();

    // The other server serves another directory, and does not get the request that begins a
    // session.
    let other = Folder::new();
    other.write("file", b"other");
    let continued = Client::continued(Server::open(&unopened(&other)).unwrap());
    assert!(continued.server.resume(&session));
    assert_eq!(continued.lookup(ROOT, "file").unwrap().size, 5);
    let body = words(&[0, 0]);
    assert_eq!(continued.call(opcode::OPENDIR, ROOT, &[&body]), Err(ENOSYS));
}

#[test]
fn a_session_that_may_change_a_file_it_knows_or_has_one_open_is_not() {
    let folder = Folder::new();
    folder.write("file", b"");
    let client = folder.client();
    assert!(client.server.saved_session().is_some());
    let node = client.lookup(ROOT, "file").unwrap().node;
    assert_eq!(client.server.saved_session(), None);
    client.forget(node, 1);
    assert!(client.server.saved_session().is_some());
    let body = words(&[0, 0]);
    client.call(opcode::OPENDIR, ROOT, &[&body]).unwrap();
    assert_eq!(client.server.saved_session(), None);
}

#[test]
fn files_of_a_directory_that_is_only_read_are_found_again() {
    let folder = Folder::new();
    fs::create_dir(folder.shared("a")).unwrap();
    folder.write("a/file", b"text");
    folder.write("a/gone", b"");
    folder.write("a/another", b"");
    let client = Client::new(Server::open(&unopened(&folder)).unwrap());
    let a = client.lookup(ROOT, "a").unwrap().node;
    let file = client.lookup(a, "file").unwrap().node;
    let gone = client.lookup(a, "gone").unwrap().node;
    let session = client.server.saved_session().unwrap();
    drop(client);

    folder.write("a/new", b"");
    fs::rename(folder.shared("a/another"), folder.shared("a/gone")).unwrap();
    let continued = Client::continued(Server::open(&unopened(&folder)).unwrap());
    assert!(continued.server.resume(&session));
    assert_eq!(continued.getattr(file).unwrap().size, 4);
    assert_eq!(continued.getattr(gone).map(|it| it.size), Err(ESTALE));
    assert_eq!(continued.lookup(a, "file").unwrap().node, file);
    // A number is never used again.
    assert!(continued.lookup(a, "new").unwrap().node > gone);
    continued.forget(file, 2);
    assert_eq!(continued.getattr(file).map(|it| it.size), Err(ESTALE));

    let other = Folder::new();
    let refused = Server::open(&unopened(&other)).unwrap();
    assert!(!refused.resume(&session));
    let writable = Server::open(&folder.options()).unwrap();
    assert!(!writable.resume(&session));
}

#[test]
fn a_server_that_needs_requests_which_the_guest_no_longer_sends_refuses() {
    let folder = Folder::new();
    let client = Client::new(Server::open(&unopened(&folder)).unwrap());
    let session = client.server.saved_session().unwrap();
    let refuse = [
        folder.options(),
        ShareOptions {
            readonly: false,
            ..unopened(&folder)
        },
        ShareOptions {
            lists_unopened: false,
            ..unopened(&folder)
        },
    ];
    for options in refuse {
        let server = Server::open(&options).unwrap();
        assert!(!server.resume(&session), "{options:?}");
    }
    // The other way round, the guest sends requests that are not needed.
    let plain = folder.client().server.saved_session().unwrap();
    assert!(Server::open(&unopened(&folder)).unwrap().resume(&plain));
}
