//! The cable between a machine's adapter and its network: two bounded queues of frames.
//!
//! The adapter's end is used on the vCPU's thread, which never waits. If the queue to the network
//! is full, the adapter leaves frames with the guest and is notified later; if the guest has no
//! buffers, frames wait here. The network's end checks whether there is room, and otherwise leaves
//! its data with the host.
//!
//! Each end gets at most one notification until it has looked at its queue.

use crate::frame::Frame;
use crate::inner_service::{Inner, InnerService, Outlet};
use rustix::event::{EventfdFlags, eventfd};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The maximum number of bytes of frames from the guest that wait, not counting the last frame.
const FROM_GUEST_BYTES: usize = 1 << 20;
/// If frames for the guest have this many bytes, the network sends no more data.
const TO_GUEST_BYTES: usize = 1 << 20;
/// The same limit for datagrams, which leaves room for connections.
const TO_GUEST_DATAGRAM_BYTES: usize = TO_GUEST_BYTES / 4 * 3;
/// If frames for the guest have this many bytes, everything is dropped, because answers to the
/// guest's own frames cannot wait.
const TO_GUEST_MAX_BYTES: usize = 4 << 20;
/// The number of bytes that a frame counts in addition to its own.
const FRAME_COST: usize = 128;

/// The offloads that the guest's driver supports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Offloads {
    /// The driver completes checksums.
    pub checksum: bool,
    /// The driver accepts TCP segments over IPv4 that were not split.
    pub tcp4: bool,
    /// The driver accepts TCP segments over IPv6 that were not split.
    pub tcp6: bool,
}

impl Offloads {
    const fn bits(self) -> u8 {
        self.checksum as u8 | (self.tcp4 as u8) << 1 | (self.tcp6 as u8) << 2
    }

    const fn of_bits(bits: u8) -> Self {
        Self {
            checksum: bits & 1 != 0,
            tcp4: bits & 2 != 0,
            tcp6: bits & 4 != 0,
        }
    }
}

/// Frames and their total size.
struct Queue<T> {
    frames: VecDeque<T>,
    bytes: usize,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self {
            frames: VecDeque::new(),
            bytes: 0,
        }
    }
}

#[derive(Default)]
struct FromGuest {
    queue: Queue<Vec<u8>>,
    /// Whether the adapter found the queue full and must be notified when it is not.
    adapter_waits: bool,
}

#[derive(Default)]
struct ToGuest {
    queue: Queue<Frame>,
    /// Whether the adapter was notified and has not looked yet.
    told: bool,
    /// Whether the guest has no buffers; the adapter looks when it gets some.
    starved: bool,
    /// Whether the network found no room and must be woken when there is some.
    network_waits: bool,
}

type Tell = Box<dyn Fn() + Send>;

