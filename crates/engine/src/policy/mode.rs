//! The mode word: everything except the code's bytes and address that decides how code is
//! translated.
//!
//! All guest code that runs the same bytes in the same mode shares blocks, so emitted code never
//! checks what the mode word settles.

use crate::abi::flags::InterruptFlag;
use crate::abi::link_layout::{
    BranchTable, COMMON_TABLES, FamilyId, MAX_TABLES_OF_32_BIT_CODE, MAX_TABLES_OF_32_BIT_PROGRAMS,
    ModeId, PROGRAMS_TABLES, SlotsFor,
};
use crate::policy::access::Access;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use tollgate_tlb::long_tlb::PART_SPAN;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::flags::Flags;
use tollgate_x86::registers::{Cr0, Cr4};
use tollgate_x86::{CpuState, Segment, SegmentRegister};

/// What emitted code must do to use a segment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub enum SegmentClass {
    /// Base zero, limit 4 GiB, readable and writable: emitted code does nothing.
    Flat,
    /// Limit 4 GiB, readable and writable: emitted code adds the base.
    Based,
    /// Expand-up, readable and writable, limit FFFFh: emitted code adds the base; an offset of 16
    /// bits needs a check only if the operand can wrap.
    Limited64K,
    /// Expand-up, readable and writable: emitted code checks the limit and adds the base.
    Limited,
    /// Any other segment: the monitor makes the access with every check.
    Odd,
}

impl SegmentClass {
    /// Whether the limit must be checked, since it is less than 4 GiB.
    pub const fn is_limited(self) -> bool {
        matches!(self, SegmentClass::Limited | SegmentClass::Limited64K)
    }

    fn of(segment: &Segment, code_may_be_read: bool) -> Self {
        let attributes = segment.attributes;
        let usable = segment.is_usable()
            && !attributes.is_expand_down()
            && (attributes.is_writable_data() || (code_may_be_read && attributes.is_readable()));
        match (usable, segment.limit, segment.base) {
            (false, ..) => SegmentClass::Odd,
            (true, u32::MAX, 0) => SegmentClass::Flat,
            (true, u32::MAX, _) => SegmentClass::Based,
            (true, 0xffff, _) => SegmentClass::Limited64K,
            (true, ..) => SegmentClass::Limited,
        }
    }
}

bitflags::bitflags! {
    /// The single-bit parts of the mode word.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
    pub struct ModeFlags: u32 {
        /// The code segment is a 32-bit segment.
        const CODE32 = 1 << 0;
        /// The stack segment is a 32-bit segment. Also set for 64-bit code, whose stack pointer has
        /// 64 bits.
        const STACK32 = 1 << 1;
        /// CR0.PE is set.
        const PROTECTED = 1 << 2;
        /// EFLAGS.VM is set.
        const VIRTUAL_8086 = 1 << 3;
        /// The CPL is 3: memory is reached through the user view.
        const USER = 1 << 4;
        /// CR0.TS is set.
        const TASK_SWITCHED = 1 << 5;
        /// CR0.EM is set.
        const EMULATE_X87 = 1 << 6;
        /// CR0.MP is set.
        const MONITOR_COPROCESSOR = 1 << 7;
        /// CR4.OSFXSR is set.
        const OSFXSR = 1 << 8;
        /// CR4.OSXSAVE is set, and XCR0 enables AVX.
        const AVX = 1 << 9;
        /// Stores through CS are allowed (real mode, V86 mode, 64-bit code).
        const CODE_WRITABLE = 1 << 10;
        /// RDTSC faults: CR4.TSD is set and the CPL is 3.
        const TIME_STAMP_DISABLED = 1 << 11;
        /// Blocks contain one instruction and always return to the monitor.
        const SINGLE = 1 << 12;
        /// The memory operand is the bounce buffer (implies SINGLE).
        const BOUNCE = 1 << 13;
        /// The monitor makes every access: misaligned accesses fault (CR0.AM and EFLAGS.AC at CPL
        /// 3), or DR7 watches memory.
        const ACCESSES_CHECKED = 1 << 14;
        /// The code is 64-bit code: EFER.LMA and CS.L are set.
        const CODE64 = 1 << 15;
        /// EFER.LMA is set: memory is reached through the long software TLB, by compatibility code
        /// too.
        const LONG = 1 << 16;
        /// CLI and STI are permitted, and POPF changes IF: the CPL is at most IOPL, or this is real
        /// mode.
        const IO_PRIVILEGED = 1 << 17;
        /// Protected mode with CPL 0.
        const KERNEL = 1 << 18;
        /// EFLAGS.NT is set in protected mode (IRET returns to another task), or EFLAGS.AC in real
        /// mode (INT n clears it).
        const RARE_FLAGS = 1 << 19;
        /// NMIs are held off until IRET.
        const NMI_BLOCKED = 1 << 20;
        /// The extension is enabled that lets programs use EFLAGS.VIF: CR4.VME in V86 mode, CR4.PVI
        /// at CPL 3 of protected mode. Programs use that flag at IOPL below 3.
        const VIRTUAL_INTERRUPTS = 1 << 21;
        /// CR4.OSXSAVE is set, and XCR0 enables AVX-512.
        const AVX_512 = 1 << 22;
        /// Each stack access has a look-up of its own (see [`Mode::windowless`]).
        const WINDOWLESS = 1 << 23;
        /// CR4.FSGSBASE is set, in 64-bit code.
        const FSGSBASE = 1 << 24;
    }
}

