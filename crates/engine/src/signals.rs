//! The signal handlers: requests to leave guest code, and host faults in guest code.
//!
//! A handler recognises guest code by the program counter. If it finds the program counter in a
//! code cache, it looks up the exact guest position, corrects the registers in the signal frame and
//! lets the thread continue at the exit path, so that [`crate::gate::entry::enter`] returns as if
//! the guest had left by itself. If the thread is on its way into guest code, the handler rewinds
//! it. Anywhere else a request only sets `pending`. A fault anywhere else is a bug: the handler
//! restores the action that was installed before ours and lets the instruction run again, so that
//! the process dies with a core dump of the right place, or the earlier handler (of a fuzzer or a
//! sanitizer) sees the fault.
//!
//! A request may arrive between stores that belong together, where the guest is at no boundary
//! ([`Restore::UNDIVIDED`]). The thread completes them in less than a microsecond, so the request
//! of a timer is sent again a little later. For other requests the handler has the thread trap
//! after each further host instruction until the stores are complete, which takes ten microseconds
//! for each instruction.
//!
//! Handlers find the context without thread-local storage: in guest code and in the entry sequence
//! R15 points to the context, and the signal of a request carries the address of `pending` as its
//! value.

use crate::abi::context::{BIAS, ByAnchor, Context, SignalExit};
use crate::abi::far_pointer::FarPointer;
use crate::abi::flags::InterruptFlag;
use crate::abi::register_map::{CONTEXT, Home, RegisterMap};
use crate::abi::signal_completion::CompletionKind;
use crate::abi::sites::SITE_SIGNAL;
use crate::abi::state_map::{Restore, Source};
use crate::gate::{entry, fast_path, interrupted_string, store_check};
use crate::policy::virtual_interrupts::{TASK_SWITCH, TRAP};
use crate::position::GuestPosition;
use crate::requests::Requests;
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Register};
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use tollgate_tlb::shadow_windows::anchors::CHECK_DISPLACEMENT;
use tollgate_x86::{Flags, SegmentRegister};

/// The signals by which host faults arrive.
const FAULTS: [i32; 5] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
];
/// The actions for these signals before [`install`].
static PREVIOUS: [OnceLock<libc::sigaction>; FAULTS.len()] =
    [const { OnceLock::new() }; FAULTS.len()];

/// The number of code caches whose addresses handlers recognise.
const MAX_RANGES: usize = 64;
static RANGES: [(AtomicU64, AtomicU64); MAX_RANGES] =
    [const { (AtomicU64::new(0), AtomicU64::new(0)) }; MAX_RANGES];

/// A registered code cache; dropping this value ends the registration.
#[derive(Debug)]
pub struct CodeRange(usize);

impl CodeRange {
    /// Registers `range` as code cache, in which signal handlers recognise guest code.
    ///
    /// # Errors
    /// Fails if there are too many virtual machines in this process.
    pub fn register(range: std::ops::Range<u64>) -> io::Result<Self> {
        for (index, (start, end)) in RANGES.iter().enumerate() {
            if start
                .compare_exchange(0, range.start, Ordering::SeqCst, Ordering::SeqCst)
                .is_ok()
            {
                end.store(range.end, Ordering::SeqCst);
                return Ok(Self(index));
            }
        }
        Err(io::Error::other("too many virtual machines in one process"))
    }
}

impl Drop for CodeRange {
    fn drop(&mut self) {
        RANGES[self.0].1.store(0, Ordering::SeqCst);
        RANGES[self.0].0.store(0, Ordering::SeqCst);
    }
}

/// The most bytes that an instruction can have.
const LONGEST_INSTRUCTION: usize = 15;

/// Whether guest code runs at `pc`. Other threads may create and drop machines at the same time:
/// both ends must belong to one registration, and an unused entry, whose start is 0, contains no
/// address.
fn in_code_cache(pc: u64) -> bool {
    end_of_code_cache(pc).is_some()
}

/// The end of the code cache that contains `pc`.
fn end_of_code_cache(pc: u64) -> Option<u64> {
    RANGES.iter().find_map(|(start, end)| {
        let first = start.load(Ordering::SeqCst);
        let last = end.load(Ordering::SeqCst);
        let is_in = first != 0 && pc >= first && pc < last;
        (is_in && start.load(Ordering::SeqCst) == first).then_some(last)
    })
}

