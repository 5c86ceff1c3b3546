//! Fast paths that reach the machine without an exit: accesses to near devices
//! ([`Platform::near`]).
//!
//! The machine is lent to guest code for the time of one run. The calls come from the routine in
//! [`tollgate_engine::gate::fast_path`]. This file serves ports and model-specific registers;
//! [`super::device_memory`] serves the rest.

use crate::translated::devices::call_state::{Outcome, outcome, slot};
use crate::translated::devices::{device_memory, device_strings};
use crate::translated::misses::Environment;
use tollgate_emulate::tsc_deadline;
use tollgate_engine::Context;
use tollgate_engine::abi::fast_paths::{
    DEVICE_DONE, DEVICE_DUE, DEVICE_EXIT, FastPath, KEY_MEMORY, KEY_PORT, KEY_PORT_KNOWN,
    KEY_ROUTINE, STRING_KEY, msr_key,
};
use tollgate_exits::ExitKind;
use tollgate_platform::{NearAccess, Platform};
use tollgate_x86::local_apic_msrs::TSC_DEADLINE;
use tollgate_x86::{Flags, Gpr};

/// Lends the machine to guest code until [`take_back`], which must be called before the machine is
/// used again.
#[inline(always)]
pub(in crate::translated) fn lend<P: Platform>(context: &mut Context, machine: &mut P) {
    context.devices.machine = std::ptr::from_mut(machine).cast();
    context.devices.function = Some(device_fast_path::<P>);
}

/// Ends the loan that [`lend`] began.
#[inline(always)]
pub(in crate::translated) fn take_back(context: &mut Context) {
    context.devices.function = None;
}

/// Makes the access to the machine that a key describes, for guest code.
///
/// # Safety
/// `context` is the one that guest code runs in, whose machine is a `P` that is [lent](lend);
/// nothing else refers to either.
unsafe extern "sysv64" fn device_fast_path<P: Platform>(
    context: *mut Context,
    value: u64,
    key: u64,
) -> u64 {
    // SAFETY: the caller guarantees that the context is valid; guest code, which alone uses it
    // during this call, waits for the call to return.
    let context = unsafe { &mut *context };
    // SAFETY: the machine was lent by a reference to this type that is not used during the loan.
    let machine = unsafe { &mut *context.devices.machine.cast::<P>() };
    // SAFETY: the environment of the guest code that called this is null or valid.
    let environment = unsafe {
        context
            .fast_paths
            .environment
            .cast::<Environment>()
            .as_ref()
    };
    let Some(environment) = environment else {
        return access(context, machine, value, key);
    };
    let sort = sort_of(key);
    let stores = context.fast_paths.counts[FastPath::MmioWrite as usize];
    // SAFETY: the environment is valid, as above; no function called from here refers to the
    // ledger.
    let begun = unsafe { &mut *environment.ledger }.begin_fast_path_call(sort);
    let answer = access(context, machine, value, key);
    let kind = match context.fast_paths.counts[FastPath::MmioWrite as usize] == stores {
        true => sort,
        false => ExitKind::MmioWrite,
    };
    // SAFETY: the environment is valid, as above.
    unsafe { &mut *environment.ledger }.end_fast_path_call(begun, sort, kind);
    answer
}

/// The exit kind by which the time of a call with this key is sampled. Whether an access to memory
/// is a load or a store is not known before the access.
#[inline]
fn sort_of(key: u64) -> ExitKind {
    match key >> KEY_ROUTINE {
        number if number == FastPath::Msr as u64 => ExitKind::Msr,
        number if number == FastPath::PortIn as u64 => ExitKind::PortIn,
        number if number == FastPath::PortOut as u64 => ExitKind::PortOut,
        _ => ExitKind::MmioRead,
    }
}

/// Executes the instruction that a key describes, if its access is near.
#[inline]
fn access<P: Platform>(context: &mut Context, machine: &mut P, value: u64, key: u64) -> u64 {
    let done = match key >> KEY_ROUTINE {
        number if number == FastPath::Msr as u64 => access_msr(context, machine, key),
        _ if key == STRING_KEY => device_strings::access(context, machine),
        number if number >> (KEY_MEMORY - KEY_ROUTINE) == 0 => {
            access_port(context, machine, value, key)
        }
        _ => device_memory::access(context, machine, value, key),
    };
    let Some(is_due) = done else {
        return DEVICE_EXIT;
    };
    if is_due {
        return DEVICE_DUE;
    }
    if machine.interrupt_pending() {
        // Guest code leaves when it lets in the interrupt that waits.
        context.hot.interrupt_request = Flags::IF.bits();
        if context.hot.interrupt_flag != 0 {
            return DEVICE_DUE;
        }
    }
    DEVICE_DONE
}

/// Executes IN or OUT. Returns whether more work is due, or `None` if no access was made.
#[inline]
fn access_port<P: Platform>(
    context: &mut Context,
    machine: &mut P,
    value: u64,
    key: u64,
) -> Option<bool> {
    let number = (key >> KEY_ROUTINE) as usize;
    let size = (key & 7) as u8;
    let used = u64::MAX >> (64 - u32::from(size) * 8);
    let port = match key >> KEY_PORT_KNOWN & 1 {
        0 => value as u16,
        _ => (key >> KEY_PORT & 0xff) as u16,
    };
    let rax = *slot(context, Gpr::Rax);
    let is_read = number == FastPath::PortIn as usize;
    let access = match is_read {
        true => NearAccess::PortRead { port, size },
        false => NearAccess::PortWrite {
            port,
            size,
            value: (rax & used) as u32,
        },
    };
    let Outcome { read, is_due } = outcome(machine.near(access))?;
    context.fast_paths.counts[number] += 1;
    if is_read {
        // A result of 4 bytes clears the upper half of the register.
        let kept = if size == 4 { 0 } else { rax & !used };
        *slot(context, Gpr::Rax) = kept | read & used;
    }
    Some(is_due)
}

/// Executes RDMSR or WRMSR. Returns whether more work is due, or `None` if no access was made.
#[inline]
fn access_msr<P: Platform>(context: &mut Context, machine: &mut P, key: u64) -> Option<bool> {
    let cpu = &mut context.cpu;
    let [index, low, high] =
        [Gpr::Rcx, Gpr::Rax, Gpr::Rdx].map(|register| cpu.gpr[register as usize] as u32);
    if key == msr_key(true) {
        let mut value = u64::from(high) << 32 | u64::from(low);
        if index == TSC_DEADLINE {
            value = tsc_deadline::of_machine(cpu, machine.time_stamp(), value);
        }
        let done = outcome(machine.near(NearAccess::MsrWrite(index, value)))?;
        return Some(done.is_due);
    }
    let Outcome { read, is_due } = outcome(machine.near(NearAccess::MsrRead(index)))?;
    cpu.gpr[Gpr::Rax as usize] = read & 0xffff_ffff;
    cpu.gpr[Gpr::Rdx as usize] = read >> 32;
    Some(is_due)
}
