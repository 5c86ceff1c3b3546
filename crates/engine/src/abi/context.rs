//! The structure that generated code reaches through R15, and the way in and out.
//!
//! R15 points [`BIAS`] bytes into the structure. Its low six bits are then always
//! 12, so that `shrx reg, reg, r15` yields a page number without another register
//! and without touching flags; and small displacements reach both sides.

use crate::abi::block::{Shadow, X87Note};
use crate::abi::descriptors::Expected;
use crate::abi::level_change::{LevelChange, LevelChangeKind};
use crate::engine::Engine;
use crate::policy::mode::InterruptFlag;
use std::mem::offset_of;
use std::sync::atomic::AtomicU32;
use tollgate_memory::GuestMemory;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::flags::Flags;
use tollgate_x86::registers::Gpr;
use tollgate_x86::state::TableRegister;
use tollgate_x86::{CpuState, Segment, SegmentRegister};

/// Distance from the start of [`Context`] to where R15 points; 12 modulo 64.
pub const BIAS: i32 = 76;

/// Value of `exit_site` when guest code was not entered at all.
pub const SITE_NONE: u32 = u32::MAX;
/// Value of `exit_site` when a signal took the guest out; see [`SignalExit`].
pub const SITE_SIGNAL: u32 = u32::MAX - 1;

/// In `x87_opcode`: the note was made since the vector registers were last saved.
pub const X87_FRESH: u32 = 1 << 31;

/// What a signal handler found out about the guest that it interrupted.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct SignalExit {
    /// The signal's number; 0 for a request to leave at the next boundary.
    pub signal: i32,
    /// The signal's code (`si_code`).
    pub code: i32,
    /// EIP of the instruction that had not completed.
    pub rip: u64,
    /// Added to the register that holds ESP to get the guest's ESP.
    pub esp: i32,
    /// The faulting host address, for SIGSEGV and SIGBUS.
    pub address: u64,
    /// The instruction holds interrupts off until it has completed.
    pub shadowed: Shadow,
}