/// The mode word, with the two numbers that cannot be folded into bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, Serialize, Deserialize)]
pub struct Mode {
    /// All yes-or-no properties of the mode.
    pub flags: ModeFlags,
    /// The classes of ES, CS, SS, DS, FS and GS.
    pub segments: [SegmentClass; 6],
    /// The base of CS.
    pub code_base: u32,
    /// The limit of CS.
    pub code_limit: u32,
    /// How memory is reached.
    pub access: Access,
}

impl Mode {
    /// The mode in which the processor would execute its next instruction.
    pub fn of(state: &CpuState) -> Self {
        let mut flags = ModeFlags::empty();
        let cs = state.cs();
        let real = state.has_real_mode_segments();
        let cr0 = state.cr0();
        let cr4 = state.cr4();
        let user = state.cpl() == 3;
        flags.set(ModeFlags::CODE32, cs.is_big());
        flags.set(ModeFlags::STACK32, state.ss().is_big());
        flags.set(ModeFlags::PROTECTED, cr0.contains(Cr0::PE));
        flags.set(ModeFlags::VIRTUAL_8086, state.is_virtual_8086());
        flags.set(ModeFlags::USER, user);
        flags.set(ModeFlags::TASK_SWITCHED, cr0.contains(Cr0::TS));
        flags.set(ModeFlags::EMULATE_X87, cr0.contains(Cr0::EM));
        flags.set(ModeFlags::MONITOR_COPROCESSOR, cr0.contains(Cr0::MP));
        flags.set(ModeFlags::OSFXSR, cr4.contains(Cr4::OSFXSR));
        flags.set(
            ModeFlags::AVX,
            cr4.contains(Cr4::OSXSAVE) && state.xcr0 & 6 == 6,
        );
        flags.set(
            ModeFlags::AVX_512,
            cr4.contains(Cr4::OSXSAVE) && state.xcr0 & 0xe6 == 0xe6,
        );
        flags.set(ModeFlags::CODE_WRITABLE, real);
        flags.set(
            ModeFlags::TIME_STAMP_DISABLED,
            user && cr4.contains(Cr4::TSD),
        );
        flags.set(
            ModeFlags::ACCESSES_CHECKED,
            user && cr0.contains(Cr0::AM) && state.flags().contains(Flags::AC)
                || state.has_data_breakpoints(),
        );
        flags.set(
            ModeFlags::SINGLE,
            state.flags().contains(Flags::TF) || state.has_breakpoints(),
        );
        flags.set(ModeFlags::LONG, state.is_long_mode());
        flags.set(
            ModeFlags::IO_PRIVILEGED,
            !state.is_protected() || state.cpl() <= state.flags().iopl(),
        );
        flags.set(ModeFlags::KERNEL, state.is_protected() && state.cpl() == 0);
        let rare = if state.is_protected() {
            Flags::NT
        } else {
            Flags::AC
        };
        flags.set(ModeFlags::RARE_FLAGS, state.flags().contains(rare));
        flags.set(ModeFlags::NMI_BLOCKED, state.nmi_blocked);
        let extension = if state.is_virtual_8086() {
            Cr4::VME
        } else {
            Cr4::PVI
        };
        flags.set(
            ModeFlags::VIRTUAL_INTERRUPTS,
            state.is_protected() && user && cr4.contains(extension),
        );
        if state.is_64_bit() {
            flags.set(ModeFlags::FSGSBASE, cr4.contains(Cr4::FSGSBASE));
            return Self::of_64_bit(flags);
        }
        let mut segments = [SegmentClass::Odd; 6];
        for register in SegmentRegister::ALL {
            segments[register as usize] = SegmentClass::of(
                state.segment(register),
                register == SegmentRegister::Cs || real,
            );
        }
        Self {
            flags,
            segments,
            code_base: cs.base as u32,
            code_limit: cs.limit,
            access: Access::Checked,
        }
    }

