//! The arms, workloads and guests of the experiment `interruptible`.

use crate::experiment::{About, Arm, KindGroup, Workload};
use crate::linux_guest;
use tollgate_exits::ExitKind;

/// Workload: processes are started and end immediately.
pub const FORK: &str = "fork";
/// Workload: processes are started and execute a program.
pub const EXEC: &str = "exec";
/// Workload: a byte goes back and forth between two processes.
pub const PIPE: &str = "pipe";
/// Workload: `fork`, while another machine does the same on the same processor of the host.
pub const ONE_CORE: &str = "two-machines-one-core";
/// Workload: `fork`, while another machine does the same on another processor of the host.
pub const TWO_CORES: &str = "two-machines-two-cores";
/// Workload: a database whose transactions are on a disk.
pub const DATABASE: &str = "database";
/// Workload: datagrams from the host.
pub const NETWORK: &str = "network-flood";
/// Workload: requests to a disk.
pub const DISK: &str = "disk-flood";
/// The workloads that load a guest while interrupts arrive.
pub const LOADS: [&str; 3] = [DATABASE, NETWORK, DISK];
/// The guests that have the modules and programs for these loads.
const LOADED: &[&str] = &[linux_guest::AMD64.name, linux_guest::RT_AMD64.name];

/// Two guests are compared, not two kernels.
const PAIRED: &[&str] = &[linux_guest::AMD64.name, linux_guest::I686.name];

/// Arm: the monitor always finishes its work.
pub const OFF: &str = "off";
/// Arm: the monitor's work stops if an interrupt waits, and is started again.
pub const RESTART: &str = "restart";
/// Arm: the monitor's work stops if an interrupt waits, and resumes after the handler.
pub const RESUME: &str = "resume";
/// All arms of the experiment.
pub const ARMS: [&str; 3] = [OFF, RESTART, RESUME];

/// The experiment's description.
pub static ABOUT: About = About {
    name: "interruptible",
    one_line: "long pieces of the monitor's work: done to the end, or stopped for an interrupt",
    question: "A monitor handles the guest's faults with interrupts off. While it works for one process, \
               a timer that would wake a more important one waits. How long are these pieces of work, \
               how long does an interrupt wait for them, and what does it cost to stop them? In each \
               run a process of high priority waits for a moment, again and again, while others \
               of low priority have the monitor work: the study's programs, or a load of \
               a database, a network or a disk.",
    source: "M. Ito and S. Oikawa, \"Improving Real-Time Performance of a Virtual Machine Monitor based \
             System\"",
    arms: &[
        Arm::new(
            OFF,
            &[("interruptible", "off")],
            "each piece of work is done to its end",
        ),
        Arm::new(
            RESTART,
            &[("interruptible", "restart")],
            "it stops with what it has done; the instruction starts again after the handler",
        ),
        Arm::new(
            RESUME,
            &[("interruptible", "resume")],
            "it stops, and resumes when the handler has returned to the instruction",
        ),
    ],
    workloads: &[
        Workload::of_events(FORK, "a process starts others that end immediately"),
        Workload::of_events(EXEC, "the same, and they execute a program"),
        Workload::of_events(PIPE, "two processes pass a byte back and forth"),
        Workload::of_events(
            DATABASE,
            "two processes write to a SQLite database on a virtio disk",
        )
        .on(LOADED),
        Workload::of_events(
            NETWORK,
            "the host sends datagrams to the guest's virtio network",
        )
        .on(LOADED),
        Workload::of_events(
            DISK,
            "eight processes read and write a virtio disk directly",
        )
        .on(LOADED),
        Workload::of_events(
            ONE_CORE,
            "fork, next to another machine that does the same on one processor of the host",
        )
        .on(PAIRED)
        .on_one_processor(),
        Workload::of_events(TWO_CORES, "the same with a processor of the host for each").on(PAIRED),
    ],
    guests: &[linux_guest::AMD64, linux_guest::RT_AMD64, linux_guest::I686],
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
    by_workload: None,
};

/// Whether two machines run at the same time.
pub fn is_pair(workload: &str) -> bool {
    [ONE_CORE, TWO_CORES].contains(&workload)
}
