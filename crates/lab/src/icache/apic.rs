//! A kernel of ours that accesses the local APIC in a loop: `guests/apic-loop.S`.

use super::about::{APIC_DIRECT, NARROW};
use super::counts::add_counts;
use crate::experiment::{Arm, Bench, LabError, Stop, Timed};
use crate::paged_guest::{Images, PagedGuest, Width};
use tollgate_machine::config::{MemoryAccess, VmConfig};

const IMAGES: Images = Images {
    wide: include_bytes!(concat!(env!("OUT_DIR"), "/apic-loop-64.bin")),
    narrow: include_bytes!(concat!(env!("OUT_DIR"), "/apic-loop.bin")),
};
const ROUNDS: u64 = 20_000;
const QUICK_ROUNDS: u64 = 500;
/// Number of accesses in a round.
pub const ACCESSES: u64 = 6;
/// The low byte of the local APIC's version register (SDM volume 3, 11.4.8).
pub const VERSION: u64 = 0x14;

/// The guest with the loop.
pub struct Loop {
    width: Width,
    access: MemoryAccess,
    rounds: u64,
}

impl Loop {
    /// Opens the workload of this name; with little work if `quick`.
    pub fn open(guest: &str, workload: &str, quick: bool) -> Self {
        Self {
            width: match guest {
                NARROW => Width::Narrow,
                _ => Width::Wide,
            },
            access: match workload {
                APIC_DIRECT => MemoryAccess::Direct,
                _ => MemoryAccess::Checked,
            },
            rounds: if quick { QUICK_ROUNDS } else { ROUNDS },
        }
    }

    fn run(&self, guest: &mut PagedGuest, rounds: u64, stop: &Stop) -> Result<u64, LabError> {
        let parameters = [guest.places().local_apic, rounds, 0, 0, 0, 0, 0, 0];
        guest.run(0, 1, parameters, rounds * VERSION, stop)
    }
}

impl Bench for Loop {
    fn measure(&mut self, arm: &Arm, stop: &Stop) -> Result<Timed, LabError> {
        let config = VmConfig {
            memory_access: self.access,
            ..arm.config(&VmConfig::default())?
        };
        let mut guest = PagedGuest::new(self.width, IMAGES, &config)?;
        self.run(&mut guest, self.rounds / 20, stop)?;
        guest.reset_ledger();
        let cycles = self.run(&mut guest, self.rounds, stop)?;
        let reading = guest.reading();
        let accesses = self.rounds * ACCESSES;
        let mut timed = Timed::of_events(accesses, cycles, &reading);
        timed.work.insert("accesses".to_owned(), accesses);
        add_counts(&mut timed, &reading, &guest.counts())?;
        Ok(timed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::about::{ABOUT, APIC, FAST_PATH, OFF, ON, SITE, WIDE};
    use super::*;

    fn measured(guest: &str, workload: &str, arm: &str) -> Timed {
        let arm = ABOUT.arms.iter().find(|it| it.name == arm).unwrap();
        let mut bench = Loop::open(guest, workload, true);
        bench.measure(arm, &Stop::default()).unwrap()
    }

    #[test]
    fn each_arm_finds_instructions_in_its_way() {
        for (guest, workload) in [(WIDE, APIC), (NARROW, APIC), (WIDE, APIC_DIRECT)] {
            let all = (QUICK_ROUNDS * ACCESSES) as f64;
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
}
