//! Tests that a guest's operations have their effects on the host's files.

use crate::client::{Client, Folder, exists, quads, text, u32_at, u64_at, words};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use tollgate_share::protocol::{ROOT, opcode, set};
use tollgate_share::{Server, ShareOptions};

const O_RDWR: i32 = 2;
const O_WRONLY: i32 = 1;
const O_EXCL: i32 = 0o200;
const O_TRUNC: i32 = 0o1000;
const O_APPEND: i32 = 0o2000;

const ENOENT: i32 = 2;
const EBADF: i32 = 9;
const EEXIST: i32 = 17;
const EISDIR: i32 = 21;
const EINVAL: i32 = 22;
const EROFS: i32 = 30;
const ERANGE: i32 = 34;
const ENOSYS: i32 = 38;
const ENODATA: i32 = 61;
const ESTALE: i32 = 116;

#[test]
fn the_version_is_agreed_on() {
    let folder = Folder::new();
    let client = folder.client();
    let init = |minor: u32| client.call(opcode::INIT, 0, &[&words(&[7, minor, 4096, u32::MAX])]);
    let reply = init(38).unwrap();
    assert_eq!(reply.len(), 64);
    assert_eq!((u32_at(&reply, 0), u32_at(&reply, 4)), (7, 38));
    assert_eq!(u32_at(&reply, 20), 1 << 20, "bytes written at once");
    assert_eq!(u32_at(&reply, 28) & 0xffff, 256, "pages");
    assert!(init(31).is_ok());
    assert!(init(30).is_err());
    assert_eq!(client.call(999, ROOT, &[]), Err(ENOSYS));
}

#[test]
fn files_are_created_written_and_read() {
    let folder = Folder::new();
    let client = folder.client();
    let (entry, handle) = client
        .create(ROOT, "a", O_RDWR | O_EXCL, 0o100_640)
        .unwrap();
    assert_eq!((entry.mode, entry.uid, entry.size), (0o100_640, 0, 0));
    assert_eq!(client.write(handle, 3, b"hello"), Ok(5));
    assert_eq!(client.read(handle, 0, 100).unwrap(), b"\0\0\0hello");
    assert_eq!(client.read(handle, 4, 2).unwrap(), b"el");
    assert_eq!(client.read(handle, 8, 2).unwrap(), b"");
    assert_eq!(std::fs::read(folder.shared("a")).unwrap(), b"\0\0\0hello");
    assert_eq!(client.getattr(entry.node).unwrap().size, 8);
    let mode = folder.shared("a").metadata().unwrap().mode();
    assert_eq!(mode, 0o100_640);
    assert_eq!(
        client.create(ROOT, "a", O_RDWR | O_EXCL, 0o644),
        Err(EEXIST)
    );
    let again = client.create(ROOT, "a", O_RDWR | O_TRUNC, 0o644).unwrap();
    assert_eq!((again.0.node, again.0.size), (entry.node, 0));
    assert_eq!(client.getattr(entry.node).unwrap().size, 0);
    assert_eq!(client.write(again.1, 0, b"new"), Ok(3));
    let again = client.create(ROOT, "a", O_RDWR, 0o644).unwrap();
    assert_eq!(again.0.size, 3);
    client
        .call(opcode::RELEASE, entry.node, &[&quads(&[handle, 0, 0])])
        .unwrap();
    assert_eq!(client.read(handle, 0, 1), Err(EBADF));
}

#[test]
fn an_append_goes_to_the_end_unless_it_comes_from_the_cache() {
    let folder = Folder::new();
    folder.write("a", b"12345");
    let client = folder.client();
    let node = client.lookup(ROOT, "a").unwrap().node;
    let handle = client.open(node, O_WRONLY | O_APPEND).unwrap();
    client
        .write_with(handle, 0, b"6", 0, O_WRONLY | O_APPEND)
        .unwrap();
    client
        .write_with(handle, 0, b"x", 1, O_WRONLY | O_APPEND)
        .unwrap();
    assert_eq!(client.content(node).unwrap(), b"x23456");
}

