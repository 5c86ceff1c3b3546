//! Marks: at each place of the code, where the guest's state is.

use super::emitter::Emitter;
use crate::abi::marks::{Mark, Restore, Shadow};

impl Emitter {
    /// Marks the current position: the current instruction has not completed.
    pub(crate) fn mark(&mut self, restore: Restore) {
        self.mark_as(self.rip, self.esp_at_start, restore);
    }

    /// Marks the current position with another instruction. What is held in scratch registers and has
    /// changed is put right besides `restore`.
    pub(crate) fn mark_as(&mut self, rip: u64, esp: i32, restore: Restore) {
        let restore = self.held.add_to(restore);
        let is_done = restore.eip().is_some() || restore.segment().is_some();
        let shadowed = match rip == self.rip && !is_done {
            true => self.shadowed,
            false => Shadow::None,
        };
        self.push_mark(rip, esp, restore, shadowed);
    }

    pub(crate) fn push_mark(&mut self, rip: u64, esp: i32, restore: Restore, shadowed: Shadow) {
        let host = self.assembler.position() as u32;
        self.push_mark_at(host, rip, esp, restore, shadowed);
    }

    /// Marks a position, behind all that are marked.
    pub(super) fn push_mark_at(
        &mut self,
        host: u32,
        rip: u64,
        esp: i32,
        restore: Restore,
        shadowed: Shadow,
    ) {
        let mark = Mark {
            host,
            rip,
            esp,
            restore,
            shadowed,
        };
        let Some(last) = self.marks.last() else {
            return self.marks.push(mark);
        };
        if last.host == host {
            self.keep_mark_of_seam();
            self.marks.pop();
            self.marks.push(mark);
        } else if !last.says_the_same(&mark) {
            self.marks.push(mark);
        }
    }
}
