//! The threads of a share: they take requests, in any order, and hand in replies.

use crate::server::Server;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Threads of a share: so many requests may wait for the host at once.
const THREADS: usize = 4;

/// A request and the number by which its reply is known.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The caller's number.
    pub tag: u64,
    /// The request.
    pub bytes: Vec<u8>,
    /// Bytes that the guest has room for.
    pub capacity: usize,
}

/// A request that is done.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The request's number.
    pub tag: u64,
    /// The reply; empty: there is none.
    pub reply: Vec<u8>,
}

#[derive(Default)]
struct Work {
    waiting: VecDeque<Request>,
    /// Threads that are at a request.
    busy: usize,
    /// The last of them makes the server forget; until then nothing new is begun.
    reset_wanted: bool,
    has_ended: bool,
}

#[derive(Default)]
struct Shared {
    work: Mutex<Work>,
    /// Signalled when work arrives or ends.
    arrived: Condvar,
    outcomes: Mutex<VecDeque<Outcome>>,
    /// Requests that were sent, but whose outcome was not taken.
    pending: AtomicUsize,
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outcomes(&self) -> MutexGuard<'_, VecDeque<Outcome>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A server with its threads. Dropping it waits until all requests are done.
pub struct ShareThreads {
    server: Arc<Server>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl ShareThreads {
    /// Starts them. They call `done` when outcomes wait that no earlier call has told of.
    ///
    /// # Errors
    /// The host starts no thread.
    pub fn start(server: Server, done: impl Fn() + Send + Sync + 'static) -> io::Result<Self> {
        let mut threads = Self {
            server: Arc::new(server),
            shared: Arc::default(),
            threads: Vec::new(),
        };
        let done: Arc<dyn Fn() + Send + Sync> = Arc::new(done);
        for _ in 0..THREADS {
            let (server, shared) = (Arc::clone(&threads.server), Arc::clone(&threads.shared));
            let done = Arc::clone(&done);
            let thread = std::thread::Builder::new().name("share".into());
            let thread = thread.spawn(move || serve(&server, &shared, &*done))?;
            threads.threads.push(thread);
        }
        Ok(threads)
    }

    /// Hands a request to a thread; never waits.
    pub fn send(&self, request: Request) {
        self.shared.pending.fetch_add(1, Ordering::Relaxed);
        self.shared.work().waiting.push_back(request);
        self.shared.arrived.notify_one();
    }

    /// Takes what is done.
    pub fn take(&self) -> VecDeque<Outcome> {
        let taken = std::mem::take(&mut *self.shared.outcomes());
        let pending = &self.shared.pending;
        pending.fetch_sub(taken.len(), Ordering::Relaxed);
        taken
    }

    /// Whether requests were sent whose outcomes were not taken.
    pub fn has_pending_work(&self) -> bool {
        self.shared.pending.load(Ordering::Relaxed) != 0
    }

    /// The guest has gone: requests that wait are dropped, and what the guest knew is forgotten
    /// once those under way are done. Does not wait for them.
    pub fn reset(&self) {
        let mut work = self.shared.work();
        let dropped = std::mem::take(&mut work.waiting).len();
        self.shared.pending.fetch_sub(dropped, Ordering::Relaxed);
        if work.busy == 0 {
            self.server.reset();
        } else {
            work.reset_wanted = true;
        }
    }
}

impl Drop for ShareThreads {
    fn drop(&mut self) {
        self.shared.work().has_ended = true;
        self.shared.arrived.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn serve(server: &Server, shared: &Shared, done: &(dyn Fn() + Send + Sync)) {
    loop {
        let mut work = shared
            .arrived
            .wait_while(shared.work(), |work| {
                (work.waiting.is_empty() || work.reset_wanted) && !work.has_ended
            })
            .unwrap_or_else(PoisonError::into_inner);
        let Some(request) = work.waiting.pop_front() else {
            return;
        };
        work.busy += 1;
        drop(work);
        let reply = server.handle(&request.bytes, request.capacity);
        let outcome = Outcome {
            tag: request.tag,
            reply,
        };
        let mut outcomes = shared.outcomes();
        let is_first = outcomes.is_empty();
        outcomes.push_back(outcome);
        drop(outcomes);
        let mut work = shared.work();
        work.busy -= 1;
        if work.busy == 0 && std::mem::take(&mut work.reset_wanted) {
            server.reset();
            shared.arrived.notify_all();
        }
        drop(work);
        if is_first {
            done();
        }
    }
}
