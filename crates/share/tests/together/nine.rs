//! Tests of the 9P server over byte buffers: a client that speaks 9P2000.L, and hostile messages.

use crate::client::{Folder, exists, text as ended};
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::atomic::{AtomicUsize, Ordering};
use tollgate_share::{NineServer, SecurityModel, ShareOptions};
use tollgate_test_support::Random;

const EPERM: u32 = 1;
const ENOENT: u32 = 2;
const EBADF: u32 = 9;
const ENOTDIR: u32 = 20;
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;
const EROFS: u32 = 30;
const ELOOP: u32 = 40;
const ENODATA: u32 = 61;
const EMSGSIZE: u32 = 90;
const EOPNOTSUPP: u32 = 95;

const NO_FID: u32 = u32::MAX;
const RDONLY: u32 = 0;
const RDWR: u32 = 2;
const APPEND: u32 = 0o2000;
const TRUNC: u32 = 0o1000;

/// A part of a message.
enum Part<'a> {
    B(u8),
    W(u16),
    D(u32),
    Q(u64),
    /// A text with its length.
    S(&'a [u8]),
    /// Bytes as they are.
    R(&'a [u8]),
}
use Part::{B, D, Q, R, S, W};

fn message(kind: u8, tag: u16, parts: &[Part<'_>]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.push(kind);
    bytes.extend(tag.to_le_bytes());
    for part in parts {
        match part {
            B(value) => bytes.push(*value),
            W(value) => bytes.extend(value.to_le_bytes()),
            D(value) => bytes.extend(value.to_le_bytes()),
            Q(value) => bytes.extend(value.to_le_bytes()),
            S(text) => {
                bytes.extend((text.len() as u16).to_le_bytes());
                bytes.extend(*text);
            }
            R(raw) => bytes.extend(*raw),
        }
    }
    let length = bytes.len() as u32;
    bytes[..4].copy_from_slice(&length.to_le_bytes());
    bytes
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut wide = [0; 8];
    wide[..N].copy_from_slice(&bytes[at..at + N]);
    u64::from_le_bytes(wide)
}

struct Client {
    server: NineServer,
    calls: AtomicUsize,
}

type Reply = Result<Vec<u8>, u32>;

impl Client {
    /// A client that has attached the root as fid 0, for the guest's root.
    fn new(options: &ShareOptions) -> Self {
        let client = Self {
            server: NineServer::open(options).unwrap(),
            calls: AtomicUsize::new(0),
        };
        let version = client.call(100, &[D(512_000), S(b"9P2000.L")]).unwrap();
        assert_eq!(number::<4>(&version, 0), 512_000);
        assert_eq!(&version[6..], b"9P2000.L");
        client.attach(0, 0).unwrap();
        client
    }

    fn call(&self, kind: u8, parts: &[Part<'_>]) -> Reply {
        let request = message(kind, 7, parts);
        // Every second call is answered immediately, if that is possible.
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let reply = match call % 2 {
            0 => self.server.handle_at_once(&request, 512_000),
            _ => None,
        };
        let reply = reply.unwrap_or_else(|| self.server.handle(&request, 512_000));
        assert_eq!(number::<4>(&reply, 0) as usize, reply.len());
        assert_eq!(number::<2>(&reply, 5), 7);
        match reply[4] {
            7 => Err(number::<4>(&reply, 7) as u32),
            answer => {
                assert_eq!(answer, kind + 1);
                Ok(reply[7..].to_vec())
            }
        }
    }

    fn attach(&self, fid: u32, uid: u32) -> Reply {
        self.call(104, &[D(fid), D(NO_FID), S(b"user"), S(b"/any"), D(uid)])
    }

    /// Walks and returns how many names were found.
    fn walk(&self, from: u32, to: u32, names: &[&str]) -> Result<u64, u32> {
        let mut parts = vec![D(from), D(to), W(names.len() as u16)];
        parts.extend(names.iter().map(|name| S(name.as_bytes())));
        let reply = self.call(110, &parts)?;
        let count = number::<2>(&reply, 0);
        assert_eq!(reply.len() as u64, 2 + 13 * count);
        Ok(count)
    }

    fn clunk(&self, fid: u32) -> Result<(), u32> {
        self.call(120, &[D(fid)]).map(drop)
    }

    fn open(&self, fid: u32, flags: u32) -> Result<(), u32> {
        self.call(12, &[D(fid), D(flags)]).map(drop)
    }

    fn create(&self, fid: u32, name: &str, flags: u32, mode: u32) -> Result<(), u32> {
        let parts = [D(fid), S(name.as_bytes()), D(flags), D(mode), D(0)];
        self.call(14, &parts).map(drop)
    }

    fn read(&self, fid: u32, offset: u64, count: u32) -> Reply {
        let reply = self.call(116, &[D(fid), Q(offset), D(count)])?;
        assert_eq!(number::<4>(&reply, 0) as usize, reply.len() - 4);
        Ok(reply[4..].to_vec())
    }

    fn write(&self, fid: u32, offset: u64, data: &[u8]) -> Result<u64, u32> {
        let parts = [D(fid), Q(offset), D(data.len() as u32), R(data)];
        Ok(number::<4>(&self.call(118, &parts)?, 0))
    }

    fn attributes(&self, fid: u32) -> Result<(u32, u32, u32, u64, u64), u32> {
        let reply = self.call(24, &[D(fid), Q(0x7ff)])?;
        assert_eq!(reply.len(), 8 + 13 + 12 + 15 * 8);
        let word = |at| number::<4>(&reply, at) as u32;
        let quad = |at| number::<8>(&reply, at);
        // Mode, owner and group, links, size.
        Ok((word(21), word(25), word(29), quad(33), quad(49)))
    }

    fn list(&self, fid: u32, count: u32) -> Vec<String> {
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            let reply = self.call(40, &[D(fid), Q(offset), D(count)]).unwrap();
            let mut rest = &reply[4..];
            assert!(rest.len() <= count as usize);
            if rest.is_empty() {
                names.sort();
                return names;
            }
            while !rest.is_empty() {
                offset = number::<8>(rest, 13);
                let bytes = number::<2>(rest, 22) as usize;
                names.push(String::from_utf8(rest[24..24 + bytes].to_vec()).unwrap());
                rest = &rest[24 + bytes..];
            }
        }
    }
}

#[test]
fn files_are_made_read_listed_moved_and_removed() {
    let folder = Folder::new();
    let client = Client::new(&folder.options());
    assert_eq!(client.walk(0, 1, &[]), Ok(0));
    client.create(1, "a", RDWR | 0o200, 0o640).unwrap();
    let data: Vec<u8> = (0..300_000u32).map(|place| (place % 251) as u8).collect();
    assert_eq!(client.write(1, 0, &data), Ok(300_000));
    assert_eq!(std::fs::read(folder.shared("a")).unwrap(), data);
    assert_eq!(client.read(1, 299_990, 100).unwrap(), data[299_990..]);
    assert_eq!(client.read(1, 5, 200_000).unwrap(), data[5..200_005]);
    assert_eq!(client.attributes(1), Ok((0o100_640, 0, 0, 1, 300_000)));
    client.call(50, &[D(1), D(1)]).unwrap();
    client.clunk(1).unwrap();
    assert_eq!(client.clunk(1), Err(EBADF));

    client.call(72, &[D(0), S(b"d"), D(0o755), D(0)]).unwrap();
    client.call(16, &[D(0), S(b"l"), S(b"d/b"), D(0)]).unwrap();
    assert_eq!(client.walk(0, 2, &["l"]), Ok(1));
    assert_eq!(client.call(22, &[D(2)]).unwrap(), b"\x03\0d/b");
    assert_eq!(client.open(2, RDONLY), Err(ELOOP));
    // From the root to a directory, and with the fid of the file itself.
    client
        .call(74, &[D(0), S(b"a"), D(0), S(b"moved")])
        .unwrap();
    assert_eq!(client.walk(0, 3, &["moved"]), Ok(1));
    assert_eq!(client.walk(0, 4, &["d"]), Ok(1));
    client.call(20, &[D(3), D(4), S(b"b")]).unwrap();
    assert!(exists(&folder.shared("d/b")));
    // A second name.
    client.call(70, &[D(0), D(3), S(b"hard")]).unwrap();
    assert_eq!(client.attributes(3).unwrap().3, 2);
    for number in 0..300 {
        folder.write(&format!("d/{number}"), b"");
    }
    client.open(4, RDONLY).unwrap();
    for count in [200, 4096, 500_000] {
        assert_eq!(client.list(4, count).len(), 303, "{count}");
    }
    // What is in a directory keeps it.
    assert_eq!(client.call(76, &[D(0), S(b"d"), D(0x200)]), Err(39));
    for number in 0..300 {
        let name = number.to_string();
        client.call(76, &[D(4), S(name.as_bytes()), D(0)]).unwrap();
    }
    // REMOVE takes the fid with it, whether it succeeds or not.
    client.call(122, &[D(3)]).unwrap();
    assert_eq!(client.attributes(3), Err(EBADF));
    assert!(!exists(&folder.shared("hard")) || !exists(&folder.shared("d/b")));
    assert_eq!(
        client.call(122, &[D(4)]).is_err(),
        exists(&folder.shared("d/b"))
    );
    let statistics = client.call(8, &[D(0)]).unwrap();
    assert_eq!(statistics.len(), 60);
    assert_eq!(number::<4>(&statistics, 0), 0x0102_1997);
}

#[test]
fn walks_stay_below_the_share_and_report_how_far_they_came() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.shared("d/e")).unwrap();
    symlink("../outside", folder.shared("up")).unwrap();
    let client = Client::new(&folder.options());
    assert_eq!(
        client.walk(0, 1, &["d", "e", "..", "..", "..", ".."]),
        Ok(6)
    );
    client.open(1, RDONLY).unwrap();
    assert_eq!(client.list(1, 4096), [".", "..", "d", "up"]);
    assert_eq!(client.walk(0, 2, &["d", "none", "x"]), Ok(1));
    assert_eq!(client.attributes(2), Err(EBADF));
    assert_eq!(client.walk(0, 2, &["none"]), Err(ENOENT));
    assert_eq!(client.walk(0, 2, &["up", "secret"]), Ok(1));
    for name in ["", ".", "/", "d/e", "../outside", "/etc", "d\0"] {
        assert_eq!(client.walk(0, 2, &[name]), Err(EINVAL), "{name:?}");
        let parts = [D(0), S(name.as_bytes()), D(0o755), D(0)];
        assert_eq!(client.call(72, &parts), Err(EINVAL), "{name:?}");
        let parts = [D(0), S(b"d"), D(0), S(name.as_bytes())];
        assert_eq!(client.call(74, &parts), Err(EINVAL), "{name:?}");
    }
    assert_eq!(
        client.call(72, &[D(0), S(b".."), D(0o755), D(0)]),
        Err(EINVAL)
    );
    assert_eq!(client.call(76, &[D(0), S(b".."), D(0x200)]), Err(EINVAL));
    // A fid in use is not given away, and an open one does not move.
    assert_eq!(client.walk(0, 1, &[]), Err(EINVAL));
    assert_eq!(client.walk(1, 1, &["d"]), Err(EINVAL));
    assert_eq!(client.walk(9, 2, &[]), Err(EBADF));
    assert_eq!(client.walk(0, NO_FID, &[]), Err(EINVAL));
    assert_eq!(client.walk(0, 2, &["d"; 17]), Err(EINVAL));
    client.walk(0, 3, &["d"]).unwrap();
    assert_eq!(client.walk(3, 3, &["e"]), Ok(1));
    assert_eq!(client.walk(3, 4, &["x", "y"]), Err(ENOENT));
    folder.write("f", b"");
    assert_eq!(client.walk(0, 4, &["f"]), Ok(1));
    assert_eq!(client.walk(4, 5, &["x"]), Err(ENOTDIR));
}

