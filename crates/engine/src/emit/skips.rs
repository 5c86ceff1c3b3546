//! Short branches over code that follows them at once: an exit, mostly.
//!
//! JRCXZ, by which nearly all conditions are told without touching the flags, has a short form alone.
//! Whether it reaches over what follows is known when that has been emitted. If it does not, two jumps
//! are inserted after the branch, and the code after it moves on:
//!
//! ```text
//!         jrcxz zero                 jrcxz zero
//!         ...                        jmp   over
//! zero:   ...                zero:   jmp   far
//!                            over:   ...
//!                            far:    ...
//! ```
//!
//! So no caller counts the bytes of a sequence, and the positions that one may keep across
//! [`Emitter::land`] are those that [`Emitter::move_on`] knows: near branches in the code that is skipped
//! are noted by [`Emitter::jmp_across`] and its relatives.

use super::assembler::{Patch, ShortBranch};
use super::emitter::Emitter;
use super::islands::{JUMP, OVER};

/// A short branch that has not landed yet.
#[must_use]
pub(crate) struct Skip(usize);

/// A near branch that was emitted in code that is skipped.
#[derive(Clone, Copy)]
#[must_use]
pub(crate) struct JumpAcross(usize);

impl Emitter {
    /// Branches to where [`Emitter::land`] is called if RCX is zero.
    pub(crate) fn skip_if_zero(&mut self) -> Skip {
        let branch = self.assembler.jrcxz();
        self.skips.push(branch);
        Skip(self.skips.len() - 1)
    }

    /// A near jump, whose place may change until the code is skipped in which it stands.
    pub(crate) fn jmp_across(&mut self) -> JumpAcross {
        let jump = self.assembler.jmp();
        self.note_across(jump)
    }

    /// A near conditional branch, as [`Emitter::jmp_across`].
    pub(crate) fn jcc_across(&mut self, condition: u8) -> JumpAcross {
        let jump = self.assembler.jcc(condition);
        self.note_across(jump)
    }

    fn note_across(&mut self, jump: Patch) -> JumpAcross {
        self.jumps_across.push(jump);
        JumpAcross(self.jumps_across.len() - 1)
    }

    /// Where a near branch stands now, after all branches over it have landed.
    pub(crate) fn jump_across(&self, jump: JumpAcross) -> Patch {
        self.jumps_across[jump.0]
    }

    /// A short branch leads to the current position. If that is beyond its reach, code moves on.
    pub(crate) fn land(&mut self, skip: Skip) {
        if !self.skips[skip.0].reaches(self.assembler.position()) {
            // Misses that wait would be farther from their seam.
            self.insert_island();
            return self.land_by_near_jump(skip);
        }
        let here = self.assembler.position();
        self.assembler.patch_rel8(self.skips[skip.0], here);
    }

    fn land_by_near_jump(&mut self, skip: Skip) {
        let branch: ShortBranch = self.skips[skip.0];
        let position = branch.end();
        let length = OVER + JUMP;
        self.assembler.insert_jumps(position, 1);
        self.move_on(position, length);
        // The mark that is valid at the branch is valid for both jumps, too: they change nothing.
        for mark in self.split_marks(position as u32) {
            self.push_mark_again(mark.host + length as u32, mark);
        }
        self.assembler.patch_rel8(branch, position + OVER);
        let here = self.assembler.position();
        self.assembler
            .patch_rel32(Patch(position + length - 4), here);
    }
}
