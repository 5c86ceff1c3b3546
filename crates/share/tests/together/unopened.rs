//! Tests of requests that a guest's kernel need not send: opening directories, and reading
//! attributes that it is not shown.

use crate::client::{Client, Folder, quads, text, words};
use tollgate_share::protocol::{ROOT, opcode};
use tollgate_share::{Server, ShareOptions};

const ENOSYS: i32 = 38;

fn client(folder: &Folder) -> Client {
    let options = ShareOptions {
        readonly: true,
        lists_unopened: true,
        hides_attributes: true,
        ..folder.options()
    };
    Client::new(Server::open(&options).unwrap())
}

#[test]
fn directories_are_read_without_being_opened() {
    let folder = Folder::new();
    // These are more directories than stay open.
    for directory in 0..40 {
        std::fs::create_dir(folder.shared(&format!("d{directory}"))).unwrap();
        for file in 0..=directory {
            folder.write(&format!("d{directory}/file-{file}"), b"");
        }
    }
    let client = client(&folder);
    let body = words(&[0, 0]);
    assert_eq!(client.call(opcode::OPENDIR, ROOT, &[&body]), Err(ENOSYS));
    let nodes: Vec<u64> = (0..40)
        .map(|name| client.lookup(ROOT, &format!("d{name}")).unwrap().node)
        .collect();
    for plus in [false, true] {
        for (number, node) in nodes.iter().enumerate().chain([(0, &nodes[0])]) {
            assert_eq!(client.list(*node, 300, plus).len(), number + 3);
        }
    }
    // A listing from the start reads the directory again. Forgotten numbers, and numbers of files,
    // are refused.
    folder.write("d0/new", b"");
    assert_eq!(client.list(nodes[0], 4096, false).len(), 4);
    client.forget(nodes[39], 1);
    let file = client.lookup(nodes[0], "new").unwrap().node;
    let reading = [quads(&[0, 0]), words(&[4096, 0]), quads(&[0, 0])].concat();
    let read = |node| client.call(opcode::READDIR, node, &[&reading]);
    assert_eq!(read(nodes[39]).unwrap_err(), 116);
    assert_eq!(read(file).unwrap_err(), 20);
    // A share without the option requires handles.
    let other = folder.client();
    let reply = other.call(opcode::READDIR, ROOT, &[&reading]);
    assert_eq!(reply.unwrap_err(), 9);
}

#[test]
fn attributes_that_are_not_shown_are_not_asked_for_again() {
    let folder = Folder::new();
    folder.write("a", b"");
    let client = client(&folder);
    let node = client.lookup(ROOT, "a").unwrap().node;
    for size in [0, 100] {
        let asked = [words(&[size, 0]), text("user.any")].concat();
        let reply = client.call(opcode::GETXATTR, node, &[&asked]);
        assert_eq!(reply, Err(ENOSYS));
    }
    assert_eq!(client.listxattr(node), Err(ENOSYS));
}
