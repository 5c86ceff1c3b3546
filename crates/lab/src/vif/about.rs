//! The arms, workloads and guests of the experiment `vif`.

use crate::experiment::{About, Arm, Guest, KindGroup, Metric, Workload};
use tollgate_exits::ExitKind;
use tollgate_machine::boot::guest_hooks::GuestHooks;

/// Arm: every sensitive instruction is an exit, by a call-out.
pub const OFF: &str = "vif=off";
/// Arm: every sensitive instruction is an exit, by the host's general protection fault.
pub const OFF_TRAP: &str = "vif=off+trap";
/// Arm: every sensitive instruction is an exit, by the host's undefined-instruction fault with the
/// whole context.
pub const OFF_TASK: &str = "vif=off+task";
/// Arm: only the interrupt flag is virtualized.
pub const ON_WITHOUT_REQUEST: &str = "vif=on+vir=off";
/// Arm: the interrupt flag and the request are virtualized.
pub const ON: &str = "vif=on";

/// Arm: like [`OFF`], with handlers of ours in the guest.
pub const OFF_HOOKS: &str = "vif=off+hooks";
/// Arm: like [`ON`], with handlers of ours in the guest.
pub const ON_HOOKS: &str = "vif=on+hooks";

/// The DOS guest that the user supplies.
pub const DOS: &str = "dos";

/// The small system in virtual-8086 mode at IOPL 0.
pub const V86: &str = "v86";
/// The small system in virtual-8086 mode at IOPL 3.
pub const V86_IOPL3: &str = "v86-iopl3";
/// The guests whose own 32-bit monitor emulates some of the six instructions.
pub const WITH_OWN_MONITOR: &[&str] = &[V86, V86_IOPL3];

/// The workload with four machines.
pub const FOUR_MACHINES: &str = "four-machines";
/// The value that is compared for four machines.
pub const ECHO_P99: &str = "echo-p99";
/// The workload that waits at the prompt.
pub const IDLE: &str = "idle";
/// The workload with files.
pub const COPY_TYPE: &str = "copy-type";
/// The workload with a table of figures.
pub const SPREADSHEET: &str = "spreadsheet";
/// The workload with an editor.
pub const EDITOR: &str = "editor";
/// The workload with an editor that has WordStar's keys.
pub const WORD_PROCESSOR: &str = "word-processor";
/// The workload with a vi of DOS's time.
pub const VI: &str = "vi";
/// The value that is compared for idling.
pub const POLL: &str = "poll";

/// The share of this workload's time that was not spent in HLT.
pub const BUSY: &str = "busy";

/// The six sensitive instructions, as kinds of exit.
pub const SIX: &[ExitKind] = &[
    ExitKind::Cli,
    ExitKind::Sti,
    ExitKind::Pushf,
    ExitKind::Popf,
    ExitKind::SoftwareInterrupt,
    ExitKind::Iret,
];

/// The instructions and accesses that reach devices, as kinds of exit.
pub const INPUT_OUTPUT: &[ExitKind] = &[
    ExitKind::PortIn,
    ExitKind::PortOut,
    ExitKind::MmioRead,
    ExitKind::MmioWrite,
];

