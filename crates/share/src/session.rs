//! A session of the guest's kernel with the server: it can be saved, and another server can continue
//! it.
//!
//! Files that the guest has open are descriptors of the server's process, which no saved state can
//! contain. The files that it knows are found again by their names. That is done for directories
//! that the guest cannot change; of others the guest may know the directory itself alone, because what
//! it would find there later is not what it has left.

use crate::inodes::KnownFiles;
use crate::server::Server;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;

/// What guest and server have agreed on at the begin of the session, and the files that the guest
/// knows.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct SavedSession {
    /// Whether the guest's kernel reads files without opening them.
    reads_unopened: bool,
    /// Whether the guest's kernel reads directories without opening them.
    lists_unopened: bool,
    files: KnownFiles,
}

impl Server {
    /// Returns the guest's session, or `None` if the guest has files of it open, or knows files that
    /// it may change. The caller knows whether there is a session, and sends no request in the
    /// meantime.
    pub fn saved_session(&self) -> Option<SavedSession> {
        let can_be_found = self.options.readonly || self.inodes.count() == 1;
        (can_be_found && self.handles.is_empty()).then(|| SavedSession {
            reads_unopened: self.reads_unopened(),
            lists_unopened: self.lists_unopened(),
            files: self.inodes.known(),
        })
    }

    /// Continues a session with another server. Returns false if that is impossible, because the
    /// guest does without requests that this server needs, or knows files of another directory.
    pub fn resume(&self, session: &SavedSession) -> bool {
        let options = &self.options;
        let is_possible = (!session.reads_unopened || options.reads_unopened && options.readonly)
            && (!session.lists_unopened || options.lists_unopened)
            && (session.files.is_root_alone() || options.readonly);
        if !is_possible {
            return false;
        }
        self.reset();
        self.reads_unopened
            .store(session.reads_unopened, Ordering::Relaxed);
        self.lists_unopened
            .store(session.lists_unopened, Ordering::Relaxed);
        let is_resumed = self.inodes.adopt(&session.files);
        self.note_mounted(is_resumed);
        is_resumed
    }
}