#[test]
fn a_session_begins_with_a_version_and_ends_with_the_next() {
    let folder = Folder::new();
    let client = Client::new(&folder.options());
    assert!(client.server.is_mounted());
    let unknown = client.call(100, &[D(8192), S(b"9P2000")]).unwrap();
    assert_eq!(&unknown[4..], b"\x07\0unknown");
    assert!(!client.server.is_mounted());
    assert_eq!(client.attach(0, 0), Err(EINVAL));
    let small = client.call(100, &[D(100), S(b"9P2000.L")]);
    assert_eq!(small, Err(EMSGSIZE));
    let large = client.call(100, &[D(u32::MAX), S(b"9P2000.L")]).unwrap();
    assert_eq!(number::<4>(&large, 0), (1 << 20) + 4096);
    client.attach(0, 0).unwrap();
    assert_eq!(client.attach(0, 0), Err(EINVAL));
    // AUTH, and messages of older versions.
    for kind in [102, 112, 114, 124, 126, 0, 255] {
        assert_eq!(client.call(kind, &[D(1), D(1)]), Err(EOPNOTSUPP), "{kind}");
    }
    client.call(108, &[W(3)]).unwrap();
    client.clunk(0).unwrap();
    assert!(!client.server.is_mounted());
    // An answer is not longer than agreed, even if there is room.
    client.call(100, &[D(4096), S(b"9P2000.L")]).unwrap();
    client.attach(0, 0).unwrap();
    folder.write("a", &[1; 9000]);
    client.walk(0, 1, &["a"]).unwrap();
    client.open(1, RDONLY).unwrap();
    assert_eq!(client.read(1, 0, 9000).unwrap().len(), 4096 - 11);
}

