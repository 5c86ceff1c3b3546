//! Four machines with DOS pinned to one processor: three are busy, and keys are typed at the prompt
//! of the fourth.
//!
//! The time is measured from a key, when the machine's keyboard receives it, to its character on
//! the screen: a resident program that has hooked INT 10h sends displayed characters to the serial
//! port.

use super::concurrency::{KEYS, OTHERS, PAUSES, QUICK_KEYS, add_echoes};
use super::dos_bench::work;
use crate::dos::{DosGuest, Media};
use crate::experiment::{Arm, Bench, LabError, Stop, Timed};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};
use tollgate_host_facts::processors::{Affinity, current_processor};
use tollgate_machine::config::VmConfig;

/// The work of the busy machines.
const BUSY_WITH: &str = "mix";
/// Number of characters in a line before Enter: fewer than any DOS permits.
const LINE: usize = 40;

/// The machines, which are paused between two measurements.
pub struct FourDosMachines {
    foreground: DosGuest,
    others: Vec<DosGuest>,
    keys: u16,
}

impl FourDosMachines {
    /// Boots the machines.
    ///
    /// # Errors
    ///
    /// A machine does not boot.
    pub fn open(image: &Path, quick: bool, stop: &Stop) -> Result<Self, LabError> {
        let affinity = Affinity::only(current_processor())
            .ok_or_else(|| LabError::Host("the processor's number is too large".into()))?;
        let busy = work(BUSY_WITH)?;
        let media = Media::of(image, &busy)?;
        let boot = || {
            let affinity = affinity.clone();
            let pin = move || {
                let pinned = affinity.apply();
                pinned.map_err(|error| format!("processor affinity: {error}"))
            };
            DosGuest::boot(&media, &VmConfig::default(), stop, pin)
        };
        let mut foreground = boot()?;
        foreground.begin_echo()?;
        let others = (0..OTHERS).map(|_| {
            let mut guest = boot()?;
            guest.begin_without_end(&busy)?;
            Ok(guest)
        });
        Ok(Self {
            foreground,
            others: others.collect::<Result<_, LabError>>()?,
            keys: if quick { QUICK_KEYS } else { KEYS },
        })
    }

    /// Types characters. Returns the microseconds to each echo.
    fn echoes(&mut self) -> Result<Vec<u64>, LabError> {
        self.foreground.wake();
        let mut echoes = Vec::new();
        for number in 0..usize::from(self.keys) {
            thread::sleep(Duration::from_micros(PAUSES[number % PAUSES.len()]));
            let character = char::from(b'a' + (number % 26) as u8);
            let took = self.foreground.echo_of(character)?.as_micros();
            echoes.push(u64::try_from(took).unwrap_or(u64::MAX));
            if number % LINE == LINE - 1 {
                self.foreground.enter_echoed()?;
            }
        }
        self.foreground.enter_echoed()?;
        self.foreground.rest();
        Ok(echoes)
    }
}

impl Bench for FourDosMachines {
    fn is_on_calling_thread(&self) -> bool {
        false
    }

    fn measure(&mut self, arm: &Arm, _stop: &Stop) -> Result<Timed, LabError> {
        for machine in self.others.iter().chain([&self.foreground]) {
            machine.turn(arm)?;
        }
        let alone = self.echoes()?;
        self.others.iter().for_each(DosGuest::wake);
        let started = Instant::now();
        let beside = self.echoes();
        self.others.iter().for_each(DosGuest::rest);
        let seconds = started.elapsed().as_secs_f64();
        for machine in &mut self.others {
            // A busy machine that has ended would spoil the measurement.
            machine.all_readings()?;
        }
        let reading = self.foreground.all_readings()?;
        let mut timed = Timed::new(seconds, &reading);
        timed.work.insert("keys".into(), u64::from(self.keys));
        add_echoes(&mut timed, &alone, &beside?);
        Ok(timed)
    }
}
