//! Guest memory as a string instruction reaches it without an exit: RAM, and display memory that is
//! not RAM. An operand in any other place is refused, and so is a look-up that has further
//! consequences. A refusal is an exception that never reaches the guest
//! ([`super::device_strings`]).
//!
//! ```text
//!   linear address -- known page, software TLB, page tables --> RAM: a host address
//!                                                           --> display: the machine's near accesses
//!                                                           --> all else: refused
//! ```

use crate::memory::addresses::view_of;
use crate::memory::guest_view::{GuestView, Target};
use crate::memory::ram_copies;
use crate::translated::devices::call_state::{are_near_alike, kind_of, outcome};
use std::sync::atomic::{AtomicU32, Ordering};
use tollgate_emulate::operand::system_mask;
use tollgate_platform::{
    DISPLAY_WINDOW, Elements, Environment, NearAccess, NearRun, Platform, RunAction,
};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{CpuState, Exception, LinearAddress, PhysicalAddress, TranslationChange};

/// The most bytes of an element.
const ELEMENT: usize = 8;

/// The most bytes of a run of elements, which take some microseconds.
const AT_ONCE: usize = 1024;

/// Guest memory and display memory, for one instruction.
pub(in crate::translated) struct Reach<'a, P> {
    view: &'a mut GuestView,
    machine: &'a mut P,
    pending: *const AtomicU32,
    /// The first address of display memory.
    window: u64,
    /// Whether other work is due after the instruction.
    pub(in crate::translated) is_due: bool,
    /// Pages that lead to display memory, with the kind of access that was allowed. As in a
    /// processor's TLB, they stay valid until the instruction is over.
    known: [Option<KnownPage>; KNOWN_PAGES],
    pub(in crate::translated) accesses: Accesses,
}

/// Which kinds of access to display memory the instruction has made.
#[derive(Clone, Copy, Default)]
pub(in crate::translated) struct Accesses {
    pub(in crate::translated) has_loaded: bool,
    pub(in crate::translated) has_stored: bool,
}

/// The number of pages that are remembered.
const KNOWN_PAGES: usize = 4;

/// A page that leads to display memory.
#[derive(Clone, Copy)]
struct KnownPage {
    /// The number of the linear page.
    number: u64,
    kind: AccessKind,
    frame: u64,
}

/// Refuses an access, so that the exit is taken.
fn refused<T>() -> Result<T, Exception> {
    Err(Exception::general_protection(0))
}

/// Where a part of an operand is.
#[derive(Clone, Copy)]
enum Part {
    Ram(*mut u8),
    Display(PhysicalAddress),
}

/// The parts of an operand.
struct Parts {
    first: Part,
    /// The number of bytes in the first part.
    in_first: usize,
    second: Option<Part>,
}

/// Limits elements to the number that is handled before the next look for requests.
fn at_once(elements: Elements) -> Elements {
    Elements {
        count: elements.count.min((AT_ONCE / ELEMENT) as u64),
        ..elements
    }
}

/// Converts elements from their order in memory to the order of accesses, or back.
fn put_in_order(data: &mut [u8], elements: Elements) {
    if elements.backward {
        data.reverse();
        for element in data.chunks_exact_mut(elements.size as usize) {
            element.reverse();
        }
    }
}

impl<'a, P: Platform> Reach<'a, P> {
    /// Memory for one instruction of guest code, which ends early when `pending` is set. Display
    /// memory begins at `window`.
    pub(in crate::translated) fn new(
        view: &'a mut GuestView,
        machine: &'a mut P,
        pending: *const AtomicU32,
        window: u64,
    ) -> Self {
        Self {
            view,
            machine,
            pending,
            window,
            known: [None; KNOWN_PAGES],
            is_due: false,
            accesses: Accesses::default(),
        }
    }