struct Shared {
    from_guest: Mutex<FromGuest>,
    to_guest: Mutex<ToGuest>,
    /// A descriptor that is readable when the network's thread has something to do.
    wake: OwnedFd,
    /// Whether the descriptor was made readable and the thread has not looked yet.
    woken: AtomicBool,
    stopped: AtomicBool,
    offloads: AtomicU8,
    /// Notifies the adapter, which then looks on the vCPU's thread.
    tell: Mutex<Option<Tell>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    fn wake(&self) {
        if !self.woken.swap(true, Ordering::SeqCst) {
            // The write fails only if the counter is full, and then the thread wakes anyway.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }

    fn tell(&self) {
        if let Some(tell) = &*lock(&self.tell) {
            tell();
        }
    }
}

/// Makes a cable and returns its two ends.
///
/// # Errors
/// The host has no descriptor left.
pub fn cable() -> io::Result<(Adapter, Wire)> {
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
    let shared = Arc::new(Shared {
        from_guest: Mutex::default(),
        to_guest: Mutex::default(),
        wake,
        woken: AtomicBool::new(false),
        stopped: AtomicBool::new(false),
        offloads: AtomicU8::new(0),
        tell: Mutex::new(None),
    });
    let adapter = Adapter {
        shared: Arc::clone(&shared),
    };
    let wire = Wire {
        shared,
        inner: None,
    };
    Ok((adapter, wire))
}

/// The adapter's end.
pub struct Adapter {
    shared: Arc<Shared>,
}

impl Adapter {
    /// Sets the function that is called, on the network's thread, when [`Adapter::take`] would
    /// return a frame or [`Adapter::has_room`] has become true.
    pub fn connect(&self, tell: impl Fn() + Send + 'static) {
        *lock(&self.shared.tell) = Some(Box::new(tell));
        // Frames may have arrived earlier. The driver asks for them when it has buffers, and is
        // notified of later ones.
        lock(&self.shared.to_guest).told = false;
    }

    /// Sets the offloads that the guest's driver supports.
    pub fn set_offloads(&self, offloads: Offloads) {
        let bits = offloads.bits();
        self.shared.offloads.store(bits, Ordering::Relaxed);
    }

    /// Whether a frame of the guest may be sent. If not, the adapter is notified when it may.
    pub fn has_room(&self) -> bool {
        let mut from_guest = lock(&self.shared.from_guest);
        let has_room = from_guest.queue.bytes < FROM_GUEST_BYTES;
        from_guest.adapter_waits = !has_room;
        has_room
    }

    /// Sends a frame of the guest.
    pub fn send(&self, frame: Vec<u8>) {
        let mut from_guest = lock(&self.shared.from_guest);
        from_guest.queue.bytes += frame.len() + FRAME_COST;
        from_guest.queue.frames.push_back(frame);
        drop(from_guest);
        self.shared.wake();
    }

    /// Begins to look at the frames for the guest, and returns how many there are. The adapter is
    /// notified of frames that arrive later.
    pub fn look(&self) -> usize {
        let mut to_guest = lock(&self.shared.to_guest);
        (to_guest.told, to_guest.starved) = (false, false);
        to_guest.queue.frames.len()
    }

    /// Takes the next frame for the guest if `fits` returns that the guest has room for it.
    pub fn take_if<E>(
        &self,
        fits: impl FnOnce(&Frame) -> Result<bool, E>,
    ) -> Result<Option<Frame>, E> {
        let mut to_guest = lock(&self.shared.to_guest);
        let Some(frame) = to_guest.queue.frames.front() else {
            return Ok(None);
        };
        if !fits(frame)? {
            to_guest.starved = true;
            return Ok(None);
        }
        let frame = to_guest.queue.frames.pop_front();
        let bytes = frame.as_ref().map_or(0, |frame| frame.bytes.len());
        to_guest.queue.bytes -= bytes + FRAME_COST;
        let wakes = to_guest.network_waits && to_guest.queue.bytes < TO_GUEST_BYTES / 2;
        if wakes {
            to_guest.network_waits = false;
        }
        drop(to_guest);
        if wakes {
            self.shared.wake();
        }
        Ok(frame)
    }

    /// Drops the frames that the guest has sent and the network has not taken.
    pub fn forget(&self) {
        lock(&self.shared.from_guest).queue = Queue::default();
    }

    /// Drops the frames for the old driver of the guest when a new one starts.
    pub fn reset(&self) {
        *lock(&self.shared.to_guest) = ToGuest::default();
        lock(&self.shared.from_guest).adapter_waits = false;
        self.set_offloads(Offloads::default());
        self.shared.wake();
    }
}

/// The network's end.
pub struct Wire {
    shared: Arc<Shared>,
    /// A service that takes what the guest sends to it.
    inner: Option<RefCell<Inner>>,
}

impl Wire {
    /// Puts a service in front of the network: frames for it are answered when the network receives.
    #[must_use]
    pub fn with_service(self, service: Option<InnerService>) -> Self {
        Self {
            inner: service.map(|service| RefCell::new(Inner::new(service))),
            ..self
        }
    }

    /// Returns a descriptor that is readable when there is something to do. [`Wire::receive`]
    /// clears it.
    pub fn wake_descriptor(&self) -> BorrowedFd<'_> {
        self.shared.wake.as_fd()
    }

    /// Returns the offloads that the guest's driver supports.
    pub fn offloads(&self) -> Offloads {
        Offloads::of_bits(self.shared.offloads.load(Ordering::Relaxed))
    }

    /// Takes all frames that the guest has sent, except those for a service inside the network.
    pub fn receive(&self) -> VecDeque<Vec<u8>> {
        // The order matters: a sender that finds `woken` still set has already queued its frame,
        // which is seen below. In the opposite order, a wake in between would be lost.
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.shared.wake, &mut counter);
        self.shared.woken.store(false, Ordering::SeqCst);
        let mut from_guest = lock(&self.shared.from_guest);
        let frames = std::mem::take(&mut from_guest.queue).frames;
        let tells = std::mem::take(&mut from_guest.adapter_waits);
        drop(from_guest);
        if tells {
            self.shared.tell();
        }
        match &self.inner {
            Some(inner) => inner.borrow_mut().divert(frames, self),
            None => frames,
        }
    }

    /// Whether data may be sent to the guest. If not, the descriptor becomes readable when it may.
    pub fn has_room(&self) -> bool {
        self.has_less_than(TO_GUEST_BYTES)
    }

