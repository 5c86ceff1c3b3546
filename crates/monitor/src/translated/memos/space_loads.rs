//! Loads CR3 without an exit, in the function that fast paths call.
//!
//! The new space must be known ([`Translations::switch`]), and the code that loads CR3 must be
//! certain to continue unchanged: it lies in a global page of the upper half, which all spaces have
//! and whose links stay active. All other loads are left to the exit. From then on generated code
//! finds its links in the tables of the new space, which are as they were when that space was left.
//! So no work is done for the code of programs, however much there is.
//!
//! Programs of the two spaces may reach memory in different ways. That concerns only the returns to
//! programs, of which each way has its own.
//!
//! [`Translations::switch`]: crate::memory::translations::Translations::switch

use crate::memory::access_policy::Moment;
use crate::memory::guest_view::GuestView;
use crate::memory::space_switch::SpaceLoad;
use crate::translated::misses::Environment;
use tollgate_engine::{Context, Engine};
use tollgate_tlb::Derived;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{PHYSICAL_ADDRESS_BITS, Privilege};
use tollgate_x86::translation_change::CR3_KEEPS;
use tollgate_x86::{Cr4, LinearAddress, Space};

/// The length of the longest instruction, in bytes.
const LONGEST: u64 = 15;

/// Executes a MOV of a value to CR3 in 64-bit code at level 0. Returns false if nothing was done.
pub(in crate::translated) fn load(
    context: &mut Context,
    environment: &Environment,
    value: u64,
) -> bool {
    let cpu = &context.cpu;
    let has_identifiers = cpu.cr4().contains(Cr4::PCIDE);
    let (keeps, cr3) = match has_identifiers {
        true => (value & CR3_KEEPS != 0, value & !CR3_KEEPS),
        false => (false, value),
    };
    let is_usual = environment.switches && cr3 >> PHYSICAL_ADDRESS_BITS == 0;
    if !is_usual {
        return false;
    }
    // SAFETY: guest code called this function, and only guest code may use what its environment
    // points to: its view, the engine, of which only links are changed, and the accounts.
    let (view, engine, accounts, program_access) = unsafe {
        (
            &mut *environment.view,
            &mut *environment.engine,
            &mut *environment.accounts,
            &mut *environment.program_access,
        )
    };
    if !goes_on(context, &*engine, |linear| {
        let found = view.translations.fetch(linear, Privilege::Supervisor);
        found.is_some_and(|fetch| fetch.global)
    }) {
        return false;
    }
    let (from, to) = (Space::loaded(cpu), Space::of_cr3(cpu, cr3));
    let root = to.tables.map_or(0, |tables| tables.0);
    let GuestView {
        memory,
        translations,
        ..
    } = view;
    let load = SpaceLoad {
        from,
        to,
        keeps,
        lets_in: context.hot.interrupt_flag != 0,
    };
    if !translations.switch(load, engine as &mut dyn Derived, memory) {
        return false;
    }
    context.cpu.cr3 = cr3;
    engine.tell_links(context);
    engine.tell_device_page(context);
    if accounts.adapts() {
        // SAFETY: the machine is lent to guest code while guest code runs.
        let time = unsafe { (environment.now)(context.devices.machine.cast::<std::ffi::c_void>()) };
        let fills = translations.fills();
        let progress = context.counters.progress;
        let moment = Moment {
            time,
            fills,
            progress,
        };
        accounts.load(root, true, moment);
        let access = accounts.access();
        if access != *program_access {
            context.turn_programs(*program_access as usize, access as usize);
            *program_access = access;
        }
    }
    true
}

/// Whether the code after the instruction that is being executed is the same in all spaces: this
/// code and all of the instruction lie in a page of the upper half that `is_global`.
fn goes_on(context: &Context, engine: &Engine, is_global: impl Fn(LinearAddress) -> bool) -> bool {
    let Some((_, _, site)) = engine.site(context.hot.exit_site, context.registers.code_slide)
    else {
        return false;
    };
    let linear = LinearAddress(site.rip);
    let is_inside = linear.page_offset() + LONGEST < PAGE_SIZE;
    site.rip >> 63 != 0 && is_inside && is_global(linear)
}
