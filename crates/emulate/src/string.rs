//! MOVS, STOS, LODS, CMPS and SCAS, single and repeated (SDM volume 2).
//!
//! Repeated instructions execute in *runs*: the elements that lie in one page of each operand,
//! inside the segment, in plain RAM. The host's own string instruction executes a run on host
//! pointers, so overlaps (REP MOVSB with DI = SI + 1 smears a byte), aliased pages and flags have
//! the same results as on a processor. Elements that do not fit a run (in device memory, across the
//! end of a page, before a fault) are processed one at a time through the environment, which finds
//! the exact fault. Example, REP MOVSW from SI = 0FFEh: the element at 0FFEh is a run of one, the
//! next run starts at 1000h.
//!
//! After each run the registers show the progress; if an interrupt is due there, it stops the
//! instruction with [`Outcome::Repeat`]. With EFLAGS.TF set, each run is one element and ends the
//! same way, because a trap follows every iteration.

use crate::Outcome;
use crate::cpuid::{Vendor, policy};
use crate::host_string::{self, Comparison};
use crate::operand::size_mask;
use crate::string_pointers::Pointers;
use iced_x86::Instruction;
use tollgate_platform::Environment;
use tollgate_x86::paging::AccessKind;
use tollgate_x86::{CpuState, Exception, Flags, Gpr};

/// Calls `step` until nothing remains. Each call processes at least one element, does not change
/// the counter, and returns the number of elements.
fn repeat(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    pointers: &mut Pointers,
    mut step: impl FnMut(&mut CpuState, &mut dyn Environment, &Pointers, u64) -> Result<u64, Exception>,
) -> Result<Outcome, Exception> {
    loop {
        let wanted = pointers.wanted(state);
        if wanted == 0 {
            return Ok(Outcome::Next);
        }
        let done = step(state, environment, pointers, wanted)?;
        pointers.count(state, done);
        if pointers.pauses(state, environment) {
            return Ok(Outcome::Repeat);
        }
    }
}

/// MOVS: copies elements.
///
/// # Errors
///
/// The fault of an access; the progress is in the registers.
pub fn move_string(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let mut pointers = Pointers::of(state, instruction);
    pointers.begin(state, &[Gpr::Rsi, Gpr::Rdi]);
    repeat(
        state,
        environment,
        &mut pointers,
        |state, environment, pointers, remaining| {
            let run = pointers.host_runs(state, environment, AccessKind::Write, remaining);
            let done = if let Some((count, source, destination)) = run {
                // SAFETY: `ram` guarantees `count` elements at both pointers.
                unsafe {
                    host_string::copy(
                        source,
                        destination,
                        count,
                        pointers.size,
                        pointers.direction,
                    );
                }
                count
            } else {
                match pointers.move_elements(state, environment, remaining) {
                    0 => {
                        let value = pointers.read_source(state, environment, AccessKind::Write)?;
                        pointers.write_element(state, environment, value)?;
                        1
                    }
                    count => count,
                }
            };
            pointers.advance(state, Gpr::Rsi, done);
            pointers.advance(state, Gpr::Rdi, done);
            Ok(done)
        },
    )
}

/// STOS: stores elements.
///
/// # Errors
///
/// The fault of an access; the progress is in the registers.
pub fn store_string(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let mut pointers = Pointers::of(state, instruction);
    pointers.begin(state, &[Gpr::Rdi]);
    let value = state.register(Gpr::Rax);
    repeat(
        state,
        environment,
        &mut pointers,
        |state, environment, pointers, remaining| {
            let run = if pointers.checks_alignment(state) {
                None
            } else {
                pointers.host_run(state, environment, Gpr::Rdi, AccessKind::Write, remaining)
            };
            let done = if let Some((count, destination)) = run {
                // SAFETY: `ram` guarantees `count` elements at the pointer.
                unsafe {
                    host_string::fill(destination, value, count, pointers.size, pointers.direction);
                }
                count
            } else {
                match pointers.store_elements(state, environment, value, remaining) {
                    0 => {
                        pointers.write_element(state, environment, value)?;
                        1
                    }
                    count => count,
                }
            };
            pointers.advance(state, Gpr::Rdi, done);
            Ok(done)
        },
    )
}

