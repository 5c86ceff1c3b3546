//! Windows: one look-up for the stack accesses of a block.
//!
//! A stack access that no window covers looks up 128 bytes around itself, for stores, and keeps
//! their host address in R11. Later accesses of the block that lie inside are one host
//! instruction each. `push rbx; push rbp`:
//!
//! ```text
//! lea   r8, [r12-72]          ; the window: 64 bytes on both sides of the first access
//! ...                         ; look-up of 128 bytes for a store
//! jrcxz without               ; the same code without windows: a link
//! lea   r11, [rcx+r8]
//! mov   [r11+64], rbx
//! mov   [r11+56], rbp
//! ```
//!
//! Where a window misses (it crosses into another page, its page is not filled, cannot be
//! stored to or holds code), the block goes on in a translation without windows
//! ([`Mode::windowless`]), whose look-ups fill what its accesses need. So a window never causes an
//! access, a fault, or a bit in a page table that the guest's instructions do not.
//!
//! Nothing that the monitor does while guest code is left makes a window wrong unnoticed: exits
//! keep R11, and a block is gone on with only if no translation has been dropped meanwhile. A
//! window ends with whatever uses R11, whatever the monitor executes, and where the distance
//! from RSP is lost.
//!
//! An instruction that comes back to its start must find the window that was in force there: so
//! one makes a window only before any exit that comes back behind it, and the instructions with
//! two operands in memory use none.
//!
//! [`Mode::windowless`]: crate::policy::mode::Mode::windowless

use super::emitter::Emitter;
use super::exits::RESUME_AFTER;
use super::look_up::Reach;
use crate::abi::host::*;
use crate::abi::marks::Shadow;
use crate::emit::assembler::Mem;
use crate::policy::mode::{ModeFlags, SegmentClass};
use tollgate_x86::SegmentRegister;

/// Bytes of a window.
pub(crate) const WINDOW_BYTES: u32 = 128;
/// How far below the first access it begins.
const BELOW: i32 = 64;

/// The window in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Where it begins, from what ESP's home holds.
    low: i32,
}

impl Emitter {
    /// The current instruction may use windows, and make one.
    pub(crate) fn use_windows(&mut self) {
        self.uses_windows = !self.mode.is_watched()
            && !self.mode.flags.contains(ModeFlags::WINDOWLESS)
            && self.mode.flags.contains(ModeFlags::STACK32)
            && self.mode.segment(SegmentRegister::Ss, true) == SegmentClass::Flat;
    }

    /// The window ends, and the current instruction makes none.
    pub(crate) fn end_window(&mut self) {
        self.window = None;
        self.uses_windows = false;
    }

    /// ESP's home changes by `change`, or in an unknown way.
    pub(crate) fn move_window(&mut self, change: Option<i32>) {
        self.window = self.window.and_then(|window| {
            let low = window.low.checked_sub(change?)?;
            Some(Window { low })
        });
    }

    /// Reaches `size` bytes `distance` from what ESP's home holds through a window. `is_last`: no
    /// other access follows in the block. `None`: there is none and can be none.
    pub(super) fn reach_window(
        &mut self,
        distance: i32,
        size: u32,
        is_last: bool,
    ) -> Option<Reach> {
        if !self.uses_windows {
            return None;
        }
        if let Some(place) = self.place_in_window(distance, size) {
            return Some(Reach::Window(place));
        }
        let returns_behind = |site: &crate::abi::sites::Site| site.after == RESUME_AFTER;
        let low = distance.checked_sub(BELOW)?;
        let may_begin = !is_last
            && size as i32 <= BELOW
            && self.shadowed == Shadow::None
            && self.stays_in_page(self.rip)
            && !self.sites[self.first_site_of_instruction..]
                .iter()
                .any(returns_behind);
        if !may_begin {
            return None;
        }
        self.lea_stack(R8, Mem::base(self.map.stack(), low));
        self.look_up_window(WINDOW_BYTES);
        self.assembler.lea64(R11, Reach::Sum.mem());
        self.window = Some(Window { low });
        Some(Reach::Window(BELOW as u8))
    }

    /// Where in the window an access lies.
    fn place_in_window(&self, distance: i32, size: u32) -> Option<u8> {
        let place = distance.checked_sub(self.window?.low)?;
        let place = u8::try_from(place).ok()?;
        (u32::from(place) + size <= WINDOW_BYTES).then_some(place)
    }
}