/// All that generated code may touch beside guest memory.
#[repr(C, align(64))]
pub struct Context {
    /// The host's stack pointer while guest code runs.
    pub host_rsp: u64,
    /// Which exit was taken: block number and site, or one of the `SITE_` values.
    pub exit_site: u32,
    /// OF in the low byte, SF ZF AF PF CF as LAHF has them in the high byte.
    pub arithmetic: u16,
    _reserved: u16,
    /// The address or target that goes with the exit.
    pub exit_value: u64,
    /// Set by signals: leave guest code at the next boundary, do not enter it.
    pub pending: AtomicU32,
    _reserved2: u32,
    /// Zero while the guest's x87/SSE/AVX registers are in the host's.
    pub vectors_off: u64,
    /// EFLAGS.IF: 0 or [`Flags::IF`]. Guest code reads and changes it here.
    pub interrupt_flag: u64,
    /// The virtual interrupt request: [`Flags::IF`] while an interrupt waits for the flag
    /// or for the end of a shadow, else 0. Set by the monitor.
    pub interrupt_request: u64,
    /// +1 or -1: the direction of string instructions.
    pub direction: i64,
    /// Address of the exit path.
    pub exit_entry: u64,
    /// The current view's software TLB (R14 in guest code).
    pub tlb: u64,
    /// The current link tables (R13 in guest code).
    pub links: u64,
    /// The flags in [`SYSTEM_FLAGS`], which guest code reads; of them it changes VIF alone.
    pub system_flags: u64,
    /// Where a bounced memory operand lies, inside `bounce`.
    pub bounce_pointer: u64,
    /// Added to the host's time-stamp counter.
    pub time_stamp_offset: u64,
    /// RIP of the last x87 instruction that is not a control instruction; only its low 32
    /// bits count if that is not 64-bit code.
    pub x87_instruction: u64,
    /// Its opcode (11 bits), from bit 16 on the segment register of its memory operand
    /// plus one (0: no operand), and [`X87_FRESH`].
    pub x87_opcode: u32,
    /// CS of the last x87 instruction. FNINIT clears this and the next at once.
    pub x87_code_selector: u16,
    /// Selector of the last memory operand's segment.
    pub x87_data_selector: u16,
    /// Linear address of its memory operand, if it had one.
    pub x87_operand: u64,
    /// The guest registers that live here, by number (see [`crate::abi::register_map`]):
    /// filled before guest code is entered, valid until it is left. Slots of registers
    /// that live in host registers are room for code that needs the host register. R8 to
    /// R15 have theirs in `cpu`.
    pub spilled: [u64; 8],
    /// Offset of the last memory operand in its segment.
    pub x87_operand_offset: u64,
    /// Holds the memory operand of an instruction that is run alone.
    pub bounce: BounceBuffer,
    /// The processor.
    pub cpu: CpuState,
    /// Filled in by signal handlers.
    pub signal: SignalExit,
    /// For signal handlers: finds the guest instruction of a host address.
    pub engine: *const Engine,
    /// Addresses of [`crate::gate::code_store`], by the size of the store.
    pub code_store: [u64; STORE_SIZES.len()],
    /// The same for modes whose memory is reached through the long software TLB.
    pub long_code_store: [u64; STORE_SIZES.len()],
    /// The map of lines that hold code, so that the host page number of RAM is its index.
    pub code_lines: u64,
    /// Where the block goes on whose store is tested.
    pub store_return: u64,
    /// Host address minus linear address of that store.
    pub store_delta: u64,
    /// What a descriptor must be like for a load of CS to change nothing.
    pub code_descriptor: Expected,
    /// The same of SS.
    pub stack_descriptor: Expected,
    /// The limit of the current TSS, if that has 32 bits and may hold a bitmap for I/O and one
    /// for INT n, else 0.
    pub task_limit: u64,
    /// Values that an instruction needs later than registers are free for them. Of an
    /// interrupt's frame: the flags in it, IF behind it, and its host address.
    pub work: [u64; 3],
    /// Set by the monitor: load the vector registers on the way in.
    pub load_vectors: u64,
    /// Set on the way out if the vector registers were live and have been saved.
    pub vectors_were_live: u64,
    /// Set by a task switch out of guest code: the way in is one too.
    pub switch_in: u64,
    /// Where to enter guest code.
    pub target: u64,
    /// By [`LevelChangeKind`]: what such an instruction comes to, if that is known.
    pub level_changes: [LevelChange; LevelChangeKind::ALL.len()],
    /// Set by guest code that has changed the privilege level: the mode is another one than
    /// it was entered in.
    pub level_changed: u64,
    /// Zero minus the site whose next store may hit a line with code, since the monitor
    /// knows that it hits none of the code; [`NO_PASS`].
    pub store_pass: u64,
    /// Guest instructions begun, if blocks count them.
    pub instructions: u64,
}

/// Sizes in bytes of the stores that are tested without an exit; 6 and 12 are frames of
/// interrupts.
pub const STORE_SIZES: [u8; 8] = [1, 2, 4, 6, 8, 12, 16, 32];
/// In `store_pass`: no site.
pub const NO_PASS: u64 = 1;

/// The flags that guest code does not change: whoever would, leaves for the monitor. But VIF
/// changes where programs may change it ([`crate::policy::mode::ModeFlags::VIRTUAL_INTERRUPTS`]).
pub const SYSTEM_FLAGS: Flags = Flags::TF
    .union(Flags::IOPL)
    .union(Flags::NT)
    .union(Flags::AC)
    .union(Flags::VIF)
    .union(Flags::VIP)
    .union(Flags::ID);

/// 64-byte aligned space for one operand at any alignment.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct BounceBuffer(pub [u8; 192]);

