//! SI, DI and CX of a string instruction, and the runs of elements that they address.

use crate::cpuid::{Vendor, policy};
use crate::host_string::Direction;
use crate::memory_access::{
    SegmentedAddress, check_alignment, current_privilege, linear_address, probe_linear,
    read_memory, write_memory,
};
use crate::operand::{address_size, memory_segment, size_mask};
use iced_x86::Instruction;
use tollgate_platform::{Elements, Environment};
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::paging::{AccessKind, Privilege};
use tollgate_x86::{CpuState, Cr0, Exception, Flags, Gpr, LinearAddress, SegmentRegister};

/// The counter and pointer registers of one string instruction.
#[derive(Clone, Copy, Debug)]
pub struct Pointers {
    /// Size of an element in bytes: 1, 2, 4 or 8.
    pub size: u32,
    /// Mask of the bits of SI, DI and CX that are used.
    mask: u64,
    /// The direction that DF selects.
    pub direction: Direction,
    source_segment: SegmentRegister,
    /// `None` for a repeated instruction, which uses CX. Otherwise how often the instruction still
    /// executes: 1, then 0.
    once: Option<u64>,
    /// Whether a trap may follow each iteration: EFLAGS.TF is set, or memory is watched.
    stepped: bool,
}

impl Pointers {
    /// Determines the registers that this instruction uses.
    pub fn of(state: &CpuState, instruction: &Instruction) -> Self {
        let repeated = instruction.has_rep_prefix() || instruction.has_repne_prefix();
        Self {
            size: (instruction.memory_size().size() as u32).clamp(1, 8),
            mask: size_mask(address_size(state, instruction)),
            direction: if state.flags().contains(Flags::DF) {
                Direction::Backward
            } else {
                Direction::Forward
            },
            source_segment: memory_segment(state, instruction),
            once: if repeated { None } else { Some(1) },
            stepped: state.flags().contains(Flags::TF)
                || state.watches_memory()
                || state.has_port_breakpoints(),
        }
    }

    /// Size of an element in bytes: 1, 2, 4 or 8.
    pub fn element_size(&self) -> u32 {
        self.size
    }

    /// The segment of the source operand (DS or an override).
    pub fn source_segment(&self) -> SegmentRegister {
        self.source_segment
    }

    /// The effect of a repeated instruction on its registers before the first iteration, even if
    /// there is none: with 32-bit addresses in 64-bit code, Intel's processors clear the upper
    /// halves of RCX and of the pointers that MOVS and STOS move (`moved`). The manuals describe
    /// only the iterations.
    pub fn begin(&self, state: &mut CpuState, moved: &[Gpr]) {
        let narrow = self.once.is_none() && self.mask == 0xffff_ffff && state.is_64_bit();
        if narrow && policy(state).vendor() == Vendor::Intel {
            for &register in moved.iter().chain(&[Gpr::Rcx]) {
                state.gpr[register as usize] &= self.mask;
            }
        }
    }

    /// The number of elements that are still to be processed.
    pub fn remaining(&self, state: &CpuState) -> u64 {
        self.once
            .unwrap_or_else(|| state.register(Gpr::Rcx) & self.mask)
    }

    /// The number of elements to process before the instruction may be left: all that remain, or
    /// one if a trap may follow each.
    pub fn wanted(&self, state: &CpuState) -> u64 {
        let remaining = self.remaining(state);
        if self.stepped {
            remaining.min(1)
        } else {
            remaining
        }
    }

    /// Whether the instruction pauses between two iterations: for the trap that EFLAGS.TF requests
    /// after each (SDM volume 3, 17.3.1.4), or because something is due.
    pub fn pauses(&self, state: &CpuState, environment: &dyn Environment) -> bool {
        self.remaining(state) != 0 && (self.stepped || environment.is_interrupted())
    }

    /// Counts `elements` as processed.
    pub fn count(&mut self, state: &mut CpuState, elements: u64) {
        match &mut self.once {
            Some(once) => *once = once.saturating_sub(elements),
            None => self.add(state, Gpr::Rcx, elements.wrapping_neg()),
        }
    }

    /// The offset in SI or DI, without the bits above the address size.
    pub fn offset(&self, state: &CpuState, register: Gpr) -> u64 {
        state.register(register) & self.mask
    }