#[test]
fn names_are_made_moved_and_removed() {
    let folder = Folder::new();
    let client = folder.client();
    let directory = client.mkdir(ROOT, "d", 0o755).unwrap();
    assert_eq!(directory.mode, 0o040_755);
    let link = client
        .symlink(directory.node, "s", "../../outside/secret")
        .unwrap();
    let target = client.call(opcode::READLINK, link.node, &[]).unwrap();
    assert_eq!(target, b"../../outside/secret");
    folder.write("f", b"1");
    let file = client.lookup(ROOT, "f").unwrap();
    let second = client.link(file.node, directory.node, "g").unwrap();
    assert_eq!((second.node, second.links), (file.node, 2));
    client.rename(directory.node, "g", ROOT, "h", 0).unwrap();
    assert!(exists(&folder.shared("h")) && !exists(&folder.shared("d/g")));
    assert_eq!(
        client.rename(ROOT, "h", directory.node, "s", 1),
        Err(EEXIST)
    );
    client.rename(ROOT, "h", directory.node, "s", 2).unwrap();
    assert!(folder.shared("h").is_symlink());
    client.unlink(ROOT, "h").unwrap();
    assert_eq!(client.lookup(ROOT, "h"), Err(ENOENT));
    client.mknod(ROOT, "pipe", 0o010_600, 0).unwrap();
    assert!(
        folder
            .shared("pipe")
            .metadata()
            .unwrap()
            .file_type()
            .is_fifo()
    );
    client.unlink(ROOT, "pipe").unwrap();
    client.unlink(directory.node, "s").unwrap();
    client.call(opcode::RMDIR, ROOT, &[&text("d")]).unwrap();
    assert!(!exists(&folder.shared("d")));
}

#[test]
fn a_number_stands_for_the_same_file_until_it_is_forgotten() {
    let folder = Folder::new();
    folder.write("a", b"content");
    let client = folder.client();
    let first = client.lookup(ROOT, "a").unwrap();
    std::fs::rename(folder.shared("a"), folder.shared("b")).unwrap();
    let second = client.lookup(ROOT, "b").unwrap();
    assert_eq!(first.node, second.node);
    std::fs::remove_file(folder.shared("b")).unwrap();
    assert_eq!(client.getattr(first.node).unwrap().links, 0);
    assert_eq!(client.content(first.node).unwrap(), b"content");
    client.forget(first.node, 1);
    assert!(client.getattr(first.node).is_ok());
    client.forget(first.node, 7);
    assert_eq!(client.getattr(first.node), Err(ESTALE));
    client.forget(ROOT, u64::MAX);
    assert!(client.getattr(ROOT).is_ok());
    assert_eq!(client.server.known_files(), 1);
}

#[test]
fn all_entries_of_a_large_directory_come_once() {
    let folder = Folder::new();
    for number in 0..3000 {
        folder.write(&format!("file-{number}"), b"");
    }
    symlink("x", folder.shared("link")).unwrap();
    let client = folder.client();
    for (size, plus) in [(4096, false), (300, false), (65536, true), (1000, true)] {
        let names = client.list(ROOT, size, plus);
        assert_eq!(names.len(), 3003);
        assert_eq!((names["file-77"], names["link"], names["."]), (8, 10, 4));
        assert_eq!(client.server.known_files(), 1);
    }
}

