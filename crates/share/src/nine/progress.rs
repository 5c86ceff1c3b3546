//! The requests that were sent to the threads and are not answered yet, which FLUSH waits for.

use super::message::Head;
use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The table, by the numbers that the caller has counted up.
#[derive(Debug, Default)]
pub struct Progress {
    tags: Mutex<BTreeMap<u64, u16>>,
    /// Signalled when a request has been answered.
    answered: Condvar,
}

impl Progress {
    fn tags(&self) -> MutexGuard<'_, BTreeMap<u64, u16>> {
        self.tags.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes a request that is sent to the threads.
    pub fn begin(&self, number: u64, message: &[u8]) {
        if let Some((head, _)) = Head::read(message) {
            self.tags().insert(number, head.tag);
        }
    }

    /// Notes that a request's answer is on its way.
    pub fn end(&self, number: u64) {
        self.tags().remove(&number);
        self.answered.notify_all();
    }

    /// Forgets all requests.
    pub fn clear(&self) {
        self.tags().clear();
        self.answered.notify_all();
    }

    /// Waits until no request with the tag `awaited` is unfinished of those that precede the first
    /// one with the tag `own`. The threads begin requests in their order, so the earliest unfinished
    /// one waits for no other.
    pub fn wait_for(&self, awaited: u16, own: u16) {
        let tags = self.tags();
        let first = tags.iter().find(|(_, tag)| **tag == own);
        let Some(end) = first.map(|(number, _)| *number) else {
            return;
        };
        let is_unfinished =
            |tags: &mut BTreeMap<u64, u16>| tags.range(..end).any(|(_, tag)| *tag == awaited);
        let waited = self.answered.wait_while(tags, is_unfinished);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    fn message(tag: u8) -> [u8; 7] {
        [7, 0, 0, 0, 100, tag, 0]
    }

    #[test]
    fn a_flush_waits_for_what_precedes_it_and_for_nothing_else() {
        let progress = Progress::default();
        progress.begin(1, &message(5));
        progress.begin(2, &message(6));
        progress.begin(3, &message(6));
        progress.begin(4, &message(9));
        // Its own tag, one that is unknown, and one that follows.
        progress.wait_for(6, 6);
        progress.wait_for(77, 6);
        progress.wait_for(9, 6);
        let (say, said) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                progress.wait_for(5, 6);
                say.send(()).unwrap();
            });
            assert!(said.try_recv().is_err());
            progress.end(2);
            progress.end(1);
            said.recv().unwrap();
        });
    }
}
