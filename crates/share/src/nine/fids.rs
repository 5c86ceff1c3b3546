//! The files that a client knows, by the numbers that it has chosen for them ("fids").
//!
//! A fid holds a place in the tree: a file of the FUSE server's table, and the places of the
//! directories above it, so that the table keeps these as long as the fid exists.

use crate::protocol::ROOT;
use crate::server::Server;
use rustix::io::Errno;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of fids. Linux has one for each name that it caches.
const MOST: usize = 4 << 20;

/// A place in the tree. It owns one of the look-ups that the server counts for a file.
#[derive(Debug)]
pub struct Node {
    server: Arc<Server>,
    /// The server's number of the file.
    pub number: u64,
    /// The directory in which the file was found. `None` is the root.
    pub parent: Option<Arc<Node>>,
}

impl Node {
    /// Returns the shared directory.
    pub fn root(server: &Arc<Server>) -> Arc<Self> {
        Arc::new(Self {
            server: Arc::clone(server),
            number: ROOT,
            parent: None,
        })
    }

    /// Returns the file that a look-up in this directory has found.
    pub fn child(self: &Arc<Self>, number: u64) -> Arc<Self> {
        Arc::new(Self {
            server: Arc::clone(&self.server),
            number,
            parent: Some(Arc::clone(self)),
        })
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        self.server.inodes.forget(self.number, 1);
        // A chain of directories of any depth is dropped without recursion.
        let mut parent = self.parent.take();
        while let Some(node) = parent {
            parent = Arc::into_inner(node).and_then(|mut node| node.parent.take());
        }
    }
}

/// A file that is open on the server.
#[derive(Debug)]
pub struct OpenFile {
    server: Arc<Server>,
    /// The server's number of the open file.
    pub handle: u64,
    /// The flags with which it was opened, as for open(2).
    pub flags: u32,
}

impl OpenFile {
    /// Owns an open file of the server.
    pub fn new(server: &Arc<Server>, handle: u64, flags: u32) -> Arc<Self> {
        Arc::new(Self {
            server: Arc::clone(server),
            handle,
            flags,
        })
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.server.handles.remove(self.handle);
    }
}

/// An extended attribute that the client writes; it is set when the client gives up the fid.
#[derive(Debug)]
pub struct WrittenAttribute {
    /// The attribute's name, with the zero that ends it.
    pub name: Vec<u8>,
    /// The flags of setxattr(2).
    pub flags: u32,
    /// The value's size in bytes.
    pub size: usize,
    /// What was written of the value.
    pub value: Mutex<Vec<u8>>,
}

/// What a fid can be used for, in addition to its place in the tree.
#[derive(Clone, Debug)]
pub enum Use {
    /// Walks, and everything that needs no open file.
    Place,
    /// A regular file that is open.
    File(Arc<OpenFile>),
    /// A directory that is open.
    Directory(Arc<OpenFile>),
    /// The value of an extended attribute, or the list of their names.
    ReadsAttribute(Arc<Vec<u8>>),
    /// An extended attribute that is being written.
    WritesAttribute(Arc<WrittenAttribute>),
}

/// What a fid stands for.
#[derive(Clone, Debug)]
pub struct Fid {
    /// The place in the tree.
    pub node: Arc<Node>,
    /// The guest's user.
    pub uid: u32,
    /// What it can be used for.
    pub usage: Use,
}

impl Fid {
    /// Whether nothing is open.
    pub const fn is_place(&self) -> bool {
        matches!(self.usage, Use::Place)
    }
}

/// The meanings of all numbers that a client has chosen.
#[derive(Debug, Default)]
pub struct Fids(Mutex<HashMap<u32, Fid>>);

impl Fids {
    fn table(&self) -> MutexGuard<'_, HashMap<u32, Fid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what a number stands for.
    ///
    /// # Errors
    /// EBADF: nothing.
    pub fn get(&self, number: u32) -> Result<Fid, Errno> {
        self.table().get(&number).cloned().ok_or(Errno::BADF)
    }

    /// Gives a number its first meaning.
    ///
    /// # Errors
    /// EINVAL: it has one, or must not have one; ENFILE: there are too many.
    pub fn add(&self, number: u32, fid: Fid) -> Result<(), Errno> {
        let mut table = self.table();
        if number == super::message::NO_FID || table.contains_key(&number) {
            return Err(Errno::INVAL);
        }
        if table.len() >= MOST {
            return Err(Errno::NFILE);
        }
        table.insert(number, fid);
        Ok(())
    }

    /// Gives a number another meaning, if it still has one.
    pub fn change(&self, number: u32, fid: Fid) {
        let mut table = self.table();
        let old = table
            .get_mut(&number)
            .map(|place| std::mem::replace(place, fid));
        // Files are closed without the lock.
        drop(table);
        drop(old);
    }

    /// Takes a number's meaning away.
    pub fn remove(&self, number: u32) -> Option<Fid> {
        self.table().remove(&number)
    }

    /// Whether no number has a meaning.
    pub fn is_empty(&self) -> bool {
        self.table().is_empty()
    }

    /// Takes the meaning of all numbers away.
    pub fn clear(&self) {
        let all = std::mem::take(&mut *self.table());
        drop(all);
    }
}
