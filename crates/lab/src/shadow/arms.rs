//! The arms of the experiment `shadow`, and those that each kind of workload has.

use crate::experiment::Arm;

/// An arm with values for all knobs of the experiment. If only the number of tables is given, it has all mechanisms;
/// a `conventional` one has none.
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
    ($name:literal, $tables:literal, conventional, $what:literal) => {
        arm!($name, $tables, "exit", "full", "allow", "checked", $what)
    };
    ($name:literal, $tables:literal, $switch:literal, $invalidation:literal, $double:literal,
     $access:literal, $what:literal) => {
        Arm::new(
            $name,
            &[
                ("shadow-tables", $tables),
                ("switch", $switch),
                ("invalidation", $invalidation),
                ("reverse-map", "on"),
                ("double-invalidation", $double),
                // In the study, tables become invalid when the guest says so.
                ("compare-entries", "off"),
                ("memory-access", $access),
            ],
            $what,
        )
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

/// Arm: six tables as a monitor without any of these mechanisms has them: each switch is an exit, one
/// page invalidates a whole table, and tables are purged again. With one mechanism each:
pub const CONVENTIONAL_SIX: &str = "conventional=6";
/// ... one page invalidates one entry, by an exit.
pub const WITH_SELECTIVE: &str = "conventional=6+selective";
/// ... the same without an exit.
pub const WITH_INLINE: &str = "conventional=6+inline";
/// ... a switch without an exit.
pub const WITH_SWITCH: &str = "conventional=6+switch";
/// ... selection flags.
pub const WITH_FLAG: &str = "conventional=6+flag";
/// ... counted entries: the same as [`FULL`].
pub const WITH_COUNT: &str = FULL;
/// Arm: six tables, and programs reach memory directly once they have run for a while.
pub const ADAPTIVE_SIX: &str = "adaptive=6";

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

/// The same without the mechanisms.
pub const CONVENTIONAL: &[(&str, u32)] = &[
    ("conventional=1", 1),
    ("conventional=2", 2),
    ("conventional=3", 3),
    ("conventional=4", 4),
    (CONVENTIONAL_SIX, 6),
    ("conventional=8", 8),
    ("conventional=16", 16),
];

/// The arms for workloads that switch spaces.
pub const SWITCHING: &[&str] = &[
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
pub const INVALIDATING: &[&str] = &[ONE, SIX, COUNT, SELECTIVE, FULL, DIRECT_SIX, CHECKER];
pub const PURGING: &[&str] = &[ONE, SIX, COUNT, ALLOW, FLAG, DIRECT_SIX, CHECKER];
/// The arms that can be set while a guest runs.
pub const OF_LINUX: &[&str] = &[
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

pub const WITH_CODE: &[&str] = &[ONE, "tables=4", COUNT, DIRECT_SIX];

/// The arms for a database: each mechanism alone, and all together.
pub const DATABASE: &[&str] = &[
    ONE,
    SIX,
    DIRECT_SIX,
    ADAPTIVE_SIX,
    "conventional=1",
    "conventional=3",
    CONVENTIONAL_SIX,
    WITH_SELECTIVE,
    WITH_INLINE,
    WITH_SWITCH,
    WITH_FLAG,
    WITH_COUNT,
];
/// The same with more numbers of tables, among which the best is searched.
pub const SEARCH: &[&str] = &[
    ONE,
    "tables=2",
    "tables=3",
    "tables=4",
    SIX,
    "tables=8",
    COUNT,
    DIRECT_SIX,
    ADAPTIVE_SIX,
    "conventional=1",
    "conventional=2",
    "conventional=3",
    "conventional=4",
    CONVENTIONAL_SIX,
    "conventional=8",
    "conventional=16",
    WITH_SELECTIVE,
    WITH_INLINE,
    WITH_SWITCH,
    WITH_FLAG,
    WITH_COUNT,
];
/// The arms where little is expected: one table, and several without and with the mechanisms.
pub const FEW: &[&str] = &[
    ONE,
    SIX,
    DIRECT_SIX,
    "conventional=1",
    "conventional=3",
    CONVENTIONAL_SIX,
];

/// All arms, in the order of the output.
pub const ARMS: &[Arm] = &[
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
        ..arm!(
            "tables=6+checker",
            "6",
            "six, and every translation that is used is checked (--verify-shadow)"
        )
    },
    arm!(
        "conventional=1",
        "1",
        conventional,
        "one table, loaded by an exit; INVLPG drops all of it"
    ),
    arm!(
        "conventional=2",
        "2",
        conventional,
        "two, and for INVLPG the whole space is dropped; all are purged each time"
    ),
    arm!(
        "conventional=3",
        "3",
        conventional,
        "three of those: the study's baseline"
    ),
    arm!("conventional=4", "4", conventional, "four"),
    arm!("conventional=6", "6", conventional, "six"),
    arm!("conventional=8", "8", conventional, "eight"),
    arm!("conventional=16", "16", conventional, "sixteen"),
    arm!(
        "conventional=6+selective",
        "6",
        "exit",
        "selective",
        "allow",
        "checked",
        "six, and INVLPG exits and drops one page"
    ),
    arm!(
        "conventional=6+inline",
        "6",
        "exit",
        "inline",
        "allow",
        "checked",
        "six, and INVLPG drops one page without an exit"
    ),
    arm!(
        "conventional=6+switch",
        "6",
        "inline",
        "full",
        "allow",
        "checked",
        "six, loaded without an exit"
    ),
    arm!(
        "conventional=6+flag",
        "6",
        "exit",
        "full",
        "selection-flag",
        "checked",
        "six, purged only if they were loaded since"
    ),
    arm!(
        "adaptive=6",
        "6",
        "inline",
        "inline",
        "entry-count",
        "adaptive",
        "six, and programs reach memory directly once they have run for a while"
    ),
];
