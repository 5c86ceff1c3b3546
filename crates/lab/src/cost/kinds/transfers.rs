//! Kinds of exit: flags, interrupts by instruction, system calls and far transfers.

use super::expected::{at_first, exits, returns_from_ring_3};
use super::kind::{Kind, kind};
use tollgate_exits::ExitKind::*;

/// These kinds, in the order of the output.
pub const KINDS: &[Kind] = &[
    kind("cli", "CLI", &[exits(Cli, 1)]),
    kind("sti", "STI", &[exits(Sti, 1)]),
    kind("pushf", "PUSHF and POP of a register", &[exits(Pushf, 1)]),
    kind("popf", "PUSH of an immediate and POPF", &[exits(Popf, 1)]),
    kind(
        "int",
        "INT n to the handler's first instruction",
        &[exits(SoftwareInterrupt, 1)],
    ),
    kind(
        "iret",
        "IRET to the same ring, its frame pushed before",
        &[exits(Iret, 1)],
    ),
    kind(
        "int-iret",
        "INT n and IRET",
        &[exits(SoftwareInterrupt, 1), exits(Iret, 1)],
    ),
    kind(
        "sysenter-sysexit",
        "SYSENTER and SYSEXIT: translated, no exit but of SYSEXIT to IOPL 3",
        &[returns_from_ring_3(FastSystemCall)],
    ),
    kind(
        "syscall-sysret",
        "SYSCALL and SYSRET: translated, no exit but of SYSRET to IOPL 3",
        &[returns_from_ring_3(FastSystemCall)],
    ),
    kind(
        "syscall",
        "SYSCALL, in ring 0, and a jump back: translated, no exit",
        &[returns_from_ring_3(FastSystemCall)],
    ),
    kind(
        "far-jump",
        "far JMP: a fast path, no exit; in real mode translated",
        &[at_first(FarTransfer)],
    ),
    kind(
        "far-call-return",
        "far CALL and RET: fast paths, no exit; in real mode translated",
        &[at_first(FarTransfer)],
    ),
];
