//! String instructions with an operand in display memory that is no RAM, done without an exit: single
//! ones whose look-up missed, and repeated ones that the routine of [`tollgate_engine::gate::string`]
//! cannot go on with.
//!
//! They are executed as ever, by the crate `emulate`, with memory that refuses whatever is more than
//! RAM or display memory ([`Reach`]). A refusal is an exception that never reaches the guest: the exit
//! is taken, with the iterations done that the registers show, and goes on from there. So is what
//! interrupts a repeated instruction. A refused iteration has loaded a byte at most, and loads it again.

use crate::guest_view::{GuestView, Target, view_of};
use crate::raw;
use crate::translated::device_leaf::{outcome, slot};
use crate::translated::device_memory::{are_near_alike, flags, kind_of, put_flags};
use crate::translated::misses::Environment as LeafEnvironment;
use iced_x86::{Instruction, OpKind};
use std::sync::atomic::Ordering;
use tollgate_emulate::Outcome;
use tollgate_emulate::operand::{address_size, memory_segment, size_mask, system_mask};
use tollgate_engine::abi::leaves::LeafRoutine;
use tollgate_engine::abi::sites::{Site, SiteKind};
use tollgate_engine::{Context, Engine};
use tollgate_platform::{
    DISPLAY_WINDOW, Elements, Environment, NearAccess, NearRun, Platform, RunAction,
};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{
    CpuState, Exception, Flags, Gpr, LinearAddress, PhysicalAddress, TranslationChange,
};

/// Registers that string instructions use.
const REGISTERS: [Gpr; 4] = [Gpr::Rax, Gpr::Rcx, Gpr::Rsi, Gpr::Rdi];

/// Most bytes of an element.
const ELEMENT: usize = 8;

/// Bytes of a run of elements at most: some microseconds.
const AT_ONCE: usize = 1024;

/// Whether an instruction is one of those that access no port.
pub(super) fn is_done(instruction: &Instruction) -> bool {
    let mut kinds = (0..instruction.op_count()).map(|index| instruction.op_kind(index));
    let is_port = (0..instruction.op_count()).any(|index| {
        instruction.op_kind(index) == OpKind::Register
            && instruction.op_register(index) == iced_x86::Register::DX
    });
    let is_string = kinds.any(|kind| is_source(kind) || is_destination(kind));
    is_string && !is_port && instruction.is_string_instruction()
}

fn is_source(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::MemorySegSI | OpKind::MemorySegESI | OpKind::MemorySegRSI
    )
}

fn is_destination(kind: OpKind) -> bool {
    matches!(
        kind,
        OpKind::MemoryESDI | OpKind::MemoryESEDI | OpKind::MemoryESRDI
    )
}

/// The linear addresses of a repeated string instruction's next elements, which it is going to access.
pub(super) fn elements(cpu: &CpuState, instruction: &Instruction) -> [Option<LinearAddress>; 2] {
    let mask = size_mask(address_size(cpu, instruction));
    if cpu.gpr[Gpr::Rcx as usize] & mask == 0 {
        // It accesses nothing, and nor may whoever asks.
        return [None; 2];
    }
    let has = |is: fn(OpKind) -> bool| {
        (0..instruction.op_count()).any(|index| is(instruction.op_kind(index)))
    };
    let at = |segment, register: Gpr| {
        let offset = cpu.gpr[register as usize] & mask;
        LinearAddress(cpu.segment_base(segment).wrapping_add(offset) & system_mask(cpu))
    };
    [
        has(is_source).then(|| at(memory_segment(cpu, instruction), Gpr::Rsi)),
        has(is_destination).then(|| at(tollgate_x86::SegmentRegister::Es, Gpr::Rdi)),
    ]
}

