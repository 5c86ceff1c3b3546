//! Tests of sessions that another server continues.

use crate::client::{Client, Folder, words};
use tollgate_share::protocol::{ROOT, opcode};
use tollgate_share::{Server, ShareOptions};

const ENOSYS: i32 = 38;

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
    let session = client.server.new_session().unwrap();

    // The other server serves another directory, and does not get the request that begins a
    // session.
    let other = Folder::new();
    other.write("file", b"other");
    let continued = Client::continued(Server::open(&unopened(&other)).unwrap());
    assert!(continued.server.resume(session));
    assert_eq!(continued.lookup(ROOT, "file").unwrap().size, 5);
    let body = words(&[0, 0]);
    assert_eq!(continued.call(opcode::OPENDIR, ROOT, &[&body]), Err(ENOSYS));
}

#[test]
fn a_session_that_knows_a_file_or_has_one_open_is_not() {
    let folder = Folder::new();
    folder.write("file", b"");
    let client = folder.client();
    assert!(client.server.new_session().is_some());
    let node = client.lookup(ROOT, "file").unwrap().node;
    assert_eq!(client.server.new_session(), None);
    client.forget(node, 1);
    assert!(client.server.new_session().is_some());
    let body = words(&[0, 0]);
    client.call(opcode::OPENDIR, ROOT, &[&body]).unwrap();
    assert_eq!(client.server.new_session(), None);
}

#[test]
fn a_server_that_needs_requests_which_the_guest_no_longer_sends_refuses() {
    let folder = Folder::new();
    let client = Client::new(Server::open(&unopened(&folder)).unwrap());
    let session = client.server.new_session().unwrap();
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
        assert!(!server.resume(session), "{options:?}");
    }
    // The other way round, the guest sends requests that are not needed.
    let plain = folder.client().server.new_session().unwrap();
    assert!(Server::open(&unopened(&folder)).unwrap().resume(plain));
}
