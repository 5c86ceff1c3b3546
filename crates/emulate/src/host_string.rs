//! The host's own string instructions, executed on host memory: exact by construction, including
//! overlaps, direction and flags (SDM volume 2, "REP").

use std::arch::asm;
use tollgate_x86::Flags;

/// The arithmetic flags of an RFLAGS image.
const ARITHMETIC: u64 = Flags::ARITHMETIC.bits();

/// The direction of a run. The pointers passed to the functions here are those of the run's first
/// element: the highest one, if backward.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// Towards higher addresses (DF clear).
    Forward,
    /// Towards lower addresses (DF set).
    Backward,
}

/// The result of a comparing run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Comparison {
    /// Number of elements that were compared.
    pub done: u64,
    /// The arithmetic flags of the last comparison.
    pub flags: u64,
}

macro_rules! directed {
    ($direction:expr, $instruction:literal, $after:literal, $($operands:tt)*) => {
        match $direction {
            Direction::Forward => asm!($instruction, $after, $($operands)*),
            Direction::Backward => asm!("std", $instruction, $after, "cld", $($operands)*),
        }
    };
}

/// MOVS: copies `count` elements of `size` (1, 2, 4 or 8) bytes, one after the other.
///
/// # Safety
///
/// Every element of both runs must be valid memory, and the destination must be writable.
pub unsafe fn copy(
    source: *const u8,
    destination: *mut u8,
    count: u64,
    size: u32,
    direction: Direction,
) {
    macro_rules! run {
        ($instruction:literal) => {
            directed!(direction, $instruction, "",
                inout("rcx") count => _, inout("rsi") source => _, inout("rdi") destination => _,
                options(preserves_flags))
        };
    }
    // SAFETY: the caller guarantees that the memory is valid; DF is clear again at the end.
    unsafe {
        match size {
            1 => run!("rep movsb"),
            2 => run!("rep movsw"),
            4 => run!("rep movsd"),
            _ => run!("rep movsq"),
        }
    }
}

/// STOS: fills `count` elements of `size` (1, 2, 4 or 8) bytes.
///
/// # Safety
/// Every element must be valid, writable memory.
pub unsafe fn fill(destination: *mut u8, value: u64, count: u64, size: u32, direction: Direction) {
    macro_rules! run {
        ($instruction:literal) => {
            directed!(direction, $instruction, "",
                inout("rcx") count => _, inout("rdi") destination => _, in("rax") value,
                options(preserves_flags))
        };
    }
    // SAFETY: the caller guarantees that the memory is valid; DF is clear again at the end.
    unsafe {
        match size {
            1 => run!("rep stosb"),
            2 => run!("rep stosw"),
            4 => run!("rep stosd"),
            _ => run!("rep stosq"),
        }
    }
}

/// CMPS: compares up to `count` (at least 1) elements of `size` bytes, for as long as they are
/// equal (`while_equal`) or differ.
///
/// # Safety
///
/// Every element of both runs must be readable memory.
pub unsafe fn compare(
    source: *const u8,
    destination: *const u8,
    count: u64,
    size: u32,
    direction: Direction,
    while_equal: bool,
) -> Comparison {
    let (remaining, flags): (u64, u64);
    macro_rules! run {
        ($instruction:literal) => {
            directed!(direction, $instruction, "pushfq\npop {flags}",
                inout("rcx") count => remaining,
                inout("rsi") source => _, inout("rdi") destination => _,
                flags = lateout(reg) flags)
        };
    }
    // SAFETY: the caller guarantees that the memory is valid; DF is clear again at the end.
    unsafe {
        match (size, while_equal) {
            (1, true) => run!("repe cmpsb"),
            (1, false) => run!("repne cmpsb"),
            (2, true) => run!("repe cmpsw"),
            (2, false) => run!("repne cmpsw"),
            (4, true) => run!("repe cmpsd"),
            (4, false) => run!("repne cmpsd"),
            (_, true) => run!("repe cmpsq"),
            (_, false) => run!("repne cmpsq"),
        }
    }
    Comparison {
        done: count.wrapping_sub(remaining),
        flags: flags & ARITHMETIC,
    }
}

/// SCAS: compares AL, AX, EAX or RAX with up to `count` (at least 1) elements, for as long as they
/// are equal (`while_equal`) or differ.
///
/// # Safety
///
/// Every element must be readable memory.
pub unsafe fn scan(
    destination: *const u8,
    value: u64,
    count: u64,
    size: u32,
    direction: Direction,
    while_equal: bool,
) -> Comparison {
    let (remaining, flags): (u64, u64);
    macro_rules! run {
        ($instruction:literal) => {
            directed!(direction, $instruction, "pushfq\npop {flags}",
                inout("rcx") count => remaining,
                inout("rdi") destination => _, in("rax") value,
                flags = lateout(reg) flags)
        };
    }
    // SAFETY: the caller guarantees that the memory is valid; DF is clear again at the end.
    unsafe {
        match (size, while_equal) {
            (1, true) => run!("repe scasb"),
            (1, false) => run!("repne scasb"),
            (2, true) => run!("repe scasw"),
            (2, false) => run!("repne scasw"),
            (4, true) => run!("repe scasd"),
            (4, false) => run!("repne scasd"),
            (_, true) => run!("repe scasq"),
            (_, false) => run!("repne scasq"),
        }
    }
    Comparison {
        done: count.wrapping_sub(remaining),
        flags: flags & ARITHMETIC,
    }
}