/// Executes the string instruction of the site that was named. Whether more is due; `None`: it is not
/// done, or not all of it.
pub(super) fn access<P: Platform>(context: &mut Context, machine: &mut P) -> Option<bool> {
    let window = machine.near_display()?.0;
    // SAFETY: this was called from guest code, which alone may use what its environment leads to.
    let (view, engine) = unsafe {
        let environment = context
            .leaf_environment
            .cast::<LeafEnvironment>()
            .as_ref()?;
        (&mut *environment.view, &*environment.engine)
    };
    let (site, instruction) = instruction(context, engine)?;
    let (rip, kept) = (context.cpu.rip, context.cpu.flags);
    for register in REGISTERS {
        context.cpu.gpr[register as usize] = *slot(context, register);
    }
    let moved = Flags::ARITHMETIC | Flags::DF;
    let direction = match context.direction < 0 {
        true => Flags::DF.bits(),
        false => 0,
    };
    context.cpu.flags = kept & !moved.bits() | flags(context) | direction;
    context.cpu.rip = site.rip;
    let mut reach = Reach {
        view,
        machine,
        pending: context.pending,
        window,
        known: [None; KNOWN_PAGES],
        is_due: false,
        has_loaded: false,
        has_stored: false,
    };
    let result = tollgate_emulate::execute(&mut context.cpu, &mut reach, &instruction);
    let Reach {
        is_due,
        has_loaded,
        has_stored,
        ..
    } = reach;
    put_flags(context, context.cpu.flags);
    (context.cpu.rip, context.cpu.flags) = (rip, kept);
    for register in REGISTERS {
        *slot(context, register) = context.cpu.gpr[register as usize];
    }
    let is_done = result == Ok(Outcome::Next);
    if is_done && (has_loaded || has_stored) {
        let routine = match has_stored {
            true => LeafRoutine::MmioWrite,
            false => LeafRoutine::MmioRead,
        };
        context.leaf_counts[routine as usize] += 1;
    }
    is_done.then_some(is_due)
}

/// The string instruction of the site that was named.
fn instruction(context: &Context, engine: &Engine) -> Option<(Site, Instruction)> {
    let code_delta = context.code_delta;
    let (block, _, site) = engine.site(context.exit_site, code_delta)?;
    let instruction = match site.kind {
        SiteKind::Helper(helper) => engine.helper(block, helper, code_delta)?.instruction,
        _ => engine.known_out_of_line(block, (site.rip, code_delta))?,
    };
    is_done(&instruction).then_some((site, instruction))
}

/// Guest memory and display memory, for one instruction.
struct Reach<'a, P> {
    view: &'a mut GuestView,
    machine: &'a mut P,
    pending: *const std::sync::atomic::AtomicU32,
    /// Where display memory begins.
    window: u64,
    is_due: bool,
    /// Pages that lead to display memory, with what they allow: as in a processor's TLB they hold until
    /// the instruction is over.
    known: [Option<KnownPage>; KNOWN_PAGES],
    /// Display memory was loaded.
    has_loaded: bool,
    /// It was stored.
    has_stored: bool,
}

/// Pages that are remembered.
const KNOWN_PAGES: usize = 4;

/// A page behind which display memory lies.
#[derive(Clone, Copy)]
struct KnownPage {
    /// The linear page's number.
    number: u64,
    kind: AccessKind,
    frame: u64,
}

/// The exit is to be taken.
fn refused<T>() -> Result<T, Exception> {
    Err(Exception::general_protection(0))
}

/// What a part of an operand is.
#[derive(Clone, Copy)]
enum Part {
    Ram(*mut u8),
    Display(PhysicalAddress),
}

/// As many of some elements as are done before requests are looked at.
fn at_once(elements: Elements) -> Elements {
    Elements {
        count: elements.count.min((AT_ONCE / ELEMENT) as u64),
        ..elements
    }
}

/// Turns elements as they lie in memory into those in the order of accesses, and back.
fn put_in_order(data: &mut [u8], elements: Elements) {
    if elements.backward {
        data.reverse();
        for element in data.chunks_exact_mut(elements.size as usize) {
            element.reverse();
        }
    }
}

