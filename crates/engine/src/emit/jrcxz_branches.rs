//! Short forward branches over code that follows immediately, usually an exit.
//!
//! Nearly all conditions are tested with JRCXZ, because it leaves the flags alone; but JRCXZ has
//! only a short form. Whether it reaches over the code that follows is known when that code has
//! been emitted. If it does not, two jumps are inserted after the branch, and the code after them
//! moves:
//!
//! ```text
//!         jrcxz zero                 jrcxz zero
//!         ...                        jmp   over
//! zero:   ...                zero:   jmp   far
//!                            over:   ...
//!                            far:    ...
//! ```
//!
//! So no caller counts the bytes of a sequence. A caller may keep only those positions across
//! [`Emitter::land`] that [`Emitter::move_on`] adapts: near branches in the skipped code are noted
//! by [`Emitter::jmp_across`] and [`Emitter::jcc_across`].

use super::assembler::{Patch, ShortBranch};
use super::branch_islands::{JUMP, OVER};
use super::emitter::Emitter;

/// A short branch whose target is not known yet.
#[must_use]
pub(crate) struct Skip(usize);

/// A near branch that was emitted in skipped code.
#[derive(Clone, Copy)]
#[must_use]
pub(crate) struct JumpAcross(usize);

impl Emitter {
    /// Emits a branch, taken if RCX is zero, to the place where [`Emitter::land`] is called.
    pub(crate) fn skip_if_zero(&mut self) -> Skip {
        let branch = self.assembler.jrcxz();
        self.skips.push(branch);
        Skip(self.skips.len() - 1)
    }

    /// Emits a near jump, whose position may change until the skipped code that contains it has
    /// ended.
    pub(crate) fn jmp_across(&mut self) -> JumpAcross {
        let jump = self.assembler.jmp();
        self.note_across(jump)
    }

    /// Emits a near conditional branch, with the same rules as [`Emitter::jmp_across`].
    pub(crate) fn jcc_across(&mut self, condition: u8) -> JumpAcross {
        let jump = self.assembler.jcc(condition);
        self.note_across(jump)
    }

    fn note_across(&mut self, jump: Patch) -> JumpAcross {
        self.jumps_across.push(jump);
        JumpAcross(self.jumps_across.len() - 1)
    }

    /// The final position of a near branch, after all branches over it have landed.
    pub(crate) fn jump_across(&self, jump: JumpAcross) -> Patch {
        self.jumps_across[jump.0]
    }

    /// Makes a short branch lead to the current position. If the position is out of reach, two
    /// jumps are inserted and the code after them moves.
    pub(crate) fn land(&mut self, skip: Skip) {
        if !self.skips[skip.0].reaches(self.assembler.position()) {
            // Branches to misses that are still pending are short too, and the two jumps that are
            // inserted below could put their targets out of reach.
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
        // The inserted jumps change nothing, so the state-map entry that applies at the branch also
        // applies to them.
        for entry in self.split_state_map(position as u32) {
            self.push_state_again(entry.host + length as u32, entry);
        }
        self.assembler.patch_rel8(branch, position + OVER);
        let here = self.assembler.position();
        self.assembler
            .patch_rel32(Patch(position + length - 4), here);
    }
}