    /// Where the elements of one page are: in RAM, with the address of the lowest element, or in
    /// display memory, with the address of the first element.
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
            match self.find(state, lowest, bytes as usize, kind, privilege)? {
                Part::Display(lowest) => Part::Display(PhysicalAddress(lowest.0 + above)),
                ram => ram,
            },
        )
    }

    /// Makes the accesses of a run. Returns whether they were near.
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
        let Some(done) = outcome(self.machine.near_run(run)) else {
            return false;
        };
        self.is_due |= done.is_due;
        self.accesses.has_loaded |= loads;
        self.accesses.has_stored |= stores;
        true
    }

    /// Where some bytes of a page are, if no other work is due.
    fn find(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        bytes: usize,
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
        // The walk may have set bits in a page table that shares its page with code, or the notes
        // may have run out of room.
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

    /// The one or two parts of an element.
    fn parts(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        size: usize,
        kind: AccessKind,
        privilege: Privilege,
    ) -> Result<Parts, Exception> {
        let in_page = (PAGE_SIZE - address.page_offset()) as usize;
        if size > ELEMENT {
            return refused();
        }
        let first = self.find(state, address, size.min(in_page), kind, privilege)?;
        if size <= in_page {
            return Ok(Parts {
                first,
                in_first: size,
                second: None,
            });
        }
        let next = address.0.wrapping_add(in_page as u64) & system_mask(state);
        let rest = size - in_page;
        let second = self.find(state, LinearAddress(next), rest, kind, privilege)?;
        // The second part must not be refused after the first part was stored.
        let is_alike = match (first, second) {
            _ if kind == AccessKind::Read => true,
            (Part::Ram(_), Part::Ram(_)) => true,
            (Part::Display(first), Part::Display(second)) => are_near_alike(first, second),
            _ => false,
        };
        match is_alike {
            true => Ok(Parts {
                first,
                in_first: in_page,
                second: Some(second),
            }),
            false => refused(),
        }
    }

    fn near(&mut self, access: NearAccess) -> Result<u64, Exception> {
        let Some(done) = outcome(self.machine.near(access)) else {
            return refused();
        };
        self.is_due |= done.is_due;
        Ok(done.read)
    }

    fn load(&mut self, part: Part, data: &mut [u8]) -> Result<(), Exception> {
        match part {
            Part::Ram(host) => ram_copies::copy_from(host, data),
            Part::Display(address) => {
                let size = data.len() as u8;
                let read = self.near(NearAccess::MemoryRead { address, size })?;
                self.accesses.has_loaded = true;
                data.copy_from_slice(&read.to_le_bytes()[..data.len()]);
            }
        }
        Ok(())
    }

    fn store(&mut self, part: Part, data: &[u8]) -> Result<(), Exception> {
        match part {
            Part::Ram(host) => ram_copies::copy_to(host, data),
            Part::Display(address) => {
                let mut value = [0; ELEMENT];
                value[..data.len()].copy_from_slice(data);
                self.near(NearAccess::MemoryWrite {
                    address,
                    size: data.len() as u8,
                    value: u64::from_le_bytes(value),
                })?;
                self.accesses.has_stored = true;
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
        let parts = self.parts(state, address, data.len(), AccessKind::Read, privilege)?;
        let (low, high) = data.split_at_mut(parts.in_first);
        self.load(parts.first, low)?;
        (parts.second).map_or(Ok(()), |second| self.load(second, high))
    }

    fn write(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        data: &[u8],
        privilege: Privilege,
    ) -> Result<(), Exception> {
        let parts = self.parts(state, address, data.len(), AccessKind::Write, privilege)?;
        let (low, high) = data.split_at(parts.in_first);
        self.store(parts.first, low)?;
        (parts.second).map_or(Ok(()), |second| self.store(second, high))
    }

    fn probe_write(
        &mut self,
        state: &CpuState,
        address: LinearAddress,
        size: u32,
        privilege: Privilege,
    ) -> Result<(), Exception> {
        self.parts(state, address, size as usize, kind_of(true), privilege)?;
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
            match self.find(state, address, bytes as usize, kind, privilege)? {
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
                ram_copies::copy_from(host, data);
                put_in_order(data, elements);
                self.near_run(elements, RunAction::Store(to, data))
            }
            (Part::Display(from), Part::Ram(host)) => {
                let is_done = self.near_run(elements, RunAction::Load(from, data));
                if is_done {
                    put_in_order(data, elements);
                    ram_copies::copy_to(host, data);
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
        // SAFETY: the code that attached the context keeps its requests as long as guest code runs.
        unsafe { &*self.pending }.load(Ordering::Relaxed) != 0
    }
}