/// Whether guest code, or a routine that guest code calls, runs at `pc`.
fn in_guest_code(pc: u64) -> bool {
    in_code_cache(pc)
        || store_check::is_here(pc)
        || interrupted_string::is_here(pc)
        || fast_path::is_here(pc)
}

/// The signal that asks a vCPU thread to leave guest code.
pub fn kick_signal() -> i32 {
    libc::SIGRTMIN() + 3
}

/// Installs the handlers, once for the process; further calls change nothing.
///
/// # Errors
/// Fails if sigaction fails.
pub fn install() -> io::Result<()> {
    static ONCE: OnceLock<i32> = OnceLock::new();
    let error = *ONCE.get_or_init(|| {
        let install_one = |signal, handler: usize, previous: Option<&OnceLock<_>>| {
            // SAFETY: an all-zero sigaction is a valid starting value.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = handler;
            // The handler runs on the alternate stack where the thread has one. System calls are
            // not restarted, so that a kick ends a wait.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // A kick waits until the handler of a fault returns: two signal frames with AVX-512
            // registers do not fit on the alternate stacks that threads have.
            // SAFETY: adds a valid signal to a set that is initialised.
            unsafe { libc::sigaddset(&mut action.sa_mask, kick_signal()) };
            // SAFETY: an all-zero sigaction is a valid value, which the kernel overwrites.
            let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: this call only asks; the kernel stores the answer in `old`.
            unsafe { libc::sigaction(signal, std::ptr::null(), &mut old) };
            // The previous action must be known before our handler can be called.
            if let Some(previous) = previous {
                let _ = previous.set(old);
            }
            // SAFETY: the action is fully initialised and the handler is
            // async-signal-safe.
            if unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) } == 0 {
                0
            } else {
                io::Error::last_os_error()
                    .raw_os_error()
                    .unwrap_or(libc::EINVAL)
            }
        };
        for (signal, previous) in FAULTS.into_iter().zip(&PREVIOUS) {
            let handler = on_fault as *const () as usize;
            let error = install_one(signal, handler, Some(previous));
            if error != 0 {
                return error;
            }
        }
        install_one(kick_signal(), on_kick as *const () as usize, None)
    });
    if error == 0 {
        Ok(())
    } else {
        Err(io::Error::from_raw_os_error(error))
    }
}

const REGISTERS: [i32; 16] = [
    libc::REG_RAX,
    libc::REG_RCX,
    libc::REG_RDX,
    libc::REG_RBX,
    libc::REG_RSP,
    libc::REG_RBP,
    libc::REG_RSI,
    libc::REG_RDI,
    libc::REG_R8,
    libc::REG_R9,
    libc::REG_R10,
    libc::REG_R11,
    libc::REG_R12,
    libc::REG_R13,
    libc::REG_R14,
    libc::REG_R15,
];

/// Completes an instruction in place of the interrupted code. Steps that the code has already done
/// are done again.
///
/// # Safety
/// The context and the registers belong to a thread that was interrupted in a
/// [`crate::abi::signal_completion::Completion`] of this kind.
unsafe fn complete(context: &mut Context, registers: &mut [i64; 23], kind: &CompletionKind) {
    match *kind {
        CompletionKind::Flags { interrupt } => {
            let image = registers[libc::REG_R11 as usize];
            let arithmetic = Flags::ARITHMETIC.bits() as i64;
            let flags = &mut registers[libc::REG_EFL as usize];
            *flags = *flags & !arithmetic | image & arithmetic;
            context.load_flags(image as u64, interrupt);
        }
        CompletionKind::Frame { size, rip, flag } => {
            let [flags, interrupt_flag, address] = context.transfers.work;
            let selector = context.cpu.cs().selector.0;
            for (index, value) in [rip, selector.into(), flags as u32].into_iter().enumerate() {
                let place = (address as *mut u8).wrapping_add(index * usize::from(size));
                // SAFETY: the look-up has found guest RAM there for the whole frame, and nothing
                // has run since.
                unsafe {
                    match size {
                        2 => place.cast::<u16>().write_unaligned(value as u16),
                        _ => place.cast::<u32>().write_unaligned(value),
                    }
                }
            }
            match flag {
                InterruptFlag::Real => context.hot.interrupt_flag = interrupt_flag,
                // Only an instruction that clears the flag stores a frame.
                InterruptFlag::Virtual => context.set_virtual_interrupt_flag(false),
            }
        }
    }
}

