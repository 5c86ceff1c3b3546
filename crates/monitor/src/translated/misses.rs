//! The function that fills the software TLB without an exit ([`tollgate_engine::gate::miss`]), for
//! an access that has missed in it.
//!
//! The function does what the exit, which the context names for that time, would do, provided that
//! the page is RAM and no other work is due. If not, what the function has found out is kept for
//! the exit.

use crate::memory::access_policy::Accounts;
use crate::memory::addresses::view_of;
use crate::memory::guest_view::{GuestView, Inline, InlineAccess};
use crate::memory::space_switch::SpaceSwitch;
use crate::translated::Translated;
use crate::translated::processor::Processor;
use std::ffi::c_void;
use tollgate_emulate::operand::system_mask;
use tollgate_engine::abi::context_displacements as at;
use tollgate_engine::abi::fast_paths::FastPath;
use tollgate_engine::abi::sites::{SharedBytes, SiteKind, WindowMiss};
use tollgate_engine::policy::access::Access as MemoryAccess;
use tollgate_engine::{Context, Engine};
use tollgate_exits::{ExitKind, Ledger};
use tollgate_platform::Platform;
use tollgate_tlb::LookUpFor;
use tollgate_x86::canonical::is_canonical_range;
use tollgate_x86::paging::Privilege;
use tollgate_x86::{Exception, LinearAddress};

/// What functions that guest code calls need in addition to the context.
pub(super) struct Environment {
    pub(super) view: *mut GuestView,
    /// Only the engine's links are changed.
    pub(super) engine: *mut Engine,
    pub(super) accounts: *mut Accounts,
    /// How programs of the loaded space access memory.
    pub(super) program_access: *mut MemoryAccess,
    /// The ledger in which the time of these functions is counted.
    pub(super) ledger: *mut Ledger,
    /// Whether another space may be loaded without an exit.
    pub(super) switches: bool,
    /// Returns guest time in nanoseconds, which the machine that is lent to guest code knows.
    ///
    /// # Safety
    /// The argument is [`tollgate_engine::abi::context::groups::DeviceState::machine`], and nothing
    /// else refers to the machine.
    pub(super) now: unsafe fn(*mut c_void) -> u64,
}

/// The implementation of [`Environment::now`] for machines of type `P`.
///
/// # Safety
/// `machine` is a `P` to which nothing else refers.
unsafe fn now<P: Platform>(machine: *mut c_void) -> u64 {
    // SAFETY: the caller guarantees it.
    unsafe { &mut *machine.cast::<P>() }.now().0
}

impl Environment {
    /// The environment of guest code in this view. It is for the next entry only, and must outlive
    /// that entry.
    pub(super) fn new<P: Platform>(
        runner: &mut Translated,
        view: &mut GuestView,
        ledger: &mut Ledger,
    ) -> Self {
        view.missed = None;
        Self {
            view,
            engine: &raw mut *runner.engine,
            accounts: &raw mut *runner.accounts,
            program_access: &raw mut runner.program_access,
            ledger,
            switches: runner.space_switch == SpaceSwitch::Inline,
            now: now::<P>,
        }
    }
}

impl InlineAccess {
    /// The access of a site of code at this level, if the site can miss.
    pub(crate) fn of(kind: SiteKind, cpl: u8) -> Option<Self> {
        match kind {
            SiteKind::Memory { size, write } => Some(Self {
                size: size.into(),
                wanted: match write {
                    true if at::code_store(size).is_some() => LookUpFor::TestedStore,
                    true => LookUpFor::Store,
                    false => LookUpFor::Load,
                },
                privilege: Privilege::of_cpl(cpl),
            }),
            SiteKind::SystemRead { size, .. } => Some(Self {
                size: size.into(),
                wanted: LookUpFor::Load,
                privilege: Privilege::System,
            }),
            _ => None,
        }
    }
}

impl GuestView {
    /// Whether generated code may now make an access itself. A result that was found just before is
    /// used again.
    pub(crate) fn allow(
        &mut self,
        context: &Context,
        linear: LinearAddress,
        access: InlineAccess,
    ) -> Result<Inline, Exception> {
        if let Some(found) = self.missed.take() {
            return found;
        }
        self.make_inline(&context.cpu, linear, access)
    }
}

