//! What is compared, on what.

use crate::experiment::{About, Arm, EVENT, KindGroup, Metric, Workload};
use crate::linux_guest;
use tollgate_exits::ExitKind;

/// Processes are started that end at once.
pub const FORK: &str = "fork";
/// The same, and they execute a program.
pub const EXEC: &str = "exec";
/// A byte goes to and fro between two processes.
pub const PIPE: &str = "pipe";
/// `fork`, while another machine does so too on the same processor of the host.
pub const ONE_CORE: &str = "two-machines-one-core";
/// The same on two processors.
pub const TWO_CORES: &str = "two-machines-two-cores";

/// The monitor's work is done to its end.
pub const OFF: &str = "off";
/// It stops where an interrupt waits.
pub const RESTART: &str = "restart";
/// It stops there, and goes on behind the handler.
pub const RESUME: &str = "resume";
/// All of these.
pub const ARMS: [&str; 3] = [OFF, RESTART, RESUME];

const fn workload(name: &'static str, what: &'static str) -> Workload {
    Workload {
        name,
        what,
        metric: Metric::Value {
            name: EVENT,
            unit: "cycles",
        },
        arms: &[],
        guests: &[],
    }
}

/// The experiment's description.
pub static ABOUT: About = About {
    name: "interruptible",
    one_line: "long pieces of the monitor's work: done to the end, or stopped for an interrupt",
    question: "A monitor handles the guest's faults with interrupts off. While it works for one process, \
               a timer that would wake a more important one waits. How long are these pieces of work, \
               how long does an interrupt wait for them, and what does it cost to stop them? In each \
               run a process of high priority waits for a moment, again and again, while others \
               of low priority have the monitor work.",
    source: "M. Ito and S. Oikawa, \"Improving Real-Time Performance of a Virtual Machine Monitor based \
             System\"",
    arms: &[
        Arm {
            name: OFF,
            settings: &[("interruptible", "off")],
            checks: false,
            hooks: None,
            guests: &[],
            what: "each piece of work is done to its end",
        },
        Arm {
            name: RESTART,
            settings: &[("interruptible", "restart")],
            checks: false,
            hooks: None,
            guests: &[],
            what: "it stops with what it has done; the instruction begins again behind the handler",
        },
        Arm {
            name: RESUME,
            settings: &[("interruptible", "resume")],
            checks: false,
            hooks: None,
            guests: &[],
            what: "it stops, and goes on when the handler has returned to the instruction",
        },
    ],
    workloads: &[
        workload(FORK, "a process starts others that end at once"),
        workload(EXEC, "the same, and they execute a program"),
        workload(PIPE, "two processes hand a byte to and fro"),
        workload(
            ONE_CORE,
            "fork, beside another machine that does the same on one processor of the host",
        ),
        workload(TWO_CORES, "the same with a processor of the host for each"),
    ],
    guests: &[linux_guest::AMD64, linux_guest::I686],
    kinds: &[KindGroup {
        title: "work of the monitor",
        kinds: &[
            ExitKind::LinkMiss,
            ExitKind::IndirectMiss,
            ExitKind::WindowFault,
            ExitKind::Cr3Load,
            ExitKind::Invlpg,
            ExitKind::StringInstruction,
            ExitKind::Interrupted,
            ExitKind::InterruptDelivered,
        ],
    }],
    numbers: None,
};

/// Whether two machines run side by side.
pub fn is_pair(workload: &str) -> bool {
    [ONE_CORE, TWO_CORES].contains(&workload)
}
