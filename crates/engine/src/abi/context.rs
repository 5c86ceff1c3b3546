//! The context: the structure that emitted code reaches through R15 and shares with the monitor.
//!
//! R15 points [`BIAS`] bytes into the structure. Its low six bits are therefore always 12, so that
//! `shrx reg, reg, r15` yields a page number without another register and without touching flags.
//! Small displacements, positive and negative, reach the fields on both sides of R15.

use crate::abi::delivery::{DELIVERIES, Delivery};
use crate::abi::descriptors::{Expected, KnownDescriptors};
use crate::abi::fast_paths::{
    CpuidAnswers, DEVICE_ACCESSES, DeviceAccess, DeviceFastPath, FAST_PATHS, FastPathFunction,
    SEGMENT_LOADS, SegmentLoad,
};
use crate::abi::known_code::{KNOWN_CODES, KnownCode};
use crate::abi::level_change::{LevelChange, LevelChangeKind, OuterReturn, VirtualReturn};
use crate::abi::marks::Shadow;
use crate::abi::strings::ROUTINES;
use crate::abi::vector_registers;
use std::mem::offset_of;
use std::sync::atomic::AtomicU32;
use tollgate_memory::GuestMemory;
use tollgate_x86::CpuState;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::registers::Gpr;

/// Distance from the start of [`Context`] to where R15 points; 12 modulo 64.
pub const BIAS: i32 = 76;

/// Value of `exit_site` when guest code was not entered at all.
pub const SITE_NONE: u32 = u32::MAX;
/// Value of `exit_site` when a signal took the guest out; see [`SignalExit`].
pub const SITE_SIGNAL: u32 = u32::MAX - 1;

/// Ways in which programs reach memory, by number.
pub const WAYS: usize = 3;

/// What an instruction of emitted code has to do with the loaded space's
/// [anchor](tollgate_tlb::shadow_windows::anchors).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ByAnchor {
    /// Nothing.
    #[default]
    No,
    /// It checks that an address lies in a part which the anchor leads to.
    Check,
    /// It accesses memory by the anchor.
    Access,
}

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
    /// At a fault of a direct access: its linear address, or one in the same part.
    pub near: u64,
    /// What the instruction that faulted has to do with the space's anchor.
    pub by_anchor: ByAnchor,
    /// The fault was a store.
    pub stores: bool,
    /// The instruction holds interrupts off until it has completed.
    pub shadowed: Shadow,
    /// It is a repeated string instruction that has done some iterations, but not all.
    pub between_iterations: bool,
}

/// Host addresses to which emitted code jumps by way of the context.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// The exit path.
    pub exit: u64,
    /// The routine for accesses that the software TLB has no entry for.
    pub miss: u64,
    /// The tests of stores for code, by [`STORE_SIZES`].
    pub code_store: [u64; STORE_SIZES.len()],
    /// The same for modes whose memory is reached through the long software TLB.
    pub long_code_store: [u64; STORE_SIZES.len()],
    /// The routines for repeated string instructions.
    pub strings: [u64; ROUTINES],
    /// The routines of fast paths.
    pub fast_paths: [u64; FAST_PATHS],
}