/// Displacement from R15 of a field at `offset`.
pub const fn displacement(offset: usize) -> i32 {
    offset as i32 - BIAS
}

/// Displacement from R15 of a general register's place.
pub const fn gpr_displacement(register: Gpr) -> i32 {
    displacement(offset_of!(Context, cpu) + offset_of!(CpuState, gpr) + register as usize * 8)
}

macro_rules! displacements {
    ($($name:ident = $field:ident,)+) => {
        $(pub const $name: i32 = displacement(offset_of!(Context, $field));)+
    };
}

// One store of FNINIT's clears both selectors.
const _: () =
    assert!(offset_of!(Context, x87_data_selector) == offset_of!(Context, x87_code_selector) + 2);

/// Displacements of the fields that emitted code names.
#[allow(
    missing_docs,
    reason = "each is the displacement of the field of that name"
)]
pub mod at {
    use super::*;
    displacements! {
        HOST_RSP = host_rsp,
        EXIT_SITE = exit_site,
        ARITHMETIC = arithmetic,
        EXIT_VALUE = exit_value,
        PENDING = pending,
        VECTORS_OFF = vectors_off,
        LOAD_VECTORS = load_vectors,
        VECTORS_WERE_LIVE = vectors_were_live,
        DIRECTION = direction,
        EXIT_ENTRY = exit_entry,
        TLB = tlb,
        LINKS = links,
        TARGET = target,
        BOUNCE_POINTER = bounce_pointer,
        TIME_STAMP_OFFSET = time_stamp_offset,
        X87_INSTRUCTION = x87_instruction,
        X87_OPCODE = x87_opcode,
        X87_OPERAND = x87_operand,
        X87_OPERAND_OFFSET = x87_operand_offset,
        X87_SELECTORS = x87_code_selector,
        CODE_LINES = code_lines,
        STORE_RETURN = store_return,
        STORE_DELTA = store_delta,
        STORE_PASS = store_pass,
        LEVEL_CHANGED = level_changed,
        SWITCH_IN = switch_in,
        INTERRUPT_FLAG = interrupt_flag,
        INTERRUPT_REQUEST = interrupt_request,
        SYSTEM_FLAGS = system_flags,
        CODE_DESCRIPTOR = code_descriptor,
        STACK_DESCRIPTOR = stack_descriptor,
        TASK_LIMIT = task_limit,
        INSTRUCTIONS = instructions,
    }

    /// Displacement of the address of the test for stores of `size` bytes, if there is one.
    pub fn code_store(size: u8) -> Option<i32> {
        let index = STORE_SIZES.iter().position(|&known| known == size)?;
        Some(displacement(offset_of!(Context, code_store) + index * 8))
    }

    /// The same for modes whose memory is reached through the long software TLB.
    pub fn long_code_store(size: u8) -> Option<i32> {
        let from_other = offset_of!(Context, long_code_store) - offset_of!(Context, code_store);
        code_store(size).map(|at| at + from_other as i32)
    }

    /// Displacement of a guest register's slot.
    pub const fn slot(guest: u8) -> i32 {
        let guest = guest as usize & 15;
        let slots = if guest < 8 {
            offset_of!(Context, spilled)
        } else {
            offset_of!(Context, cpu) + offset_of!(CpuState, gpr)
        };
        displacement(slots + guest * 8)
    }

    /// Displacement of the vector registers' save area.
    pub const VECTOR_AREA: i32 =
        displacement(offset_of!(Context, cpu) + offset_of!(CpuState, vector));

    /// Displacement of a segment register's base.
    pub const fn segment_base(register: tollgate_x86::SegmentRegister) -> i32 {
        segment(register) + offset_of!(tollgate_x86::Segment, base) as i32
    }

    /// Displacement of a segment register's limit.
    pub const fn segment_limit(register: tollgate_x86::SegmentRegister) -> i32 {
        segment(register) + offset_of!(tollgate_x86::Segment, limit) as i32
    }

