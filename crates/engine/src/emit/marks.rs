//! Entries of the state map, which say where the guest's state is at each place of the code.

use super::emitter::Emitter;
use crate::abi::marks::{Mark, Restore, Shadow};

impl Emitter {
    /// Makes an entry for the current position: the current instruction is not yet complete.
    pub(crate) fn mark(&mut self, restore: Restore) {
        self.mark_as(self.rip, self.esp_at_start, restore);
    }

    /// Makes an entry for the current position that names another instruction. In addition to
    /// `restore` it says which changed guest registers are in scratch registers.
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

    /// Makes an entry for a position that follows those of all other entries.
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
