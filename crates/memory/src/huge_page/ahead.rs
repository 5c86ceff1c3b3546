//! Huge pages that are requested before they are needed.
//!
//! The host clears a huge page when it allocates it, which takes some hundred microseconds on an
//! idle host and milliseconds on a busy one. A separate thread waits for that, so that the thread
//! that needs the page does not.

use super::ask;
use std::sync::mpsc::{self, Sender};
use std::thread::JoinHandle;
use tollgate_confine::ThreadKind;
use tollgate_host_facts::processors::Affinity;

/// A thread that [asks](ask) the host for huge pages. Dropping this value waits for the thread to
/// end, so that it no longer touches the memory that it was given.
#[derive(Default)]
pub struct Ahead {
    /// The thread; it is started with the first request.
    worker: Option<Worker>,
}

struct Worker {
    requests: Sender<usize>,
    thread: JoinHandle<()>,
}

impl Worker {
    fn new() -> Option<Self> {
        let (requests, asked_for) = mpsc::channel::<usize>();
        let entry = tollgate_confine::entry_of_child(ThreadKind::Worker);
        let thread = std::thread::Builder::new()
            .name("huge-pages".into())
            .spawn(move || {
                use_all_processors();
                entry.enter();
                block_signals();
                for start in asked_for {
                    ask(std::ptr::with_exposed_provenance_mut(start));
                }
            });
        let thread = thread.ok()?;
        Some(Self { requests, thread })
    }
}

/// Lets this thread run where the process's first thread may. The thread that has started this one may
/// have bound itself to a processor, as it does to run programs natively.
fn use_all_processors() {
    let first = std::process::id().cast_signed();
    let _ = Affinity::of(first).and_then(|processors| processors.apply());
}

/// Blocks all signals in this thread: those that interrupt guest code must reach the thread that
/// runs it.
fn block_signals() {
    // SAFETY: an all-zero set is valid, sigfillset fills it, and the mask belongs to the calling
    // thread.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, std::ptr::null_mut());
    }
}

impl Ahead {
    /// [Asks](ask) for the huge page at `start` without waiting for it; does nothing if no thread
    /// can be created. The range must stay mapped for as long as `self` lives.
    pub fn ask(&mut self, start: *mut u8) {
        if self.worker.is_none() {
            self.worker = Worker::new();
        }
        if let Some(worker) = &self.worker {
            // The thread ends only after the sender is dropped, so sending cannot fail.
            let _ = worker.requests.send(start.expose_provenance());
        }
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        if let Some(Worker { requests, thread }) = self.worker.take() {
            drop(requests);
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::huge_page::{HUGE_PAGE, reserve};

    #[test]
    fn a_page_that_was_asked_for_is_there() {
        let bytes = 2 * HUGE_PAGE as usize;
        let start = reserve(bytes).unwrap();
        // SAFETY: the mapping replaces the reservation, which belongs to this test.
        let mapped = unsafe {
            libc::mmap(
                start.cast(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            )
        };
        assert_eq!(mapped, start.cast());
        let mut ahead = Ahead::default();
        let second = start.wrapping_add(HUGE_PAGE as usize);
        ahead.ask(second);
        drop(ahead);
        // At least the first page is present, wherever MADV_POPULATE_WRITE exists (Linux 5.14).
        let is_there = |at: *mut u8| {
            let mut state = 0u8;
            // SAFETY: one page of the mapping, and one byte for its state.
            let result = unsafe { libc::mincore(at.cast(), 4096, &mut state) };
            assert_eq!(result, 0);
            state & 1 != 0
        };
        // SAFETY: madvise on a page of the mapping.
        let is_known = unsafe { libc::madvise(start.cast(), 4096, libc::MADV_POPULATE_WRITE) } == 0;
        assert_eq!(is_there(second), is_known);
        // SAFETY: the mapping belongs to this test.
        unsafe { libc::munmap(start.cast(), bytes) };
    }
}
