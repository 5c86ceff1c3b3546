//! The function that fast paths call ([`FastPathCall`]): it executes instructions that touch little
//! more than the processor's state, while guest code keeps the host's registers.
//!
//! An instruction is executed here only if it has no further consequences: it raises no exception,
//! the mode does not change, execution can continue in the same code, and nothing was derived from
//! the register that it changes. All other cases are left to the exit, which finds the guest
//! unchanged. Instructions that only read system registers and descriptors are executed as they are
//! after an exit, with the pages that the software TLB has.

use crate::memory::guest_view::GuestView;
use crate::memory::ram_copies;
use crate::translated::memos::level_change::changes_with;
use crate::translated::memos::space_loads;
use crate::translated::memos::tlb_memory::KnownPages;
use crate::translated::misses::Environment;
use iced_x86::CpuidFeature;
use tollgate_emulate::cpuid::policy;
use tollgate_emulate::descriptor_instructions::{self, Probe};
use tollgate_emulate::{Outcome, plain_msr};
use tollgate_engine::abi::fast_paths::{
    DEVICE_DONE, DEVICE_DUE, DEVICE_EXIT, DONE_CALL_DUE, FastPathCall, msr_key,
};
use tollgate_engine::abi::sites::SiteKind;
use tollgate_engine::{Context, Engine};
use tollgate_platform::Environment as _;
use tollgate_tlb::{LookUpFor, View};
use tollgate_x86::breakpoints::DR7_GENERAL_DETECT;
use tollgate_x86::canonical::is_canonical;
use tollgate_x86::local_apic_msrs::{TSC_DEADLINE, X2APIC_FIRST, X2APIC_LAST};
use tollgate_x86::paging::Privilege;
use tollgate_x86::state::TableRegister;
use tollgate_x86::{Cr0, Cr4, Flags, Gpr, LinearAddress, Segment, Selector, Space};

/// The function that [`tollgate_engine::abi::context::groups::FastPathState::function`] points to.
///
/// # Safety
/// The context is that of the guest code that called this function, and there is no reference to
/// it. Its environment is null, or an [`Environment`] whose view no reference uses during the call.
pub(in crate::translated) unsafe extern "sysv64" fn serve(
    context: *mut Context,
    key: u64,
    value: u64,
) -> u64 {
    // SAFETY: the caller guarantees it.
    let context = unsafe { &mut *context };
    // SAFETY: the caller guarantees it.
    let environment = unsafe {
        context
            .fast_paths
            .environment
            .cast::<Environment>()
            .as_ref()
    };
    let (Some(environment), Some(call)) = (environment, FastPathCall::of_key(key)) else {
        return 0;
    };
    if matches!(call, FastPathCall::ReadMsr | FastPathCall::WriteMsr) && is_machine_msr(context) {
        // The machine's function counts its own time.
        let answer = machine_msr(context, call);
        return noted(context, call, answer);
    }
    let kind = call.routine().kind();
    // SAFETY: the environment is valid, as above; no function called from here refers to the
    // ledger.
    let begun = unsafe { &mut *environment.ledger }.begin_fast_path_call(kind);
    let answer = do_or_leave(context, environment, call, key, value);
    // SAFETY: the environment is valid, as above.
    unsafe { &mut *environment.ledger }.end_fast_path_call(begun, kind, kind);
    answer
}

/// Executes the instruction that is asked for, and returns the result for the routine.
#[inline(always)]
fn do_or_leave(
    context: &mut Context,
    environment: &Environment,
    call: FastPathCall,
    key: u64,
    value: u64,
) -> u64 {
    if call == FastPathCall::WriteCr3 {
        let is_done = space_loads::load(context, environment, value);
        context.fast_paths.counts[call.routine() as usize] += u64::from(is_done);
        return u64::from(is_done);
    }
    // SAFETY: guest code called this function, and only guest code may use what its environment
    // points to; nothing else refers to the engine while guest code runs.
    let (view, engine) = unsafe { (&mut *environment.view, &*environment.engine) };
    let answer = match call {
        FastPathCall::Execute | FastPathCall::ReadControl => {
            u64::from(execute(context, view, engine)) * DEVICE_DONE
        }
        _ => u64::from(do_call(context, view, call, key, value)) * DEVICE_DONE,
    };
    noted(context, call, answer)
}

/// Counts the instruction if it was executed. Returns the answer for the routine.
fn noted(context: &mut Context, call: FastPathCall, answer: u64) -> u64 {
    context.fast_paths.counts[call.routine() as usize] += u64::from(answer != DEVICE_EXIT);
    if answer == DEVICE_DUE {
        context.fast_paths.done = DONE_CALL_DUE;
    }
    answer
}

/// Whether ECX names a register of the machine that may be near.
fn is_machine_msr(context: &Context) -> bool {
    let index = context.cpu.gpr[Gpr::Rcx as usize] as u32;
    matches!(index, X2APIC_FIRST..=X2APIC_LAST | TSC_DEADLINE)
}