#[test]
fn attributes_and_owners_are_set_and_extended_attributes_too() {
    let folder = Folder::new();
    folder.write("a", b"content");
    let client = Client::new(&folder.options());
    client.walk(0, 1, &["a"]).unwrap();
    let set = |valid: u32, mode: u32, owner: [u32; 2], size: u64, times: [u64; 2]| {
        let [uid, gid] = owner;
        let [accessed, modified] = times;
        let times = [Q(accessed), Q(5), Q(modified), Q(6)];
        let mut parts = vec![D(1), D(valid), D(mode), D(uid), D(gid), Q(size)];
        parts.extend(times);
        client.call(26, &parts)
    };
    set(1 | 2 | 4 | 8, 0o4711, [77, 88], 3, [0, 0]).unwrap();
    assert_eq!(client.attributes(1), Ok((0o104_711, 77, 88, 1, 3)));
    set(0x10 | 0x20 | 0x80 | 0x100, 0, [0, 0], 0, [1000, 2000]).unwrap();
    let host = folder.shared("a").metadata().unwrap();
    assert_eq!((host.atime(), host.atime_nsec()), (1000, 5));
    assert_eq!((host.mtime(), host.mtime_nsec()), (2000, 6));
    // Without its own time, the present.
    set(0x20, 0, [0, 0], 0, [0, 0]).unwrap();
    assert!(folder.shared("a").metadata().unwrap().mtime() > 1_000_000_000);

    let value = b"some value";
    let create = |name: &[u8], size: u64| {
        client.walk(1, 2, &[]).unwrap();
        client.call(32, &[D(2), S(name), Q(size), D(0)])
    };
    create(b"user.x", 10).unwrap();
    assert_eq!(client.write(2, 0, &value[..4]), Ok(4));
    assert_eq!(client.write(2, 4, &value[4..]), Ok(6));
    assert_eq!(client.write(2, 5, value), Err(ENOSPC));
    client.clunk(2).unwrap();
    let size = client.call(30, &[D(1), D(3), S(b"user.x")]).unwrap();
    assert_eq!(number::<8>(&size, 0), 10);
    assert_eq!(client.read(3, 0, 100).unwrap(), value);
    assert_eq!(client.read(3, 8, 100).unwrap(), b"ue");
    assert_eq!(client.read(3, u64::MAX, 100).unwrap(), b"");
    client.clunk(3).unwrap();
    client.call(30, &[D(1), D(3), S(b"")]).unwrap();
    assert_eq!(client.read(3, 0, 100).unwrap(), ended("user.x"));
    // A value that was not written whole is not set, and one of no bytes is removed.
    create(b"user.y", 4).unwrap();
    assert_eq!(client.clunk(2), Err(EINVAL));
    create(b"user.x", 0).unwrap();
    client.clunk(2).unwrap();
    assert_eq!(client.call(30, &[D(1), D(4), S(b"user.x")]), Err(ENODATA));
    assert_eq!(
        client.call(30, &[D(1), D(4), S(b"system.posix_acl_access")]),
        Err(EOPNOTSUPP)
    );
    assert_eq!(create(b"user.z", 1 << 40), Err(ENOSPC));
    // Locks are granted.
    let lock = [D(1), B(1), D(0), Q(0), Q(0), D(1), S(b"c")];
    assert_eq!(client.call(52, &lock).unwrap(), [0]);
    let asked = client.call(54, &[D(1), B(1), Q(3), Q(4), D(9), S(b"c")]);
    assert_eq!(asked.unwrap()[0], 2);
}

