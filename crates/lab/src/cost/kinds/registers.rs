//! Kinds of exit: segment registers, control registers, tables and model-specific registers.

use super::expected::{exits, exits_or_fast_paths, fast_path_in_kernels, translated_in_kernels};
use super::kind::{Kind, kind};
use tollgate_exits::ExitKind::*;

/// These kinds, in the order of the output.
pub const KINDS: &[Kind] = &[
    kind(
        "segment-load",
        "MOV to FS; in 32-bit kernels a fast path, in real mode translated: no exit",
        &[fast_path_in_kernels(SegmentLoad)],
    ),
    kind(
        "segment-store",
        "MOV from DS: translated, no exit",
        &[exits(OtherInstruction, 0)],
    ),
    kind(
        "segment-push",
        "PUSH FS and POP of a register: translated, no exit",
        &[exits(SegmentLoad, 0)],
    ),
    kind(
        "segment-pop",
        "PUSH of a register and POP FS; in 32-bit kernels a fast path, in real mode translated: no exit",
        &[fast_path_in_kernels(SegmentLoad)],
    ),
    kind(
        "cr0-read",
        "MOV from CR0: translated, no exit",
        &[exits(ControlRegister, 0)],
    ),
    kind(
        "cr0-write",
        "MOV to CR0 of the value it has; but in real mode a fast path",
        &[exits_or_fast_paths(ControlRegister, 1)],
    ),
    kind(
        "cr3-load",
        "MOV to CR3 of the value it has",
        &[exits(Cr3Load, 1)],
    ),
    kind(
        "cr3-load-touch-16",
        "MOV to CR3 and a read of each of 16 pages, whose entries are as they were: none is missed",
        &[exits(Cr3Load, 1), exits(TlbMissRead, 0)],
    ),
    kind(
        "cr3-load-keep",
        "MOV to CR3 of the value it has, with bit 63",
        &[exits(Cr3Load, 1)],
    ),
    kind("cr8-read", "MOV from CR8", &[exits(ControlRegister, 1)]),
    kind("cr8-write", "MOV to CR8", &[exits(ControlRegister, 1)]),
    kind(
        "dr7-read",
        "MOV from DR7",
        &[exits_or_fast_paths(ControlRegister, 1)],
    ),
    kind(
        "clts",
        "CLTS with CR0.TS clear: no exit",
        &[exits(ControlRegister, 0)],
    ),
    kind(
        "smsw",
        "SMSW; in ring 0 but in real mode translated, no exit",
        &[translated_in_kernels(ControlRegister)],
    ),
    kind(
        "lmsw",
        "LMSW of the value it has; but in real mode a fast path",
        &[exits_or_fast_paths(ControlRegister, 1)],
    ),
    kind("sgdt", "SGDT", &[exits_or_fast_paths(OtherInstruction, 1)]),
    kind("sidt", "SIDT", &[exits_or_fast_paths(OtherInstruction, 1)]),
    kind(
        "lgdt",
        "LGDT of the table that is loaded; but in real mode a fast path",
        &[exits_or_fast_paths(OtherInstruction, 1)],
    ),
    kind(
        "sldt",
        "SLDT; in ring 0 translated, no exit",
        &[translated_in_kernels(OtherInstruction)],
    ),
    kind(
        "str",
        "STR; in ring 0 translated, no exit",
        &[translated_in_kernels(OtherInstruction)],
    ),
    kind("verr", "VERR", &[exits_or_fast_paths(OtherInstruction, 1)]),
    kind(
        "msr-read",
        "RDMSR of 174h; but in real mode a fast path",
        &[exits_or_fast_paths(Msr, 1)],
    ),
    kind(
        "msr-write",
        "WRMSR of 174h; but in real mode a fast path",
        &[exits_or_fast_paths(Msr, 1)],
    ),
    kind(
        "fs-base-msr-write",
        "WRMSR of FS's base: a fast path",
        &[exits_or_fast_paths(Msr, 1)],
    ),
    kind(
        "fs-base-read",
        "RDFSBASE: translated, no exit",
        &[exits(OtherInstruction, 0)],
    ),
    kind(
        "fs-base-write",
        "WRFSBASE: translated, no exit",
        &[exits(OtherInstruction, 0)],
    ),
    kind(
        "swapgs",
        "SWAPGS: translated, no exit",
        &[exits(OtherInstruction, 0)],
    ),
    kind(
        "rdtscp",
        "RDTSCP: translated, no exit",
        &[exits(TimeStamp, 0)],
    ),
    kind(
        "invpcid",
        "INVPCID of a page of the identifier that is loaded",
        &[exits(Invlpg, 1)],
    ),
];