    /// Whether datagrams may be sent to the guest. If not, the descriptor becomes readable when
    /// they may.
    pub fn has_room_for_datagrams(&self) -> bool {
        self.has_less_than(TO_GUEST_DATAGRAM_BYTES)
    }

    fn has_less_than(&self, bytes: usize) -> bool {
        let mut to_guest = lock(&self.shared.to_guest);
        let has_room = to_guest.queue.bytes < bytes;
        to_guest.network_waits |= !has_room;
        has_room
    }

    /// Sends a frame to the guest, or drops it if far too many are waiting.
    pub fn send(&self, frame: Frame) {
        let mut to_guest = lock(&self.shared.to_guest);
        if to_guest.queue.bytes >= TO_GUEST_MAX_BYTES {
            return;
        }
        to_guest.queue.bytes += frame.bytes.len() + FRAME_COST;
        to_guest.queue.frames.push_back(frame);
        let tells = !to_guest.told && !to_guest.starved;
        to_guest.told |= tells;
        drop(to_guest);
        if tells {
            self.shared.tell();
        }
    }

    /// Whether the other end was dropped.
    pub fn is_stopped(&self) -> bool {
        self.shared.stopped.load(Ordering::Acquire)
    }

    pub(crate) fn stopper(&self) -> Stopper {
        Stopper(Arc::clone(&self.shared))
    }
}

impl Outlet for Wire {
    fn has_room(&self) -> bool {
        Self::has_room(self)
    }

    fn send(&self, frame: Frame) {
        Self::send(self, frame);
    }
}

/// Ends a network's thread.
pub(crate) struct Stopper(Arc<Shared>);

impl Stopper {
    pub fn stop(&self) {
        self.0.stopped.store(true, Ordering::Release);
        self.0.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;
    use std::sync::atomic::AtomicUsize;

    fn take(adapter: &Adapter, fits: bool) -> Option<Frame> {
        let taken: Result<_, Infallible> = adapter.take_if(|_| Ok(fits));
        taken.unwrap()
    }

    #[test]
    fn the_adapter_is_told_once_until_it_looks() {
        let (adapter, wire) = cable().unwrap();
        let told = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&told);
        adapter.connect(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        for byte in 0..3 {
            wire.send(Frame::new(vec![byte]));
        }
        assert_eq!(told.load(Ordering::Relaxed), 1);
        adapter.look();
        for byte in 0..3 {
            assert_eq!(take(&adapter, true), Some(Frame::new(vec![byte])));
        }
        assert_eq!(take(&adapter, true), None);
        // A guest without buffers asks by itself when it has some.
        wire.send(Frame::new(vec![3]));
        adapter.look();
        assert_eq!(take(&adapter, false), None);
        wire.send(Frame::new(vec![4]));
        assert_eq!(told.load(Ordering::Relaxed), 2);
        adapter.look();
        assert!(take(&adapter, true).is_some() && take(&adapter, true).is_some());
        wire.send(Frame::new(vec![5]));
        assert_eq!(told.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn both_queues_are_bounded_and_say_when_there_is_room_again() {
        let (adapter, wire) = cable().unwrap();
        let told = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&told);
        adapter.connect(move || {
            counter.fetch_add(1, Ordering::Relaxed);
        });
        let mut sent = 0;
        while adapter.has_room() {
            adapter.send(vec![0; 1500]);
            sent += 1;
        }
        assert!(sent < 2 * FROM_GUEST_BYTES / 1500);
        assert_eq!(wire.receive().len(), sent);
        assert_eq!(told.load(Ordering::Relaxed), 1);
        assert!(adapter.has_room());
        while wire.has_room() {
            wire.send(Frame::new(vec![0; 1500]));
        }
        for _ in 0..10_000 {
            wire.send(Frame::new(vec![0; 1500]));
        }
        let _ = wire.receive();
        adapter.look();
        let mut taken = 0;
        while take(&adapter, true).is_some() {
            taken += 1;
        }
        assert!(taken <= TO_GUEST_MAX_BYTES / 1500);
        assert!(wire.has_room());
        assert!(wire.shared.woken.load(Ordering::Relaxed));
    }

    #[test]
    fn a_reset_drops_what_was_on_its_way_to_the_guest() {
        let (adapter, wire) = cable().unwrap();
        adapter.set_offloads(Offloads {
            checksum: true,
            tcp4: true,
            tcp6: false,
        });
        assert!(wire.offloads().tcp4 && wire.offloads().checksum);
        wire.send(Frame::new(vec![1]));
        adapter.reset();
        assert_eq!(take(&adapter, true), None);
        assert_eq!(wire.offloads(), Offloads::default());
    }
}