/// All that generated code may touch beside guest memory.
#[repr(C, align(64))]
pub struct Context {
    /// Address of [`crate::gate::miss`].
    pub miss_entry: u64,
    /// Which exit was taken: block number and site, or one of the `SITE_` values.
    pub exit_site: u32,
    /// OF in the low byte, SF ZF AF PF CF as LAHF has them in the high byte.
    pub arithmetic: u16,
    _reserved: u16,
    /// The address or target that goes with the exit.
    pub exit_value: u64,
    /// What signals and other threads set to 1: leave guest code at the next boundary, do not
    /// enter it. In an allocation of its own, since they do so whatever references to the
    /// context there are.
    pub pending: *const AtomicU32,
    /// Zero while the guest's x87/SSE/AVX registers are in the host's.
    pub vectors_off: u64,
    /// EFLAGS.IF: 0 or [`Flags::IF`](tollgate_x86::Flags::IF). Guest code reads and changes it here.
    pub interrupt_flag: u64,
    /// The virtual interrupt request: [`Flags::IF`](tollgate_x86::Flags::IF) while an interrupt waits for the flag
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
    /// The flags in [`SYSTEM_FLAGS`](crate::abi::flags::SYSTEM_FLAGS), which guest code reads; of them it changes VIF alone.
    pub system_flags: u64,
    /// Where a bounced memory operand lies, inside `bounce`.
    pub bounce_pointer: u64,
    /// Added to the host's time-stamp counter.
    pub time_stamp_offset: u64,
    /// RIP of the last x87 instruction that is not a control instruction; only its low 32
    /// bits count if that is not 64-bit code.
    pub x87_instruction: u64,
    /// Its opcode (11 bits), from bit 16 on the segment register of its memory operand
    /// plus one (0: no operand), [`X87_OPERAND_FRESH`](crate::abi::x87_pointers::X87_OPERAND_FRESH) and
    /// [`X87_FRESH`](crate::abi::x87_pointers::X87_FRESH).
    pub x87_opcode: u32,
    /// CS of the last x87 instruction. FNINIT clears this and the next at once.
    pub x87_code_selector: u16,
    /// Selector of the last memory operand's segment.
    pub x87_data_selector: u16,
    /// Linear address of the last memory operand.
    pub x87_operand: u64,
    /// The guest registers that live here, by number (see [`crate::abi::register_map`]):
    /// filled before guest code is entered, valid until it is left. Slots of registers
    /// that live in host registers are room for code that needs the host register. R8 to
    /// R15 have theirs in `cpu`.
    pub spilled: [u64; 8],
    /// Added to addresses in the tables of relocatable blocks gives those at which the guest
    /// runs them now (see [`crate::abi::relocation`]). Left alone by code of other blocks.
    pub code_delta: u64,
    /// Offset of the last memory operand in its segment.
    pub x87_operand_offset: u64,
    /// R11 as guest code left it and finds it again: what a look-up for several stack accesses
    /// has yielded, if the block is gone on with.
    pub window: u64,
    /// Holds the memory operand of an instruction that is run alone.
    pub bounce: BounceBuffer,
    /// The processor.
    pub cpu: CpuState,
    /// Filled in by signal handlers.
    pub signal: SignalExit,
    /// For signal handlers: the table by which [`crate::position`] finds the guest
    /// instruction of a host address, or null.
    pub blocks: *const (),
    /// Addresses of [`crate::gate::store_test`], by the size of the store.
    pub code_store: [u64; STORE_SIZES.len()],
    /// The same for modes whose memory is reached through the long software TLB.
    pub long_code_store: [u64; STORE_SIZES.len()],
    /// The map of lines that hold code, so that the host page number of RAM is its index.
    pub code_lines: u64,
    /// The table of the maps of bytes of pages, indexed in the same way.
    pub code_bytes: u64,
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
    /// XSTATE_BV as the vector registers were last loaded with it.
    pub vectors_before: u64,
    /// The components that are loaded and saved: a mask for XRSTOR and XSAVE.
    pub vector_components: u64,
    /// Not zero: they are saved by XSAVEC.
    pub compacts_vectors: u64,
    /// Set on the way out if the vector registers were live and have been saved.
    pub vectors_were_live: u64,
    /// Set by a task switch out of guest code: the way in is one too.
    pub switch_in: u64,
    /// The host's stack pointer while guest code runs.
    pub host_rsp: u64,
    /// Where to enter guest code.
    pub target: u64,
    /// By [`LevelChangeKind`]: the result of such an instruction, if it is known.
    pub level_changes: [LevelChange; LevelChangeKind::ALL.len()],
    /// Set by guest code that has changed the privilege level: the mode is another one than
    /// it was entered in. [`MODE_CHANGED`]: the mode is, and the level is not;
    /// [`RESUME_FLAG_LOADED`]: an IRET within a level has loaded EFLAGS.RF.
    pub level_changed: u64,
    /// Zero minus the site whose next store may hit a line with code, since the monitor
    /// knows that it hits none of the code; [`NO_PASS`].
    pub store_pass: u64,
    /// Guest instructions begun, if blocks count them.
    pub instructions: u64,
    /// Host instructions that stand for these (see `translate/count.rs`).
    pub host_instructions: u64,
    /// Their bytes.
    pub host_bytes: u64,
    /// Addresses of [`crate::gate::string`], by [`StringRoutine`](crate::abi::strings::StringRoutine).
    pub strings: [u64; ROUTINES],
    /// While one of them runs: the guest's flags, as `arithmetic` has them.
    pub string_flags: u16,
    /// Not zero: CMPS and SCAS that are left between two iterations show the flags of the last
    /// comparison, as on AMD's processors, and not those from before the first.
    pub string_shows_each: u64,
    /// While one of them runs that adds a base: that of the source.
    pub string_source_base: u64,
    /// What a return to level 3 must be like for its result in `level_changes` to hold.
    pub outer_return: OuterReturn,
    /// Both of them for programs that reach memory in another way, by way.
    of_programs: [([LevelChange; LevelChangeKind::ALL.len()], OuterReturn); WAYS],
    /// What is known of returns to V86 tasks.
    pub virtual_return: VirtualReturn,
    /// RIP that guest code last returned to by IRET: EFLAGS.RF, if set, is for that instruction.
    pub returned_rip: u64,
    /// Addresses of [`crate::gate::fast_path`], by [`FastPath`](crate::abi::fast_paths::FastPath).
    pub fast_paths: [u64; FAST_PATHS],
    /// How often each has done its instruction.
    pub fast_path_counts: [u64; FAST_PATHS],
    /// Not zero at an exit that a fast path named: its instruction is done but for EIP, which is in
    /// the exit value.
    pub fast_path_done: u64,
    /// The monitor's function that fast paths call.
    pub fast_path_function: FastPathFunction,
    /// The monitor's function that tries to fill an entry for the access of the site that was
    /// named: where it is tried again, or 0.
    pub miss_function: unsafe extern "sysv64" fn(*mut Context) -> u64,
    /// What both need beside the context, set by the monitor for each entry; or null.
    pub fast_path_environment: *mut (),
    /// What the routine of accesses to devices calls; `None`: they exit.
    pub device_fast_path: Option<DeviceFastPath>,
    /// For that: the machine around the processor, of a type that it knows.
    pub machine: *mut (),
    /// Zero minus the number of the linear page behind which a device's registers lie that fast paths
    /// access; [`NO_PAGE`].
    pub device_page: u64,
    /// Zero minus the number of the window of display memory, of as many bytes as
    /// [`DISPLAY_WINDOW_SHIFT`](crate::abi::fast_paths::DISPLAY_WINDOW_SHIFT) says, in which fast paths
    /// access what is no RAM; [`NO_PAGE`].
    pub display_window: u64,
    /// Not zero: instructions in `device_accesses` have met such memory behind the guest's page tables,
    /// which are walked at each access.
    pub display_by_tables: u64,
    /// Not zero: one of these two, or a string instruction has met such memory.
    pub display_known: u64,
    /// The value of CR3 with which `device_page` holds; zero: any.
    pub device_space: u64,
    /// The frame of that page: its physical address.
    pub device_frame: u64,
    /// The engine's generation to which `device_accesses` belong.
    pub device_generation: u64,
    /// What instructions do that access it.
    pub device_accesses: [DeviceAccess; DEVICE_ACCESSES],
    /// The answers of CPUID that fast paths give.
    pub cpuid_answers: CpuidAnswers,
    /// The loads of segment registers that fast paths do.
    pub segment_loads: [SegmentLoad; SEGMENT_LOADS],
    /// The software interrupts that fast paths deliver.
    pub deliveries: [Delivery; DELIVERIES],
    /// The code segments that fast paths enter by far transfers.
    pub known_codes: [KnownCode; KNOWN_CODES],
}