/// Makes the interrupted thread leave guest code with exact state. If the thread is at no boundary
/// of guest instructions and `comes_again` returns true, the thread continues instead.
///
/// # Safety
/// The frame is that of a thread that was interrupted in guest code: R15 is its context.
unsafe fn leave_guest_code(
    frame: &mut libc::ucontext_t,
    exit: SignalExit,
    comes_again: impl FnOnce() -> bool,
) -> bool {
    let registers = &mut frame.uc_mcontext.gregs;
    let pc = registers[libc::REG_RIP as usize] as u64;
    let context = (registers[REGISTERS[CONTEXT.0 as usize] as usize] as u64)
        .wrapping_sub(BIAS as u64) as *mut Context;
    // SAFETY: the caller guarantees that R15 is the context; the thread is stopped here, and its
    // engine lives as long as guest code runs.
    let position = unsafe { GuestPosition::of_interrupted(context, pc) };
    let Some(position) = position else {
        return false;
    };
    if position.restore.is_undivided() {
        if exit.signal == 0 && !comes_again() {
            registers[libc::REG_EFL as usize] |= TRAP_FLAG;
        }
        return exit.signal == 0;
    }
    if position.single && exit.signal == 0 {
        // The block leaves in a moment by itself, and then the monitor knows whether its only
        // instruction is complete: a trap may be due after it. `pending` is set.
        return false;
    }
    if let Some(completion) = position.completion {
        // SAFETY: as above; the guest was interrupted in the code that completes the instruction.
        unsafe { complete(&mut *context, registers, &completion.kind) };
    }
    let between_iterations = match position.string {
        // SAFETY: as above; the fields are plain memory of this thread.
        Some(string) => string.put_back(unsafe { &mut *context }, registers),
        None => false,
    };
    // All values are read first, since a register's home may still hold another register's value.
    let mut values = [0; Restore::MAX_MOVES];
    for (value, (guest, source)) in values.iter_mut().zip(position.restore.moves()) {
        *value = match source {
            Source::Host(host) => registers[REGISTERS[host.0 as usize & 15] as usize],
            // SAFETY: as above; the slots are plain memory of this thread.
            Source::Slot => unsafe { *(*context).slot_mut(guest) as i64 },
        };
    }
    let mut rip = position.restore.eip().map_or(position.rip, |host| {
        registers[REGISTERS[host.0 as usize & 15] as usize] as u64
    });
    if let Some((register, host)) = position.restore.segment() {
        let value = registers[REGISTERS[host.0 as usize & 15] as usize] as u32;
        let mut selector = value as u16;
        if register == SegmentRegister::Cs {
            let pointer = FarPointer::unpack(value);
            rip = u64::from(pointer.ip);
            selector = pointer.selector;
        }
        // SAFETY: as above; the state is plain memory of this thread.
        let cpu = unsafe { &mut (*context).cpu };
        cpu.load_real_mode_segment(register, selector);
    }
    if let Some(note) = position.x87_note {
        let linear = registers[libc::REG_R8 as usize] as u64;
        // SAFETY: as above for the context.
        unsafe { (*context).note_x87(&note, linear) };
    }
    for (value, (guest, _)) in values.into_iter().zip(position.restore.moves()) {
        match position.map.home(guest) {
            Home::Host(host) => registers[REGISTERS[host.0 as usize & 15] as usize] = value,
            // SAFETY: as above for the context.
            Home::Slot => unsafe { *(*context).slot_mut(guest) = value as u64 },
        }
    }
    // SAFETY: as above for the context.
    unsafe {
        (*context).signal = SignalExit {
            rip,
            esp: position.esp,
            shadowed: position.shadowed,
            between_iterations,
            ..exit
        };
        (*context).hot.exit_value = u64::from(position.block.0);
        (*context).hot.exit_site = SITE_SIGNAL;
    }
    registers[libc::REG_RIP as usize] = entry::exit_address() as i64;
    true
}

/// The bit of a page fault's error code that says that the access was a store (SDM volume 3, 4.7).
const PAGE_FAULT_WRITE: i64 = 1 << 1;
/// The bit TF of the host's RFLAGS.
const TRAP_FLAG: i64 = 1 << 8;
/// The si_code of a SIGTRAP after one instruction.
const TRAP_TRACE: i32 = 2;

