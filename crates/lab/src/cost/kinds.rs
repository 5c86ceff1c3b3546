//! The kinds of exit that `tollgate cost` measures, and which exits each repetition must cause.
//!
//! The names are those of `guests/kinds.inc`.

use tollgate_exits::ExitKind::{self, *};

/// The number of exits of one kind that must have been counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Expected {
    /// The kind of exit.
    pub kind: ExitKind,
    /// Exits for each repetition.
    pub each: u64,
    /// Exits for each command, from the preparation of the loop.
    pub once: u64,
    /// More exits are accepted, because other work of the loop counts as the same kind.
    pub at_least: bool,
    /// The number of additional exits that may occur before translated code needs none.
    pub first: u64,
    /// Additional exits for each repetition in ring 3: its programs have IOPL 3, and translated
    /// code returns only to IOPL 0.
    pub in_ring_3: u64,
    /// Additional exits for each repetition in ring 0 of 64-bit code, where not all fast paths
    /// exist.
    pub in_64_bit: u64,
    /// Additional exits for each repetition in real mode.
    pub in_real_mode: u64,
    /// Whether instructions of the kind that fast paths executed count like its exits.
    pub or_fast_path: bool,
}

const fn exits(kind: ExitKind, each: u64) -> Expected {
    Expected {
        kind,
        each,
        once: 0,
        at_least: false,
        first: 0,
        in_ring_3: 0,
        in_64_bit: 0,
        in_real_mode: 0,
        or_fast_path: false,
    }
}

/// A fast path may execute some or all of these instructions: INVLPG if the page is small and holds
/// no code, all others except in real mode.
const fn exits_or_fast_paths(kind: ExitKind, each: u64) -> Expected {
    Expected {
        or_fast_path: true,
        ..exits(kind, each)
    }
}

/// In ring 0 of protected mode and of 64-bit code, translated code needs no exit.
const fn translated_in_kernels(kind: ExitKind) -> Expected {
    Expected {
        in_ring_3: 1,
        in_real_mode: 1,
        ..exits_or_fast_paths(kind, 0)
    }
}

const fn with_set_up(kind: ExitKind, each: u64, once: u64) -> Expected {
    Expected {
        once,
        ..exits_or_fast_paths(kind, each)
    }
}

const fn at_least(kind: ExitKind, each: u64) -> Expected {
    Expected {
        at_least: true,
        ..exits(kind, each)
    }
}

/// There is no exit after the monitor has executed a few; in ring 3, the return is still one.
const fn returns_from_ring_3(kind: ExitKind) -> Expected {
    Expected {
        first: 16,
        in_ring_3: 1,
        ..exits(kind, 0)
    }
}

/// There are some exits at first, then none: a fast path executes the instruction, or the
/// translation has changed.
const fn at_first(kind: ExitKind) -> Expected {
    Expected {
        first: 16,
        ..exits(kind, 0)
    }
}

/// A fast path executes the instruction only in 16- and 32-bit code of ring 0.
const fn fast_path_in_kernels(kind: ExitKind) -> Expected {
    Expected {
        in_ring_3: 1,
        in_64_bit: 1,
        ..at_first(kind)
    }
}

/// A fast path makes accesses to a page of device registers only in ring 0: `each` for a
/// repetition.
const fn fast_path_of_device(kind: ExitKind, each: u64) -> Expected {
    Expected {
        in_ring_3: each,
        ..at_first(kind)
    }
}

/// The exits of a request to a virtio device in memory: the device is notified and its interrupt
/// acknowledged; fast paths write the local APIC's EOI. The device's thread may finish before the
/// guest sleeps.
const REQUEST: &[Expected] = &[
    Expected {
        first: 16,
        ..exits(MmioWrite, 2)
    },
    exits(InterruptDelivered, 1),
    at_least(Halt, 0),
    at_least(Interrupted, 0),
];

/// The contents of a kind's batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Batch {
    /// Only the event; the empty loop is subtracted.
    Event,
    /// The event and an INVLPG before it, whose own batch is subtracted.
    AfterInvlpg,
    /// The event, and what must precede or follow it, such as EOI.
    Whole,
    /// There is no batch: most of its time would be waiting.
    None,
}

