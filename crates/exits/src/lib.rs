//! Every way in which guest code leaves translated code, in one list.
//!
//! An *exit* is a transfer from the code cache to the monitor. Each has one kind;
//! counters, names and documentation all derive from the list in `exit_kinds!`.

pub mod blame;
pub mod ledger;
pub mod snapshot;

pub use ledger::Ledger;

macro_rules! exit_kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $text:literal,)+) => {
        /// The kinds of exit. A kind's handler in the monitor is one function.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u8)]
        pub enum ExitKind {
            $($(#[doc = $doc])+ $name,)+
        }

        impl ExitKind {
            /// Every kind, in the order in which tables show them.
            pub const ALL: &'static [ExitKind] = &[$(ExitKind::$name,)+];

            /// The name that output and flags use.
            pub const fn name(self) -> &'static str {
                match self { $(ExitKind::$name => $text,)+ }
            }

            /// One line about the kind.
            pub const fn description(self) -> &'static str {
                match self { $(ExitKind::$name => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }
    };
}

exit_kinds! {
    /// A branch whose target has no link yet: look the block up or translate it.
    LinkMiss = "link-miss",
    /// An indirect branch that its table does not know.
    IndirectMiss = "indirect-miss",
    /// A guest page missing in the software TLB for reading.
    TlbMissRead = "tlb-miss-read",
    /// A guest page missing in the software TLB for writing.
    TlbMissWrite = "tlb-miss-write",
    /// A memory access done out of line: straddling pages, odd segments.
    SlowAccess = "slow-access",
    /// A read of device memory.
    MmioRead = "mmio-read",
    /// A write to device memory.
    MmioWrite = "mmio-write",
    /// A write to a page that holds translated code.
    CodeWrite = "code-write",
    /// IN, INS.
    PortIn = "port-in",
    /// OUT, OUTS.
    PortOut = "port-out",
    /// CLI.
    Cli = "cli",
    /// STI.
    Sti = "sti",
    /// PUSHF.
    Pushf = "pushf",
    /// POPF.
    Popf = "popf",
    /// IRET.
    Iret = "iret",
    /// INT n, INT3, INTO, INT1.
    SoftwareInterrupt = "software-interrupt",
    /// SYSENTER and SYSEXIT.
    FastSystemCall = "fast-system-call",
    /// Far JMP, CALL and RET.
    FarTransfer = "far-transfer",
    /// A load of a segment register.
    SegmentLoad = "segment-load",
    /// MOV to CR3.
    Cr3Load = "cr3-load",
    /// Other moves to and from control and debug registers, CLTS, LMSW, SMSW.
    ControlRegister = "control-register",
    /// INVLPG, INVPCID.
    Invlpg = "invlpg",
    /// RDMSR and WRMSR.
    Msr = "msr",
    /// CPUID.
    Cpuid = "cpuid",
    /// RDTSC and RDTSCP.
    TimeStamp = "time-stamp",
    /// HLT.
    Halt = "halt",
    /// A string instruction run by the monitor.
    StringInstruction = "string",
    /// FXSAVE, XSAVE, FNSAVE and their restores.
    VectorImage = "vector-image",
    /// Loading the guest's x87/SSE/AVX registers into the host's.
    VectorLoad = "vector-load",
    /// Any other instruction executed by the monitor.
    OtherInstruction = "other-instruction",
    /// A page fault delivered to the guest.
    GuestPageFault = "guest-page-fault",
    /// Any other exception delivered to the guest.
    GuestException = "guest-exception",
    /// A host fault in guest code (SIGFPE, SIGSEGV, SIGILL).
    HostFault = "host-fault",
    /// A signal reached running guest code: a timer, a device, a command.
    Interrupted = "interrupted",
    /// An external interrupt delivered to the guest.
    InterruptDelivered = "interrupt-delivered",
    /// One instruction was run alone (interrupt shadow, trap flag).
    SingleStep = "single-step",
}

/// A count for each kind of exit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExitCounts([u64; ExitKind::ALL.len()]);

impl Default for ExitCounts {
    fn default() -> Self {
        Self([0; ExitKind::ALL.len()])
    }
}

impl ExitCounts {
    /// Counts one exit.
    #[inline]
    pub fn count(&mut self, kind: ExitKind) {
        self.0[kind as usize] += 1;
    }

    /// How many exits of this kind there were.
    pub fn get(&self, kind: ExitKind) -> u64 {
        self.0[kind as usize]
    }

    /// All exits together.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Kinds that occurred, most frequent first.
    pub fn ranked(&self) -> Vec<(ExitKind, u64)> {
        let mut rows: Vec<_> = ExitKind::ALL
            .iter()
            .map(|&kind| (kind, self.get(kind)))
            .filter(|row| row.1 > 0)
            .collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.1));
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_kinds_index_themselves() {
        for (index, kind) in ExitKind::ALL.iter().enumerate() {
            assert_eq!(*kind as usize, index);
            assert!(
                !ExitKind::ALL[..index]
                    .iter()
                    .any(|other| other.name() == kind.name())
            );
        }
    }

    #[test]
    fn ranked_lists_the_most_frequent_first() {
        let mut counts = ExitCounts::default();
        counts.count(ExitKind::Cli);
        counts.count(ExitKind::Sti);
        counts.count(ExitKind::Sti);
        assert_eq!(
            counts.ranked(),
            vec![(ExitKind::Sti, 2), (ExitKind::Cli, 1)]
        );
        assert_eq!(counts.total(), 3);
    }
}
