//! Executes instructions with an operand in device memory without an exit: accesses to the near
//! registers of the local APIC, and to display memory that is not RAM.
//!
//! What an instruction does is noted when it is first executed out of line
//! ([`device_memory_notes`](super::device_memory_notes)). With paging on, the place of display
//! memory is not noted: the guest's page tables are walked at each access, which yields their
//! contents at that moment and the rights of the guest's present privilege level.
//!
//! ```text
//! and es:[di], al     noted of its site: And, memory of 1 byte is the destination, AL the source
//! its miss            page tables walked, for a store; the byte loaded, which fills the latches;
//!                     AND by the host's own instruction; the byte stored; flags put back
//! ```
//!
//! Nothing changes before the whole operand is known to be near, so that the exit, which is taken
//! in all other cases, finds the guest before the instruction. There is one exception: the first
//! part of an operand in two pages of the display may have been loaded or, if the operand is only
//! stored, stored by then. Loading or storing that part a second time is allowed.

use crate::translated::devices::call_state::{flags, kind_of, outcome, put_flags, slot};
use crate::translated::devices::device_strings;
use crate::translated::misses::Environment;
use tollgate_emulate::host_arithmetic;
use tollgate_emulate::operand::system_mask;
use tollgate_engine::Context;
use tollgate_engine::abi::fast_paths::{DISPLAY_WINDOW_SHIFT, FastPath};
use tollgate_engine::abi::memos::device_access::{
    DEVICE_ACCESSES, DeviceAccess, FORM_ADVANCES_16, FORM_ADVANCES_32, FORM_ADVANCES_64,
    FORM_DISPLAY, FORM_HIGH_BYTE, FORM_TO_REGISTER, NO_REGISTER,
};
use tollgate_platform::{DISPLAY_WINDOW, NearAccess, Platform};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical_range;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{Gpr, LinearAddress, Operation, PhysicalAddress};

const _: () = assert!(1 << DISPLAY_WINDOW_SHIFT == DISPLAY_WINDOW);

/// Executes the instruction of the site that has missed at `linear`. Returns whether more work is
/// due, or `None` if nothing was done.
#[inline]
pub(in crate::translated) fn access<P: Platform>(
    context: &mut Context,
    machine: &mut P,
    linear: u64,
    key: u64,
) -> Option<bool> {
    let noted = noted(context, key as usize % DEVICE_ACCESSES)?;
    if noted.operation == Operation::String {
        return device_strings::access(context, machine);
    }
    let places = places(context, machine, linear, &noted)?;
    let mut memory = Memory {
        machine,
        places,
        is_due: false,
    };
    let before = match noted.loads() {
        true => memory.load()?,
        false => 0,
    };
    let outcome = operate(context, &noted, before);
    if let Some(value) = outcome.memory {
        memory.store(value & used(noted.size))?;
    }
    let is_due = memory.is_due;
    if let Some(value) = outcome.register {
        put_register(context, &noted, value);
    }
    if let Some(flags) = outcome.flags {
        put_flags(context, flags);
    }
    advance_pointer(context, &noted);
    let routine = match noted.stores() {
        true => FastPath::MmioWrite,
        false => FastPath::MmioRead,
    };
    context.fast_paths.counts[routine as usize] += 1;
    Some(is_due)
}

/// The note about the named site, in entry `number`. If another site has taken the entry, the entry
/// is set to the note of the named site.
fn noted(context: &mut Context, number: usize) -> Option<DeviceAccess> {
    let noted = context.devices.accesses[number];
    if noted.site == context.hot.exit_site {
        return Some(noted);
    }
    // SAFETY: guest code called this function, and only guest code may use what its environment
    // points to.
    let engine = unsafe {
        let environment = context
            .fast_paths
            .environment
            .cast::<Environment>()
            .as_ref()?;
        &*environment.engine
    };
    let noted = *engine.device_access(context.hot.exit_site)?;
    context.devices.accesses[number] = noted;
    Some(noted)
}

