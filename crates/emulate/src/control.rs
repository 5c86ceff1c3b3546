//! Control and debug registers, caches, HLT (SDM volume 3, 2.5 and 2.8).

use crate::Outcome;
use crate::cpuid::policy;
use crate::operand::{read_register, require_cpl0, write_register};
use iced_x86::{Instruction, Register};
use tollgate_platform::Environment;
use tollgate_x86::breakpoints::{DR6_ACCESS_DETECTED, DR7_GENERAL_DETECT};
use tollgate_x86::descriptor::system_type;
use tollgate_x86::paging::{PHYSICAL_ADDRESS_BITS, pdpte_is_invalid};
use tollgate_x86::translation_change::{CR3_KEEPS, CR3_PCID};
use tollgate_x86::{
    CpuState, Cr0, Cr4, Efer, Exception, PhysicalAddress, Space, TranslationChange, Vector,
};

/// CR0 bits that keep the written value; the others read as zero, except ET, which reads as one.
const CR0_WRITABLE: Cr0 = Cr0::PE
    .union(Cr0::MP)
    .union(Cr0::EM)
    .union(Cr0::TS)
    .union(Cr0::NE)
    .union(Cr0::WP)
    .union(Cr0::AM)
    .union(Cr0::NW)
    .union(Cr0::CD)
    .union(Cr0::PG);

/// CR4 bits whose change drops all translations, global ones too (SDM volume 3, 4.10.4.1).
const CR4_FLUSHING: Cr4 = Cr4::PSE
    .union(Cr4::PAE)
    .union(Cr4::PGE)
    .union(Cr4::SMEP)
    .union(Cr4::SMAP)
    .union(Cr4::PKE)
    .union(Cr4::PKS);

/// CR3 bits that 4-level paging reserves: those above the physical address width
/// (SDM volume 3, table 4-12).
const CR3_RESERVED: u64 = !((1 << PHYSICAL_ADDRESS_BITS) - 1);

/// CR3 bits that locate the PDPTE table of PAE paging (SDM volume 3, table 4-7).
const CR3_PDPTE_TABLE: u64 = 0xffff_ffe0;

/// The bits of DR6 that are writable, and those that read as ones (SDM volume 3, 18.2.3).
const DR6_WRITABLE: u64 = 0xe00f;
const DR6_ONES: u64 = 0xffff_0ff0;
/// The bits of DR7 that are writable, and those that read as ones.
const DR7_WRITABLE: u64 = 0xffff_23ff;
const DR7_ONES: u64 = 0x400;

fn refused<T>() -> Result<T, Exception> {
    Err(Exception::general_protection(0))
}

/// Reads and checks the four PDPTEs (SDM volume 3, 4.4.1).
fn read_pdptes(
    state: &CpuState,
    environment: &mut dyn Environment,
    cr3: u64,
) -> Result<[u64; 4], Exception> {
    let table = cr3 & CR3_PDPTE_TABLE;
    let mut entries = [0; 4];
    for (index, entry) in entries.iter_mut().enumerate() {
        let address = (table + index as u64 * 8) & state.a20_mask;
        *entry = environment.read_physical_u64(PhysicalAddress(address));
        if pdpte_is_invalid(*entry) {
            return refused();
        }
    }
    Ok(entries)
}

/// Whether these registers select PAE paging.
fn uses_pae_paging(cr0: Cr0, cr4: Cr4, efer: Efer) -> bool {
    cr0.contains(Cr0::PG) && cr4.contains(Cr4::PAE) && !efer.contains(Efer::LME)
}

/// Whether paging may be enabled while EFER.LME is set, which activates IA-32e mode (SDM volume 3,
/// 10.8.5).
fn may_enter_long_mode(state: &CpuState) -> bool {
    let task = state.tr.attributes.kind();
    let has_narrow_task = state.tr.is_usable()
        && matches!(task, system_type::TSS16_AVAILABLE | system_type::TSS16_BUSY);
    state.cr4().contains(Cr4::PAE) && !state.cs().attributes.is_long_code() && !has_narrow_task
}

