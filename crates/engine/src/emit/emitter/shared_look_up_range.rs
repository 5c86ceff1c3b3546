//! A shared look-up: what it covers, and how an access is reached with its result.
//!
//! The code calls shared look-ups windows.

use crate::abi::host::*;
use crate::emit::guest_operand_form::{Reach, is_near};

/// Maximum length of the range of a shared look-up, in bytes.
pub(crate) const WINDOW_BYTES: u32 = 128;

/// A shared look-up that an instruction should make for itself and for instructions after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Planned {
    /// Beginning of the range, relative to the instruction's own access: zero or negative.
    pub(crate) low: i32,
    /// Length of the range in bytes, 1 to [`WINDOW_BYTES`].
    pub(crate) size: u32,
    /// One of the accesses is a store.
    pub(crate) write: bool,
}

/// An access whose address is the sum of one register and a constant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Near {
    /// Number of the guest register.
    pub(crate) base: u8,
    /// Distance of the access from the value in the register's home.
    pub(crate) distance: i32,
    /// Length of the access in bytes.
    pub(crate) size: u32,
    /// The access is a store.
    pub(crate) write: bool,
}

/// The active shared look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Window {
    /// Number of the guest register that the range is near.
    pub(in crate::emit) base: u8,
    /// Beginning of the range, relative to the value in the register's home.
    pub(in crate::emit) low: i32,
    pub(in crate::emit) size: u32,
    /// The range may be stored to.
    pub(in crate::emit) write: bool,
    /// If not `None`, R11 holds *host minus linear address* for the value of this register instead
    /// of the host address of the range.
    pub(in crate::emit) delta_of: Option<Host>,
}

impl Window {
    /// How an access is reached with the result of the shared look-up; `None` if it is out of
    /// range.
    pub(in crate::emit) fn reach(&self, access: &Near) -> Option<Reach> {
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

    /// The offset of an access in the range; `None` if it is out of range.
    pub(in crate::emit) fn place(&self, access: &Near) -> Option<u8> {
        let place = access.distance.checked_sub(self.low)?;
        let place = u8::try_from(place).ok()?;
        let fits = access.base == self.base
            && u32::from(place) + access.size <= self.size
            && (self.write || !access.write);
        fits.then_some(place)
    }
}