/// The physical addresses of the one or two parts of an operand, with their sizes.
#[derive(Clone, Copy)]
struct Places {
    first: (PhysicalAddress, u8),
    second: Option<(PhysicalAddress, u8)>,
}

/// Finds the operand of an instruction that missed at `linear`. `None` means that the operand is
/// not known to be in memory that may be near.
#[inline]
fn places<P: Platform>(
    context: &mut Context,
    machine: &P,
    linear: u64,
    noted: &DeviceAccess,
) -> Option<Places> {
    let in_page = PAGE_SIZE - linear % PAGE_SIZE;
    let is_whole = u64::from(noted.size) <= in_page;
    if noted.form & FORM_DISPLAY == 0 {
        let is_known = context.devices.page == (linear / PAGE_SIZE).wrapping_neg();
        let address = PhysicalAddress(context.devices.frame | (linear % PAGE_SIZE));
        return (is_known && is_whole).then_some(Places {
            first: (address, noted.size),
            second: None,
        });
    }
    let window = machine.near_display()?.0;
    let mask = system_mask(&context.cpu);
    if context.cpu.is_long_mode() && !is_canonical_range(linear, noted.size.into()) {
        return None;
    }
    let mut display_at = |linear: u64| {
        let found = physical(
            context,
            LinearAddress(linear & mask),
            kind_of(noted.stores()),
        )?;
        (window..window + DISPLAY_WINDOW)
            .contains(&found.0)
            .then_some(found)
    };
    if is_whole {
        return Some(Places {
            first: (display_at(linear)?, noted.size),
            second: None,
        });
    }
    let (first, second) = (
        display_at(linear)?,
        display_at(linear.wrapping_add(in_page))?,
    );
    Some(Places {
        first: (first, in_page as u8),
        second: Some((second, noted.size - in_page as u8)),
    })
}

/// The present physical address of a linear address. `None` means that the address faults, or that
/// more work is due.
#[inline]
fn physical(
    context: &mut Context,
    linear: LinearAddress,
    kind: AccessKind,
) -> Option<PhysicalAddress> {
    let cpu = &context.cpu;
    if !cpu.is_paging() {
        return Some(PhysicalAddress(linear.0));
    }
    // SAFETY: guest code called this function, and only guest code may use what its environment
    // points to.
    let view = unsafe {
        let environment = context
            .fast_paths
            .environment
            .cast::<Environment>()
            .as_ref()?;
        &mut *environment.view
    };
    let privilege = Privilege::of_cpl(cpu.cpl());
    let found = view.walk(cpu, linear, kind, privilege).ok()?;
    // The walk may have set bits in a page table that shares its page with code.
    let is_due = view.memory.has_code_writes() || view.memory.has_map_changes();
    (!is_due).then_some(found.physical)
}

/// A mask of the bits of `size` (1 to 8) bytes.
fn used(size: u8) -> u64 {
    u64::MAX >> (64 - 8 * u32::from(size))
}

/// An operand in a device's memory.
struct Memory<'a, P> {
    machine: &'a mut P,
    places: Places,
    is_due: bool,
}

impl<P: Platform> Memory<'_, P> {
    fn near(&mut self, access: NearAccess) -> Option<u64> {
        let done = outcome(self.machine.near(access))?;
        self.is_due |= done.is_due;
        Some(done.read)
    }

    /// Loads the operand, or returns `None` if the access is not near.
    fn load(&mut self) -> Option<u64> {
        let (address, size) = self.places.first;
        let low = self.near(NearAccess::MemoryRead { address, size })? & used(size);
        let Some((address, size)) = self.places.second else {
            return Some(low);
        };
        let shift = 8 * u32::from(self.places.first.1);
        let high = self.near(NearAccess::MemoryRead { address, size })? & used(size);
        Some(high << shift | low)
    }

    /// Stores the operand, or returns `None` if the access is not near.
    fn store(&mut self, value: u64) -> Option<()> {
        let (address, size) = self.places.first;
        self.near(NearAccess::MemoryWrite {
            address,
            size,
            value: value & used(size),
        })?;
        let Some((address, second)) = self.places.second else {
            return Some(());
        };
        self.near(NearAccess::MemoryWrite {
            address,
            size: second,
            value: value >> (8 * u32::from(size)),
        })?;
        Some(())
    }
}