#[test]
fn attributes_are_set() {
    let folder = Folder::new();
    folder.write("a", b"0123456789");
    let client = folder.client();
    let node = client.lookup(ROOT, "a").unwrap().node;
    let entry = client.setattr(node, set::SIZE, 0, [0, 0], 4).unwrap();
    assert_eq!(entry.size, 4);
    let entry = client
        .setattr(node, set::MODE, 0o100_751, [0, 0], 0)
        .unwrap();
    assert_eq!(entry.mode, 0o100_751);
    assert_eq!(folder.shared("a").metadata().unwrap().mode(), 0o100_751);
    let times = [
        words(&[set::ATIME | set::MTIME, 0]),
        quads(&[0, 0, 0, 1000, 2000, 0]),
        words(&[1, 2, 0, 0, 0, 0, 0, 0]),
    ];
    client
        .call(opcode::SETATTR, node, &[&times.concat()])
        .unwrap();
    let stat = folder.shared("a").metadata().unwrap();
    assert_eq!((stat.atime(), stat.atime_nsec()), (1000, 1));
    assert_eq!((stat.mtime(), stat.mtime_nsec()), (2000, 2));
}

/// Whether the folder for temporary files supports extended attributes.
fn keeps_attributes(client: &Client, node: u64) -> bool {
    client.setxattr(node, "user.probe", b"1").is_ok()
}

#[test]
fn owners_and_set_id_bits_are_kept_beside_the_file() {
    let folder = Folder::new();
    folder.write("a", b"1");
    let mut client = folder.client();
    let own = folder.shared("a").metadata().unwrap();
    let node = client.lookup(ROOT, "a").unwrap().node;
    assert_eq!(client.getattr(node).unwrap().uid, 0);
    if !keeps_attributes(&client, node) {
        return;
    }
    let owners = set::UID | set::GID;
    let entry = client.setattr(node, owners, 0, [1000, 100], 0).unwrap();
    assert_eq!((entry.uid, entry.gid), (1000, 100));
    let entry = client
        .setattr(node, set::MODE, 0o106_755, [0, 0], 0)
        .unwrap();
    assert_eq!(entry.mode, 0o106_755);
    let stat = folder.shared("a").metadata().unwrap();
    assert_eq!(
        (stat.uid(), stat.gid(), stat.mode()),
        (own.uid(), own.gid(), 0o100_755)
    );
    // A chmod on the host is visible, and the owner stays.
    let mode = std::fs::Permissions::from_mode(0o600);
    std::fs::set_permissions(folder.shared("a"), mode).unwrap();
    let entry = client.getattr(node).unwrap();
    assert_eq!((entry.mode, entry.uid), (0o100_600, 1000));
    // A new owner clears set-user-ID, and so does a write that requests it.
    client
        .setattr(node, set::MODE, 0o104_755, [0, 0], 0)
        .unwrap();
    assert_eq!(
        client.setattr(node, set::UID, 0, [0, 0], 0).unwrap().mode,
        0o100_755
    );
    client
        .setattr(node, set::MODE, 0o104_755, [0, 0], 0)
        .unwrap();
    let handle = client.open(node, O_RDWR).unwrap();
    client.write(handle, 0, b"2").unwrap();
    assert_eq!(client.getattr(node).unwrap().mode, 0o104_755);
    client.write_with(handle, 0, b"2", 1 << 2, 0).unwrap();
    assert_eq!(client.getattr(node).unwrap().mode, 0o100_755);
    // A file that a user of the guest creates belongs to that user, even in a directory that passes
    // on its group.
    (client.uid, client.gid) = (1001, 1002);
    let (entry, _) = client.create(ROOT, "mine", O_RDWR, 0o644).unwrap();
    assert_eq!((entry.uid, entry.gid), (1001, 1002));
    let shared = client.mkdir(ROOT, "group", 0o755).unwrap();
    client
        .setattr(shared.node, set::MODE, 0o042_775, [0, 0], 0)
        .unwrap();
    let group = client
        .setattr(shared.node, set::GID, 0, [0, 50], 0)
        .unwrap();
    assert_eq!((group.mode, group.gid), (0o042_775, 50));
    let below = client.mkdir(shared.node, "below", 0o755).unwrap();
    assert_eq!((below.mode, below.gid), (0o042_755, 50));
    assert_eq!(folder.shared("group").metadata().unwrap().mode(), 0o040_775);
    // None of this appears as an attribute.
    assert_eq!(client.listxattr(shared.node).unwrap(), b"");
}

