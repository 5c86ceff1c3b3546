//! The groups of fields that make up the [context](super), by the code that uses them.

pub use crate::abi::changed::Changed;
use crate::abi::fast_paths::FAST_PATHS;
use crate::abi::memos::cpuid_answer::CpuidAnswers;
use crate::abi::memos::delivery::DeliveryTable;
use crate::abi::memos::device_access::{DEVICE_ACCESSES, DeviceAccess};
use crate::abi::memos::known_code::KnownCodeTable;
use crate::abi::memos::level_change::{LevelChange, LevelChangeKind, OuterReturn, VirtualReturn};
use crate::abi::memos::segment_load::SegmentLoadTable;
use crate::abi::strings::ROUTINES;
use std::sync::atomic::AtomicU32;

/// The number of ways in which programs reach memory.
pub const WAYS: usize = 4;

/// The sizes in bytes of the stores that are tested without an exit; 6 and 12 are frames of
/// interrupts.
pub const STORE_SIZES: [u8; 9] = [1, 2, 4, 6, 8, 12, 16, 32, 64];

/// The value of `DeviceState::page` and `DeviceState::display_window` for none.
pub const NO_PAGE: u64 = 1;

/// The value of `StoreTest::pass` for no site.
pub const NO_PASS: u64 = 1;

/// The monitor's function. It is passed the context, [`FastPathCall::key`](crate::abi::fast_paths::FastPathCall::key), and the address or
/// value of the call. It returns 1 if it has executed the instruction, 0 if it has changed nothing,
/// and another number if it has executed the instruction and set
/// [`FastPathState::done`], so that the exit is
/// taken.
pub type FastPathFunction = unsafe extern "sysv64" fn(*mut super::Context, u64, u64) -> u64;

/// The function that the routine of device accesses calls with `(context, value, key)`. The value
/// is what was passed to the routine in R8, and the key is that of [`port_key`](crate::abi::fast_paths::port_key). General registers
/// that calls may change are in their slots, and vector registers are not in use. Returns one of
/// the `DEVICE_` values.
pub type DeviceFastPath = unsafe extern "sysv64" fn(*mut super::Context, u64, u64) -> u64;

/// Fields that most blocks and exits use. They lie within 127 bytes of R15, so that their
/// displacements take one byte in emitted code.
#[derive(Debug)]
#[repr(C)]
pub struct Hot {
    /// The address of [`crate::gate::miss`].
    pub miss_entry: u64,
    /// The exit that was taken: block number and site, or one of the `SITE_` values.
    pub exit_site: u32,
    /// The arithmetic flags: OF in the low byte; SF, ZF, AF, PF and CF in the high byte, as LAHF
    /// stores them.
    pub arithmetic: u16,
    pub(super) _reserved: u16,
    /// The address or branch target that belongs to the exit.
    pub exit_value: u64,
    /// Signals and other threads set this word to 1 to have guest code left at the next instruction
    /// boundary and not entered. It has an allocation of its own, because they write it while
    /// references to the context exist.
    pub pending: *const AtomicU32,
    /// Zero while the host's x87, SSE and AVX registers hold the guest's.
    pub vectors_off: u64,
    /// EFLAGS.IF: 0 or [`Flags::IF`](tollgate_x86::Flags::IF). Guest code reads and changes the
    /// flag here.
    pub interrupt_flag: u64,
    /// The virtual interrupt request, set by the monitor: [`Flags::IF`](tollgate_x86::Flags::IF)
    /// while an interrupt waits for EFLAGS.IF or for the end of an interrupt shadow, else 0.
    pub interrupt_request: u64,
    /// The direction of string instructions: +1, or -1 while EFLAGS.DF is set.
    pub direction: i64,
    /// Address of the exit path.
    pub exit_entry: u64,
    /// Address of the current view's software TLB (R14 in guest code).
    pub tlb: u64,
    /// Address of the current link tables (R13 in guest code).
    pub links: u64,
    /// The flags in [`SYSTEM_FLAGS`](crate::abi::flags::SYSTEM_FLAGS). Guest code reads them, and
    /// changes only VIF.
    pub system_flags: u64,
    /// Address inside [`bounce`](super::Context::bounce) of the memory operand that is bounced.
    pub bounce_pointer: u64,
}