/// Continues or leaves after the thread has executed one more host instruction on its way to a
/// boundary.
///
/// # Safety
/// The conditions of [`leave_guest_code`] apply if the program counter is in guest code.
unsafe fn follow_to_boundary(frame: &mut libc::ucontext_t, pc: u64) {
    frame.uc_mcontext.gregs[libc::REG_EFL as usize] &= !TRAP_FLAG;
    // On the exit path the guest leaves by itself.
    if in_guest_code(pc) {
        // SAFETY: the program counter shows that this is guest code.
        unsafe { leave_guest_code(frame, SignalExit::default(), || false) };
    }
}

/// Handles a fault that was made on purpose: the exit of a sensitive instruction as
/// [`Transition`](crate::policy::virtual_interrupts::Transition) says, or the way back.
///
/// # Safety
/// The frame is that of a thread that faulted at `pc`.
unsafe fn make_transition(frame: &mut libc::ucontext_t, signal: i32, pc: u64) -> bool {
    let registers = &mut frame.uc_mcontext.gregs;
    let context = (registers[REGISTERS[CONTEXT.0 as usize] as usize] as u64)
        .wrapping_sub(BIAS as u64) as *mut Context;
    if signal == libc::SIGSEGV && pc == entry::switch_address() {
        // SAFETY: on the way in R15 is the context, and no reference to it exists here.
        let context = unsafe { &mut *context };
        context.entry.switch_in = 0;
        for guest in 0..8 {
            if let Home::Host(host) = RegisterMap::LEGACY.home(guest) {
                let place = REGISTERS[host.0 as usize & 15] as usize;
                registers[place] = context.cpu.gpr[usize::from(guest)] as i64;
            }
        }
        let arithmetic = Flags::ARITHMETIC.bits() as i64;
        let flags = &mut registers[libc::REG_EFL as usize];
        *flags = *flags & !arithmetic | context.arithmetic_flags() as i64;
        registers[libc::REG_RIP as usize] = context.entry.target as i64;
        return true;
    }
    if !in_code_cache(pc) {
        return false;
    }
    // SAFETY: the processor has just fetched the first byte; the second is in the code cache too,
    // since an instruction never begins in the last bytes of the cache.
    let bytes = unsafe { *(pc as *const [u8; 2]) };
    let is_task = signal == libc::SIGILL && bytes == TASK_SWITCH;
    let is_trap = signal == libc::SIGSEGV && bytes[..1] == TRAP;
    if is_task {
        // SAFETY: in guest code R15 is the context.
        unsafe { (*context).entry.switch_in = 1 };
    }
    if is_task || is_trap {
        registers[libc::REG_RIP as usize] = entry::exit_address() as i64;
    }
    is_task || is_trap
}

extern "C" fn on_kick(_signal: i32, info: *mut libc::siginfo_t, frame: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid frame to an SA_SIGINFO handler.
    let frame = unsafe { &mut *frame.cast::<libc::ucontext_t>() };
    // SAFETY: as above; the value is the address of the vCPU's requests.
    let requests = unsafe { (*info).si_value().sival_ptr.cast::<Requests>() };
    // SAFETY: the sender keeps the requests alive as long as the signal may arrive.
    let requests = unsafe { requests.as_ref() };
    if let Some(requests) = requests {
        requests.hear();
    }
    // SAFETY: as above; the number is not used if no timer sent the signal.
    let timer = unsafe { (*info).si_timerid() };
    // SAFETY: as above; the code is part of every signal's information.
    let is_timers = unsafe { (*info).si_code } == libc::SI_TIMER;
    let comes_again = || is_timers && requests.is_some_and(|it| it.come_again(timer));
    let pc = frame.uc_mcontext.gregs[libc::REG_RIP as usize] as u64;
    if let Some(abort) = entry::rewind(pc) {
        frame.uc_mcontext.gregs[libc::REG_RIP as usize] = abort as i64;
    } else if in_guest_code(pc) {
        // SAFETY: the program counter shows that this is guest code.
        unsafe { leave_guest_code(frame, SignalExit::default(), comes_again) };
    }
}