    /// The mode of 64-bit code with these flags. In 64-bit code segments have no limits and rights,
    /// and only FS and GS have bases (SDM volume 3, 3.2.4); the stack pointer always has 64 bits.
    fn of_64_bit(flags: ModeFlags) -> Self {
        let mut segments = [SegmentClass::Flat; 6];
        for register in [SegmentRegister::Fs, SegmentRegister::Gs] {
            segments[register as usize] = SegmentClass::Based;
        }
        let ignored = ModeFlags::CODE32 | ModeFlags::STACK32 | ModeFlags::CODE_WRITABLE;
        let always = ModeFlags::CODE64 | ModeFlags::STACK32 | ModeFlags::CODE_WRITABLE;
        Self {
            flags: (flags - ignored) | always,
            segments,
            code_base: 0,
            code_limit: u32::MAX,
            access: Access::Checked,
        }
    }

    /// Whether segment registers are loaded as in real mode: in real mode and V86 mode.
    pub fn has_real_mode_segments(&self) -> bool {
        !self.flags.contains(ModeFlags::PROTECTED) || self.flags.contains(ModeFlags::VIRTUAL_8086)
    }

    /// The flag that CLI and STI change, if they may change one. The result equals that of
    /// `tollgate_emulate::virtual_8086::interrupt_flag`.
    pub fn interrupt_flag(&self) -> Option<InterruptFlag> {
        if self.flags.contains(ModeFlags::IO_PRIVILEGED) {
            Some(InterruptFlag::Real)
        } else if self.flags.contains(ModeFlags::VIRTUAL_INTERRUPTS) {
            Some(InterruptFlag::Virtual)
        } else {
            None
        }
    }

    /// Whether code of this mode may be relocatable (see [`crate::abi::relocation`]): flat 32-bit
    /// or 64-bit code of programs may. Every branch into such a mode determines the target's slide.
    pub fn is_relocatable(&self) -> bool {
        let flags = self.flags;
        let program = ModeFlags::USER | ModeFlags::PROTECTED;
        let none = ModeFlags::VIRTUAL_8086 | ModeFlags::SINGLE | ModeFlags::BOUNCE;
        let is_flat = self.code_base == 0 && self.code_limit == u32::MAX;
        flags.contains(program)
            && !flags.intersects(none)
            && (flags.contains(ModeFlags::CODE64) || flags.contains(ModeFlags::CODE32) && is_flat)
    }

    /// Whether code at `rip` is relocatable, in a mode that [may be
    /// relocatable](Self::is_relocatable).
    ///
    /// Code near the ends of the address space is not, since a direct branch may fault there or an
    /// address wrap. Nor is code where programs lie that are linked for fixed addresses, since they
    /// gain nothing: 32-bit programs of this kind lie from 0804_8000h on. Linux puts relocatable
    /// 32-bit programs, and the loader if it is started by itself, shortly after 40_0000h.
    ///
    /// 64-bit code with direct accesses reaches RIP-relative operands through the part that
    /// contains the slide (see `emit/direct.rs`). That is the part of `rip`, except shortly after
    /// the part's start.
    pub fn is_relocatable_at(&self, rip: u64) -> bool {
        /// No link address lies at or above this address: see `blocks/link_pages.rs`.
        const HOMES_END: u64 = 1 << 31;
        const LINKED_32_BIT: Range<u64> = 1 << 27..1 << 28;
        let is_place = match self.flags.contains(ModeFlags::CODE64) {
            true => (1 << 31..(1 << 47) - (1 << 32)).contains(&rip),
            false => {
                (1 << 20..(1 << 32) - PAGE_SIZE).contains(&rip) && !LINKED_32_BIT.contains(&rip)
            }
        };
        let uses_part = self.access.is_direct() && self.flags.contains(ModeFlags::CODE64);
        let has_delta_in_part = rip % PART_SPAN >= HOMES_END;
        is_place && self.is_relocatable() && (has_delta_in_part || !uses_part)
    }

