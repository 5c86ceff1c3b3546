//! The kinds of exit, in one list.
//!
//! Counters, names and documentation all derive from the list in `exit_kinds!`.

macro_rules! exit_kinds {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident = $text:literal, exit: $exit:expr, assist: $assist:literal;
    )+) => {
        /// The kinds of exit. Each kind is handled by one function of the monitor.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u8)]
        pub enum ExitKind {
            $($(#[doc = $doc])+ $name,)+
        }

        impl ExitKind {
            /// Every kind, in the order in which tables show them.
            pub const ALL: &'static [ExitKind] = &[$(ExitKind::$name,)+];

            /// The kind with this name, if there is one.
            pub fn of_name(name: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|kind| kind.name() == name)
            }

            /// The kind's name in output and flags.
            pub const fn name(self) -> &'static str {
                match self { $(ExitKind::$name => $text,)+ }
            }

            /// The VT-x exits, with their basic exit reasons (SDM volume 3, appendix C), that the
            /// same event causes under a hypervisor with EPT but without APICv; empty if it causes
            /// none.
            pub const fn hardware_exit(self) -> &'static str {
                match self { $(ExitKind::$name => $exit,)+ }
            }

            /// What a processor with hardware virtualization offers to remove the exit.
            pub const fn assist(self) -> &'static str {
                match self { $(ExitKind::$name => $assist,)+ }
            }

            /// A description of the kind in one line.
            pub const fn description(self) -> &'static str {
                match self { $(ExitKind::$name => concat!($($doc,)+).trim_ascii(),)+ }
            }
        }
    };
}

impl ExitKind {
    /// Whether the monitor executes an instruction for the guest at every exit of this kind. At
    /// exits of kind [`CodeWrite`](Self::CodeWrite) it sometimes does.
    pub const fn is_emulated(self) -> bool {
        !matches!(
            self,
            Self::LinkMiss
                | Self::IndirectMiss
                | Self::TlbMissRead
                | Self::TlbMissWrite
                | Self::WindowFault
                | Self::NativeFault
                | Self::NativeStep
                | Self::CodeWrite
                | Self::NullHypercall
                | Self::VectorLoad
                | Self::GuestPageFault
                | Self::GuestException
                | Self::HostFault
                | Self::Interrupted
                | Self::InterruptDelivered
                | Self::SingleStep
        )
    }
}

/// The guest continues to run: there is no hardware exit.
const NO_EXIT: &str = "";

