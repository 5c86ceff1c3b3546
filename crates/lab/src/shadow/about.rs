//! What is compared, on what.

use crate::experiment::{About, Arm, EVENT, Guest, KindGroup, Metric, Numbers, Workload};
use crate::linux_guest;
use tollgate_exits::ExitKind;

/// Loads of address spaces in turn, of which nothing is used.
pub const SWITCH_ONLY: &str = "switch-only";
/// The same, with their pages read.
pub const SWITCH: &str = "switch";
/// The same with more spaces than most arms keep.
pub const SWITCH_TWELVE: &str = "switch-12";
/// Invalidations of one page that nothing is known of.
pub const INVALIDATE_ONLY: &str = "invalidate-only";
/// Invalidations of one page, which is mapped elsewhere.
pub const INVALIDATE: &str = "invalidate";
/// Invalidations of all pages, one by one.
pub const RANGE: &str = "range";
/// The same by a hypercall.
pub const RANGE_BY_CALL: &str = "range-by-call";
/// Invalidations of all spaces.
pub const PURGE: &str = "purge";
/// The same after many spaces were used, of which few are used again.
pub const TWICE: &str = "double";
/// Processes of Linux that hand on a token.
pub const PROCESSES: &str = "processes";
/// The same, and each maps a page anew in each turn.
pub const UNMAPPING: &str = "unmapping";

/// Two processes of Linux, each of which has run so many pages of code: what a switch costs must not
/// depend on that.
pub const CODE_PAGES: &[(&str, u64)] = &[
    ("code-10", 10),
    ("code-100", 100),
    ("code-1000", 1_000),
    ("code-10000", 10_000),
];

/// Our own guests.
pub const WIDE: &str = "64-bit";
/// The same with 32 bits.
pub const NARROW: &str = "32-bit";

/// An arm with all knobs of the experiment.
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
                // The study's tables are void when the guest says so.
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

/// One table, with everything else.
pub const ONE: &str = "tables=1";
/// Six tables by exits, purged as a whole for one page.
pub const FULL: &str = "tables=6+full";
/// Six tables by exits.
pub const SELECTIVE: &str = "tables=6+selective";
/// Six tables, without exits.
pub const SIX: &str = "tables=6";
/// Sixteen tables, and all are purged each time.
pub const ALLOW: &str = "double=allow";
/// The same with selection flags.
pub const FLAG: &str = "double=selection-flag";
/// The same with entries counted.
pub const COUNT: &str = "tables=16";
/// The host's page tables are those that are derived.
pub const DIRECT_ONE: &str = "direct=1";
pub const DIRECT_SIX: &str = "direct=6";
/// Six tables, and all that is used is compared with the guest's tables.
pub const CHECKER: &str = "tables=6+checker";

/// The arms that differ in the number of tables alone, and that number.
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

/// The arms that differ in it, those by exits, and others.
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
/// Those that can be turned on a guest that runs.
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
            "one table: each load of another space forgets it"
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
            "six, loaded by an exit, and one page forgotten by an exit"
        ),
        arm!(
            "tables=6+full",
            "6",
            "exit",
            "full",
            "entry-count",
            "checked",
            "six, loaded by an exit, and for one page all of its space forgotten"
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
            "one, and the host's page tables hold what was derived"
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
                "six, and all that is used is checked (--verify-shadow)"
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
            "the same, and each maps one of its pages anew in each turn",
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
