//! What leaves call to reach the machine: accesses that are near ([`Platform::near`]).
//!
//! Guest code has the machine lent for the time of one run. The calls come from the routine
//! in [`tollgate_engine::gate::leaf`].

use crate::running::Running;
use crate::translated::Translated;
use crate::translated::misses::Environment;
use iced_x86::{Code, Instruction, OpKind, Register};
use tollgate_emulate::operand::system_mask;
use tollgate_emulate::tsc_deadline;
use tollgate_engine::Context;
use tollgate_engine::abi::leaves::{
    ADVANCES_16, ADVANCES_32, DEVICE_ACCESSES, DEVICE_DONE, DEVICE_DUE, DEVICE_EXIT, DISPLAY,
    DISPLAY_WINDOW_SHIFT, DeviceAccess, HIGH_BYTE, KEY_MEMORY, KEY_PORT, KEY_PORT_KNOWN,
    KEY_ROUTINE, LeafRoutine, NO_REGISTER, msr_key,
};
use tollgate_engine::abi::sites::{BlockId, Site};
use tollgate_engine::policy::mode::ModeFlags;
use tollgate_platform::{DISPLAY_WINDOW, Near, NearAccess, Platform};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::canonical::is_canonical_range;
use tollgate_x86::local_apic_msrs::TSC_DEADLINE;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{Flags, Gpr, LinearAddress, PhysicalAddress};

const _: () = assert!(1 << DISPLAY_WINDOW_SHIFT == DISPLAY_WINDOW);

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

/// MOV, LODS or STOS of device memory, as an entry of the context says. Whether more is due;
/// `None`: nothing was done.
#[inline]
fn access_memory<P: Platform>(
    context: &mut Context,
    machine: &mut P,
    linear: u64,
    key: u64,
) -> Option<bool> {
    let noted = context.device_accesses[key as usize % DEVICE_ACCESSES];
    let DeviceAccess { writes, size, .. } = noted;
    let page = linear / PAGE_SIZE;
    // Others reach into the next page.
    if linear % PAGE_SIZE > PAGE_SIZE - u64::from(size) {
        return None;
    }
    let address = match context.device_page == page.wrapping_neg() {
        true => PhysicalAddress(context.device_frame | (linear % PAGE_SIZE)),
        false if context.cpu.is_paging() => display_place(context, machine, linear, &noted)?,
        false => PhysicalAddress(linear),
    };
    let used = u64::MAX >> (64 - 8 * u32::from(size));
    let (access, routine) = if writes {
        let value = match noted.register {
            NO_REGISTER => noted.constant.into(),
            register if noted.form & HIGH_BYTE != 0 => *context.slot_mut(register) >> 8,
            register => *context.slot_mut(register),
        };
        let value = (value & used) as u32;
        let access = NearAccess::MemoryWrite {
            address,
            size,
            value,
        };
        (access, LeafRoutine::MmioWrite)
    } else {
        let access = NearAccess::MemoryRead { address, size };
        (access, LeafRoutine::MmioRead)
    };
    let (read, is_due) = outcome(machine.near(access))?;
    context.leaf_counts[routine as usize] += 1;
    if !writes {
        let register = context.slot_mut(noted.register);
        *register = match (size, noted.form & HIGH_BYTE) {
            // A doubleword clears what is above it.
            (4, _) => read & used,
            (_, 0) => *register & !used | read & used,
            _ => *register & !0xff00 | (read & used) << 8,
        };
    }
    advance_pointer(context, &noted);
    Some(is_due)
}

/// Where in display memory a linear address leads by the guest's page tables of now. `None`: elsewhere,
/// to a fault, or not without more to do.
fn display_place<P: Platform>(
    context: &mut Context,
    machine: &P,
    linear: u64,
    noted: &DeviceAccess,
) -> Option<PhysicalAddress> {
    let window = machine.near_display()?.0;
    let cpu = &context.cpu;
    if noted.form & DISPLAY == 0
        || cpu.is_long_mode() && !is_canonical_range(linear, noted.size.into())
    {
        return None;
    }
    // SAFETY: this was called from guest code, which alone may use what its environment leads to;
    // what it leads to is not the machine.
    let view = unsafe {
        let environment = context.leaf_environment.cast::<Environment>().as_ref()?;
        &mut *environment.view
    };
    let linear = LinearAddress(linear & system_mask(cpu));
    let privilege = Privilege::of_cpl(cpu.cpl());
    let found = view
        .walk(cpu, linear, kind_of(noted.writes), privilege)
        .ok()?;
    // The walk may have set bits in a page table that holds code.
    let is_due = view.memory.has_code_writes() || view.memory.has_map_changes();
    let is_inside = (window..window + DISPLAY_WINDOW).contains(&found.physical.0);
    (is_inside && !is_due).then_some(found.physical)
}

fn kind_of(writes: bool) -> AccessKind {
    match writes {
        true => AccessKind::Write,
        false => AccessKind::Read,
    }
}

/// Advances the pointer of LODS or STOS.
fn advance_pointer(context: &mut Context, noted: &DeviceAccess) {
    let changed = match noted.form & (ADVANCES_16 | ADVANCES_32) {
        ADVANCES_16 => 0xffff,
        ADVANCES_32 => 0xffff_ffff,
        _ => return,
    };
    let by = context.direction.wrapping_mul(noted.size.into()) as u64;
    let register = match noted.writes {
        true => Gpr::Rdi,
        false => Gpr::Rsi,
    };
    let pointer = slot(context, register);
    *pointer = *pointer & !changed | pointer.wrapping_add(by) & changed;
}

