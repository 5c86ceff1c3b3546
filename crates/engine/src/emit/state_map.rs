//! Entries of the state map, which say where the guest's state is at each place of the code.

use super::emitter::Emitter;
use crate::abi::state_map::{Restore, Shadow, StateEntry};

impl Emitter {
    /// Makes an entry for the current position: the current instruction is not yet complete.
    pub(crate) fn note_state(&mut self, restore: Restore) {
        self.note_state_as(self.rip, self.esp_at_start, restore);
    }

    /// Makes an entry for the current position that names another instruction. In addition to
    /// `restore` it says which changed guest registers are in scratch registers.
    pub(crate) fn note_state_as(&mut self, rip: u64, esp: i32, restore: Restore) {
        let restore = self.held.add_to(restore);
        let is_done = restore.eip().is_some() || restore.segment().is_some();
        let shadowed = match rip == self.rip && !is_done {
            true => self.shadowed,
            false => Shadow::None,
        };
        self.push_state(rip, esp, restore, shadowed);
    }

    pub(crate) fn push_state(&mut self, rip: u64, esp: i32, restore: Restore, shadowed: Shadow) {
        let host = self.assembler.position() as u32;
        self.push_state_at(host, rip, esp, restore, shadowed);
    }

    /// Makes an entry for a position that follows those of all other entries.
    pub(super) fn push_state_at(
        &mut self,
        host: u32,
        rip: u64,
        esp: i32,
        restore: Restore,
        shadowed: Shadow,
    ) {
        let entry = StateEntry {
            host,
            rip,
            esp,
            restore,
            shadowed,
        };
        let Some(last) = self.state_map.last() else {
            return self.state_map.push(entry);
        };
        if last.host == host {
            self.keep_state_of_seam();
            self.state_map.pop();
            self.state_map.push(entry);
        } else if !last.says_the_same(&entry) {
            self.state_map.push(entry);
        }
    }
}
