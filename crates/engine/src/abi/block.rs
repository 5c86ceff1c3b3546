//! A translated block: host code for a run of guest instructions, and the tables
//! that lead from any host address in it back to exact guest state.

use crate::emit::assembler::Host;
use crate::emit::assembler::host::RSP;
use crate::policy::mode::{InterruptFlag, ModeId};
use iced_x86::Instruction;
use tollgate_x86::{SegmentRegister, Vector};

/// What identifies a translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct BlockKey {
    /// Physical address of the first byte.
    pub physical: u64,
    /// Physical page number of the second page, if the first instruction straddles;
    /// otherwise `u64::MAX`.
    pub second_page: u64,
    /// EIP of the first instruction.
    pub rip: u64,
    /// Mode word.
    pub mode: ModeId,
}

/// Number of a block; numbers are given out again after a block has died.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct BlockId(pub u32);

/// From this host offset on, guest state is as follows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// Offset in the block's code.
    pub host: u32,
    /// EIP of the guest instruction that has not completed.
    pub rip: u64,
    /// Added to ESP's home to get ESP.
    pub esp: i32,
    /// Guest registers that lie elsewhere for the moment.
    pub restore: Restore,
    /// What that instruction holds off until it has completed.
    pub shadowed: Shadow,
}

/// What waits for an instruction because of the one before it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Shadow {
    /// Nothing.
    #[default]
    None,
    /// Interrupts: it stands behind STI.
    Interrupts,
    /// Interrupts, NMIs and debug traps: it stands behind MOV SS or POP SS.
    All,
}

/// Where a guest register's value is for the moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// In this host register.
    Host(Host),
    /// In the context's slot of its number, although its home is a host register.
    Slot,
}

/// Up to [`Restore::MAX_MOVES`] moves of values to their guest registers' homes that put
/// guest state right. All values are read before the first home is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Restore {
    /// Moves in the low three bits; in the high half the host register that holds EIP, if
    /// any: never RAX. If bit 3 is set, that with which the segment register is loaded
    /// whose number is in place of the last move.
    count: u8,
    /// The guest register in the high half; in the low half a host register, or RSP,
    /// which never holds guest state, for the slot.
    moves: [u8; Self::MAX_MOVES],
}

impl Restore {
    /// Moves at most.
    pub const MAX_MOVES: usize = 7;

    /// Nothing to put right.
    pub const NONE: Restore = Restore {
        count: 0,
        moves: [0; Self::MAX_MOVES],
    };

    /// Amid stores that belong together: the guest stands at no boundary. The code is
    /// straight, cannot fault, and is soon through; a request to leave has it run so far.
    /// Named as an EIP in RSP, where none ever is.
    pub const UNDIVIDED: Restore = Restore::NONE.with_eip(RSP);

    /// This is [`Restore::UNDIVIDED`].
    pub const fn is_undivided(&self) -> bool {
        self.count >> 4 == RSP.0
    }

    /// The guest register's value is in a host register.
    pub const fn one(guest: u8, host: Host) -> Self {
        Self::NONE.and(guest, Source::Host(host))
    }

    /// With one more move, if there is room for it: see [`Restore::MAX_MOVES`].
    pub const fn and(mut self, guest: u8, source: Source) -> Self {
        let source = match source {
            Source::Host(host) => host.0,
            Source::Slot => RSP.0,
        };
        let count = (self.count & 7) as usize;
        let most = Self::MAX_MOVES - (self.count >> 3 & 1) as usize;
        if count < most {
            self.moves[count] = guest << 4 | source & 15;
            self.count += 1;
        }
        self
    }

    /// The same, and EIP is in a host register other than RAX: the target of an indirect
    /// call that is done but for the jump.
    pub const fn with_eip(mut self, host: Host) -> Self {
        self.count = self.count & 7 | host.0 << 4;
        self
    }

    /// The same, and a host register holds what is to be loaded into a segment register as
    /// real mode and V86 mode do. For CS it is a packed far pointer (see
    /// [`crate::abi::far_pointer`]), which EIP is in too: a far transfer is done but for that. For
    /// others it is the selector, in the low 16 bits. There is room for one move less.
    pub const fn with_segment(mut self, register: SegmentRegister, host: Host) -> Self {
        let count = self.count & 7;
        let most = Self::MAX_MOVES as u8 - 1;
        self.count = if count < most { count } else { most } | 8 | host.0 << 4;
        self.moves[Self::MAX_MOVES - 1] = register as u8;
        self
    }