/// What an instruction does with device memory, if leaves can do it: as an entry of the context has
/// it, without places.
fn described(instruction: &Instruction, writes: bool) -> Option<DeviceAccess> {
    let (register, constant) = match instruction.code() {
        Code::Mov_r32_rm32 | Code::Mov_r16_rm16 | Code::Mov_r8_rm8 => {
            (instruction.op0_register(), 0)
        }
        Code::Mov_rm32_r32 | Code::Mov_rm16_r16 | Code::Mov_rm8_r8 => {
            (instruction.op1_register(), 0)
        }
        Code::Mov_EAX_moffs32 | Code::Mov_moffs32_EAX => (Register::EAX, 0),
        Code::Mov_AX_moffs16 | Code::Mov_moffs16_AX => (Register::AX, 0),
        Code::Mov_AL_moffs8 | Code::Mov_moffs8_AL => (Register::AL, 0),
        Code::Mov_rm32_imm32 | Code::Mov_rm16_imm16 | Code::Mov_rm8_imm8 => {
            (Register::None, instruction.immediate(1) as u32)
        }
        Code::Stosb_m8_AL | Code::Lodsb_AL_m8 => (Register::AL, 0),
        Code::Stosw_m16_AX | Code::Lodsw_AX_m16 => (Register::AX, 0),
        Code::Stosd_m32_EAX | Code::Lodsd_EAX_m32 => (Register::EAX, 0),
        _ => return None,
    };
    if register.full_register32() == Register::ESP || instruction.has_rep_prefix() {
        return None;
    }
    let is_high = matches!(
        register,
        Register::AH | Register::BH | Register::CH | Register::DH
    );
    let mut form = if is_high { HIGH_BYTE } else { 0 };
    for index in 0..2 {
        form |= match instruction.op_kind(index) {
            OpKind::MemorySegSI | OpKind::MemoryESDI => ADVANCES_16,
            OpKind::MemorySegESI | OpKind::MemoryESEDI => ADVANCES_32,
            OpKind::MemorySegRSI | OpKind::MemoryESRDI => return None,
            _ => 0,
        };
    }
    Some(DeviceAccess {
        writes,
        register: match register {
            Register::None => NO_REGISTER,
            register => register.full_register().number() as u8 - 4 * u8::from(is_high),
        },
        size: instruction.memory_size().size() as u8,
        form,
        constant,
        ..DeviceAccess::NONE
    })
}

impl<P: Platform> Running<'_, Translated, P> {
    /// An instruction of this site, which accesses memory, was executed out of line. If that was a
    /// device's register that is near, or display memory, leaves do it from now on. `missed` is the
    /// site as the exit named it, and the linear address.
    pub(crate) fn note_device_access(
        &mut self,
        (block, site): (BlockId, &Site),
        missed: (u32, LinearAddress),
        writes: bool,
    ) {
        let linear = LinearAddress(missed.1.0 & system_mask(&self.runner.context.cpu));
        let is_display = self.is_display(linear, writes);
        let near = match is_display {
            true => None,
            false => self.platform.near_page(),
        };
        let mode = self.runner.engine.mode(self.runner.mode);
        let is_kernel =
            mode.flags.contains(ModeFlags::KERNEL) || !mode.flags.contains(ModeFlags::PROTECTED);
        if !is_display && (near.is_none() || !is_kernel) || mode.is_watched() {
            return;
        }
        let next_rip = self.runner.context.cpu.rip;
        let place = (site.rip, self.runner.context.code_delta);
        let memory = &self.view.memory;
        let Some(noted) = self.runner.engine.out_of_line(block, place, memory) else {
            return;
        };
        let Some(described) = described(&noted.helper.instruction, writes) else {
            return;
        };
        let access = DeviceAccess {
            site: missed.0,
            next_rip,
            ..described
        };
        if is_display {
            let Translated {
                engine, context, ..
            } = self.runner;
            let place = (linear, context.cpu.is_paging());
            return engine.note_display_access(context, place, (block, site), access);
        }
        let kind = kind_of(writes);
        let cpu = &self.runner.context.cpu;
        let Ok(found) = self.view.walk(cpu, linear, kind, Privilege::Supervisor) else {
            return;
        };
        if Some(PhysicalAddress(found.physical.0 & !0xfff)) != near {
            return;
        }
        let Translated {
            engine, context, ..
        } = self.runner;
        (self.view.translations).note_device(linear, &found, engine.as_mut());
        engine.note_device_access(context, (linear, &found), (block, site), access);
    }

    /// Whether display memory that may be near lies where an access has just been made.
    fn is_display(&mut self, linear: LinearAddress, writes: bool) -> bool {
        let Some(window) = self.platform.near_display() else {
            return false;
        };
        let cpu = &self.runner.context.cpu;
        let privilege = Privilege::of_cpl(cpu.cpl());
        let found = self.view.walk(cpu, linear, kind_of(writes), privilege);
        let window = window.0..window.0 + DISPLAY_WINDOW;
        // Without paging address line 20 may make another one of it.
        found.is_ok_and(|found| {
            window.contains(&found.physical.0) && (cpu.is_paging() || found.physical.0 == linear.0)
        })
    }
}