/// What a shared look-up, or an access that uses one, looks for. Stores that use one are not tested
/// for hitting code.
fn look_up_for(bytes: SharedBytes) -> LookUpFor {
    match bytes.write {
        true => LookUpFor::Store,
        false => LookUpFor::Load,
    }
}

impl Processor<'_> {
    /// Handles a shared look-up that has missed for the first time in its block: makes the software
    /// TLB have the entry that the first access needs. Returns the kind of exit if the look-up hits now. Guest
    /// code is about to make that access, so the page tables change only as the access would change
    /// them; if the access faults here, it will fault again.
    pub(super) fn fill_window(&mut self, miss: WindowMiss) -> Option<ExitKind> {
        let cpu = &self.runner.context.cpu;
        let mask = system_mask(cpu);
        let low = LinearAddress(self.runner.context.hot.exit_value & mask);
        let linear = LinearAddress(low.0.wrapping_add(u64::from(miss.place())) & mask);
        let (access, window) = (miss.access(), miss.window());
        if cpu.is_long_mode() && !is_canonical_range(linear.0, u64::from(access.size)) {
            return None;
        }
        let privilege = Privilege::of_cpl(cpu.cpl());
        let inline = InlineAccess {
            size: access.size,
            wanted: look_up_for(access),
            privilege,
        };
        let found = self.view.make_inline(cpu, linear, inline);
        let fills = found == Ok(Inline::Yes)
            && (self.view.translations).allows(
                cpu,
                view_of(privilege),
                look_up_for(window),
                low,
                window.size,
            );
        fills.then_some(if access.write {
            ExitKind::TlbMissWrite
        } else {
            ExitKind::TlbMissRead
        })
    }
}

/// The function that [`tollgate_engine::abi::context::groups::FastPathState::miss_function`] points
/// to.
///
/// # Safety
/// The context is that of the guest code that called this function, and there is no reference to
/// it. Its environment is null, or an [`Environment`] whose view no reference uses during the call.
pub(super) unsafe extern "sysv64" fn fill(context: *mut Context) -> u64 {
    // SAFETY: the caller guarantees it.
    let context = unsafe { &mut *context };
    // SAFETY: the caller guarantees it.
    let Some(environment) = (unsafe {
        context
            .fast_paths
            .environment
            .cast::<Environment>()
            .as_ref()
    }) else {
        return 0;
    };
    // SAFETY: the environment is valid, as above; nothing else refers to the engine while guest
    // code runs.
    let (view, engine, ledger) = unsafe {
        (
            &mut *environment.view,
            &*environment.engine,
            &mut *environment.ledger,
        )
    };
    let sort = ExitKind::TlbMissRead;
    let call = ledger.begin_fast_path_call(sort);
    let (place, kind) = match try_again_at(context, view, engine) {
        Some((place, routine)) => (place, routine.kind()),
        None => (0, sort),
    };
    ledger.end_fast_path_call(call, sort, kind);
    place
}

/// The host address at which the access of the named site must be tried again because there is an
/// entry now, and the kind of miss.
fn try_again_at(
    context: &mut Context,
    view: &mut GuestView,
    engine: &Engine,
) -> Option<(u64, FastPath)> {
    let (block, _, site) = engine.site(context.hot.exit_site, context.registers.code_slide)?;
    let cpu = &context.cpu;
    let access = InlineAccess::of(site.kind, cpu.cpl())?;
    let linear = LinearAddress(context.hot.exit_value & system_mask(cpu));
    if cpu.is_long_mode() && !is_canonical_range(linear.0, u64::from(access.size)) {
        return None;
    }
    let found = view.allow(context, linear, access);
    let is_filled = match found {
        Ok(Inline::Yes) => true,
        Ok(Inline::Code(physical)) => {
            let code = view.memory.code();
            !code.contains(physical, u64::from(access.size))
        }
        _ => false,
    };
    // The walk may have set bits in a page table that shares its page with code, or the notes may
    // have run out of room.
    let is_due = view.memory.has_code_writes()
        || view.memory.has_map_changes()
        || view.translations.has_changed();
    if !is_filled || is_due {
        view.missed = Some(found);
        return None;
    }
    let place = engine.address(block, site.retry)?;
    let routine = match access.wanted {
        LookUpFor::Load => FastPath::ReadMiss,
        LookUpFor::Store | LookUpFor::TestedStore => FastPath::WriteMiss,
    };
    context.fast_paths.counts[routine as usize] += 1;
    Some((place as u64, routine))
}
