//! A kernel of ours that accesses the local APIC: by a few instructions in a loop
//! (`guests/apic-loop.S`), or by more than the dictionary holds (`guests/apic-sites.S`).

use super::about::{APIC_DIRECT, APIC_SITES, NARROW};
use super::counts::add_counts;
use crate::experiment::{Arm, Bench, LabError, Stop, Timed};
use crate::paged_guest::{Images, PagedGuest, Width};
use tollgate_machine::config::{MemoryAccess, VmConfig};

/// The program of a workload.
struct Program {
    images: Images,
    /// Number of accesses in a round.
    accesses: u64,
    /// Sum of the values that a round reads and adds.
    sum: u64,
    rounds: u64,
    quick_rounds: u64,
}

const LOOP: Program = Program {
    images: Images {
        wide: include_bytes!(concat!(env!("OUT_DIR"), "/apic-loop-64.bin")),
        narrow: include_bytes!(concat!(env!("OUT_DIR"), "/apic-loop.bin")),
    },
    accesses: ACCESSES,
    sum: VERSION,
    rounds: 20_000,
    quick_rounds: 500,
};
const MANY_SITES: Program = Program {
    images: Images {
        wide: include_bytes!(concat!(env!("OUT_DIR"), "/apic-sites-64.bin")),
        narrow: include_bytes!(concat!(env!("OUT_DIR"), "/apic-sites.bin")),
    },
    accesses: SITES,
    sum: SITES,
    rounds: 20,
    quick_rounds: 1,
};

/// Number of accesses in a round of the loop.
pub const ACCESSES: u64 = 6;
/// Number of instructions that access the local APIC in the program with many.
const SITES: u64 = 3 * 4096;
/// The low byte of the local APIC's version register (SDM volume 3, 11.4.8).
pub const VERSION: u64 = 0x14;

/// The guest with the program of a workload.
pub struct Loop {
    width: Width,
    access: MemoryAccess,
    program: Program,
    rounds: u64,
}

impl Loop {
    /// Opens the workload of this name; with little work if `quick`.
    pub fn open(guest: &str, workload: &str, quick: bool) -> Self {
        let program = match workload {
            APIC_SITES => MANY_SITES,
            _ => LOOP,
        };
        Self {
            width: match guest {
                NARROW => Width::Narrow,
                _ => Width::Wide,
            },
            access: match workload {
                APIC_DIRECT => MemoryAccess::Direct,
                _ => MemoryAccess::Checked,
            },
            rounds: match quick {
                true => program.quick_rounds,
                false => program.rounds,
            },
            program,
        }
    }

    fn run(&self, guest: &mut PagedGuest, rounds: u64, stop: &Stop) -> Result<u64, LabError> {
        let parameters = [guest.places().local_apic, rounds, 0, 0, 0, 0, 0, 0];
        guest.run(0, 1, parameters, rounds * self.program.sum, stop)
    }
}

impl Bench for Loop {
    fn measure(&mut self, arm: &Arm, stop: &Stop) -> Result<Timed, LabError> {
        let config = VmConfig {
            memory_access: self.access,
            ..arm.config(&VmConfig::default())?
        };
        let mut guest = PagedGuest::new(self.width, self.program.images, &config)?;
        self.run(&mut guest, (self.rounds / 20).max(1), stop)?;
        guest.reset_ledger();
        let cycles = self.run(&mut guest, self.rounds, stop)?;
        let reading = guest.reading();
        let accesses = self.rounds * self.program.accesses;
        let mut timed = Timed::of_events(accesses, cycles, &reading);
        timed.work.insert("accesses".to_owned(), accesses);
        add_counts(&mut timed, &reading, &guest.counts())?;
        Ok(timed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::about::{ABOUT, APIC, FAST_PATH, OFF, ON, PHYSICAL, SITE, WIDE};
    use super::*;

    fn measured(guest: &str, workload: &str, arm: &str) -> Timed {
        let arm = ABOUT.arms.iter().find(|it| it.name == arm).unwrap();
        let mut bench = Loop::open(guest, workload, true);
        bench.measure(arm, &Stop::default()).unwrap()
    }

    #[test]
    fn each_arm_finds_instructions_in_its_way() {
        for (guest, workload) in [(WIDE, APIC), (NARROW, APIC), (WIDE, APIC_DIRECT)] {
            let all = (LOOP.quick_rounds * ACCESSES) as f64;
            let of = |arm, name| {
                let timed = measured(guest, workload, arm);
                timed.values.get(name).copied().unwrap_or(0.0)
            };
            assert!(of(OFF, "walked") >= all, "{guest}, {workload}");
            assert!(of(ON, "hits") >= all - 10.0, "{guest}, {workload}");
            assert_eq!(of(SITE, "found-anew"), 0.0, "{guest}, {workload}");
            assert_eq!(of(FAST_PATH, "found-anew"), 0.0, "{guest}, {workload}");
        }
    }

    #[test]
    fn more_instructions_than_the_dictionary_holds_are_nearly_always_new_to_it() {
        for guest in [WIDE, NARROW] {
            for arm in [ON, PHYSICAL] {
                let timed = measured(guest, APIC_SITES, arm);
                let of = |name| timed.values.get(name).copied().unwrap_or(0.0);
                let found = of("found-anew");
                assert!(found >= SITES as f64, "{guest}, {arm}");
                assert!(of("missed-new") > 0.9 * found, "{guest}, {arm}");
                assert!(
                    of("dropped-full") > 0.9 * of("missed-new"),
                    "{guest}, {arm}"
                );
            }
        }
    }
}