/// The linear address, within its part, that the instruction makes its access with, if the access
/// is direct: the value of the register that is not the part's delta, plus the displacement.
fn near_access(frame: &libc::ucontext_t, instruction: &Instruction) -> u64 {
    let register = match instruction.memory_index() {
        _ if instruction.segment_prefix() == Register::GS => instruction.memory_base(),
        index if index.is_gpr64() && instruction.memory_index_scale() == 1 => index,
        Register::None
            if instruction.memory_base() == Register::RCX
                && instruction.memory_displacement64() != 0 =>
        {
            return instruction.memory_displacement64();
        }
        _ => Register::R8,
    };
    let place = REGISTERS[register.number() & 15] as usize;
    let value = frame.uc_mcontext.gregs[place] as u64;
    value.wrapping_add(instruction.memory_displacement64())
}

/// The instruction at `pc`, if `pc` is in a code cache.
fn instruction_at(pc: u64) -> Option<Instruction> {
    let end = end_of_code_cache(pc)?;
    let length = LONGEST_INSTRUCTION.min((end - pc) as usize);
    // SAFETY: these bytes lie in a code cache, which only the thread that this handler interrupts
    // writes to.
    let bytes = unsafe { std::slice::from_raw_parts(pc as *const u8, length) };
    Some(Decoder::with_ip(64, bytes, pc, DecoderOptions::NONE).decode())
}

/// Whether an instruction of emitted code accesses memory by the loaded space's anchor, or checks
/// for it.
fn by_anchor(instruction: &Instruction) -> ByAnchor {
    let is_check = instruction.code() == Code::Movzx_r32_rm8
        && instruction.memory_base() == Register::RCX
        && instruction.memory_displacement64() == CHECK_DISPLACEMENT as u64;
    match instruction.segment_prefix() {
        Register::GS => ByAnchor::Access,
        Register::None if is_check => ByAnchor::Check,
        _ => ByAnchor::No,
    }
}

extern "C" fn on_fault(signal: i32, info: *mut libc::siginfo_t, frame: *mut libc::c_void) {
    // SAFETY: the kernel passes valid pointers to an SA_SIGINFO handler.
    let (frame, info) = unsafe { (&mut *frame.cast::<libc::ucontext_t>(), &*info) };
    let pc = frame.uc_mcontext.gregs[libc::REG_RIP as usize] as u64;
    let traces = frame.uc_mcontext.gregs[libc::REG_EFL as usize] & TRAP_FLAG != 0;
    if signal == libc::SIGTRAP && info.si_code == TRAP_TRACE && traces {
        // SAFETY: the frame is that of the thread that was interrupted at `pc`.
        unsafe { follow_to_boundary(frame, pc) };
        return;
    }
    // SAFETY: the kernel reports that the thread was at `pc`.
    if unsafe { make_transition(frame, signal, pc) } {
        return;
    }
    // SAFETY: the information of fault signals contains an address.
    let address = unsafe { info.si_addr() } as u64;
    let instruction = instruction_at(pc);
    let exit = SignalExit {
        signal,
        code: info.si_code,
        address,
        near: (instruction.as_ref()).map_or(0, |instruction| near_access(frame, instruction)),
        by_anchor: (instruction.as_ref()).map_or(ByAnchor::No, by_anchor),
        stores: frame.uc_mcontext.gregs[libc::REG_ERR as usize] & PAGE_FAULT_WRITE != 0,
        ..SignalExit::default()
    };
    // SAFETY: the program counter shows that this is guest code.
    if in_code_cache(pc) && unsafe { leave_guest_code(frame, exit, || false) } {
        return;
    }
    // This is a bug in the monitor: the process dies visibly, of the same fault. SAFETY: an
    // all-zero sigaction is the default action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    let known = FAULTS.iter().position(|fault| *fault == signal);
    if let Some(previous) = known.and_then(|index| PREVIOUS[index].get()) {
        action = *previous;
    }
    // SAFETY: restoring an action is async-signal-safe, and so was reading it, since it was set
    // before this handler was installed.
    unsafe { libc::sigaction(signal, &action, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn other_machines_that_come_and_go_make_no_other_code_guest_code() {
        const OTHER: u64 = 0x1000;
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..200_000 {
                    drop(CodeRange::register(0x7000_0000_0000..0x7000_0001_0000));
                }
                done.store(true, Ordering::SeqCst);
            });
            while !done.load(Ordering::Relaxed) {
                assert!(!in_code_cache(OTHER));
            }
        });
    }
}
