//! Checks stored translations that are not signed, on a thread of its own, ahead of the guest, in the
//! order in which an earlier guest reached the pages.

use super::StoredTranslations;
use super::candidate::Facts;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::thread::JoinHandle;
use tollgate_confine::ThreadKind;

/// A page that was not checked.
const UNKNOWN: u8 = 0;
/// A page that may run.
const SOUND: u8 = 1;
/// A page that must not run.
const UNSOUND: u8 = 2;

/// What is known of the pages, shared by the thread and the engine.
struct Shared {
    stored: Arc<StoredTranslations>,
    facts: Facts,
    verdicts: Box<[AtomicU8]>,
    ends: AtomicBool,
}

impl Shared {
    /// Checks a page, unless that was done.
    fn is_sound(&self, page: usize) -> bool {
        if self.stored.is_signed() {
            return true;
        }
        let Some(verdict) = self.verdicts.get(page) else {
            return false;
        };
        match verdict.load(Ordering::Acquire) {
            UNKNOWN => {
                // Both threads may check the same page, with the same result.
                let record = self.stored.record(page);
                let is_sound = record.is_some_and(|record| self.facts.accept(&record));
                let new = if is_sound { SOUND } else { UNSOUND };
                verdict.store(new, Ordering::Release);
                is_sound
            }
            known => known == SOUND,
        }
    }
}

/// Stored translations with the thread that checks them. The thread ends with this value.
pub struct Ahead {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Ahead {
    /// Starts to check. If the host allows no further thread, pages are checked when they are
    /// needed.
    pub fn start(stored: StoredTranslations, facts: Facts) -> Self {
        let verdicts = (0..stored.page_count()).map(|_| AtomicU8::new(UNKNOWN));
        let shared = Arc::new(Shared {
            verdicts: verdicts.collect(),
            stored: Arc::new(stored),
            facts,
            ends: AtomicBool::new(false),
        });
        let thread = (!shared.stored.is_signed()).then(|| check_all(Arc::clone(&shared)));
        Self {
            shared,
            thread: thread.and_then(Result::ok),
        }
    }

    /// The translations that are checked.
    pub fn stored(&self) -> &StoredTranslations {
        &self.shared.stored
    }

    /// The translations, which the result keeps alive.
    pub fn share(&self) -> Arc<StoredTranslations> {
        Arc::clone(&self.shared.stored)
    }

    /// Whether the blocks of a page may run, if its record can be read. If the thread has not come
    /// to it yet, it is checked now.
    pub fn is_sound(&self, page: usize) -> bool {
        self.shared.is_sound(page)
    }
}

/// Starts a thread that checks all pages.
fn check_all(shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    let entry = tollgate_confine::entry_of_child(ThreadKind::Worker);
    let check = move || {
        entry.enter();
        for page in 0..shared.verdicts.len() {
            if shared.ends.load(Ordering::Relaxed) {
                return;
            }
            shared.is_sound(page);
        }
    };
    std::thread::Builder::new()
        .name("verify".into())
        .spawn(check)
}

impl Drop for Ahead {
    fn drop(&mut self) {
        self.shared.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported, and the guest has not run its pages.
            let _ = thread.join();
        }
    }
}