    /// Whether instructions run alone, or the monitor makes each access. Translated code then takes
    /// no shortcuts: an instruction that it could otherwise execute in the monitor's place exits.
    pub fn is_watched(&self) -> bool {
        (self.flags).intersects(ModeFlags::SINGLE | ModeFlags::BOUNCE | ModeFlags::ACCESSES_CHECKED)
    }

    /// The code size in bits: 16, 32 or 64.
    pub fn bitness(&self) -> u32 {
        if self.flags.contains(ModeFlags::CODE64) {
            64
        } else if self.flags.contains(ModeFlags::CODE32) {
            32
        } else {
            16
        }
    }

    /// Truncates an instruction pointer to the bits that code of this mode has: 64 or 32.
    pub fn wrap(&self, rip: u64) -> u64 {
        if self.flags.contains(ModeFlags::CODE64) {
            rip
        } else {
            rip & 0xffff_ffff
        }
    }

    /// The bits of RSP that stack instructions change: 64, 32 or 16.
    pub fn stack_mask(&self) -> u64 {
        if self.flags.contains(ModeFlags::CODE64) {
            u64::MAX
        } else if self.flags.contains(ModeFlags::STACK32) {
            0xffff_ffff
        } else {
            0xffff
        }
    }

    /// The linear address of code at `rip`.
    pub fn linear(&self, rip: u64) -> u64 {
        self.wrap(rip.wrapping_add(u64::from(self.code_base)))
    }

    /// How accesses through a segment are made. Stores through a code segment are `Odd` except
    /// where real-mode rules hold, and all accesses are `Odd` where the monitor makes each access.
    pub fn segment(&self, register: SegmentRegister, write: bool) -> SegmentClass {
        if self.flags.contains(ModeFlags::ACCESSES_CHECKED) {
            return SegmentClass::Odd;
        }
        if register == SegmentRegister::Cs
            && write
            && !self.flags.contains(ModeFlags::CODE_WRITABLE)
        {
            return SegmentClass::Odd;
        }
        self.segments[register as usize]
    }

    /// Whether this is 64-bit code whose indirect branches look for their targets, which needs a
    /// table of its own.
    fn needs_table(&self) -> bool {
        self.flags.contains(ModeFlags::CODE64) && !self.flags.contains(ModeFlags::SINGLE)
    }

    /// Whether this is protected 32-bit code without a base of CS whose indirect branches look for
    /// their targets, which may have a table of its own.
    ///
    /// The same code is often run in several modes; a kernel's code, for example, runs with each
    /// state of the segments that its programs leave. In one table its targets would evict each
    /// other. But there may be many such modes.
    fn may_have_table(&self) -> bool {
        let needed = ModeFlags::CODE32 | ModeFlags::PROTECTED;
        let none = ModeFlags::SINGLE | ModeFlags::VIRTUAL_8086;
        self.flags.contains(needed) && !self.flags.intersects(none) && self.code_base == 0
    }

    /// Returns this mode with the given form of access, or the best one that it supports: anchored
    /// access becomes direct access, and that becomes a look-up.
    pub fn with_access(mut self, access: Access) -> Self {
        let is_64_bit_program = self
            .flags
            .contains(ModeFlags::LONG | ModeFlags::USER | ModeFlags::CODE64);
        self.access = match self.may_be_direct() {
            true if access == Access::Anchored && !is_64_bit_program => Access::Direct,
            true if access == Access::PartlyNative && !is_64_bit_program => Access::Checked,
            true => access,
            false => Access::Checked,
        };
        self
    }

    /// Whether accesses may be direct. In IA-32e mode those of programs, and of 64-bit code at
    /// level 0, may be; outside IA-32e mode all may be except those of 32-bit code on a 16-bit
    /// stack. None may be if each access is watched.
    fn may_be_direct(&self) -> bool {
        let program = ModeFlags::LONG | ModeFlags::USER;
        let kernel = ModeFlags::KERNEL | ModeFlags::CODE64;
        let is_narrow = !self.flags.contains(ModeFlags::LONG)
            && (self.is_16_bit() || self.flags.contains(ModeFlags::STACK32));
        let has_them = self.flags.contains(program) || self.flags.contains(kernel) || is_narrow;
        has_them && !self.is_watched()
    }

    /// The slots through which branches of this mode lead to other pages.
    pub fn slots(&self) -> SlotsFor {
        match self.flags.contains(ModeFlags::USER) {
            true => SlotsFor::Programs,
            false => SlotsFor::Kernels,
        }
    }