/// In `level_changed`: the mode has changed and the privilege level has not.
pub const MODE_CHANGED: u64 = 2;

/// In `level_changed`: EFLAGS.RF was loaded for the instruction at `returned_rip`; the mode may
/// be the same. In its upper half, which emitted code stores alone.
pub const RESUME_FLAG_LOADED: u64 = 1 << 32;

/// Sizes in bytes of the stores that are tested without an exit; 6 and 12 are frames of
/// interrupts.
pub const STORE_SIZES: [u8; 9] = [1, 2, 4, 6, 8, 12, 16, 32, 64];
/// In `device_page`: no page.
pub const NO_PAGE: u64 = 1;
/// In `store_pass`: no site.
pub const NO_PASS: u64 = 1;

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

/// Leaves every instruction to its exit.
extern "sysv64" fn does_nothing(_context: *mut Context, _key: u64, _value: u64) -> u64 {
    0
}

/// Leaves every miss to its exit.
extern "sysv64" fn fills_nothing(_context: *mut Context) -> u64 {
    0
}

impl Context {
    /// The slot of a guest register (its number modulo 16).
    pub fn slot_mut(&mut self, guest: u8) -> &mut u64 {
        match guest & 15 {
            low @ 0..8 => &mut self.spilled[usize::from(low)],
            high => &mut self.cpu.gpr[usize::from(high)],
        }
    }