    /// Moves SI or DI by `elements`, in the direction that DF selects.
    pub fn advance(&self, state: &mut CpuState, register: Gpr, elements: u64) {
        let bytes = elements.wrapping_mul(u64::from(self.size));
        let delta = match self.direction {
            Direction::Forward => bytes,
            Direction::Backward => bytes.wrapping_neg(),
        };
        self.add(state, register, delta);
    }

    fn add(&self, state: &mut CpuState, register: Gpr, delta: u64) {
        if delta == 0 {
            return;
        }
        let place = &mut state.gpr[register as usize];
        let sum = place.wrapping_add(delta) & self.mask;
        // 32-bit results clear the upper half, 16-bit results leave it unchanged.
        *place = if self.mask == 0xffff {
            *place & !self.mask | sum
        } else {
            sum
        };
    }

    /// The address of the next source or destination element.
    fn element(&self, state: &CpuState, register: Gpr) -> SegmentedAddress {
        SegmentedAddress {
            segment: if register == Gpr::Rsi {
                self.source_segment
            } else {
                SegmentRegister::Es
            },
            offset: self.offset(state, register),
        }
    }

    /// The number of the `wanted` elements that lie completely in a range of `extent` bytes. The
    /// first one is at offset `position` of the range, the others follow in this direction.
    fn fitting(&self, position: u64, extent: u64, wanted: u64) -> u64 {
        let size = u64::from(self.size);
        let after = extent.saturating_sub(position);
        let fit = match self.direction {
            Direction::Forward => after / size,
            Direction::Backward if after < size => 0,
            Direction::Backward => position / size + 1,
        };
        fit.min(wanted)
    }

    /// The longest run at one operand: the number of elements and their lowest linear address.
    /// `None` if the next element must be processed alone.
    fn run(
        &self,
        state: &CpuState,
        register: Gpr,
        kind: AccessKind,
        wanted: u64,
    ) -> Option<(u64, LinearAddress)> {
        let first = self.element(state, register);
        // The run ends where the offset wraps.
        let extent = self.mask.saturating_add(1);
        let count = self.fitting(first.offset, extent, wanted);
        let base = state.segment_base(first.segment);
        let position = base.wrapping_add(first.offset) % PAGE_SIZE;
        let count = self.fitting(position, PAGE_SIZE, count);
        if count == 0 {
            return None;
        }
        let lowest = self.lowest(first, count);
        let bytes = count as u32 * self.size;
        let linear = linear_address(state, lowest, bytes, kind).ok()?;
        Some((count, linear))
    }

    /// The lowest element of a run of `count` (at least 1) elements that starts at `first`.
    fn lowest(&self, first: SegmentedAddress, count: u64) -> SegmentedAddress {
        match self.direction {
            Direction::Forward => first,
            Direction::Backward => SegmentedAddress {
                offset: first
                    .offset
                    .wrapping_sub((count - 1) * u64::from(self.size)),
                ..first
            },
        }
    }

    /// Converts the host pointer of the lowest byte to that of the run's first element.
    fn first_of(&self, lowest: *mut u8, count: u64) -> *mut u8 {
        match self.direction {
            Direction::Forward => lowest,
            Direction::Backward => lowest.wrapping_add((count as usize - 1) * self.size as usize),
        }
    }

    /// Whether accesses must be checked for alignment, which runs do not do.
    pub fn checks_alignment(&self, state: &CpuState) -> bool {
        self.size > 1
            && current_privilege(state) == Privilege::User
            && state.cr0().contains(Cr0::AM)
            && state.flags().contains(Flags::AC)
    }

    /// Host memory of a run at one operand, as the pointer to its first element. `None` if it is
    /// not plain RAM, or if there is a fault, which the element's own access then raises exactly.
    pub fn host_run(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        register: Gpr,
        kind: AccessKind,
        wanted: u64,
    ) -> Option<(u64, *mut u8)> {
        let (count, linear) = self.run(state, register, kind, wanted)?;
        let privilege = current_privilege(state);
        let bytes = count * u64::from(self.size);
        let (lowest, room) = environment
            .ram(state, linear, bytes as u32, kind, privilege)
            .ok()??;
        (u64::from(room) >= bytes).then(|| (count, self.first_of(lowest, count)))
    }

