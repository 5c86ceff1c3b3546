//! Tests that a hostile guest cannot leave the directory.

use crate::client::{Client, Folder, exists, quads, text, words};
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, Ordering};
use tollgate_share::protocol::{ROOT, opcode};
use tollgate_share::{Server, ShareOptions};

const EPERM: i32 = 1;
const ENOENT: i32 = 2;
const ENXIO: i32 = 6;
const ENOTDIR: i32 = 20;
const EINVAL: i32 = 22;
const ENAMETOOLONG: i32 = 36;
const ELOOP: i32 = 40;
const ESTALE: i32 = 116;

#[test]
fn names_are_single_ones() {
    let folder = Folder::new();
    let client = folder.client();
    let directory = client.mkdir(ROOT, "d", 0o755).unwrap().node;
    for name in [
        "",
        ".",
        "..",
        "/",
        "a/b",
        "../outside/secret",
        "/etc/passwd",
        "d/..",
    ] {
        for parent in [ROOT, directory] {
            assert_eq!(client.lookup(parent, name), Err(EINVAL), "{name}");
            assert_eq!(client.mkdir(parent, name, 0o755), Err(EINVAL), "{name}");
            assert_eq!(client.create(parent, name, 2, 0o644), Err(EINVAL), "{name}");
            assert_eq!(client.unlink(parent, name), Err(EINVAL), "{name}");
            assert_eq!(client.symlink(parent, name, "x"), Err(EINVAL), "{name}");
            assert_eq!(
                client.rename(parent, name, parent, "x", 0),
                Err(EINVAL),
                "{name}"
            );
            assert_eq!(
                client.rename(ROOT, "d", parent, name, 0),
                Err(EINVAL),
                "{name}"
            );
            assert_eq!(client.link(directory, parent, name), Err(EINVAL), "{name}");
        }
    }
    assert_eq!(client.lookup(ROOT, &"x".repeat(256)), Err(ENAMETOOLONG));
    // The name has no end.
    assert_eq!(client.call(opcode::LOOKUP, ROOT, &[b"d"]), Err(EINVAL));
}

#[test]
fn symbolic_links_are_not_followed() {
    let folder = Folder::new();
    let outside = folder.0.join("outside");
    symlink(&outside, folder.shared("to-directory")).unwrap();
    symlink(outside.join("secret"), folder.shared("to-file")).unwrap();
    symlink("..", folder.shared("up")).unwrap();
    let client = folder.client();
    for name in ["to-directory", "to-file", "up"] {
        let link = client.lookup(ROOT, name).unwrap();
        assert_eq!(link.mode & 0o170_000, 0o120_000);
        assert_eq!(client.open(link.node, 0), Err(ELOOP));
        assert_eq!(client.lookup(link.node, "secret"), Err(ENOTDIR));
        assert_eq!(client.create(link.node, "new", 2, 0o644), Err(ENOTDIR));
        let open = client.call(opcode::OPENDIR, link.node, &[&words(&[0, 0])]);
        assert_eq!(open, Err(ENOTDIR));
        assert_eq!(client.create(ROOT, name, 1, 0o644), Err(ELOOP));
        // These requests concern only the link itself.
        let _ = client.setattr(link.node, 1, 0o777, [0, 0], 0);
        let _ = client.setattr(link.node, 8, 0, [0, 0], 0);
        let _ = client.setxattr(link.node, "user.x", b"1");
    }
    let secret = std::fs::read(outside.join("secret")).unwrap();
    assert_eq!(secret, b"secret");
    assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 1);
}

#[test]
fn what_the_guest_links_to_is_the_guests_own_affair() {
    let folder = Folder::new();
    let client = folder.client();
    let link = client.symlink(ROOT, "l", "../outside").unwrap();
    assert_eq!(client.lookup(link.node, "secret"), Err(ENOTDIR));
    assert_eq!(client.unlink(link.node, "secret"), Err(ENOTDIR));
    assert_eq!(
        client.rename(link.node, "secret", ROOT, "x", 0),
        Err(ENOTDIR)
    );
    assert!(exists(&folder.0.join("outside/secret")));
}

#[test]
fn a_directory_that_becomes_a_link_is_not_left() {
    let folder = Folder::new();
    std::fs::create_dir(folder.shared("d")).unwrap();
    let client = folder.client();
    let node = client.lookup(ROOT, "d").unwrap().node;
    std::fs::remove_dir(folder.shared("d")).unwrap();
    symlink(folder.0.join("outside"), folder.shared("d")).unwrap();
    // The guest's directory is the one that was removed.
    assert_eq!(client.lookup(node, "secret"), Err(ENOENT));
    assert_eq!(client.create(node, "new", 2, 0o644), Err(ENOENT));
    assert_eq!(client.mkdir(node, "new", 0o755), Err(ENOENT));
    assert!(!exists(&folder.0.join("outside/new")));
}

