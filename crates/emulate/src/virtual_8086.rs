//! Virtual interrupts: how CR4.VME and CR4.PVI change the instructions that are sensitive to IOPL
//! (SDM volume 3, 20.3 and 20.4; AMD's manual volume 2, 8.10).
//!
//! A program at CPL 3 with IOPL below 3 then uses EFLAGS.VIF instead of IF: in V86 mode with VME,
//! by CLI, STI and the 16-bit PUSHF, POPF, IRET and INT n; in protected mode and in both sub-modes
//! of IA-32e mode with PVI, only by CLI and STI. EFLAGS.VIP shows that an interrupt waits for VIF;
//! the processor changes VIP only where it loads all of EFLAGS. With VME, a bitmap in the TSS can
//! direct INT n to the V86 program's own vector table, at any IOPL. The table of all cases is in
//! docs/develop/virtual-8086.md.
//!
//! Functions that only decide are separate from those that change the state, so that a translator
//! can call them when it knows CR4, CPL and IOPL.

use crate::operand::read_system;
use tollgate_platform::Environment;
use tollgate_x86::descriptor::{TSS_IO_MAP_BASE, system_type};
use tollgate_x86::{CpuState, Cr4, Exception, Flags};

/// Size in bytes of the software interrupt redirection bitmap, which lies below the I/O permission
/// bitmap.
const REDIRECTION_BITMAP_SIZE: u32 = 32;

/// The flag by which a program enables and disables interrupts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InterruptFlag {
    /// The interrupt flag of the processor, EFLAGS.IF.
    Real,
    /// The virtual interrupt flag, EFLAGS.VIF.
    Virtual,
}

/// The flag that CLI and STI change (SDM volume 2, tables 3-7 and 4-19). It depends only on CR0.PE,
/// VM, CPL, IOPL, CR4.VME and CR4.PVI.
///
/// # Errors
///
/// #GP(0) if the program may change neither.
pub fn interrupt_flag(state: &CpuState) -> Result<InterruptFlag, Exception> {
    let cpl = state.cpl();
    if !state.is_protected() || cpl <= state.flags().iopl() {
        return Ok(InterruptFlag::Real);
    }
    let extension = if state.is_virtual_8086() {
        Cr4::VME
    } else {
        Cr4::PVI
    };
    if cpl == 3 && state.cr4().contains(extension) {
        Ok(InterruptFlag::Virtual)
    } else {
        Err(Exception::general_protection(0))
    }
}

/// The flag that PUSHF stores and POPF and IRET load as bit 9 of an image of `size` bytes. It does
/// not depend on PVI. Valid for IRET in real and V86 mode, and for PUSHF and POPF in any mode.
///
/// # Errors
///
/// #GP(0) in V86 mode with IOPL below 3: without VME, and with it for 32-bit images.
pub fn interrupt_flag_of_image(state: &CpuState, size: u32) -> Result<InterruptFlag, Exception> {
    if !state.is_virtual_8086() {
        return Ok(InterruptFlag::Real);
    }
    match interrupt_flag(state)? {
        InterruptFlag::Virtual if size != 2 => Err(Exception::general_protection(0)),
        flag => Ok(flag),
    }
}

/// FLAGS as a V86 program with a virtual interrupt flag sees them: VIF replaces IF, and IOPL is 3
/// (SDM volume 2, PUSHF; volume 3, table 20-2, method 6).
pub fn virtual_image(flags: Flags) -> u64 {
    let mut image = (flags - Flags::IF) | Flags::IOPL;
    image.set(Flags::IF, flags.contains(Flags::VIF));
    image.image() & 0xffff
}

/// EFLAGS after a V86 program with a virtual interrupt flag has popped the 16-bit image `popped`:
/// bit 9 is written to VIF; IF, IOPL and the upper half do not change.
///
/// # Errors
///
/// #GP(0) if TF would be set, or VIF while VIP is set: the V86 monitor has to act.
pub fn flags_after_virtual_pop(state: &CpuState, popped: u64) -> Result<Flags, Exception> {
    const CHANGED: Flags = Flags::ARITHMETIC
        .union(Flags::DF)
        .union(Flags::NT)
        .union(Flags::TF)
        .union(Flags::VIF);
    let mut popped = Flags::from_bits_truncate(popped & 0xffff);
    let enables = popped.contains(Flags::IF);
    if popped.contains(Flags::TF) || enables && state.flags().contains(Flags::VIP) {
        return Err(Exception::general_protection(0));
    }
    popped.set(Flags::VIF, enables);
    Ok((state.flags() - CHANGED) | (popped & CHANGED))
}

/// Whether a virtual interrupt is both pending and enabled for the running program, which raises
/// #GP(0) before its next instruction (SDM volume 3, 20.3.2). This can only follow instructions
/// that load all of EFLAGS or the CPL: IRET, SYSRET, SYSEXIT, RETF; POPF and STI themselves fault.
pub fn virtual_interrupt_is_due(state: &CpuState) -> bool {
    state.flags().contains(Flags::VIF | Flags::VIP)
        && interrupt_flag(state) == Ok(InterruptFlag::Virtual)
}

/// The handler of an INT n of V86 code. INT3, INTO and INT1 always use the IDT.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SoftwareInterruptHandler {
    /// The protected-mode IDT: methods 1 and 4.
    DescriptorTable,
    /// The V86 program's own vector table: methods 5 and 6.
    Program,
}

/// The handler of INT `vector` of V86 code (SDM volume 3, table 20-2).
///
/// # Errors
///
/// #GP(0) for methods 2 and 3, and for a redirection bitmap outside the TSS; a page fault of the
/// TSS.
pub fn software_interrupt_handler(
    state: &CpuState,
    environment: &mut dyn Environment,
    vector: u8,
) -> Result<SoftwareInterruptHandler, Exception> {
    let redirects =
        state.cr4().contains(Cr4::VME) && !is_for_descriptor_table(state, environment, vector)?;
    if redirects {
        Ok(SoftwareInterruptHandler::Program)
    } else if state.flags().iopl() == 3 {
        Ok(SoftwareInterruptHandler::DescriptorTable)
    } else {
        Err(Exception::general_protection(0))
    }
}

/// The bit of a vector in the software interrupt redirection bitmap of the current TSS.
///
/// # Errors
///
/// #GP(0) if there is no 32-bit TSS that contains the bit; a page fault.
fn is_for_descriptor_table(
    state: &CpuState,
    environment: &mut dyn Environment,
    vector: u8,
) -> Result<bool, Exception> {
    let refused = Exception::general_protection(0);
    let task = &state.tr;
    let kind = task.attributes.kind();
    let is_wide = matches!(kind, system_type::TSS32_AVAILABLE | system_type::TSS32_BUSY);
    if !task.is_usable() || !is_wide || u64::from(task.limit) < TSS_IO_MAP_BASE + 1 {
        return Err(refused);
    }
    let mut word = [0; 2];
    read_system(state, environment, task.base, TSS_IO_MAP_BASE, &mut word)?;
    let end = u32::from(u16::from_le_bytes(word));
    let byte = (end + u32::from(vector / 8))
        .checked_sub(REDIRECTION_BITMAP_SIZE)
        .filter(|&byte| byte <= task.limit)
        .ok_or(refused)?;
    let mut bits = [0];
    read_system(state, environment, task.base, u64::from(byte), &mut bits)?;
    Ok(bits[0] >> (vector % 8) & 1 != 0)
}

#[cfg(test)]
mod tests;