/// Registers that guest code keeps in memory between blocks, because the host has too few.
#[derive(Debug)]
#[repr(C)]
pub struct KeptRegisters {
    /// Slots of the guest registers 0 to 7 that have no host register (see
    /// [`crate::abi::register_map`]): filled before guest code is entered, valid until it is left.
    /// The slot of a guest register that has a host register is scratch space for code that needs
    /// the host register. The slots of R8 to R15 are in `cpu`.
    pub spilled: [u64; 8],
    /// The slide: the address at which the guest runs a relocatable block minus the address in the
    /// block's tables (see [`crate::abi::relocation`]). Other blocks do not change it.
    pub code_slide: u64,
    /// R11 at the exit: the result of a look-up that several stack accesses share. Guest code gets
    /// it back if the block is resumed.
    pub window: u64,
}

/// Fields of [`crate::gate::store_check`], which tests stores to pages with translated code.
#[derive(Debug)]
#[repr(C)]
pub struct StoreTest {
    /// The addresses of the routines, in the order of [`STORE_SIZES`].
    pub routines: [u64; STORE_SIZES.len()],
    /// The addresses of the routines for modes that use the long software TLB.
    pub long_routines: [u64; STORE_SIZES.len()],
    /// The address of the map of lines (of 64 bytes) that hold code, biased so that the host page
    /// number of RAM is the index in the map.
    pub lines: u64,
    /// The address of the table of the pages' maps of bytes, biased in the same way.
    pub bytes: u64,
    /// The host address at which the block continues whose store is tested.
    pub return_to: u64,
    /// The host address of the tested store minus its linear address.
    pub delta: u64,
    /// Zero minus the site whose next store may hit a line with code, because the monitor knows
    /// that the store does not touch the code; [`NO_PASS`] for no site.
    pub pass: u64,
}

/// How the guest's vector registers are loaded and saved.
#[derive(Debug)]
#[repr(C)]
pub struct VectorTransfer {
    /// The monitor sets this so that the way in loads the vector registers.
    pub load: u64,
    /// XSTATE_BV at the last load of the vector registers.
    pub before: u64,
    /// The state components that are loaded and saved: the mask for XRSTOR and XSAVE.
    pub components: u64,
    /// Not zero if the vector registers are saved by XSAVEC.
    pub compacts: u64,
    /// The way out sets this if the vector registers were loaded and have been saved.
    pub were_live: u64,
}

/// Fields of [`crate::gate::entry`], the way into guest code and out of it.
#[derive(Debug)]
#[repr(C)]
pub struct EntryState {
    /// Not zero if guest code was left by a task switch, so that it is entered by one too.
    pub switch_in: u64,
    /// The host's stack pointer while guest code runs.
    pub host_rsp: u64,
    /// The host address at which guest code is entered.
    pub target: u64,
}

/// The results of changes of the privilege level that hold as long as programs reach memory in one
/// way.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct OfPrograms {
    level_changes: [LevelChange; LevelChangeKind::ALL.len()],
    outer_return: OuterReturn,
    virtual_return: VirtualReturn,
}

/// Known changes of the privilege level, which translated code makes itself, and their effects.
#[derive(Debug)]
#[repr(C)]
pub struct Transfers {
    /// The result of each instruction that changes the privilege level, by [`LevelChangeKind`], if
    /// known.
    pub level_changes: [LevelChange; LevelChangeKind::ALL.len()],
    /// What guest code has changed since it was entered.
    pub changed: Changed,
    /// The conditions under which a return to level 3 has the result in `level_changes`.
    pub outer_return: OuterReturn,
    /// The memo of returns to V86 tasks.
    pub virtual_return: VirtualReturn,
    /// What is known of changes of the level if programs reach memory in another way, by the number
    /// of that way.
    pub(super) of_programs: [OfPrograms; WAYS],
    /// RIP to which guest code last returned by IRET. EFLAGS.RF, if set, is for the instruction
    /// there.
    pub returned_rip: u64,
    /// Values that an instruction needs when no register is free for them. For an interrupt's
    /// frame: the flags in the frame, the new IF, and the host address of the frame.
    pub work: [u64; 3],
}

impl Transfers {
    /// Exchanges the results for programs that reach memory in the way `way` with the present ones.
    pub(super) fn exchange(&mut self, way: usize) {
        let other = &mut self.of_programs[way % WAYS];
        std::mem::swap(&mut other.level_changes, &mut self.level_changes);
        std::mem::swap(&mut other.outer_return, &mut self.outer_return);
        std::mem::swap(&mut other.virtual_return, &mut self.virtual_return);
    }
}

