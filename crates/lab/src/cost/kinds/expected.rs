//! Which exits a repetition must cause: rules that the lists of kinds are made of.

use tollgate_exits::ExitKind;

/// The number of exits of one kind that must have been counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// The kind of exit.
    pub kind: ExitKind,
    /// Exits for each repetition.
    pub each: u64,
    /// Exits for each command, from the preparation of the loop.
    pub once: u64,
    /// More exits are accepted, because other work of the loop counts as the same kind.
    pub at_least: bool,
    /// The number of additional exits that may occur before translated code needs none.
    pub first: u64,
    /// Additional exits for each repetition in ring 3: its programs have IOPL 3, and translated
    /// code returns only to IOPL 0.
    pub in_ring_3: u64,
    /// Additional exits for each repetition in ring 0 of 64-bit code, where not all fast paths
    /// exist.
    pub in_64_bit: u64,
    /// Additional exits for each repetition in real mode.
    pub in_real_mode: u64,
    /// Whether instructions of the kind that fast paths executed count like its exits.
    pub or_fast_path: bool,
}

pub(super) const fn exits(kind: ExitKind, each: u64) -> Expected {
    Expected {
        kind,
        each,
        once: 0,
        at_least: false,
        first: 0,
        in_ring_3: 0,
        in_64_bit: 0,
        in_real_mode: 0,
        or_fast_path: false,
    }
}

/// A fast path may execute some or all of these instructions: INVLPG if the page is small and holds
/// no code, all others except in real mode.
pub(super) const fn exits_or_fast_paths(kind: ExitKind, each: u64) -> Expected {
    Expected {
        or_fast_path: true,
        ..exits(kind, each)
    }
}

/// In ring 0 of protected mode and of 64-bit code, translated code needs no exit.
pub(super) const fn translated_in_kernels(kind: ExitKind) -> Expected {
    Expected {
        in_ring_3: 1,
        in_real_mode: 1,
        ..exits_or_fast_paths(kind, 0)
    }
}

pub(super) const fn with_set_up(kind: ExitKind, each: u64, once: u64) -> Expected {
    Expected {
        once,
        ..exits_or_fast_paths(kind, each)
    }
}

pub(super) const fn at_least(kind: ExitKind, each: u64) -> Expected {
    Expected {
        at_least: true,
        ..exits(kind, each)
    }
}

/// There is no exit after the monitor has executed a few; in ring 3, the return is still one.
pub(super) const fn returns_from_ring_3(kind: ExitKind) -> Expected {
    Expected {
        first: 16,
        in_ring_3: 1,
        ..exits(kind, 0)
    }
}

/// There are some exits at first, then none: a fast path executes the instruction, or the
/// translation has changed.
pub(super) const fn at_first(kind: ExitKind) -> Expected {
    Expected {
        first: 16,
        ..exits(kind, 0)
    }
}

/// A fast path executes the instruction only in 16- and 32-bit code of ring 0.
pub(super) const fn fast_path_in_kernels(kind: ExitKind) -> Expected {
    Expected {
        in_ring_3: 1,
        in_64_bit: 1,
        ..at_first(kind)
    }
}

/// A fast path makes accesses to a page of device registers only in ring 0: `each` for a
/// repetition.
pub(super) const fn fast_path_of_device(kind: ExitKind, each: u64) -> Expected {
    Expected {
        in_ring_3: each,
        ..at_first(kind)
    }
}
