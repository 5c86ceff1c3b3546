//! Windows: one look-up for several accesses of a block.
//!
//! Instructions of one block that reach memory through one register, which does not change in
//! between or by constants only, often lie close together: a stack frame, the fields of a
//! structure. The first of them looks all of them up at once and keeps their host address in
//! R11; those that follow are one host instruction each. `push rbx; push rbp`:
//!
//! ```text
//! lea   r8, [r12-16]          ; the window: from the lowest access to the end of the highest
//! ...                         ; look-up of 16 bytes for a store
//! jrcxz without               ; the same code without windows: a link
//! lea   r11, [rcx+r8]
//! mov   [r11+8], rbx
//! mov   [r11], rbp
//! ```
//!
//! Which accesses share a window is planned before they are translated ([`Planned`]). If none of
//! them is a store, the look-up is one for loads.
//!
//! A window that misses exits the first time: if what its first access needs was all that the
//! software TLB lacked, that is filled and the instruction tried again. Otherwise (the window
//! crosses into another page, or its page cannot be stored to or holds code) the block goes on
//! in a translation without windows ([`Mode::windowless`]), by a link that is made then, and
//! whose look-ups fill what its accesses need. So a window never causes an access, a fault, or a
//! bit in a page table that the guest's instructions do not.
//!
//! Nothing that the monitor does while guest code is left makes a window wrong unnoticed: exits
//! keep R11, and a block is gone on with only if no translation has been dropped meanwhile. A
//! window ends with whatever uses R11, whatever the monitor executes, and where the distance
//! from its register is lost.
//!
//! An instruction that comes back to its start must find the window that was in force there: so
//! one makes a window only before any exit that comes back behind it, and the instructions with
//! two operands in memory use none.
//!
//! [`Mode::windowless`]: crate::policy::mode::Mode::windowless

use super::direct::is_near;
use super::emitter::Emitter;
use super::exits::RESUME_AFTER;
use super::look_up::Reach;
use crate::abi::host::*;
use crate::abi::marks::Shadow;
use crate::abi::register_map::Home;
use crate::abi::sites::WindowMiss;
use crate::emit::assembler::Mem;
use crate::policy::mode::{Mode, ModeFlags, SegmentClass};
use tollgate_x86::{Gpr, SegmentRegister};

/// Bytes of a window at most.
pub(crate) const WINDOW_BYTES: u32 = 128;

/// A window that an instruction is to make for itself and others behind it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Planned {
    /// Where it begins, from the instruction's own access: not above that.
    pub(crate) low: i32,
    /// Bytes, 1 to [`WINDOW_BYTES`].
    pub(crate) size: u32,
    /// One of its accesses is a store.
    pub(crate) write: bool,
}

/// An access through a register alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Near {
    /// Number of the guest register.
    pub(crate) base: u8,
    /// Distance from what the register's home holds.
    pub(crate) distance: i32,
    /// Bytes.
    pub(crate) size: u32,
    /// It is a store.
    pub(crate) write: bool,
}

/// The window in force.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Number of the guest register that it is near.
    base: u8,
    /// Where it begins, from what the register's home holds.
    low: i32,
    size: u32,
    /// It may be stored to.
    write: bool,
    /// R11 holds host minus linear address of what this register holds, instead.
    delta_of: Option<Host>,
}

impl Window {
    /// How the window's code gets to an access, if that lies in it.
    fn reach(&self, access: &Near) -> Option<Reach> {
        let Some(base) = self.delta_of else {
            return self.place(access).map(Reach::Window);
        };
        let place = i64::from(access.distance) - i64::from(self.low);
        let is_in = access.base == self.base && is_near(place);
        is_in.then_some(Reach::Near {
            delta: R11,
            base: Some(base),
            displacement: access.distance,
        })
    }

    /// Where in the window an access lies.
    fn place(&self, access: &Near) -> Option<u8> {
        let place = access.distance.checked_sub(self.low)?;
        let place = u8::try_from(place).ok()?;
        let fits = access.base == self.base
            && u32::from(place) + access.size <= self.size
            && (self.write || !access.write);
        fits.then_some(place)
    }
}

/// The stack pointer's number.
const STACK: u8 = Gpr::Rsp as u8;

/// Code of a mode may have windows.
pub(crate) fn has_windows(mode: &Mode) -> bool {
    !mode.is_watched()
        && !mode.flags.contains(ModeFlags::WINDOWLESS)
        && mode.flags.contains(ModeFlags::STACK32)
        && mode.segment(SegmentRegister::Ss, true) == SegmentClass::Flat
}

impl Emitter {
    /// The current instruction may use windows, and make the planned one.
    pub(crate) fn use_windows(&mut self, planned: Option<Planned>) {
        self.uses_windows = has_windows(&self.mode);
        self.planned = planned;
    }

    /// The window ends, and the current instruction makes none.
    pub(crate) fn end_window(&mut self) {
        self.window = None;
        self.uses_windows = false;
    }

    /// The guest register that the window in force is near, if that is not the stack pointer.
    pub(crate) fn window_base(&self) -> Option<u8> {
        let window = self.window.as_ref()?;
        (window.base != STACK).then_some(window.base)
    }

    /// Whether the window in force is near this guest register.
    pub(crate) fn has_window_near(&self, guest: u8) -> bool {
        self.window.is_some_and(|window| window.base == guest)
    }

    /// What `base`'s home holds changes by `change`, or in an unknown way.
    pub(crate) fn move_window(&mut self, base: u8, change: Option<i32>) {
        let Some(window) = self.window.filter(|window| window.base == base) else {
            return;
        };
        let low = change.and_then(|change| window.low.checked_sub(change));
        self.window = low.map(|low| Window { low, ..window });
    }

    /// As [`Emitter::move_window`], of the stack pointer.
    pub(crate) fn move_stack_window(&mut self, change: Option<i32>) {
        self.move_window(STACK, change);
    }

    /// Reaches what is `distance` from what ESP's home holds through a window.
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

    /// Whether an access `offset` bytes above the (folded) stack pointer lies in the window in
    /// force, which stays in force then until the instruction's end.
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

    /// Makes an access through a window. `None`: there is none that it lies in, and none is to be
    /// made.
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
        let miss = WindowMiss::new(place, access.size, access.write, window.size, window.write)?;
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