/// Counts that blocks keep, and the offset of the time-stamp counter.
#[derive(Debug)]
#[repr(C)]
pub struct Counters {
    /// What is added to the host's time-stamp counter to get the guest's.
    pub time_stamp_offset: u64,
    /// The number of guest instructions that have begun, if blocks count them.
    pub instructions: u64,
    /// The number of host instructions that were emitted for these (see `translate/count.rs`).
    pub host_instructions: u64,
    /// The size of these host instructions in bytes.
    pub host_bytes: u64,
    /// System calls by SYSCALL and reads of the time-stamp counter: what programs do equally often at any
    /// speed.
    pub progress: u64,
}

/// Fields of the routines of [`crate::gate::string`], for repeated string instructions.
#[derive(Debug)]
#[repr(C)]
pub struct StringState {
    /// Addresses of the routines, by [`StringRoutine`](crate::abi::strings::StringRoutine).
    pub routines: [u64; ROUTINES],
    /// The guest's arithmetic flags while a routine runs, in the form of [`Hot::arithmetic`].
    pub flags: u16,
    /// Not zero if a CMPS or SCAS that is interrupted between two iterations shows the flags of the
    /// last comparison, as on AMD's processors. If zero, it shows the flags from before the first.
    pub shows_each: u64,
    /// The base of the source's segment, while a routine that adds bases runs.
    pub source_base: u64,
}

/// Fields of the routines of [`crate::gate::fast_path`], and the memos that they compare with.
#[derive(Debug)]
#[repr(C)]
pub struct FastPathState {
    /// Addresses of the routines, by [`FastPath`](crate::abi::fast_paths::FastPath).
    pub routines: [u64; FAST_PATHS],
    /// How often each routine has executed its instruction.
    pub counts: [u64; FAST_PATHS],
    /// Not zero at an exit of a fast path that has executed its instruction except for EIP, which
    /// is in the exit value: one of the `DONE_` values of [`crate::abi::fast_paths`].
    pub done: u64,
    /// The function of the monitor that fast paths call.
    pub function: FastPathFunction,
    /// The function of the monitor that tries to fill an entry of the software TLB for the access
    /// of a site. It returns the host address at which the access is tried again, or 0.
    pub miss_function: unsafe extern "sysv64" fn(*mut super::Context) -> u64,
    /// What both functions need in addition to the context. The monitor sets it at each entry; null
    /// if there is none.
    pub environment: *mut (),
    /// The memos of CPUID's answers.
    pub cpuid_answers: CpuidAnswers,
    /// The memos of loads of segment registers.
    pub segment_loads: SegmentLoadTable,
    /// The memos of deliveries of software interrupts.
    pub deliveries: DeliveryTable,
    /// The memos of code segments that far transfers enter.
    pub known_codes: KnownCodeTable,
}

/// Fields of [`crate::gate::device_fast_path`], for accesses to devices.
#[derive(Debug)]
#[repr(C)]
pub struct DeviceState {
    /// The function that the routine calls; `None` if each access exits.
    pub function: Option<DeviceFastPath>,
    /// The machine around the processor, of a type that the function knows.
    pub machine: *mut (),
    /// Zero minus the number of the linear page that leads to the device registers that fast paths
    /// access; [`NO_PAGE`] for none.
    pub page: u64,
    /// Zero minus the number of the linear window of display memory in which fast paths access
    /// memory that is not RAM: the address shifted right by
    /// [`DISPLAY_WINDOW_SHIFT`](crate::abi::fast_paths::DISPLAY_WINDOW_SHIFT).
    /// [`NO_PAGE`] for none.
    pub display_window: u64,
    /// Not zero if instructions in `accesses` have accessed display memory with paging on. The
    /// guest's page tables are then walked at each access.
    pub display_by_tables: u64,
    /// Not zero if `display_window` or `display_by_tables` is in use, or a string instruction has
    /// accessed display memory.
    pub display_known: u64,
    /// The value of CR3 with which `page` is valid; zero if it is valid with any.
    pub space: u64,
    /// The physical address of the frame to which `page` is mapped.
    pub frame: u64,
    /// The engine's generation to which `accesses` belong.
    pub generation: u64,
    /// The memos of instructions that access devices.
    pub accesses: [DeviceAccess; DEVICE_ACCESSES],
}