/// Executes RDMSR or WRMSR for such a register.
fn machine_msr(context: &mut Context, call: FastPathCall) -> u64 {
    let key = msr_key(matches!(call, FastPathCall::WriteMsr));
    match context.devices.function {
        // SAFETY: the machine is lent to guest code, which waits for this call to return; the
        // function is the one for the machine's type.
        Some(fast_path) => unsafe { fast_path(context, 0, key) },
        None => DEVICE_EXIT,
    }
}

fn do_call(
    context: &mut Context,
    view: &mut GuestView,
    call: FastPathCall,
    key: u64,
    value: u64,
) -> bool {
    let [_, first, second, ..] = key.to_le_bytes();
    let loaded = Some(LoadedRegister {
        size: first,
        number: second,
    });
    match call {
        FastPathCall::InvalidatePage => {
            let cpu = &context.cpu;
            let (loaded, is_long) = (Space::loaded(cpu), cpu.is_long_mode());
            (view.translations).invalidate_data(loaded, is_long, LinearAddress(value))
        }
        FastPathCall::ReadMsr => read_msr(context),
        FastPathCall::WriteMsr => write_msr(context),
        FastPathCall::WriteCr0 => operand(context, value) == context.cpu.cr0,
        FastPathCall::WriteCr4 => operand(context, value) == context.cpu.cr4,
        FastPathCall::WriteCr2 => {
            context.cpu.cr2 = operand(context, value);
            true
        }
        FastPathCall::LoadGdt | FastPathCall::LoadIdt => load_table(context, view, call, value),
        FastPathCall::StoreGdt | FastPathCall::StoreIdt => store_table(context, view, call, value),
        FastPathCall::LoadLdt => {
            let selector = Selector(value as u16);
            // Loading any other selector may affect what was derived from the table.
            selector.is_null() && context.cpu.ldtr == Segment::null(selector)
        }
        FastPathCall::WriteStatus => {
            let changing = (Cr0::MP | Cr0::EM | Cr0::TS).bits();
            // PE is set, because the processor is in protected mode, and LMSW cannot clear PE.
            (context.cpu.cr0 ^ value) & changing == 0
        }
        FastPathCall::WriteDr7 => is_open(context) && operand(context, value) == context.cpu.dr[7],
        FastPathCall::ReadDebug => read_debug(context, first, second),
        FastPathCall::LoadRights => probe(context, view, Probe::Rights, value, loaded),
        FastPathCall::LoadLimit => probe(context, view, Probe::Limit, value, loaded),
        FastPathCall::VerifyRead => probe(context, view, Probe::Read, value, None),
        FastPathCall::VerifyWrite => probe(context, view, Probe::Write, value, None),
        FastPathCall::ClearAccess | FastPathCall::SetAccess => {
            let is_offered = policy(&context.cpu).offers(CpuidFeature::SMAP);
            if is_offered {
                context.set_access_flag(call == FastPathCall::SetAccess);
            }
            is_offered
        }
        FastPathCall::Execute | FastPathCall::ReadControl | FastPathCall::WriteCr3 => false,
    }
}

/// A register's value, truncated to the operand size of the code.
fn operand(context: &Context, value: u64) -> u64 {
    match context.cpu.is_64_bit() {
        true => value,
        false => value & 0xffff_ffff,
    }
}

/// Whether debug registers can be accessed without an exception.
fn is_open(context: &Context) -> bool {
    context.cpu.dr[7] & DR7_GENERAL_DETECT == 0
}

/// Executes MOV from a debug register.
fn read_debug(context: &mut Context, debug: u8, general: u8) -> bool {
    if !is_open(context) {
        return false;
    }
    let value = operand(context, context.cpu.dr[usize::from(debug & 7)]);
    context.cpu.gpr[usize::from(general & 15)] = value;
    true
}

/// A general register that an instruction loads.
#[derive(Clone, Copy)]
struct LoadedRegister {
    /// The size of the operand in bytes.
    size: u8,
    number: u8,
}

/// Executes LAR, LSL, VERR or VERW with a selector. The first two load a register.
fn probe(
    context: &mut Context,
    view: &mut GuestView,
    what: Probe,
    selector: u64,
    loaded: Option<LoadedRegister>,
) -> bool {
    const ZERO: u16 = (Flags::ZF.bits() as u16) << 8;
    let mut memory = KnownPages { view };
    let selector = Selector(selector as u16);
    let Ok(found) = descriptor_instructions::probe(&context.cpu, &mut memory, what, selector)
    else {
        return false;
    };
    if let Some((value, loaded)) = found.zip(loaded) {
        let register = &mut context.cpu.gpr[usize::from(loaded.number & 15)];
        match loaded.size {
            2 => *register = *register & !0xffff | u64::from(value & 0xffff),
            4 | 8 => *register = value.into(),
            _ => {}
        }
    }
    // The flags have the format of LAHF; the routine restores them.
    context.strings.flags &= !ZERO;
    if found.is_some() {
        context.strings.flags |= ZERO;
    }
    true
}

