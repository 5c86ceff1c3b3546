//! What leaves call to reach the machine: accesses that are near ([`Platform::near`]).
//!
//! Guest code has the machine lent for the time of one run. The calls come from the routine
//! in [`tollgate_engine::gate::leaf`].

use crate::running::Running;
use crate::translated::Translated;
use iced_x86::{Code, Register};
use tollgate_emulate::operand::system_mask;
use tollgate_emulate::tsc_deadline;
use tollgate_engine::Context;
use tollgate_engine::abi::leaves::{
    DEVICE_ACCESSES, DEVICE_DONE, DEVICE_DUE, DEVICE_EXIT, DeviceAccess, KEY_MEMORY, KEY_PORT,
    KEY_PORT_KNOWN, KEY_ROUTINE, LeafRoutine, NO_REGISTER, msr_key,
};
use tollgate_engine::abi::sites::{BlockId, Site};
use tollgate_engine::policy::mode::ModeFlags;
use tollgate_platform::{Near, NearAccess, Platform};
use tollgate_x86::local_apic_msrs::TSC_DEADLINE;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{Flags, Gpr, LinearAddress, PhysicalAddress};

/// Lets guest code reach the machine until [`take_back`], which must be called before the
/// machine is used again.
#[inline(always)]
pub(super) fn lend<P: Platform>(context: &mut Context, machine: &mut P) {
    context.machine = std::ptr::from_mut(machine).cast();
    context.device_leaf = Some(device_leaf::<P>);
}

/// Ends what [`lend`] began.
#[inline(always)]
pub(super) fn take_back(context: &mut Context) {
    context.device_leaf = None;
}

/// # Safety
/// `context` is the one that guest code runs in, whose machine is a `P` that is
/// [lent](lend); nothing else refers to either.
unsafe extern "sysv64" fn device_leaf<P: Platform>(
    context: *mut Context,
    value: u64,
    key: u64,
) -> u64 {
    // SAFETY: the caller vouches for the context: guest code, which alone uses it meanwhile, waits
    // for this call to return.
    let context = unsafe { &mut *context };
    // SAFETY: the machine was lent by a reference to this type that is not used meanwhile.
    let machine = unsafe { &mut *context.machine.cast::<P>() };
    access(context, machine, value, key)
}

/// The slot where the routine keeps a general register during the call.
fn slot(context: &mut Context, register: Gpr) -> &mut u64 {
    context.slot_mut(register as u8)
}

/// Does the instruction that a key tells, if its access is near.
#[inline]
fn access<P: Platform>(context: &mut Context, machine: &mut P, value: u64, key: u64) -> u64 {
    let done = match key >> KEY_ROUTINE {
        number if number == LeafRoutine::Msr as u64 => access_msr(context, machine, key),
        number if number >> (KEY_MEMORY - KEY_ROUTINE) == 0 => {
            access_port(context, machine, value, key)
        }
        _ => access_memory(context, machine, value, key),
    };
    let Some(is_due) = done else {
        return DEVICE_EXIT;
    };
    if is_due {
        return DEVICE_DUE;
    }
    if machine.interrupt_pending() {
        // Guest code leaves when it lets in what waits.
        context.interrupt_request = Flags::IF.bits();
        if context.interrupt_flag != 0 {
            return DEVICE_DUE;
        }
    }
    DEVICE_DONE
}

/// What was read, and whether more is due. `None`: nothing was done.
fn outcome(near: Near) -> Option<(u64, bool)> {
    match near {
        Near::No => None,
        Near::Done(read) => Some((read, false)),
        Near::DoneAndDue(read) => Some((read, true)),
    }
}

/// IN or OUT. Whether more is due; `None`: nothing was done.
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
    let is_read = number == LeafRoutine::PortIn as usize;
    let access = match is_read {
        true => NearAccess::PortRead { port, size },
        false => NearAccess::PortWrite {
            port,
            size,
            value: (rax & used) as u32,
        },
    };
    let (read, is_due) = outcome(machine.near(access))?;
    context.leaf_counts[number] += 1;
    if is_read {
        // A doubleword clears what is above it.
        let kept = if size == 4 { 0 } else { rax & !used };
        *slot(context, Gpr::Rax) = kept | read & used;
    }
    Some(is_due)
}