    /// The segment register that is to be loaded, and the host register that says with
    /// what: see [`Restore::with_segment`].
    pub fn segment(&self) -> Option<(SegmentRegister, Host)> {
        let register = self.moves[Self::MAX_MOVES - 1];
        let register = *SegmentRegister::ALL.get(register as usize)?;
        (self.count & 8 != 0).then_some((register, Host(self.count >> 4)))
    }

    /// The host register that holds EIP, if the mark's does not count.
    pub const fn eip(&self) -> Option<Host> {
        match self.count >> 4 {
            0 => None,
            _ if self.count & 8 != 0 => None,
            host => Some(Host(host)),
        }
    }

    /// The moves as guest register numbers and where their values are.
    pub fn moves(&self) -> impl Iterator<Item = (u8, Source)> {
        let count = usize::from(self.count & 7);
        self.moves.iter().take(count).map(|&packed| {
            let source = match Host(packed & 15) {
                RSP => Source::Slot,
                host => Source::Host(host),
            };
            (packed >> 4, source)
        })
    }
}

/// Where a link site keeps its target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LinkPlace {
    /// A 32-bit distance at this offset of the block's code; the stub is at `stub`.
    Direct {
        /// Offset of the distance.
        distance: u32,
        /// Offset of the stub to which an unlinked site jumps.
        stub: u32,
    },
    /// A slot of the current link tables, relative to the stub.
    Slot {
        /// Number of the slot.
        slot: u32,
        /// Offset of the stub to which an empty slot leads.
        stub: u32,
    },
}

/// Why a block leaves for the monitor at one of its sites.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SiteKind {
    /// A direct branch to `Site::rip` whose target is not linked.
    Link(LinkPlace),
    /// An indirect branch; the target EIP is in the exit value.
    Indirect,
    /// The privilege level has changed, and the instruction is done but for EIP, which is in
    /// the exit value: the target is not in its mode's table.
    LevelChanged,
    /// A far transfer of real or V86 mode that is done but for CS and EIP, whose packed far
    /// pointer is in the exit value: its target is not in the table.
    Far,
    /// A software-TLB miss; the linear address is in the exit value.
    Memory {
        /// Bytes accessed.
        size: u8,
        /// The access needs write permission.
        write: bool,
    },
    /// As [`SiteKind::Memory`], of a load that the processor makes with the rights of the
    /// supervisor whatever the privilege level is.
    SystemRead {
        /// Bytes read.
        size: u8,
        /// The instruction, as [`SiteKind::Helper`] names it, for when the load cannot be
        /// made inline.
        helper: u16,
    },
    /// The instruction must be done out of line with all checks.
    Slow,
    /// An instruction that is never copied: number in the block's list.
    Helper(u16),
    /// The guest's vector registers are needed.
    VectorLoad,
    /// Continue at `Site::rip`.
    Continue,
    /// Raise this exception (error code 0) at `Site::rip`.
    Fault(Vector),
}

/// One way out of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Site {
    /// Why.
    pub kind: SiteKind,
    /// EIP of the instruction, or for branches of the target.
    pub rip: u64,
    /// Added to R12 to get ESP at the exit.
    pub esp: i32,
    /// Offset in the block's code at which the instruction may be tried again.
    pub retry: u32,
    /// Offset behind the instruction; 0 if control moves on.
    pub after: u32,
    /// Added to R12 to get ESP at `after`.
    pub after_esp: i32,
    /// As [`Mark::shadowed`], if the instruction has not completed.
    pub shadowed: Shadow,
}

/// Sites of one block at most; the exit site packs a block and a site number.
pub const MAX_SITES: usize = 1 << 10;
/// Blocks alive at most.
pub const MAX_BLOCKS: usize = 1 << 21;

/// Packs a block and a site into the number that exit stubs store.
pub fn pack_site(block: BlockId, site: usize) -> u32 {
    block.0 << 10 | site as u32
}

/// The reverse of [`pack_site`].
pub fn unpack_site(packed: u32) -> (BlockId, usize) {
    (
        BlockId(packed >> 10),
        (packed & (MAX_SITES as u32 - 1)) as usize,
    )
}

/// An immediate operand that was copied as it is: other bytes of the guest's in its place
/// make the same difference to the translation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Immediate {
    /// Offset in the guest's code.
    pub guest: u16,
    /// Bytes.
    pub size: u8,
    /// Offset in the host's code.
    pub host: u32,
}

/// What must be noted of an x87 instruction that has completed (see
/// [`crate::translate`]'s `x87`), while the code that does so is under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct X87Note {
    /// Offset in the block's code of the first host instruction that notes it.
    pub start: u32,
    /// Offset behind the last.
    pub end: u32,
    /// [`crate::Context::x87_instruction`].
    pub instruction: u64,
    /// [`crate::Context::x87_opcode`]; with a memory operand, its linear address is in R8.
    pub opcode: u32,
}