/// Executes SGDT or SIDT, if CR4.UMIP allows it.
fn store_table(context: &Context, view: &mut GuestView, call: FastPathCall, address: u64) -> bool {
    let cpu = &context.cpu;
    if cpu.cpl() != 0 && cpu.cr4().contains(Cr4::UMIP) {
        return false;
    }
    let table = match call {
        FastPathCall::StoreGdt => cpu.gdtr,
        _ => cpu.idtr,
    };
    let mut image = [0; 10];
    image[..2].copy_from_slice(&table.limit.to_le_bytes());
    image[2..].copy_from_slice(&table.base.to_le_bytes());
    let bytes = if cpu.is_64_bit() { 10 } else { 6 };
    let address = LinearAddress(operand(context, address));
    let privilege = Privilege::of_cpl(cpu.cpl());
    KnownPages { view }
        .write(cpu, address, &image[..bytes], privilege)
        .is_ok()
}

fn read_msr(context: &mut Context) -> bool {
    let cpu = &mut context.cpu;
    let index = cpu.gpr[Gpr::Rcx as usize] as u32;
    let Some(value) = plain_msr::read(cpu, index) else {
        return false;
    };
    cpu.gpr[Gpr::Rax as usize] = value & 0xffff_ffff;
    cpu.gpr[Gpr::Rdx as usize] = value >> 32;
    true
}

fn write_msr(context: &mut Context) -> bool {
    let cpu = &mut context.cpu;
    let [index, low, high] =
        [Gpr::Rcx, Gpr::Rax, Gpr::Rdx].map(|register| cpu.gpr[register as usize] as u32);
    // Outside 64-bit code the bases of FS and GS are part of the mode.
    if plain_msr::is_segment_base(index) && !cpu.is_64_bit() {
        return false;
    }
    let value = u64::from(high) << 32 | u64::from(low);
    let before = plain_msr::read(cpu, index);
    if !matches!(plain_msr::write(cpu, index, value), Some(Ok(()))) {
        return false;
    }
    if changes_with(index) && before != Some(value) {
        context.forget_level_changes();
    }
    true
}

/// Executes the instruction of the named site, which changes only its operand and the arithmetic
/// flags.
fn execute(context: &mut Context, view: &mut GuestView, engine: &Engine) -> bool {
    let Some((block, _, site)) = engine.site(context.hot.exit_site, context.registers.code_slide)
    else {
        return false;
    };
    let SiteKind::Helper(helper) = site.kind else {
        return false;
    };
    let Some(helper) = engine.helper(block, helper, context.registers.code_slide) else {
        return false;
    };
    let (rip, flags) = (context.cpu.rip, context.cpu.flags);
    // Exits find the flags in `arithmetic`; fast paths have put them into `strings`.
    context.hot.arithmetic = context.strings.flags;
    let arithmetic = context.arithmetic_flags();
    let kept = !Flags::ARITHMETIC.bits();
    context.cpu.flags = flags & kept | arithmetic;
    context.cpu.rip = site.rip;
    let mut memory = KnownPages { view };
    let cpu = &mut context.cpu;
    let result = tollgate_emulate::execute(cpu, &mut memory, &helper.instruction);
    if result == Ok(Outcome::Next) {
        let shown = (cpu.flags & 0xd5) as u16;
        let overflow = u16::from(cpu.flags().contains(Flags::OF));
        context.strings.flags = shown << 8 | overflow;
    }
    (context.cpu.rip, context.cpu.flags) = (rip, flags);
    result == Ok(Outcome::Next)
}

/// Executes LGDT or LIDT with an operand that the software TLB has.
fn load_table(context: &mut Context, view: &GuestView, call: FastPathCall, address: u64) -> bool {
    let cpu = &context.cpu;
    let (bytes, linear) = match cpu.is_64_bit() {
        true => (10, LinearAddress(address)),
        false => (6, LinearAddress(address & 0xffff_ffff)),
    };
    let translations = &view.translations;
    if view.memory.has_map_changes()
        || !translations.allows(cpu, View::Supervisor, LookUpFor::Load, linear, bytes)
    {
        return false;
    }
    let Some(host) = translations.look_up(cpu, View::Supervisor, false, linear) else {
        return false;
    };
    let mut image = [0; 10];
    ram_copies::copy_from(host as *mut u8, &mut image[..bytes as usize]);
    let [limit_low, limit_high, base @ ..] = image;
    let table = TableRegister {
        base: u64::from_le_bytes(base),
        limit: u16::from_le_bytes([limit_low, limit_high]),
    };
    if !is_canonical(table.base) {
        return false;
    }
    match call {
        FastPathCall::LoadIdt => context.cpu.idtr = table,
        _ if table != context.cpu.gdtr => {
            context.cpu.gdtr = table;
            forget_descriptors(context);
        }
        _ => {}
    }
    true
}

/// Forgets the memos that depend on the descriptor table, because descriptors are read from another
/// table from now on. Noted deliveries of faults and external interrupts contain the address of
/// their table, so they need not be forgotten.
fn forget_descriptors(context: &mut Context) {
    context.note_descriptors();
    context.forget_level_changes();
    context.fast_paths.deliveries.forget();
    context.fast_paths.known_codes.forget();
    context.fast_paths.segment_loads.forget();
}
