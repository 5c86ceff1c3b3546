//! The keys that a PC's BIOS keeps for programs, which is where typed text was lost.
//!
//! The BIOS's handler of IRQ 1 puts each key into a ring of 15 in the BIOS's data area, from
//! which INT 16h takes it, and drops what does not fit. Someone who types sees the screen and
//! waits; a text that is typed from outside does not. So a key from outside waits while there is
//! no room for it in the ring:
//!
//! ```text
//!   typed --> waits outside --> keyboard --> controller --> IRQ 1 --> ring --> INT 16h
//!                    ^          <---- on the way here: counted ---->   |
//!                    '------------- looks every 10 ms -----------------'
//! ```
//!
//! A system with a keyboard driver of its own leaves the ring as it was, full perhaps. A ring of
//! which nothing is taken for [`PATIENCE`] is therefore taken for abandoned until it changes.

use tollgate_memory::GuestMemory;
use tollgate_platform::GuestTime;
use tollgate_x86::PhysicalAddress;

/// Nanoseconds between two looks at a ring that is full.
pub(super) const LOOK_AGAIN: u64 = 10_000_000;
/// Nanoseconds after which a full ring that stays as it is is taken for abandoned.
const PATIENCE: u64 = 10_000_000_000;

/// Where the BIOS's data area is, to which the ring's pointers are relative.
const DATA_AREA: u64 = 0x400;
/// Offset in that area of two words: the next key to be taken, and the place of the next one.
const HEAD_AND_TAIL: u64 = 0x1a;
/// Offset in that area of two words: where the ring begins and ends.
const START_AND_END: u64 = 0x80;
/// The first offset in that area at which a ring can be.
const FIRST_START: u16 = 0x1e;
/// Bytes of a key in the ring.
const KEY_BYTES: u16 = 2;

/// The ring as its pointers describe it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ring {
    head: u16,
    tail: u16,
    start: u16,
    end: u16,
}

impl Ring {
    /// The ring in memory; `None`: there is none.
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

    /// How many keys fit in.
    fn room(self) -> u16 {
        let places = (self.end - self.start) / KEY_BYTES;
        let taken = match self.tail.checked_sub(self.head) {
            Some(bytes) => bytes / KEY_BYTES,
            None => places - (self.head - self.tail) / KEY_BYTES,
        };
        // One place stays free, since a ring with head and tail at one place is empty.
        places - 1 - taken
    }
}

/// What was seen of the ring.
#[derive(Clone, Debug, Default)]
pub(super) struct BiosBuffer {
    /// The ring when it was first seen to be full, and when that was.
    full: Option<(Ring, GuestTime)>,
}

impl BiosBuffer {
    /// Nothing was seen yet.
    pub(super) const fn new() -> Self {
        Self { full: None }
    }

    /// Whether one more key fits in after `on_the_way` bytes that the guest has not read yet, each
    /// of which may be a key. True if the guest has no such ring, or has abandoned it.
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

    /// Memory with an empty ring where a BIOS has it.
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