    /// Forgets what changes of the privilege level lead to, whichever programs.
    pub fn forget_level_changes(&mut self) {
        self.level_changes = Default::default();
        self.of_programs = Default::default();
        self.virtual_return = Default::default();
    }

    /// The space that is loaded has programs that reach memory in another of the [`WAYS`]: returns to
    /// them lead to code of another mode.
    pub fn turn_programs(&mut self, from: usize, to: usize) {
        for way in [from, to] {
            let (level_changes, outer_return) = &mut self.of_programs[way % WAYS];
            std::mem::swap(level_changes, &mut self.level_changes);
            std::mem::swap(outer_return, &mut self.outer_return);
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

    /// A context for a processor in `cpu`'s state, which emitted code leaves through `gate`
    /// and which `pending` has leave it: that must outlive it. It must not move once entered.
    pub fn new(cpu: CpuState, gate: Gate, pending: *const AtomicU32) -> Box<Self> {
        let mut context = Box::new(Self {
            host_rsp: 0,
            exit_site: SITE_NONE,
            arithmetic: 0,
            _reserved: 0,
            exit_value: 0,
            pending,
            vectors_off: 1,
            load_vectors: 0,
            vectors_were_live: 0,
            vectors_before: 0,
            vector_components: vector_registers::ALWAYS,
            compacts_vectors: u64::from(vector_registers::host_compacts()),
            direction: 1,
            exit_entry: gate.exit,
            miss_entry: gate.miss,
            tlb: 0,
            links: 0,
            target: 0,
            bounce_pointer: 0,
            time_stamp_offset: 0,
            x87_instruction: 0,
            x87_opcode: 0,
            x87_operand: 0,
            x87_operand_offset: 0,
            window: 0,
            x87_code_selector: 0,
            x87_data_selector: 0,
            spilled: [0; 8],
            code_delta: 0,
            bounce: BounceBuffer([0; 192]),
            cpu,
            signal: SignalExit::default(),
            blocks: std::ptr::null(),
            code_store: gate.code_store,
            long_code_store: gate.long_code_store,
            code_lines: 0,
            code_bytes: 0,
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
            host_instructions: 0,
            host_bytes: 0,
            strings: gate.strings,
            string_flags: 0,
            string_shows_each: 0,
            string_source_base: 0,
            outer_return: OuterReturn::NEVER,
            virtual_return: Default::default(),
            of_programs: Default::default(),
            returned_rip: 0,
            fast_paths: gate.fast_paths,
            fast_path_counts: [0; FAST_PATHS],
            fast_path_done: 0,
            fast_path_function: does_nothing,
            miss_function: fills_nothing,
            fast_path_environment: std::ptr::null_mut(),
            device_fast_path: None,
            machine: std::ptr::null_mut(),
            device_page: NO_PAGE,
            display_window: NO_PAGE,
            display_by_tables: 0,
            display_known: 0,
            device_space: 0,
            device_frame: 0,
            device_generation: 0,
            device_accesses: [DeviceAccess::NONE; DEVICE_ACCESSES],
            cpuid_answers: CpuidAnswers::NONE,
            segment_loads: [SegmentLoad::NONE; SEGMENT_LOADS],
            deliveries: [Delivery::NONE; DELIVERIES],
            known_codes: [KnownCode::NONE; KNOWN_CODES],
        });
        context.scatter_flags();
        context.scatter_x87_pointers();
        context
    }

    /// Notes what the descriptors of the current CS and SS must be like, and what is known of
    /// the TSS; to be called whenever one of them, the privilege level or GDTR has changed.
    pub fn note_descriptors(&mut self) {
        let known = KnownDescriptors::of(&self.cpu);
        self.code_descriptor = known.code;
        self.stack_descriptor = known.stack;
        self.task_limit = known.task_limit;
    }

    /// Tells generated code where `memory` is and which lines of it hold code.
    pub fn watch_memory(&mut self, memory: &GuestMemory) {
        let first = memory.ram().base() as u64 / PAGE_SIZE;
        self.code_lines = (memory.code().table() as u64).wrapping_sub(first * 8);
        self.code_bytes = (memory.code().table_of_bytes() as u64).wrapping_sub(first * 8);
    }
}
