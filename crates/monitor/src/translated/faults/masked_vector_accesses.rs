//! Runs instructions whose mask excludes parts of their memory operand, where the operand lies
//! partly or entirely in pages that must not be accessed.
//!
//! Only the host's processor knows which bytes such an instruction accesses. So the instruction
//! runs once on a copy of the operand, at the same offset in host pages of which the corresponding
//! ones cannot be accessed. If the instruction faults there, the guest's instruction faults at the
//! corresponding byte; otherwise it has touched no inaccessible byte.

use super::guarded_pages::GuardedPages;
use crate::execution::running::Running;
use crate::execution::stop::VcpuStop;
use crate::memory::guest_view::GuestView;
use crate::translated::Translated;
use crate::translated::slow_path::Ended;
use iced_x86::Instruction;
use tollgate_emulate::memory_access::SegmentedAddress;
use tollgate_emulate::operand::{
    linear_address, memory_address, probe_linear, read_linear, write_linear,
};
use tollgate_engine::abi::context::SignalExit;
use tollgate_engine::abi::sites::BlockId;
use tollgate_engine::policy::memory_operand::MemoryUse;
use tollgate_engine::policy::out_of_line::{MOST_BOUNCED, OutOfLine};
use tollgate_exits::ExitKind;
use tollgate_platform::Platform;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::xsave::OPMASK;
use tollgate_x86::{CpuState, Exception, LinearAddress};

/// The place of a part of an operand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// The part may be accessed at this address.
    Usable(LinearAddress),
    /// An access to the page of this part faults.
    Faulting,
    /// The address of the part is not canonical, or the part's segment does not allow the access.
    Beyond,
}

/// The part of an operand that is in one page, or on one side of its segment's limit.
#[derive(Clone, Copy)]
struct Part {
    /// Offset of the part in the operand.
    start: usize,
    /// Size in bytes. The second part may have none.
    size: usize,
    place: Place,
}

/// A memory access that depends on a mask.
#[derive(Clone, Copy)]
struct Masked {
    address: SegmentedAddress,
    /// The offset of the first byte in a host page such that the second part begins the next page.
    /// An operand of one part has its own offset.
    offset: usize,
    size: usize,
    kind: AccessKind,
    privilege: Privilege,
    parts: [Part; 2],
}

impl Masked {
    /// Whether there is a part with this place.
    fn has(&self, place: Place) -> bool {
        let there = |part: &Part| part.size != 0 && part.place == place;
        self.parts.iter().any(there)
    }

    /// The parts that may be accessed.
    fn usable(&self) -> impl Iterator<Item = (Part, LinearAddress)> {
        let place = |part: Part| match part.place {
            Place::Usable(linear) if part.size != 0 => Some((part, linear)),
            _ => None,
        };
        self.parts.into_iter().filter_map(place)
    }
}

/// Bytes of the operand that one bit of the mask selects: the size of a broadcast element, where
/// the instruction has broadcasts. Elements of sums of products are smaller than their lanes.
fn lane_size(instruction: &Instruction) -> u64 {
    let broadcast = instruction.op_code().broadcast_memory_size().size();
    let element = instruction.memory_size().element_size();
    element.max(broadcast).max(1) as u64
}

/// How a run on guarded pages ended.
enum Guarded {
    Completed,
    /// The instruction accessed this byte of the operand, which lies in a guarded page.
    Missed(u64),
    /// The instruction raised another exception.
    Faulted(Exception),
}

