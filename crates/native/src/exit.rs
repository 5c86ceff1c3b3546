//! Why a program has left native code.

use crate::mapping::MappingError;
use std::fmt;

/// What ended a run.
#[derive(Debug)]
pub enum Exit {
    /// A system call. RIP is the address of its instruction, which has had no effect except, for
    /// SYSCALL, that RCX and R11 already have the values that it gives them. Running the instruction
    /// again, translated, is exact.
    SystemCall(SystemCall),
    /// An access to memory that is not mapped, or not with these rights. RIP is the instruction's.
    PageFault {
        /// The linear address.
        address: u64,
        /// The processor's error code. The bits WRITE, USER and FETCH are exact; PRESENT says what
        /// the host's tables held, which is not what the guest's hold.
        error_code: u32,
    },
    /// An exception. RIP is as the processor pushes it: that of the instruction for a fault, of the
    /// next one for INT3 and a single step.
    Exception {
        /// Vector of the exception; 13 for every instruction that programs may not execute.
        vector: u8,
        /// The error code, 0 for exceptions without one.
        error_code: u32,
    },
    /// [`crate::Kicker::kick`] was called.
    Kicked,
    /// A queued change of mappings failed; the program has not run.
    MappingFailed(MappingError),
    /// The process is gone, and with it the program's registers. The state is what the last run
    /// began with.
    Died(Death),
}

/// Which instruction made a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemCall {
    /// SYSCALL.
    Syscall,
    /// INT 80h. The upper half of RAX is lost: the host's kernel cleared it.
    Interrupt80,
}

/// Why a process is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    /// Killed by this signal: from outside, for want of memory, or because the program damaged what
    /// the stub works with.
    Signal(i32),
    /// It ended itself, which the stub does if it cannot start.
    Ended(i32),
    /// It did not react to a kick although it had the time to, and was killed.
    Unresponsive,
    /// What it reported contradicts itself, and it was killed.
    Inconsistent,
    /// Guest RAM could not be read: the host refused memory or found it damaged.
    MemoryUnavailable,
}

impl fmt::Display for Death {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Signal(signal) => write!(formatter, "was killed by signal {signal}"),
            Self::Ended(code) => write!(formatter, "ended itself with code {code}"),
            Self::Unresponsive => formatter.write_str("did not react to a kick and was killed"),
            Self::Inconsistent => formatter.write_str("damaged its own stub and was killed"),
            Self::MemoryUnavailable => formatter.write_str("could not reach guest memory"),
        }
    }
}