#[test]
fn writes_of_other_users_clear_bits_and_appends_go_to_the_end() {
    let folder = Folder::new();
    folder.write("a", b"12");
    let client = Client::new(&folder.options());
    client.attach(50, 1000).unwrap();
    client.walk(0, 1, &["a"]).unwrap();
    let set_mode = [
        D(1),
        D(1),
        D(0o4777),
        D(0),
        D(0),
        Q(0),
        Q(0),
        Q(0),
        Q(0),
        Q(0),
    ];
    client.call(26, &set_mode).unwrap();
    client.walk(50, 2, &["a"]).unwrap();
    client.open(2, RDWR | APPEND).unwrap();
    assert_eq!(client.write(2, 0, b"34"), Ok(2));
    assert_eq!(client.attributes(1).unwrap().0, 0o100_777);
    client.open(1, RDWR | TRUNC).unwrap();
    assert_eq!(client.write(2, 0, b"56"), Ok(2));
    assert_eq!(std::fs::read(folder.shared("a")).unwrap(), b"56");
    // What a user makes is that user's.
    client.walk(50, 3, &[]).unwrap();
    client.create(3, "own", RDWR, 0o600).unwrap();
    assert_eq!(client.attributes(3).unwrap().1, 1000);
    client
        .call(18, &[D(50), S(b"pipe"), D(0o010_644), D(0), D(0), D(0)])
        .unwrap();
    assert_eq!(
        client.call(18, &[D(50), S(b"disk"), D(0o060_644), D(8), D(0), D(0)]),
        Err(EPERM)
    );
}

