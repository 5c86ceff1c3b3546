//! The form of the look-ups of a block, which is decided once for each block.

use super::shared_look_up_range::WINDOW_BYTES;
use crate::policy::access::AccessUnavailable;
use crate::policy::mode::{Mode, ModeFlags};

/// Number of access sizes for which the code of [`LookUpForm::Long`] is kept: 0 to
/// [`WINDOW_BYTES`].
pub(in crate::emit) const KEPT_SIZES: usize = WINDOW_BYTES as usize + 1;

/// The sequence that turns a linear address into a host address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum LookUpForm {
    /// A look-up in the flat software TLB.
    Flat,
    /// A look-up in the long software TLB.
    Long,
    /// No look-up: the access goes to the shadow window of the address's part.
    Direct,
    /// No look-up: the access goes to the one shadow window of a 32-bit guest's view.
    NarrowDirect,
    /// No look-up: the access goes to the shadow window that GS leads to ([`Mode::reaches_by_gs`]).
    SegmentDirect,
}

impl LookUpForm {
    pub(in crate::emit) fn direct(mode: &Mode) -> Self {
        match mode.flags.contains(ModeFlags::LONG) {
            true => Self::Direct,
            false if mode.reaches_by_gs() => Self::SegmentDirect,
            false => Self::NarrowDirect,
        }
    }

    pub(in crate::emit) const fn is_direct(self) -> bool {
        matches!(
            self,
            Self::Direct | Self::NarrowDirect | Self::SegmentDirect
        )
    }

    /// The sequence for code of a mode. No other function decides this.
    pub(crate) fn of(mode: &Mode) -> Result<Self, AccessUnavailable> {
        match mode.access {
            access if !access.is_direct() && mode.flags.contains(ModeFlags::LONG) => Ok(Self::Long),
            access if !access.is_direct() => Ok(Self::Flat),
            access if *mode == mode.with_access(access) => Ok(Self::direct(mode)),
            access => Err(AccessUnavailable(access)),
        }
    }
}
