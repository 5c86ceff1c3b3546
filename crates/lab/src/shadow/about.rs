//! The arms, workloads and guests of the experiment `shadow`.

use crate::experiment::{About, Arm, EVENT, Guest, KindGroup, Metric, Numbers, Workload};
use crate::linux_guest;
use tollgate_exits::ExitKind;

/// Workload: loads of address spaces in turn, without using anything in them.
pub const SWITCH_ONLY: &str = "switch-only";
/// Workload: loads of address spaces in turn, whose pages are read.
pub const SWITCH: &str = "switch";
/// Workload: the same with more spaces than most arms keep.
pub const SWITCH_TWELVE: &str = "switch-12";
/// Workload: invalidations of one page without cached translations.
pub const INVALIDATE_ONLY: &str = "invalidate-only";
/// Workload: invalidations of one page, whose mapping changes.
pub const INVALIDATE: &str = "invalidate";
/// Workload: invalidations of all pages, one by one.
pub const RANGE: &str = "range";
/// Workload: invalidations of all pages by a hypercall.
pub const RANGE_BY_CALL: &str = "range-by-call";
/// Workload: invalidations of all spaces.
pub const PURGE: &str = "purge";
/// Workload: invalidations of all spaces after many spaces were used, of which few are used again.
pub const TWICE: &str = "double";
/// Workload: processes of Linux that pass a token on.
pub const PROCESSES: &str = "processes";
/// Workload: processes that pass a token on, and each maps a page again in each turn.
pub const UNMAPPING: &str = "unmapping";

/// Workloads: two processes of Linux, each of which has run this number of pages of code; the cost
/// of a switch must not depend on it.
pub const CODE_PAGES: &[(&str, u64)] = &[
    ("code-10", 10),
    ("code-100", 100),
    ("code-1000", 1_000),
    ("code-10000", 10_000),
];

/// Our own guest with 64 bits.
pub const WIDE: &str = "64-bit";
/// Our own guest with 32 bits.
pub const NARROW: &str = "32-bit";

/// An arm with values for all knobs of the experiment.
macro_rules! arm {
    ($name:literal, $tables:literal, $what:literal) => {
        arm!(
            $name,
            $tables,
            "inline",
            "inline",
            "entry-count",
            "checked",
            $what
        )
    };
    ($name:literal, $tables:literal, $switch:literal, $invalidation:literal, $double:literal,
     $access:literal, $what:literal) => {
        Arm {
            name: $name,
            settings: &[
                ("shadow-tables", $tables),
                ("switch", $switch),
                ("invalidation", $invalidation),
                ("reverse-map", "on"),
                ("double-invalidation", $double),
                // In the study, tables become invalid when the guest says so.
                ("compare-entries", "off"),
                ("memory-access", $access),
            ],
            checks: false,
            hooks: None,
            guests: &[],
            what: $what,
        }
    };
}

/// Arm: one table, with all other mechanisms.
pub const ONE: &str = "tables=1";
/// Arm: six tables with exits; an invalidation of one page purges a whole table.
pub const FULL: &str = "tables=6+full";
/// Arm: six tables with exits.
pub const SELECTIVE: &str = "tables=6+selective";
/// Arm: six tables, without exits.
pub const SIX: &str = "tables=6";
/// Arm: sixteen tables, all of which are purged each time.
pub const ALLOW: &str = "double=allow";
/// Arm: sixteen tables with selection flags.
pub const FLAG: &str = "double=selection-flag";
/// Arm: sixteen tables whose entries are counted.
pub const COUNT: &str = "tables=16";
/// Arm: the derived tables are the host's page tables.
pub const DIRECT_ONE: &str = "direct=1";
pub const DIRECT_SIX: &str = "direct=6";
/// Arm: six tables, and every translation that is used is compared with the guest's tables.
pub const CHECKER: &str = "tables=6+checker";

/// The arms that differ only in the number of tables, and that number.
pub const BY_NUMBER: &[(&str, u32)] = &[
    (ONE, 1),
    ("tables=2", 2),
    ("tables=3", 3),
    ("tables=4", 4),
    (SIX, 6),
    ("tables=8", 8),
    ("tables=12", 12),
    (COUNT, 16),
];

/// The arms for workloads that switch spaces.
const SWITCHING: &[&str] = &[
    ONE,
    "tables=2",
    "tables=3",
    "tables=4",
    SIX,
    "tables=8",
    "tables=12",
    COUNT,
    SELECTIVE,
    DIRECT_ONE,
    DIRECT_SIX,
    CHECKER,
];
const INVALIDATING: &[&str] = &[ONE, SIX, COUNT, SELECTIVE, FULL, DIRECT_SIX, CHECKER];
const PURGING: &[&str] = &[ONE, SIX, COUNT, ALLOW, FLAG, DIRECT_SIX, CHECKER];
/// The arms that can be set while a guest runs.
const OF_LINUX: &[&str] = &[
    ONE,
    "tables=2",
    "tables=3",
    "tables=4",
    SIX,
    "tables=8",
    "tables=12",
    COUNT,
    SELECTIVE,
    FULL,
    DIRECT_ONE,
    DIRECT_SIX,
];

const WITH_CODE: &[&str] = &[ONE, "tables=4", COUNT, DIRECT_SIX];

const OURS: &[&str] = &[WIDE, NARROW];
const LINUX: &[&str] = &[linux_guest::AMD64.name, linux_guest::I686.name];