#[test]
fn what_is_read_only_is_not_changed() {
    let folder = Folder::new();
    folder.write("a", b"content");
    let mut options = folder.options();
    options.readonly = true;
    let client = Client::new(&options);
    client.walk(0, 1, &["a"]).unwrap();
    assert_eq!(client.open(1, RDWR), Err(EROFS));
    client.open(1, RDONLY).unwrap();
    assert_eq!(client.read(1, 0, 7).unwrap(), b"content");
    assert_eq!(client.write(1, 0, b"x"), Err(EROFS));
    client.walk(0, 2, &[]).unwrap();
    assert_eq!(client.create(2, "b", RDWR, 0o644), Err(EROFS));
    assert_eq!(client.call(76, &[D(0), S(b"a"), D(0)]), Err(EROFS));
    assert_eq!(client.call(122, &[D(1)]), Err(EROFS));
    assert_eq!(
        client.call(32, &[D(2), S(b"user.x"), Q(1), D(0)]),
        Err(EROFS)
    );
}

#[test]
fn without_mapping_owners_are_the_hosts() {
    let folder = Folder::new();
    folder.write("a", b"");
    let own = folder.shared("a").metadata().unwrap();
    for security in [SecurityModel::None, SecurityModel::Passthrough] {
        let mut options = folder.options();
        options.security = security;
        let client = Client::new(&options);
        client.walk(0, 1, &["a"]).unwrap();
        let shown = client.attributes(1).unwrap();
        assert_eq!((shown.1, shown.2), (own.uid(), own.gid()));
        let mode = [
            D(1),
            D(1),
            D(0o4750),
            D(0),
            D(0),
            Q(0),
            Q(0),
            Q(0),
            Q(0),
            Q(0),
        ];
        client.call(26, &mode).unwrap();
        let expected = match security {
            SecurityModel::Passthrough => 0o4750,
            _ => 0o750,
        };
        let now = folder.shared("a").metadata().unwrap();
        assert_eq!(now.mode() & 0o7777, expected);
        let owner = [
            D(1),
            D(2),
            D(0),
            D(own.uid() + 1),
            D(0),
            Q(0),
            Q(0),
            Q(0),
            Q(0),
            Q(0),
        ];
        let given = client.call(26, &owner);
        let now = folder.shared("a").metadata().unwrap();
        if own.uid() == 0 {
            assert_eq!((given.is_ok(), now.uid()), (true, 1));
            let back = [D(1), D(2), D(0), D(0), D(0), Q(0), Q(0), Q(0), Q(0), Q(0)];
            client.call(26, &back).unwrap();
        } else {
            let expected = if security == SecurityModel::None {
                None
            } else {
                Some(EPERM)
            };
            assert_eq!((given.err(), now.uid()), (expected, own.uid()));
        }
    }
}