    /// Whether this is real mode.
    pub fn is_real(&self) -> bool {
        !self.flags.contains(ModeFlags::PROTECTED)
    }

    /// Whether this is code of real mode, of V86 mode, or of a 16-bit segment of protected mode.
    fn is_16_bit(&self) -> bool {
        self.has_real_mode_segments()
            || !(self.flags).intersects(ModeFlags::CODE32 | ModeFlags::CODE64)
    }

    /// Whether this is 16-bit code outside IA-32e mode.
    pub fn is_16_bit_of_32_bit_guest(&self) -> bool {
        self.is_16_bit() && !self.flags.contains(ModeFlags::LONG)
    }

    /// Whether direct accesses of this mode's code are made by the host's GS. While the guest is in
    /// real mode, GS leads to the shadow window of the supervisor's view. While it is in protected
    /// mode outside IA-32e mode, GS leads to that of the user's view, so 16-bit code at level 3
    /// uses GS, and no change of the privilege level changes it.
    pub fn reaches_by_gs(&self) -> bool {
        let uses_view_of_gs = self.is_real() || self.flags.contains(ModeFlags::USER);
        uses_view_of_gs && self.is_16_bit_of_32_bit_guest()
    }

    /// This mode without look-ups that several stack accesses share: for code that continues where
    /// such a look-up has missed. Its branches lead to the mode with shared look-ups.
    pub fn windowless(mut self) -> Self {
        self.flags |= ModeFlags::WINDOWLESS;
        self
    }

    /// The mode that branches of this mode's code lead to, if they change nothing else.
    fn of_branches(mut self) -> Self {
        self.flags -= ModeFlags::WINDOWLESS;
        self
    }

    /// This mode for one instruction that is run alone.
    pub fn single(mut self) -> Self {
        self.flags |= ModeFlags::SINGLE;
        self.access = Access::Checked;
        self
    }

    /// This mode for one instruction that is run on the bounce buffer.
    pub fn bounce(mut self) -> Self {
        self.flags |= ModeFlags::SINGLE | ModeFlags::BOUNCE;
        self.access = Access::Checked;
        self
    }
}

/// All modes that have occurred so far.
#[derive(Default)]
pub struct Modes {
    ids: FxHashMap<Mode, ModeId>,
    modes: Vec<Mode>,
    /// The identifier of each family, by the member of the family that has a CS base of zero.
    family_ids: FxHashMap<Mode, FamilyId>,
    /// The family of each mode.
    families: Vec<FamilyId>,
    /// The table of indirect branches of each mode.
    tables: Vec<BranchTable>,
    /// The mode that the branches of each mode lead to.
    of_branches: Vec<ModeId>,
    /// How many tables belong to one mode each: tables of programs' modes, and of all others.
    programs_tables_taken: u8,
    common_tables_taken: u8,
    /// The two modes that were looked up last, since a program's and its kernel's modes alternate.
    latest: [ModeId; 2],
}

impl Modes {
    /// The number of a mode, which is assigned when the mode first occurs.
    #[inline]
    pub fn intern(&mut self, mode: Mode) -> ModeId {
        for id in self.latest {
            if self.modes.get(id.0 as usize) == Some(&mode) {
                return id;
            }
        }
        let id = self.find_or_add(mode);
        self.latest = [id, self.latest[0]];
        id
    }

    fn find_or_add(&mut self, mode: Mode) -> ModeId {
        if let Some(&id) = self.ids.get(&mode) {
            return id;
        }
        if mode.flags.contains(ModeFlags::WINDOWLESS) {
            let led_to = self.intern(mode.of_branches());
            let id = ModeId(self.modes.len() as u32);
            self.modes.push(mode);
            self.families.push(self.family(led_to));
            self.tables.push(self.table(led_to));
            self.of_branches.push(led_to);
            self.ids.insert(mode, id);
            return id;
        }
        let id = ModeId(self.modes.len() as u32);
        let table = self.take_table(&mode);
        let of_family = Mode {
            code_base: 0,
            ..mode
        };
        let next_family = FamilyId(self.family_ids.len() as u32);
        let family = *self.family_ids.entry(of_family).or_insert(next_family);
        self.modes.push(mode);
        self.families.push(family);
        self.tables.push(table);
        self.of_branches.push(id);
        self.ids.insert(mode, id);
        id
    }

