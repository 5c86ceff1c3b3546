//! The context: the structure that emitted code reaches through R15 and shares with the monitor.
//!
//! R15 points [`BIAS`] bytes into the structure. Its low six bits are therefore always 12, so that
//! `shrx reg, reg, r15` yields a page number without another register and without touching flags.
//! Small displacements, positive and negative, reach the fields on both sides of R15.

pub mod groups;
mod vector_registers;
mod x87_pointers;

pub use self::groups::{NO_PAGE, NO_PASS, STORE_SIZES, WAYS};

use self::groups::{
    Changed, Counters, DeviceState, EntryState, FastPathState, Hot, KeptRegisters, StoreTest,
    StringState, Transfers, VectorTransfer,
};
use crate::abi::descriptors::KnownDescriptors;
use crate::abi::fast_paths::FAST_PATHS;
use crate::abi::memos::cpuid_answer::CpuidAnswers;
use crate::abi::memos::delivery::DeliveryTable;
use crate::abi::memos::device_access::{DEVICE_ACCESSES, DeviceAccess};
use crate::abi::memos::known_code::KnownCodeTable;
use crate::abi::memos::level_change::{LevelChange, LevelChangeKind, OuterReturn};
use crate::abi::memos::segment_load::SegmentLoadTable;
use crate::abi::sites::SITE_NONE;
use crate::abi::state_map::Shadow;
use crate::abi::strings::ROUTINES;
use crate::abi::vector_registers::{ALWAYS, host_compacts};
use crate::abi::x87_pointers::X87Pointers;
use std::mem::offset_of;
use std::sync::atomic::AtomicU32;
use tollgate_memory::GuestMemory;
use tollgate_x86::address::PAGE_SIZE;
use tollgate_x86::registers::Gpr;
use tollgate_x86::{CpuState, Watched};

/// The distance from the start of [`Context`] to where R15 points; it is 12 modulo 64.
pub const BIAS: i32 = 76;

/// How an instruction of emitted code uses the loaded space's
/// [anchor](tollgate_tlb::shadow_windows::anchors).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ByAnchor {
    /// The instruction does not use the anchor.
    #[default]
    No,
    /// The instruction checks that an address lies in a part to which the anchor leads.
    Check,
    /// The instruction accesses memory by the anchor.
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
    /// What is added to the register that holds ESP to get the guest's ESP.
    pub esp: i32,
    /// The faulting host address, for SIGSEGV and SIGBUS.
    pub address: u64,
    /// For a fault of a direct access: its linear address, or another address in the same part.
    pub near: u64,
    /// How the instruction that faulted uses the space's anchor.
    pub by_anchor: ByAnchor,
    /// Whether the access that faulted was a store.
    pub stores: bool,
    /// What the instruction holds off until it has completed.
    pub shadowed: Shadow,
    /// Whether the instruction is a repeated string instruction that has completed some iterations,
    /// but not all.
    pub between_iterations: bool,
}

/// The host addresses to which emitted code jumps through the context.
#[derive(Clone, Copy, Debug)]
pub struct Gate {
    /// The exit path.
    pub exit: u64,
    /// The routine for accesses that miss in the software TLB.
    pub miss: u64,
    /// The routines that test whether a store hits translated code, one for each size in
    /// [`STORE_SIZES`].
    pub code_store: [u64; STORE_SIZES.len()],
    /// The same routines for modes whose memory is reached through the long software TLB.
    pub long_code_store: [u64; STORE_SIZES.len()],
    /// The routines for repeated string instructions.
    pub strings: [u64; ROUTINES],
    /// The routines of fast paths.
    pub fast_paths: [u64; FAST_PATHS],
}