/// Host code that completes an instruction in several steps. The instruction counts as done
/// from the first on: who takes the guest out here does what is left (see
/// [`crate::signals`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    /// Offset in the block's code of the first host instruction.
    pub start: u32,
    /// Offset behind the last.
    pub end: u32,
    /// What is done.
    pub kind: CompletionKind,
}

/// What a [`Completion`] does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CompletionKind {
    /// Loads the flags from the image in R11.
    Flags {
        /// The flag that bit 9 of the image goes to, if any.
        interrupt: Option<InterruptFlag>,
    },
    /// Stores an interrupt's frame, whose parts are in [`crate::Context::work`], and changes
    /// the interrupt flag.
    Frame {
        /// Bytes of each value: 2 or 4.
        size: u8,
        /// EIP in the frame.
        rip: u32,
        /// The interrupt flag.
        flag: InterruptFlag,
    },
}

/// Who jumps to a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Incoming {
    /// The jumping block.
    pub from: BlockId,
    /// Its site.
    pub site: u16,
}

/// A translation and its tables.
#[derive(Debug)]
pub struct Block {
    /// What it translates.
    pub key: BlockKey,
    /// Offset of its code in the cache.
    pub host: u32,
    /// Bytes of code.
    pub host_length: u32,
    /// Bytes of guest code.
    pub guest_length: u32,
    /// Ordered by host offset.
    pub marks: Box<[Mark]>,
    /// Ways out.
    pub sites: Box<[Site]>,
    /// Instructions that the monitor executes.
    pub helpers: Box<[Instruction]>,
    /// Operands that can be replaced, in the order of the guest's code.
    pub immediates: Box<[Immediate]>,
    /// Ordered by host offset.
    pub x87_notes: Box<[X87Note]>,
    /// Ordered by host offset.
    pub completions: Box<[Completion]>,
    /// The guest's code, if the block has been retired before or was likely to be.
    pub bytes: Box<[u8]>,
    /// Kept for the case that its code comes back: nothing leads here.
    pub is_retired: bool,
    /// How often it was retired, as far as a byte counts.
    pub retirements: u8,
    /// A link to it was asked for since it was last revived.
    pub is_link_wanted: bool,
    /// Direct links that lead here.
    pub incoming: Vec<Incoming>,
    /// Direct links of this block that are linked: (site, target).
    pub outgoing: Vec<(u16, BlockId)>,
}

impl Block {
    /// The mark in force at an offset of the block's code.
    pub fn mark_at(&self, offset: u32) -> Option<&Mark> {
        let next = self.marks.partition_point(|mark| mark.host <= offset);
        self.marks.get(next.checked_sub(1)?)
    }

    /// What is being completed at an offset of the block's code.
    pub fn completion_at(&self, offset: u32) -> Option<&Completion> {
        let next = self.completions.partition_point(|it| it.end <= offset);
        self.completions.get(next).filter(|it| it.start <= offset)
    }

    /// What is being noted at an offset of the block's code.
    pub fn x87_note_at(&self, offset: u32) -> Option<&X87Note> {
        let next = self.x87_notes.partition_point(|note| note.end <= offset);
        self.x87_notes.get(next).filter(|note| note.start <= offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::emit::assembler::host::{R10, RAX};

    #[test]
    fn a_restore_holds_up_to_seven_moves() {
        assert_eq!(Restore::NONE.moves().count(), 0);
        let two = Restore::one(0, RAX).and(9, Source::Slot);
        let moves: Vec<_> = two.moves().collect();
        assert_eq!(moves, [(0, Source::Host(RAX)), (9, Source::Slot)]);
        let many = (0..9).fold(two, |all, guest| all.and(guest, Source::Host(R10)));
        assert_eq!(many.moves().count(), Restore::MAX_MOVES);
        assert_eq!(many.eip(), None);
        let with_eip = two.with_eip(R10);
        assert_eq!(with_eip.eip(), Some(R10));
        assert_eq!(with_eip.moves().collect::<Vec<_>>(), moves);
        assert_eq!(with_eip.segment(), None);
        for register in SegmentRegister::ALL {
            let loads = two.with_segment(register, R10);
            assert_eq!(loads.segment(), Some((register, R10)));
            assert_eq!(loads.eip(), None);
            assert_eq!(loads.moves().collect::<Vec<_>>(), moves);
        }
        assert_eq!(many.segment(), None);
        assert_eq!(many.eip(), None);
    }
}