exit_kinds! {
    /// A branch whose target has no link yet: look the block up or translate it.
    LinkMiss = "link-miss", exit: NO_EXIT, assist: "none needed: guest code runs untranslated";
    /// An indirect branch that its table does not know.
    IndirectMiss = "indirect-miss", exit: NO_EXIT, assist: "none needed: guest code runs untranslated";
    /// A guest page missing in the software TLB for reading.
    TlbMissRead = "tlb-miss-read", exit: NO_EXIT, assist: "nested paging (EPT, NPT): the processor walks both tables";
    /// A guest page missing in the software TLB for writing.
    TlbMissWrite = "tlb-miss-write", exit: NO_EXIT, assist: "nested paging (EPT, NPT): the processor walks both tables";
    /// A direct access to a page that is not in its shadow window, or whose stores must be seen.
    WindowFault = "window-fault", exit: NO_EXIT, assist: "nested paging (EPT, NPT): the processor walks both tables";
    /// An access of a program that runs natively to a page that is not mapped for it, or whose stores
    /// must be seen.
    NativeFault = "native-fault", exit: NO_EXIT, assist: "nested paging (EPT, NPT): the processor walks both tables";
    /// An instruction that a program which runs natively cannot execute there; it is run translated.
    NativeStep = "native-step", exit: NO_EXIT, assist: "none needed: programs run on the guest's own processor state";
    /// A memory access done out of line: straddling pages, odd segments.
    SlowAccess = "slow-access", exit: NO_EXIT, assist: "none needed: the processor checks segments itself";
    /// A read of device memory.
    MmioRead = "mmio-read", exit: "EPT violation (48), APIC access (44)", assist: "APICv or AVIC for the local APIC; virtio: fewer accesses; assignment through an IOMMU";
    /// A write to device memory.
    MmioWrite = "mmio-write", exit: "EPT violation (48), APIC access (44)", assist: "APICv or AVIC for the local APIC (EOI, TPR); virtio: fewer accesses; assignment through an IOMMU";
    /// A write to a page that holds translated code.
    CodeWrite = "code-write", exit: NO_EXIT, assist: "none needed: processors keep their instruction caches coherent";
    /// IN and INS.
    PortIn = "port-in", exit: "I/O instruction (30)", assist: "I/O bitmaps for ports left to hardware; virtio: fewer accesses";
    /// OUT and OUTS.
    PortOut = "port-out", exit: "I/O instruction (30)", assist: "I/O bitmaps for ports left to hardware; virtio: fewer accesses";
    /// CLI.
    Cli = "cli", exit: NO_EXIT, assist: "none needed: the guest has its own flags; in V86 mode without VT-x, VME";
    /// STI.
    Sti = "sti", exit: NO_EXIT, assist: "none needed: the guest has its own flags; in V86 mode without VT-x, VME";
    /// PUSHF.
    Pushf = "pushf", exit: NO_EXIT, assist: "none needed: the guest has its own flags; in V86 mode without VT-x, VME";
    /// POPF.
    Popf = "popf", exit: NO_EXIT, assist: "none needed: the guest has its own flags; in V86 mode without VT-x, VME";
    /// IRET.
    Iret = "iret", exit: NO_EXIT, assist: "none needed: the guest has its own flags; in V86 mode without VT-x, VME";
    /// INT n, INT3, INTO, INT1.
    SoftwareInterrupt = "software-interrupt", exit: NO_EXIT, assist: "none needed; in V86 mode without VT-x, VME with its redirection bitmap";
    /// SYSENTER and SYSEXIT.
    FastSystemCall = "fast-system-call", exit: NO_EXIT, assist: "none needed";
    /// Far JMP, CALL and RET.
    FarTransfer = "far-transfer", exit: NO_EXIT, assist: "none needed";
    /// A load of a segment register.
    SegmentLoad = "segment-load", exit: NO_EXIT, assist: "none needed";
    /// MOV to CR3.
    Cr3Load = "cr3-load", exit: NO_EXIT, assist: "nested paging (EPT, NPT); with shadow page tables, CR3-target values";
    /// Other moves to and from control and debug registers, CLTS, LMSW, SMSW.
    ControlRegister = "control-register", exit: "control-register access (28), MOV DR (29)", assist: "guest/host masks and read shadows of CR0 and CR4: only masked bits exit";
    /// INVLPG, INVPCID.
    Invlpg = "invlpg", exit: NO_EXIT, assist: "nested paging (EPT, NPT)";
    /// RDMSR and WRMSR.
    Msr = "msr", exit: "RDMSR (31), WRMSR (32)", assist: "MSR bitmaps; x2APIC virtualization for the local APIC";
    /// CPUID.
    Cpuid = "cpuid", exit: "CPUID (10)", assist: "none: it always exits under VT-x";
    /// The marked hypercall that does nothing and returns immediately.
    NullHypercall = "null-hypercall", exit: "VMCALL (18)", assist: "none: it exists to be an exit";
    /// Any other hypercall: VMCALL, VMMCALL.
    Hypercall = "hypercall", exit: "VMCALL (18)", assist: "none: the guest asks for the monitor";
    /// RDTSC and RDTSCP.
    TimeStamp = "time-stamp", exit: NO_EXIT, assist: "TSC offsetting and scaling";
    /// HLT.
    Halt = "halt", exit: "HLT (12)", assist: "HLT left to the guest where the processor is its own";
    /// A string instruction run by the monitor.
    StringInstruction = "string", exit: NO_EXIT, assist: "none needed";
    /// FXSAVE, XSAVE, FNSAVE and their restores.
    VectorImage = "vector-image", exit: NO_EXIT, assist: "none needed";
    /// Loading the guest's x87/SSE/AVX registers into the host's.
    VectorLoad = "vector-load", exit: NO_EXIT, assist: "none needed: the registers are the guest's";
    /// Any other instruction executed by the monitor.
    OtherInstruction = "other-instruction", exit: NO_EXIT, assist: "none needed for nearly all; WBINVD, XSETBV and descriptor-table loads can exit";
    /// A page fault delivered to the guest.
    GuestPageFault = "guest-page-fault", exit: NO_EXIT, assist: "nested paging (EPT, NPT): the fault goes to the guest";
    /// Any other exception delivered to the guest.
    GuestException = "guest-exception", exit: NO_EXIT, assist: "none needed: the exception bitmap lets it through";
    /// A host fault in guest code (SIGFPE, SIGSEGV, SIGILL).
    HostFault = "host-fault", exit: NO_EXIT, assist: "none needed: the exception goes to the guest";
    /// A signal reached running guest code: a timer, a device, a command.
    Interrupted = "interrupted", exit: "external interrupt (1)", assist: "posted interrupts: delivery to a running guest";
    /// An external interrupt delivered to the guest.
    InterruptDelivered = "interrupt-delivered", exit: NO_EXIT, assist: "APICv: virtual-interrupt delivery; without it, injected at an entry (and an interrupt-window exit (7) if the guest is not ready)";
    /// One instruction was run alone (interrupt shadow, trap flag).
    SingleStep = "single-step", exit: NO_EXIT, assist: "none needed: the interrupt shadow is part of the guest's state";
}

/// The number of exits of each kind.
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

    /// The difference to `before`, an earlier state of these counts.
    pub fn since(&self, before: &Self) -> Self {
        let mut since = self.clone();
        for (now, before) in since.0.iter_mut().zip(&before.0) {
            *now = now.saturating_sub(*before);
        }
        since
    }

    /// The number of exits of this kind.
    pub fn get(&self, kind: ExitKind) -> u64 {
        self.0[kind as usize]
    }

    /// The number of all exits.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }

    /// The kinds that occurred, most frequent first.
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
    fn every_kind_says_what_removes_it_in_hardware() {
        for kind in ExitKind::ALL {
            assert!(!kind.assist().is_empty(), "{kind:?}");
            assert_eq!(ExitKind::of_name(kind.name()), Some(*kind));
        }
        assert_eq!(ExitKind::PortIn.hardware_exit(), "I/O instruction (30)");
        assert_eq!(ExitKind::LinkMiss.hardware_exit(), "");
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