impl<P: Platform> Running<'_, Translated, P> {
    /// Runs the instruction if a part of its operand must not be accessed. Returns `None` if all
    /// parts may be accessed.
    ///
    /// If the operand crosses both its segment's limit and, on the allowed side, the end of a page,
    /// it is divided at the latter alone: the whole part in a page then counts as beyond the limit.
    pub(crate) fn bounce_beside_fault(
        &mut self,
        block: BlockId,
        noted: &OutOfLine,
        memory: MemoryUse,
    ) -> Result<Option<Ended>, VcpuStop> {
        let instruction = &noted.helper.instruction;
        let cpu = &self.runner.context.cpu;
        let access = self.view.masked_access(cpu, instruction, memory);
        if !access.has(Place::Faulting) && !access.has(Place::Beyond) {
            return Ok(None);
        }
        self.count(ExitKind::SlowAccess);
        if access.has(Place::Faulting) && access.has(Place::Beyond) {
            // If the operand is accessed as a whole, faults of the segment and of the form of the
            // address have priority over paging; otherwise the first element decides.
            if self.ignores_mask(block, instruction, &access)? {
                let cpu = &self.runner.context.cpu;
                let size = access.size as u32;
                let fault = linear_address(cpu, access.address, size, access.kind).err();
                let fault = fault.unwrap_or(Exception::general_protection(0));
                return Ok(Some(Ended::Faulted(fault)));
            }
        }
        let is_open = |part: Part| matches!(part.place, Place::Usable(_));
        match self.run_guarded(block, &access, access.parts.map(is_open))? {
            Guarded::Faulted(exception) => Ok(Some(Ended::Faulted(exception))),
            Guarded::Missed(byte) => {
                let element = lane_size(instruction);
                let fault = self.fault_of_element(&access, byte, element);
                let fault = fault.unwrap_or(Exception::general_protection(0));
                Ok(Some(Ended::Faulted(fault)))
            }
            Guarded::Completed => {
                if memory.write {
                    self.write_back(&access);
                }
                self.due.events = true;
                self.arm_timer();
                Ok(Some(Ended::Completed))
            }
        }
    }

    /// Runs the instruction on a copy of its operand, of which only the usable parts can be
    /// accessed.
    fn run_guarded(
        &mut self,
        block: BlockId,
        access: &Masked,
        open: [bool; 2],
    ) -> Result<Guarded, VcpuStop> {
        let mut pages = match self
            .runner
            .guarded
            .take()
            .map_or_else(GuardedPages::new, Ok)
        {
            Ok(pages) => pages,
            Err(error) => {
                let why = format!("the host has no memory for a masked operand: {error}");
                return Err(VcpuStop::NotImplemented(why));
            }
        };
        let place = pages.place(access.offset, open);
        let mut failed = None;
        for (part, linear) in access.usable() {
            if !open[usize::from(part.start != 0)] {
                continue;
            }
            let bytes = pages.bytes(place + part.start as u64, part.size);
            let (state, mut environment) = self.parts();
            let read = read_linear(state, &mut environment, linear, bytes, access.privilege);
            failed = failed.or(read.err());
        }
        self.runner.guarded = Some(pages);
        if let Some(exception) = failed {
            return Ok(Guarded::Faulted(exception));
        }
        self.runner.context.hot.bounce_pointer = place;
        self.runner.context.signal = SignalExit::default();
        let Some(exception) = self.run_bounced(block)? else {
            return Ok(Guarded::Completed);
        };
        let signal = self.runner.context.signal;
        let missed = signal.address.wrapping_sub(place);
        let is_guarded = signal.signal == libc::SIGSEGV && missed < access.size as u64;
        Ok(match is_guarded {
            true => Guarded::Missed(missed),
            false => Guarded::Faulted(exception),
        })
    }

    /// Whether the instruction accesses its operand although its mask selects nothing. The
    /// instruction is run with such a mask; then the previous state is restored.
    fn ignores_mask(
        &mut self,
        block: BlockId,
        instruction: &Instruction,
        access: &Masked,
    ) -> Result<bool, VcpuStop> {
        let before = self.runner.context.cpu.clone();
        let mask = OPMASK.start + (instruction.op_mask().number() & 7) * 8;
        self.runner.context.cpu.vector.0[mask..mask + 8].fill(0);
        let tried = self.run_guarded(block, access, [false; 2])?;
        self.runner.context.cpu = before;
        self.runner.context.scatter_flags();
        Ok(matches!(tried, Guarded::Missed(_)))
    }

    /// Writes the usable parts of the copy back to guest memory.
    fn write_back(&mut self, access: &Masked) {
        let place = self.runner.context.hot.bounce_pointer;
        let Some(mut pages) = self.runner.guarded.take() else {
            return;
        };
        for (part, linear) in access.usable() {
            let bytes = pages.bytes(place + part.start as u64, part.size);
            let (state, mut environment) = self.parts();
            // The parts were checked before, and nothing has changed the translations since.
            let _ = write_linear(state, &mut environment, linear, bytes, access.privilege);
        }
        self.runner.guarded = Some(pages);
    }

    /// The fault of the element that contains a byte, found at that byte.
    fn fault_of_element(&mut self, access: &Masked, byte: u64, element: u64) -> Option<Exception> {
        let (kind, privilege) = (access.kind, access.privilege);
        let (state, mut environment) = self.parts();
        let start = access.address.offset(byte - byte % element);
        if let Err(exception) = linear_address(state, start, element as u32, kind) {
            return Some(exception);
        }
        let linear = match linear_address(state, access.address.offset(byte), 1, kind) {
            Ok(linear) => linear,
            Err(exception) => return Some(exception),
        };
        let result = match kind {
            AccessKind::Write => probe_linear(state, &mut environment, linear, 1, privilege),
            _ => read_linear(state, &mut environment, linear, &mut [0], privilege),
        };
        result.err()
    }
}