const fn timed(
    name: &'static str,
    what: &'static str,
    arms: &'static [&'static str],
    guests: &'static [&'static str],
) -> Workload {
    Workload {
        name,
        what,
        metric: Metric::Value {
            name: EVENT,
            unit: "cycles",
        },
        arms,
        guests,
    }
}

/// The experiment's description.
pub static ABOUT: About = About {
    name: "shadow",
    one_line: "tables derived from the guest's: how many are kept, and how they are invalidated",
    question: "A monitor keeps tables of its own that are derived from the guest's page tables: \
               here the software TLB's, by address space. With one, each switch of the guest's \
               space forgets all of it; with many, invalidations must reach them. How much does a \
               switch, an invalidation of a page and one of all spaces cost, with what must be \
               filled again, by the number of tables, by an exit and without?",
    source: "H. Umeno, T. Kubo, S. Takasaki (Hitachi), \"Reduction of 2-0-Translation Table \
             Maintenance Overhead in a Virtual Machine System\"",
    arms: &[
        arm!(
            "tables=1",
            "1",
            "one table: each load of another space drops it"
        ),
        arm!(
            "tables=2",
            "2",
            "two, loaded and invalidated without an exit"
        ),
        arm!("tables=3", "3", "three"),
        arm!("tables=4", "4", "four"),
        arm!("tables=6", "6", "six"),
        arm!("tables=8", "8", "eight"),
        arm!("tables=12", "12", "twelve"),
        arm!("tables=16", "16", "sixteen"),
        arm!(
            "tables=6+selective",
            "6",
            "exit",
            "selective",
            "entry-count",
            "checked",
            "six, loaded by an exit, and one page dropped by an exit"
        ),
        arm!(
            "tables=6+full",
            "6",
            "exit",
            "full",
            "entry-count",
            "checked",
            "six, loaded by an exit, and for one page its whole space dropped"
        ),
        arm!(
            "double=allow",
            "16",
            "inline",
            "inline",
            "allow",
            "checked",
            "sixteen; all are purged at once, those too that are purged and not used since"
        ),
        arm!(
            "double=selection-flag",
            "16",
            "inline",
            "inline",
            "selection-flag",
            "checked",
            "sixteen; those are purged at once that were loaded since"
        ),
        arm!(
            "direct=1",
            "1",
            "inline",
            "inline",
            "entry-count",
            "direct",
            "one, and the derived tables are the host's page tables"
        ),
        arm!(
            "direct=6",
            "6",
            "inline",
            "inline",
            "entry-count",
            "direct",
            "six of those"
        ),
        Arm {
            checks: true,
            hooks: None,
            guests: &[],
            ..arm!(
                "tables=6+checker",
                "6",
                "six, and every translation that is used is checked (--verify-shadow)"
            )
        },
    ],
    workloads: &[
        timed(
            SWITCH_ONLY,
            "loads six spaces in turn and reads nothing",
            SWITCHING,
            OURS,
        ),
        timed(
            SWITCH,
            "loads six spaces in turn and reads 16 pages in each",
            SWITCHING,
            OURS,
        ),
        timed(
            SWITCH_TWELVE,
            "the same with twelve spaces",
            SWITCHING,
            OURS,
        ),
        timed(
            INVALIDATE_ONLY,
            "invalidates one page, over and over",
            INVALIDATING,
            OURS,
        ),
        timed(
            INVALIDATE,
            "maps a page elsewhere, invalidates it and reads 16 pages",
            INVALIDATING,
            OURS,
        ),
        timed(
            RANGE,
            "invalidates 16 pages one by one and reads them",
            INVALIDATING,
            OURS,
        ),
        timed(
            RANGE_BY_CALL,
            "invalidates them by one hypercall and reads them",
            INVALIDATING,
            OURS,
        ),
        timed(
            PURGE,
            "invalidates all spaces and reads 16 pages in one",
            PURGING,
            OURS,
        ),
        timed(
            TWICE,
            "uses twelve spaces once; then two of them, and invalidates all each time",
            PURGING,
            OURS,
        ),
        timed(
            PROCESSES,
            "five processes of Linux in turn, each using 16 pages",
            OF_LINUX,
            LINUX,
        ),
        timed(
            UNMAPPING,
            "the same, and each maps one of its pages again in each turn",
            OF_LINUX,
            LINUX,
        ),
        timed(
            CODE_PAGES[0].0,
            "two processes of Linux that have run 10 pages of code each, and run up to 300 in each turn",
            WITH_CODE,
            LINUX,
        ),
        timed(
            CODE_PAGES[1].0,
            "the same with 100 pages of code",
            WITH_CODE,
            LINUX,
        ),
        timed(
            CODE_PAGES[2].0,
            "the same with 1,000 pages of code",
            WITH_CODE,
            LINUX,
        ),
        timed(
            CODE_PAGES[3].0,
            "the same with 10,000 pages of code",
            WITH_CODE,
            LINUX,
        ),
    ],
    guests: &[
        Guest {
            name: WIDE,
            what: "a kernel of ours without processes, with process-context identifiers",
            needs_image: false,
        },
        Guest {
            name: NARROW,
            what: "the same with 32-bit code and two-level paging",
            needs_image: false,
        },
        linux_guest::AMD64,
        linux_guest::I686,
    ],
    kinds: &[
        KindGroup {
            title: "spaces and pages",
            kinds: &[ExitKind::Cr3Load, ExitKind::Invlpg, ExitKind::Hypercall],
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
    numbers: Some(Numbers {
        what: "tables",
        of_arms: BY_NUMBER,
    }),
};
