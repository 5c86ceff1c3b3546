//! Shared look-ups: one look-up for several accesses of a block. The code calls them windows.
//!
//! Instructions of one block that reach memory through the same register, which does not change in
//! between or changes by constants only, often access places close together: a stack frame, or the
//! fields of a structure. The first of them makes one look-up for the whole range of bytes and
//! keeps the range's host address in R11; each of the others then needs only one host instruction.
//! Example for `push rbx; push rbp`:
//!
//! ```text
//! lea   r8, [r12-16]          ; the range: from the lowest access to the end of the highest
//! ...                         ; look-up of 16 bytes for a store
//! jrcxz without               ; the same code without shared look-ups: a link
//! lea   r11, [rcx+r8]
//! mov   [r11+8], rbx
//! mov   [r11], rbp
//! ```
//!
//! Which accesses share a look-up is planned before they are translated ([`Planned`]). If none of
//! them is a store, the look-up is for loads.
//!
//! A shared look-up that misses exits the first time. If only the page of its first access is
//! missing from the software TLB, the page is filled and the instruction is tried again. Otherwise
//! (the range crosses into another page, or its page cannot be stored to or holds code) the block
//! continues in a translation without shared look-ups ([`Mode::windowless`]). The branch to that
//! translation is then linked, and the translation's own look-ups fill what its accesses need. So a
//! shared look-up never causes an access, a fault, or a bit in a page table that the guest's
//! instructions do not cause.
//!
//! While guest code is left, nothing that the monitor does can make R11 wrong unnoticed: exits keep
//! R11, and a block is resumed only if no translation was dropped in the meantime. A shared look-up
//! ends with an instruction that uses R11, with one that the monitor executes, and where the
//! distance from its register is no longer known.
//!
//! An instruction that is started again must find the shared look-up that was active at its start.
//! So an instruction makes a shared look-up only before any of its exits that return after it, and
//! instructions with two memory operands use none.
//!
//! [`Mode::windowless`]: crate::policy::mode::Mode::windowless

use super::emitter::Emitter;
use super::emitter::exit_code::RESUME_AFTER;
use super::emitter::shared_look_up_range::{Near, Planned, WINDOW_BYTES, Window};
use super::guest_operand_form::Reach;
use crate::abi::host::*;
use crate::abi::register_map::Home;
use crate::abi::sites::{SharedBytes, WindowMiss};
use crate::abi::state_map::Shadow;
use crate::emit::assembler::Mem;
use crate::policy::mode::{Mode, ModeFlags, SegmentClass};
use tollgate_x86::{Gpr, SegmentRegister};

/// Number of the stack pointer.
const STACK: u8 = Gpr::Rsp as u8;

/// Whether code of a mode may have shared look-ups.
pub(crate) fn has_windows(mode: &Mode) -> bool {
    !mode.is_watched()
        && !mode.flags.contains(ModeFlags::WINDOWLESS)
        && mode.flags.contains(ModeFlags::STACK32)
        && mode.segment(SegmentRegister::Ss, true) == SegmentClass::Flat
}

impl Emitter {
    /// Lets the current instruction use shared look-ups, and make the planned one.
    pub(crate) fn use_windows(&mut self, planned: Option<Planned>) {
        self.uses_windows = has_windows(&self.mode);
        self.planned = planned;
    }

    /// Ends the shared look-up, and keeps the current instruction from making one.
    pub(crate) fn end_window(&mut self) {
        self.window = None;
        self.uses_windows = false;
    }

    /// The guest register that the active shared look-up is near, if it is not the stack pointer.
    pub(crate) fn window_base(&self) -> Option<u8> {
        let window = self.window.as_ref()?;
        (window.base != STACK).then_some(window.base)
    }

    /// Whether the active shared look-up is near this guest register.
    pub(crate) fn has_window_near(&self, guest: u8) -> bool {
        self.window.is_some_and(|window| window.base == guest)
    }

    /// Notes that the value in `base`'s home changes by `change`, or in an unknown way.
    pub(crate) fn move_window(&mut self, base: u8, change: Option<i32>) {
        let Some(window) = self.window.filter(|window| window.base == base) else {
            return;
        };
        let low = change.and_then(|change| window.low.checked_sub(change));
        self.window = low.map(|low| Window { low, ..window });
    }

    /// Notes that the value in the stack pointer's home changes, as [`Emitter::move_window`] does.
    pub(crate) fn move_stack_window(&mut self, change: Option<i32>) {
        self.move_window(STACK, change);
    }

    /// Reaches the operand at `distance` from the value in ESP's home with a shared look-up.
    pub(super) fn reach_stack_window(
        &mut self,
        distance: i32,
        size: u32,
        write: bool,
    ) -> Option<Reach> {
        self.reach_window(&Near {
            base: STACK,
            distance,
            size,
            write,
        })
    }

    /// Whether an access `offset` bytes above the (folded) stack pointer is in range of the active
    /// shared look-up. If so, that look-up stays active until the instruction's end.
    pub(crate) fn is_in_stack_window(&mut self, offset: i32, size: u32, write: bool) -> bool {
        let distance = self.esp.checked_add(offset);
        let near = distance.map(|distance| Near {
            base: STACK,
            distance,
            size,
            write,
        });
        let window = self.window.filter(|_| self.uses_windows);
        let place = near.and_then(|near| window.and_then(|window| window.reach(&near)));
        if place.is_some() {
            self.planned = None;
        }
        place.is_some()
    }

    /// Reaches an access with a shared look-up. `None` if the access is not in range of the active
    /// one and no new one may be made.
    pub(super) fn reach_window(&mut self, access: &Near) -> Option<Reach> {
        if !self.uses_windows {
            return None;
        }
        if let Some(reach) = self.window.and_then(|window| window.reach(access)) {
            return Some(reach);
        }
        let planned = self.planned.take()?;
        let returns_behind = |site: &crate::abi::sites::Site| site.after == RESUME_AFTER;
        let window = Window {
            base: access.base,
            low: access.distance.checked_add(planned.low)?,
            size: planned.size.min(WINDOW_BYTES),
            write: planned.write,
            delta_of: None,
        };
        let place = window.place(access)?;
        let accessed = SharedBytes {
            size: access.size,
            write: access.write,
        };
        let shared = SharedBytes {
            size: window.size,
            write: window.write,
        };
        let miss = WindowMiss::new(place, accessed, shared)?;
        let may_begin = self.shadowed == Shadow::None
            && self.stays_in_page(self.rip)
            && !self.sites[self.first_site_of_instruction..]
                .iter()
                .any(returns_behind);
        if !may_begin {
            return None;
        }
        if self.is_direct64()
            && let Home::Host(base) = self.map.home(access.base)
        {
            self.load_window_delta(R11, base);
            let window = Window {
                delta_of: Some(base),
                ..window
            };
            self.window = Some(window);
            return window.reach(access);
        }
        let base = match self.map.home(access.base) {
            Home::Host(host) => host,
            Home::Slot => self.slot_value(access.base, R8),
        };
        self.lea_stack(R8, Mem::base(base, window.low));
        self.look_up_window(window.size, window.write, miss);
        self.assembler.lea64(R11, Reach::Sum.mem());
        self.window = Some(window);
        Some(Reach::Window(place))
    }
}