// This test is significant only if the tests run as an ordinary user.
#[test]
fn the_guests_root_gets_at_files_whose_mode_keeps_their_owner_out() {
    let folder = Folder::new();
    let client = folder.client();
    let directory = client.mkdir(ROOT, "d", 0o500).unwrap();
    let (entry, handle) = client.create(directory.node, "f", O_RDWR, 0).unwrap();
    client.write(handle, 0, b"content").unwrap();
    client.release(handle);
    assert_eq!(client.content(entry.node).unwrap(), b"content");
    let entry = client.setattr(entry.node, set::SIZE, 0, [0, 0], 4).unwrap();
    assert_eq!((entry.size, entry.mode), (4, 0o100_000));
    if keeps_attributes(&client, entry.node) {
        let owners = set::UID | set::GID;
        let entry = client.setattr(entry.node, owners, 0, [7, 8], 0).unwrap();
        assert_eq!((entry.uid, entry.gid, entry.mode), (7, 8, 0o100_000));
        assert_eq!(client.getattr(entry.node).unwrap().uid, 7);
    }
    client
        .rename(directory.node, "f", directory.node, "g", 0)
        .unwrap();
    client.mkdir(directory.node, "e", 0).unwrap();
    assert_eq!(client.list(directory.node, 4096, true).len(), 4);
    // The modes are unchanged.
    let mode = |name: &str| folder.shared(name).metadata().unwrap().mode();
    assert_eq!(mode("d"), 0o040_500);
    client.unlink(directory.node, "g").unwrap();
    client
        .call(opcode::RMDIR, directory.node, &[&text("e")])
        .unwrap();
    client.call(opcode::RMDIR, ROOT, &[&text("d")]).unwrap();
}

#[test]
fn that_a_name_is_missing_is_believed_for_as_long_as_one_that_is_there() {
    let folder = Folder::new();
    let client = folder.client();
    let reply = client.call(opcode::LOOKUP, ROOT, &[&text("none")]).unwrap();
    assert_eq!((u64_at(&reply, 0), u64_at(&reply, 16)), (0, 1));
    let mut options = folder.options();
    options.cache_seconds = 0;
    let client = Client::new(Server::open(&options).unwrap());
    assert_eq!(client.lookup(ROOT, "none"), Err(ENOENT));
}

#[test]
fn a_share_that_keeps_owners_shows_whom_files_belong_to_on_the_host() {
    let folder = Folder::new();
    folder.write("a", b"1");
    let own = folder.shared("a").metadata().unwrap();
    let mut options = folder.options();
    options.keeps_owners = true;
    let client = Client::new(Server::open(&options).unwrap());
    let shown = client.lookup(ROOT, "a").unwrap();
    assert_eq!((shown.uid, shown.gid), (own.uid(), own.gid()));
    // The guest's user with this number creates files of the host's user without an attribute.
    let (entry, _) = client.create(ROOT, "b", O_RDWR, 0o666).unwrap();
    if !keeps_attributes(&client, entry.node) {
        return;
    }
    let owners = set::UID | set::GID;
    client
        .setattr(entry.node, owners, 0, [own.uid(), own.gid()], 0)
        .unwrap();
    let shown = client.lookup(ROOT, "b").unwrap();
    assert_eq!((shown.uid, shown.gid), (own.uid(), own.gid()));
    let attribute = rustix::fs::getxattr(
        folder.shared("b"),
        "user.tollgate.owner",
        &mut [0u8; 64][..],
    );
    assert!(attribute.is_err());
}