/// Everything except guest memory that emitted code may touch.
#[repr(C, align(64))]
pub struct Context {
    /// The fields that most blocks and exits use.
    pub hot: Hot,
    /// The notes of the last x87 instruction.
    pub x87: X87Pointers,
    /// Guest registers that are kept in memory, since the host has too few registers.
    pub registers: KeptRegisters,
    /// Room for the memory operand of an instruction that is run alone.
    pub bounce: BounceBuffer,
    /// The state of the guest's processor.
    pub cpu: CpuState,
    /// What a signal handler has found out.
    pub signal: SignalExit,
    /// For signal handlers: the table by which [`crate::position`] finds the guest instruction of a
    /// host address, or null.
    pub blocks: *const (),
    /// The fields of the test of stores.
    pub store_test: StoreTest,
    /// What is known of the descriptors of CS, SS and TR.
    pub descriptors: KnownDescriptors,
    /// How the vector registers are loaded and saved.
    pub vectors: VectorTransfer,
    /// The fields of the way into guest code and out of it.
    pub entry: EntryState,
    /// What is known of changes of the privilege level.
    pub transfers: Transfers,
    /// The counts that blocks keep, and the offset of the time-stamp counter.
    pub counters: Counters,
    /// The fields of the routines for repeated string instructions.
    pub strings: StringState,
    /// The fields of fast paths, and their memos.
    pub fast_paths: FastPathState,
    /// The fields of the fast path of device accesses.
    pub devices: DeviceState,
}

/// Room for one operand at any alignment, aligned to 64 bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct BounceBuffer(pub [u8; 192]);

/// The displacement from R15 of a field at `offset`.
pub const fn displacement(offset: usize) -> i32 {
    offset as i32 - BIAS
}

/// The displacement from R15 of a general register's value in `cpu`.
pub const fn gpr_displacement(register: Gpr) -> i32 {
    displacement(offset_of!(Context, cpu) + offset_of!(CpuState, gpr) + register as usize * 8)
}

/// A [`FastPathFunction`](groups::FastPathFunction) that leaves every instruction to its exit.
extern "sysv64" fn does_nothing(_context: *mut Context, _key: u64, _value: u64) -> u64 {
    0
}

/// The function that leaves every miss to its exit.
extern "sysv64" fn fills_nothing(_context: *mut Context) -> u64 {
    0
}

impl Context {
    /// The slot of a guest register (its number modulo 16).
    pub fn slot_mut(&mut self, guest: u8) -> &mut u64 {
        match guest & 15 {
            low @ 0..8 => &mut self.registers.spilled[usize::from(low)],
            high => &mut self.cpu.gpr[usize::from(high)],
        }
    }

    /// Forgets the results of changes of the privilege level, for programs of all ways to reach
    /// memory.
    pub fn forget_level_changes(&mut self) {
        self.transfers.level_changes = Default::default();
        self.transfers.of_programs = Default::default();
        self.transfers.virtual_return = Default::default();
    }

    /// Exchanges the results for programs, because programs of the space that is now loaded reach
    /// memory in another of the [`WAYS`]: returns to them lead to code of another mode.
    pub fn turn_programs(&mut self, from: usize, to: usize) {
        for way in [from, to] {
            self.transfers.exchange(way);
        }
    }

    /// Fills the slots of the guest registers in `mask` (one bit each) from the processor's state.
    /// The slots of R8 to R15 are in that state already.
    pub fn scatter_registers(&mut self, mask: u16) {
        let mut rest = mask & 0xff;
        while rest != 0 {
            let guest = rest.trailing_zeros() as usize;
            self.registers.spilled[guest] = self.cpu.gpr[guest];
            rest &= rest - 1;
        }
    }

    /// Stores the slots of the guest registers in `mask` to the processor's state.
    pub fn gather_registers(&mut self, mask: u16) {
        let mut rest = mask & 0xff;
        while rest != 0 {
            let guest = rest.trailing_zeros() as usize;
            self.cpu.gpr[guest] = self.registers.spilled[guest];
            rest &= rest - 1;
        }
    }