    /// Assigns a table to a mode that occurs for the first time.
    fn take_table(&mut self, mode: &Mode) -> BranchTable {
        let is_programs = mode.flags.contains(ModeFlags::USER);
        let (taken, most_of_32_bit_code, first, shared) = match is_programs {
            true => (
                &mut self.programs_tables_taken,
                MAX_TABLES_OF_32_BIT_PROGRAMS,
                0,
                BranchTable::SharedByPrograms,
            ),
            false => (
                &mut self.common_tables_taken,
                MAX_TABLES_OF_32_BIT_CODE,
                PROGRAMS_TABLES,
                BranchTable::Shared,
            ),
        };
        if !(mode.needs_table() || mode.may_have_table() && *taken < most_of_32_bit_code) {
            return shared;
        }
        *taken += 1;
        BranchTable::Own(first + *taken - 1)
    }

    /// Whether no table is left for a mode that needs one and has not occurred yet.
    pub fn is_full_for(&self, mode: &Mode) -> bool {
        let is_full = match mode.flags.contains(ModeFlags::USER) {
            true => self.programs_tables_taken >= PROGRAMS_TABLES,
            false => self.common_tables_taken >= COMMON_TABLES,
        };
        mode.needs_table() && is_full && !self.ids.contains_key(mode)
    }

    /// Where a mode's indirect branches find their targets.
    pub fn table(&self, id: ModeId) -> BranchTable {
        self.tables[id.0 as usize]
    }

    /// The mode that the branches of a mode's code lead to if they change nothing else: the mode
    /// itself, or for a mode without shared look-ups the mode with them. Both modes have the same
    /// table.
    pub fn of_branches(&self, id: ModeId) -> ModeId {
        self.of_branches[id.0 as usize]
    }

    /// The family that a mode belongs to.
    pub fn family(&self, id: ModeId) -> FamilyId {
        self.families[id.0 as usize]
    }

    /// The number of modes.
    pub fn len(&self) -> usize {
        self.modes.len()
    }

    /// Whether no mode has occurred yet.
    pub fn is_empty(&self) -> bool {
        self.modes.is_empty()
    }

    /// The mode that has this number.
    pub fn get(&self, id: ModeId) -> &Mode {
        &self.modes[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_of_32_bit_code_leave_tables_to_64_bit_code() {
        let mut modes = Modes::default();
        let real = Mode::of(&CpuState::at_reset());
        let with = |flags: ModeFlags, code_limit: u32| Mode {
            flags,
            code_base: 0,
            code_limit,
            ..real
        };
        let flat = ModeFlags::CODE32 | ModeFlags::PROTECTED;
        let number = |table| match table {
            BranchTable::Own(number) => Some(number),
            BranchTable::Shared | BranchTable::SharedByPrograms => None,
        };
        let mut taken = std::collections::BTreeSet::new();
        for index in 0..100 {
            let id = modes.intern(with(flat, index));
            let table = number(modes.table(id));
            assert_eq!(
                table.is_some(),
                index < u32::from(MAX_TABLES_OF_32_BIT_CODE)
            );
            assert!(table.is_none_or(|table| taken.insert(table)));
        }
        for index in 0..100 {
            let id = modes.intern(with(flat | ModeFlags::USER, index));
            let table = number(modes.table(id));
            assert_eq!(
                table.is_some(),
                index < u32::from(MAX_TABLES_OF_32_BIT_PROGRAMS)
            );
            assert!(table.is_none_or(|table| table < PROGRAMS_TABLES && taken.insert(table)));
        }
        for other in [ModeFlags::SINGLE, ModeFlags::VIRTUAL_8086] {
            let mut modes = Modes::default();
            let id = modes.intern(with(flat | other, 0));
            assert_eq!(modes.table(id), BranchTable::Shared);
        }
        let long = with(ModeFlags::CODE64 | ModeFlags::PROTECTED, 0);
        assert!(!modes.is_full_for(&long));
        let id = modes.intern(long);
        let table = number(modes.table(id));
        assert!(table.is_some_and(|table| taken.insert(table)));
    }

    #[test]
    fn code_without_windows_branches_as_code_with_them() {
        let mut modes = Modes::default();
        let plain = Mode::of(&CpuState::at_reset());
        let without = modes.intern(plain.windowless());
        let with = modes.intern(plain);
        assert_ne!(without, with);
        assert_eq!(modes.intern(plain.windowless()), without);
        assert_eq!(modes.of_branches(without), with);
        assert_eq!(modes.of_branches(with), with);
        assert_eq!(modes.table(without), modes.table(with));
        assert_eq!(modes.family(without), modes.family(with));
    }
}
