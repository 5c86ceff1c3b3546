//! Islands: how short branches reach the exits of misses.
//!
//! A miss is told by JRCXZ, which reaches 127 bytes, and its exit stands behind the block. So
//! the branch leads to an island of jumps on the way there:
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
//! An island can stand at each *seam*: wherever [`Emitter::make_room`] is called, and directly
//! behind each such branch. It is only known that one is needed when too much code stands
//! behind the last seam at which it would be in reach; then it is inserted there, and the code
//! after it moves on. So no caller counts the bytes of a sequence beforehand, and an
//! island stands as far behind its branches as their reach allows.
//!
//! That the last seam is always in reach follows from two rules. A seam is noted only if it
//! is; if not, an island is inserted at the one before. And there is a seam before and behind each
//! branch, so that none waits then but the very last instruction.
//!
//! No position may be kept across a seam but in the fields that [`Emitter::insert_island`]
//! moves on.

use super::emitter::Emitter;
use super::exits::RESUME_AFTER;
use crate::abi::marks::{Mark, Restore};
use crate::abi::sites::{LinkPlace, SiteKind};
use crate::emit::assembler::Patch;

/// Bytes of the jump over an island.
pub(super) const OVER: usize = 2;
/// Bytes of each jump in it.
pub(super) const JUMP: usize = 5;

/// A place for an island.
#[derive(Clone, Copy)]
pub(super) struct Seam {
    position: usize,
    /// Where the mark in force there stands among the marks.
    mark: usize,
    /// That mark, if another has taken its place since.
    replaced: Option<Mark>,
}

impl Emitter {
    /// Notes that an island may stand here, which no sequence of host instructions that must
    /// not be interrupted spans.
    pub(crate) fn make_room(&mut self) {
        if self.misses.is_empty() {
            self.seam = None;
            return;
        }
        if !self.island_reaches(self.assembler.position() + OVER) {
            self.insert_island();
        }
        // Code has moved on.
        self.seam = (self.marks.len().checked_sub(1)).map(|mark| Seam {
            position: self.assembler.position(),
            mark,
            replaced: None,
        });
    }

    /// Another mark is going to take the place of the last one, which stands at its position.
    pub(super) fn keep_mark_of_seam(&mut self) {
        if let Some(seam) = &mut self.seam
            && seam.replaced.is_none()
            && seam.mark + 1 == self.marks.len()
        {
            seam.replaced = self.marks.last().copied();
        }
    }

    /// Whether the branches that wait reach jumps from `first` on.
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
            self.push_jump_mark(host, stub);
            let jump = self.assembler.jmp();
            self.stubs[stub].incoming = Some(jump);
        }
        self.misses = misses;
        self.seam = None;
    }

    /// The mark of an island's jump to a stub.
    fn push_jump_mark(&mut self, host: u32, stub: usize) {
        let stub = &self.stubs[stub];
        let (rip, esp, shadowed) = (stub.rip, stub.esp, stub.shadowed);
        self.push_mark_at(host, rip, esp, Restore::NONE, shadowed);
    }

    pub(super) fn push_mark_again(&mut self, host: u32, mark: Mark) {
        self.push_mark_at(host, mark.rip, mark.esp, mark.restore, mark.shadowed);
    }

    /// Inserts an island for all branches that wait at the last seam, which they reach.
    pub(super) fn insert_island(&mut self) {
        let Some(seam) = self.seam.take() else {
            return;
        };
        let mark = seam.replaced.unwrap_or(self.marks[seam.mark]);
        let mut misses = std::mem::take(&mut self.misses);
        let behind_seam = misses.partition_point(|(branch, _)| branch.end() <= seam.position);
        self.misses = misses.split_off(behind_seam);
        let first = seam.position + OVER;
        let length = OVER + misses.len() * JUMP;
        self.assembler.insert_jumps(seam.position, misses.len());
        self.move_on(seam.position, length);
        let behind = self.split_marks(seam.position as u32);
        self.push_mark_again(seam.position as u32, mark);
        for (index, (branch, stub)) in misses.into_iter().enumerate() {
            let jump = first + index * JUMP;
            self.assembler.patch_rel8(branch, jump);
            self.stubs[stub].incoming = Some(Patch(jump + JUMP - 4));
            self.push_jump_mark(jump as u32, stub);
        }
        self.push_mark_again((seam.position + length) as u32, mark);
        for mark in behind {
            self.push_mark_again(mark.host + length as u32, mark);
        }
    }

    /// Takes away the marks of what stands at `position` and behind.
    pub(super) fn split_marks(&mut self, position: u32) -> Vec<Mark> {
        let first = self.marks.partition_point(|mark| mark.host < position);
        self.marks.split_off(first)
    }

    /// All that names a place behind `position` names it `length` bytes further on.
    pub(super) fn move_on(&mut self, position: usize, length: usize) {
        let step = length as u32;
        let start = position as u32;
        // What begins at the position goes on to begin there, with the jump over the island.
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
        // An island is no part of what completes another instruction.
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
