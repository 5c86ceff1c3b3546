//! Where everything lies in the monitor's own part of a space process, and in the file that the
//! process shares with the monitor.
//!
//! ```text
//! place + 0000   stub's code and tables      readable, executable
//!       + 1000   control: words of the monitor     readable
//!       + 2000   commands for the mapper           readable
//!       + 3000   announce: words of the runner     readable, writable
//!       + 4000   the runner's signal stack         readable, writable
//! ```
//!
//! All but the first page are a file that the monitor has mapped, readable and writable.

use std::ops::Range;

/// The size of a page of the host.
pub const PAGE: u64 = 4096;
/// The end of the addresses that a program can have on a host with 4-level paging.
pub const USER_END: u64 = 0x7fff_ffff_f000;
/// Where the stub lies unless the monitor chooses another place: between the addresses that Linux
/// gives to executables and those that it gives to libraries and stacks.
pub const DEFAULT_PLACE: u64 = 0x6642_0000_0000;

/// Offset of the stub's code in its page. The head of the ELF file is below.
pub const CODE: u64 = 0x100;
/// Offset of the list of system calls that the stub makes first.
pub const LIST: u64 = 0x500;
/// Offset of structures that these system calls read.
pub const STRUCTURES: u64 = 0xb00;
/// Offset of a table whose byte number n is n.
pub const BYTES: u64 = 0xf00;

/// Offset of the page that the monitor alone can write.
pub const CONTROL: u64 = PAGE;
/// Offset of the page of commands.
pub const COMMANDS: u64 = 2 * PAGE;
/// Offset of the page that the runner writes.
pub const ANNOUNCE: u64 = 3 * PAGE;
/// Offset of the runner's signal stack.
pub const STACK: u64 = 4 * PAGE;

/// Words of the control page.
pub mod control {
    /// Number of the turn that the runner may run (32 bits); the runner sleeps on it.
    pub const GO: u64 = 0;
    /// Number of the batch of commands (32 bits); the mapper sleeps on it.
    pub const BATCH: u64 = 64;
    /// Not 0 if the monitor must be woken (32 bits).
    pub const MONITOR_SLEEPS: u64 = 128;
    /// How often the runner looks for its next turn before it sleeps (32 bits).
    pub const SPIN: u64 = 132;
    /// Commands in the batch (32 bits).
    pub const COUNT: u64 = 136;
    /// The stack pointer for rt_sigreturn.
    pub const FRAME_STACK: u64 = 144;
    /// FS base to load.
    pub const FS_BASE: u64 = 152;
    /// GS base to load.
    pub const GS_BASE: u64 = 160;
    /// Flags to load that rt_sigreturn leaves alone (NT, ID).
    pub const FLAGS: u64 = 168;
    /// Selectors to load: DS, ES, FS, GS, each in 32 bits.
    pub const SELECTORS: u64 = 176;
}

/// Words of the announce page. A guest program can overwrite all of them.
pub mod announce {
    /// Number of the turn that has ended (32 bits); the monitor sleeps on it. The kernel writes 0
    /// when a task of the process ends.
    pub const DONE: u64 = 0;
    /// Not 0 if the runner must be woken (32 bits).
    pub const RUNNER_SLEEPS: u64 = 64;
    /// FS base of the program.
    pub const FS_BASE: u64 = 128;
    /// GS base of the program.
    pub const GS_BASE: u64 = 136;
    /// Where the kernel stored the signal frame.
    pub const FRAME: u64 = 144;
    /// Selectors of the program: DS, ES, FS, GS, each in 32 bits.
    pub const SELECTORS: u64 = 152;
    /// What the attempt to make CPUID fault returned.
    pub const CPUID_RESULT: u64 = 176;
    /// What the attempt to make RDTSC fault returned.
    pub const TSC_RESULT: u64 = 184;
    /// Number of the mapper's task, which the kernel writes when it makes it.
    pub const MAPPER: u64 = 192;
}

/// The size of a command, and of an entry of the stub's list: a system call's number, its six
/// arguments, and where its result is stored (0: the call must succeed).
pub const COMMAND: u64 = 64;
/// Commands that one batch can have.
pub const BATCH_COMMANDS: usize = (PAGE / COMMAND) as usize;

/// The addresses of one process that belong to the monitor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Address of the stub's code page.
    pub place: u64,
    /// Pages of the signal stack.
    pub stack_pages: u64,
}

impl Layout {
    /// All addresses that guest programs cannot have.
    pub const fn reserved(self) -> Range<u64> {
        self.place..self.place + STACK + self.stack_pages * PAGE
    }

    /// The size of the shared file: everything except the code page.
    pub const fn shared_size(self) -> u64 {
        STACK - CONTROL + self.stack_pages * PAGE
    }

    /// The address of a word of the control page.
    pub const fn control(self, word: u64) -> u64 {
        self.place + CONTROL + word
    }

    /// The address of a word of the announce page.
    pub const fn announce(self, word: u64) -> u64 {
        self.place + ANNOUNCE + word
    }

    /// The addresses of the signal stack.
    pub const fn stack(self) -> Range<u64> {
        self.place + STACK..self.reserved().end
    }

    /// The offset in the shared file of an address of the process.
    pub const fn shared_offset(self, address: u64) -> u64 {
        address - self.place - CONTROL
    }
}
