//! The kinds of exit that `tollgate cost` measures, and which exits each repetition must cause.
//!
//! The names are those of `guests/kinds.inc`.

mod devices;
mod expected;
mod kind;
mod memory;
mod others;
mod registers;
mod transfers;

pub use expected::Expected;
pub use kind::{BASELINE, Batch, INVLPG, Kind};
use std::sync::LazyLock;

/// All kinds that are measured, in the order of the output.
pub static KINDS: LazyLock<Vec<Kind>> = LazyLock::new(|| {
    let subjects = [
        devices::KINDS,
        transfers::KINDS,
        registers::KINDS,
        memory::KINDS,
        others::KINDS,
    ];
    subjects.concat()
});

/// The guest's loop that measures no kind of exit.
pub const INTERPRETER: &str = "interpreter";

/// Kinds that the experiment would measure too if this version had them.
pub const NOT_IN_THIS_VERSION: &[(&str, &str)] = &[
    ("shadow-fill", "a page entered into a shadow window"),
    (
        "native-fault",
        "a page given to a program that runs natively: `tollgate lab native` measures it in Linux",
    ),
    (
        "native-step",
        "an instruction of such a program that is run translated",
    ),
    ("mwait", "MONITOR and MWAIT"),
    ("ipi", "an interrupt to another virtual processor"),
    (
        "packet-register",
        "a network packet through device registers: the only adapter is virtio",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::image;

    /// Loops of the guest that are not kinds of exit.
    const OTHER_LOOPS: &[&str] = &[BASELINE, INTERPRETER];

    #[test]
    fn every_kind_has_loops_and_every_loop_is_a_kind() {
        let table = image::table();
        for kind in KINDS.iter() {
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
        let table = image::table();
        let takes = |name: &str, mode| {
            let mut lines = table.iter();
            lines.any(|line| line.name == name && line.runs_in(mode))
        };
        for kind in KINDS.iter() {
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
