//! Where the guest is while a routine for a repeated string instruction runs ([`super::string`]).
//!
//! A signal handler that interrupts the routine asks [`Interrupted::at`]. At the host's string
//! instruction, and while operands are looked up, the guest is between two iterations, and
//! [`Stage`] says where its registers are. Everywhere else the handler lets the routine run on to
//! such a place.

use crate::abi::context::Context;
use crate::abi::strings::{OPERATIONS, ROUTINES, Reach};
use tollgate_x86::{Flags, Gpr};

/// The numbers of the compare operations CMPS; SCAS follows.
const COMPARES_BOTH: std::ops::Range<usize> = 8..16;
/// The first number of LODS, which has no destination and follows SCAS.
const LOADS: usize = 24;

/// The places in a routine's code for one direction, as distances from the start of the first
/// routine.
#[derive(Clone, Copy)]
#[repr(C)]
struct Parts {
    /// From here to `prepared`, operands are looked up. The code runs again before each part of the
    /// string.
    between: u32,
    prepared: u32,
    /// The host's string instruction.
    running: u32,
}

/// Where the parts of a routine begin, as distances from the start of the first routine.
#[derive(Clone, Copy)]
#[repr(C)]
struct Places {
    start: u32,
    forward: Parts,
    backward: Parts,
    end: u32,
}

unsafe extern "sysv64" {
    fn tollgate_string_start();
    fn tollgate_string_end();
}

unsafe extern "C" {
    static tollgate_string_places: [Places; ROUTINES];
}

fn places() -> &'static [Places; ROUTINES] {
    // SAFETY: the table is constant data with one entry for each routine: the assembly of
    // `string.rs` writes eight doublewords each time it assembles a routine.
    unsafe { &tollgate_string_places }
}

/// The addresses of the routines.
pub fn addresses() -> [u64; ROUTINES] {
    let first = tollgate_string_start as *const () as u64;
    places().map(|places| first + u64::from(places.start))
}

/// Where the guest is while a routine runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// The guest is at no boundary.
    Undivided,
    /// The guest is between two iterations, or before the first: RAX and RDX are in their slots,
    /// and the arithmetic flags are in the context.
    Between,
    /// As in `Between`, and RCX, RSI and RDI are those of the host's string instruction.
    Running,
}

/// A routine that a signal interrupted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Interrupted {
    routine: usize,
    /// Where the guest is.
    pub stage: Stage,
}

impl Interrupted {
    /// The routine that runs at this host address.
    pub fn at(pc: u64) -> Option<Self> {
        if !is_here(pc) {
            return None;
        }
        let offset = (pc - tollgate_string_start as *const () as u64) as u32;
        let holds = |places: &Places| (places.start..places.end).contains(&offset);
        let routine = places().iter().position(holds)?;
        let places = places()[routine];
        let of = |parts: Parts| match offset {
            _ if offset == parts.running => Stage::Running,
            _ if (parts.between..parts.prepared).contains(&offset) => Stage::Between,
            _ => Stage::Undivided,
        };
        let stage = match of(places.forward) {
            Stage::Undivided => of(places.backward),
            stage => stage,
        };
        Some(Self { routine, stage })
    }

    /// Puts the guest's registers into a signal frame. Returns whether iterations are complete,
    /// which is not known in [`Stage::Undivided`].
    pub(crate) fn put_back(&self, context: &mut Context, registers: &mut [i64; 23]) -> bool {
        let operation = self.routine % OPERATIONS;
        let width = Reach::ALL[self.routine / OPERATIONS].pointer_bits();
        let is_running = self.stage == Stage::Running;
        let uses_source = operation < 4 || COMPARES_BOTH.contains(&operation) || operation >= LOADS;
        let uses_destination = operation < LOADS;
        let compares = (COMPARES_BOTH.start..LOADS).contains(&operation);
        let mut kept = |register: Gpr| *context.slot_mut(register as u8) as i64;
        // The guest's value of a pointer or counter, from the value that the routine has computed.
        let whole = |value: i64, before: i64| match width {
            16 => before & !0xffff | value & 0xffff,
            32 => value & 0xffff_ffff,
            _ => value,
        };
        let [
            mut count,
            mut source,
            mut destination,
            to_source,
            to_destination,
            behind,
        ] = [
            libc::REG_RCX,
            libc::REG_RSI,
            libc::REG_RDI,
            libc::REG_R8,
            libc::REG_R9,
            libc::REG_R10,
        ]
        .map(|register| registers[register as usize]);
        if is_running {
            count = count.wrapping_add(behind);
            source = source.wrapping_sub(to_source);
            destination = destination.wrapping_sub(to_destination);
        }
        let before = kept(Gpr::Rcx);
        count = whole(count, before);
        registers[libc::REG_R10 as usize] = count;
        if uses_source {
            registers[libc::REG_RSI as usize] = whole(source, kept(Gpr::Rsi));
        }
        if uses_destination {
            registers[libc::REG_RDI as usize] = whole(destination, kept(Gpr::Rdi));
        }
        // A routine that loads already has its result in RAX.
        if uses_destination || !is_running {
            registers[libc::REG_RAX as usize] = kept(Gpr::Rax);
        }
        registers[libc::REG_RDX as usize] = kept(Gpr::Rdx);
        let flags = &mut registers[libc::REG_EFL as usize];
        *flags &= !(Flags::DF.bits() as i64);
        let shows_flags = is_running && compares && context.strings.shows_each != 0;
        if !shows_flags {
            let arithmetic = Flags::ARITHMETIC.bits() as i64;
            let kept = context.hot.arithmetic;
            context.hot.arithmetic = context.strings.flags;
            *flags = *flags & !arithmetic | context.arithmetic_flags() as i64;
            context.hot.arithmetic = kept;
        }
        whole(before, before) != count
    }
}

/// Whether a routine runs at this host address.
pub fn is_here(pc: u64) -> bool {
    let first = tollgate_string_start as *const () as u64;
    (first..tollgate_string_end as *const () as u64).contains(&pc)
}
