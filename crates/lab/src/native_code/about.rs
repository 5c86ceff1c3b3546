//! The arms, workloads and guests of the experiment `native`.

use crate::experiment::{About, Arm, KindGroup, Workload, WorkloadNumbers};
use crate::linux_guest;
use tollgate_exits::ExitKind;

/// Arm: programs are translated.
pub const TRANSLATED: &str = "translated";
/// Arm: programs run natively wherever that is possible.
pub const NATIVE: &str = "native";
/// Arm: programs run natively as long as that seems to pay.
pub const ADAPTIVE: &str = "adaptive";

/// The workloads that compute by a loop between two system calls, and the rounds of that loop.
pub const LOOPS: &[(&str, u32)] = &[
    ("loop-1", 1),
    ("loop-100", 100),
    ("loop-1000", 1_000),
    ("loop-3000", 3_000),
    ("loop-10000", 10_000),
    ("loop-30000", 30_000),
    ("loop-100000", 100_000),
];
/// The workloads that call short functions by a table between two system calls, and the number of
/// these calls.
pub const CALLS: &[(&str, u32)] = &[
    ("calls-1", 1),
    ("calls-100", 100),
    ("calls-1000", 1_000),
    ("calls-3000", 3_000),
    ("calls-10000", 10_000),
    ("calls-30000", 30_000),
    ("calls-100000", 100_000),
];
/// Workload: a function is written and called.
pub const WRITTEN: &str = "written-code";
/// Workload: new pages are written to.
pub const PAGES: &str = "pages";
/// Workload: processes are started.
pub const FORK: &str = "fork";
/// Workload: the shell counts.
pub const SHELL: &str = "shell";
/// Workload: the shell starts programs that are connected by pipes.
pub const PIPES: &str = "pipes";
/// Workload: awk computes.
pub const AWK: &str = "awk";
/// Workload: a compiler makes small programs.
pub const COMPILE: &str = "tcc";
/// Workload: make and gcc build a program.
pub const MAKE: &str = "make";
/// Workload: Python computes.
pub const PYTHON: &str = "python3";
/// Workload: LuaJIT computes by its just-in-time compiler.
pub const JIT: &str = "luajit";
/// Workload: LuaJIT computes by its interpreter.
pub const INTERPRETER: &str = "luajit-off";

/// Workloads: a process wakes by its timer, while others are started, or pass a byte on by a pipe.
pub const LATE_FORK: &str = "timer-fork";
pub const LATE_PIPE: &str = "timer-pipe";

/// The workloads that are interpreters.
pub const INTERPRETED: &[&str] = &[PYTHON, JIT, INTERPRETER];

/// A workload of a ladder, by its place.
const fn step(
    ladder: &'static [(&'static str, u32)],
    place: usize,
    what: &'static str,
) -> Workload {
    Workload::of_events(ladder[place].0, what)
}

const LOOP: &str =
    "a loop with loads, stores and a multiplication runs for this number of rounds, then getpid";
const CALL: &str = "this number of short functions is called by a table, then getpid";

/// The experiment's description.
pub static ABOUT: About = About {
    name: "native",
    one_line: "programs of the guest: translated, or run as they are in processes of the host",
    question: "The guest's kernel is translated, as a monitor without help from the processor must \
               do it. Its programs can be translated too, or the processor runs them as they are, in \
               a process of the host for each address space; then each system call, page fault and \
               interrupt is a way out of that process and back. How long must a program compute \
               between two of them, so that running it natively pays; which programs do; and does \
               'adaptive' find that out?",
    source: "VMware's first monitors (K. Adams, O. Agesen, \"A Comparison of Software and Hardware \
             Techniques for x86 Virtualization\"), User-Mode Linux (J. Dike), gVisor: systems that \
             run programs directly and enter a kernel that does not",
    arms: &[
        Arm::new(
            TRANSLATED,
            &[("user-code", "translated")],
            "programs are translated, as the kernel is",
        ),
        Arm::new(
            NATIVE,
            &[("user-code", "native")],
            "programs run as they are wherever that is possible",
        ),
        Arm::new(
            ADAPTIVE,
            &[("user-code", "adaptive")],
            "they do so once they have run for a while, and as long as they seldom enter the kernel",
        ),
    ],
    workloads: &[
        step(LOOPS, 0, LOOP),
        step(LOOPS, 1, LOOP),
        step(LOOPS, 2, LOOP),
        step(LOOPS, 3, LOOP),
        step(LOOPS, 4, LOOP),
        step(LOOPS, 5, LOOP),
        step(LOOPS, 6, LOOP),
        step(CALLS, 0, CALL),
        step(CALLS, 1, CALL),
        step(CALLS, 2, CALL),
        step(CALLS, 3, CALL),
        step(CALLS, 4, CALL),
        step(CALLS, 5, CALL),
        step(CALLS, 6, CALL),
        Workload::of_events(WRITTEN, "a function is written and called ten times"),
        Workload::of_events(PAGES, "writes to each of 64 new pages, and unmaps them"),
        Workload::of_events(FORK, "starts a process, which ends"),
        Workload::of_events(
            LATE_FORK,
            "processes are started, and one wakes by its timer",
        ),
        Workload::of_events(
            LATE_PIPE,
            "two processes pass a byte on, and one wakes by its timer",
        ),
        Workload::of_events(SHELL, "the shell counts"),
        Workload::of_events(PIPES, "the shell starts three programs, connected by pipes"),
        Workload::of_events(AWK, "awk computes sums in a table"),
        Workload::of_events(COMPILE, "tcc compiles three small programs, which run"),
        Workload::of_events(MAKE, "make and gcc build the sources of Lua"),
        Workload::of_events(PYTHON, "Python starts and computes"),
        Workload::of_events(JIT, "LuaJIT starts and computes, by code that it writes"),
        Workload::of_events(INTERPRETER, "the same by its interpreter"),
    ],
    guests: &[linux_guest::AMD64],
    kinds: &[
        KindGroup {
            title: "ways out of programs",
            kinds: &[
                ExitKind::NativeFault,
                ExitKind::NativeStep,
                ExitKind::Interrupted,
            ],
        },
        KindGroup {
            title: "filling",
            kinds: &[
                ExitKind::TlbMissRead,
                ExitKind::TlbMissWrite,
                ExitKind::WindowFault,
            ],
        },
        KindGroup {
            title: "finding code",
            kinds: &[ExitKind::LinkMiss, ExitKind::IndirectMiss],
        },
    ],
    numbers: None,
    by_workload: Some(WorkloadNumbers {
        what: "rounds between two system calls",
        kinds: &[("loop", LOOPS), ("calls", CALLS)],
    }),
};