#[test]
fn a_host_that_swaps_directories_and_links_meanwhile_leads_nowhere() {
    let folder = Folder::new();
    let (place, spare, link) = (
        folder.shared("d"),
        folder.shared("spare"),
        folder.shared("link"),
    );
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("secret"), "harmless").unwrap();
    symlink(folder.0.join("outside"), &link).unwrap();
    let client = folder.client();
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !has_ended.load(Ordering::Relaxed) {
                std::fs::rename(&place, &spare).unwrap();
                std::fs::rename(&link, &place).unwrap();
                std::fs::rename(&place, &link).unwrap();
                std::fs::rename(&spare, &place).unwrap();
            }
        });
        for _ in 0..3000 {
            let Ok(entry) = client.walk("d/secret") else {
                continue;
            };
            let content = client.content(entry.node);
            if let Ok(content) = content {
                assert_eq!(content, b"harmless");
            }
            client.forget(entry.node, 1);
        }
        has_ended.store(true, Ordering::Relaxed);
    });
}

#[test]
fn devices_and_pipes_are_not_opened_nor_devices_made() {
    let folder = Folder::new();
    let client = folder.client();
    let pipe = client.mknod(ROOT, "pipe", 0o010_600, 0).unwrap();
    for flags in [0, 1, 2] {
        // This would wait for the other end of the pipe.
        assert_eq!(client.open(pipe.node, flags), Err(ENXIO));
    }
    assert_eq!(client.create(ROOT, "pipe", 1, 0o644), Err(ENXIO));
    for mode in [0o020_600, 0o060_600] {
        assert_eq!(client.mknod(ROOT, "device", mode, 0x0103), Err(EPERM));
    }
    assert!(!exists(&folder.shared("device")));
    let devices = ShareOptions::new("/dev", "devices");
    let client = Client::new(Server::open(&devices).unwrap());
    let null = client.lookup(ROOT, "null").unwrap();
    assert_eq!(client.open(null.node, 2), Err(ENXIO));
}

#[test]
fn files_of_the_hosts_kernel_are_not_shown() {
    let client = Client::new(Server::open(&ShareOptions::new("/", "root")).unwrap());
    let proc = client.lookup(ROOT, "proc").unwrap();
    assert_eq!(client.lookup(proc.node, "self"), Err(ENOENT));
    assert_eq!(client.lookup(proc.node, "version"), Err(ENOENT));
    assert!(client.list(proc.node, 4096, false).is_empty());
    assert!(client.list(proc.node, 4096, true).is_empty());
    assert_eq!(client.create(proc.node, "x", 2, 0o644), Err(EPERM));
    assert_eq!(client.setattr(proc.node, 1, 0o777, [0, 0], 0), Err(EPERM));
}

#[test]
fn numbers_that_were_not_given_out_stand_for_nothing() {
    let folder = Folder::new();
    folder.write("a", b"1");
    let client = folder.client();
    let node = client.lookup(ROOT, "a").unwrap().node;
    for unknown in [0, node + 1, 1 << 32, u64::MAX] {
        assert_eq!(client.getattr(unknown), Err(ESTALE));
        assert_eq!(client.lookup(unknown, "a"), Err(ESTALE));
        assert_eq!(client.open(unknown, 0), Err(ESTALE));
        client.forget(unknown, 1);
        assert!(client.read(unknown, 0, 1).is_err());
        assert!(client.rename(ROOT, "a", unknown, "b", 0).is_err());
    }
    // A file's handle cannot be used for a directory, nor the other way round.
    let handle = client.open(node, 0).unwrap();
    let body = [quads(&[handle, 0]), words(&[4096, 0]), quads(&[0, 0])].concat();
    assert_eq!(client.call(opcode::READDIR, ROOT, &[&body]), Err(ENOTDIR));
    // A new mount forgets all files that a guest knew.
    let init = words(&[7, 38, 1 << 20, 0]);
    client.call(opcode::INIT, 0, &[&init]).unwrap();
    assert_eq!(client.getattr(node), Err(ESTALE));
    assert!(client.read(handle, 0, 1).is_err());
}

#[test]
fn the_root_cannot_be_moved_or_removed() {
    let folder = Folder::new();
    let client = folder.client();
    assert!(client.link(ROOT, ROOT, "root").is_err());
    assert!(client.rename(ROOT, "..", ROOT, "x", 0).is_err());
    let directory = client.mkdir(ROOT, "d", 0o755).unwrap().node;
    // A directory cannot be moved into itself.
    assert_eq!(client.rename(ROOT, "d", directory, "e", 0), Err(EINVAL));
    client.call(opcode::RMDIR, ROOT, &[&text("d")]).unwrap();
}