/// The results of an instruction.
#[derive(Default)]
struct Outcome {
    /// The value to store in memory.
    memory: Option<u64>,
    /// The value for the register operand.
    register: Option<u64>,
    /// The arithmetic flags.
    flags: Option<u64>,
}

/// Computes the results of an instruction whose memory operand has the value `memory`.
#[inline]
fn operate(context: &mut Context, noted: &DeviceAccess, memory: u64) -> Outcome {
    let other = register_or_constant(context, noted);
    let is_to_register = noted.form & FORM_TO_REGISTER != 0;
    let (destination, source) = match is_to_register {
        true => (other, memory),
        false => (memory, other),
    };
    let result = match noted.operation {
        Operation::Move | Operation::MoveZeroExtended => source,
        Operation::MoveSignExtended => {
            let unused = 64 - 8 * u32::from(noted.size);
            ((source << unused) as i64 >> unused) as u64
        }
        Operation::Exchange => {
            return Outcome {
                memory: Some(other),
                register: Some(memory),
                flags: None,
            };
        }
        operation => {
            let flags = flags(context);
            let operands = (destination, source);
            let (result, flags) = host_arithmetic::execute(operation, noted.size, operands, flags);
            let is_kept = operation.writes_destination();
            return Outcome {
                memory: (is_kept && !is_to_register).then_some(result),
                register: (is_kept && is_to_register).then_some(result),
                flags: operation.changes_flags().then_some(flags),
            };
        }
    };
    match is_to_register {
        true => Outcome {
            register: Some(result),
            ..Outcome::default()
        },
        false => Outcome {
            memory: Some(result),
            ..Outcome::default()
        },
    }
}

fn register_or_constant(context: &mut Context, noted: &DeviceAccess) -> u64 {
    match noted.register {
        NO_REGISTER => noted.constant as u64,
        register if noted.form & FORM_HIGH_BYTE != 0 => *context.slot_mut(register) >> 8 & 0xff,
        register => *context.slot_mut(register),
    }
}

fn put_register(context: &mut Context, noted: &DeviceAccess, value: u64) {
    let register = context.slot_mut(noted.register);
    *register = match (noted.register_size, noted.form & FORM_HIGH_BYTE) {
        (8, _) => value,
        // A result of 4 bytes clears the upper half of the register.
        (4, _) => value & 0xffff_ffff,
        (size, 0) => *register & !used(size) | value & used(size),
        _ => *register & !0xff00 | (value & 0xff) << 8,
    };
}

/// Advances the pointer register of LODS or STOS.
fn advance_pointer(context: &mut Context, noted: &DeviceAccess) {
    let changed = match noted.form & (FORM_ADVANCES_16 | FORM_ADVANCES_32 | FORM_ADVANCES_64) {
        FORM_ADVANCES_16 => 0xffff,
        FORM_ADVANCES_32 => 0xffff_ffff,
        FORM_ADVANCES_64 => u64::MAX,
        _ => return,
    };
    let by = context.hot.direction.wrapping_mul(noted.size.into()) as u64;
    let register = match noted.stores() {
        true => Gpr::Rdi,
        false => Gpr::Rsi,
    };
    let pointer = slot(context, register);
    let kept = if changed == 0xffff { !changed } else { 0 };
    *pointer = *pointer & kept | pointer.wrapping_add(by) & changed;
}