#[test]
fn the_umask_of_the_server_does_not_count() {
    let folder = Folder::new();
    let client = folder.client();
    assert_eq!(client.mkdir(ROOT, "d", 0o777).unwrap().mode, 0o040_777);
    let (entry, _) = client.create(ROOT, "f", O_RDWR, 0o666).unwrap();
    assert_eq!(entry.mode, 0o100_666);
    assert_eq!(
        client.mknod(ROOT, "n", 0o100_222, 0).unwrap().mode,
        0o100_222
    );
}

#[test]
fn attributes_with_names_are_kept_and_those_of_kernels_mean_nothing_here() {
    let folder = Folder::new();
    folder.write("a", b"1");
    let client = folder.client();
    let node = client.lookup(ROOT, "a").unwrap().node;
    if !keeps_attributes(&client, node) {
        return;
    }
    client
        .call(opcode::REMOVEXATTR, node, &[&text("user.probe")])
        .unwrap();
    client.setxattr(node, "user.colour", b"blue").unwrap();
    client
        .setxattr(node, "security.capability", b"\x01\x02")
        .unwrap();
    assert_eq!(client.getxattr(node, "user.colour", 100).unwrap(), b"blue");
    assert_eq!(client.getxattr(node, "user.colour", 3), Err(ERANGE));
    assert_eq!(client.getxattr(node, "user.colour", 0).unwrap()[0], 4);
    let value = client.getxattr(node, "security.capability", 100);
    assert_eq!(value.unwrap(), b"\x01\x02");
    assert_eq!(client.getxattr(node, "trusted.x", 100), Err(ENODATA));
    let names = client.listxattr(node).unwrap();
    let mut names: Vec<_> = names.split(|byte| *byte == 0).collect();
    names.sort_unstable();
    assert_eq!(names, [&b""[..], b"security.capability", b"user.colour"]);
    for name in [
        "user.tollgate.owner",
        "system.posix_acl_access",
        "colour",
        "",
    ] {
        assert!(
            client.setxattr(node, name, b"0 0 4755 755").is_err(),
            "{name}"
        );
        assert!(client.getxattr(node, name, 100).is_err(), "{name}");
    }
}

#[test]
fn holes_and_ranges() {
    let folder = Folder::new();
    let client = folder.client();
    let (_, source) = client.create(ROOT, "a", O_RDWR, 0o644).unwrap();
    let (target, copy) = client.create(ROOT, "b", O_RDWR, 0o644).unwrap();
    client.write(source, 1 << 20, b"data").unwrap();
    let seek = |whence: u32| {
        let body = [quads(&[source, 0]), words(&[whence, 0])].concat();
        Ok::<_, i32>(u64_at(&client.call(opcode::LSEEK, ROOT, &[&body])?, 0))
    };
    assert!(seek(3).unwrap() <= 1 << 20);
    assert_eq!(seek(0), Err(EINVAL));
    let range = quads(&[source, 1 << 20, ROOT, copy, 2, 4, 0]);
    let copied = client
        .call(opcode::COPY_FILE_RANGE, ROOT, &[&range])
        .unwrap();
    assert_eq!(u32_at(&copied, 0), 4);
    assert_eq!(client.content(target.node).unwrap(), b"\0\0data");
    let fallocate = [quads(&[copy, 0, 4096]), words(&[0, 0])].concat();
    client.call(opcode::FALLOCATE, ROOT, &[&fallocate]).unwrap();
    assert_eq!(client.getattr(target.node).unwrap().size, 4096);
    for kind in [opcode::FSYNC, opcode::FSYNCDIR] {
        let body = [quads(&[copy]), words(&[1, 0])].concat();
        client.call(kind, target.node, &[&body]).unwrap();
    }
    client.call(opcode::SYNCFS, ROOT, &[&quads(&[0])]).unwrap();
    let stat = client.call(opcode::STATFS, ROOT, &[]).unwrap();
    assert_eq!(stat.len(), 80);
    assert_eq!(u32_at(&stat, 44), 255, "bytes of a name");
}

