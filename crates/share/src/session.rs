//! A session of the guest's kernel with the server that has just begun: it can be saved, and another
//! server can continue it.
//!
//! Files that the guest knows are descriptors of the server's process, which no saved state can
//! contain. The root alone is found again by its path.

use crate::server::Server;
use serde::{Deserialize, Serialize};
use std::sync::atomic::Ordering;

/// What guest and server have agreed on at the begin of a session in which the guest knows no file
/// but the root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NewSession {
    /// Whether the guest's kernel reads files without opening them.
    reads_unopened: bool,
    /// Whether the guest's kernel reads directories without opening them.
    lists_unopened: bool,
}

impl Server {
    /// Returns the guest's session, or `None` if the guest knows files of it. The caller knows
    /// whether there is a session, and sends no request in the meantime.
    pub fn new_session(&self) -> Option<NewSession> {
        let is_new = self.inodes.count() == 1 && self.handles.is_empty();
        is_new.then(|| NewSession {
            reads_unopened: self.reads_unopened(),
            lists_unopened: self.lists_unopened(),
        })
    }

    /// Continues a session with another server. Returns false if that is impossible, because the
    /// guest does without requests that this server needs.
    pub fn resume(&self, session: NewSession) -> bool {
        let options = &self.options;
        let is_possible = (!session.reads_unopened || options.reads_unopened && options.readonly)
            && (!session.lists_unopened || options.lists_unopened);
        if is_possible {
            self.reset();
            self.reads_unopened
                .store(session.reads_unopened, Ordering::Relaxed);
            self.lists_unopened
                .store(session.lists_unopened, Ordering::Relaxed);
        }
        is_possible
    }
}
