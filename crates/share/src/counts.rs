//! Counts the requests to shared directories by kind.

use crate::protocol::opcode;
use std::sync::atomic::{AtomicU64, Ordering};

/// The names of opcodes, as in `fuse.h`. The first one stands for all that are not listed.
const NAMES: [(u32, &str); 38] = [
    (0, "other"),
    (opcode::LOOKUP, "lookup"),
    (opcode::FORGET, "forget"),
    (opcode::GETATTR, "getattr"),
    (opcode::SETATTR, "setattr"),
    (opcode::READLINK, "readlink"),
    (opcode::SYMLINK, "symlink"),
    (opcode::MKNOD, "mknod"),
    (opcode::MKDIR, "mkdir"),
    (opcode::UNLINK, "unlink"),
    (opcode::RMDIR, "rmdir"),
    (opcode::RENAME, "rename"),
    (opcode::LINK, "link"),
    (opcode::OPEN, "open"),
    (opcode::READ, "read"),
    (opcode::WRITE, "write"),
    (opcode::STATFS, "statfs"),
    (opcode::RELEASE, "release"),
    (opcode::FSYNC, "fsync"),
    (opcode::SETXATTR, "setxattr"),
    (opcode::GETXATTR, "getxattr"),
    (opcode::LISTXATTR, "listxattr"),
    (opcode::REMOVEXATTR, "removexattr"),
    (opcode::INIT, "init"),
    (opcode::OPENDIR, "opendir"),
    (opcode::READDIR, "readdir"),
    (opcode::RELEASEDIR, "releasedir"),
    (opcode::FSYNCDIR, "fsyncdir"),
    (opcode::CREATE, "create"),
    (opcode::INTERRUPT, "interrupt"),
    (opcode::DESTROY, "destroy"),
    (opcode::BATCH_FORGET, "batch-forget"),
    (opcode::FALLOCATE, "fallocate"),
    (opcode::READDIRPLUS, "readdirplus"),
    (opcode::RENAME2, "rename2"),
    (opcode::LSEEK, "lseek"),
    (opcode::COPY_FILE_RANGE, "copy-file-range"),
    (opcode::SYNCFS, "syncfs"),
];

/// The number of requests of each kind.
#[derive(Debug)]
pub struct RequestCounts {
    kinds: [AtomicU64; NAMES.len()],
    at_once: AtomicU64,
}

impl Default for RequestCounts {
    fn default() -> Self {
        Self {
            kinds: [const { AtomicU64::new(0) }; NAMES.len()],
            at_once: AtomicU64::new(0),
        }
    }
}

impl RequestCounts {
    /// Counts a request of a kind.
    pub fn count(&self, opcode: u32) {
        let place = NAMES.iter().position(|name| name.0 == opcode).unwrap_or(0);
        self.kinds[place].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a request that was answered immediately.
    pub fn count_at_once(&self) {
        self.at_once.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of requests of each kind, and the number of all that were answered
    /// immediately.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let names = NAMES.iter().map(|name| name.1).chain(["at-once"]);
        let counts = self.kinds.iter().chain([&self.at_once]);
        names.zip(counts.map(|count| count.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_counted_by_kind_whatever_they_are() {
        let counts = RequestCounts::default();
        for opcode in [1, 44, 44, 9_999, 0, 0] {
            counts.count(opcode);
        }
        counts.count_at_once();
        let counted: Vec<_> = counts.named().filter(|row| row.1 != 0).collect();
        assert_eq!(
            counted,
            [
                ("other", 3),
                ("lookup", 1),
                ("readdirplus", 2),
                ("at-once", 1),
            ]
        );
    }
}