/// One row of the experiment.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// The kind's name, as in the guest's table.
    pub name: &'static str,
    /// What happens between the readings of the clock.
    pub what: &'static str,
    /// The exits of each repetition.
    pub expected: &'static [Expected],
    /// The contents of the kind's batch.
    pub batch: Batch,
    /// Whether the time is measured from a deadline instead of the first reading.
    pub after_deadline: bool,
    /// Whether a repetition takes microseconds, so that fewer are measured.
    pub is_slow: bool,
}

/// The name of the empty loop.
pub const BASELINE: &str = "no-op";
/// The name of the loop that is subtracted from batches of kinds that need it as preparation.
pub const INVLPG: &str = "invlpg";

const fn kind(name: &'static str, what: &'static str, expected: &'static [Expected]) -> Kind {
    Kind {
        name,
        what,
        expected,
        batch: Batch::Event,
        after_deadline: false,
        is_slow: false,
    }
}

impl Kind {
    const fn batch(mut self, batch: Batch) -> Self {
        self.batch = batch;
        self
    }

    const fn slow(mut self) -> Self {
        self.is_slow = true;
        self
    }

    const fn after_deadline(mut self) -> Self {
        self.after_deadline = true;
        self.batch = Batch::None;
        self.slow()
    }
}

/// All kinds that are measured, in the order of the output.
pub const KINDS: &[Kind] = &[
    kind(
        "null-hypercall",
        "VMCALL that returns at once",
        &[exits(NullHypercall, 1)],
    ),
    kind(
        "hypercall",
        "VMCALL that answers with a version",
        &[exits(Hypercall, 1)],
    ),
    kind(
        "cpuid",
        "CPUID leaf 0: a fast path, no exit",
        &[at_first(Cpuid)],
    ),
    kind(
        "rdtsc",
        "RDTSC: translated, no exit",
        &[exits(TimeStamp, 0)],
    ),
    kind(
        "port-in",
        "IN from port 80h: a fast path, no exit",
        &[at_first(PortIn)],
    ),
    kind(
        "port-in-serial",
        "IN from the serial port's line status: a fast path, no exit",
        &[at_first(PortIn)],
    ),
    kind(
        "port-in-pm-timer",
        "IN from the power-management timer: a fast path, no exit",
        &[at_first(PortIn)],
    ),
    kind(
        "port-out",
        "OUT to port 80h: a fast path, no exit",
        &[at_first(PortOut)],
    ),
    kind(
        "serial-byte",
        "OUT of a byte to the serial port",
        &[exits(PortOut, 1)],
    ),
    kind(
        "cmos-read",
        "OUT and IN: a register of the real-time clock",
        &[exits(PortOut, 1), exits(PortIn, 1)],
    ),
    kind(
        "timer-count",
        "IN from the 8254's counter: a fast path, no exit",
        &[at_first(PortIn)],
    ),
    kind(
        "mmio-read",
        "read of the local APIC's ID: in ring 0 a fast path, no exit",
        &[fast_path_of_device(MmioRead, 1)],
    ),
    kind(
        "mmio-write",
        "write of the local APIC's task priority: in ring 0 a fast path, no exit",
        &[fast_path_of_device(MmioWrite, 1)],
    ),
    kind(
        "eoi",
        "write of the local APIC's EOI, nothing in service: in ring 0 a fast path, no exit",
        &[fast_path_of_device(MmioWrite, 1)],
    ),
    kind(
        "self-ipi",
        "write of the local APIC's command register to the handler's first instruction",
        &[
            exits(InterruptDelivered, 1),
            fast_path_of_device(MmioWrite, 2),
        ],
    )
    .batch(Batch::Whole),
    kind(
        "timer-interrupt",
        "the local APIC timer's deadline to the handler, arming included, the guest computing",
        &[
            exits(InterruptDelivered, 1),
            fast_path_of_device(MmioWrite, 2),
        ],
    )
    .after_deadline(),
    kind(
        "hlt-to-timer",
        "the local APIC timer's deadline to the handler, arming included, the guest in HLT",
        &[
            exits(Halt, 1),
            exits(InterruptDelivered, 1),
            fast_path_of_device(MmioWrite, 2),
        ],
    )
    .after_deadline(),
    kind(
        "disk-request-virtio",
        "4 KiB read from a virtio disk, from the notification to the interrupt's handler",
        REQUEST,
    )
    .batch(Batch::Whole)
    .slow(),
    kind(
        "packet-virtio",
        "packet handed to a virtio adapter, from the notification to the interrupt's handler",
        REQUEST,
    )
    .batch(Batch::Whole)
    .slow(),
    kind("cli", "CLI", &[exits(Cli, 1)]),
    kind("sti", "STI", &[exits(Sti, 1)]),
    kind("pushf", "PUSHF and POP of a register", &[exits(Pushf, 1)]),
    kind("popf", "PUSH of an immediate and POPF", &[exits(Popf, 1)]),
    kind(
        "int",
        "INT n to the handler's first instruction",
        &[exits(SoftwareInterrupt, 1)],
    ),
    kind(
        "iret",
        "IRET to the same ring, its frame pushed before",
        &[exits(Iret, 1)],
    ),
    kind(
        "int-iret",
        "INT n and IRET",
        &[exits(SoftwareInterrupt, 1), exits(Iret, 1)],
    ),
    kind(
        "sysenter-sysexit",
        "SYSENTER and SYSEXIT: translated, no exit but of SYSEXIT to IOPL 3",
        &[returns_from_ring_3(FastSystemCall)],
    ),
    kind(
        "syscall-sysret",
        "SYSCALL and SYSRET: translated, no exit but of SYSRET to IOPL 3",
        &[returns_from_ring_3(FastSystemCall)],
    ),
    kind(
        "syscall",
        "SYSCALL, in ring 0, and a jump back: translated, no exit",
        &[returns_from_ring_3(FastSystemCall)],
    ),
    kind(
        "far-jump",
        "far JMP: a fast path, no exit; in real mode translated",
        &[at_first(FarTransfer)],
    ),
    kind(
        "far-call-return",
        "far CALL and RET: fast paths, no exit; in real mode translated",
        &[at_first(FarTransfer)],
    ),
    kind(
        "segment-load",
        "MOV to FS; in 32-bit kernels a fast path, in real mode translated: no exit",
        &[fast_path_in_kernels(SegmentLoad)],
    ),
    kind(
        "segment-store",
        "MOV from DS: translated, no exit",
        &[exits(OtherInstruction, 0)],
    ),
    kind(
        "segment-push",
        "PUSH FS and POP of a register: translated, no exit",
        &[exits(SegmentLoad, 0)],
    ),
    kind(
        "segment-pop",
        "PUSH of a register and POP FS; in 32-bit kernels a fast path, in real mode translated: no exit",
        &[fast_path_in_kernels(SegmentLoad)],
    ),
    kind(
        "cr0-read",
        "MOV from CR0: translated, no exit",
        &[exits(ControlRegister, 0)],
    ),
    kind(
        "cr0-write",
        "MOV to CR0 of the value it has; but in real mode a fast path",
        &[exits_or_fast_paths(ControlRegister, 1)],
    ),
    kind(
        "cr3-load",
        "MOV to CR3 of the value it has",
        &[exits(Cr3Load, 1)],
    ),
    kind(
        "cr3-load-touch-16",
        "MOV to CR3 and a read of each of 16 pages, whose entries are as they were: none is missed",
        &[exits(Cr3Load, 1), exits(TlbMissRead, 0)],
    ),
    kind(
        "cr3-load-keep",
        "MOV to CR3 of the value it has, with bit 63",
        &[exits(Cr3Load, 1)],
    ),
    kind("cr8-read", "MOV from CR8", &[exits(ControlRegister, 1)]),
    kind("cr8-write", "MOV to CR8", &[exits(ControlRegister, 1)]),
    kind(
        "dr7-read",
        "MOV from DR7",
        &[exits_or_fast_paths(ControlRegister, 1)],
    ),
    kind(
        "clts",
        "CLTS with CR0.TS clear: no exit",
        &[exits(ControlRegister, 0)],
    ),
    kind(
        "smsw",
        "SMSW; in ring 0 but in real mode translated, no exit",
        &[translated_in_kernels(ControlRegister)],
    ),
    kind(
        "lmsw",
        "LMSW of the value it has; but in real mode a fast path",
        &[exits_or_fast_paths(ControlRegister, 1)],
    ),
    kind("sgdt", "SGDT", &[exits_or_fast_paths(OtherInstruction, 1)]),
    kind("sidt", "SIDT", &[exits_or_fast_paths(OtherInstruction, 1)]),
    kind(
        "lgdt",
        "LGDT of the table that is loaded; but in real mode a fast path",
        &[exits_or_fast_paths(OtherInstruction, 1)],
    ),
    kind(
        "sldt",
        "SLDT; in ring 0 translated, no exit",
        &[translated_in_kernels(OtherInstruction)],
    ),
    kind(
        "str",
        "STR; in ring 0 translated, no exit",
        &[translated_in_kernels(OtherInstruction)],
    ),
    kind("verr", "VERR", &[exits_or_fast_paths(OtherInstruction, 1)]),
    kind(
        "msr-read",
        "RDMSR of 174h; but in real mode a fast path",
        &[exits_or_fast_paths(Msr, 1)],
    ),
    kind(
        "msr-write",
        "WRMSR of 174h; but in real mode a fast path",
        &[exits_or_fast_paths(Msr, 1)],
    ),
    kind(
        "fs-base-msr-write",
        "WRMSR of FS's base: a fast path",
        &[exits_or_fast_paths(Msr, 1)],
    ),
    kind(
        "fs-base-read",
        "RDFSBASE: translated, no exit",
        &[exits(OtherInstruction, 0)],
    ),
    kind(
        "fs-base-write",
        "WRFSBASE: translated, no exit",
        &[exits(OtherInstruction, 0)],
    ),
    kind(
        "swapgs",
        "SWAPGS: translated, no exit",
        &[exits(OtherInstruction, 0)],
    ),
    kind(
        "rdtscp",
        "RDTSCP: translated, no exit",
        &[exits(TimeStamp, 0)],
    ),
    kind(
        "invpcid",
        "INVPCID of a page of the identifier that is loaded",
        &[exits(Invlpg, 1)],
    ),
    kind(
        INVLPG,
        "INVLPG of a page in use",
        &[exits_or_fast_paths(Invlpg, 1)],
    ),
    kind(
        "tlb-miss-read",
        "read of a page that the software TLB does not hold: filled by a fast path",
        &[
            exits_or_fast_paths(TlbMissRead, 1),
            exits_or_fast_paths(Invlpg, 1),
        ],
    )
    .batch(Batch::AfterInvlpg),
    kind(
        "tlb-miss-write",
        "write to a page that the software TLB does not hold: filled by a fast path",
        &[
            exits_or_fast_paths(TlbMissWrite, 1),
            exits_or_fast_paths(Invlpg, 1),
        ],
    )
    .batch(Batch::AfterInvlpg),
    kind(
        "slow-access",
        "read across two pages that are not adjacent",
        &[exits(SlowAccess, 1)],
    ),
    kind(
        "page-fault",
        "page fault to the handler's first instruction",
        &[exits(GuestPageFault, 1)],
    ),
    kind(
        "page-fault-iret",
        "page fault and IRET",
        &[exits(GuestPageFault, 1), exits(Iret, 1)],
    ),
    kind(
        "link-miss",
        "call into a page whose links were dropped, and its return",
        &[exits(LinkMiss, 1), exits_or_fast_paths(Invlpg, 1)],
    )
    .batch(Batch::AfterInvlpg),
    kind(
        "indirect-miss",
        "indirect call into a page whose links were dropped, and its return",
        &[exits(IndirectMiss, 1), exits_or_fast_paths(Invlpg, 1)],
    )
    .batch(Batch::AfterInvlpg),
    kind(
        "code-write",
        "store to a page that holds translated code, next to the code: no exit",
        &[exits(CodeWrite, 0)],
    ),
    kind(
        "code-write-in-line",
        "store to 64 bytes that hold translated code, next to the code: no exit",
        &[at_first(CodeWrite)],
    ),
    kind(
        "patch-and-call",
        "store into an instruction's operand, and a call of it",
        &[exits(CodeWrite, 1)],
    )
    .slow(),
    kind(
        "patch-alternate",
        "store that makes one instruction another and back, and a call of it",
        &[exits(CodeWrite, 1)],
    )
    .slow(),
    kind(
        "patch-next",
        "store into the operand of the next instruction",
        &[exits(CodeWrite, 1)],
    )
    .slow(),
    kind(
        "emit-and-run-1",
        "a new instruction written, and a call of it",
        &[exits(CodeWrite, 1)],
    )
    .slow(),
    kind(
        "emit-and-run-16",
        "16 new instructions written, and a call of them",
        &[exits(CodeWrite, 1)],
    )
    .slow(),
    kind(
        "emit-and-run-100",
        "100 new instructions written, which make two blocks, and a call of them",
        &[exits(CodeWrite, 2)],
    )
    .slow(),
    kind(
        "invalid-opcode",
        "UD2 to the handler's first instruction",
        &[exits(GuestException, 1)],
    ),
    kind(
        "divide-error",
        "DIV by zero (a signal on the host) to the handler's first instruction",
        &[exits(HostFault, 1), exits(GuestException, 1)],
    )
    .slow(),
    kind(
        "string",
        "REP MOVSD of 64 bytes: a routine, no exit",
        &[exits(StringInstruction, 0)],
    ),
    kind(
        "string-down",
        "REP MOVSD of 64 bytes with the direction flag set: a routine, no exit",
        &[exits(StringInstruction, 0)],
    ),
    kind("fxsave", "FXSAVE", &[exits(VectorImage, 1)]),
    kind(
        "vector-load",
        "FLDZ and FSTP when an exit has put the vector registers away: a fast path",
        &[exits(VectorLoad, 0), exits(NullHypercall, 1)],
    )
    .batch(Batch::Whole),
    kind(
        "tsc-deadline-write",
        "WRMSR of IA32_TSC_DEADLINE, which arms nothing: a fast path",
        &[exits_or_fast_paths(Msr, 1)],
    ),
    // These leave the local APIC in x2APIC mode, so they come last.
    kind(
        "x2apic-tpr-write",
        "WRMSR of the task priority in x2APIC mode: a fast path",
        &[with_set_up(Msr, 1, 2)],
    ),
    kind(
        "x2apic-eoi",
        "WRMSR of EOI in x2APIC mode, nothing in service: a fast path",
        &[with_set_up(Msr, 1, 2)],
    ),
    kind(
        "x2apic-timer-read",
        "RDMSR of the timer's current count in x2APIC mode: a fast path",
        &[with_set_up(Msr, 1, 2)],
    ),
    kind(
        "x2apic-self-ipi",
        "WRMSR of SELF IPI in x2APIC mode to the handler's first instruction",
        &[exits(InterruptDelivered, 1), with_set_up(Msr, 2, 2)],
    )
    .batch(Batch::Whole),
];

