//! The arms, workloads and guests of the experiment `icache`.

use crate::experiment::{About, Arm, Guest, KindGroup, Workload};
use crate::linux_guest;
use crate::other_guest;
use tollgate_exits::ExitKind;

/// Workload: accesses to the local APIC.
pub const APIC: &str = "apic";
/// Workload: accesses to the local APIC by direct memory access, each of which faults on the host.
pub const APIC_DIRECT: &str = "apic-direct";
/// Workload: accesses to the local APIC by more instructions than the dictionary holds.
pub const APIC_SITES: &str = "apic-sites";
/// Workload: the same accesses as [`APIC`] by a kernel module inside Linux.
pub const APIC_MODULE: &str = "apic-module";
/// Workload: sleeps that a timer ends.
pub const TIMER: &str = "timer";
/// Workload: a shell that counts.
pub const SHELL: &str = "shell";
/// Workload: programs are compiled and run.
pub const COMPILE: &str = "compile";
/// Workload: make builds a program from its sources.
pub const MAKE: &str = "make";
/// Workload: the same with two processors.
pub const MAKE_SMP: &str = "make-smp";
/// Workload: a copy from memory to memory.
pub const COPY: &str = "copy";
/// Workload: system calls.
pub const GETUID: &str = "getuid";
/// Workload: lines that are typed at a prompt and answered.
pub const LINES: &str = "lines";
/// Workload: a boot, in which every instruction is executed for the first time.
pub const BOOT: &str = "boot";

/// Our own guest with 64 bits.
pub const WIDE: &str = "64-bit";
/// Our own guest with 32 bits.
pub const NARROW: &str = "32-bit";

/// Arm: each exit walks the page tables, fetches and decodes.
pub const OFF: &str = "off";
/// Arm: the dictionary is looked up by linear address.
pub const ON: &str = "on";
/// Arm: the dictionary is looked up by physical address.
pub const PHYSICAL: &str = "physical";
/// Arm: instructions are known since they were translated.
pub const SITE: &str = "site";
/// Arm: there is no exit where a fast path can execute the instruction.
pub const FAST_PATH: &str = "fast-path";

const OURS: &[&str] = &[WIDE, NARROW];
const LINUX: &[&str] = &[linux_guest::AMD64.name, linux_guest::I686.name];
const OTHERS: &[&str] = &[other_guest::MOROS.name, other_guest::GNU_MACH.name];
const BOOTING: &[&str] = &[
    linux_guest::AMD64.name,
    linux_guest::I686.name,
    other_guest::MOROS.name,
    other_guest::GNU_MACH.name,
];

/// The experiment's description.
pub static ABOUT: About = About {
    name: "icache",
    one_line: "instructions that exits emulate: looked up each time, or in a dictionary",
    question: "An exit that is emulated needs its instruction. A monitor that traps and emulates has \
               only the address of it: it walks the guest's page tables, maps the page, fetches the \
               bytes and decodes them, each time, though it is always the same few. What does a \
               dictionary of decoded instructions gain; and what, beside it, a translator that has \
               decoded each instruction once, and that need not exit?",
    source: "\"Instruction caching for bhyve\", FreeBSD, Summer of Code",
    arms: &[
        Arm::new(
            OFF,
            &[("icache", "off")],
            "found by a page walk, fetched and decoded at each exit",
        ),
        Arm::new(
            ON,
            &[("icache", "on")],
            "in a dictionary by linear address and address space",
        ),
        Arm::new(
            PHYSICAL,
            &[("icache", "physical")],
            "in a dictionary by physical address, after a page walk",
        ),
        Arm::new(
            SITE,
            &[("icache", "site")],
            "known since the translation; a place that faults is patched",
        ),
        Arm::new(
            FAST_PATH,
            &[("icache", "fast-path")],
            "the same, and no exit where a fast path can do it",
        ),
    ],
    workloads: &[
        Workload::of_events(
            APIC,
            "six accesses of the local APIC's registers, in a loop",
        )
        .on(OURS),
        Workload::of_events(
            APIC_DIRECT,
            "the same by direct memory access: each faults on the host, unless it is patched",
        )
        .on(&[WIDE]),
        Workload::of_events(
            APIC_SITES,
            "12,288 instructions access it by turns: each is new to the dictionary",
        )
        .on(OURS),
        Workload::of_events(
            APIC_MODULE,
            "the same six accesses by a kernel module, in a loop",
        )
        .on(LINUX),
        Workload::of_events(TIMER, "a program sleeps for a millisecond, in a loop").on(LINUX),
        Workload::of_events(SHELL, "a shell counts").on(LINUX),
        Workload::of_events(
            COMPILE,
            "tcc compiles three programs, and each computes its result",
        )
        .on(LINUX),
        Workload::of_events(MAKE, "make and gcc build Lua, and it computes")
            .with(&[OFF, ON, PHYSICAL])
            .on(LINUX),
        Workload::of_events(MAKE_SMP, "the same with two processors")
            .with(&[OFF, ON])
            .on(LINUX),
        Workload::of_events(COPY, "dd copies from memory to memory, by 4 KiB").on(LINUX),
        Workload::of_events(GETUID, "a program calls getuid, in a loop").on(LINUX),
        Workload::of_events(
            LINES,
            "a line is typed at the prompt and answered, in a loop",
        )
        .on(OTHERS),
        Workload::of_events(
            BOOT,
            "from the start to the shell: every instruction is new",
        )
        .on(BOOTING),
    ],
    guests: &[
        Guest {
            name: WIDE,
            what: "a kernel of ours without processes, of 64 bits",
            needs_image: false,
        },
        Guest {
            name: NARROW,
            what: "the same with 32 bits",
            needs_image: false,
        },
        linux_guest::AMD64,
        linux_guest::I686,
        other_guest::MOROS,
        other_guest::GNU_MACH,
    ],
    kinds: &[
        KindGroup {
            title: "accesses to devices",
            kinds: &[
                ExitKind::MmioRead,
                ExitKind::MmioWrite,
                ExitKind::PortIn,
                ExitKind::PortOut,
            ],
        },
        KindGroup {
            title: "system instructions",
            kinds: &[
                ExitKind::Msr,
                ExitKind::ControlRegister,
                ExitKind::Cr3Load,
                ExitKind::Invlpg,
                ExitKind::Cpuid,
            ],
        },
    ],
    numbers: None,
    by_workload: None,
};
