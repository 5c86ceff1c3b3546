//! The threads of a share, which take requests, in any order, and return replies.

use crate::service::Service;
use crate::session::SavedSession;
use std::collections::VecDeque;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tollgate_confine::ThreadKind;

/// The number of threads of a share, and so of requests that may wait for the host at the same
/// time.
const THREADS: usize = 4;

/// A request, with the number that identifies its reply.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Request {
    /// The caller's number.
    pub tag: u64,
    /// The bytes of the request.
    pub bytes: Vec<u8>,
    /// The number of bytes that the guest has room for.
    pub capacity: usize,
}

/// A finished request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Outcome {
    /// The request's number.
    pub tag: u64,
    /// The reply. It is empty if there is none.
    pub reply: Vec<u8>,
}

#[derive(Default)]
struct Work {
    waiting: VecDeque<Request>,
    /// The number of threads that are working on a request.
    busy: usize,
    /// Whether a reset is pending. The last working thread makes the server forget, and until then
    /// no request is started.
    reset_wanted: bool,
    has_ended: bool,
}

#[derive(Default)]
struct Shared {
    work: Mutex<Work>,
    /// Signalled when work arrives or ends.
    arrived: Condvar,
    outcomes: Mutex<VecDeque<Outcome>>,
    /// The number of requests that were sent and whose outcome was not taken.
    pending: AtomicUsize,
    /// Whether a thread has panicked, so that the server's state may be wrong.
    has_failed: AtomicBool,
}

impl Shared {
    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn outcomes(&self) -> MutexGuard<'_, VecDeque<Outcome>> {
        self.outcomes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request. A panic is a bug of this program, and the thread has printed its message.
    /// The guest gets EIO for this request and all later ones, until it resets the device.
    fn answer(&self, service: &dyn Service, request: &Request) -> Vec<u8> {
        let (bytes, capacity) = (&request.bytes, request.capacity);
        if !self.has_failed.load(Ordering::Relaxed) {
            // State that the panic has left inconsistent is not used again before it is forgotten.
            let answer = catch_unwind(AssertUnwindSafe(|| service.handle(bytes, capacity)));
            match answer {
                Ok(reply) => return reply,
                Err(_) => self.has_failed.store(true, Ordering::Relaxed),
            }
        }
        service.failed(bytes, capacity)
    }

    /// Makes the server forget while no thread works on a request.
    fn forget(&self, service: &dyn Service) {
        service.reset();
        self.has_failed.store(false, Ordering::Relaxed);
    }
}