/// The guest's loop that measures no kind of exit.
pub const INTERPRETER: &str = "interpreter";

/// Kinds that the experiment would measure too if this version had them.
pub const NOT_IN_THIS_VERSION: &[(&str, &str)] = &[
    ("shadow-fill", "a page entered into a shadow window"),
    ("mwait", "MONITOR and MWAIT"),
    ("ipi", "an interrupt to another virtual processor"),
    (
        "disk-request-register",
        "a disk request through device registers",
    ),
    (
        "packet-register",
        "a network packet through device registers",
    ),
    ("kvm", "the same exits from the KVM engine"),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::guest;

    /// Loops of the guest that are not kinds of exit.
    const OTHER_LOOPS: &[&str] = &[BASELINE, INTERPRETER];

    #[test]
    fn every_kind_has_loops_and_every_loop_is_a_kind() {
        let table = guest::table();
        for kind in KINDS {
            assert!(
                table.iter().any(|line| line.name == kind.name),
                "{}",
                kind.name
            );
        }
        for line in table {
            let known = KINDS.iter().any(|kind| kind.name == line.name)
                || OTHER_LOOPS.contains(&line.name.as_str());
            assert!(known, "{}", line.name);
        }
    }

    #[test]
    fn what_32_bit_code_takes_64_bit_code_takes_too() {
        use crate::cost::GuestMode::{Long, LongRing3, Paged, Ring3};
        let table = guest::table();
        let takes = |name: &str, mode| {
            let mut lines = table.iter();
            lines.any(|line| line.name == name && line.runs_in(mode))
        };
        for kind in KINDS {
            // AMD's processors have no SYSENTER in IA-32e mode.
            for (narrow, wide) in [(Paged, Long), (Ring3, LongRing3)] {
                let missing = takes(kind.name, narrow) && !takes(kind.name, wide);
                assert_eq!(missing, narrow == Ring3 && kind.name == "sysenter-sysexit");
            }
        }
        assert!(takes("swapgs", Long) && takes("syscall-sysret", LongRing3));
    }

    #[test]
    fn names_are_unique() {
        for (index, kind) in KINDS.iter().enumerate() {
            assert!(!KINDS[..index].iter().any(|other| other.name == kind.name));
        }
    }
}