/// Sets CR0 as MOV CR0 does; also used for LMSW. Enabling or disabling paging while EFER.LME is set
/// enters or leaves IA-32e mode.
///
/// # Errors
///
/// #GP(0) for paging without protection, NW without CD, bits above 31, or an invalid PDPTE; with
/// EFER.LME
/// for paging without PAE, with CS.L or with a 16-bit TSS; for disabling paging in 64-bit mode or
/// with CR4.PCIDE.
pub fn set_cr0(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    value: u64,
) -> Result<(), Exception> {
    if value >> 32 != 0 {
        return refused();
    }
    let new = Cr0::from_bits_retain(value) & CR0_WRITABLE | Cr0::ET;
    if new.contains(Cr0::PG) && !new.contains(Cr0::PE)
        || new.contains(Cr0::NW) && !new.contains(Cr0::CD)
    {
        return refused();
    }
    let changed = new ^ state.cr0();
    let mut efer = state.efer();
    if changed.contains(Cr0::PG) && efer.contains(Efer::LME) {
        let enters = new.contains(Cr0::PG);
        let allowed = if enters {
            may_enter_long_mode(state)
        } else {
            !state.is_64_bit() && !state.cr4().contains(Cr4::PCIDE)
        };
        if !allowed {
            return refused();
        }
        efer.set(Efer::LMA, enters);
    }
    let reload = changed.intersects(Cr0::PG | Cr0::CD | Cr0::NW)
        && uses_pae_paging(new, state.cr4(), state.efer());
    if reload {
        state.pdpte = read_pdptes(state, environment, state.cr3)?;
    }
    state.cr0 = new.bits();
    state.efer = efer.bits();
    // Cached translations depend on WP.
    if changed.intersects(Cr0::PG | Cr0::WP) {
        environment.translations_changed(state, TranslationChange::Everything);
    }
    Ok(())
}

/// Sets CR3 as MOV CR3 does, without stopping in between.
///
/// # Errors
///
/// Those of [`load_cr3`].
pub fn set_cr3(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    value: u64,
) -> Result<(), Exception> {
    load_cr3(state, environment, value, false).map(|_| ())
}

/// MOV to CR3. If it `may_stop`, it stops between two steps of its preparation when something else
/// is due, before it has changed anything.
///
/// With CR4.PCIDE, bit 63 permits to keep the translations of the new process-context identifier.
///
/// # Errors
///
/// #GP(0) for an invalid PDPTE under PAE paging, or a reserved bit in IA-32e mode.
fn load_cr3(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    value: u64,
    may_stop: bool,
) -> Result<Outcome, Exception> {
    let keeps = state.cr4().contains(Cr4::PCIDE) && value & CR3_KEEPS != 0;
    let value = if keeps { value & !CR3_KEEPS } else { value };
    if state.is_long_mode() && value & CR3_RESERVED != 0 {
        return refused();
    }
    let pdpte = match uses_pae_paging(state.cr0(), state.cr4(), state.efer()) {
        true => Some(read_pdptes(state, environment, value)?),
        false => None,
    };
    let (from, to) = (Space::loaded(state), Space::of_cr3(state, value));
    let change = TranslationChange::Load { from, to, keeps };
    if may_stop && !environment.prepare_change(state, change) {
        return Ok(Outcome::Repeat);
    }
    if let Some(pdpte) = pdpte {
        state.pdpte = pdpte;
    }
    state.cr3 = value;
    environment.translations_changed(state, change);
    Ok(Outcome::Next)
}

/// Sets CR4 as MOV CR4 does.
///
/// # Errors
///
/// #GP(0) for a bit that CPUID does not offer, an invalid PDPTE, or disabling PAE in IA-32e mode;
/// for
/// setting PCIDE outside IA-32e mode, or while the low bits of CR3 are not zero.
pub fn set_cr4(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    value: u64,
) -> Result<(), Exception> {
    let new = Cr4::from_bits_retain(value);
    let leaves_pae = state.is_long_mode() && !new.contains(Cr4::PAE);
    if leaves_pae || !policy(state).cr4_mask().contains(new) {
        return refused();
    }
    let changed = new ^ state.cr4();
    let sets_pcide = (changed & new).contains(Cr4::PCIDE);
    if sets_pcide && (!state.is_long_mode() || state.cr3 & CR3_PCID != 0) {
        return refused();
    }
    let clears_pcide = (changed & state.cr4()).contains(Cr4::PCIDE);
    let flushes = changed.intersects(CR4_FLUSHING) || clears_pcide;
    if flushes && uses_pae_paging(state.cr0(), new, state.efer()) {
        state.pdpte = read_pdptes(state, environment, state.cr3)?;
    }
    state.cr4 = new.bits();
    if flushes {
        environment.translations_changed(state, TranslationChange::Everything);
    }
    Ok(())
}

/// MOV to a control register. CR8 is the task priority of the local APIC.
///
/// # Errors
///
/// #UD for CR1, CR5 and above, and for CR8 outside 64-bit mode; #GP(0) above CPL 0, for reserved
/// bits of
/// CR8, and as documented for the functions that set each register.
pub fn write_control(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let register = instruction.op0_register();
    let value = read_register(state, instruction.op1_register());
    match register {
        Register::CR0 | Register::CR2 | Register::CR3 | Register::CR4 => {}
        Register::CR8 if state.is_64_bit() => {}
        _ => return Err(Exception::invalid_opcode()),
    }
    require_cpl0(state)?;
    match register {
        Register::CR0 => set_cr0(state, environment, value)?,
        Register::CR2 => state.cr2 = value,
        Register::CR3 => return load_cr3(state, environment, value, true),
        Register::CR8 if value > 15 => return refused(),
        Register::CR8 => environment.machine(|machine| machine.set_task_priority(value as u8)),
        _ => set_cr4(state, environment, value)?,
    }
    Ok(Outcome::Next)
}