/// A server with its threads. Dropping it waits until all requests are done.
pub struct ShareThreads {
    server: Arc<dyn Service>,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl ShareThreads {
    /// Starts the threads. They call `done` when outcomes wait that no earlier call has reported.
    ///
    /// # Errors
    /// The host starts no thread.
    pub fn start(
        server: Arc<dyn Service>,
        done: impl Fn() + Send + Sync + 'static,
    ) -> io::Result<Self> {
        let mut threads = Self {
            server,
            shared: Arc::default(),
            threads: Vec::new(),
        };
        let done: Arc<dyn Fn() + Send + Sync> = Arc::new(done);
        tollgate_confine::start_confined(ThreadKind::Share, || {
            for _ in 0..THREADS {
                let (server, shared) = (Arc::clone(&threads.server), Arc::clone(&threads.shared));
                let done = Arc::clone(&done);
                let entry = tollgate_confine::entry_of_child(ThreadKind::Share);
                let thread = std::thread::Builder::new().name("share".into());
                let thread = thread.spawn(move || {
                    entry.enter();
                    serve(&*server, &shared, &*done);
                })?;
                threads.threads.push(thread);
            }
            Ok(())
        })?;
        Ok(threads)
    }

    /// Answers a request on the calling thread if that needs no wait. `None` means that it must be
    /// [sent](Self::send).
    pub fn answer_at_once(&self, request: &[u8], capacity: usize) -> Option<Vec<u8>> {
        let shared = &*self.shared;
        // The state from before a reset must be forgotten first. Only the caller of this function
        // resets.
        if shared.has_failed.load(Ordering::Relaxed) || shared.work().reset_wanted {
            return None;
        }
        let answer = || self.server.handle_at_once(request, capacity);
        catch_unwind(AssertUnwindSafe(answer)).unwrap_or_else(|_| {
            shared.has_failed.store(true, Ordering::Relaxed);
            None
        })
    }

    /// Hands a request to a thread. Never waits. Tags count up.
    pub fn send(&self, request: Request) {
        self.server.begin(request.tag, &request.bytes);
        self.shared.pending.fetch_add(1, Ordering::Relaxed);
        self.shared.work().waiting.push_back(request);
        self.shared.arrived.notify_one();
    }

    /// Takes the finished requests.
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

    /// Returns the kind of FUSE request under which a request is counted.
    pub fn counted_as(&self, request: &[u8]) -> u32 {
        self.server.counted_as(request)
    }

    /// Whether the guest has a session, by which it knows files.
    pub fn is_mounted(&self) -> bool {
        self.server.is_mounted()
    }

    /// Returns the guest's session if it can be saved, as [`Server::saved_session`](crate::Server::saved_session) does.
    pub fn saved_session(&self) -> Option<SavedSession> {
        (!self.has_pending_work())
            .then(|| self.server.saved_session())
            .flatten()
    }

    /// Continues a saved session, as [`Server::resume`](crate::Server::resume) does.
    pub fn resume(&self, session: &SavedSession) -> bool {
        self.server.resume(session)
    }

    /// Handles a guest that has gone: waiting requests are dropped, and the guest's files are
    /// forgotten once the requests in progress are done. Does not wait for them.
    pub fn reset(&self) {
        let mut work = self.shared.work();
        let dropped = std::mem::take(&mut work.waiting).len();
        self.shared.pending.fetch_sub(dropped, Ordering::Relaxed);
        if work.busy == 0 {
            self.shared.forget(&*self.server);
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

fn serve(server: &dyn Service, shared: &Shared, done: &(dyn Fn() + Send + Sync)) {
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
        let reply = shared.answer(server, &request);
        let outcome = Outcome {
            tag: request.tag,
            reply,
        };
        let mut outcomes = shared.outcomes();
        let is_first = outcomes.is_empty();
        outcomes.push_back(outcome);
        drop(outcomes);
        server.end(request.tag);
        let mut work = shared.work();
        work.busy -= 1;
        if work.busy == 0 && std::mem::take(&mut work.reset_wanted) {
            shared.forget(server);
            shared.arrived.notify_all();
        }
        drop(work);
        if is_first {
            done();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::Server;
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    const GETATTR: u32 = 3;
    const FORGET: u32 = 2;
    const READ: u32 = 15;
    const PANICS: u64 = 7;
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Answers with one byte, and panics at one request.
    struct Faulty;

    impl Service for Faulty {
        fn handle(&self, request: &[u8], _: usize) -> Vec<u8> {
            assert_ne!(request[8..16], PANICS.to_le_bytes(), "for the test's sake");
            vec![1]
        }

        fn handle_at_once(&self, request: &[u8], capacity: usize) -> Option<Vec<u8>> {
            (request[4..8] == READ.to_le_bytes()).then(|| self.handle(request, capacity))
        }

        fn failed(&self, request: &[u8], capacity: usize) -> Vec<u8> {
            Server::failed(request, capacity)
        }

        fn counted_as(&self, _: &[u8]) -> u32 {
            0
        }

        fn is_mounted(&self) -> bool {
            false
        }

        fn reset(&self) {}

        fn saved_session(&self) -> Option<SavedSession> {
            None
        }

        fn resume(&self, _: &SavedSession) -> bool {
            false
        }
    }

    fn start() -> (ShareThreads, Receiver<()>) {
        let (say, said) = channel();
        let done = move || {
            let _ = say.send(());
        };
        let threads = ShareThreads::start(Arc::new(Faulty), done).unwrap();
        (threads, said)
    }

    fn request(opcode: u32, unique: u64) -> Request {
        let mut bytes = vec![0; 40];
        bytes[..4].copy_from_slice(&40u32.to_le_bytes());
        bytes[4..8].copy_from_slice(&opcode.to_le_bytes());
        bytes[8..16].copy_from_slice(&unique.to_le_bytes());
        Request {
            tag: unique,
            bytes,
            capacity: 4096,
        }
    }

    fn reply(threads: &ShareThreads, said: &Receiver<()>, request: Request) -> Vec<u8> {
        let tag = request.tag;
        threads.send(request);
        said.recv_timeout(PATIENCE).unwrap();
        let outcomes = threads.take();
        assert_eq!((outcomes.len(), outcomes[0].tag), (1, tag));
        outcomes[0].reply.clone()
    }

    fn eio(unique: u64) -> Vec<u8> {
        let error = -rustix::io::Errno::IO.raw_os_error();
        let [bytes, error] = [16, error].map(i32::to_le_bytes);
        [&bytes[..], &error, &unique.to_le_bytes()].concat()
    }

    #[test]
    fn a_panic_is_eio_until_the_device_is_reset() {
        let (threads, said) = start();
        assert_eq!(reply(&threads, &said, request(GETATTR, 1)), [1]);
        assert_eq!(
            reply(&threads, &said, request(GETATTR, PANICS)),
            eio(PANICS)
        );
        // There are more requests than threads, and no thread has ended.
        for unique in 10..30 {
            assert_eq!(
                reply(&threads, &said, request(GETATTR, unique)),
                eio(unique)
            );
        }
        assert_eq!(reply(&threads, &said, request(FORGET, 30)), []);
        assert!(!threads.has_pending_work());
        assert_eq!(threads.answer_at_once(&request(READ, 30).bytes, 4096), None);
        // The thread may not have reported the end of the last request yet.
        threads.reset();
        let end = std::time::Instant::now() + PATIENCE;
        while threads.shared.has_failed.load(Ordering::Relaxed) {
            assert!(std::time::Instant::now() < end);
            std::thread::yield_now();
        }
        assert_eq!(reply(&threads, &said, request(GETATTR, 31)), [1]);
        let at_once = |unique| threads.answer_at_once(&request(READ, unique).bytes, 4096);
        assert_eq!(at_once(32), Some(vec![1]));
        assert_eq!(at_once(PANICS), None);
        assert_eq!(at_once(33), None);
        assert_eq!(reply(&threads, &said, request(READ, 33)), eio(33));
    }
}