#[test]
fn a_read_only_share_changes_nothing() {
    let folder = Folder::new();
    folder.write("a", b"content");
    let client = folder.readonly();
    let node = client.lookup(ROOT, "a").unwrap().node;
    assert_eq!(client.content(node).unwrap(), b"content");
    let handle = client.open(node, 0).unwrap();
    let fallocate = [quads(&[handle, 0, 4096]), words(&[0, 0])].concat();
    let range = quads(&[handle, 0, ROOT, handle, 2, 4, 0]);
    for result in [
        client.open(node, O_WRONLY).map(drop),
        client.open(node, O_RDWR).map(drop),
        client.open(node, O_TRUNC).map(drop),
        client.create(ROOT, "b", O_RDWR, 0o644).map(drop),
        client.write(handle, 0, b"x").map(drop),
        client.setattr(node, set::SIZE, 0, [0, 0], 0).map(drop),
        client.setattr(node, set::MODE, 0o777, [0, 0], 0).map(drop),
        client.mkdir(ROOT, "d", 0o755).map(drop),
        client.mknod(ROOT, "d", 0o100_755, 0).map(drop),
        client.symlink(ROOT, "d", "x").map(drop),
        client.link(node, ROOT, "d").map(drop),
        client.unlink(ROOT, "a"),
        client.call(opcode::RMDIR, ROOT, &[&text("a")]).map(drop),
        client.rename(ROOT, "a", ROOT, "b", 0),
        client.setxattr(node, "user.x", b"1"),
        client
            .call(opcode::REMOVEXATTR, node, &[&text("user.x")])
            .map(drop),
        client
            .call(opcode::FALLOCATE, ROOT, &[&fallocate])
            .map(drop),
        client
            .call(opcode::COPY_FILE_RANGE, ROOT, &[&range])
            .map(drop),
    ] {
        assert_eq!(result, Err(EROFS));
    }
    assert_eq!(std::fs::read(folder.shared("a")).unwrap(), b"content");
    assert_eq!(std::fs::read_dir(folder.shared("")).unwrap().count(), 1);
}

#[test]
fn files_of_a_read_only_share_are_read_without_being_opened() {
    let folder = Folder::new();
    let names: Vec<String> = (0..50).map(|number| format!("file-{number}")).collect();
    for name in &names {
        folder.write(name, name.as_bytes());
    }
    let options = ShareOptions {
        readonly: true,
        reads_unopened: true,
        ..folder.options()
    };
    let client = Client::new(Server::open(&options).unwrap());
    let nodes: Vec<u64> = (names.iter())
        .map(|name| client.lookup(ROOT, name).unwrap().node)
        .collect();
    assert_eq!(client.open(nodes[0], 0), Err(ENOSYS));
    for (node, name) in nodes
        .iter()
        .chain(&nodes[40..])
        .zip(names.iter().chain(&names[40..]))
    {
        let content = client.read_unopened(*node, 5, 100).unwrap();
        assert_eq!(content, &name.as_bytes()[5..]);
    }
    assert_eq!(client.read_unopened(ROOT, 0, 100), Err(EISDIR));
    // A file that the host removes stays the same file, even when another one gets its name.
    for name in ["file-0", "file-49"] {
        std::fs::remove_file(folder.shared(name)).unwrap();
        folder.write(name, b"another");
    }
    for (number, name) in [(0, "file-0"), (49, "file-49")] {
        let content = client.read_unopened(nodes[number], 0, 100).unwrap();
        assert_eq!(content, name.as_bytes());
    }
    client.forget(nodes[49], 1);
    assert_eq!(client.read_unopened(nodes[49], 0, 100), Err(ESTALE));
    // Directories (with "." and "..") are still opened, and a share without the option opens its
    // files.
    assert_eq!(client.list(ROOT, 4096, false).len(), 52);
    let others = folder.readonly();
    let node = others.lookup(ROOT, "file-1").unwrap().node;
    assert_eq!(others.content(node).unwrap(), b"file-1");
    assert_eq!(others.read_unopened(node, 0, 100), Err(EBADF));
}