    /// Displacement of what is known of a change of the privilege level.
    pub const fn level_change(kind: LevelChangeKind) -> i32 {
        displacement(offset_of!(Context, level_changes) + kind as usize * size_of::<LevelChange>())
    }

    /// Displacement of a segment register: its base, then limit, selector and attributes.
    pub const fn segment_register(register: tollgate_x86::SegmentRegister) -> i32 {
        segment(register)
    }

    /// Displacements of registers of the processor that guest code reads or swaps.
    pub mod register {
        use super::*;
        const fn cpu(offset: usize) -> i32 {
            displacement(offset_of!(Context, cpu) + offset)
        }
        /// As they were when guest code was entered, or the privilege level last changed.
        pub const FLAGS: i32 = cpu(offset_of!(CpuState, flags));
        pub const LSTAR: i32 = cpu(offset_of!(CpuState, lstar));
        pub const SYSENTER_EIP: i32 = cpu(offset_of!(CpuState, sysenter_eip));
        pub const SYSENTER_ESP: i32 = cpu(offset_of!(CpuState, sysenter_esp));
        pub const KERNEL_GS_BASE: i32 = cpu(offset_of!(CpuState, kernel_gs_base));
        pub const TSC_AUX: i32 = cpu(offset_of!(CpuState, tsc_aux));
    }

    /// Displacement of a segment register's selector; its attributes are the upper half of
    /// that doubleword.
    pub const fn segment_selector(register: tollgate_x86::SegmentRegister) -> i32 {
        const SELECTOR: usize = offset_of!(tollgate_x86::Segment, selector);
        const _: () = assert!(offset_of!(tollgate_x86::Segment, attributes) == SELECTOR + 2);
        segment(register) + SELECTOR as i32
    }

    /// Displacement of the IDT's linear address.
    pub const IDT_BASE: i32 = IDTR + offset_of!(TableRegister, base) as i32;
    /// Displacement of the TSS's linear address.
    pub const TASK_BASE: i32 = displacement(
        offset_of!(Context, cpu) + offset_of!(CpuState, tr) + offset_of!(Segment, base),
    );
    /// Displacement of the IDT's limit.
    pub const IDT_LIMIT: i32 = IDTR + offset_of!(TableRegister, limit) as i32;
    const IDTR: i32 = displacement(offset_of!(Context, cpu) + offset_of!(CpuState, idtr));
    /// Displacements of `work`.
    pub const WORK: [i32; 3] = {
        let first = displacement(offset_of!(Context, work));
        [first, first + 8, first + 16]
    };

    const fn segment(register: tollgate_x86::SegmentRegister) -> i32 {
        let size = std::mem::size_of::<tollgate_x86::Segment>();
        displacement(
            offset_of!(Context, cpu) + offset_of!(CpuState, segments) + register as usize * size,
        )
    }
}

impl Context {
    /// The slot of a guest register (its number modulo 16).
    pub fn slot_mut(&mut self, guest: u8) -> &mut u64 {
        match guest & 15 {
            low @ 0..8 => &mut self.spilled[usize::from(low)],
            high => &mut self.cpu.gpr[usize::from(high)],
        }
    }

    /// Fills the slots of the guest registers in `mask` (one bit each) from the processor;
    /// those of R8 to R15 are the processor's.
    pub fn scatter_registers(&mut self, mask: u16) {
        let mut rest = mask & 0xff;
        while rest != 0 {
            let guest = rest.trailing_zeros() as usize;
            self.spilled[guest] = self.cpu.gpr[guest];
            rest &= rest - 1;
        }
    }

    /// The reverse of [`Context::scatter_registers`].
    pub fn gather_registers(&mut self, mask: u16) {
        let mut rest = mask & 0xff;
        while rest != 0 {
            let guest = rest.trailing_zeros() as usize;
            self.cpu.gpr[guest] = self.spilled[guest];
            rest &= rest - 1;
        }
    }