    /// A context for a processor in the state `cpu`, which emitted code leaves through `gate` and
    /// at the request of `pending`. `pending` must outlive the context, and the context must not
    /// move once guest code was entered.
    pub fn new(cpu: CpuState, gate: Gate, pending: *const AtomicU32) -> Box<Self> {
        let mut context = Box::new(Self {
            hot: Hot {
                miss_entry: gate.miss,
                exit_site: SITE_NONE,
                arithmetic: 0,
                _reserved: 0,
                exit_value: 0,
                pending,
                vectors_off: 1,
                interrupt_flag: 0,
                interrupt_request: 0,
                direction: 1,
                exit_entry: gate.exit,
                tlb: 0,
                links: 0,
                system_flags: 0,
                bounce_pointer: 0,
            },
            x87: X87Pointers::default(),
            registers: KeptRegisters {
                spilled: [0; 8],
                code_slide: 0,
                window: 0,
            },
            bounce: BounceBuffer([0; 192]),
            cpu,
            signal: SignalExit::default(),
            blocks: std::ptr::null(),
            store_test: StoreTest {
                routines: gate.code_store,
                long_routines: gate.long_code_store,
                lines: 0,
                bytes: 0,
                return_to: 0,
                delta: 0,
                pass: NO_PASS,
            },
            descriptors: KnownDescriptors {
                code: Watched::NEVER,
                stack: Watched::NEVER,
                task_limit: 0,
            },
            vectors: VectorTransfer {
                load: 0,
                before: 0,
                components: ALWAYS,
                compacts: u64::from(host_compacts()),
                were_live: 0,
            },
            entry: EntryState {
                switch_in: 0,
                host_rsp: 0,
                target: 0,
            },
            transfers: Transfers {
                level_changes: [LevelChange::default(); LevelChangeKind::ALL.len()],
                changed: Changed::empty(),
                outer_return: OuterReturn::NEVER,
                of_programs: Default::default(),
                virtual_return: Default::default(),
                returned_rip: 0,
                work: [0; 3],
            },
            counters: Counters {
                time_stamp_offset: 0,
                instructions: 0,
                host_instructions: 0,
                host_bytes: 0,
                progress: 0,
            },
            strings: StringState {
                routines: gate.strings,
                flags: 0,
                shows_each: 0,
                source_base: 0,
            },
            fast_paths: FastPathState {
                routines: gate.fast_paths,
                counts: [0; FAST_PATHS],
                done: 0,
                function: does_nothing,
                miss_function: fills_nothing,
                environment: std::ptr::null_mut(),
                cpuid_answers: CpuidAnswers::NONE,
                segment_loads: SegmentLoadTable::NONE,
                deliveries: DeliveryTable::NONE,
                known_codes: KnownCodeTable::NONE,
            },
            devices: DeviceState {
                function: None,
                machine: std::ptr::null_mut(),
                page: NO_PAGE,
                display_window: NO_PAGE,
                display_by_tables: 0,
                display_known: 0,
                space: 0,
                frame: 0,
                generation: 0,
                accesses: [DeviceAccess::NONE; DEVICE_ACCESSES],
            },
        });
        context.scatter_flags();
        context.scatter_x87_pointers();
        context
    }

    /// Notes what the descriptors of the current CS and SS must be like, and the known values of
    /// the TSS. It must be called after each change of one of these, of the privilege level or of
    /// GDTR.
    pub fn note_descriptors(&mut self) {
        let known = KnownDescriptors::of(&self.cpu);
        self.descriptors.code = known.code;
        self.descriptors.stack = known.stack;
        self.descriptors.task_limit = known.task_limit;
    }

    /// Tells emitted code where `memory` is and which of its lines hold code.
    pub fn watch_memory(&mut self, memory: &GuestMemory) {
        let first = memory.ram().base() as u64 / PAGE_SIZE;
        self.store_test.lines = (memory.code().table() as u64).wrapping_sub(first * 8);
        self.store_test.bytes = (memory.code().table_of_bytes() as u64).wrapping_sub(first * 8);
    }
}
