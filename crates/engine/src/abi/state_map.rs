//! State maps (`StateEntry`): where the guest's state is, from an offset in a block's host code on.

use crate::abi::host::{Host, RAX, RSP};
use tollgate_x86::SegmentRegister;

/// One entry of a block's state map: where the guest's state is from this host offset on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateEntry {
    /// The offset in the block's code from which the entry is valid.
    pub host: u32,
    /// EIP of the guest instruction that has not completed.
    pub rip: u64,
    /// What is added to ESP's home to get ESP.
    pub esp: i32,
    /// Guest registers whose values are not in their homes at the moment.
    pub restore: Restore,
    /// What that instruction holds off until it has completed.
    pub shadowed: Shadow,
}

impl StateEntry {
    /// Whether two entries differ only in their offset. The comparisons that are cheapest come
    /// first.
    #[inline]
    pub(crate) fn says_the_same(&self, other: &Self) -> bool {
        self.rip == other.rip
            && self.esp == other.esp
            && self.restore == other.restore
            && self.shadowed == other.shadowed
    }
}

/// What is held off until an instruction has completed, because of the instruction before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shadow {
    /// Nothing is held off.
    #[default]
    None,
    /// Interrupts are held off: the instruction follows STI.
    Interrupts,
    /// Interrupts, NMIs and debug traps are held off: the instruction follows MOV SS or POP SS.
    All,
}

/// Where a guest register's value is at the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// The value is in this host register.
    Host(Host),
    /// The value is in the slot of the context that has the register's number, although the
    /// register lives in a host register.
    Slot,
}

/// Up to [`Restore::MAX_MOVES`] moves of values to their guest registers' homes, which make the
/// guest's state exact. All values are read before the first home is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct Restore {
    /// [`Self::COUNT`] is the number of moves. From bit [`Self::REGISTER`] on follows the number of
    /// the host register that holds EIP, or [`Self::NO_EIP`]. With [`Self::HAS_SEGMENT`] that host
    /// register holds what a segment register is loaded with, and the last place of `moves` holds
    /// the segment register's number.
    count: u8,
    /// The guest register is in the high half. The low half is a host register, or RSP, which never
    /// holds guest state, for the slot.
    moves: [u8; Self::MAX_MOVES],
}

impl PartialEq for Restore {
    /// Compares like a derived implementation, but in one comparison, since entries are compared
    /// for each instruction translated.
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        u64::from_ne_bytes(self.to_bytes()) == u64::from_ne_bytes(other.to_bytes())
    }
}

impl Eq for Restore {}

impl Restore {
    /// The most moves of one entry.
    pub const MAX_MOVES: usize = 7;

    /// In `count`: the number of moves.
    const COUNT: u8 = 0b111;
    /// In `count`: the host register holds what a segment register is loaded with.
    const HAS_SEGMENT: u8 = 1 << 3;
    /// In `count`: the first bit of the host register's number.
    const REGISTER: u32 = 4;
    /// In `count`, the register that means that no host register holds EIP: RAX, which never does.
    const NO_EIP: Host = RAX;

    /// All registers are at home.
    pub const NONE: Restore = Restore {
        count: 0,
        moves: [0; Self::MAX_MOVES],
    };

    /// The state between stores that belong together, where no boundary of guest instructions lies.
    /// The code has no branches, cannot fault and is short, so a request to leave lets it run to
    /// its end. The encoding is a sentinel: RSP as the register that holds EIP. RSP is the host's
    /// stack pointer in emitted code, so no real entry names it.
    pub const UNDIVIDED: Restore = Restore::NONE.with_eip(RSP);

    /// Whether this is [`Restore::UNDIVIDED`].
    pub const fn is_undivided(&self) -> bool {
        self.count >> Self::REGISTER == RSP.0
    }

    /// One move: the guest register's value is in a host register.
    pub const fn one(guest: u8, host: Host) -> Self {
        Self::NONE.and(guest, Source::Host(host))
    }

    /// Adds one move, if there is room for it: see [`Restore::MAX_MOVES`].
    pub const fn and(mut self, guest: u8, source: Source) -> Self {
        let source = match source {
            Source::Host(host) => host.0,
            Source::Slot => RSP.0,
        };
        let count = (self.count & Self::COUNT) as usize;
        let most = Self::MAX_MOVES - self.has_segment() as usize;
        if count < most {
            self.moves[count] = guest << 4 | source & 15;
            self.count += 1;
        }
        self
    }