/// The experiment's description.
pub static ABOUT: About = About {
    name: "vif",
    one_line: "the interrupt flag of 16-bit systems: an exit for each instruction, or none",
    question: "8086 programs execute CLI, STI, PUSHF, POPF, INT n and IRET all the time. Each \
               reads or changes the interrupt flag, which the monitor must virtualise. How much \
               time goes into that, if each is an exit, and what is left of it with a virtual \
               interrupt flag (VIF) and a virtual interrupt request (VIR)?",
    source: "D. Butterfield, \"A Proposal for 80386 VM86 Performance Enhancements\"",
    arms: &[
        Arm::new(
            OFF,
            &[("vif", "off"), ("vir", "on"), ("transition", "call")],
            "each of the six is an exit, by a call-out",
        ),
        Arm::new(
            OFF_TRAP,
            &[("vif", "off"), ("vir", "on"), ("transition", "trap")],
            "by a host #GP, taken as a signal: stands for the 80386's trap gate",
        ),
        Arm::new(
            OFF_TASK,
            &[("vif", "off"), ("vir", "on"), ("transition", "task")],
            "by a host #UD with the whole context: stands for its task gate",
        ),
        Arm::new(
            ON_WITHOUT_REQUEST,
            &[("vif", "on"), ("vir", "off"), ("transition", "call")],
            "VIF without VIR: an exit at each change of the flag from 0 to 1",
        ),
        Arm::new(
            ON,
            &[("vif", "on"), ("vir", "on"), ("transition", "call")],
            "VIF and VIR: an exit only when an interrupt can be delivered",
        ),
        Arm {
            hooks: Some(GuestHooks::Dos),
            guests: &[DOS],
            ..Arm::new(
                OFF_HOOKS,
                &[("vif", "off"), ("vir", "on"), ("transition", "call")],
                "like vif=off, with handlers of ours in the guest (--guest-hooks dos)",
            )
        },
        Arm {
            hooks: Some(GuestHooks::Dos),
            guests: &[DOS],
            ..Arm::new(
                ON_HOOKS,
                &[("vif", "on"), ("vir", "on"), ("transition", "call")],
                "like vif=on, with these handlers",
            )
        },
    ],
    workloads: &[
        Workload {
            metric: Metric::Value {
                name: POLL,
                unit: "us",
            },
            ..Workload::of_time(
                IDLE,
                "waits at the prompt, polling the keyboard; the time of one poll",
            )
        },
        Workload::of_time(COPY_TYPE, "copies files and displays them"),
        Workload::of_time("mix", "files, screen and computation"),
        Workload::of_time(
            SPREADSHEET,
            "works through a table of figures, prints totals",
        )
        .on(&[DOS]),
        Workload::of_time(EDITOR, "copies a letter, edits it, displays it").on(&[DOS]),
        Workload::of_time(
            WORD_PROCESSOR,
            "the same with e3, which has WordStar's keys (scripts/get-dos-programs)",
        )
        .on(&[DOS]),
        Workload::of_time(
            VI,
            "the same with elvis, a vi of its time (scripts/get-dos-programs)",
        )
        .on(&[DOS]),
        Workload::of_time(
            "build",
            "a C compiler, an assembler and a linker make a program, which runs \
             (scripts/get-dos-programs)",
        )
        .on(&[DOS]),
        Workload::of_time("compute", "computation alone, with the timer ticking"),
        Workload {
            metric: Metric::Value {
                name: ECHO_P99,
                unit: "us",
            },
            ..Workload::of_time(
                FOUR_MACHINES,
                "four machines on one processor, three of them busy; from a key to its echo",
            )
            .with(&[OFF, ON])
            .on(&["real", V86_IOPL3, DOS])
            .on_one_processor()
        },
    ],
    guests: &[
        Guest {
            name: "real",
            what: "our small 16-bit system in real mode",
            needs_image: false,
        },
        Guest {
            name: V86,
            what: "the same as a virtual-8086 task at IOPL 0 under its own 32-bit monitor",
            needs_image: false,
        },
        Guest {
            name: V86_IOPL3,
            what: "at IOPL 3: only INT n goes to that monitor",
            needs_image: false,
        },
        Guest {
            name: "v86-vme",
            what: "at IOPL 0 with CR4.VME",
            needs_image: false,
        },
        Guest {
            name: DOS,
            what: "a DOS of yours, from the image of its floppy disk: FreeDOS has some at \
                   www.freedos.org/download",
            needs_image: true,
        },
    ],
    kinds: &[
        KindGroup {
            title: "the six",
            kinds: SIX,
        },
        KindGroup {
            title: "I/O",
            kinds: INPUT_OUTPUT,
        },
        KindGroup {
            title: "interrupts",
            kinds: &[ExitKind::Interrupted, ExitKind::InterruptDelivered],
        },
        KindGroup {
            title: "exceptions to the guest",
            kinds: &[ExitKind::GuestException],
        },
    ],
    numbers: None,
    by_workload: None,
};
