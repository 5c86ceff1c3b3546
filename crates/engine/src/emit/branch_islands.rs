//! Islands of jumps, through which short branches reach the exits of misses.
//!
//! A miss is detected by JRCXZ, which reaches 127 bytes, but the exit of the miss is at the end of
//! the block. So the branch leads to an island of jumps on the way there:
//!
//! ```text
//!         jrcxz miss1
//!         ...
//!         jmp   over             ; the island
//! miss1:  jmp   exit1
//! miss2:  jmp   exit2
//! over:   ...
//! ```
//!
//! An island can be placed at each *seam*: wherever [`Emitter::make_room`] is called, and directly
//! after each such branch. That an island is needed is known only when too much code follows the
//! last seam at which it would be in reach. Then the island is inserted at that seam, and the code
//! after it moves. So no caller counts the bytes of a sequence in advance, and an island is placed
//! as far from its branches as they reach.
//!
//! Two rules ensure that the last seam is always in reach. A seam is noted only if it is in reach;
//! otherwise an island is first inserted at the previous seam. And there is a seam before and after
//! each branch, so after the insertion no branch is pending except possibly the very last one.
//!
//! No position may be kept across a seam, except in the fields that [`Emitter::insert_island`]
//! adapts.

use super::emitter::Emitter;
use super::emitter::exit_code::RESUME_AFTER;
use super::emitter::seam::Seam;
use crate::abi::sites::{LinkPlace, SiteKind};
use crate::abi::state_map::{Restore, StateEntry};
use crate::emit::assembler::Patch;

/// Length in bytes of the jump over an island.
pub(super) const OVER: usize = 2;
/// Length in bytes of each jump in an island.
pub(super) const JUMP: usize = 5;

impl Emitter {
    /// Notes that an island may be inserted here. No sequence of host instructions that must not be
    /// interrupted may span this place.
    pub(crate) fn make_room(&mut self) {
        if self.misses.is_empty() {
            self.seam = None;
            return;
        }
        if !self.island_reaches(self.assembler.position() + OVER) {
            self.insert_island();
        }
        // If an island was inserted, the current position has changed.
        self.seam = (self.state_map.len().checked_sub(1)).map(|entry| Seam {
            position: self.assembler.position(),
            entry,
            replaced: None,
        });
    }

    /// Keeps the last state-map entry for the seam, because an entry for the same position is about
    /// to replace it.
    pub(super) fn keep_state_of_seam(&mut self) {
        if let Some(seam) = &mut self.seam
            && seam.replaced.is_none()
            && seam.entry + 1 == self.state_map.len()
        {
            seam.replaced = self.state_map.last().copied();
        }
    }

    /// Whether the pending branches reach an island whose jumps begin at `first`.
    fn island_reaches(&self, first: usize) -> bool {
        let mut branches = self.misses.iter().enumerate();
        branches.all(|(index, (branch, _))| branch.reaches(first + index * JUMP))
    }

    /// Ends the block's main path with the jumps of the last island.
    pub(super) fn emit_last_island(&mut self) {
        if !self.island_reaches(self.assembler.position()) {
            self.insert_island();
        }
        let mut misses = std::mem::take(&mut self.misses);
        for (branch, stub) in misses.drain(..) {
            self.assembler.patch_rel8(branch, self.assembler.position());
            let host = self.assembler.position() as u32;
            self.push_jump_state(host, stub);
            let jump = self.assembler.jmp();
            self.stubs[stub].incoming = Some(jump);
        }
        self.misses = misses;
        self.seam = None;
    }

    /// Makes the state-map entry for an island's jump to a stub.
    fn push_jump_state(&mut self, host: u32, stub: usize) {
        let stub = &self.stubs[stub];
        let (rip, esp, shadowed) = (stub.rip, stub.esp, stub.shadowed);
        self.push_state_at(host, rip, esp, Restore::NONE, shadowed);
    }

    pub(super) fn push_state_again(&mut self, host: u32, entry: StateEntry) {
        self.push_state_at(host, entry.rip, entry.esp, entry.restore, entry.shadowed);
    }

    /// Inserts an island at the last seam for all pending branches before the seam, which all reach
    /// it.
    pub(super) fn insert_island(&mut self) {
        let Some(seam) = self.seam.take() else {
            return;
        };
        let entry = seam.replaced.unwrap_or(self.state_map[seam.entry]);
        let mut misses = std::mem::take(&mut self.misses);
        let behind_seam = misses.partition_point(|(branch, _)| branch.end() <= seam.position);
        self.misses = misses.split_off(behind_seam);
        let first = seam.position + OVER;
        let length = OVER + misses.len() * JUMP;
        self.assembler.insert_jumps(seam.position, misses.len());
        self.move_on(seam.position, length);
        let behind = self.split_state_map(seam.position as u32);
        self.push_state_again(seam.position as u32, entry);
        for (index, (branch, stub)) in misses.into_iter().enumerate() {
            let jump = first + index * JUMP;
            self.assembler.patch_rel8(branch, jump);
            self.stubs[stub].incoming = Some(Patch(jump + JUMP - 4));
            self.push_jump_state(jump as u32, stub);
        }
        self.push_state_again((seam.position + length) as u32, entry);
        for entry in behind {
            self.push_state_again(entry.host + length as u32, entry);
        }
    }

    /// Removes and returns the state-map entries for `position` and all later positions.
    pub(super) fn split_state_map(&mut self, position: u32) -> Vec<StateEntry> {
        let first = self
            .state_map
            .partition_point(|entry| entry.host < position);
        self.state_map.split_off(first)
    }

    /// Adapts everything that names a later place to code of `length` bytes that was inserted at
    /// `position`.
    pub(super) fn move_on(&mut self, position: usize, length: usize) {
        let step = length as u32;
        let start = position as u32;
        // What begins exactly at the position still begins there, now with the inserted jump.
        let place = |at: &mut u32| {
            if *at > start && *at != RESUME_AFTER {
                *at += step;
            }
        };
        let patch = |patch: &mut Patch| {
            if patch.0 >= position {
                patch.0 += length;
            }
        };
        if self.start > position {
            self.start += length;
        }
        if let Some(counts) = &mut self.counts {
            counts.move_on(position, length);
        }
        for site in &mut self.sites {
            place(&mut site.retry);
            place(&mut site.after);
            if let SiteKind::Link(LinkPlace::Direct { distance, .. }) = &mut site.kind {
                place(distance);
            }
        }
        for immediate in &mut self.immediates {
            place(&mut immediate.host);
        }
        // An inserted island is not part of a range that completes another instruction.
        let range = |first: &mut u32, end: &mut u32| {
            if *first >= start {
                *first += step;
            }
            place(end);
        };
        for note in &mut self.x87_notes {
            range(&mut note.start, &mut note.end);
        }
        for completion in &mut self.completions {
            range(&mut completion.start, &mut completion.end);
        }
        for (branch, _) in &mut self.misses {
            branch.move_on(position, length);
        }
        for branch in &mut self.skips {
            branch.move_on(position, length);
        }
        self.jumps_across.iter_mut().for_each(patch);
        self.far_branch.iter_mut().for_each(patch);
        for stub in &mut self.stubs {
            stub.incoming.iter_mut().for_each(patch);
            if stub.back > position {
                stub.back += length;
            }
        }
    }
}
