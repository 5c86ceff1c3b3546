//! Kinds of exit: faults of instructions, strings, vector registers, and those that leave the local APIC in another mode.

use super::expected::{exits, exits_or_fast_paths, with_set_up};
use super::kind::{Batch, Kind, kind};
use tollgate_exits::ExitKind::*;

/// These kinds, in the order of the output.
pub const KINDS: &[Kind] = &[
    kind(
        "invalid-opcode",
        "UD2 to the handler's first instruction",
        &[exits(GuestException, 1)],
    ),
    kind(
        "divide-error",
        "DIV by zero (a signal on the host) to the handler's first instruction",
        &[exits(HostFault, 1), exits(GuestException, 1)],
    )
    .slow(),
    kind(
        "divide-error-iret",
        "DIV by zero (a signal on the host) and IRET",
        &[
            exits(HostFault, 1),
            exits(GuestException, 1),
            exits(Iret, 1),
        ],
    )
    .slow(),
    kind(
        "string",
        "REP MOVSD of 64 bytes: a routine, no exit",
        &[exits(StringInstruction, 0)],
    ),
    kind(
        "string-down",
        "REP MOVSD of 64 bytes with the direction flag set: a routine, no exit",
        &[exits(StringInstruction, 0)],
    ),
    kind("fxsave", "FXSAVE", &[exits(VectorImage, 1)]),
    kind(
        "vector-load",
        "FLDZ and FSTP when an exit has put the vector registers away: a fast path",
        &[exits(VectorLoad, 0), exits(NullHypercall, 1)],
    )
    .batch(Batch::Whole),
    kind(
        "tsc-deadline-write",
        "WRMSR of IA32_TSC_DEADLINE, which arms nothing: a fast path",
        &[exits_or_fast_paths(Msr, 1)],
    ),
    // These leave the local APIC in x2APIC mode, so they come last.
    kind(
        "x2apic-tpr-write",
        "WRMSR of the task priority in x2APIC mode: a fast path",
        &[with_set_up(Msr, 1, 2)],
    ),
    kind(
        "x2apic-eoi",
        "WRMSR of EOI in x2APIC mode, nothing in service: a fast path",
        &[with_set_up(Msr, 1, 2)],
    ),
    kind(
        "x2apic-timer-read",
        "RDMSR of the timer's current count in x2APIC mode: a fast path",
        &[with_set_up(Msr, 1, 2)],
    ),
    kind(
        "x2apic-self-ipi",
        "WRMSR of SELF IPI in x2APIC mode to the handler's first instruction",
        &[exits(InterruptDelivered, 1), with_set_up(Msr, 2, 2)],
    )
    .batch(Batch::Whole),
];