#[test]
fn any_message_is_answered_or_ignored_and_nothing_outside_changes() {
    const NAMES: [&[u8]; 9] = [
        b"a",
        b"b",
        b"d",
        b"up",
        b"..",
        b".",
        b"",
        b"a/b",
        b"../outside",
    ];
    const KINDS: [u8; 28] = [
        8, 12, 14, 16, 18, 20, 22, 24, 26, 30, 32, 40, 52, 54, 70, 72, 74, 76, 100, 102, 104, 108,
        110, 110, 110, 116, 118, 122,
    ];
    for seed in 0..10 {
        let mut random = Random::new(seed);
        let folder = Folder::new();
        folder.write("a", b"content");
        std::fs::create_dir(folder.shared("d")).unwrap();
        symlink("../outside", folder.shared("up")).unwrap();
        let client = Client::new(&folder.options());
        let mut successes = 0;
        for _ in 0..4000 {
            let kind = match random.below(24) {
                0 => random.next_u64() as u8,
                1 => 120,
                _ => random.pick(&KINDS),
            };
            let mut body = Vec::new();
            for _ in 0..random.below(8) {
                match random.below(5) {
                    0..=1 => body.extend((random.below(6) as u32).to_le_bytes()),
                    2 => body.extend(random.next_u64().to_le_bytes()),
                    3 => body.extend((random.below(20) as u16).to_le_bytes()),
                    _ => {
                        let name = random.pick(&NAMES);
                        body.extend((name.len() as u16).to_le_bytes());
                        body.extend(name);
                    }
                }
            }
            if random.below(3) != 0 {
                body.resize(body.len().max(60), 0);
            }
            let mut request = message(kind, 7, &[R(&body)]);
            match random.below(24) {
                0 => request.truncate(random.below(request.len())),
                1 => request[..4].copy_from_slice(&(random.next_u64() as u32).to_le_bytes()),
                _ => {}
            }
            let capacity = [0, 7, 11, 40, 4096, 512_000][random.below(6)];
            let at_once = client.server.handle_at_once(&request, capacity);
            let reply = at_once.unwrap_or_else(|| client.server.handle(&request, capacity));
            assert!(reply.len() <= capacity);
            if !reply.is_empty() {
                assert_eq!(number::<4>(&reply, 0) as usize, reply.len());
                assert_eq!(reply[5..7], request[5..7]);
                successes += usize::from(reply[4] != 7);
            }
            // A session that was ended is begun again.
            if !client.server.is_mounted() {
                client.call(100, &[D(512_000), S(b"9P2000.L")]).unwrap();
                client.attach(0, 0).unwrap();
            }
        }
        assert!(successes > 100, "{successes}");
        let outside = folder.0.join("outside");
        assert_eq!(std::fs::read(outside.join("secret")).unwrap(), b"secret");
        assert_eq!(std::fs::read_dir(outside).unwrap().count(), 1);
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 2);
    }
}
