//! The workloads and guests of the experiment `shadow`.

use super::arms::*;
use super::database::workloads::{self, WORKLOADS};
use crate::experiment::{About, Guest, KindGroup, Numbers, Workload};
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

/// Workload: the small system copies files.
pub const FILES: &str = "files";
/// Workload: a device is accessed, in the only space that there is.
pub const ONE_SPACE: &str = "one-space";

/// Our own guest that does not page.
pub const NO_PAGING: &str = "16-bit";
/// Our own guest with 64 bits.
pub const WIDE: &str = "64-bit";
/// Our own guest with 32 bits.
pub const NARROW: &str = "32-bit";

const OURS: &[&str] = &[WIDE, NARROW];
const LINUX: &[&str] = &[linux_guest::AMD64.name, linux_guest::I686.name];

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
    arms: ARMS,
    workloads: &[
        Workload::of_events(SWITCH_ONLY, "loads six spaces in turn and reads nothing")
            .with(SWITCHING)
            .on(OURS),
        Workload::of_events(
            SWITCH,
            "loads six spaces in turn and reads 16 pages in each",
        )
        .with(SWITCHING)
        .on(OURS),
        Workload::of_events(SWITCH_TWELVE, "the same with twelve spaces")
            .with(SWITCHING)
            .on(OURS),
        Workload::of_events(INVALIDATE_ONLY, "invalidates one page, over and over")
            .with(INVALIDATING)
            .on(OURS),
        Workload::of_events(
            INVALIDATE,
            "maps a page elsewhere, invalidates it and reads 16 pages",
        )
        .with(INVALIDATING)
        .on(OURS),
        Workload::of_events(RANGE, "invalidates 16 pages one by one and reads them")
            .with(INVALIDATING)
            .on(OURS),
        Workload::of_events(
            RANGE_BY_CALL,
            "invalidates them by one hypercall and reads them",
        )
        .with(INVALIDATING)
        .on(OURS),
        Workload::of_events(PURGE, "invalidates all spaces and reads 16 pages in one")
            .with(PURGING)
            .on(OURS),
        Workload::of_events(
            TWICE,
            "uses twelve spaces once; then two of them, and invalidates all each time",
        )
        .with(PURGING)
        .on(OURS),
        Workload::of_events(
            PROCESSES,
            "five processes of Linux in turn, each using 16 pages",
        )
        .with(OF_LINUX)
        .on(LINUX),
        Workload::of_events(
            UNMAPPING,
            "the same, and each maps one of its pages again in each turn",
        )
        .with(OF_LINUX)
        .on(LINUX),
        Workload::of_events(
            CODE_PAGES[0].0,
            "two processes of Linux that have run 10 pages of code each, and run up to 300 in each \
 turn",
        )
        .with(WITH_CODE)
        .on(LINUX),
        Workload::of_events(CODE_PAGES[1].0, "the same with 100 pages of code")
            .with(WITH_CODE)
            .on(LINUX),
        Workload::of_events(CODE_PAGES[2].0, "the same with 1,000 pages of code")
            .with(WITH_CODE)
            .on(LINUX),
        Workload::of_events(CODE_PAGES[3].0, "the same with 10,000 pages of code")
            .with(WITH_CODE)
            .on(LINUX),
        Workload::of_events(
            ONE_SPACE,
            "accesses a device, in the only space that there is",
        )
        .with(FEW)
        .on(&[WIDE]),
        Workload::of_events(FILES, "copies and displays files, without paging")
            .with(FEW)
            .on(&[NO_PAGING]),
        WORKLOADS[0],
        WORKLOADS[1],
        WORKLOADS[2],
        WORKLOADS[3],
        WORKLOADS[4],
        WORKLOADS[5],
        WORKLOADS[6],
        WORKLOADS[7],
        WORKLOADS[8],
        WORKLOADS[9],
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
        Guest {
            name: NO_PAGING,
            what: "our small system in real mode, which does not page",
            needs_image: false,
        },
        workloads::AMD64,
        workloads::I386,
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
        others: &[("conventional", CONVENTIONAL)],
    }),
    by_workload: None,
};