/// MOV from a control register.
///
/// # Errors
///
/// #UD for CR1, CR5 and above, and for CR8 outside 64-bit mode; #GP(0) above CPL 0.
pub fn read_control(
    state: &mut CpuState,
    environment: &mut dyn Environment,
    instruction: &Instruction,
) -> Result<Outcome, Exception> {
    let value = match instruction.op1_register() {
        Register::CR0 => state.cr0,
        Register::CR2 => state.cr2,
        Register::CR3 => state.cr3,
        Register::CR4 => state.cr4,
        Register::CR8 if state.is_64_bit() => {
            require_cpl0(state)?;
            u64::from(environment.machine(|machine| machine.task_priority()))
        }
        _ => return Err(Exception::invalid_opcode()),
    };
    require_cpl0(state)?;
    write_register(state, instruction.op0_register(), value);
    Ok(Outcome::Next)
}

/// The number of a debug register. DR4 and DR5 are aliases of DR6 and DR7 unless CR4.DE is set.
fn debug_register(state: &CpuState, register: Register) -> Result<usize, Exception> {
    let number = register.number();
    match number {
        8.. => Err(Exception::invalid_opcode()),
        4 | 5 if state.cr4().contains(Cr4::DE) => Err(Exception::invalid_opcode()),
        4 | 5 => Ok(number + 2),
        _ => Ok(number),
    }
}

/// With DR7.GD, an access to the debug registers raises #DB (SDM volume 3, 18.2.4).
fn detect_access(state: &CpuState) -> Result<(), Exception> {
    if state.dr[7] & DR7_GENERAL_DETECT == 0 {
        Ok(())
    } else {
        Err(Exception::new(Vector::Debug))
    }
}

/// Sets DR6 after an instruction has raised #DB, which only general detect does, and clears DR7.GD
/// so that the handler can access the registers.
pub fn note_detected_access(state: &mut CpuState) {
    state.dr[7] &= !DR7_GENERAL_DETECT;
    state.report_debug_conditions(DR6_ACCESS_DETECTED);
}

/// MOV to a debug register.
///
/// # Errors
/// #GP(0) above CPL 0, and for DR6 and DR7 with bits above 31; #UD for DR4 and DR5 with
/// CR4.DE, and above DR7; #DB with DR7.GD.
pub fn write_debug(state: &mut CpuState, instruction: &Instruction) -> Result<Outcome, Exception> {
    let number = debug_register(state, instruction.op0_register())?;
    require_cpl0(state)?;
    detect_access(state)?;
    let value = read_register(state, instruction.op1_register());
    if number >= 6 && value >> 32 != 0 {
        return refused();
    }
    state.dr[number] = match number {
        6 => value & DR6_WRITABLE | DR6_ONES,
        7 => value & DR7_WRITABLE | DR7_ONES,
        _ => value,
    };
    Ok(Outcome::Next)
}

/// MOV from a debug register.
///
/// # Errors
/// #GP(0) above CPL 0; #UD for DR4 and DR5 with CR4.DE.
pub fn read_debug(state: &mut CpuState, instruction: &Instruction) -> Result<Outcome, Exception> {
    let number = debug_register(state, instruction.op1_register())?;
    require_cpl0(state)?;
    detect_access(state)?;
    let value = state.dr[number];
    write_register(state, instruction.op0_register(), value);
    Ok(Outcome::Next)
}

/// CLTS: clears CR0.TS.
///
/// # Errors
///
/// #GP(0) above CPL 0.
pub fn clear_task_switched(state: &mut CpuState) -> Result<Outcome, Exception> {
    require_cpl0(state)?;
    state.cr0 &= !Cr0::TS.bits();
    Ok(Outcome::Next)
}

/// INVD and WBINVD do nothing: the guest's caches are the host's, which are coherent.
///
/// # Errors
///
/// #GP(0) above CPL 0.
pub fn invalidate_caches(state: &CpuState) -> Result<Outcome, Exception> {
    require_cpl0(state)?;
    Ok(Outcome::Next)
}

/// HLT: the processor waits for an interrupt.
///
/// # Errors
///
/// #GP(0) above CPL 0.
pub fn halt(state: &CpuState) -> Result<Outcome, Exception> {
    require_cpl0(state)?;
    Ok(Outcome::Halted)
}

#[cfg(test)]
mod long_tests;
#[cfg(test)]
mod tests;