    /// A context for a processor in `cpu`'s state; it must not move once entered.
    pub fn new(cpu: CpuState) -> Box<Self> {
        let mut context = Box::new(Self {
            host_rsp: 0,
            exit_site: SITE_NONE,
            arithmetic: 0,
            _reserved: 0,
            exit_value: 0,
            pending: AtomicU32::new(0),
            _reserved2: 0,
            vectors_off: 1,
            load_vectors: 0,
            vectors_were_live: 0,
            direction: 1,
            exit_entry: crate::gate::entry::exit_address(),
            tlb: 0,
            links: 0,
            target: 0,
            bounce_pointer: 0,
            time_stamp_offset: 0,
            x87_instruction: 0,
            x87_opcode: 0,
            x87_operand: 0,
            x87_operand_offset: 0,
            x87_code_selector: 0,
            x87_data_selector: 0,
            spilled: [0; 8],
            bounce: BounceBuffer([0; 192]),
            cpu,
            signal: SignalExit::default(),
            engine: std::ptr::null(),
            code_store: crate::gate::code_store::addresses(),
            long_code_store: crate::gate::code_store::long_addresses(),
            code_lines: 0,
            store_return: 0,
            store_delta: 0,
            switch_in: 0,
            interrupt_flag: 0,
            interrupt_request: 0,
            system_flags: 0,
            level_changes: [LevelChange::default(); LevelChangeKind::ALL.len()],
            level_changed: 0,
            code_descriptor: Expected::NEVER,
            stack_descriptor: Expected::NEVER,
            task_limit: 0,
            work: [0; 3],
            store_pass: NO_PASS,
            instructions: 0,
        });
        context.scatter_flags();
        context.scatter_x87_pointers();
        context
    }

    /// Puts the x87 pointers into the save area, whose own are the host's: of 64 bits each
    /// if the processor is in 64-bit mode, else of 32 bits with their selectors. To be
    /// called after each exit that saved the vector registers.
    pub fn gather_x87_pointers(&mut self) {
        if self.x87_opcode & X87_FRESH != 0 {
            self.x87_opcode &= !X87_FRESH;
            // What 64-bit code notes has no selectors.
            let wide = self.cpu.is_64_bit();
            let mask = if wide { u64::MAX } else { 0xffff_ffff };
            let selector = |segment: &Segment| if wide { 0 } else { segment.selector.0 };
            self.x87_instruction &= mask;
            self.x87_code_selector = selector(self.cpu.cs());
            if let Some(register) = (self.x87_opcode >> 16 & 7).checked_sub(1) {
                let register = SegmentRegister::ALL[register as usize % 6];
                let base = self.cpu.segment_base(register);
                self.x87_operand_offset = self.x87_operand.wrapping_sub(base) & mask;
                self.x87_data_selector = selector(self.cpu.segment(register));
            }
        }
        let pointer =
            |offset: u64, selector: u16| (offset | u64::from(selector) << 32).to_le_bytes();
        let area = &mut self.cpu.vector.0;
        area[6..8].copy_from_slice(&(self.x87_opcode as u16 & 0x7ff).to_le_bytes());
        area[8..16].copy_from_slice(&pointer(self.x87_instruction, self.x87_code_selector));
        area[16..24].copy_from_slice(&pointer(self.x87_operand_offset, self.x87_data_selector));
    }

    /// Does what emitted code does behind an x87 instruction. `linear` is its operand's
    /// address, if it has one.
    pub fn note_x87(&mut self, note: &X87Note, linear: u64) {
        if note.opcode & X87_FRESH == 0 {
            self.x87_operand_offset = 0;
            self.x87_code_selector = 0;
            self.x87_data_selector = 0;
        } else if note.opcode >> 16 & 7 != 0 {
            self.x87_operand = linear;
        }
        self.x87_instruction = note.instruction;
        self.x87_opcode = note.opcode;
    }

