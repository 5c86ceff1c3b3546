//! Runs every fuzz target with its own seeds in a process that is confined as that of a machine, as the
//! programs of `fuzz/` do. A program of its own, because confinement cannot be undone.

use tollgate_hostile::{TARGETS, confined};

#[test]
fn the_targets_need_no_more_than_a_machine_has() {
    // What a machine is made from is read before it is confined.
    let targets: Vec<_> = TARGETS
        .iter()
        .map(|target| (target, (target.seeds)()))
        .collect();
    confined::begin();
    for (target, seeds) in targets {
        for (seed, bytes) in seeds {
            println!("{}: seed {seed}", target.name);
            (target.run)(&bytes);
        }
    }
}
