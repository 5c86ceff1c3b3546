//! The ring in which a PC's BIOS keeps keys for programs, and in which typed text used to get lost.
//!
//! The BIOS's handler of IRQ 1 puts each key into a ring of 15 keys in the BIOS data area, from
//! which INT 16h takes it. The handler drops keys that do not fit. A person who types sees the
//! screen and waits, but text that is sent from outside does not. So a key from outside waits while
//! there is no room for it in the ring:
//!
//! ```text
//!   typed --> waits outside --> keyboard --> controller --> IRQ 1 --> ring --> INT 16h
//!                    ^          <---- on the way here: counted ---->   |
//!                    '------------- looks every 10 ms -----------------'
//! ```
//!
//! A system with its own keyboard driver leaves the ring unchanged, possibly full. If no key is
//! taken from a ring for [`PATIENCE`], it is therefore considered abandoned until it changes.

use tollgate_memory::GuestMemory;
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;

/// Nanoseconds between two checks of a full ring.
pub(super) const LOOK_AGAIN: u64 = 10_000_000;
/// Nanoseconds after which a full ring that does not change is considered abandoned.
const PATIENCE: u64 = 10_000_000_000;

/// The address of the BIOS data area, to which the ring's pointers are relative.
const DATA_AREA: u64 = 0x400;
/// The offset in that area of two words: the next key to be taken, and the place for the next new
/// key.
const HEAD_AND_TAIL: u64 = 0x1a;
/// The offset in that area of two words: the beginning and the end of the ring.
const START_AND_END: u64 = 0x80;
/// The lowest offset in that area that a ring can have.
const FIRST_START: u16 = 0x1e;
/// The size of a key in the ring, in bytes.
const KEY_BYTES: u16 = 2;

/// The ring, as its pointers describe it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ring {
    head: u16,
    tail: u16,
    start: u16,
    end: u16,
}

impl Ring {
    /// Returns the ring in memory, or `None` if there is no valid one.
    fn of(memory: &GuestMemory) -> Option<Self> {
        let words = |offset| {
            let mut bytes = [0; 4];
            let is_read = memory.read(PhysicalAddress(DATA_AREA + offset), &mut bytes);
            let [a, b, c, d] = bytes;
            is_read.then_some((u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d])))
        };
        let (head, tail) = words(HEAD_AND_TAIL)?;
        let (start, end) = words(START_AND_END)?;
        let ring = Self {
            head,
            tail,
            start,
            end,
        };
        let is_place = |at: u16| (start..end).contains(&at);
        let is_even = (head | tail | start | end).is_multiple_of(KEY_BYTES);
        (start >= FIRST_START && is_place(head) && is_place(tail) && is_even).then_some(ring)
    }

    /// Returns how many more keys fit into the ring.
    fn room(self) -> u16 {
        let places = (self.end - self.start) / KEY_BYTES;
        let taken = match self.tail.checked_sub(self.head) {
            Some(bytes) => bytes / KEY_BYTES,
            None => places - (self.head - self.tail) / KEY_BYTES,
        };
        // One place stays free, because a ring whose head and tail are equal is empty.
        places - 1 - taken
    }
}

/// The last observation of the ring.
#[derive(Clone, Debug, Default)]
pub(super) struct BiosBuffer {
    /// The ring when it was first seen to be full, and the time of that.
    full: Option<(Ring, GuestTime)>,
}

impl BiosBuffer {
    /// Starts without any observation.
    pub(super) const fn new() -> Self {
        Self { full: None }
    }

    /// Whether one more key fits after `on_the_way` bytes that the guest has not read yet, each of
    /// which may be a key. Returns true if the guest has no such ring, or has abandoned it.
    pub(super) fn has_room(
        &mut self,
        memory: &GuestMemory,
        on_the_way: usize,
        now: GuestTime,
    ) -> bool {
        let ring = Ring::of(memory).filter(|ring| usize::from(ring.room()) <= on_the_way);
        let Some(ring) = ring else {
            self.full = None;
            return true;
        };
        match self.full {
            Some((before, since)) if before == ring => now.since(since) >= PATIENCE,
            _ => {
                self.full = Some((ring, now));
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn put(memory: &GuestMemory, offset: u64, word: u16) {
        assert!(
            memory
                .clone()
                .write(PhysicalAddress(DATA_AREA + offset), &word.to_le_bytes())
        );
    }

    /// Returns memory with an empty ring at a BIOS's usual address.
    fn memory() -> GuestMemory {
        let memory = GuestMemory::new(1 << 20).unwrap();
        put(&memory, 0x1a, 0x1e);
        put(&memory, 0x1c, 0x1e);
        put(&memory, 0x80, 0x1e);
        put(&memory, 0x82, 0x3e);
        memory
    }

    #[test]
    fn a_ring_has_one_place_less_than_its_bytes_hold() {
        let memory = memory();
        let room = || Ring::of(&memory).map(Ring::room);
        assert_eq!(room(), Some(15));
        put(&memory, 0x1c, 0x3c);
        assert_eq!(room(), Some(0));
        put(&memory, 0x1a, 0x20);
        assert_eq!(room(), Some(1));
        put(&memory, 0x1c, 0x1e);
        assert_eq!(room(), Some(0), "the tail has wrapped around");
        put(&memory, 0x1a, 0x3c);
        assert_eq!(room(), Some(14));
    }

    #[test]
    fn memory_that_is_no_ring_holds_nothing_up() {
        for (offset, word) in [
            (0x1a, 0x1d),
            (0x1a, 0x3e),
            (0x1c, 0x21),
            (0x1c, 0xffff),
            (0x80, 0),
            (0x82, 0x1e),
        ] {
            let memory = memory();
            put(&memory, 0x1c, 0x3c);
            put(&memory, offset, word);
            assert_eq!(Ring::of(&memory), None, "{offset:#x}");
            assert!(BiosBuffer::default().has_room(&memory, 15, GuestTime(0)));
        }
    }

    #[test]
    fn what_is_on_the_way_takes_room() {
        let memory = memory();
        put(&memory, 0x1c, 0x2e);
        let mut buffer = BiosBuffer::default();
        assert!(buffer.has_room(&memory, 6, GuestTime(0)));
        assert!(!buffer.has_room(&memory, 7, GuestTime(0)));
    }

    #[test]
    fn a_full_ring_that_does_not_change_for_long_is_abandoned_until_it_changes() {
        let memory = memory();
        let mut buffer = BiosBuffer::default();
        put(&memory, 0x1c, 0x3c);
        let mut has_room = |seconds: u64| {
            let now = GuestTime(seconds * 1_000_000_000);
            buffer.has_room(&memory, 0, now)
        };
        assert!(!has_room(5) && !has_room(14));
        assert!(has_room(15) && has_room(16));
        put(&memory, 0x1a, 0x20);
        assert!(has_room(17));
        put(&memory, 0x1c, 0x1e);
        assert!(!has_room(18) && !has_room(27));
        assert!(has_room(28));
    }
}
