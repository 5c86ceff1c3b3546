//! Fast paths in general: routines that execute an instruction without leaving guest code, and what
//! they share.
//!
//! The code of such an instruction names its exit, loads R11 with the address after itself and
//! jumps to a routine through an address in the context (see [`crate::abi::fast_paths`]). The
//! routine compares with the memo, which the monitor has stored in the context. If everything is as
//! it was then, the routine executes the instruction and jumps to R11; vector registers stay as
//! they are, and nothing is looked up or decoded again. Otherwise the routine takes the exit that
//! was named, before anything has changed. A load of FS in 32-bit code whose mode stays as it is:
//!
//! ```text
//! code of the block   movzx r8d, ax; mov r9, key; mov ecx, next EIP; lea r11, [next]
//!                     mov dword ptr [r15+exit_site], site; jmp [r15+..]
//! here                is there a memo of this selector in this mode? Is the descriptor the
//!                     same? Base, limit, selector and rights are stored
//!                     jmp r11
//! ```
//!
//! A load that changes the mode continues in translated code of the other mode, which is found like
//! the target of an indirect branch; an example is a kernel's load of FS if FS was null. If that
//! look-up misses, the exit is taken with
//! [`FastPathState::done`](crate::abi::context::groups::FastPathState::done) set.
//!
//! An instruction that needs more than comparisons is executed by a function of the monitor
//! ([`crate::gate::call_fast_path`]), with the general registers where an exit leaves them. The
//! function uses the host's vector registers; if the guest's are loaded, they are put aside during
//! the call ([`crate::gate::live_vectors`]). A signal that arrives before or in the function is treated like
//! one that arrives in the monitor: its handler only sets `pending`, which is tested after the call
//! ([`is_here`]).
//!
//! No part of a routine is at a boundary of guest instructions: a signal handler that interrupts a
//! routine lets it run to its end, as with [`Restore::UNDIVIDED`](crate::abi::state_map::Restore).

use crate::abi::fast_paths::FAST_PATHS;
use crate::gate::{
    call_fast_path, cpuid_fast_path, device_fast_path, far_fast_path, interrupt_fast_path,
    iret_fast_path, miss, segment_fast_path, vector_fast_path,
};

/// The addresses of the routines, by number.
pub fn addresses() -> [u64; FAST_PATHS] {
    [
        cpuid_fast_path::address(),
        segment_fast_path::address(),
        iret_fast_path::address(),
        interrupt_fast_path::address(),
        far_fast_path::address(),
        vector_fast_path::address(),
        call_fast_path::address(),
        call_fast_path::address(),
        call_fast_path::address(),
        call_fast_path::address(),
        miss::address(),
        miss::address(),
        device_fast_path::address(),
        device_fast_path::address(),
        // Emitted code does not call these two.
        device_fast_path::miss_address(),
        device_fast_path::miss_address(),
        call_fast_path::address(),
        interrupt_fast_path::address(),
    ]
}

/// Whether a routine runs at this host address and is not about to call the monitor's function.
pub fn is_here(pc: u64) -> bool {
    cpuid_fast_path::is_here(pc)
        || segment_fast_path::is_here(pc)
        || iret_fast_path::is_here(pc)
        || call_fast_path::is_after_call(pc)
        || interrupt_fast_path::is_here(pc)
        || far_fast_path::is_here(pc)
        || miss::is_here(pc)
        || vector_fast_path::is_here(pc)
        || device_fast_path::is_here(pc)
}