    /// Adds that EIP is in a host register other than RAX: the target of an indirect call that is
    /// complete except for the jump.
    pub const fn with_eip(mut self, host: Host) -> Self {
        self.count = self.count & Self::COUNT | host.0 << Self::REGISTER;
        self
    }

    /// Adds that a host register holds what must be loaded into a segment register as real mode and
    /// V86 mode do. For CS this is a packed far pointer (see [`crate::abi::far_pointer`]), which
    /// contains EIP too: a far transfer is complete except for the load of CS and EIP. For other
    /// segment registers it is the selector, in the low 16 bits. There is room for one move less.
    pub const fn with_segment(mut self, register: SegmentRegister, host: Host) -> Self {
        let count = self.count & Self::COUNT;
        let most = Self::MAX_MOVES as u8 - 1;
        let count = if count < most { count } else { most };
        self.count = count | Self::HAS_SEGMENT | host.0 << Self::REGISTER;
        self.moves[Self::MAX_MOVES - 1] = register as u8;
        self
    }

    /// The segment register that must be loaded, and the host register that holds the value: see
    /// [`Restore::with_segment`].
    pub fn segment(&self) -> Option<(SegmentRegister, Host)> {
        let register = self.moves[Self::MAX_MOVES - 1];
        let register = *SegmentRegister::ALL.get(register as usize)?;
        self.has_segment()
            .then_some((register, Host(self.count >> Self::REGISTER)))
    }

    /// The host register that holds EIP, if the entry's own EIP is not valid.
    pub const fn eip(&self) -> Option<Host> {
        let host = self.count >> Self::REGISTER;
        if host == Self::NO_EIP.0 || self.has_segment() {
            return None;
        }
        Some(Host(host))
    }

    const fn has_segment(&self) -> bool {
        self.count & Self::HAS_SEGMENT != 0
    }

    /// The bytes from which [`Restore::from_bytes`] makes this value.
    #[inline]
    pub fn to_bytes(self) -> [u8; Self::MAX_MOVES + 1] {
        let mut bytes = [self.count; Self::MAX_MOVES + 1];
        bytes[1..].copy_from_slice(&self.moves);
        bytes
    }

    /// The value that [`Restore::to_bytes`] turned into these bytes.
    pub fn from_bytes([count, moves @ ..]: [u8; Self::MAX_MOVES + 1]) -> Self {
        Self { count, moves }
    }

    /// How many of the first bytes of [`Restore::to_bytes`] contain everything: the others are
    /// zero.
    #[inline]
    pub(crate) fn byte_count(self) -> usize {
        let moves = match self.has_segment() {
            true => Self::MAX_MOVES,
            false => usize::from(self.count & Self::COUNT),
        };
        1 + moves
    }

    /// The moves as guest register numbers and where their values are.
    pub fn moves(&self) -> impl Iterator<Item = (u8, Source)> {
        let count = usize::from(self.count & Self::COUNT);
        self.moves.iter().take(count).map(|&packed| {
            let source = match Host(packed & 15) {
                RSP => Source::Slot,
                host => Source::Host(host),
            };
            (packed >> 4, source)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::host::R11;

    #[test]
    fn a_restore_holds_up_to_seven_moves() {
        assert_eq!(Restore::NONE.moves().count(), 0);
        let two = Restore::one(0, RAX).and(9, Source::Slot);
        let moves: Vec<_> = two.moves().collect();
        assert_eq!(moves, [(0, Source::Host(RAX)), (9, Source::Slot)]);
        let many = (0..9).fold(two, |all, guest| all.and(guest, Source::Host(R11)));
        assert_eq!(many.moves().count(), Restore::MAX_MOVES);
        assert_eq!(many.eip(), None);
        let with_eip = two.with_eip(R11);
        assert_eq!(with_eip.eip(), Some(R11));
        assert_eq!(with_eip.moves().collect::<Vec<_>>(), moves);
        assert_eq!(with_eip.segment(), None);
        for register in SegmentRegister::ALL {
            let loads = two.with_segment(register, R11);
            assert_eq!(loads.segment(), Some((register, R11)));
            assert_eq!(loads.eip(), None);
            assert_eq!(loads.moves().collect::<Vec<_>>(), moves);
        }
        assert_eq!(many.segment(), None);
        assert_eq!(many.eip(), None);
    }
}