impl<P: Platform> Reach<'_, P> {
    /// What lies behind elements of one page: RAM at the lowest one, display memory at the first.
    fn find_all(
        &mut self,
        state: &CpuState,
        first: LinearAddress,
        elements: Elements,
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<Part, Exception> {
        let bytes = elements.count * u64::from(elements.size);
        let above = match elements.backward {
            true => bytes - u64::from(elements.size),
            false => 0,
        };
        let lowest = LinearAddress(first.0.wrapping_sub(above));
        Ok(
            match self.find(state, (lowest, bytes as usize), kind, privilege)? {
                Part::Display(lowest) => Part::Display(PhysicalAddress(lowest.0 + above)),
                ram => ram,
            },
        )
    }

    /// Makes the accesses of a run; whether they were near.
    fn near_run(&mut self, elements: Elements, action: RunAction<'_>) -> bool {
        let (loads, stores) = match action {
            RunAction::Load(..) => (true, false),
            RunAction::Copy(..) => (true, true),
            RunAction::Fill(..) | RunAction::Store(..) => (false, true),
        };
        let run = NearRun {
            size: elements.size as u8,
            backward: elements.backward,
            action,
        };
        let Some((_, is_due)) = outcome(self.machine.near_run(run)) else {
            return false;
        };
        self.is_due |= is_due;
        self.has_loaded |= loads;
        self.has_stored |= stores;
        true
    }

    /// What lies behind some bytes of a page, if nothing else is due.
    fn find(
        &mut self,
        state: &CpuState,
        (address, bytes): (LinearAddress, usize),
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<Part, Exception> {
        let view = &mut *self.view;
        let write = kind == AccessKind::Write;
        if view.memory.has_map_changes() || view.memory.has_code_writes() {
            return refused();
        }
        let place = (address.page() as usize + usize::from(write)) % KNOWN_PAGES;
        if let Some(known) = self.known[place]
            && (known.number, known.kind) == (address.page(), kind)
        {
            return Ok(Part::Display(PhysicalAddress(
                known.frame | address.page_offset(),
            )));
        }
        let known = (view.translations).look_up(state, view_of(privilege), write, address);
        if let Some(host) = known {
            return Ok(Part::Ram(host as *mut u8));
        }
        let target = view.resolve(state, address, kind, privilege)?;
        // The walk may have set bits in a page table that holds code; notes may have had no more room.
        let is_due = view.memory.has_code_writes()
            || view.memory.has_map_changes()
            || view.translations.has_changed();
        let window = self.window..self.window + DISPLAY_WINDOW;
        match target {
            _ if is_due => refused(),
            Target::Ram(host) => Ok(Part::Ram(host)),
            Target::Device(physical) if window.contains(&physical.0) => {
                self.known[place] = Some(KnownPage {
                    number: address.page(),
                    kind,
                    frame: physical.0 - physical.page_offset(),
                });
                Ok(Part::Display(physical))
            }
            Target::Code(physical) if !view.memory.code().contains(physical, bytes as u64) => {
                let host = view.memory.ram().host_range(physical, bytes as u64);
                host.map_or_else(refused, |host| Ok(Part::Ram(host)))
            }
            Target::Device(_) | Target::Code(_) => refused(),
        }
    }

    /// The one or two parts of an element, with how many bytes lie in the first.
    fn parts(
        &mut self,
        state: &CpuState,
        (address, size): (LinearAddress, usize),
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<(Part, usize, Option<Part>), Exception> {
        let in_page = (PAGE_SIZE - address.page_offset()) as usize;
        if size > ELEMENT {
            return refused();
        }
        let first = self.find(state, (address, size.min(in_page)), kind, privilege)?;
        if size <= in_page {
            return Ok((first, size, None));
        }
        let next = address.0.wrapping_add(in_page as u64) & system_mask(state);
        let second = (LinearAddress(next), size - in_page);
        let second = self.find(state, second, kind, privilege)?;
        // A refusal of the second part must not come behind a store to the first.
        let is_alike = match (first, second) {
            _ if kind == AccessKind::Read => true,
            (Part::Ram(_), Part::Ram(_)) => true,
            (Part::Display(first), Part::Display(second)) => are_near_alike(first, second),
            _ => false,
        };
        match is_alike {
            true => Ok((first, in_page, Some(second))),
            false => refused(),
        }
    }

    fn near(&mut self, access: NearAccess) -> Result<u64, Exception> {
        let Some((read, is_due)) = outcome(self.machine.near(access)) else {
            return refused();
        };
        self.is_due |= is_due;
        Ok(read)
    }

    fn load(&mut self, part: Part, data: &mut [u8]) -> Result<(), Exception> {
        match part {
            Part::Ram(host) => raw::copy_from(host, data),
            Part::Display(address) => {
                let size = data.len() as u8;
                let read = self.near(NearAccess::MemoryRead { address, size })?;
                self.has_loaded = true;
                data.copy_from_slice(&read.to_le_bytes()[..data.len()]);
            }
        }
        Ok(())
    }

    fn store(&mut self, part: Part, data: &[u8]) -> Result<(), Exception> {
        match part {
            Part::Ram(host) => raw::copy_to(host, data),
            Part::Display(address) => {
                let mut value = [0; ELEMENT];
                value[..data.len()].copy_from_slice(data);
                self.near(NearAccess::MemoryWrite {
                    address,
                    size: data.len() as u8,
                    value: u64::from_le_bytes(value),
                })?;
                self.has_stored = true;
            }
        }
        Ok(())
    }
}

impl<P: Platform> Environment for Reach<'_, P> {
    fn call_machine(&mut self, _call: &mut dyn FnMut(&mut dyn Platform)) {}

    fn port_read(&mut self, _state: &CpuState, _port: u16, _size: u8) -> u32 {
        0
    }

    fn port_write(&mut self, _state: &CpuState, _port: u16, _size: u8, _value: u32) {}

    fn read(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        data: &mut [u8],
        privilege: Privilege,
    ) -> Result<(), Exception> {
        let operand = (address, data.len());
        let (first, bytes, second) = self.parts(state, operand, AccessKind::Read, privilege)?;
        let (low, high) = data.split_at_mut(bytes);
        self.load(first, low)?;
        second.map_or(Ok(()), |second| self.load(second, high))
    }

    fn write(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        data: &[u8],
        privilege: Privilege,
    ) -> Result<(), Exception> {
        let operand = (address, data.len());
        let (first, bytes, second) = self.parts(state, operand, AccessKind::Write, privilege)?;
        let (low, high) = data.split_at(bytes);
        self.store(first, low)?;
        second.map_or(Ok(()), |second| self.store(second, high))
    }

    fn probe_write(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        size: u32,
        privilege: Privilege,
    ) -> Result<(), Exception> {
        let operand = (address, size as usize);
        self.parts(state, operand, kind_of(true), privilege)?;
        Ok(())
    }

    fn ram(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        bytes: u32,
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<Option<(*mut u8, u32)>, Exception> {
        let room = (PAGE_SIZE - address.page_offset()) as u32;
        let bytes = bytes.min(room);
        Ok(
            match self.find(state, (address, bytes as usize), kind, privilege)? {
                Part::Ram(host) => Some((host, bytes)),
                Part::Display(_) => None,
            },
        )
    }

    fn move_elements(
        &mut self,
        state: &CpuState,
        [source, destination]: [LinearAddress; 2],
        elements: Elements,
        privilege: Privilege,
    ) -> u64 {
        let elements = at_once(elements);
        let (read, write) = (AccessKind::Read, AccessKind::Write);
        let Ok(from) = self.find_all(state, source, elements, read, privilege) else {
            return 0;
        };
        let Ok(to) = self.find_all(state, destination, elements, write, privilege) else {
            return 0;
        };
        let mut buffer = [0; AT_ONCE];
        let size = elements.size as usize;
        let bytes = elements.count as usize * size;
        let data = &mut buffer[..bytes];
        let is_done = match (from, to) {
            (Part::Ram(host), Part::Display(to)) => {
                raw::copy_from(host, data);
                put_in_order(data, elements);
                self.near_run(elements, RunAction::Store(to, data))
            }
            (Part::Display(from), Part::Ram(host)) => {
                let is_done = self.near_run(elements, RunAction::Load(from, data));
                if is_done {
                    put_in_order(data, elements);
                    raw::copy_to(host, data);
                }
                is_done
            }
            (Part::Display(from), Part::Display(to)) => {
                let count = elements.count as usize;
                self.near_run(elements, RunAction::Copy(from, to, count))
            }
            (Part::Ram(_), Part::Ram(_)) => false,
        };
        u64::from(is_done) * elements.count
    }

    fn store_elements(
        &mut self,
        state: &CpuState,
        place: LinearAddress,
        elements: Elements,
        value: u64,
        privilege: Privilege,
    ) -> u64 {
        let elements = at_once(elements);
        let found = self.find_all(state, place, elements, AccessKind::Write, privilege);
        let Ok(Part::Display(to)) = found else {
            return 0;
        };
        let action = RunAction::Fill(to, value.to_le_bytes(), elements.count as usize);
        u64::from(self.near_run(elements, action)) * elements.count
    }

    fn read_physical_u64(&mut self, _address: PhysicalAddress) -> u64 {
        0
    }

    fn translations_changed(&mut self, _state: &CpuState, _change: TranslationChange) {}

    fn sync_vector_state(&mut self, _state: &mut CpuState) {}

    fn is_interrupted(&self) -> bool {
        // SAFETY: who attached the context keeps its requests as long as guest code runs.
        unsafe { &*self.pending }.load(Ordering::Relaxed) != 0
    }
}