/// RDMSR or WRMSR. Whether more is due; `None`: nothing was done.
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
        let (_, is_due) = outcome(machine.near(NearAccess::MsrWrite(index, value)))?;
        return Some(is_due);
    }
    let (value, is_due) = outcome(machine.near(NearAccess::MsrRead(index)))?;
    cpu.gpr[Gpr::Rax as usize] = value & 0xffff_ffff;
    cpu.gpr[Gpr::Rdx as usize] = value >> 32;
    Some(is_due)
}

/// MOV from or to the device's page, as an entry of the context says. Whether more is due;
/// `None`: nothing was done.
#[inline]
fn access_memory<P: Platform>(
    context: &mut Context,
    machine: &mut P,
    linear: u64,
    key: u64,
) -> Option<bool> {
    // Others may reach into the next page.
    if !linear.is_multiple_of(4) {
        return None;
    }
    let DeviceAccess {
        writes,
        register,
        constant,
        ..
    } = context.device_accesses[key as usize % DEVICE_ACCESSES];
    let place = PhysicalAddress(context.device_frame | linear & 0xfff);
    let (access, routine) = if writes {
        let value = match register {
            NO_REGISTER => constant,
            register => *context.slot_mut(register) as u32,
        };
        (
            NearAccess::MemoryWrite(place, value),
            LeafRoutine::MmioWrite,
        )
    } else {
        (NearAccess::MemoryRead(place), LeafRoutine::MmioRead)
    };
    let (read, is_due) = outcome(machine.near(access))?;
    context.leaf_counts[routine as usize] += 1;
    if !writes {
        *context.slot_mut(register) = read & 0xffff_ffff;
    }
    Some(is_due)
}

impl<P: Platform> Running<'_, Translated, P> {
    /// An instruction of this site, which accesses 4 bytes of memory, was executed out of line.
    /// If that was a device's register that is near, leaves do it from now on. `missed` is the
    /// site as the exit named it, and the linear address.
    pub(crate) fn note_device_access(
        &mut self,
        (block, site): (BlockId, &Site),
        missed: (u32, LinearAddress),
        writes: bool,
    ) {
        let Some(near) = self.platform.near_page() else {
            return;
        };
        let mode = self.runner.engine.mode(self.runner.mode);
        let is_kernel =
            mode.flags.contains(ModeFlags::KERNEL) || !mode.flags.contains(ModeFlags::PROTECTED);
        if !is_kernel || mode.is_watched() {
            return;
        }
        let next_rip = self.runner.context.cpu.rip;
        let place = (site.rip, self.runner.context.code_delta);
        let memory = &self.view.memory;
        let Some(noted) = self.runner.engine.out_of_line(block, place, memory) else {
            return;
        };
        let instruction = noted.helper.instruction;
        let (register, constant) = match instruction.code() {
            Code::Mov_r32_rm32 => (instruction.op0_register(), 0),
            Code::Mov_rm32_r32 => (instruction.op1_register(), 0),
            Code::Mov_EAX_moffs32 | Code::Mov_moffs32_EAX => (Register::EAX, 0),
            Code::Mov_rm32_imm32 => (Register::None, instruction.immediate32()),
            _ => return,
        };
        if register == Register::ESP {
            return;
        }
        let kind = if writes {
            AccessKind::Write
        } else {
            AccessKind::Read
        };
        let cpu = &self.runner.context.cpu;
        let linear = LinearAddress(missed.1.0 & system_mask(cpu));
        let Ok(found) = self.view.walk(cpu, linear, kind, Privilege::Supervisor) else {
            return;
        };
        if found.physical.0 & !0xfff != near.0 {
            return;
        }
        let Translated {
            engine, context, ..
        } = self.runner;
        (self.view.translations).note_device(linear, &found, engine.as_mut());
        let access = DeviceAccess {
            site: missed.0,
            writes,
            register: match register {
                Register::None => NO_REGISTER,
                register => register.number() as u8,
            },
            constant,
            behind: 0,
            next_rip,
        };
        engine.note_device_access(context, (linear, &found), (block, site), access);
    }
}
