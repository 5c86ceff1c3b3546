//! The registers that are known to lead to common parts, which the [anchor] reaches.
//!
//! [anchor]: tollgate_tlb::shadow_windows::anchors

use crate::emit::guest_operand_form::is_near;

/// Number, after those of the guest's registers, for the slide of relocatable code, which no
/// instruction changes.
pub(in crate::emit) const CODE_SLIDE: u8 = 16;

pub(in crate::emit) const HOLDERS: usize = 17;

/// The registers that are known to hold addresses near one that was checked to be in a common part.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Checked {
    /// One bit for each of the guest's registers and for [`CODE_SLIDE`].
    pub(in crate::emit) known: u32,
    /// The registers that the current instruction has checked.
    pub(in crate::emit) new: u32,
    /// For each register: the value in its home minus the value that was checked.
    pub(in crate::emit) distances: [i32; HOLDERS],
}

impl Checked {
    pub(in crate::emit) const fn bit(holder: u8) -> u32 {
        1 << holder
    }

    pub(in crate::emit) fn distance(&self, holder: u8) -> Option<i32> {
        (self.known & Self::bit(holder) != 0).then(|| self.distances[usize::from(holder)])
    }

    pub(in crate::emit) fn add(&mut self, holder: u8) {
        self.known |= Self::bit(holder);
        self.new |= Self::bit(holder);
        self.distances[usize::from(holder)] = 0;
    }

    pub(in crate::emit) fn forget(&mut self, holders: u32) {
        self.known &= !holders;
    }

    /// Notes that the value in a register's home changes by `change`.
    pub(in crate::emit) fn shift(&mut self, holder: u8, change: i32) {
        let distance = &mut self.distances[usize::from(holder)];
        match distance.checked_add(change) {
            Some(sum) if is_near(sum.into()) => *distance = sum,
            _ => self.forget(Self::bit(holder)),
        }
    }

    pub(in crate::emit) fn copy(&mut self, to: u8, from: u8) {
        self.distances[usize::from(to)] = self.distances[usize::from(from)];
        self.known |= Self::bit(to);
        self.new |= self.new >> from & 1 << to;
    }
}