#[test]
fn what_cannot_be_shared_is_refused() {
    let folder = Folder::new();
    folder.write("a", b"1");
    for (path, why) in [
        (folder.shared("none"), "no such directory"),
        (folder.shared("a"), "not a directory"),
        ("/proc/self".into(), "kernel"),
    ] {
        let refusal = Server::open(&ShareOptions::new(path, "x")).unwrap_err();
        assert!(refusal.to_string().contains(why), "{refusal}");
    }
}

/// An operation of a client on a file.
type Change = fn(&Client, u64);

/// Operations that change a file's contents, by a client that never requests that set-user-ID is
/// cleared.
const CHANGES: [(&str, Change); 6] = [
    ("open with O_TRUNC", |client, node| {
        client.open(node, O_RDWR | O_TRUNC).unwrap();
    }),
    ("create what is there", |client, _| {
        client.create(ROOT, "a", O_RDWR | O_TRUNC, 0o644).unwrap();
    }),
    ("set the size", |client, node| {
        client.setattr(node, set::SIZE, 0, [0, 0], 1).unwrap();
    }),
    ("write", |client, node| {
        let handle = client.open(node, O_RDWR).unwrap();
        client.write(handle, 0, b"2").unwrap();
    }),
    ("allocate", |client, node| {
        let handle = client.open(node, O_RDWR).unwrap();
        let body = [quads(&[handle, 0, 4096]), words(&[0, 0])].concat();
        // Not every file system supports this.
        let _ = client.call(opcode::FALLOCATE, ROOT, &[&body]);
    }),
    ("copy a range", |client, node| {
        let from = client
            .open(client.lookup(ROOT, "b").unwrap().node, O_RDWR)
            .unwrap();
        let to = client.open(node, O_RDWR).unwrap();
        let body = quads(&[from, 0, node, to, 0, 4, 0]);
        let _ = client.call(opcode::COPY_FILE_RANGE, ROOT, &[&body]);
    }),
];

#[test]
fn a_hosts_set_id_bits_do_not_survive_a_change_whatever_the_guest_says() {
    for (what, change) in CHANGES {
        for (before, after) in [
            (0o6755, 0o755),
            (0o4711, 0o711),
            (0o6745, 0o2745),
            (0o755, 0o755),
        ] {
            let folder = Folder::new();
            folder.write("a", b"12345678");
            folder.write("b", b"abcdefgh");
            let path = folder.shared("a");
            let mode = std::fs::Permissions::from_mode(before);
            std::fs::set_permissions(&path, mode).unwrap();
            let client = folder.client();
            let node = client.lookup(ROOT, "a").unwrap().node;
            change(&client, node);
            let host = path.metadata().unwrap().mode() & 0o7777;
            assert_eq!(host, after, "{what} {before:o}");
        }
    }
}

#[test]
fn set_id_bits_of_the_guest_go_when_its_users_change_a_file() {
    for (what, change) in CHANGES {
        // Writers with root's rights may keep the bits.
        for (uid, after) in [(0, 0o106_755), (1000, 0o100_755)] {
            let folder = Folder::new();
            folder.write("a", b"12345678");
            folder.write("b", b"abcdefgh");
            let mut client = folder.client();
            let node = client.lookup(ROOT, "a").unwrap().node;
            if !keeps_attributes(&client, node) {
                return;
            }
            let mode = client.setattr(node, set::MODE, 0o106_755, [0, 0], 0);
            assert_eq!(mode.unwrap().mode, 0o106_755);
            client.uid = uid;
            change(&client, node);
            assert_eq!(
                client.getattr(node).unwrap().mode,
                after,
                "{what}, user {uid}"
            );
            let host = folder.shared("a").metadata().unwrap().mode();
            assert_eq!(host & 0o7777, 0o755, "{what}");
        }
    }
}
