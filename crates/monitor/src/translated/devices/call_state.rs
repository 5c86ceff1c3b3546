//! What the fast paths of devices share: slots, flags and the outcome of an access.

use tollgate_engine::Context;
use tollgate_platform::Near;
use tollgate_x86::paging::AccessKind;
use tollgate_x86::{Flags, Gpr, PhysicalAddress};

/// The slot in which the routine keeps a general register during the call.
pub(in crate::translated) fn slot(context: &mut Context, register: Gpr) -> &mut u64 {
    context.slot_mut(register as u8)
}

/// The outcome of an access that was made.
#[derive(Clone, Copy)]
pub(in crate::translated) struct Outcome {
    /// The value that was read, if the access was a read.
    pub(in crate::translated) read: u64,
    /// Whether more work is due.
    pub(in crate::translated) is_due: bool,
}

/// The outcome of an access. `None` means that no access was made.
pub(in crate::translated) fn outcome(near: Near) -> Option<Outcome> {
    let (read, is_due) = match near {
        Near::No => return None,
        Near::Done(read) => (read, false),
        Near::DoneAndDue(read) => (read, true),
    };
    Some(Outcome { read, is_due })
}

/// Whether two places in display memory are either both near or both not: the mapping of the
/// display window changes only at multiples of 32 KiB.
pub(in crate::translated) fn are_near_alike(one: PhysicalAddress, other: PhysicalAddress) -> bool {
    const SHIFT: u32 = 15;
    one.0 >> SHIFT == other.0 >> SHIFT
}

pub(in crate::translated) fn kind_of(writes: bool) -> AccessKind {
    match writes {
        true => AccessKind::Write,
        false => AccessKind::Read,
    }
}

/// The guest's arithmetic flags, which the routine keeps in the format of LAHF.
pub(in crate::translated) fn flags(context: &Context) -> u64 {
    let overflow = match context.strings.flags & 1 {
        0 => 0,
        _ => Flags::OF.bits(),
    };
    u64::from(context.strings.flags >> 8) & (Flags::ARITHMETIC - Flags::OF).bits() | overflow
}

pub(in crate::translated) fn put_flags(context: &mut Context, flags: u64) {
    let shown = flags & (Flags::ARITHMETIC - Flags::OF).bits();
    let overflow = u16::from(flags & Flags::OF.bits() != 0);
    context.strings.flags = (shown as u16) << 8 | overflow;
}
