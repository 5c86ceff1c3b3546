//! A FUSE client over byte buffers, and a folder to share.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use tollgate_share::protocol::{ROOT, opcode};
use tollgate_share::{Server, ShareOptions};

/// A folder that is removed at the end. It contains the directory `shared`, and other files next to
/// it.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let name = format!("tollgate-share-{}-{number}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(path.join("shared")).unwrap();
        std::fs::create_dir_all(path.join("outside")).unwrap();
        std::fs::write(path.join("outside/secret"), "secret").unwrap();
        Self(path)
    }

    pub fn shared(&self, name: &str) -> PathBuf {
        self.0.join("shared").join(name)
    }

    pub fn write(&self, name: &str, content: &[u8]) {
        std::fs::write(self.shared(name), content).unwrap();
    }

    pub fn options(&self) -> ShareOptions {
        ShareOptions::new(self.0.join("shared"), "test")
    }

    pub fn client(&self) -> Client {
        Client::new(Server::open(&self.options()).unwrap())
    }

    pub fn readonly(&self) -> Client {
        let mut options = self.options();
        options.readonly = true;
        Client::new(Server::open(&options).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The result of a lookup.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    pub node: u64,
    pub number: u64,
    pub size: u64,
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// Returns the attributes at the start of `bytes`, for a file with this number.
pub fn attributes(node: u64, bytes: &[u8]) -> Entry {
    Entry {
        node,
        number: u64_at(bytes, 0),
        size: u64_at(bytes, 8),
        mode: u32_at(bytes, 60),
        links: u32_at(bytes, 64),
        uid: u32_at(bytes, 68),
        gid: u32_at(bytes, 72),
    }
}

/// Joins 32-bit numbers.
pub fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Joins 64-bit numbers.
pub fn quads(quads: &[u64]) -> Vec<u8> {
    quads.iter().flat_map(|quad| quad.to_le_bytes()).collect()
}

/// Returns a text with its terminating zero.
pub fn text(text: &str) -> Vec<u8> {
    [text.as_bytes(), b"\0"].concat()
}

pub struct Client {
    pub server: Server,
    pub uid: u32,
    pub gid: u32,
    calls: AtomicUsize,
}

/// The reply's body, or the error as a positive number.
pub type Reply = Result<Vec<u8>, i32>;

impl Client {
    /// A client that begins a session.
    pub fn new(server: Server) -> Self {
        let client = Self::continued(server);
        let init = words(&[7, 38, 1 << 20, u32::MAX]);
        client.call(opcode::INIT, 0, &[&init]).unwrap();
        client
    }

    /// A client that continues a session.
    pub fn continued(server: Server) -> Self {
        Self {
            server,
            uid: 0,
            gid: 0,
            calls: AtomicUsize::new(0),
        }
    }

    pub fn request(&self, opcode: u32, node: u64, parts: &[&[u8]]) -> Vec<u8> {
        let body = parts.concat();
        let mut bytes = words(&[40 + body.len() as u32, opcode]);
        bytes.extend(quads(&[77, node]));
        bytes.extend(words(&[self.uid, self.gid, 1, 0]));
        bytes.extend(body);
        bytes
    }

    pub fn call(&self, opcode: u32, node: u64, parts: &[&[u8]]) -> Reply {
        self.call_for(opcode, node, parts, (1 << 20) + 4096)
    }

    pub fn call_for(&self, opcode: u32, node: u64, parts: &[&[u8]], capacity: usize) -> Reply {
        let request = self.request(opcode, node, parts);
        // Every second call is answered immediately, if that is possible.
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let reply = match call % 2 {
            0 => self.server.handle_at_once(&request, capacity),
            _ => None,
        };
        let reply = reply.unwrap_or_else(|| self.server.handle(&request, capacity));
        assert_eq!(u32_at(&reply, 0) as usize, reply.len());
        assert_eq!(u64_at(&reply, 8), 77);
        match u32_at(&reply, 4) as i32 {
            0 => Ok(reply[16..].to_vec()),
            error => Err(-error),
        }
    }

    fn entry(reply: Reply) -> Result<Entry, i32> {
        let reply = reply?;
        // The name does not exist, which the guest may cache for a while.
        if u64_at(&reply, 0) == 0 {
            return Err(2);
        }
        Ok(attributes(u64_at(&reply, 0), &reply[40..]))
    }

    pub fn lookup(&self, parent: u64, name: &str) -> Result<Entry, i32> {
        Self::entry(self.call(opcode::LOOKUP, parent, &[&text(name)]))
    }

    /// Looks up the names of a path, one in the directory of the other.
    pub fn walk(&self, path: &str) -> Result<Entry, i32> {
        let mut entry = self.getattr(ROOT)?;
        for name in path.split('/') {
            entry = self.lookup(entry.node, name)?;
        }
        Ok(entry)
    }

    pub fn getattr(&self, node: u64) -> Result<Entry, i32> {
        let reply = self.call(opcode::GETATTR, node, &[&quads(&[0, 0])])?;
        Ok(attributes(node, &reply[16..]))
    }

    /// Sends SETATTR with mode, user, group and size.
    pub fn setattr(
        &self,
        node: u64,
        valid: u32,
        mode: u32,
        owner: [u32; 2],
        size: u64,
    ) -> Result<Entry, i32> {
        let body = [
            words(&[valid, 0]),
            quads(&[0, size, 0, 0, 0, 0]),
            words(&[0, 0, 0, mode, 0, owner[0], owner[1], 0]),
        ];
        let reply = self.call(opcode::SETATTR, node, &[&body.concat()])?;
        Ok(attributes(node, &reply[16..]))
    }

    pub fn mkdir(&self, parent: u64, name: &str, mode: u32) -> Result<Entry, i32> {
        Self::entry(self.call(opcode::MKDIR, parent, &[&words(&[mode, 0]), &text(name)]))
    }

    pub fn mknod(&self, parent: u64, name: &str, mode: u32, device: u32) -> Result<Entry, i32> {
        let head = words(&[mode, device, 0, 0]);
        Self::entry(self.call(opcode::MKNOD, parent, &[&head, &text(name)]))
    }

    pub fn symlink(&self, parent: u64, name: &str, target: &str) -> Result<Entry, i32> {
        Self::entry(self.call(opcode::SYMLINK, parent, &[&text(name), &text(target)]))
    }

    pub fn link(&self, node: u64, parent: u64, name: &str) -> Result<Entry, i32> {
        Self::entry(self.call(opcode::LINK, parent, &[&quads(&[node]), &text(name)]))
    }

    pub fn unlink(&self, parent: u64, name: &str) -> Result<(), i32> {
        self.call(opcode::UNLINK, parent, &[&text(name)]).map(drop)
    }

    pub fn rename(&self, from: u64, old: &str, to: u64, new: &str, flags: u32) -> Result<(), i32> {
        let head = [quads(&[to]), words(&[flags, 0])].concat();
        let parts: [&[u8]; 3] = [&head, &text(old), &text(new)];
        self.call(opcode::RENAME2, from, &parts).map(drop)
    }

    pub fn open(&self, node: u64, flags: i32) -> Result<u64, i32> {
        let reply = self.call(opcode::OPEN, node, &[&words(&[flags as u32, 0])])?;
        Ok(u64_at(&reply, 0))
    }

    /// Sends CREATE and returns the entry and the handle.
    pub fn create(
        &self,
        parent: u64,
        name: &str,
        flags: i32,
        mode: u32,
    ) -> Result<(Entry, u64), i32> {
        let head = words(&[flags as u32, mode, 0, 0]);
        let reply = self.call(opcode::CREATE, parent, &[&head, &text(name)])?;
        let handle = u64_at(&reply, 128);
        Ok((Self::entry(Ok(reply))?, handle))
    }

    pub fn read(&self, handle: u64, offset: u64, size: u32) -> Reply {
        let body = [quads(&[handle, offset]), words(&[size, 0]), quads(&[0, 0])];
        self.call(opcode::READ, ROOT, &[&body.concat()])
    }

    /// Sends READ for a file that was not opened.
    pub fn read_unopened(&self, node: u64, offset: u64, size: u32) -> Reply {
        let body = [quads(&[0, offset]), words(&[size, 0]), quads(&[0, 0])];
        self.call(opcode::READ, node, &[&body.concat()])
    }

    pub fn write_with(
        &self,
        handle: u64,
        offset: u64,
        data: &[u8],
        write_flags: u32,
        flags: i32,
    ) -> Result<u32, i32> {
        let head = [
            quads(&[handle, offset]),
            words(&[data.len() as u32, write_flags]),
            quads(&[0]),
            words(&[flags as u32, 0]),
        ];
        let reply = self.call(opcode::WRITE, ROOT, &[&head.concat(), data])?;
        Ok(u32_at(&reply, 0))
    }

    pub fn write(&self, handle: u64, offset: u64, data: &[u8]) -> Result<u32, i32> {
        self.write_with(handle, offset, data, 0, 0)
    }

    pub fn content(&self, node: u64) -> Reply {
        let handle = self.open(node, 0)?;
        let content = self.read(handle, 0, 1 << 20);
        self.release(handle);
        content
    }

    pub fn release(&self, handle: u64) {
        self.call(opcode::RELEASE, ROOT, &[&quads(&[handle, 0, 0])])
            .unwrap();
    }

    pub fn forget(&self, node: u64, times: u64) {
        let request = self.request(opcode::FORGET, node, &[&quads(&[times])]);
        assert!(self.server.handle(&request, 4096).is_empty());
    }

    pub fn setxattr(&self, node: u64, name: &str, value: &[u8]) -> Result<(), i32> {
        let head = words(&[value.len() as u32, 0]);
        self.call(opcode::SETXATTR, node, &[&head, &text(name), value])
            .map(drop)
    }

    pub fn getxattr(&self, node: u64, name: &str, size: u32) -> Reply {
        self.call(opcode::GETXATTR, node, &[&words(&[size, 0]), &text(name)])
    }

    pub fn listxattr(&self, node: u64) -> Reply {
        self.call(opcode::LISTXATTR, node, &[&words(&[4096, 0])])
    }

    /// Returns all names in a directory, each with its type, reading `size` bytes at a time. With
    /// `plus` it also forgets the nodes in the replies.
    pub fn list(&self, node: u64, size: u32, plus: bool) -> BTreeMap<String, u32> {
        let open = self.call(opcode::OPENDIR, node, &[&words(&[0, 0])]);
        // ENOSYS: the directory is read without being opened.
        let handle = match open {
            Err(38) => 0,
            open => u64_at(&open.unwrap(), 0),
        };
        let kind = if plus {
            opcode::READDIRPLUS
        } else {
            opcode::READDIR
        };
        let (mut names, mut offset) = (BTreeMap::new(), 0);
        loop {
            let body = [quads(&[handle, offset]), words(&[size, 0]), quads(&[0, 0])];
            let reply = self.call(kind, node, &[&body.concat()]).unwrap();
            assert!(reply.len() <= size as usize);
            if reply.is_empty() {
                break;
            }
            let mut rest = &reply[..];
            while !rest.is_empty() {
                if plus {
                    if u64_at(rest, 0) != 0 {
                        self.forget(u64_at(rest, 0), 1);
                    }
                    rest = &rest[128..];
                }
                offset = u64_at(rest, 8);
                let bytes = u32_at(rest, 16) as usize;
                let name = String::from_utf8(rest[24..24 + bytes].to_vec()).unwrap();
                let is_new = names.insert(name, u32_at(rest, 20)).is_none();
                assert!(is_new, "a name comes twice");
                rest = &rest[(24 + bytes).next_multiple_of(8)..];
            }
        }
        if handle != 0 {
            self.call(opcode::RELEASEDIR, node, &[&quads(&[handle, 0, 0])])
                .unwrap();
        }
        names
    }
}

/// Whether a path exists, without following it.
pub fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}