    /// Host memory of runs of equal length at SI and DI.
    ///
    /// The source's pointer is used after the destination's was requested: the guest's RAM does not
    /// move while an instruction executes.
    pub fn host_runs(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        destination: AccessKind,
        wanted: u64,
    ) -> Option<(u64, *mut u8, *mut u8)> {
        if self.checks_alignment(state) {
            return None;
        }
        let wanted = self.run(state, Gpr::Rsi, AccessKind::Read, wanted)?.0;
        let wanted = self.run(state, Gpr::Rdi, destination, wanted)?.0;
        let (count, source) =
            self.host_run(state, environment, Gpr::Rsi, AccessKind::Read, wanted)?;
        let (same, target) = self.host_run(state, environment, Gpr::Rdi, destination, count)?;
        (same == count).then_some((count, source, target))
    }

    /// The address of the first of `count` elements whose lowest one is at `lowest`.
    fn first_place(&self, lowest: LinearAddress, count: u64) -> LinearAddress {
        match self.direction {
            Direction::Forward => lowest,
            Direction::Backward => LinearAddress(
                lowest
                    .0
                    .wrapping_add((count - 1).wrapping_mul(u64::from(self.size))),
            ),
        }
    }

    fn elements(&self, count: u64) -> Elements {
        Elements {
            count,
            size: self.size,
            backward: self.direction == Direction::Backward,
        }
    }

    /// Makes the environment move some of `wanted` elements from SI to DI at once. Returns how
    /// many, or zero.
    pub fn move_elements(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        wanted: u64,
    ) -> u64 {
        let runs = || {
            let wanted = self.run(state, Gpr::Rsi, AccessKind::Read, wanted)?.0;
            let (count, destination) = self.run(state, Gpr::Rdi, AccessKind::Write, wanted)?;
            let (same, source) = self.run(state, Gpr::Rsi, AccessKind::Read, count)?;
            (same == count && count > 1).then_some((count, source, destination))
        };
        let Some((count, source, destination)) = runs() else {
            return 0;
        };
        if self.checks_alignment(state) {
            return 0;
        }
        let places = [source, destination].map(|lowest| self.first_place(lowest, count));
        let privilege = current_privilege(state);
        environment.move_elements(state, places, self.elements(count), privilege)
    }

    /// Makes the environment store `value` to some of `wanted` elements at DI at once. Returns how
    /// many, or zero.
    pub fn store_elements(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        value: u64,
        wanted: u64,
    ) -> u64 {
        let run = self.run(state, Gpr::Rdi, AccessKind::Write, wanted);
        let Some((count, lowest)) = run.filter(|run| run.0 > 1) else {
            return 0;
        };
        if self.checks_alignment(state) {
            return 0;
        }
        let place = self.first_place(lowest, count);
        let privilege = current_privilege(state);
        environment.store_elements(state, place, self.elements(count), value, privilege)
    }

    /// Reads the next element at SI or DI.
    ///
    /// # Errors
    /// The fault of the access.
    pub fn read_element(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        register: Gpr,
    ) -> Result<u64, Exception> {
        let mut bytes = [0; 8];
        let used = &mut bytes[..self.size as usize];
        read_memory(state, environment, self.element(state, register), used)?;
        Ok(u64::from_le_bytes(bytes))
    }

    /// Reads the next element at SI, for an instruction that then accesses the one at DI in the
    /// given way. A device is read only after that access was checked: the read may have side
    /// effects, and the instruction would be started again after a fault.
    ///
    /// # Errors
    ///
    /// The fault of this read, or of the access at DI that follows.
    pub fn read_source(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        then: AccessKind,
    ) -> Result<u64, Exception> {
        let privilege = current_privilege(state);
        let source = self.element(state, Gpr::Rsi);
        let source = linear_address(state, source, self.size, AccessKind::Read)?;
        check_alignment(state, source, self.size, privilege)?;
        if environment
            .ram(state, source, self.size, AccessKind::Read, privilege)?
            .is_none()
        {
            let destination = self.element(state, Gpr::Rdi);
            let destination = linear_address(state, destination, self.size, then)?;
            if then == AccessKind::Write {
                probe_linear(state, environment, destination, self.size, privilege)?;
            } else {
                environment.ram(state, destination, self.size, then, privilege)?;
            }
        }
        self.read_element(state, environment, Gpr::Rsi)
    }

    /// Writes the next element at DI.
    ///
    /// # Errors
    /// The fault of the access.
    pub fn write_element(
        &self,
        state: &CpuState,
        environment: &mut dyn Environment,
        value: u64,
    ) -> Result<(), Exception> {
        let bytes = &value.to_le_bytes()[..self.size as usize];
        write_memory(state, environment, self.element(state, Gpr::Rdi), bytes)
    }
}