    /// Replaces the operand's linear address in the note of an x87 instruction that ran
    /// on the bounce buffer.
    pub fn note_x87_operand(&mut self, linear: u64) {
        if self.x87_opcode >> 16 & 7 != 0 {
            self.x87_operand = linear;
            self.x87_opcode |= X87_FRESH;
            self.gather_x87_pointers();
        }
    }

    /// Takes the x87 pointers from the save area, which an emulated instruction wrote.
    pub fn scatter_x87_pointers(&mut self) {
        let area = &self.cpu.vector.0;
        let word = |at: usize| u16::from_le_bytes([area[at], area[at + 1]]);
        let double = |at: usize| u64::from(word(at)) | u64::from(word(at + 2)) << 16;
        self.x87_opcode = u32::from(word(6) & 0x7ff);
        self.x87_instruction = double(8);
        self.x87_operand_offset = double(16);
        if self.cpu.is_64_bit() {
            self.x87_instruction |= double(12) << 32;
            self.x87_operand_offset |= double(20) << 32;
            self.x87_code_selector = 0;
            self.x87_data_selector = 0;
            return;
        }
        self.x87_code_selector = word(12);
        self.x87_data_selector = word(20);
    }

    /// Tells generated code where `memory` is and which lines of it hold code.
    pub fn watch_memory(&mut self, memory: &GuestMemory) {
        let first = memory.ram().base() as u64 / PAGE_SIZE;
        self.code_lines = (memory.code().table() as u64).wrapping_sub(first * 8);
    }

    /// The arithmetic flags that guest code was left with.
    pub fn arithmetic_flags(&self) -> u64 {
        let flags = u64::from(self.arithmetic >> 8) & (Flags::ARITHMETIC - Flags::OF).bits();
        if self.arithmetic & 1 != 0 {
            flags | Flags::OF.bits()
        } else {
            flags
        }
    }

    /// Moves the flags that guest code keeps elsewhere into `cpu.flags`.
    pub fn gather_flags(&mut self) {
        // RF holds for one instruction only; guest code has run.
        let elsewhere = Flags::ARITHMETIC | Flags::DF | Flags::IF | Flags::RF | Flags::VIF;
        let mut flags = self.cpu.flags & !elsewhere.bits() | self.interrupt_flag;
        flags |= self.system_flags & Flags::VIF.bits();
        flags |= self.arithmetic_flags();
        if self.direction < 0 {
            flags |= Flags::DF.bits();
        }
        self.cpu.flags = flags;
    }

    /// The reverse of [`Context::gather_flags`].
    pub fn scatter_flags(&mut self) {
        let flags = self.cpu.flags;
        self.arithmetic = ((flags & 0xd5) as u16) << 8 | u16::from(flags & Flags::OF.bits() != 0);
        self.direction = if flags & Flags::DF.bits() != 0 { -1 } else { 1 };
        self.interrupt_flag = flags & Flags::IF.bits();
        self.system_flags = flags & SYSTEM_FLAGS.bits();
    }

    /// Sets or clears EFLAGS.VIF.
    pub fn set_virtual_interrupt_flag(&mut self, enabled: bool) {
        self.system_flags &= !Flags::VIF.bits();
        if enabled {
            self.system_flags |= Flags::VIF.bits();
        }
    }

    /// Does what emitted code does when it loads flags from an `image`, but for the
    /// arithmetic flags.
    pub fn load_flags(&mut self, image: u64, interrupt: Option<InterruptFlag>) {
        let enables = image & Flags::IF.bits();
        match interrupt {
            Some(InterruptFlag::Real) => self.interrupt_flag = enables,
            Some(InterruptFlag::Virtual) => self.set_virtual_interrupt_flag(enables != 0),
            None => {}
        }
        self.direction = if image & Flags::DF.bits() != 0 { -1 } else { 1 };
    }
}