/// The offset in the operand at which its segment's limit divides it, if it does and the bytes on
/// the allowed side of it lie in one page. `in_first` bytes of the operand are in its first page.
fn limit_in_operand(
    cpu: &CpuState,
    address: SegmentedAddress,
    size: usize,
    in_first: usize,
    kind: AccessKind,
) -> Option<usize> {
    if linear_address(cpu, address, size as u32, kind).is_ok() {
        return None;
    }
    let is_allowed = |at: usize| linear_address(cpu, address.offset(at as u64), 1, kind).is_ok();
    let limit = (1..size).find(|&at| is_allowed(at) != is_allowed(at - 1))?;
    let is_in_one_page = match is_allowed(0) {
        true => limit <= in_first,
        false => limit >= in_first,
    };
    (in_first == size || is_in_one_page).then_some(limit)
}

impl GuestView {
    /// The access of the instruction at CS:RIP, with the places of its parts.
    fn masked_access(
        &mut self,
        cpu: &CpuState,
        instruction: &Instruction,
        memory: MemoryUse,
    ) -> Masked {
        let privilege = Privilege::of_cpl(cpu.cpl());
        let kind = match memory.write {
            true => AccessKind::Write,
            false => AccessKind::Read,
        };
        let size = (memory.size as usize).min(MOST_BOUNCED);
        let address = memory_address(cpu, instruction);
        let first = cpu
            .segment_base(address.segment)
            .wrapping_add(address.offset);
        let offset = (first % PAGE_SIZE) as usize;
        let in_first = size.min(PAGE_SIZE as usize - offset);
        let (offset, in_first) = match limit_in_operand(cpu, address, size, in_first, kind) {
            Some(limit) => (PAGE_SIZE as usize - limit, limit),
            None => (offset, in_first),
        };
        let mut part = |start: usize, size: usize| {
            let place =
                match linear_address(cpu, address.offset(start as u64), size.max(1) as u32, kind) {
                    Err(_) => Place::Beyond,
                    Ok(linear) => match self.resolve(cpu, linear, kind, privilege) {
                        Err(_) => Place::Faulting,
                        Ok(_) => Place::Usable(linear),
                    },
                };
            Part { start, size, place }
        };
        let mut parts = [part(0, in_first); 2];
        parts[1] = match size - in_first {
            0 => Part {
                start: size,
                size: 0,
                place: Place::Usable(LinearAddress(0)),
            },
            rest => part(in_first, rest),
        };
        Masked {
            address,
            offset,
            size,
            kind,
            privilege,
            parts,
        }
    }
}