/// LODS. If repeated, it keeps only the last element but reads all of them.
///
/// # Errors
///
/// The fault of an access; the progress is in the registers.
pub fn load_string(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let mut pointers = Pointers::of(state, instruction);
    pointers.begin(state, &[]);
    repeat(
        state,
        environment,
        &mut pointers,
        |state, environment, pointers, remaining| {
            let run = if pointers.checks_alignment(state) {
                None
            } else {
                // Only the last element of a run is read: RAM has no side effects.
                pointers.host_run(state, environment, Gpr::Rsi, AccessKind::Read, remaining)
            };
            let skipped = run.map_or(0, |(count, _)| count - 1);
            pointers.advance(state, Gpr::Rsi, skipped);
            let value = match pointers.read_element(state, environment, Gpr::Rsi) {
                Ok(value) => value,
                Err(fault) => {
                    pointers.advance(state, Gpr::Rsi, skipped.wrapping_neg());
                    return Err(fault);
                }
            };
            let mask = size_mask(pointers.size);
            let place = &mut state.gpr[Gpr::Rax as usize];
            *place = if pointers.size >= 4 {
                value
            } else {
                *place & !mask | value & mask
            };
            pointers.advance(state, Gpr::Rsi, 1);
            Ok(skipped + 1)
        },
    )
}

/// Runs a comparing instruction. `step` processes at least one element and moves the pointers. A
/// fault in the middle leaves the flags as before the instruction (SDM volume 2, REP); on AMD's
/// processors they are those of the last element that was compared.
fn repeat_comparison(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
    mut step: impl FnMut(
        &mut CpuState,
        &mut dyn Environment,
        &Pointers,
        u64,
        bool,
    ) -> Result<Comparison, Exception>,
) -> Result<Outcome, Exception> {
    let mut pointers = Pointers::of(state, instruction);
    pointers.begin(state, &[]);
    let while_equal = !instruction.has_repne_prefix();
    if pointers.remaining(state) == 0 {
        return Ok(Outcome::Next);
    }
    let shows_each_result = policy(state).vendor() == Vendor::Amd;
    loop {
        let wanted = pointers.wanted(state);
        let comparison = step(state, environment, &pointers, wanted, while_equal)?;
        pointers.count(state, comparison.done);
        let was_equal = comparison.flags & Flags::ZF.bits() != 0;
        let ended = pointers.remaining(state) == 0 || was_equal != while_equal;
        if ended || shows_each_result {
            let kept = state.flags & !Flags::ARITHMETIC.bits();
            state.flags = kept | comparison.flags;
        }
        if ended {
            return Ok(Outcome::Next);
        }
        if pointers.pauses(state, environment) {
            return Ok(Outcome::Repeat);
        }
    }
}

/// CMPS: subtracts destination from source.
///
/// # Errors
///
/// The fault of an access; the progress is in the registers, and for AMD in the flags.
pub fn compare_string(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    repeat_comparison(
        state,
        environment,
        instruction,
        |state, environment, pointers, remaining, while_equal| {
            let (size, direction) = (pointers.size, pointers.direction);
            let run = pointers.host_runs(state, environment, AccessKind::Read, remaining);
            let comparison = if let Some((count, source, destination)) = run {
                // SAFETY: `ram` guarantees `count` elements at both pointers.
                unsafe {
                    host_string::compare(source, destination, count, size, direction, while_equal)
                }
            } else {
                let source = pointers.read_source(state, environment, AccessKind::Read)?;
                let destination = pointers.read_element(state, environment, Gpr::Rdi)?;
                let (source, destination) = (source.to_le_bytes(), destination.to_le_bytes());
                let (source, destination) = (source.as_ptr(), destination.as_ptr());
                // SAFETY: one element of at most 8 bytes in two local arrays.
                unsafe {
                    host_string::compare(source, destination, 1, size, direction, while_equal)
                }
            };
            pointers.advance(state, Gpr::Rsi, comparison.done);
            pointers.advance(state, Gpr::Rdi, comparison.done);
            Ok(comparison)
        },
    )
}

/// SCAS: subtracts the destination from AL, AX, EAX or RAX.
///
/// # Errors
///
/// The fault of an access; the progress is in the registers, and for AMD in the flags.
pub fn scan_string(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let value = state.register(Gpr::Rax);
    repeat_comparison(
        state,
        environment,
        instruction,
        |state, environment, pointers, remaining, while_equal| {
            let (size, direction) = (pointers.size, pointers.direction);
            let run = if pointers.checks_alignment(state) {
                None
            } else {
                pointers.host_run(state, environment, Gpr::Rdi, AccessKind::Read, remaining)
            };
            let comparison = if let Some((count, destination)) = run {
                // SAFETY: `ram` guarantees `count` elements at the pointer.
                unsafe {
                    host_string::scan(destination, value, count, size, direction, while_equal)
                }
            } else {
                let element = pointers.read_element(state, environment, Gpr::Rdi)?;
                let element = element.to_le_bytes();
                // SAFETY: one element of at most 8 bytes in a local array.
                unsafe {
                    host_string::scan(element.as_ptr(), value, 1, size, direction, while_equal)
                }
            };
            pointers.advance(state, Gpr::Rdi, comparison.done);
            Ok(comparison)
        },
    )
}

#[cfg(test)]
mod tests;
